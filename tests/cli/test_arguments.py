"""The words of a command line as one config, and the parser's errors as sentences."""

import sys
from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.cli.arguments import Argument, Settings, run_name, split, take_flag, with_configs
from dfl_lightning.cli.error_messages import lightnings_sentence, sentence_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.shipped_files import shipped
from dfl_lightning.utils.storage.yaml_files import DoubledKeyError, parse

words = st.lists(st.sampled_from(["--a", "--b=1", "3", "-1", "x", "--c", "--d.init_args.e"]), max_size=8)


def config_of(*argv):
    """Return the words as one config without the default classes."""
    config = Settings(with_configs(split(argv))).config
    defaults = {
        "model": {"optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.05, "momentum": 0.9}}},
        "selection": "dfl_lightning.callbacks.Gossip",
        "aggregation": "dfl_lightning.callbacks.Uniform",
    }
    return {key: value for key, value in config.items() if value != defaults.get(key)}


@given(words)
def test_splitting_keeps_every_word(argv):
    kept = "".join(text for word in split(argv) for text in (word.option, word.value) if text)
    assert kept.replace("-", "") == "".join(argv).replace(".init_args", "").replace("-", "").replace("=", "")
    assert take_flag(argv, "--explain") == (argv, False)


def test_options_come_with_their_values_and_without_init_args():
    argv = ["--a", "1", "--b=2", "--c", "--d", "-3", "stray", "--e.init_args.f", "x"]
    assert [(word.option, word.value) for word in split(argv)] == [
        *(("a", "1"), ("b", "2"), ("c", None), ("d", "-3"), ("", "stray"), ("e.f", "x"))
    ]


@pytest.mark.parametrize(
    ("argv", "forks"),
    [
        (["--fork"], "true"),
        (["--fork", "false"], "false"),
        (["--fork=false"], "false"),
        (["--fork", "--engine=loop"], "true"),
    ],
)
def test_a_flag_alone_means_true(argv, forks):
    assert config_of(*argv)["fork"] == forks


def test_configs_are_found_in_both_forms():
    found = with_configs(split(["--config", "afind", "--x", "1", "--config=gossip", "-c", "fdms"]))
    paths = [str(shipped("configs")[name]) for name in ("afind", "gossip", "fdms")]
    contents = [yaml.safe_load(Path(path).read_text()) for path in paths]
    assert found == [
        Argument("config", paths[0], contents[0]),
        Argument("x", "1"),
        *(Argument("config", path, content) for path, content in zip(paths[1:], contents[1:], strict=True)),
    ]


def test_a_run_is_called_like_its_config(tmp_path):
    assert run_name([]) == "run"
    assert run_name(["a/one.yaml", "b/two.yaml"]) == "two"
    folder = tmp_path / "afind" / "2026-01-01_00-00-00"
    folder.mkdir(parents=True)
    config = folder / "config.yaml"
    assert run_name([str(config)]) == "config"
    (folder / "metrics.csv").touch()
    assert run_name([str(config)]) == "afind"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--selection", "AFIND"], {}),
        (["--selection", "AFIND", "--selection", "Gossip"], {}),
        (["--selection.k", "4", "--selection", "AFIND"], {"k": "4"}),
        (["--selection", "AFIND", "--selection.k", "3"], {"k": "3"}),
        (["--selection", "AFIND", "--selection.k", "3", "--selection", "Gossip"], {"k": "3"}),
        (["--selection", "AFIND", "--selection.nu", "3", "--selection", "Gossip"], {}),
        (["--selection.k", "4", "--selection", "null", "--selection", "Gossip"], {}),
        (
            ["--selection", "{class_path: AFIND, init_args: {k: 3}}", "--selection", "{init_args: {nu: 2}}"],
            {"k": 3, "nu": 2},
        ),
    ],
)
def test_replacing_class_keeps_typed_options_that_it_takes(argv, said):
    selection = Settings(split(argv)).config["selection"]
    assert (selection["init_args"] if isinstance(selection, dict) else {}) == said


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        (
            *(["--monitors+=Fairness", "--monitors+=GraphSparsity"], "monitors"),
            ["NeighbourAccuracy", "FriendAccuracy", "Fairness", "GraphSparsity"],
        ),
        (["--monitors+=FriendAccuracy"], "monitors", ["NeighbourAccuracy", "FriendAccuracy"]),
        (
            ["--monitors", "null", "--monitors+=Fairness"],
            "monitors",
            ["NeighbourAccuracy", "FriendAccuracy", "Fairness"],
        ),
        (["--monitors", "[]", "--monitors+=Fairness"], "monitors", ["Fairness"]),
        (
            ["--monitors+=Fairness", "--monitors", "GraphSparsity", "--monitors+=GraphSparsity"],
            "monitors",
            "GraphSparsity",
        ),
        (["--monitors", "Fairness", "--monitors+=[GraphSparsity, LinkMessages]"], "monitors", None),
        (["--class_folders+=a", "--class_folders+=b"], "class_folders", ["a", "b"]),
    ],
)
def test_plus_equals_appends_to_lists(argv, key, value):
    names = [value] if isinstance(value, str) else value or ("Fairness", "GraphSparsity", "LinkMessages")
    own = [f"dfl_lightning.callbacks.{name}" for name in names]
    assert config_of(*argv)[key] == (own if key == "monitors" else value)


