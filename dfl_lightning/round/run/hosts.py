"""The types of a run's trainer and module, as callbacks, checkpoints and reports use them.

Lightning passes both to its hooks. Their classes import the code that uses them, which therefore imports these types.
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
from dfl_lightning.round.run.client_warnings import ClientWarnings
from dfl_lightning.round.run.fit import Fit
from dfl_lightning.round.run.parts import RunParts
from dfl_lightning.utils.code.source_code import ModuleSource


class RunModule(Protocol):
    """The LightningModule of a run; see `DFLModule`."""

    local_epochs: int
    local_steps: int | None
    batch_size: int | Literal["full"]
    batch_growth: int | None
    finetune_epochs: int
    objective: Any
    on_divergence: Any
    history: dict[str, Any]
    last_fit: Fit | None
    sources: dict[str, ModuleSource]
    parts: RunParts
    client_warnings: ClientWarnings

    @property
    def federation(self) -> Federation:
        """The data, topology, network and policies of the run."""

    @property
    def bank(self) -> Bank:
        """The clients' models."""

    @property
    def engine(self) -> Engine:
        """The engine, which trains and evaluates models."""

    @property
    def duration(self) -> Duration:
        """The length of a client's local training in a round."""

    @property
    def is_set_up(self) -> bool:
        """True if a run is set up, with an engine and the clients' models."""

    @property
    def hyperparameters(self) -> Hyperparameters:
        """The options of the optimizer's groups in the round after the last boundary."""

    @property
    def device(self) -> Any:
        """The device of the run."""

    def begin_anew(self) -> None:
        """Make the next fit begin at round 0."""

    def catch_up_schedule(self) -> Hyperparameters:
        """Move the schedule to the bank's round; return the options of the optimizer's groups in it."""

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that a checkpoint, as Lightning reads it, is of this run, and restore its metrics and history."""


class RunTrainer(Protocol):
    """The Trainer of a run; see `DFLTrainer`, and Lightning's Trainer for other attributes."""

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
        """The number of rounds; None or -1: only a signal or early stopping ends the run."""

    @property
    def is_global_zero(self) -> bool:
        """True in the process that writes files."""

    @property
    def keeps_checkpoints(self) -> bool:
        """True if the run saves checkpoints, so that it can be resumed."""

    @property
    def callback_metrics(self) -> Any:
        """The values that were logged last, by name."""

    @property
    def lightning_module(self) -> Any:
        """The module."""

    @property
    def run(self) -> Any:
        """The run folder."""

    @property
    def run_folder(self) -> Any:
        """The callback that writes the run folder; None: the run has no folder."""

    def policies(self) -> Iterator[Any]:
        """Iterate over the policies that take part."""

    def prepare(self, module: Any, datamodule: Any) -> None:
        """Set the run up without training.

        Args:
            module: the clients' models and training.
            datamodule: the clients' data.
        """

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Write the boundary as a checkpoint.

        Args:
            filepath: path of the checkpoint.
            weights_only: see Lightning's Trainer.
            storage_options: see Lightning's Trainer.
        """
