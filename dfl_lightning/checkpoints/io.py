"""Checkpoints of round boundaries: the writer, which a killed run cannot leave without a whole one, and the reader.

Everything that is read from a checkpoint is compared with the checksum that was written with it.
"""

from __future__ import annotations

import io
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import Checkpoint

from dfl_lightning.checkpoints.names import FOLDER, LAST, PREVIOUS
from dfl_lightning.checkpoints.sharded import META, ShardedRows, read_shards, write_shards
from dfl_lightning.distributed.strategy import RowsCheckpointIO
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.utils.errors import DamagedCheckpoint, UserError
from dfl_lightning.utils.storage.checksums import Damaged, check_archive, written_with_checksums
from dfl_lightning.utils.storage.files import sync_folder, write_atomically

if TYPE_CHECKING:
    from dfl_lightning.bank.bank import Bank

ABOUT = {
    **{"metrics": dict, "network": dict, "clients": int, "nodes": int, "seed": int, "data": str, "rows": str},
    **{"row sets": list, "reported": str, "of_server": bool, "policies": dict, "config": dict},
    **{"checksums": dict, "rounds": dict},
}
"""Entries of a checkpoint about its run, and their types."""

FORMAT = 4
"""Format of the entries that `dfl_lightning` adds to a checkpoint; checkpoints with another number are refused."""

SMALL = 2**20
"""The largest part of a file, in bytes, that is compared with its checksum even if the rows are not read."""


