"""Learning rates, and other options that a schedule of torch changes, as a function of the round."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer, Hyperparameters, plain_number, same_value
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.words import nth_round


class Schedule:
    """Options of the optimizer's groups in each round.

    The schedule of torch steps a stub of the optimizer, once in each round. It may write any option of any group; the
    options hold for all clients in the round.

    Args:
        optimizer: the optimizer with the groups.
        factory: optimizer -> schedule of `torch.optim.lr_scheduler`; None: all rounds have the same options.

    Attributes:
        stub: the optimizer that the schedule changes.
        scheduler: the schedule, or None.

    Raises:
        UserError: the factory fails or does not make a schedule of torch, or the schedule depends on metrics.
    """

    def __init__(self, optimizer: ClientOptimizer, factory: Callable[..., Any] | None = None) -> None:
        self._optimizer, self._factory = optimizer, factory
        self._begin()

    def _begin(self) -> None:
        self.stub = self._optimizer.stub()
        self._own = [dict(group) for group in self.stub.param_groups]
        self.scheduler: LRScheduler | None = self._scheduler()
        self._round = 0

    def _scheduler(self) -> LRScheduler | None:
        if self._factory is None:
            return None
        try:
            with _no_optimizer_steps():
                scheduler = self._factory(self.stub)
        except Exception as error:
            raise UserError(f"model.lr_scheduler cannot be made ({reason(error)})") from error
        if isinstance(scheduler, ReduceLROnPlateau):
            raise UserError(
                "model.lr_scheduler ReduceLROnPlateau depends on metrics; use a schedule of the round number"
            )
        if not isinstance(scheduler, LRScheduler):
            raise UserError(
                f"model.lr_scheduler {type(scheduler).__name__} is not a schedule of torch.optim.lr_scheduler"
            )
        if scheduler.optimizer is not self.stub:
            raise UserError(
                f"model.lr_scheduler {type(scheduler).__name__} changes another optimizer than its factory gets"
            )
        return scheduler

    def at(self, round: int) -> Hyperparameters:
        """Return the groups' options in a round, 0-based, after stepping stub and schedule to that round.

        Raises:
            UserError: the schedule fails, or sets an option that is negative, not finite or not a number.
        """
        if round < self._round:  # The state of an earlier round was loaded, to be evaluated.
            self._begin()
        while self._round < round:
            self._round += 1
            if self.scheduler is not None:
                self._step(self.scheduler)
        present = tuple(
            {
                name: plain_number(group[name])
                for name, value in own.items()
                if name != "params" and (name == "lr" or not same_value(value, group[name]))
            }
            for own, group in zip(self._own, self.stub.param_groups, strict=True)
        )
        self._check_numbers(present)
        return present

    def check(self, last: int) -> tuple[str, ...]:
        """Check the schedule for all rounds, before the first round.

        Args:
            last: the last round of the run, 0-based.

        Returns:
            Names of the options that the schedule changes, other than `lr`.

        Raises:
            UserError: the schedule ends too early, fails, sets an invalid option, or does not repeat its options.
        """
        rounds = range(last + 1 if self.scheduler is not None else 1)
        two = [Schedule(self._optimizer, self._factory) for _ in range(2)]
        changed: set[str] = set()
        for round in rounds:
            one, other = (schedule.at(round) for schedule in two)
            if one != other:
                raise UserError(
                    f"{self._name} gives {one} in {nth_round(round)} the first time and {other} the second time; it "
                    "must depend on the round alone, so that a run can be resumed"
                )
            changed |= {name for fields in one for name in fields}
        return tuple(sorted(changed - {"lr"}))

    @property
    def _name(self) -> str:
        if self.scheduler is None:
            return f"model.optimizer {self._optimizer.name}"
        return f"model.lr_scheduler {type(self.scheduler).__name__}"

    def _step(self, scheduler: LRScheduler) -> None:
        try:
            with _no_optimizer_steps():
                scheduler.step()
        except Exception as error:
            raise UserError(
                f"{self._name} gives no learning rate for {nth_round(self._round)} ({reason(error)}); it must last for "
                "all trainer.max_rounds"
            ) from error

    def _check_numbers(self, hyperparameters: Hyperparameters) -> None:
        for fields in hyperparameters:
            for name, value in fields.items():
                for number in value if isinstance(value, (tuple, list)) else [value]:
                    if not isinstance(number, (int, float)) or not math.isfinite(number) or number < 0:
                        raise UserError(
                            f"{self._name}: '{name}' is {value} in {nth_round(self._round)}; it must be a number, "
                            "0 or more"
                        )
                if name == "betas" and not max(value) < 1:
                    raise UserError(
                        f"{self._name}: 'betas' are {value} in {nth_round(self._round)}; they must be below 1"
                    )


@contextmanager
def _no_optimizer_steps() -> Iterator[None]:
    """Suppress torch's warning that the optimizer must step before its schedule, as a stub never steps."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
        yield
