"""The custom loop: one Lightning epoch is one communication round, one batch is the local work of all clients.

Every private name of Lightning's loops is in this file; `tests/test_lightning_contract.py` lists them. What a round
does is in `protocol.py`. A round either happened or did not: the bank's boundary is replaced at its end, every counter
of Lightning follows from it, and a stop, a signal or a checkpoint at any moment means the last boundary.
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
    """A SIGTERM before the first round is remembered until the loop listens; evaluations it simply ends.

    Lightning would pass it on to the other processes and wait for them inside the signal's handler.
    """

    def register_signal_handlers(self) -> None:
        """For a fit: a run that only evaluates has nothing to save."""
        if self.trainer.state.fn == TrainerFn.FITTING:
            super().register_signal_handlers()

    def _sigterm_notifier_fn(self, signum: int, _: Any) -> None:
        self.received_sigterm = True


class NamedCheckpoints(_CheckpointConnector):
    """A run goes on from a checkpoint that is named, and then in the folder of that checkpoint's run.

    Lightning would also take, without a word of the user's, what an `OnExceptionCheckpoint` of an earlier run has left.
    """

    def _parse_ckpt_path(
        self, state_fn: TrainerFn, ckpt_path: Any, model_provided: bool, model_connected: bool
    ) -> str | Path | None:
        if ckpt_path is None:
            return None
        if ckpt_path == "best":
            keeping = (c for c in self.trainer.checkpoint_callbacks if isinstance(c, ModelCheckpoint))
            best = [callback.best_model_path for callback in keeping if callback.best_model_path]
            if len(best) != 1:
                raise UserError(
                    f"ckpt_path=best: {len(best) or 'no'} ModelCheckpoint{'s' * (len(best) > 1)} of the trainer kept a "
                    "best model; give a run folder or a checkpoint"
                )
            ckpt_path = best[0]
        found = super()._parse_ckpt_path(state_fn, ckpt_path, model_provided, model_connected)
        if state_fn == TrainerFn.FITTING:
            cast("RunTrainer", self.trainer).resumed_from = found
        return found


def checkpoint_by_word(trainer: Trainer, word: str) -> str | Path | None:
    """Return the checkpoint that callbacks of the trainer call `best` or `last`; None where there is none.

    Args:
        trainer: about to fit.
        word: `best` or `last`.

    Raises:
        UserError: no callback kept a best model, or several did.
    """
    connected = trainer.lightning_module is not None
    return trainer._checkpoint_connector._parse_ckpt_path(TrainerFn.FITTING, word, True, connected)


class LoggedNumber(_ResultMetric):
    """A number that is logged in each round.

    Lightning moves it to the device of each new value, by way of copies of everything that it holds: for the dozen
    numbers of a round, that takes longer than a small network takes to train.
    """

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Only where something is elsewhere."""
        if len(args) == 1 and torch.device(args[0]).type == "cpu":
            tensors = (value for value in vars(self).values() if isinstance(value, Tensor))
            if self.is_tensor and all(tensor.device.type == "cpu" for tensor in tensors):
                return self
        return cast("Self", super().to(*args, **kwargs))


class LoggedNumbers(_ResultCollection):
    """What the rounds log, by name."""

    def __setitem__(self, key: str, value: _ResultMetric) -> None:
        value.__class__ = LoggedNumber
        super().__setitem__(key, value)