def test_replaced_default_monitors_are_named_unless_the_command_mentions_them():
    def replaced(*argv):
        return Settings(with_configs(split(argv))).replaced_monitors

    defaults = ["NeighbourAccuracy", "FriendAccuracy"]
    assert replaced("--monitors", "Fairness") == replaced("--monitors", "[Fairness, LinkMessages]") == defaults
    assert replaced("--monitors", "Fairness", "--monitors+=GraphSparsity") == defaults
    for argv in ([], ["--monitors+=Fairness"], ["--monitors", "[]"], ["--monitors", "FriendAccuracy"]):
        assert replaced(*argv) == []


def test_appended_classes_follow_the_defaults_and_take_later_options():
    config = config_of("--monitors+=Fairness", "--monitors+=SimulatedTime", "--monitors.speed", "200")
    time = {"class_path": "dfl_lightning.callbacks.SimulatedTime", "init_args": {"speed": "200"}}
    assert config["monitors"][2:] == ["dfl_lightning.callbacks.Fairness", time]
    network = config_of("--model.network", "MLP", "--model.network.hidden+=7")["model"]["network"]
    assert network["init_args"]["hidden"] == [200, 200, 7]


def test_option_of_a_class_given_as_an_argument():
    path = "torchvision.datasets.FakeData"
    made = {"class_path": path, "init_args": {"size": "30"}}
    for named in (path, f"{{class_path: {path}}}"):
        data = config_of("--data", "FromDataset", "--data.dataset", named, "--data.dataset.size", "30")["data"]
        assert data["init_args"]["dataset"] == made


class Open(torch.nn.Module):
    def __init__(self, width=3, **others):
        super().__init__()


def test_open_keyword_options_stay_until_their_class_is_replaced(monkeypatch):
    monkeypatch.setitem(sys.modules, "own_open", sys.modules[__name__])
    words = ["--model.network", "own_open.Open", "--model.network.height", "2", "--model.network.width", "5"]
    made = {"class_path": "own_open.Open", "init_args": {"height": "2", "width": "5"}}
    assert config_of(*words)["model"]["network"] == made
    settings = Settings(split([*words, "--model.network", "MLP"]))
    assert settings.dropped == ["model.network.height", "model.network.width"]


def test_option_fills_a_mapping_without_changing_its_config(tmp_path):
    (tmp_path / "c.yaml").write_text("topology: {generator: complete}\n")
    settings = Settings(with_configs(split(["--config", str(tmp_path / "c.yaml"), "--topology.link_share", "0.5"])))
    assert settings.config["topology"] == {"generator": "complete", "link_share": "0.5"}
    assert settings.configs[0][1]["topology"] == {"generator": "complete"}


def test_option_of_a_shipped_topology_is_added_to_its_file():
    settings = Settings(with_configs(split(["--topology", "el_local", "--topology.args.s", "4"])))
    assert settings.config["topology"] == {"generator": "el_local", "args": {"s": "4"}}


