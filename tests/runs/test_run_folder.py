"""The run folder: files that others can read, with numbers that agree with each other."""

import csv
import hashlib
import io
import json
import os
import random
import resource
import shutil
import signal
import zipfile
from contextlib import nullcontext

import numpy as np
import pytest
import yaml
from lightning.pytorch.callbacks import EarlyStopping, OnExceptionCheckpoint

from dfl_lightning import callbacks as families
from dfl_lightning.callbacks import Monitor
from dfl_lightning.checkpoints.io import rounds_in
from dfl_lightning.loop import RunStopped
from dfl_lightning.runs import tables
from dfl_lightning.runs.tables import COLUMNS
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import read_npz
from dfl_lightning.utils.storage.locks import FolderLock

PUBLIC = (
    "round, train_loss, val_loss, val_acc, test_loss, test_acc, test_acc_std, test_acc_worst10, neighbours, active, "
    "models_received, probes_received, proxies_received, bytes_received, global_test_loss, global_test_acc, seconds"
)


def rows(folder):
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def arrays(file):
    with np.load(file, allow_pickle=False) as content:
        return {name: content[name] for name in content.files}


@pytest.fixture(scope="module")
def run(read_only_run):
    return read_only_run(4, check_val_every_n_epoch=2).fit()


# --- what is in it


