"""What callbacks, checkpoints and reports find at the trainer and the module of a run.

Lightning hands both to its hooks. They stand above everything that uses them, so that their types are said here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, Protocol

from dfl_lightning.bank.bank import Bank
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.local_work import Duration
from dfl_lightning.engines.optimizing.optimizers import Hyperparameters
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.run.fit import Fit
from dfl_lightning.round.run.parts import RunParts
from dfl_lightning.utils.code.source_code import ModuleSource


class RunModule(Protocol):
    """The LightningModule of a run; see `DFLModule`."""

    local_epochs: int
    local_steps: int | None
    batch_size: int | Literal["full"]
    finetune_epochs: int
    objective: Any
    on_divergence: Any
    history: dict[str, Any]
    last_fit: Fit | None
    sources: dict[str, ModuleSource]
    parts: RunParts

    @property
    def federation(self) -> Federation:
        """What is fixed for the run."""

    @property
    def bank(self) -> Bank:
        """The clients' models."""

    @property
    def engine(self) -> Engine:
        """What trains and scores them."""

    @property
    def duration(self) -> Duration:
        """A client's local work in a round."""

    @property
    def is_set_up(self) -> bool:
        """Whether there is a run, with an engine and the clients' models."""

    @property
    def hyperparameters(self) -> Hyperparameters:
        """What the optimizer's groups are in the round after the present boundary."""

    @property
    def device(self) -> Any:
        """Where the run computes."""

    def begin_anew(self) -> None:
        """Make the next fit begin at round 0."""

    def catch_up_schedule(self) -> Hyperparameters:
        """Bring the schedule to the bank's round."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse the checkpoint of another run, and take over what it says.

        Args:
            checkpoint: as Lightning reads it.
        """

    def warn_of_divergence(self, clients: list[int], sentence: str) -> None:
        """Warn of clients that diverged, once a run for each."""

    def warn_of_broken_losses(self, clients: list[int], sentence: str) -> None:
        """Warn of models whose loss is not finite, once a run for each client."""


class RunTrainer(Protocol):
    """The Trainer of a run; see `DFLTrainer`. What is not of ours is Lightning's."""

    command: str
    config: dict[str, Any] | None
    phase_seconds: dict[str, float]
    remarks: list[str]
    repeated_code: dict[str, dict[str, str]]
    replaced_monitors: list[str]
    fork: bool
    resumed_from: str | Path | None
    ckpt_path: Any
    run_name: str
    runs_root: str
    checkpoint_every: int
    keep_comparisons: bool
    check_val_every_n_epoch: int | None
    limit_val_batches: Any
    datamodule: Any
    state: Any

    @property
    def max_epochs(self) -> int | None:
        """Rounds of the run; None or -1: until something else ends it."""

    @property
    def is_global_zero(self) -> bool:
        """Whether this is the process that writes files."""

    @property
    def keeps_checkpoints(self) -> bool:
        """Whether the run can be resumed."""

    @property
    def callback_metrics(self) -> Any:
        """What was logged last."""

    @property
    def lightning_module(self) -> Any:
        """The module."""

    @property
    def run(self) -> Any:
        """The run folder."""

    @property
    def run_folder(self) -> Any:
        """The callback that keeps the run folder; None where there is none."""

    def policies(self) -> Iterator[Any]:
        """The policies that take part."""

    def prepare(self, module: Any, datamodule: Any) -> None:
        """Set everything up, and train nothing.

        Args:
            module: the clients' models and training.
            datamodule: the clients' data.
        """

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Write the boundary as a checkpoint.

        Args:
            filepath: of the checkpoint.
            weights_only: see Lightning's Trainer.
            storage_options: see Lightning's Trainer.
        """
