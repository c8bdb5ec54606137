"""Detection of lost processes, and the effect of Ctrl-C and SIGTERM before the first round."""

import os
import signal
import subprocess
import sys

import pytest
from lightning.pytorch import Callback

from dfl_lightning.cli import command as cli
from dfl_lightning.cli import main
from dfl_lightning.distributed import launcher
from dfl_lightning.distributed.communicator import LostProcess, Ranks
from dfl_lightning.distributed.strategy import look_for_the_others
from dfl_lightning.loop import RunStopped
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.utils.errors import UNREACHABLE, UserError


@pytest.fixture
def child(monkeypatch):
    """A process of `python -c`, known as started by the run."""

    def child(code):
        process = subprocess.Popen([sys.executable, "-S", "-c", code])
        launcher._children.append(process)
        return process

    monkeypatch.setattr(launcher, "_children", [])
    yield child
    for process in launcher._children:
        process.kill()
        process.wait()


@pytest.fixture
def launched(monkeypatch):
    """As if another process had started this one."""
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    return lambda first: monkeypatch.setenv(launcher.FIRST, str(first))


@pytest.mark.parametrize(
    ("code", "how"),
    [("import os; os.kill(os.getpid(), 9)", "(signal 9)"), ("raise SystemExit(3)", "(exit code 3)"), ("", None)],
)
def test_a_process_that_was_killed_or_failed_is_named(child, code, how):
    child("import time; time.sleep(60)")
    child(code).wait()
    assert launcher.lost_child() == ("" if how is None else f"process 2 of the run has ended {how}")
    if how is not None:
        with pytest.raises(LostProcess, match="process 2"):
            look_for_the_others()


def test_the_message_waits_for_a_process_about_to_end(child):
    child("import time; time.sleep(0.2); raise SystemExit(1)")
    assert launcher.lost_child() == ""
    assert launcher.lost_child(seconds=30) == "process 1 of the run has ended (exit code 1)"


def test_a_single_process_does_not_wait(monkeypatch):
    monkeypatch.setattr(launcher, "_children", [])
    monkeypatch.setattr(launcher.time, "sleep", lambda seconds: pytest.fail("waits"))
    assert launcher.lost_child(seconds=30) == ""


def test_another_process_knows_whether_the_first_one_is_there(launched):
    launched(os.getppid())
    assert launcher.launched_by_another()
    assert launcher.lost_parent() == ""
    launched(1 << 22)
    assert launcher.lost_parent() == "the first process of the run has ended"
    assert launcher.wait_for_the_first_to_leave()


def test_processes_of_torchrun_are_not_launched_again(launched, monkeypatch):
    launched(1 << 22)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not launcher.launched_by_another()
    assert launcher.lost_parent() == ""


def test_the_watch_ends_a_process_that_does_not_exit(monkeypatch):
    slept, left, answers = [], [], iter(["", "", "process 1 has ended", "process 1 has ended"])
    monkeypatch.setattr(launcher.time, "sleep", slept.append)
    launcher.Watch(lambda: next(answers), left.append, grace=7.0).run()
    assert slept == [launcher.PERIOD, launcher.PERIOD, 7.0]
    assert left == ["process 1 has ended"]


def test_the_first_process_ends_with_the_others_and_a_sentence(child, monkeypatch, capsys):
    hanging = child("import time; time.sleep(60)")
    codes = []
    monkeypatch.setattr(launcher.os, "_exit", codes.append)
    launcher.leave("process 2 of the run has ended (signal 9)")
    assert codes == [2]
    assert capsys.readouterr().err.startswith("dfl_lightning: process 2 of the run has ended (signal 9)")
    assert hanging.wait() == -signal.SIGKILL


def test_ctrl_c_ends_a_command_before_anything_can_be_saved():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with launcher.EndAtOnce():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # nohup, or a process that the first one has started
        with launcher.EndAtOnce():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("command", ["fit", "validate", "test", "export"])