def test_files_and_columns(run):
    found = {str(f.relative_to(run.folder)) for f in run.folder.rglob("*") if f.is_file()}
    assert found == {
        *("metrics.csv", "clients.npz", "graphs.npz", "split.npz", "summary.json"),
        *("dropouts.npz", "comparisons.npz", "checkpoints/last.ckpt", "code/small_run.py", "config.yaml"),
    }
    assert ", ".join(COLUMNS) == PUBLIC
    header = (run.folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert header[: len(COLUMNS)] == COLUMNS
    assert header[len(COLUMNS) :] == ["threshold"]


def test_the_configuration_is_kept_where_a_command_set_one(small_run):
    run = small_run(1)
    run.trainer.config = {"seed_everything": 0, "trainer": {"max_rounds": 1}}
    run.fit()
    code = hashlib.sha256((run.folder / "code" / "small_run.py").read_bytes()).hexdigest()
    kept = yaml.safe_load((run.folder / "config.yaml").read_text())
    assert kept == {**run.trainer.config, "code": {"small_run": code}}


def test_each_round_has_a_row_with_scores_if_evaluated(run):
    assert [row["round"] for row in rows(run.folder)] == ["0", "1", "2", "3"]
    for number, row in enumerate(rows(run.folder)):
        evaluated = number % 2 == 1
        assert all(bool(row[c]) == evaluated for c in COLUMNS[2:8])
        assert all(row[c] for c in ("train_loss", "neighbours", "active", "models_received", "seconds"))
        assert row["global_test_acc"] == row["global_test_loss"] == ""


def test_rows_are_means_over_the_clients(run):
    clients, table = arrays(run.folder / "clients.npz"), rows(run.folder)
    assert clients["rounds"].tolist() == [1, 3]
    for number, round in enumerate(clients["rounds"]):
        row = table[round]
        for name in ("val_loss", "val_acc", "test_loss", "test_acc"):
            assert clients[name].shape == (2, 6)
            assert float(row[name]) == pytest.approx(sum(clients[name][number].tolist()) / 6, abs=1e-15)
        accuracy = sorted(clients["test_acc"][number])
        assert float(row["test_acc_std"]) == pytest.approx(np.std(accuracy), abs=1e-15)
        assert float(row["test_acc_worst10"]) == accuracy[0]  # one client is the worst decile of six


def test_graphs_hold_the_mixed_links_of_evaluated_rounds(run):
    graphs = arrays(run.folder / "graphs.npz")
    assert {name: a.dtype.kind for name, a in graphs.items()} == {
        **{"round": "i", "receiver": "i", "sender": "i"},
        **{"weight": "f", "selected": "b", "probed": "b"},
    }
    assert set(graphs["round"]) == {1, 3}
    table = rows(run.folder)
    for round in (1, 3):
        here = graphs["round"] == round
        up = set(graphs["receiver"][here])
        assert len(up) == int(table[round]["active"])
        for receiver in up:
            assert graphs["weight"][here & (graphs["receiver"] == receiver)].sum() == pytest.approx(1, abs=1e-6)
        assert graphs["selected"][here].sum() / len(up) == pytest.approx(float(table[round]["neighbours"]))
        assert not graphs["selected"][here & (graphs["receiver"] == graphs["sender"])].any()


def test_the_four_accuracies_of_the_summary(small_run):
    run = small_run(6, module={"local_epochs": 3}).fit()
    summary = json.loads((run.folder / "summary.json").read_text())
    clients = arrays(run.folder / "clients.npz")
    test, validation = clients["test_acc"].tolist(), clients["val_acc"].tolist()
    assert len({tuple(r) for r in test}) > 2  # there is something to choose from
    means = [sum(row) / 6 for row in test]
    at_best = []
    for client in range(6):
        history = [row[client] for row in validation]
        best = max(r for r in range(6) if history[r] == max(history))  # the latest among equals
        at_best.append(test[best][client])
    expected = {
        "acc_last": means[-1],
        "acc_best_round": max(means),
        "acc_best_per_client": sum(max(row[c] for row in test) for c in range(6)) / 6,
        "acc_best_val": sum(at_best) / 6,
        "mean": means[-1],
        "std": float(np.std(test[-1])),
        "worst10": min(test[-1]),
    }
    for name, value in expected.items():
        assert summary["test_accuracy"][name] == pytest.approx(value, abs=1e-12), name
    assert summary["status"] == "finished"
    assert summary["rounds"] == 6
    assert run.trainer.run.summary == summary


def test_costs_of_the_summary_are_sums_of_the_rows(run):
    summary = json.loads((run.folder / "summary.json").read_text())
    for name in ("models", "probes", "proxies", "bytes"):
        total = sum(float(row[f"{name}_received"]) for row in rows(run.folder))
        assert summary["received_per_client"][name] == pytest.approx(total)


def test_a_global_model_has_its_own_columns(small_run):
    policies = [families.Gossip("all"), families.Uniform()]
    run = small_run(2, policies=policies, topology="server", data={"test_fraction": 0.25}).fit()
    values = [row["global_test_acc"] for row in rows(run.folder)]
    expected = run.trainer.datamodule.clients.global_test is not None
    assert all(bool(value) == expected for value in values)


def test_nothing_is_pickled(run):
    for file in run.folder.glob("*.npz"):
        assert zipfile.is_zipfile(file)
        assert all(a.dtype.kind != "O" for a in arrays(file).values())


def test_arrays_of_the_run_equal_its_files(run):
    offered = run.trainer.run
    for name, file in (("clients", "clients.npz"), ("graphs", "graphs.npz")):
        there = arrays(run.folder / file)
        assert there.keys() == getattr(offered, name).keys()
        assert all(np.array_equal(there[k], getattr(offered, name)[k]) for k in there)
    for column, values in offered.metrics.items():
        written = [float(row[column] or "nan") for row in rows(run.folder)]
        assert np.array_equal(values, written, equal_nan=True)


def test_table_numbers_are_read_back_bit_for_bit(run):
    metrics = run.module.bank.boundary.metrics
    assert float(rows(run.folder)[-1]["train_loss"]) == metrics["train_loss"]


def test_arrays_are_written_without_checkpoints_too(small_run):
    run = small_run(2, enable_checkpointing=False).fit()
    assert not (run.folder / "checkpoints").exists()
    assert arrays(run.folder / "clients.npz")["rounds"].tolist() == [0, 1]
    assert len(arrays(run.folder / "graphs.npz")["weight"])


# --- its name


def test_a_name_that_exists_is_never_used_again(small_run, monkeypatch):
    from dfl_lightning.runs import run_folder

    monkeypatch.setattr(run_folder.time, "strftime", lambda _: "now")
    runs = [small_run(1).fit().folder for _ in range(3)]
    assert [folder.name for folder in runs] == ["now", "now-2", "now-3"]
    assert all(len(rows(folder)) == 1 for folder in runs)


def test_the_folder_is_found_from_within(small_run, monkeypatch):
    whole, first = small_run(4).fit(), small_run(2).fit()
    for place, path in (
        ("", "checkpoints/last.ckpt"),
        ("checkpoints", "last.ckpt"),
        ("..", f"{first.folder.name}/checkpoints/last.ckpt"),
    ):
        monkeypatch.chdir(first.folder / place)
        resumed = small_run(4).fit(path)
        assert resumed.folder.resolve() == first.folder
        assert [r["train_loss"] for r in rows(first.folder)] == [r["train_loss"] for r in rows(whole.folder)]


def test_a_run_that_never_began_leaves_no_folder(small_run, tmp_path):
    with pytest.raises(UserError, match="no aggregation"):
        small_run(1, policies=[families.Gossip()], defaults=False).fit()
    assert list(tmp_path.iterdir()) == []


# --- runs that end early


class Ending(Monitor):
    """Ends a run in a round, by an error or otherwise."""

    def __init__(self, round, error):
        self.round, self.error = round, error

    def on_compare(self, round):
        if round.index == self.round:
            raise self.error


ENDINGS = {
    "an error": (RuntimeError("no\nidea"), "failed", "test_run_folder.py, line"),
    "a refusal": (UserError("choose another"), "failed", "choose another"),
    "an exit": (SystemExit(0), "failed", "test_run_folder.py, line"),
    "Ctrl-C": (KeyboardInterrupt(), "stopped", None),
    "a signal": (RunStopped(signal.SIGTERM, 1), "stopped", None),
}
every_ending = pytest.mark.parametrize("how", ENDINGS)


@every_ending
def test_run_ended_in_its_first_round_leaves_no_folder(small_run, tmp_path, how):
    run = small_run(2, [Ending(0, ENDINGS[how][0])])
    run.trainer.config = {"seed_everything": 0}
    with pytest.raises(type(ENDINGS[how][0])):
        run.fit()
    assert list(tmp_path.iterdir()) == []
    assert run.trainer.run.path is None


def test_module_can_be_fitted_again_after_a_failed_first_round(small_run):
    ending = Ending(0, RuntimeError())
    run = small_run(2, [ending])
    with pytest.raises(RuntimeError):
        run.fit()
    ending.round = None
    assert len(rows(run.fit().folder)) == 2


@every_ending
def test_a_run_that_ends_later_says_how(small_run, how):
    error, status, reason = ENDINGS[how]
    run = small_run(3, [Ending(1, error)])
    with pytest.raises(type(error)):
        run.fit()
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == (status, 1)
    assert ("reason" in summary) == (reason is not None)
    assert reason is None or reason in summary["reason"]
    assert "\n" not in summary.get("reason", "")
    assert len(rows(run.folder)) == 1
    resumed = small_run(3).fit(run.folder / "checkpoints" / "last.ckpt")
    assert json.loads((resumed.folder / "summary.json").read_text())["status"] == "finished"
    assert len(rows(run.folder)) == 3


def test_failed_run_keeps_a_folder_with_other_files(small_run):
    class Note(Monitor):
        def on_trained(self, round):
            (run.trainer.run.path / "note.txt").write_text("mine")

    run = small_run(2, [Note(), Ending(0, RuntimeError("no idea"))])
    with pytest.raises(RuntimeError):
        run.fit()
    assert (run.folder / "note.txt").read_text() == "mine"
    summary = json.loads((run.folder / "summary.json").read_text())
    assert (summary["status"], summary["rounds"]) == ("failed", 0)
    assert "no idea" in summary["reason"]


def test_resume_failing_in_its_first_round_keeps_the_folder(small_run):
    first = small_run(2).fit()
    checkpoint = first.folder / "checkpoints" / "last.ckpt"
    with pytest.raises(RuntimeError):
        small_run(4, [Ending(2, RuntimeError())]).fit(checkpoint)
    assert json.loads((first.folder / "summary.json").read_text())["status"] == "failed"
    assert len(rows(first.folder)) == 2
    assert len(rows(small_run(4).fit(checkpoint).folder)) == 4


def test_fork_failing_in_its_first_round_can_be_resumed(small_run):
    first = small_run(2).fit()
    fork = small_run(4, [Ending(2, RuntimeError())])
    with pytest.raises(RuntimeError):
        fork.fit(first.folder / "checkpoints" / "last.ckpt", fork=True)
    assert fork.folder != first.folder
    assert json.loads((fork.folder / "summary.json").read_text())["status"] == "failed"
    assert json.loads((first.folder / "summary.json").read_text())["status"] == "finished"
    assert len(rows(small_run(4).fit(fork.folder / "checkpoints" / "last.ckpt").folder)) == 4


# --- columns that come late


class Late(Monitor):
    def on_round_end(self, round):
        if round.index >= 2:
            round.log("late", round.index / 3)
        if round.index == 3:
            round.log("an_even_later_one", 7)


def test_late_columns_rewrite_the_header_and_keep_the_rows(small_run):
    plain, run = small_run(5).fit(), small_run(5, [Late()]).fit()
    assert [row["late"] for row in rows(run.folder)] == ["", "", repr(2 / 3), "1", repr(4 / 3)]
    assert [row["an_even_later_one"] for row in rows(run.folder)] == ["", "", "", "7", ""]
    extra = {"seconds", "late", "an_even_later_one"}
    for mine, other in zip(rows(run.folder), rows(plain.folder), strict=True):
        assert {k: v for k, v in mine.items() if k not in extra} == {k: v for k, v in other.items() if k != "seconds"}


def test_late_columns_survive_a_resume(small_run):
    first = small_run(3, [Late()]).fit()
    run = small_run(5, [Late()]).fit(first.folder / "checkpoints" / "last.ckpt")
    assert [row["late"] for row in rows(run.folder)] == ["", "", repr(2 / 3), "1", repr(4 / 3)]


# --- what comes after the boundary is set aside


def test_going_back_sets_later_rows_and_files_aside(small_run):
    run = small_run(4, checkpoint_every=1)
    run.fit()
    previous = run.folder / "checkpoints" / "previous.ckpt"
    before = rows(run.folder)
    assert rounds_in(previous) == 3
    small_run(3).fit(previous)
    (aside,) = (run.folder / "superseded").iterdir()
    assert rows(aside) == before[3:]
    assert rounds_in(aside / "last.ckpt") == 4
    assert arrays(aside / "clients.npz")["rounds"].tolist() == [0, 1, 2, 3]
    assert rows(run.folder) == before[:3]
    assert rounds_in(run.folder / "checkpoints" / "last.ckpt") == 3


@pytest.mark.parametrize("tear", [1, 5, 60])
def test_a_torn_last_row_is_made_again_from_the_checkpoint(small_run, tear):
    run = small_run(3).fit()
    file = run.folder / "metrics.csv"
    whole = file.read_bytes()
    file.write_bytes(whole[: -len(whole.splitlines()[-1]) - 1 + tear])
    small_run(3).fit(run.folder / "checkpoints" / "last.ckpt")
    assert file.read_bytes() == whole


# --- a run that is over


def contents(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def stops_early():
    return [EarlyStopping("val_loss", patience=1, min_delta=100.0)]


@pytest.mark.parametrize("how", ["all rounds", "stopped early", "in pieces"])
def test_resuming_a_finished_run_reprints_its_table_and_changes_nothing(small_run, capsys, how):
    options = {"checkpoint_every": 1, "check_val_every_n_epoch": 2, "enable_progress_bar": True}
    options |= {"checkpoints": "sharded"} if how == "in pieces" else {}
    callbacks = stops_early if how == "stopped early" else list
    first = small_run(9 if how == "stopped early" else 4, callbacks(), **options)
    first.trainer.config = {"trainer": {"max_rounds": 4}}
    first.fit()
    assert first.module.bank.boundary.round == 4
    *_, table, _ = capsys.readouterr().out.partition("test accuracy")
    before = contents(first.folder)
    assert json.loads(before["summary.json"])["status"] == "finished"
    again = small_run(9 if how == "stopped early" else 4, callbacks(), **options)
    again.trainer.config = {"trainer": {"max_rounds": 4, "devices": 1}}
    again.fit(first.folder / "checkpoints" / "last.ckpt")
    assert contents(first.folder) == before
    assert again.trainer.run.summary == json.loads(before["summary.json"])
    *_, said, _ = capsys.readouterr().out.partition("test accuracy")
    assert said == table


def test_a_summary_that_is_lost_is_made_again(small_run):
    run = small_run(2).fit()
    whole = json.loads((run.folder / "summary.json").read_text())
    for content in (b"{", b"[]", None):
        (run.folder / "summary.json").unlink()
        if content is not None:
            (run.folder / "summary.json").write_bytes(content)
        small_run(2).fit(run.folder / "checkpoints" / "last.ckpt")
        again = json.loads((run.folder / "summary.json").read_text())
        assert {**again, "seconds": None} == {**whole, "seconds": None}


@pytest.mark.parametrize("fork", [False, True])
def test_fewer_rounds_than_done_are_refused_and_change_nothing(small_run, fork):
    run = small_run(4).fit()
    last, before = run.folder / "checkpoints" / "last.ckpt", contents(run.folder.parent)
    callbacks = [OnExceptionCheckpoint(run.folder / "checkpoints")]
    with pytest.raises(UserError) as refusal:
        small_run(3, callbacks).fit(last, fork=fork)
    assert str(refusal.value) == (
        f"{last}: the run has 4 rounds already, and trainer.max_rounds is 3; "
        "give 4 or more, or continue from an earlier checkpoint"
    )
    assert contents(run.folder.parent) == before
    with pytest.raises(UserError, match=r"has 4 rounds already, and trainer\.fast_dev_run does 1;"):
        small_run(3, fast_dev_run=True).fit(last)
    assert contents(run.folder.parent) == before


def test_a_round_that_waits_for_its_evaluation_counts(small_run):
    class Stop(Monitor):
        def on_validation_start(self, trainer, module):
            raise KeyboardInterrupt

    run = small_run(4, [Stop()], check_val_every_n_epoch=3)
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    last, before = run.folder / "checkpoints" / "last.ckpt", contents(run.folder)
    assert rounds_in(last) == 3
    with pytest.raises(UserError, match=r"has 3 rounds already, and trainer\.max_rounds is 2;"):
        small_run(2, check_val_every_n_epoch=3).fit(last)
    assert contents(run.folder) == before
    assert len(rows(small_run(3, check_val_every_n_epoch=3).fit(last).folder)) == 3


def test_the_predecessor_stays_until_there_is_a_newer_checkpoint(small_run):
    run = small_run(4, checkpoint_every=3).fit()
    folder = run.folder / "checkpoints"
    before = contents(folder)

    class Stop(Monitor):
        def on_trained(self, round):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small_run(6, [Stop()]).fit(folder / "last.ckpt")
    assert contents(folder) == before
    small_run(6, checkpoint_every=3).fit(folder / "last.ckpt")
    assert (rounds_in(folder / "previous.ckpt"), rounds_in(folder / "last.ckpt")) == (4, 6)


# --- one process at a time


def test_run_written_by_another_process_can_only_be_forked(small_run):
    run = small_run(2).fit()
    last, writer = run.folder / "checkpoints" / "last.ckpt", FolderLock()
    writer.take(run.folder)
    before = contents(run.folder.parent)
    callbacks = [OnExceptionCheckpoint(run.folder / "checkpoints")]
    with pytest.raises(UserError, match=rf"{run.folder}: process {os.getpid()} on .* writes into this run; wait"):
        small_run(4, callbacks).fit(last)
    assert contents(run.folder.parent) == before
    assert len(rows(small_run(4).fit(last, fork=True).folder)) == 4
    writer.release()
    assert len(rows(small_run(4).fit(last).folder)) == 4


@pytest.mark.parametrize("hook", ["on_fit_start", "on_trained", None])
def test_run_locks_its_folder_until_it_ends(small_run, tmp_path, hook):
    class Look(Monitor):
        def on_propose(self, round):
            with pytest.raises(UserError, match="writes into this run"):
                FolderLock().take(run.trainer.run.path)

    class Boom(Monitor):
        pass

    def boom(*_):
        raise KeyError("boom")

    if hook is not None:
        setattr(Boom, hook, boom)
    run = small_run(2, [Look(), Boom()])
    with nullcontext() if hook is None else pytest.raises(KeyError, match="boom"):
        run.fit()
    assert (run.folder is None) == (hook is not None)  # a run without a round leaves no folder
    assert not list(tmp_path.rglob(".lock"))
    if hook is None:
        run.trainer.fit_loop.max_epochs = 3
        run.fit()  # again, in the same process
        assert len(rows(run.folder)) == 3


def test_folder_without_locks_gives_a_note(small_run, monkeypatch, capsys):
    monkeypatch.setattr("dfl_lightning.utils.storage.locks.fcntl", None)
    run = small_run(1, enable_progress_bar=True).fit()
    note = (
        f"note: {run.folder} cannot be locked (this system has none): do not continue this run in two processes at once"
    )
    assert note in capsys.readouterr().out.splitlines()


# --- disks


def unwritable(monkeypatch, name):
    """Make opening a file of this name for writing fail, as on a full disk."""
    from dfl_lightning.runs.by_round import recorded

    real = open

    def full(path, mode="r", *args, **kwargs):
        if os.fspath(path).endswith(name) and mode != "r":
            raise OSError(28, "No space left on device")
        return real(path, mode, *args, **kwargs)

    monkeypatch.setattr(recorded, "open", full, raising=False)


def test_impossible_run_folder_is_refused_before_training(small_run, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"the run folder cannot be made .*; set trainer\.default_root_dir"):
        small_run(1, root=tmp_path / "file").fit()


def test_full_disk_at_the_start_is_refused_before_training(small_run, monkeypatch):
    from dfl_lightning.runs import run_folder

    def full(path, write):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder, "write_atomically", full)
    run = small_run(1)
    with pytest.raises(UserError, match=r"the run folder cannot be written \(No space left on device\)"):
        run.fit()
    assert run.module.bank.boundary.round == 0


def test_disk_filling_up_gives_one_sentence_and_saves_the_round(small_run, monkeypatch):
    run = small_run(4)

    class Fill(Monitor):
        def on_trained(self, round):
            if round.index == 2:
                unwritable(monkeypatch, "metrics.csv")

    run = small_run(4, [Fill()])
    with pytest.raises(UserError, match=r"cannot be written \(No space left on device\); 3 rounds are complete"):
        run.fit()
    assert rounds_in(run.folder / "checkpoints" / "last.ckpt") == 3
    monkeypatch.undo()
    resumed, whole = small_run(4).fit(run.folder / "checkpoints" / "last.ckpt"), small_run(4).fit()
    assert [r["train_loss"] for r in rows(resumed.folder)] == [r["train_loss"] for r in rows(whole.folder)]


def test_file_size_limit_gives_one_sentence_and_leaves_whole_files(small_run):
    class Fill(Monitor):
        def on_trained(self, round):
            if round.index == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (900, limit[1]))

    limit, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    run = small_run(4, [Fill()], checkpoint_every=2)
    try:
        with pytest.raises(UserError, match=r"cannot be written \(File too large\)"):
            run.fit()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        signal.signal(signal.SIGXFSZ, handler)
    assert rounds_in(run.folder / "checkpoints" / "last.ckpt") == 2
    assert not list(run.folder.rglob("*.tmp"))
    assert [row["round"] for row in rows(small_run(4).fit(run.folder / "checkpoints" / "last.ckpt").folder)] == list(
        "0123"
    )