class LocalWork(_TrainingEpochLoop):
    """The one batch of a round: `training_step` is the engine call. Step numbers are derived, never counted.

    Args:
        trainer: of the run.
        min_steps: least number of steps, as Lightning's loop takes it; a run has rounds instead.
        max_steps: most steps, likewise.
    """

    done = property(lambda self: self._is_training_done)  # the base also leaves on should_stop
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
        trainer: of the run.
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
        """Rounds whose models a checkpoint would hold now."""
        module = cast("RunModule | None", self.trainer.lightning_module)
        return 0 if module is None or not module.is_set_up else module.bank.boundary.round

    @property
    def rounds_done(self) -> int:
        """Rounds that have gone through everything; one that still waits for its evaluation does not count."""
        committed = self.rounds_committed
        return committed if not committed or self._protocol.bank.boundary.closed else committed - 1

    @property
    def is_over(self) -> bool:
        """Whether no round is left to do: the run has them all, or early stopping had ended it when it was saved."""
        if self.max_epochs is not None and 0 <= self.max_epochs <= self.rounds_done:
            return True
        return self.rounds_done > 0 and self._stopped_early

    @property
    def _stopped_early(self) -> bool:
        trainer = cast("RunTrainer", self.trainer)
        return any(isinstance(c, EarlyStopping) and c.stopped_epoch > 0 for c in trainer.callbacks)  # type: ignore[attr-defined]

    # --- the round ----------------------------------------------------------------------------------------------------
    def advance(self) -> None:
        """One communication round; only its evaluation, where an interruption came between."""
        started = time.perf_counter()
        protocol = self._protocol
        bank = protocol.bank
        self._refuse_changed_boundary()
        try:
            if bank.boundary.closed:
                self.round = protocol.begin()
                super().advance()  # one batch -> training_step -> local_work
                protocol.mix(self.round)
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
        """Lightning's validation loop; an interrupted one leaves everything ready for a second fit."""
        self.trainer.validating = True
        try:
            self.epoch_loop.val_loop.run()
        except BaseException:
            self.trainer.lightning_module.train()
            raise
        finally:
            self.trainer.training = True

    def local_work(self) -> None:
        """Called by `training_step`."""
        assert self.round is not None
        self._protocol.train(self.round)

    def on_advance_end(self) -> None:
        """Lightning's hooks (loggers, early stopping); then the boundary is closed and files are written."""
        super().on_advance_end()
        bank = self._protocol.bank
        self._refuse_changed_boundary()
        bank.boundary = bank.boundary._replace(closed=True, callbacks=self._protocol.capture())
        call_round_hook(self.trainer, "on_boundary", self.trainer, self._protocol.module)
        self._stop_together()
        if not self.done:  # a signal in the last round stops nothing any more
            asked = self._stop_signal  # one that comes while the processes agree is acted on in the next round
            try:
                bank.ranks.agree(asked)
            except StoppedElsewhere as stop:
                asked = stop.signum
            if asked is not None:
                raise self._stopped(asked)

    def _refuse_changed_boundary(self) -> None:
        """Refuse a boundary into whose rows other code than a round's hooks has written; those are checked one by one.

        Raises:
            UserError: one of Lightning's hooks has written into them.
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
        """A callback that ends the run in one process ends it in all of them."""
        self.trainer.should_stop = self._protocol.bank.ranks.any(self.trainer.should_stop)

    # --- progress follows the bank ------------------------------------------------------------------------------------
    skip = False  # a finished run that is resumed trains nothing and says its numbers again

    def run(self) -> None:
        """Start where the bank is."""
        self._follow_the_bank()
        super().run()

    def on_run_start(self) -> None:
        """Callbacks as they were at the boundary; from here on signals are handled."""
        protocol = self._protocol
        protocol.restore_callbacks()
        if self._stopped_early:
            self.trainer.should_stop = True  # the run had ended when it was saved
        protocol.bank.ranks.same("round", self.rounds_done)
        protocol.federation.engine.between_cohorts = self._look_around
        self._listen()
        super().on_run_start()
        self._stop_together()

    def on_advance_start(self) -> None:
        """The round's learning rate is set before LearningRateMonitor looks; a committed round has had these hooks."""
        protocol = self._protocol
        if protocol.bank.boundary.closed:
            protocol.module.catch_up_schedule()
            super().on_advance_start()
        else:
            self.epoch_progress.increment_ready()
            self.epoch_progress.increment_started()

    def load_state_dict(self, state_dict: dict, prefix: str = "") -> None:
        """Lightning's counters are read and then derived from the bank, which was restored before."""
        super().load_state_dict(state_dict, prefix)
        self._follow_the_bank()

    def _follow_the_bank(self) -> None:
        for progress in (self.epoch_progress.total, self.epoch_progress.current):
            for count in vars(progress):
                setattr(progress, count, self.rounds_done)
        batches = self.epoch_loop.batch_progress
        batches.reset_on_run()
        last = min(1, self.rounds_committed)  # the last round's one batch; the next round begins at 0
        for count in vars(batches.total):  # rounds that were begun and dropped do not count
            setattr(batches.total, count, self.rounds_committed)
            setattr(batches.current, count, last)
        batches.is_last_batch = bool(last)
        if self.rounds_committed > self.rounds_done:  # its evaluation is made up for, from the beginning
            self.epoch_loop.val_loop.batch_progress.reset()
        self.restarting = False

    # --- signals ------------------------------------------------------------------------------------------------------
    @contextmanager
    def giving_signals_back(self) -> Iterator[None]:
        """Around a fit: whatever happens in it, signals mean afterwards what they meant before."""
        before = {signum: signal.getsignal(signum) for signum in SIGNALS}
        if before[signal.SIGINT] is signal.SIG_DFL and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, signal.default_int_handler)  # so that Lightning can tidy up
        try:
            yield
        finally:
            self._stop_signal = None
            if threading.current_thread() is threading.main_thread():
                for signum, handler in before.items():
                    signal.signal(signum, handler or signal.SIG_DFL)

    def _listen(self) -> None:
        """The first Ctrl-C or SIGTERM is handled between cohorts; a second Ctrl-C at once.

        Lightning would raise SIGTERM in the middle of a round and Ctrl-C inside whatever runs.
        """
        early = self.trainer._signal_connector
        self._stop_signal = signal.SIGTERM if early.received_sigterm else None
        early.received_sigterm = False  # Lightning's loops would leave in this process alone
        if threading.current_thread() is threading.main_thread():
            for signum in SIGNALS:
                signal.signal(signum, self._on_signal)

    def _on_signal(self, signum: int, frame: Any) -> None:
        if self._stop_signal is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._stop_signal = signum

    def _stopped(self, signum: int) -> RunStopped:
        """With the run folder where the rounds are saved on the way out."""
        trainer, rounds = cast("RunTrainer", self.trainer), self.rounds_committed
        folder = trainer.run_folder if trainer.keeps_checkpoints and rounds else None
        return RunStopped(signum, rounds, None if folder is None else folder.path)

    def _look_around(self) -> None:
        """Between cohorts: has a signal come, or has another process gone?"""
        look_for_the_others()
        if self._stop_signal is not None:
            raise self._stopped(self._stop_signal)
