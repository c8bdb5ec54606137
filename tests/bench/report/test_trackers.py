"""Copies of runs for TensorBoard and Weights & Biases, read back by these libraries."""

import builtins
import csv
from types import SimpleNamespace

import numpy as np
import pytest

from dfl_lightning.bench.report.command import main
from dfl_lightning.bench.report.trackers.tracked import tracked_runs


@pytest.fixture
def runs(tmp_path, make_run):
    """Write two seeds of a method and a run of another one, with a gap in a column."""
    rng, found = np.random.default_rng(0), []
    for name, seed in (("Ours", 0), ("Ours", 1), ("a/../<b>", 0)):
        config = {"selection": {"class_path": name, "init_args": {"k": 3}}}
        run = make_run(tmp_path / "runs" / str(len(found)), rng.uniform(0.4, 0.9, (3, 5)), seed=seed, config=config)
        head, *lines = (run / "metrics.csv").read_text().splitlines()
        rows = [f"{line},{'' if at == 1 else at / 7}" for at, line in enumerate(lines)]
        (run / "metrics.csv").write_text("\n".join([f"{head},mine", *rows]) + "\n")
        found.append(run)
    return found


def columns(run):
    """Return the numbers of each column by round, from 1, as they stand in the file."""
    with (run / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        name: {int(row["round"]) + 1: float(row[name]) for row in rows if row[name]}
        for name in rows[0]
        if name != "round"
    }


def test_tensorboard_reads_all_columns_clients_and_the_config(tmp_path, runs, capsys):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    place = tmp_path / "events"
    assert main([str(tmp_path / "runs"), "--to-tensorboard", str(place)]) == 0
    assert capsys.readouterr().out == f"{place} (3 runs): tensorboard --logdir {place}\n"
    folders = sorted(path.parent.relative_to(place).as_posix() for path in place.rglob("events.out.*"))
    assert len(folders) == 3
    assert folders[:2] == ["Ours/seed-0", "Ours/seed-1"]
    assert folders[2] == "b/seed-0"
    for folder, run in zip(folders, runs, strict=True):
        events = accumulator.EventAccumulator(str(place / folder), {"histograms": 0}).Reload()
        expected = columns(run)
        assert set(events.Tags()["scalars"]) == set(expected)
        for name, values in expected.items():
            read = events.Scalars(name)
            assert [event.step for event in read] == list(values)
            np.testing.assert_allclose([event.value for event in read], list(values.values()), rtol=1e-6)
        times = [event.wall_time for event in events.Scalars("seconds")]
        np.testing.assert_allclose(np.diff(times), 0.5, atol=1e-5)
        with np.load(run / "clients.npz") as held:
            scores = held["test_acc"]
        histograms = events.Histograms("clients/test_acc")
        assert [event.step for event in histograms] == [1, 2, 3]
        np.testing.assert_allclose([event.histogram_value.sum for event in histograms], scores.sum(1), rtol=1e-6)
        (text,) = events.Tensors("config/text_summary")
        assert b"init_args" in text.tensor_proto.string_val[0]


def test_wandb_is_offline_and_gets_each_round(tmp_path, runs, monkeypatch, capsys):
    """With what its functions are called with; the real library is not in the extra `dev`."""
    begun = []

    def init(**options):
        begun.append(SimpleNamespace(options=options, rows=[], ended=False))
        run = begun[-1]
        return SimpleNamespace(
            log=lambda values, step: run.rows.append((step, values)), finish=lambda: setattr(run, "ended", True)
        )

    monkeypatch.setitem(
        __import__("sys").modules, "wandb", SimpleNamespace(init=init, Settings=lambda **options: options)
    )
    place = tmp_path / "offline"
    assert main([str(tmp_path / "runs"), "--to-wandb", str(place)]) == 0
    assert capsys.readouterr().out == f"{place} (3 runs): wandb sync {place}/wandb/offline-run-*\n"
    assert [run.options["name"] for run in begun[:2]] == ["Ours, seed 0", "Ours, seed 1"]
    for made, run in zip(begun, runs, strict=True):
        assert made.ended
        assert (made.options["mode"], made.options["dir"]) == ("offline", str(place))
        assert made.options["config"]["selection.k"] == 3
        read = {name: {step: row[name] for step, row in made.rows if name in row} for name in columns(run)}
        assert read == columns(run)


@pytest.mark.wandb
def test_real_wandb_writes_files_that_it_can_send(tmp_path, runs):
    assert main([str(tmp_path / "runs"), "--to-wandb", str(tmp_path / "offline")]) == 0
    files = sorted((tmp_path / "offline" / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 3
    for run in tracked_runs([("", run) for run in runs]):
        content = next(content for file in files if run.name.encode() in (content := file.read_bytes()))
        assert [name for name in columns(run.run.path) if name.encode() not in content] == []
        assert b"selection.k" in content


@pytest.mark.parametrize(("option", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_library_and_a_full_folder_are_refused(tmp_path, runs, monkeypatch, capsys, option, package):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "old").write_text("")
    monkeypatch.setitem(__import__("sys").modules, "wandb", SimpleNamespace())
    for words, sentence in (
        (
            [f"--to-{option}", str(tmp_path / "full")],
            "full: the folder has files already; give a new one, or remove it",
        ),
        ([f"--to-{option}", str(runs[0] / "metrics.csv")], "metrics.csv: this is a file; give a folder"),
        (
            [f"--to-{option}", "x", "--out", "page.html"],
            "--out is about a page, and --to-tensorboard and --to-wandb make none",
        ),
        ([f"--to-{option}", "x", "--watch"], f"--to-{option} is about files, and --watch writes none"),
    ):
        assert main([str(tmp_path / "runs"), *words]) == 2
        assert sentence in " ".join(capsys.readouterr().err.split())
    original = builtins.__import__

    def without(name, *rest, **options):
        if name in (package, f"torch.utils.{package}"):
            raise ImportError(name)
        return original(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    assert main([str(tmp_path / "runs"), f"--to-{option}", str(tmp_path / "new")]) == 2
    assert f"pip install {package}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
