"""The custom loop: one Lightning epoch is one communication round, one batch is the local training of all clients.

All uses of private names of Lightning's loops are in this file; `tests/test_lightning_contract.py` lists them. The
steps of a round are in `protocol.py`. A round is either complete or has no effect: the bank's boundary is replaced at
its end, all counters of Lightning are derived from the boundary, and a stop, a signal or a checkpoint at any moment
refers to the last boundary.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, cast

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from dfl_lightning.checkpoints.names import FOLDER, LAST
from dfl_lightning.distributed.communicator import StoppedElsewhere
from dfl_lightning.distributed.strategy import look_for_the_others
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.callback import call_round_hook
from dfl_lightning.round.record import Round
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.utils.errors import UserError

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RunStopped(BaseException):
    """A signal ended the run at a round boundary.

    Args:
        signum: the signal's number.
        rounds: number of complete rounds.
        run: the run folder with a checkpoint of them; None: there is none.
    """

    def __init__(self, signum: int, rounds: int, run: Path | None = None) -> None:
        done = "no complete round" if not rounds else f"{rounds} complete round{'s' * (rounds > 1)}"
        super().__init__(f"stopped by {signal.Signals(signum).name} after {done}")
        self.signum, self.rounds, self.run = signum, rounds, run


class EarlySignals(_SignalConnector):
    """Signal handlers until the first round: a SIGTERM before a fit's first round is stored for the loop.

    Lightning's handler would send the signal to the other processes and wait for them inside the handler.
    """

    def register_signal_handlers(self) -> None:
        """Install the handlers for a fit only, since an evaluation has nothing to save when it is ended."""
        if self.trainer.state.fn == TrainerFn.FITTING:
            super().register_signal_handlers()

    def _sigterm_notifier_fn(self, signum: int, _: Any) -> None:
        self.received_sigterm = True


class NamedCheckpoints(_CheckpointConnector):
    """Resuming from named checkpoints only, in the folder of the checkpoint's run.

    Lightning would also resume, unasked, from a file that an `OnExceptionCheckpoint` of an earlier run has left.
    """

    def _parse_ckpt_path(
        self, state_fn: TrainerFn, ckpt_path: Any, model_provided: bool, model_connected: bool
    ) -> str | Path | None:
        keeping = [c for c in self.trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint) and c.best_model_path]
        best = [callback.best_model_path for callback in keeping]
        if ckpt_path is None:
            by_score = len(keeping) == 1 and keeping[0].monitor is not None
            if not by_score or model_provided or state_fn == TrainerFn.FITTING:
                return None
            if self.trainer.is_global_zero:
                print(f"the best models of the last fit are evaluated: {best[0]}")
            return best[0]
        if ckpt_path == "best":
            if len(best) != 1:
                raise UserError(
                    f"ckpt_path=best: {len(best) or 'no'} ModelCheckpoint{'s' * (len(best) > 1)} of the trainer saved "
                    "a best model; set ckpt_path to a run folder or a checkpoint"
                )
            ckpt_path = best[0]
        folder = cast("RunTrainer", self.trainer).run_folder
        own = None if folder is None or folder.path is None else folder.path / FOLDER / LAST
        if ckpt_path == "last" and own is not None and own.exists():
            ckpt_path = str(own)
        path = super()._parse_ckpt_path(state_fn, ckpt_path, model_provided, model_connected)
        if state_fn == TrainerFn.FITTING:
            cast("RunTrainer", self.trainer).resumed_from = path
        return path


def checkpoint_by_word(trainer: Trainer, word: str) -> str | Path | None:
    """Return the checkpoint that callbacks of the trainer call `best` or `last`; None if there is none.

    Args:
        trainer: the trainer that is about to fit.
        word: `best` or `last`.

    Raises:
        UserError: no callback saved a best model, or several did.
    """
    connected = trainer.lightning_module is not None
    return trainer._checkpoint_connector._parse_ckpt_path(TrainerFn.FITTING, word, True, connected)


class LoggedNumber(_ResultMetric):
    """A number that is logged in each round.

    Lightning moves it to the device of each new value by copying everything that it holds. For the dozen numbers of a
    round, this takes longer than the training of a small network.
    """

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move the tensors as Lightning does, unless all of them are on the CPU already."""
        if len(args) == 1 and torch.device(args[0]).type == "cpu":
            tensors = (value for value in vars(self).values() if isinstance(value, Tensor))
            if self.is_tensor and all(tensor.device.type == "cpu" for tensor in tensors):
                return self
        return cast("Self", super().to(*args, **kwargs))


class LoggedNumbers(_ResultCollection):
    """The numbers that rounds log, by name."""

    def __setitem__(self, key: str, value: _ResultMetric) -> None:
        value.__class__ = LoggedNumber
        super().__setitem__(key, value)