def test_part_of_a_config_may_be_a_file(tmp_path):
    (tmp_path / "part.yaml").write_text("class_path: AFIND\ninit_args: {nuu: 3}\n")
    with pytest.raises(UserError, match="selection AFIND has no option 'nuu'; did you mean 'nu'"):
        config_of("--selection", str(tmp_path / "part.yaml"))


def test_dropped_options_are_found_at_every_depth(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "selection: {class_path: AFIND, init_args: {nu: 1, k: 3}}\n"
        "data: {class_path: Digits, init_args: {partition: {class_path: Dirichlet, init_args: {alpha: 1}}}}\n"
        "threshold: {class_path: AdaptiveThreshold, init_args: {tau: 1}}\n"
    )
    swaps = ["--selection", "Gossip", "--data.partition", "IID", "--threshold", "null"]
    settings = Settings(with_configs(split(["--config", str(config), *swaps])))
    assert settings.dropped == ["selection.nu", "data.partition.alpha"]


DIGITS = """
data:
  class_path: Digits
  init_args: {num_clients: 7, val_fraction: 0.1, test_fraction: 0.25, normalise: true, partition: RotatedClusters}
"""


@pytest.mark.parametrize(
    ("words", "kept", "left"),
    [
        ("--data Vectors", {"num_clients": 7, "val_fraction": 0.1}, ["normalise", "partition", "test_fraction"]),
        ("--data FromDataset", {"val_fraction": 0.1}, ["normalise", "num_clients", "partition", "test_fraction"]),
        (
            "--data.test_fraction 0.5 --data Series",
            {"num_clients": 7, "val_fraction": 0.1, "test_fraction": "0.5"},
            ["normalise", "partition"],
        ),
        (
            "--data Vectors --data.partition IID",
            {"num_clients": 7, "val_fraction": 0.1, "partition": "dfl_lightning.data.IID"},
            ["normalise", "partition", "test_fraction"],
        ),
    ],
)
def test_other_data_do_not_take_over_how_a_config_divides(words, kept, left, tmp_path):
    (tmp_path / "c.yaml").write_text(DIGITS)
    settings = Settings(with_configs(split(["--config", str(tmp_path / "c.yaml"), *words.split()])))
    assert settings.config["data"]["init_args"] == kept
    assert list(settings.left.values()) == [left]


def test_second_config_replaces_the_data_of_the_first(tmp_path):
    (tmp_path / "c.yaml").write_text(DIGITS)
    (tmp_path / "d.yaml").write_text("data: {class_path: Vectors, init_args: {table: wine, test_fraction: 0.5}}\n")
    words = ["--config", str(tmp_path / "c.yaml"), "--config", str(tmp_path / "d.yaml"), "--data", "Series"]
    settings = Settings(with_configs(split(words)))
    assert settings.config["data"]["init_args"] == {"num_clients": 7, "val_fraction": 0.1}
    assert settings.left == {
        ("Digits", "Vectors"): ["normalise", "partition", "test_fraction"],
        ("Vectors", "Series"): ["test_fraction"],
    }


def test_shipped_images_take_over_how_a_config_divides_others(tmp_path):
    (tmp_path / "c.yaml").write_text(DIGITS)
    settings = Settings(with_configs(split(["--config", str(tmp_path / "c.yaml"), "--data", "MNIST"])))
    assert settings.config["data"]["init_args"]["test_fraction"] == 0.25
    assert settings.left == {}


def test_refusal_of_a_class_is_found_behind_parser_errors():
    def refuse():
        try:
            raise UserError("selection.nu=-1; above 0, please")
        except UserError as inner:
            raise ValueError("Parser key 'selection': many\nlines") from inner

    with pytest.raises(ValueError, match="many") as caught:
        refuse()
    assert sentence_of(caught.value) == "selection.nu=-1; above 0, please"


def test_a_long_message_is_cut():
    assert len(sentence_of(ValueError("word " * 1000))) < 400


def test_only_known_refusals_of_lightning_count_as_a_users_mistake():
    assert lightnings_sentence("list index out of range") is None
    assert "--trainer.logger true" in lightnings_sentence(
        "Cannot use `LearningRateMonitor` callback with `Trainer` that has no logger."
    )


