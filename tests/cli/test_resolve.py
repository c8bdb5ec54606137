"""The meaning of words, asked for by programs."""

import gc

import pytest
import yaml

from dfl_lightning import build
from dfl_lightning.cli.command import run
from dfl_lightning.cli.resolve import Common, resolve, set_up
from dfl_lightning.data import Digits
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import MissingData, UserError
from dfl_lightning.utils.storage.shipped_files import shipped

SMALL = ["--data.num_clients=5", "--data.val_fraction=0.2"]


@pytest.mark.parametrize("name", [*shipped("configs")][::4])
def test_a_config_is_the_one_that_is_printed(name, capsys):
    words = [f"--config={name}", *SMALL, "--seed_everything=3"]
    resolved = resolve(words)
    assert capsys.readouterr() == ("", "")
    assert run("fit", [*words, "--print_config"]) == 0
    assert resolved == yaml.safe_load(capsys.readouterr().out)


def test_class_accepts_the_options_of_its_bases():
    assert resolve(["--config=forecast", "--data.seed=3"])["data"]["init_args"]["seed"] == 3


def test_words_are_refused_without_being_printed(capsys):
    with pytest.raises(UserError, match="ring_of_rings"):
        set_up(["--config=afind", "--topology=ring_of_rings"])
    with pytest.raises(UserError, match=r"Gosip.*did you mean 'Gossip'"):
        resolve(["--config=afind", "--selection=Gosip"])
    assert capsys.readouterr() == ("", "")


def test_the_sizes_are_those_of_the_data():
    words = ["--config=afind", "--data.num_clients=5", "--data.val_fraction=0.2", "--data.partition=IID"]
    sizes = set_up(words).samples
    assert sum(sizes.values()) == 1797  # scikit-learn's digits
    assert sizes["val"] == pytest.approx(0.2 * (sizes["train"] + sizes["val"]), abs=5)
    assert set_up(["--config=afind", "--data.val_fraction=0"]).samples["val"] == 0


def test_missing_data_keep_their_type(tmp_path):
    with pytest.raises(MissingData):
        set_up(["--config=afind", "--data=MNIST", f"--data.root={tmp_path}"])


@pytest.mark.parametrize(
    ("config", "more"),
    [
        pytest.param("fedavg", ["--data.val_fraction=0", "--data.partition=IID"], marks=pytest.mark.slow),
        ("ifca", ["--model.metrics+=MulticlassF1Score", "--model.metrics.num_classes=10"]),
        ("apfl", ["--topology=ring", "--data.partition=IID"]),
        pytest.param("panm_grad", [], marks=pytest.mark.slow),
    ],
)
def test_the_columns_are_those_that_the_run_then_has(config, more, tmp_path, capsys):
    """All of them but those of rounds in which something happens that here does not."""
    shared = ["--monitors+=Fairness", "--monitors+=MergedModel", "--trainer.max_rounds=2", "--model.local_epochs=1"]
    words = [
        f"--config={config}",
        *SMALL,
        "--data.samples_per_client=40",
        *shared,
        f"--trainer.default_root_dir={tmp_path}",
        *more,
    ]
    expected = set_up(words).columns
    assert run("fit", words) == 0, capsys.readouterr()
    [file] = tmp_path.glob("**/metrics.csv")
    found = {name for row in read_metrics(file) for name, cell in row.items() if cell} - {"round"}
    others = set(expected) - found
    assert {name for name in others if not name.endswith("_undefined")} == {"messages_received", "diverged"}
    assert found <= set(expected)


def test_common_parts_of_runs_are_made_once_without_effect(monkeypatch):
    made, loaded = [], []
    make, load = build.make_engine, Digits.load
    monkeypatch.setattr(build, "make_engine", lambda *of: made.append(of) or make(*of))
    monkeypatch.setattr(Digits, "load", lambda self: loaded.append(self) or load(self))
    base = ["--config=gossip", *SMALL]
    runs = [base, [*base, "--selection=PENS"], [*base, "--aggregation=Metropolis"]]
    other_work = [*base, "--model.local_epochs=3"]
    other_data = [*base, "--data.val_fraction=0.3"]
    alone = [set_up(words) for words in (*runs, other_work, other_data)]
    made.clear()
    loaded.clear()
    with Common() as common:
        together = [set_up(words, common) for words in runs]
        assert (len(made), len(loaded)) == (1, 1)
        together.append(set_up(other_work, common))
        assert (len(made), len(loaded)) == (2, 1)
        together.append(set_up(other_data, common))
        assert (len(made), len(loaded)) == (3, 2)
        with pytest.raises(UserError, match=r"DFedSAM|optimizer|momentum"):
            set_up([*other_data, "--objective=GradientTracking", "--model.optimizer.momentum=0.9"], common)
        with pytest.raises(UserError, match="lower num_clients"):
            set_up([*base, "--data.num_clients=5000"], common)
    assert together == alone
    assert common == Common()


@pytest.mark.parametrize(("before", "calls"), [(0, ["freeze", "unfreeze"]), (9, [])])
def test_objects_that_were_frozen_before_stay_frozen(monkeypatch, before, calls):
    found = []
    monkeypatch.setattr(gc, "get_freeze_count", lambda: before)
    for name in ("freeze", "unfreeze"):
        monkeypatch.setattr(gc, name, lambda name=name: found.append(name))
    with Common():
        assert found == calls[:1]
    assert found == calls
