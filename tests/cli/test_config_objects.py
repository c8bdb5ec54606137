"""A config makes objects that fit their place and calls no function; what it names and may name works."""

import json
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, Optional, TypeVar, Union

import pytest
import torch
import yaml

from dfl_lightning import DFLModule, UserError
from dfl_lightning.cli import command as cli
from dfl_lightning.cli.classes.annotations import EMPTY, Accepted, accepted_by, returns
from dfl_lightning.cli.classes.config_objects import check_objects, is_pythons_own

OWN = """
    from collections.abc import Callable
    from pathlib import Path
    from subprocess import run

    import torch

    def touch(path="canary"):
        Path(path).touch()

    class Touch:
        def __init__(self, path="canary"):
            touch(path)

    class Net(torch.nn.Module):
        def __init__(self, inner=None, activation: Callable = torch.relu):
            super().__init__()
            self.inner, self.activation, self.head = inner, activation, torch.nn.Linear(64, 10)

        def forward(self, x):
            return self.head(self.activation(x.flatten(1)))

    class Pairs(torch.utils.data.Dataset):
        def __init__(self, transforms: list[Callable] | None = None, loader: Callable = touch):
            self.transforms = transforms or []

        def __len__(self):
            return 40

        def __getitem__(self, i):
            x = torch.full((64,), float(i))
            for transform in self.transforms:
                x = transform(x)
            return x, i % 2

    def net(width: int = 8) -> torch.nn.Sequential:
        return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width), torch.nn.Linear(width, 10))

    def twice(scores, labels) -> torch.Tensor:
        return 2 * torch.nn.functional.cross_entropy(scores, labels)

    def halves(x):
        return x / 2

    def plain_descent(parameters, lr=0.1) -> torch.optim.SGD:
        return torch.optim.SGD(parameters, lr=lr)
    """

CANARIES = {
    "own function": {"class_path": "own.touch", "init_args": {"path": "canary"}},
    "own class": {"class_path": "own.Touch", "init_args": {"path": "canary"}},
    "Python's function": {"class_path": "os.mkdir", "init_args": {"path": "canary"}},
    "Python's method": {"class_path": "pathlib.Path.touch", "dict_kwargs": {"self": "canary"}},
    "Python's class": {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "canary"]}},
}
"""What would make a file if it were made."""

HERE = {"made": "here"}
"""Stands for one of them in the values below."""

SLOTS = {
    **dict.fromkeys(
        (
            *("model.network", "model.optimizer", "model.lr_scheduler", "model.loss", "model.metrics", "model.init"),
            *("model.shared", "trainer.callbacks", "trainer.logger", "trainer.profiler", "trainer.plugins"),
            *("trainer.strategy", "trainer.accelerator", "trainer.devices", "trainer.max_time", "data", "engine"),
            *("data.partition", "data.split", "topology", "dropout", "selection", "threshold", "substitution"),
            *("aggregation", "objective", "monitors", "seed_everything"),
        ),
        HERE,
    ),
    "trainer.callbacks  ": [HERE],
    "trainer.logger ": [HERE],
    "trainer.plugins ": [HERE],
    "model.metrics ": [HERE],
    "monitors ": [HERE],
    "topology ": {"generator": "cycle_graph", "args": {"n": HERE}},
    "topology  ": {"sequence": [HERE]},
    "model.network ": {"class_path": "MLP", "init_args": {"hidden": HERE}},
    "model.network  ": {"class_path": "own.Net", "init_args": {"inner": HERE}},
    "model.network   ": {"class_path": "own.Net", "init_args": {"inner": {"a": [{"b": HERE}]}}},
    "model.network    ": {"class_path": "own.Net", "dict_kwargs": {"inner": HERE}},
    "model.optimizer ": {"class_path": "SGD", "init_args": {"lr": HERE}},
    "model.lr_scheduler ": {"class_path": "torch.optim.lr_scheduler.LambdaLR", "init_args": {"lr_lambda": HERE}},
    "model.lr_scheduler  ": {"class_path": "SequentialLR", "init_args": {"schedulers": [HERE], "milestones": [1]}},
    "model.loss ": {"class_path": "torch.nn.CrossEntropyLoss", "init_args": {"weight": HERE}},
    "trainer.callbacks ": [{"class_path": "LambdaCallback", "init_args": {"setup": HERE}}],
    "data ": {"class_path": "FromDataset", "init_args": {"dataset": HERE}},
    "data  ": {
        "class_path": "FromDataset",
        "init_args": {"dataset": {"class_path": "own.Pairs"}, "test_dataset": HERE},
    },
    "data.partition ": {"class_path": "FlippedLabels", "init_args": {"base": HERE}},
    "selection ": {"class_path": "Gossip", "init_args": {"k": HERE}},
}
"""Every place of a config and what stands there; spaces tell several values of a key apart."""


