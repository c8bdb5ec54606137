"""Evaluations by a trainer: of the models of the last fit, of its best ones, or of those of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from dfl_lightning.bank.card import gpu_failures, one_sentence
from dfl_lightning.checkpoints.io import checkpoint_of
from dfl_lightning.data import FederatedData
from dfl_lightning.distributed.connection import connected
from dfl_lightning.engines.float32 import float32_arithmetic
from dfl_lightning.trainer_callbacks import that_choose
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.lightning_warnings import quiet_lightning


class ClientEvaluations(Trainer):
    """A Trainer that evaluates the models of clients on their own data."""

    @property
    def _arithmetic(self) -> AbstractContextManager[None]:
        """The context that sets torch's precision of float32 products and convolutions during the run."""
        return float32_arithmetic(tf32=self.precision == "tf32")

    def validate(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: LightningDataModule | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Evaluate a checkpoint's models, or the module's present ones, on the clients' own data.

        Args:
            model: a `DFLModule`; default: that of the last fit, with the best models if a `ModelCheckpoint` of the
                trainer monitors a score, as in Lightning.
            dataloaders: not used, except that the datamodule may be given here, as Lightning allows.
            ckpt_path: a checkpoint, a run folder with one, `best` or `last`; default: the module's present models.
            verbose: print Lightning's table of means.
            datamodule: the clients' data; default: those of the last fit.
            weights_only: None or true; no code in a checkpoint is ever run.

        Returns:
            A list with a mapping from names of scores to means over clients.
        """
        refuse_code(weights_only)
        datamodule = clients_data("validate", dataloaders, datamodule or getattr(self, "datamodule", None))
        with self._evaluation():
            return super().validate(model, None, last_checkpoint(ckpt_path), verbose, datamodule)

    def test(
        self,
        model: LightningModule | None = None,
        dataloaders: Any = None,
        ckpt_path: str | Path | None = None,
        verbose: bool = True,
        datamodule: LightningDataModule | None = None,
        weights_only: bool | None = None,
    ) -> Any:
        """Evaluate a checkpoint's models, or the module's present ones; see `validate` for the arguments."""
        refuse_code(weights_only)
        datamodule = clients_data("test", dataloaders, datamodule or getattr(self, "datamodule", None))
        with self._evaluation():
            return super().test(model, None, last_checkpoint(ckpt_path), verbose, datamodule)

    def predict(self, *args: Any, **kwargs: Any) -> Any:
        """Raise an error that says how to predict: every client has a model of its own.

        Args:
            args: not used.
            kwargs: not used.

        Raises:
            UserError: always.
        """
        raise UserError(
            "DFLTrainer.predict: every client has a model of its own; load one into a plain network, "
            "network = trainer.run.model(client, network), and call network(inputs)"
        )

    @contextmanager
    def _evaluation(self) -> Iterator[None]:
        """Prepare an evaluation; callbacks that choose models keep their state, whatever a checkpoint restores."""
        choosing = that_choose(self.callbacks)  # type: ignore[attr-defined]
        states = [callback.state_dict() for callback in choosing]
        with quiet_lightning(), one_sentence(), gpu_failures(), self._arithmetic, connected():
            try:
                yield
            finally:
                for callback, state in zip(choosing, states, strict=True):
                    callback.load_state_dict(state)


def no_data(method: str) -> UserError:
    """Make the error of a method of the trainer that gets no clients' data."""
    return UserError(f"DFLTrainer.{method} takes clients' data as datamodule=..., one of dfl_lightning.data")


def clients_data(method: str, dataloaders: Any, datamodule: Any) -> FederatedData:
    """Return the clients' data, given as `datamodule` or, as Lightning allows, as the second argument."""
    if isinstance(dataloaders, FederatedData):
        dataloaders, datamodule = None, dataloaders
    if dataloaders is not None or not isinstance(datamodule, FederatedData):
        raise no_data(method)
    return datamodule


def last_checkpoint(path: str | Path | None) -> str | Path | None:
    """Replace a run folder by its last checkpoint; return anything else, such as Lightning's `best`, as it is."""
    return str(checkpoint_of(path)) if path is not None and Path(path).is_dir() else path


def refuse_code(weights_only: bool | None) -> None:
    """Refuse Lightning's option to run code that is in a checkpoint."""
    if weights_only is False:
        raise UserError(
            "weights_only=False would run code of the checkpoint, and checkpoints here have none; leave it out"
        )
