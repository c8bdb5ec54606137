"""The callbacks of a trainer: the defaults, the policies that take part, and the checks of Lightning's callbacks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import (
    BaseFinetuning,
    BatchSizeFinder,
    DeviceStatsMonitor,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    LearningRateMonitor,
    ModelCheckpoint,
    ModelPruning,
    ProgressBar,
    SpikeDetection,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torchmetrics import Metric

from dfl_lightning import callbacks as families
from dfl_lightning.checkpoints.io import RoundCheckpoint
from dfl_lightning.data import ClientData
from dfl_lightning.round.callback import RoundCallback, refuse_wrong_hooks
from dfl_lightning.runs.run_folder import RunFolder
from dfl_lightning.runs.traffic import ProcessTraffic
from dfl_lightning.tasks import Task
from dfl_lightning.terminal.framing import Framing
from dfl_lightning.terminal.progress import RoundProgress
from dfl_lightning.utils.errors import UserError

UNSUITABLE = (
    *(BatchSizeFinder, LearningRateFinder, StochasticWeightAveraging, WeightAveraging, GradientAccumulationScheduler),
    *(ModelPruning, BaseFinetuning, SpikeDetection),
)
"""Lightning's callbacks that would change nothing, fail, or save other models than the clients' in checkpoints."""

P = TypeVar("P", bound=families.Policy)


# --- what a trainer gets ----------------------------------------------------------------------------------------------
def default_monitors() -> list[families.Monitor]:
    """Make the monitors of a run that names none: the accuracies of neighbours and friends."""
    return [families.NeighbourAccuracy(), families.FriendAccuracy()]


def default_callbacks(given: Iterable[Callback]) -> list[Callback]:
    """Make the default callbacks of the families that a run does not name: `Gossip`, `Uniform`, `default_monitors`.

    Args:
        given: the callbacks that the run names; their families get no default.
    """
    missing: list[Callback] = []
    for family, defaults in (
        (families.Selection, [families.Gossip()]),
        (families.Aggregation, [families.Uniform()]),
        (families.Monitor, default_monitors()),
    ):
        if not any(isinstance(callback, family) for callback in given):
            missing += defaults
    return missing


def completed(callbacks: Sequence[Callback], progress: bool, folder: bool, checkpoints: bool) -> list[Callback]:
    """Check the user's callbacks and add those of every run: progress, the run folder, its checkpoints.

    Args:
        callbacks: the user's, with the defaults.
        progress: True if a run prints its progress.
        folder: True if it has a run folder.
        checkpoints: True if it saves checkpoints.

    Raises:
        UserError: names a callback that cannot take part, and the remedy.
    """
    for callback in callbacks:
        _check(callback)
    _refuse_doubles(callbacks)
    readers = [c for c in callbacks if isinstance(c, RoundCallback) and c.reads_run_folder]
    all_of_them = [callback for callback in callbacks if callback not in readers]
    if progress and not any(isinstance(c, Framing) for c in all_of_them):
        bar = next((place for place, c in enumerate(all_of_them) if isinstance(c, ProgressBar)), None)
        if bar is None:
            all_of_them.append(RoundProgress())
        else:
            all_of_them.insert(bar, Framing())  # its banner comes before the bar of Lightning
    if folder and not any(isinstance(c, RunFolder) for c in all_of_them):
        all_of_them += [RunFolder(), ProcessTraffic()]
    all_of_them += readers
    if checkpoints and not any(isinstance(c, RoundCheckpoint) for c in all_of_them):
        all_of_them.append(RoundCheckpoint())  # after the run folder, whose files must hold a checkpoint's rounds
    return all_of_them


def _check(callback: Any) -> None:
    """Raise if an object is not a callback, or cannot take part in rounds."""
    if not isinstance(callback, Callback):
        is_class = isinstance(callback, type)
        name = callback.__name__ if is_class else type(callback).__name__
        what = f"a class; make an object of it, {name}(…)" if is_class else "not a callback; leave it out"
        raise UserError(f"callbacks of the trainer: {name} is {what}")
    if isinstance(callback, UNSUITABLE):
        raise UserError(
            f"trainer.callbacks {type(callback).__name__} works on Lightning's steps and the module's "
            "parameters, which rounds do not have; leave it out"
        )
    monitor = getattr(callback, "monitor", None)
    if isinstance(callback, (EarlyStopping, ModelCheckpoint)) and str(monitor).startswith(
        ("test_", "global_test_", "merged_test_")
    ):
        raise UserError(
            f"{type(callback).__name__}(monitor={monitor}) would choose by test data; "
            "monitor val_* or a training column"
        )


def _refuse_doubles(callbacks: Sequence[Callback]) -> None:
    """Raise if two Outgoing policies or two monitors conflict.

    Their random draws and states are identified by their names, so a name may occur only once.

    Raises:
        UserError: two have the same name, or two Outgoing policies would write into the same row set.
    """
    sets: dict[str, str] = {}
    for key, family in (("outgoing", families.Outgoing), ("monitors", families.Monitor)):
        names = [type(callback).__name__ for callback in callbacks if isinstance(callback, family)]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise UserError(f"{key} has {twice} twice; keep one")
    for callback in callbacks:
        if isinstance(callback, families.Outgoing):
            name = type(callback).__name__
            for rows in callback.row_sets:
                if rows in sets:
                    raise UserError(f"outgoing {sets[rows]} and {name} both keep a row set '{rows}'; rename one")
                sets[rows] = name


# --- at the beginning of a run ----------------------------------------------------------------------------------------
def taking_part(callbacks: Iterable[Callback]) -> Iterator[families.Policy]:
    """Iterate over the policies that are not switched off."""
    for callback in callbacks:
        if isinstance(callback, families.Policy) and not callback.switched_off:
            yield callback


def policy_of(callbacks: Iterable[Callback], family: type[P]) -> P | None:
    """Return the policy of a family that takes part; None if there is none."""
    return next((policy for policy in taking_part(callbacks) if isinstance(policy, family)), None)


def settle_policies(callbacks: Sequence[Callback]) -> tuple[RoundCallback, ...]:
    """Switch off policies whose results are not used, and return the policies and monitors that take part.

    A run has one selection, one aggregation, any number of Outgoing policies, and at most one policy of each other
    family.

    Raises:
        UserError: a family has too few or too many policies.
    """
    for family, least in (
        (families.Clock, 0),
        (families.Dropout, 0),
        (families.Selection, 1),
        (families.Threshold, 0),
        (families.Substitution, 0),
        (families.Aggregation, 1),
        (families.Prediction, 0),
    ):
        members = [c for c in callbacks if isinstance(c, family)]
        key = family.family
        if len(members) < least:
            raise UserError(
                f"no {key}: a round needs exactly one; name it with --{key} or in DFLTrainer(callbacks=[...])"
            )
        if len(members) > 1:
            names = ", ".join(type(c).__name__ for c in members)
            raise UserError(f"{len(members)} policies of the family {key} ({names}); keep one")
    selection = policy_of(callbacks, families.Selection)
    for callback in callbacks:
        if isinstance(callback, families.Threshold):
            callback.switched_off = selection is not None and "threshold" not in selection.reads
        if isinstance(callback, families.Substitution):
            callback.switched_off = policy_of(callbacks, families.Dropout) is None
    members_of_run: list[RoundCallback] = []
    for callback in callbacks:
        if isinstance(callback, (families.Policy, families.Monitor)) and not callback.switched_off:
            refuse_wrong_hooks(callback)
            members_of_run.append(callback)
    return tuple(members_of_run)


def check_monitored(
    callbacks: Iterable[Callback], has_loggers: bool, data: ClientData, task: Task, metrics: Mapping[str, Metric]
) -> None:
    """Raise if a callback needs validation data or a logger that is missing, or would prefer the worse models.

    Args:
        callbacks: those of the trainer.
        has_loggers: True if the trainer has a logger.
        data: the clients' data.
        task: the task, which defines whether higher scores are better.
        metrics: the chosen metrics by name, which may define it too.

    Raises:
        UserError: names the callback and the remedy.
    """
    has_validation = bool(data.sizes("val").sum())
    for callback in callbacks:
        name, monitor = type(callback).__name__, str(getattr(callback, "monitor", None))
        if monitor.startswith("val_") and not has_validation:
            raise UserError(
                f"trainer.callbacks {name} monitors {monitor}, but no client has validation data; set data.val_fraction"
            )
        higher = task.higher_is_better if monitor == f"val_{task.score}" else None
        higher = getattr(metrics.get(monitor.removeprefix("val_")), "higher_is_better", higher)
        higher = False if monitor in ("val_loss", "train_loss") else higher
        if isinstance(callback, (EarlyStopping, ModelCheckpoint)) and higher is not None:
            wanted = "max" if higher else "min"
            if callback.mode != wanted:
                raise UserError(
                    f"trainer.callbacks {name} monitors {monitor} with mode {callback.mode}, but a "
                    f"{'higher' if higher else 'lower'} {monitor} is better; set its mode to {wanted}"
                )
        if isinstance(callback, (LearningRateMonitor, DeviceStatsMonitor)) and not has_loggers:
            raise UserError(f"trainer.callbacks {name} needs a logger; add one, for example --trainer.logger true")


def that_choose(callbacks: Iterable[Callback]) -> list[EarlyStopping | ModelCheckpoint]:
    """Return the callbacks that choose by a monitored score: when a run stops, and which models are kept."""
    return [callback for callback in callbacks if isinstance(callback, (EarlyStopping, ModelCheckpoint))]


def changed_by_rounds(callbacks: Sequence[Callback], module: Any) -> list[Any]:
    """Return the objects that rounds change: policies, monitors, callbacks that stop or save, and the objective."""
    kinds = (families.Policy, families.Monitor, *map(type, that_choose(callbacks)))
    parts: list[Any] = [callback for callback in callbacks if isinstance(callback, kinds)]
    return [*parts, module.objective] if hasattr(module, "objective") else parts
