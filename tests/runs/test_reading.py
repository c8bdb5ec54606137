"""`read_run`: a run folder as arrays, tables and models."""

import numpy as np
import pytest
import torch

from dfl_lightning import UserError, read_run
from dfl_lightning.callbacks import LinkMessages
from dfl_lightning.models import MLP
from dfl_lightning.runs.reading import Run


def test_run_read_later_equals_the_run_after_fit(small_run):
    run = small_run(3).fit()
    found = read_run(run.folder)
    for name in ("metrics", "clients", "graphs", "dropouts", "comparisons"):
        before, after = getattr(run.trainer.run, name), getattr(found, name)
        assert list(before) == list(after)
        for column in before:
            np.testing.assert_array_equal(before[column], after[column])
    assert found.summary == run.trainer.run.summary
    assert found.config["selection"]["class_path"].endswith(".AFIND")
    assert found.commands == []
    assert repr(found) == f"Run({str(run.folder)!r}, 3 rounds)"


def test_the_run_after_fit_has_all_that_read_run_gives(small_run):
    run = small_run(2, [LinkMessages()]).fit()
    live, found = run.trainer.run, read_run(run.folder)
    names = {name for name in dir(Run) if not name.startswith("_")} | {"path"}
    assert names <= set(dir(live))
    for name in names - {"frame", "model", "score"}:
        ours, theirs = getattr(live, name), getattr(found, name)
        if isinstance(theirs, dict) and any(isinstance(value, np.ndarray) for value in theirs.values()):
            assert list(ours) == list(theirs), name
            for key in theirs:
                np.testing.assert_array_equal(ours[key], theirs[key])
        else:
            assert ours == theirs, name
    assert vars(live.score) == vars(found.score)
    for name, value in found.model(2).items():
        assert torch.equal(live.model(2)[name], value)
    with pytest.raises(UserError, match="there is no run folder yet"):
        _ = small_run(2).trainer.run.config


def test_models_load_into_the_plain_network(small_run):
    run = small_run(1).fit()
    found = read_run(run.folder)
    network = found.model(3, MLP(hidden=[8], input_shape=(1, 8, 8), num_classes=10))
    expected = run.module.federation.layout.state_dict(run.rows[3])
    assert network.state_dict().keys() == found.model(3).keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(network.state_dict()[name], value)
        assert torch.equal(found.model(3)[name], value)
    with pytest.raises(UserError, match="MLP is not the network of"):
        found.model(0, MLP(hidden=[9], input_shape=(1, 8, 8), num_classes=10))
    with pytest.raises(UserError, match="client 6 does not exist; the run has clients 0 to 5"):
        found.model(6)


def test_other_folders_are_refused_and_damage_is_named(tmp_path, make_run):
    with pytest.raises(UserError, match=r"no metrics\.csv in there; give a run folder"):
        read_run(tmp_path)
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    (run / "summary.json").write_text('{"status": ')
    (run / "clients.npz").write_bytes(b"PK")
    (run / "commands.csv").write_text("round,words\n0,x\n")
    for read in (lambda r: r.summary, lambda r: r.clients, lambda r: r.commands):
        with pytest.raises(UserError, match=r"damaged \("):
            read(read_run(run))


def test_frame_returns_the_table_or_asks_for_pandas(tmp_path, make_run, monkeypatch):
    run = read_run(make_run(tmp_path / "run", [[0.5, 0.6, 0.7], [0.6, 0.7, 0.8]]))
    with pytest.raises(UserError, match="there is no table 'models'; tables are: metrics, clients"):
        run.frame("models")
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    with pytest.raises(UserError, match="pip install pandas"):
        run.frame()

    class Pandas:
        DataFrame = dict

    monkeypatch.setitem(__import__("sys").modules, "pandas", Pandas)
    frame = run.frame("clients")
    assert frame["round"].tolist() == [0, 0, 0, 1, 1, 1]
    assert frame["client"].tolist() == [0, 1, 2, 0, 1, 2]
    assert frame["test_acc"].tolist() == [0.5, 0.6, 0.7, 0.6, 0.7, 0.8]
    assert run.frame()["test_acc"].tolist() == run.metrics["test_acc"].tolist()
