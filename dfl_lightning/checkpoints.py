"""Checkpoints: a round boundary each, written so that a killed run never loses the one before."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from dfl_lightning.errors import UserError
from dfl_lightning.files import sync_folder, write_atomically
from dfl_lightning.round import RoundCallback

if TYPE_CHECKING:
    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer

FOLDER, LAST, PREVIOUS = "checkpoints", "last.ckpt", "previous.ckpt"


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes under a temporary name, syncs, renames; keeps the predecessor of `last.ckpt` as `previous.ckpt`.

    Reads with `weights_only=True`: a file cannot run code.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None) -> None:
        """Serialise in memory, then write."""
        buffer = io.BytesIO()
        torch.save(checkpoint, buffer)
        target = Path(path)
        if target.name == LAST and target.exists():
            link = target.with_name(f".{PREVIOUS}.{os.getpid()}.tmp")
            link.unlink(missing_ok=True)
            os.link(target, link)
            os.replace(link, target.with_name(PREVIOUS))
            sync_folder(target.parent)
        write_atomically(target, lambda file: file.write(buffer.getbuffer()))

    def load_checkpoint(self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: bool | None = None) -> Any:
        """See `read_checkpoint`."""
        return read_checkpoint(path, map_location)


def read_checkpoint(path: str | os.PathLike[str], map_location: Any = "cpu") -> dict[str, Any]:
    """A checkpoint's content; runs no code of the file.

    Raises:
        UserError: no such file, or a torn or foreign one; its predecessor is named where it is whole.
    """
    file = Path(path)
    if not file.is_file():
        raise UserError(f"{path}: no such checkpoint")
    try:
        content = torch.load(file, map_location=map_location, weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        previous = file.with_name(PREVIOUS)
        hint = f"; the one before it is {previous}" if previous.is_file() and previous != file else ""
        raise UserError(f"{path}: not a whole checkpoint ({type(error).__name__}){hint}") from None
    if not isinstance(content, dict) or "dfl_lightning" not in content:
        raise UserError(f"{path}: not a checkpoint of dfl_lightning")
    return content


def rounds_in(path: Path) -> int:
    """Rounds completed in a checkpoint file."""
    return int(read_checkpoint(path)["state_dict"]["bank.progress"][0])


class RoundCheckpoint(Checkpoint, RoundCallback):
    """Saves `checkpoints/last.ckpt` every `trainer.checkpoint_every` rounds, at the end, and when the run is ended."""

    def __init__(self) -> None:
        self._saved_round: int | None = None

    def on_boundary(self, trainer: DFLTrainer, module: DFLModule) -> None:
        """Save where it is due."""
        if module.bank.boundary.round % trainer.checkpoint_every == 0:
            self._save(trainer, module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last boundary."""
        self._save(trainer, pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save the last boundary, whatever went wrong after it."""
        if trainer.state.fn == "fit" and getattr(pl_module, "bank", None) is not None and trainer.run.is_open:
            self._save(trainer, pl_module)

    def _save(self, trainer: DFLTrainer, module: DFLModule) -> None:
        boundary = module.bank.boundary
        state = boundary.round if boundary.closed else -boundary.round
        if state == self._saved_round or trainer.run.path is None or boundary.round == 0:
            return
        file = trainer.run.path / FOLDER / LAST
        try:
            trainer.save_checkpoint(file)
        except OSError as error:
            kept = "none" if self._saved_round is None else f"round {abs(self._saved_round)}"
            raise UserError(f"{file}: cannot be written ({error.strerror}); last saved: {kept}") from error
        self._saved_round = state
