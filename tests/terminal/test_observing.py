"""Errors in the display of a run never end it; errors in writing its numbers do."""

import signal

import pytest
from lightning.pytorch.loggers.logger import DummyLogger

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report import live
from dfl_lightning.bench.report.live import LivePage
from dfl_lightning.callbacks import Monitor
from dfl_lightning.cli.command import run as command
from dfl_lightning.loop import RunStopped
from dfl_lightning.terminal import framing, progress
from dfl_lightning.terminal.observing import only_warns


def fail(*args, **options):
    raise LookupError("no such\nthing")


@pytest.mark.parametrize("error", [ValueError, KeyError, MemoryError, AssertionError, RecursionError, OSError])
def test_an_error_becomes_one_warning(capsys, error):
    called = []
    with only_warns("the page", "dfl-report RUN makes it", lambda: called.append(1)):
        raise error("a\nb")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: the page failed (")
    assert f": {error.__name__}: " in line
    assert line.endswith("); dfl-report RUN makes it")
    assert called == [1]


@pytest.mark.parametrize("left", [KeyboardInterrupt(), SystemExit(3), RunStopped(signal.SIGTERM, 1), BlockingIOError()])
def test_signals_and_excepted_errors_pass(left):
    with pytest.raises(type(left)), only_warns("the page", "", but=(BlockingIOError,)):
        raise left


def test_failing_page_or_bar_does_not_end_a_run(small_run, monkeypatch, capsys):
    monkeypatch.setattr(live, "LEAST_GAP", 0.0)
    monkeypatch.setattr(live, "write_methods", fail)
    monkeypatch.setattr(live, "write_report", fail)
    monkeypatch.setattr(progress.RoundProgress, "_about", fail)
    monkeypatch.setattr(framing, "final_table", fail)
    fit = small_run(2, callbacks=[LivePage()], enable_progress_bar=True).fit()
    assert fit.trainer.run.summary["status"] == "finished"
    assert len(fit.trainer.run.metrics["round"]) == 2
    out, err = capsys.readouterr()
    what = ["the progress of the run", "the page of the run", "the final table", "the last page of the run"]
    lines = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert sorted(line[: line.index(" (")] for line in lines) == sorted(f"warning: {one} failed" for one in what)
    assert all("in fail: LookupError: no such thing); " in line for line in lines)
    assert sum(f"dfl-report {fit.folder} makes it" in line for line in lines) == 2
    assert f"run: {fit.folder}" in out.splitlines()


def test_failing_banner_does_not_end_a_run(small_run, monkeypatch, capsys):
    monkeypatch.setattr(framing, "banner", fail)
    fit = small_run(1, enable_progress_bar=True).fit()
    assert fit.trainer.run.summary["status"] == "finished"
    assert "warning: the progress of the run failed (" in capsys.readouterr().err


def test_ctrl_c_while_a_page_is_written_ends_the_run(small_run, monkeypatch):
    def interrupted(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(live, "write_methods", interrupted)
    fit = small_run(2, callbacks=[LivePage()])
    with pytest.raises(KeyboardInterrupt):
        fit.fit()
    assert fit.trainer.run.summary["status"] == "stopped"


def test_a_report_that_fails_leaves_a_finished_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dfl_lightning.bench.report.writing.write_report", fail)
    words = ["--config", "gossip", "--report", "--data.num_clients", "4", "--trainer.max_rounds=1"]
    assert command("fit", words) == 0
    out, err = capsys.readouterr()
    (folder,) = tmp_path.glob("runs/gossip/*")
    assert f"dfl-report {folder.relative_to(tmp_path)} makes its page again" in err
    assert "page:" not in out.splitlines()[-1]


class Fails(Monitor):
    """Fails in the second round."""

    def on_round_end(self, round):
        if round.index == 1:
            fail()


class FailingLogger(DummyLogger):
    """Fails when the numbers of the second round are logged."""

    def __init__(self):
        super().__init__()
        self.calls = 0

    def log_metrics(self, metrics, step=None):
        if "test_acc" in metrics:
            self.calls += 1
            if self.calls == 2:
                fail()


@pytest.mark.parametrize("kind", ["monitor", "logger"])
def test_a_failing_monitor_or_logger_ends_the_run_resumably(small_run, kind):
    """Their numbers would be missing without a word."""
    options = {"callbacks": [Fails()]} if kind == "monitor" else {"logger": FailingLogger()}
    fit = small_run(3, **options)
    with pytest.raises(LookupError):
        fit.fit()
    assert fit.trainer.run.summary["status"] == "failed"
    assert (fit.folder / "checkpoints" / "last.ckpt").exists()
    again = small_run(3).fit(fit.folder)
    assert len(again.trainer.run.metrics["round"]) == 3