def with_it(value, canary):
    """Put a canary into the value instead of `HERE`."""
    if value == HERE:
        return canary
    if isinstance(value, dict):
        return {key: with_it(inner, canary) for key, inner in value.items()}
    return [with_it(inner, canary) for inner in value] if isinstance(value, list) else value


@pytest.fixture
def here(here):
    (here / "own.py").write_text(textwrap.dedent(OWN))
    sys.path.insert(0, str(here))
    return here


def config(key="", value=None):
    """Make the config of a small run, with a value under a dotted key."""
    content: Any = {
        "trainer": {"max_rounds": 1, "accelerator": "cpu", "enable_progress_bar": False},
        "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
        "data": {"class_path": "Digits", "init_args": {"num_clients": 3, "samples_per_client": 20}},
        "selection": {"class_path": "Gossip", "init_args": {"k": 1}},
    }
    inside = content
    *path, last = key.split(".")
    for part in path:
        inside = inside[part].get("init_args", inside[part])
    inside[last] = value
    content.pop("", None)
    return yaml.safe_dump(content)


WAYS = {
    "own function": lambda key, value: ["--config", "c.yaml", "--explain"],
    "own class": lambda key, value: ["--config", "small.yaml", f"--{key}", json.dumps(value)],
    "Python's function": lambda key, value: ["--config", "c.yaml"],
    "Python's method": lambda key, value: ["--config", "small.yaml", f"--{key}={json.dumps(value)}", "--print_config"],
    "Python's class": lambda key, value: ["--config", "small.yaml", f"--{key}={json.dumps(value)}", "--explain"],
}
"""The words that ask for each of them: in a config or typed; said, printed or run."""


@pytest.mark.parametrize("slot", SLOTS)
def test_config_does_not_make_unsuitable_objects(here, capsys, slot):
    """One of the objects in each place, by turns."""
    names, number = list(CANARIES), list(SLOTS).index(slot)
    check_slot(slot, [names[number % len(names)]], capsys)


@pytest.mark.slow
@pytest.mark.parametrize("slot", SLOTS)
def test_config_makes_no_unsuitable_object_in_any_place(here, capsys, slot):
    check_slot(slot, CANARIES, capsys)


def check_slot(slot, names, capsys):
    Path("small.yaml").write_text(config())
    for name in names:
        key, value = slot.strip(), with_it(SLOTS[slot], CANARIES[name])
        Path("c.yaml").write_text(config(key, value))
        words = WAYS[name](key, value)
        code = cli.run("fit", words)
        err = capsys.readouterr().err
        assert not Path("canary").exists(), (name, words)
        assert "Traceback" not in err
        if "--print_config" not in words:
            assert (code, len(err.splitlines())) == (2, 1), (name, words, err)


def test_canary_class_leaves_its_file(here):
    import own

    own.Touch()
    assert Path("canary").exists()


# --- functions that are handed over ---------------------------------------------------------------------------------
NAMED = {
    "a command of torch's": "torch.utils.collect_env.run",
    "a command of Python's": "os.system",
    "a command through one's own module": "own.run",
    "a reader of files": "torch.load",
    "our own": "dfl_lightning.cli.exports.export.export",
}


def made(path, **arguments):
    return {"class_path": path, "init_args": arguments}


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.filterwarnings("ignore")
def test_data_sets_refuse_functions_that_run_commands_or_read_files(here, capsys, name):
    """A data pipe calls a function with whatever the config says."""
    pipes = "torch.utils.data.datapipes.map"
    words = made(f"{pipes}.SequenceWrapper", sequence=["touch canary", "touch canary"])
    data = made("FromDataset", dataset=made(f"{pipes}.Mapper", datapipe=words, fn=NAMED[name]))
    Path("c.yaml").write_text(config("data", data))
    assert cli.run("fit", ["--config", "c.yaml"]) == 2
    assert "may not name this function" in capsys.readouterr().err
    assert not Path("canary").exists()