class LocalWork(_TrainingEpochLoop):
    """The only batch of a round: `training_step` calls the engine. Step numbers are derived from rounds, not counted.

    Args:
        trainer: the `DFLTrainer`.
        min_steps: least number of steps, an argument of Lightning's loop; a run counts rounds instead.
        max_steps: largest number of steps, an argument of Lightning's loop.
    """

    done = property(lambda self: self._is_training_done)  # the base class also stops if should_stop is set
    global_step = property(lambda self: self.trainer.fit_loop.rounds_committed)
    _batches_that_stepped = property(lambda self: self.trainer.current_epoch, lambda self, value: None)

    def __init__(self, trainer: Any, min_steps: int | None = None, max_steps: int = -1) -> None:
        super().__init__(trainer, min_steps, max_steps)
        self._results = LoggedNumbers(training=True)
        self.val_loop._results = LoggedNumbers(training=False)

    def _should_check_val_fx(self, data_fetcher: Any) -> bool:
        return False  # RoundLoop evaluates, after mixing

    def _broadcast_sigterm_tensor(self) -> None: ...


class RoundLoop(_FitLoop):
    """Rounds until `max_rounds`, early stopping or a signal.

    Args:
        trainer: the `DFLTrainer`.
        min_epochs: least number of rounds, which early stopping respects; None: no least number.
        max_epochs: number of rounds; None: Lightning's default.
    """

    _stop_signal: int | None = None
    round: Round | None = None

    def __init__(self, trainer: Any, min_epochs: int | None = None, max_epochs: int | None = None) -> None:
        super().__init__(trainer, min_epochs, max_epochs)
        trainer._signal_connector = EarlySignals(trainer)
        trainer._checkpoint_connector = NamedCheckpoints(trainer)

    @property
    def _protocol(self) -> RoundProtocol:
        return RoundProtocol(cast("RunTrainer", self.trainer))

    @property
    def rounds_committed(self) -> int:
        """The number of rounds in the last boundary, which a checkpoint would save now."""
        module = cast("RunModule | None", self.trainer.lightning_module)
        return 0 if module is None or not module.is_set_up else module.bank.boundary.round

    @property
    def rounds_done(self) -> int:
        """The number of complete rounds; a committed round that has not been evaluated yet does not count."""
        committed = self.rounds_committed
        return committed if not committed or self._protocol.bank.boundary.closed else committed - 1

    @property
    def is_over(self) -> bool:
        """True if no round is left: all rounds are done, or early stopping had ended the run when it was saved."""
        if self.max_epochs is not None and 0 <= self.max_epochs <= self.rounds_done:
            return True
        return self.rounds_done > 0 and self._stopped_early

    @property
    def _stopped_early(self) -> bool:
        trainer = cast("RunTrainer", self.trainer)
        return any(isinstance(c, EarlyStopping) and c.stopped_epoch > 0 for c in trainer.callbacks)  # type: ignore[attr-defined]

    # --- the round ----------------------------------------------------------------------------------------------------
    def advance(self) -> None:
        """Run one communication round; if it was interrupted after its commit, only its evaluation."""
        started = time.perf_counter()
        protocol = self._protocol
        bank = protocol.bank
        self._refuse_changed_boundary()
        try:
            if bank.boundary.closed:
                self.round = protocol.begin()
                super().advance()  # one batch -> training_step -> local_work
                protocol.mix(self.round)
                while (wave := protocol.next_wave(self.round)) is not None:
                    self.round = wave
                    protocol.train(wave)
                    protocol.mix(wave)
                self._refuse_changed_boundary()
                protocol.commit(self.round)
                self.round = None
            if self.epoch_loop._should_check_val_epoch():  # evaluation only observes a committed boundary
                self._evaluate()
        except StoppedElsewhere as stop:
            raise self._stopped(stop.signum) from None
        metrics = {**bank.boundary.metrics, "seconds": time.perf_counter() - started}
        bank.boundary = bank.boundary._replace(metrics=metrics)

    def _evaluate(self) -> None:
        """Run Lightning's validation loop; if it is interrupted, reset the trainer's state for a second fit."""
        self.trainer.validating = True
        try:
            self.epoch_loop.val_loop.run()
        except BaseException:
            self.trainer.lightning_module.train()
            raise
        finally:
            self.trainer.training = True

    def local_work(self) -> None:
        """Train all clients; `training_step` calls this method."""
        assert self.round is not None
        self._protocol.train(self.round)

    def on_advance_end(self) -> None:
        """Call Lightning's hooks (loggers, early stopping), close the boundary, and write files."""
        super().on_advance_end()
        bank = self._protocol.bank
        self._refuse_changed_boundary()
        bank.boundary = bank.boundary._replace(closed=True, callbacks=self._protocol.capture())
        call_round_hook(self.trainer, "on_boundary", self.trainer, self._protocol.module)
        self._stop_together()
        if not self.done:  # after the last round there is nothing left to stop
            signum = self._stop_signal  # a signal that arrives after this line takes effect in the next round
            try:
                bank.ranks.agree(signum)
            except StoppedElsewhere as stop:
                signum = stop.signum
            if signum is not None:
                raise self._stopped(signum)

    def _refuse_changed_boundary(self) -> None:
        """Raise if one of Lightning's hooks has written into the boundary's rows.

        The hooks of a round are checked by `guard_hook`.

        Raises:
            UserError: names the row set and the remedy.
        """
        bank = self._protocol.bank
        name = bank.written_in_place()
        if name is not None:
            raise UserError(
                f"after {bank.boundary.round} rounds: one of Lightning's hooks (on_train_epoch_start, "
                f"on_train_batch_end, on_validation_end, …) writes into the rows '{name}'; work on a copy, "
                "bank.rows(name).clone(), or write rows in a policy's hook of the round"
            )

    def _stop_together(self) -> None:
        """Stop in all processes if a callback has asked to stop in one of them."""
        self.trainer.should_stop = self._protocol.bank.ranks.any(self.trainer.should_stop)

    # --- progress follows the bank ------------------------------------------------------------------------------------
    skip = False  # even a finished run that is resumed runs the loop, which trains nothing and reports its numbers

    def run(self) -> None:
        """Run the rounds that follow the bank's boundary."""
        self._follow_the_bank()
        super().run()

    def on_run_start(self) -> None:
        """Restore the callbacks' states from the boundary, and install the signal handlers."""
        protocol = self._protocol
        protocol.restore_callbacks()
        if self._stopped_early:
            self.trainer.should_stop = True  # the run had ended when it was saved
        protocol.bank.ranks.same("round", self.rounds_done)
        protocol.federation.engine.between_cohorts = self._check_stop
        self._install_signal_handlers()
        super().on_run_start()
        self._stop_together()

    def on_advance_start(self) -> None:
        """Set the round's learning rate before LearningRateMonitor reads it, and call Lightning's hooks.

        If the round is committed already and only its evaluation is due, its hooks have been called before.
        """
        protocol = self._protocol
        if protocol.bank.boundary.closed:
            protocol.module.catch_up_schedule()
            super().on_advance_start()
        else:
            self.epoch_progress.increment_ready()
            self.epoch_progress.increment_started()

    def load_state_dict(self, state_dict: dict, prefix: str = "") -> None:
        """Restore Lightning's state, then derive its counters from the bank, which has been restored before."""
        super().load_state_dict(state_dict, prefix)
        self._follow_the_bank()

    def _follow_the_bank(self) -> None:
        for progress in (self.epoch_progress.total, self.epoch_progress.current):
            for count in vars(progress):
                setattr(progress, count, self.rounds_done)
        batches = self.epoch_loop.batch_progress
        batches.reset_on_run()
        last = min(1, self.rounds_committed)  # the only batch of the last round, if there was one
        for count in vars(batches.total):  # rounds that were begun and discarded do not count
            setattr(batches.total, count, self.rounds_committed)
            setattr(batches.current, count, last)
        batches.is_last_batch = bool(last)
        if self.rounds_committed > self.rounds_done:  # the missing evaluation starts from the beginning
            self.epoch_loop.val_loop.batch_progress.reset()
        self.restarting = False

    # --- signals ------------------------------------------------------------------------------------------------------
    @contextmanager
    def restore_signal_handlers(self) -> Iterator[None]:
        """Restore the signal handlers after the fit that runs inside, however it ends."""
        before = {signum: signal.getsignal(signum) for signum in SIGNALS}
        if before[signal.SIGINT] is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)  # raises KeyboardInterrupt, so Lightning tidies up
        try:
            yield
        finally:
            self._stop_signal = None
            if threading.current_thread() is threading.main_thread():
                for signum, handler in before.items():
                    signal.signal(signum, handler or signal.SIG_DFL)

    def _install_signal_handlers(self) -> None:
        """Handle the first Ctrl-C or SIGTERM between cohorts, and a second Ctrl-C at once.

        Lightning would stop at a SIGTERM in the middle of a round, and at Ctrl-C in the middle of any operation.
        """
        early = self.trainer._signal_connector
        self._stop_signal = signal.SIGTERM if early.received_sigterm else None
        early.received_sigterm = False  # otherwise Lightning's loops would end in this process only
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: Any) -> None:
        if self._stop_signal is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop_signal = signum

    def _stopped(self, signum: int) -> RunStopped:
        """Make the exception that ends the run, with the run folder if its rounds are saved."""
        trainer, rounds = cast("RunTrainer", self.trainer), self.rounds_committed
        folder = trainer.run_folder if trainer.keeps_checkpoints and rounds else None
        return RunStopped(signum, rounds, None if folder is None else folder.path)

    def _check_stop(self) -> None:
        """Raise between cohorts if a signal has arrived or another process has ended."""
        look_for_the_others()
        if self._stop_signal is not None:
            raise self._stopped(self._stop_signal)