DAMAGES = {
    "a row twice": lambda lines: [*lines[:3], lines[2], *lines[3:]],
    "a row that is lost": lambda lines: [*lines[:2], *lines[3:]],
    "rows in another order": lambda lines: [lines[0], lines[2], lines[1], *lines[3:]],
    "a cell too many": lambda lines: [*lines[:2], f"{lines[2]},1", *lines[3:]],
    "a cell that is lost": lambda lines: [*lines[:2], lines[2].rpartition(",")[0], *lines[3:]],
    "no number": lambda lines: [*lines[:2], lines[2].replace(".", "x", 1), *lines[3:]],
    "no round": lambda lines: [*lines[:2], lines[2].replace("1", "", 1), *lines[3:]],
    "no header": lambda lines: lines[1:],
    "two rows short": lambda lines: lines[:-2],
}


FORKS = ("a row twice", "two rows short")


@pytest.fixture(scope="module")
def four_rounds(read_only_run):
    """Return the folder of a run of four rounds."""
    return read_only_run(4).fit().folder


@pytest.mark.parametrize(
    ("damage", "fork"),
    [
        *((damage, False) for damage in DAMAGES),
        *(pytest.param(damage, True, marks=[] if damage in FORKS else pytest.mark.slow) for damage in DAMAGES),
    ],
)
def test_damaged_table_is_refused_before_anything_is_written(four_rounds, small_run, tmp_path, damage, fork):
    folder = tmp_path / four_rounds.relative_to(four_rounds.parents[2])
    shutil.copytree(four_rounds, folder)
    last, file = folder / "checkpoints" / "last.ckpt", folder / "metrics.csv"
    whole = file.read_text()
    file.write_text("".join(f"{line}\n" for line in DAMAGES[damage](whole.splitlines())))
    before = contents(folder.parent)
    with pytest.raises(UserError, match=r"metrics\.csv: damaged \(.*\); restore it, or move it away"):
        small_run(5).fit(last, fork=fork)
    assert contents(folder.parent) == before
    file.unlink()
    forked = small_run(5).fit(last, fork=True)
    assert [row["round"] for row in rows(forked.folder)] == ["3", "4"]
    assert json.loads((forked.folder / "summary.json").read_text())["first_row"] == 3