TO_FLOAT = made("torchvision.transforms.ConvertImageDtype", dtype="torch.float32")
PAIRS = made("own.Pairs", transforms=["own.halves", TO_FLOAT])
FITTING = {
    "a loss by its class": ("model.loss", "torch.nn.MultiMarginLoss"),
    "a loss by its name": ("model.loss", "MultiMarginLoss"),
    "a loss with arguments": ("model.loss", made("CrossEntropyLoss", label_smoothing=0.1)),
    "one's own loss": ("model.loss", "own.twice"),
    "a loss of torch's": ("model.loss", "torch.nn.functional.cross_entropy"),
    "a network by a function": ("model.network", made("own.net", width=3)),
    "a module where no type is known": ("model.network", made("own.Net", inner=made("torch.nn.ReLU"))),
    "a builtin of torch's": ("model.network", made("own.Net", activation="torch.tanh")),
    "transforms": ("data", made("FromDataset", num_clients=3, dataset=PAIRS)),
    "a callback of Lightning's": ("trainer.callbacks", [made("Timer")]),
    "a metric": ("model.metrics", [made("MulticlassRecall", num_classes=10)]),
    "a profiler": ("trainer.profiler", made("lightning.pytorch.profilers.PassThroughProfiler")),
}
"""Keys and permitted values; a function may be a class's default, as in `own.Pairs`: no config has named it."""


@pytest.mark.parametrize("name", FITTING)
def test_what_fits_its_place_is_made(here, capsys, name):
    Path("c.yaml").write_text(config(*FITTING[name]))
    assert cli.run("fit", ["--config", "c.yaml"]) == 0, capsys.readouterr().err


# --- types ------------------------------------------------------------------------------------------------------------
class Anything:
    pass


A, T = Anything, TypeVar("T", bound=Anything)
PLACES = [
    (int | None, Accepted()),
    (Literal["a", 3], Accepted()),
    (type[A], Accepted()),
    (list[float], Accepted()),
    (A, Accepted(bases=(A,))),
    (Optional[A], Accepted(bases=(A,))),  # noqa: UP045
    (Union[list[A], dict[str, Path]], Accepted(bases=(A, Path))),  # noqa: UP007
    (Iterable[A], Accepted(bases=(A,))),
    (tuple[A, ...], Accepted(bases=(A,))),
    (T, Accepted(bases=(A,))),
    (Callable, Accepted(called=True)),
    (Callable[[int], A] | None, Accepted(called=True, made=(A,))),
    (Callable[[A], float], Accepted(called=True)),
    (list, Accepted(unknown=True)),
    (dict[str, Any], Accepted(unknown=True)),
    (EMPTY, Accepted(unknown=True)),
    (object, Accepted(unknown=True)),
    ("A", Accepted(unknown=True)),
]


@pytest.mark.parametrize(("annotation", "place"), PLACES)
def test_what_an_argument_takes_is_read_from_its_type(annotation, place):
    assert accepted_by(annotation) == place


def test_a_function_makes_what_it_says():
    def said() -> "torch.nn.ReLU": ...

    def unsaid(): ...

    assert returns(said, (torch.nn.Module,))
    assert not returns(said, (torch.optim.Optimizer,))
    assert not returns(unsaid, (object,))
    assert not returns(len, (object,))


def test_users_module_may_share_a_name_with_the_standard_library(monkeypatch, tmp_path):
    (tmp_path / "test.py").write_text("class Net: pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    import test

    assert not is_pythons_own(test.Net)
    assert is_pythons_own(Path)
    assert is_pythons_own(print)


def test_loss_that_is_falsy_is_used():
    class Empty(torch.nn.ModuleList):
        def forward(self, scores, labels):
            return scores.sum()

    loss = Empty()
    assert not loss
    assert DFLModule(torch.nn.Flatten(), loss=loss).loss is loss


@pytest.mark.parametrize(
    ("value", "annotation", "sentence"),
    [
        (made("own.touch"), torch.nn.Module, "annotate it with '-> torch.nn.Module', or name a class"),
        (made("own.touch"), Callable, "is a function; write its name alone, without class_path and init_args"),
        (made("own.Touch"), torch.nn.Module, "k 'own.Touch' is not a subclass of torch.nn.Module"),
        (made("own.Touch"), EMPTY, "annotate this argument of Owner"),
        (made("own.Touch"), str, "which this argument does not take"),
        (made("os.system"), torch.nn.Module, "of Python's standard library, from which a config cannot make objects"),
        ([{"deep": made("own.Touch")}], dict[str, list[torch.nn.Module]], "k.deep 'own.Touch' is not"),
    ],
)
def test_a_refusal_names_the_place_and_the_remedy(here, value, annotation, sentence):
    with pytest.raises(UserError) as caught:
        check_objects(value, "k", annotation, "Owner")
    assert sentence in str(caught.value)