BASE = ["--data", "Digits", "--data.partition", "FlippedLabels"]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data.partition.base", "Shard"], "data.partition.base: there is no 'Shard'; did you mean 'Shards'"),
        (["--data.partition.base", "Shards", "--data.partition.base.per_clients", "3"], "did you mean 'per_client'"),
        (["--data.partition.base.alpha", "3"], "no data.partition.base is chosen; name one with --data.partition.base"),
        (["--data.partition.base", "{class_path: Dirichlet, init_args: {alfa: 1}}"], "Dirichlet has no option 'alfa'"),
    ],
)
def test_a_partition_inside_a_partition_is_checked_like_any_class(words, sentence):
    with pytest.raises(UserError, match=sentence):
        config_of(*BASE, *words)


def test_replaced_inner_partition_starts_from_its_own_defaults():
    words = ["--data.partition.base", "{class_path: Dirichlet, init_args: {min_size: 3}}"]
    data = config_of(*BASE, *words, "--data.partition.base", "Pathological")["data"]
    assert data["init_args"]["partition"]["init_args"]["base"] == "dfl_lightning.data.Pathological"


@pytest.mark.parametrize(
    ("argv", "group", "meant"),
    [
        (["--selection", "AFIND"], "selection", "dfl_lightning.callbacks.AFIND"),
        (["--selection=AFIND"], "selection", "dfl_lightning.callbacks.AFIND"),
        (["--selection.class_path", "AFIND"], "selection", "dfl_lightning.callbacks.AFIND"),
        (["--model.optimizer", "Adam"], "model.optimizer", "torch.optim.Adam"),
        (["--trainer.callbacks+=Timer"], "trainer.callbacks", ["lightning.pytorch.callbacks.Timer"]),
        (["--trainer.logger", "CSVLogger"], "trainer.logger", "lightning.pytorch.loggers.CSVLogger"),
        (["--model.loss", "NLLLoss"], "model.loss", "torch.nn.NLLLoss"),
        (["--model.metrics+=MulticlassRecall"], "model.metrics", ["torchmetrics.classification.MulticlassRecall"]),
        (["--trainer.logger", "false"], "trainer.logger", False),
        (["--trainer.callbacks", "null"], "trainer.callbacks", None),
        (
            ["--trainer.callbacks+=lightning.pytorch.callbacks.timer.Timer"],
            "trainer.callbacks",
            ["lightning.pytorch.callbacks.timer.Timer"],
        ),
        (["--topology", "Gossip"], "topology", "Gossip"),
        (
            ["--data", "Digits", "--data.init_args.partition", "IID", "--data.root", "Gossip"],
            "data",
            {
                "class_path": "dfl_lightning.data.Digits",
                "init_args": {"partition": "dfl_lightning.data.IID", "root": "Gossip"},
            },
        ),
    ],
)
def test_short_name_becomes_the_import_path_of_its_shipped_class(argv, group, meant):
    config = config_of(*argv)
    for key in group.split("."):
        config = config[key]
    assert config == meant


def test_options_of_the_parser_are_passed_on():
    assert Settings(split(["--data.dataset.help", "own.It", "--print_config"])).rest == [
        "--data.dataset.help=own.It",
        "--print_config",
    ]


def test_short_names_inside_values_become_import_paths():
    assert config_of("--monitors", "[FriendAccuracy, {class_path: NeighbourAccuracy}]")["monitors"] == [
        "dfl_lightning.callbacks.FriendAccuracy",
        "dfl_lightning.callbacks.NeighbourAccuracy",
    ]
    words = "{callbacks: [Timer, {class_path: EarlyStopping, init_args: {monitor: val_acc}}], logger: CSVLogger}"
    assert config_of("--trainer", words)["trainer"] == {
        "callbacks": [
            "lightning.pytorch.callbacks.Timer",
            {"class_path": "lightning.pytorch.callbacks.EarlyStopping", "init_args": {"monitor": "val_acc"}},
        ],
        "logger": "lightning.pytorch.loggers.CSVLogger",
    }