@pytest.mark.parametrize("name", ["metrics.csv", "clients.npz", "dropouts.npz"])
def test_lost_file_is_refused_by_name_and_noted_by_forks(four_rounds, small_run, tmp_path, name):
    folder = tmp_path / four_rounds.relative_to(four_rounds.parents[2])
    shutil.copytree(four_rounds, folder)
    last, file = folder / "checkpoints" / "last.ckpt", folder / name
    whole = file.read_bytes()
    file.unlink()
    before = contents(folder.parent)
    with pytest.raises(UserError, match=rf"{name} is lost, and .*; restore it, or --fork"):
        small_run(5).fit(last)
    assert contents(folder.parent) == before
    fork = small_run(5).fit(last, fork=True)
    assert [remark for remark in fork.trainer.remarks if f"{name} is lost" in remark]
    if name == "clients.npz":  # an earlier copy of it
        arrays_then = {key: array[:2] for key, array in np.load(io.BytesIO(whole)).items()}
        np.savez(file, **arrays_then)
        with pytest.raises(UserError, match="has lost some of its rounds"):
            small_run(5).fit(last)
    file.write_bytes(whole)
    resumed = small_run(5).fit(last)
    assert [row["round"] for row in rows(resumed.folder)] == list("01234")


def test_rounds_may_be_missing_only_if_gaps_are_allowed(tmp_path):
    file = tmp_path / "processes.csv"
    file.write_text("round,bytes_moved\n0,1\n3,2\n")
    assert [row["round"] for row in tables.read_metrics(file, gaps=True)] == ["0", "3"]
    with pytest.raises(UserError, match="there is a row of round '3' after round 0"):
        tables.read_metrics(file)
    file.write_text("round,bytes_moved\n0,1\n0,2\n")
    with pytest.raises(UserError, match="there is a row of round '0' after round 0"):
        tables.read_metrics(file, gaps=True)