class AtomicCheckpointIO(RowsCheckpointIO, TorchCheckpointIO):
    """Reader and writer of checkpoints in one file, which is never incomplete under its final name.

    It is written under a temporary name, synced to the disk and renamed; the former `last.ckpt` becomes
    `previous.ckpt`. It is read with `weights_only=True`, so that a file cannot run code.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint, after all of it is serialised in memory."""
        buffer = io.BytesIO()
        with written_with_checksums():
            torch.save(checkpoint, buffer)
        target = Path(path)
        if target.name == LAST and target.exists():
            _keep(target, target.with_name(PREVIOUS))
        write_atomically(target, lambda file: file.write(buffer.getbuffer()))

    def load_checkpoint(
        self, path: Any, map_location: Any = lambda storage, loc: storage, weights_only: bool | None = None
    ) -> Any:
        """Read a checkpoint by `read_checkpoint`, which always uses `weights_only=True`."""
        return read_checkpoint(path, map_location)

    def read(
        self, path: Any, map_location: Any = "cpu", mmap: bool | None = None, verify: bool = True
    ) -> dict[str, Any]:
        """Read a checkpoint by `read_checkpoint`, with the choice of what is verified."""
        return read_checkpoint(path, map_location, mmap, verify)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a checkpoint, a file or a folder."""
        _remove(Path(path))


class ShardedCheckpointIO(AtomicCheckpointIO):
    """Reader and writer of checkpoints as folders, into which each process writes the rows of its clients.

    The folder gets its final name when all processes have finished.

    Args:
        bank: called for the run's bank, which does not exist yet when this object is made.
    """

    in_pieces = True

    def __init__(self, bank: Callable[[], Bank]) -> None:
        super().__init__()
        self._bank = bank

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write a checkpoint as a folder; all processes call this at the same time."""
        bank, target = self._bank(), Path(path)
        ranks = bank.ranks
        temporary = target.with_name(f".{target.name}.tmp")
        with ranks.together():
            if ranks.rank == 0:
                target.parent.mkdir(parents=True, exist_ok=True)
                _remove(temporary)
        servers = [torch.tensor([node]) for node in range(bank.num_clients, bank.num_nodes)]
        cohorts = [*(cohort.sort().values for cohort in bank.cohorts), *servers]
        try:
            write_shards(temporary, checkpoint, cohorts, ranks)
        except BaseException:
            if ranks.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)  # to free the space, since the disk may be full
            raise
        with ranks.together():
            if ranks.rank == 0:
                if target.name == LAST and target.exists():
                    _keep(target, target.with_name(PREVIOUS))
                _remove(target)
                temporary.replace(target)
                sync_folder(target.parent)


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it exists."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _keep(file: Path, name: Path) -> None:
    """Give a file a second name, by a hard link or, if the file system has none, a copy.

    A folder cannot have two names, so it is renamed. An earlier file or folder of that name is replaced.
    """
    if name.is_dir():
        shutil.rmtree(name)
    if file.is_dir():
        name.unlink(missing_ok=True)
        file.replace(name)
        return
    temporary = name.with_name(f".{name.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        try:
            os.link(file, temporary)
        except OSError:
            shutil.copyfile(file, temporary)
        os.replace(temporary, name)
    finally:
        temporary.unlink(missing_ok=True)  # it still exists if the copy failed, or if both names are links to one file
    sync_folder(name.parent)


def read_checkpoint(
    path: str | os.PathLike[str], map_location: Any = "cpu", mmap: bool | None = None, verify: bool = True
) -> dict[str, Any]:
    """Read the content of a checkpoint, without running code of the file.

    Args:
        path: the checkpoint, a file or a folder.
        map_location: see `torch.load`.
        mmap: True if rows are read only when they are used.
        verify: compare the rows with their checksums; those of a folder are always compared, when they are used.

    Raises:
        UserError: the checkpoint does not exist, is damaged, or is not of this library or its format. The message also
            names the checkpoint before it, and tells if that is whole.
    """
    file = Path(path)
    if not is_checkpoint(file):
        what = "no checkpoint; give a run folder or a checkpoint" if file.is_dir() else "no such checkpoint"
        raise _unusable(file, f"{path}: {what}")
    try:
        if file.is_dir():
            content = read_shards(file, map_location, lambda error: _not_whole(file, error))
        else:
            check_archive(file, largest=None if verify else SMALL)
            content = torch.load(file, map_location=map_location, weights_only=True, mmap=mmap)
    except Exception as error:  # it is not documented which errors a torn or malicious file can raise
        raise _not_whole(file, error) from None
    ours = content.get("dfl_lightning") if isinstance(content, dict) else None
    number = ours.get("format") if isinstance(ours, dict) else None
    if not isinstance(number, int):
        raise UserError(f"{path}: not a checkpoint of dfl_lightning")
    if number != FORMAT:
        raise UserError(
            f"{path}: a checkpoint of format {number}, and this version of dfl_lightning reads format {FORMAT}; "
            "use the version that wrote it"
        )
    missing = _missing(content)
    if missing:
        raise _not_whole(file, Damaged(f"without {missing}"))
    return content


def look_at_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read a checkpoint without its rows, which are read when they are used, and not verified.

    Raises:
        UserError: see `read_checkpoint`.
    """
    return read_checkpoint(path, mmap=True, verify=False)


def _not_whole(file: Path, error: Exception) -> DamagedCheckpoint:
    """Return the error about a checkpoint that cannot be read because of `error`."""
    why = str(error) if isinstance(error, Damaged) else type(error).__name__
    return _unusable(file, f"{file}: not a whole checkpoint ({why})")


def _unusable(file: Path, sentence: str) -> DamagedCheckpoint:
    """Return the error about an unusable checkpoint; the sentence is completed with the checkpoint before it."""
    previous, is_whole = _predecessor(file)
    hint = "" if previous is None else f"; the one before it is {previous}"
    if previous is not None and not is_whole:
        hint = f"; the one before it, {previous}, is not whole either"
    return DamagedCheckpoint(sentence + hint, previous if is_whole else None)


def _predecessor(file: Path) -> tuple[Path | None, bool]:
    """Return the checkpoint before `last.ckpt`, None without one, and True if it is whole, which reading it shows."""
    previous = file.with_name(PREVIOUS)
    if file.name != LAST or not is_checkpoint(previous):
        return None, False
    try:
        content = read_checkpoint(previous, mmap=True)
        for rows in content["state_dict"].values():
            if isinstance(rows, ShardedRows):
                rows.check()
    except UserError:
        return previous, False
    return previous, True


def _missing(content: dict[str, Any]) -> str:
    """Name the first entry that a checkpoint of this library must have and `content` lacks; empty if it is complete."""
    ours, state = content["dfl_lightning"], content.get("state_dict")
    if not isinstance(state, dict) or not isinstance(content.get("callbacks"), dict):
        return "state_dict or callbacks"
    for key, kind in ABOUT.items():
        if not isinstance(ours.get(key), kind):
            return f"'{key}'"
    progress = state.get("bank.progress")
    if not isinstance(progress, torch.Tensor) or progress.shape != (2,):
        return "its round"
    for name in ours["row sets"]:
        rows = state.get(f"bank.rows.{name}")
        if not isinstance(rows, torch.Tensor | ShardedRows) or len(rows.shape) != 2 or len(rows) != ours["nodes"]:
            return f"rows of '{name}' for {ours['nodes']} nodes"
    return ""


def is_checkpoint(path: Path) -> bool:
    """Return True if the path can be a checkpoint: a file, or a folder with the description of pieces."""
    return path.is_file() or (path / META).is_file()


def checkpoint_of(path: str | os.PathLike[str]) -> Path:
    """Return the path of the last checkpoint if `path` is a run folder, else `path` itself."""
    run = Path(path)
    is_run = run.is_dir() and not is_checkpoint(run) and ((run / FOLDER).is_dir() or (run / "metrics.csv").is_file())
    return run / FOLDER / LAST if is_run else run


def run_of(checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """Return the run folder of a checkpoint, as the user wrote it if possible; None if it is not in a run folder."""
    if checkpoint is None or not is_checkpoint(Path(checkpoint)):
        return None
    resolved, written = Path(checkpoint).resolve().parent.parent, Path(checkpoint).parent.parent
    if not any(
        (resolved / name).is_file() for name in ("metrics.csv", "split.npz")
    ):  # since the user may have moved one of them away
        return None
    return written if written.resolve() == resolved else resolved


def rounds_in(path: Path) -> int:
    """Return the number of complete rounds in a checkpoint."""
    return int(look_at_checkpoint(path)["state_dict"]["bank.progress"][0])


class RoundCheckpoint(Checkpoint, RoundCallback):
    """Callback that saves `checkpoints/last.ckpt` every `trainer.checkpoint_every` rounds and when the run ends."""

    def __init__(self) -> None:
        self._saved: tuple[Path, int, bool] | None = None

    @property
    def saved(self) -> str:
        """The number of saved rounds and the command that continues from there, as a phrase for messages."""
        if self._saved is None:
            return "nothing of the run is saved"
        file, rounds, _ = self._saved
        done = f"{rounds} complete round{'s are' if rounds > 1 else ' is'} saved"
        return f"{done}; continue with dfl-fit --ckpt_path {shlex.quote(str(file.parent.parent))}"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Note that the checkpoint that a run resumes is saved: saving it again would overwrite `previous.ckpt`."""
        if trainer.resumed_from is None or trainer.run.path is None:
            return
        file = trainer.run.path / FOLDER / LAST
        if file.resolve() == Path(trainer.resumed_from).resolve():
            boundary = pl_module.bank.boundary
            self._saved = (file, boundary.round, boundary.closed)

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Save the boundary if the number of rounds is a multiple of `trainer.checkpoint_every`."""
        if module.bank.boundary.round % trainer.checkpoint_every == 0:
            self._save(trainer, module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last boundary."""
        self._save(trainer, pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save the last boundary, if its models are unchanged and all processes can save."""
        bank = getattr(pl_module, "bank", None)
        if trainer.state.fn != "fit" or bank is None or not trainer.run.is_open:
            return
        if bank.written_in_place() is not None:
            return  # since its models were changed in place; the checkpoint before is still valid
        if (
            bank.ranks.count == 1 or bank.ranks.stopped_together
        ):  # else some processes may have ended, and saving needs all
            self._save(trainer, pl_module)

    def _save(self, trainer: RunTrainer, module: RunModule) -> None:
        """Save the last boundary, unless no round is complete or its checkpoint is there.

        Raises:
            UserError: the file cannot be written.
        """
        boundary = module.bank.boundary
        if trainer.run.path is None or boundary.round == 0:
            return
        file = trainer.run.path / FOLDER / LAST
        state = (file, boundary.round, boundary.closed)
        if state == self._saved and (is_checkpoint(file) or not trainer.is_global_zero):
            return
        try:
            trainer.save_checkpoint(file)
        except OSError as error:
            kept = "nothing" if self._saved is None else f"{self._saved[1]} rounds"
            raise UserError(f"{file}: cannot be written ({error.strerror}); saved before: {kept}") from error
        self._saved = state