def test_only_short_names_in_a_config_become_import_paths(tmp_path):
    config = tmp_path / "c.yaml"
    config.write_text(
        "data: {class_path: Digits, init_args: {root: '1e-3', partition: {class_path: FlippedLabels, "
        "init_args: {base: Shards}}}}\n"
        "model: {network: MLP, optimizer: {class_path: SGD, init_args: {lr: 1e-3}}}\n"
        "aggregation: Metropolis\nselection: {init_args: {k: all}}\nmonitors: FriendAccuracy\ntopology: ring\n"
    )
    partition = {"class_path": "dfl_lightning.data.FlippedLabels", "init_args": {"base": "dfl_lightning.data.Shards"}}
    assert config_of("--config", str(config)) == {
        "data": {"class_path": "dfl_lightning.data.Digits", "init_args": {"root": "1e-3", "partition": partition}},
        "model": {
            "optimizer": {"class_path": "torch.optim.SGD", "init_args": {"lr": 0.001}},
            "network": "dfl_lightning.models.MLP",
        },
        "aggregation": "dfl_lightning.callbacks.Metropolis",
        "selection": {"class_path": "dfl_lightning.callbacks.Gossip", "init_args": {"k": "all"}},
        "monitors": "dfl_lightning.callbacks.FriendAccuracy",
        "topology": "ring",
    }


def test_config_parts_are_found_near_the_config_or_working_folder(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "c.yaml").write_text("model: m.yaml\nselection: s.yaml\n")
    (tmp_path / "deep" / "m.yaml").write_text("network: n.yaml\n")
    (tmp_path / "deep" / "n.yaml").write_text("class_path: MLP\n")
    (tmp_path / "s.yaml").write_text("class_path: AFIND\n")
    monkeypatch.chdir(tmp_path)
    config = config_of("--config", "deep/c.yaml")
    assert config["model"]["network"] == "dfl_lightning.models.MLP"
    assert config["selection"] == "dfl_lightning.callbacks.AFIND"
    assert config_of("--selection", "s.yaml")["selection"] == "dfl_lightning.callbacks.AFIND"
    monkeypatch.chdir(tmp_path / "deep")
    assert config_of("--model", "m.yaml")["model"]["network"] == "dfl_lightning.models.MLP"
    with pytest.raises(UserError, match="there is no 'Gosip'"):
        config_of("--trainer", "{callbacks: []}", "--selection", "Gosip")


@pytest.mark.parametrize(
    "option", ["--selection", "--topology", "--trainer.logger.nested", "--data.partition", "--model.network.hidden"]
)
def test_doubled_key_on_the_command_line_is_refused(option):
    with pytest.raises(UserError, match=f"^{option}: the key 'k' is there twice; keep one$"):
        config_of(option, "{init_args: {k: 3, k: 4}}")


def test_doubled_key_in_a_config_is_refused_with_line(tmp_path):
    (tmp_path / "my.yaml").write_text("data: Digits\nselection: Gossip\nmodel: {network: MLP}\nselection: AFIND\n")
    with pytest.raises(
        UserError, match=r"my\.yaml, line 4: the key 'selection' is there twice, first in line 2; keep one$"
    ):
        config_of("--config", str(tmp_path / "my.yaml"))
    (tmp_path / "part.yaml").write_text("class_path: Gossip\ninit_args:\n  k: 3\n  k: 4\n")
    with pytest.raises(UserError, match=r"part\.yaml, line 4: the key 'k' is there twice, first in line 3"):
        config_of("--selection", str(tmp_path / "part.yaml"))


@pytest.mark.parametrize(
    "text", ["{1: a, 0x1: b}", "{yes: 1, true: 2}", "{<<: {a: 1}, <<: {b: 2}}", "[{a: {b: 1, b: 1}}]"]
)
def test_doubled_keys_are_recognised_in_every_spelling(text):
    with pytest.raises(DoubledKeyError, match="is there twice"):
        parse(text)


def test_a_merged_key_may_be_replaced():
    assert parse("a: &x {k: 1, l: 2}\nb: {<<: *x, k: 3}\nc: {<<: [*x, {l: 4, m: 5}]}") == {
        "a": {"k": 1, "l": 2},
        "b": {"k": 3, "l": 2},
        "c": {"k": 1, "l": 2, "m": 5},
    }