def test_incomplete_last_row_is_written_again(small_run):
    run = small_run(3).fit()
    file = run.folder / "metrics.csv"
    whole = file.read_bytes()
    for lost in (1, 2, 3):  # all cells are there, and the last one may be shorter than it was
        file.write_bytes(whole[:-lost])
        small_run(3).fit(run.folder / "checkpoints" / "last.ckpt")
        assert file.read_bytes() == whole


def test_arrays_that_do_not_belong_together_are_named(tmp_path):
    for name, key in (("clients.npz", "rounds"), ("graphs.npz", "round")):
        good = {key: np.array([0, 0, 2]), "test_acc": np.zeros((3, 2))}
        np.savez(tmp_path / name, **good)
        assert sorted(tables.read_rounds(tmp_path / name, key)) == [0, 2]
        for bad in (
            {"test_acc": np.zeros((2, 2))},
            {key: np.zeros(3)},
            {key: np.zeros((3, 1), int)},
            {"x": np.array(1)},
        ):
            np.savez(tmp_path / name, **{**good, **bad})
            with pytest.raises(UserError, match=rf"{name}: damaged"):
                tables.read_rounds(tmp_path / name, key)


@pytest.mark.parametrize("name", ["clients.npz", "graphs.npz", "split.npz"])
def test_flipped_bit_in_saved_arrays_is_refused_or_changes_nothing(run, tmp_path, name):
    file, draw, refused = tmp_path / name, random.Random(0), 0
    content, before = (run.folder / name).read_bytes(), read_npz(run.folder / name)
    for place in draw.sample(range(8 * len(content)), 400):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        file.write_bytes(changed)
        try:
            found = read_npz(file)
        except (OSError, ValueError):
            refused += 1
            continue
        assert found.keys() == before.keys()
        assert all(np.array_equal(found[k], before[k]) and found[k].dtype == before[k].dtype for k in before)
    assert refused > 200


@pytest.mark.parametrize("content", [b"nothing of the kind", b"PK\x03\x04 torn", b"\xff\xfe\x00"])
def test_damaged_files_of_a_run_are_named(tmp_path, content):
    file = tmp_path / "clients.npz"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"clients\.npz: damaged .*restore it, or move it away: reports"):
        tables.read_npz(file)
    table = tmp_path / "metrics.csv"
    table.write_bytes(b"round,seconds\n0,1\n" + content)
    if content.isascii():
        assert [row["round"] for row in tables.read_metrics(table)] == ["0"]
    else:
        with pytest.raises(UserError, match=r"metrics\.csv: damaged"):
            tables.read_metrics(table)