@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["python", "ignored"])
def test_ctrl_c_ends_a_command_while_loading_or_when_done(monkeypatch, command, handler):
    means = signal.SIG_DFL if handler is signal.default_int_handler else handler
    seen = []
    monkeypatch.setattr(
        "dfl_lightning.cli.command.run", lambda command: seen.append(signal.getsignal(signal.SIGINT)) or 3
    )
    monkeypatch.setattr(
        "dfl_lightning.cli.exports.export_command.main", lambda: seen.append(signal.getsignal(signal.SIGINT)) or 3
    )
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(SystemExit) as left:
            getattr(main, command)()
        assert left.value.code == 3
        assert [*seen, signal.getsignal(signal.SIGINT)] == [means, means]
    finally:
        signal.signal(signal.SIGINT, before)


def test_the_commands_handle_ctrl_c_before_loading_anything():
    code = "import sys, dfl_lightning.cli.main; print([name for name in ('torch', 'lightning') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"


def test_an_early_sigterm_stops_the_run_before_round_0(small_run, monkeypatch):
    run = small_run(3)
    loop = run.trainer.fit_loop
    install = loop._install_signal_handlers

    def late():
        os.kill(os.getpid(), signal.SIGTERM)
        assert run.trainer.received_sigterm
        install()

    monkeypatch.setattr(loop, "_install_signal_handlers", late)
    with pytest.raises(RunStopped, match="stopped by SIGTERM after no complete round"):
        run.fit()
    assert not run.trainer.received_sigterm


class Handler(Callback):
    """Callback that records the handler of SIGTERM during an evaluation."""

    def on_validation_start(self, trainer, pl_module):
        self.seen = signal.getsignal(signal.SIGTERM)


def test_a_signal_during_the_agreement_counts_next_round(small_run, monkeypatch):
    """The processes have agreed to continue, so one that stopped now would keep the others waiting."""
    run = small_run(4)
    run.fit()
    loop, bank = run.trainer.fit_loop, run.module.bank

    def agree(ranks, asked):
        assert asked is None
        if bank.boundary.round == 6:
            loop._on_signal(signal.SIGTERM, None)

    begun = []
    begin = RoundProtocol.begin
    monkeypatch.setattr(RoundProtocol, "begin", lambda self: begun.append(bank.boundary.round) or begin(self))
    monkeypatch.setattr(Ranks, "agree", agree)
    loop.max_epochs = 9
    with pytest.raises(RunStopped) as stop:
        run.trainer.fit(run.module, datamodule=run.data)
    assert stop.value.rounds == 6
    assert begun == [4, 5, 6]


def test_sigterm_simply_ends_an_evaluation(small_run):
    handler = Handler()
    run = small_run(1, [handler]).fit()
    handler.seen = None
    run.trainer.validate(run.module, datamodule=run.trainer.datamodule, verbose=False)
    assert handler.seen is signal.SIG_DFL


@pytest.fixture
def command(monkeypatch, capsys):
    """A command that ends in an error: its exit code and what it says."""

    def command(error, first_leaves=True):
        def fail(name, words):
            raise error

        monkeypatch.setattr(cli, "_run", fail)
        monkeypatch.setattr(cli, "watch_the_first", lambda: None)  # it would end the tests
        monkeypatch.setattr(cli, "wait_for_the_first_to_leave", lambda seconds: first_leaves)
        return cli.run("fit", []), capsys.readouterr().err

    return command


def test_the_first_process_says_who_is_gone(command, child):
    child("import os; os.kill(os.getpid(), 9)")
    sentence = "dfl-fit: process 1 of the run has ended (signal 9)\n"
    assert command(LostProcess(UNREACHABLE)) == (2, sentence)
    assert command(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")) == (2, sentence)


@pytest.mark.parametrize(
    "error", [LostProcess(UNREACHABLE), UserError("no"), RunStopped(15, 2), RuntimeError("Connection reset by peer")]
)
def test_another_process_is_silent_if_the_first_one_reports(command, launched, error):
    launched(os.getppid())
    assert command(error) == (0, "")


def test_another_process_reports_its_own_errors(command, launched):
    launched(os.getppid())
    sentence = "dfl-fit: process 1 of the run: there is no room\n"
    assert command(UserError("there is no room"), first_leaves=False) == (2, sentence)
