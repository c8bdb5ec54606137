"""Checkpoints: a round boundary each, written so that a killed run never loses the one before, and read with care.

Everything that is taken from a checkpoint has been compared with the checksum that was written with it.
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
from dfl_lightning.round.hosts import RunModule, RunTrainer
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
"""What a checkpoint says about its run, and the types of that."""

FORMAT = 4
"""Of what `dfl_lightning` adds to a checkpoint; another number is refused.

Since 3, policies keep lists of links; since 4, a checkpoint has checksums of the data and the readers of the number of
rounds.
"""

SMALL = 2**20
"""Bytes of a part of a file that is compared with its checksum even where the rows, the largest parts, are not read."""


class AtomicCheckpointIO(RowsCheckpointIO, TorchCheckpointIO):
    """Writes under a temporary name, syncs, renames; keeps the predecessor of `last.ckpt` as `previous.ckpt`.

    Reads with `weights_only=True`: a file cannot run code.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Serialise in memory, then write."""
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
        """See `read_checkpoint`."""
        return read_checkpoint(path, map_location)

    def read(
        self, path: Any, map_location: Any = "cpu", mmap: bool | None = None, verify: bool = True
    ) -> dict[str, Any]:
        """See `read_checkpoint`."""
        return read_checkpoint(path, map_location, mmap, verify)

    def remove_checkpoint(self, path: Any) -> None:
        """Of any kind."""
        _remove(Path(path))


class ShardedCheckpointIO(AtomicCheckpointIO):
    """Writes a folder instead of a file, every process its own clients' rows; as whole, or not at all.

    Args:
        bank: of the run.
    """

    in_pieces = True

    def __init__(self, bank: Callable[[], Bank]) -> None:
        super().__init__()
        self._bank = bank

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Called by all processes."""
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
                shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint, on a disk that may be full
            raise
        with ranks.together():
            if ranks.rank == 0:
                if target.name == LAST and target.exists():
                    _keep(target, target.with_name(PREVIOUS))
                _remove(target)
                temporary.replace(target)
                sync_folder(target.parent)


def _remove(path: Path) -> None:
    """Whatever it is."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _keep(file: Path, name: Path) -> None:
    """Give a file a second name, replacing what had it; a copy where the file system has no hard links.

    A folder cannot have two names, and is renamed.
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
        temporary.unlink(missing_ok=True)  # a copy that did not fit; or both were names of one file: nothing is renamed
    sync_folder(name.parent)


def read_checkpoint(
    path: str | os.PathLike[str], map_location: Any = "cpu", mmap: bool | None = None, verify: bool = True
) -> dict[str, Any]:
    """A checkpoint's content; runs no code of the file.

    Args:
        path: the file.
        map_location: of `torch.load`.
        mmap: read rows only when they are used.
        verify: compare the rows with their checksums; a folder's are always compared when they are used.

    Raises:
        UserError: no such file, or a damaged or foreign one; its predecessor is named where it is whole.
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
    except Exception as error:  # what a torn or malicious file can raise is not documented
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
    """What a checkpoint says about its run; its rows are neither read nor verified before they are used.

    Raises:
        UserError: see `read_checkpoint`.
    """
    return read_checkpoint(path, mmap=True, verify=False)


def _not_whole(file: Path, error: Exception) -> DamagedCheckpoint:
    """The sentence about a damaged checkpoint."""
    why = str(error) if isinstance(error, Damaged) else type(error).__name__
    return _unusable(file, f"{file}: not a whole checkpoint ({why})")


def _unusable(file: Path, sentence: str) -> DamagedCheckpoint:
    previous, is_whole = _predecessor(file)
    hint = "" if previous is None else f"; the one before it is {previous}"
    if previous is not None and not is_whole:
        hint = f"; the one before it, {previous}, is not whole either"
    return DamagedCheckpoint(sentence + hint, previous if is_whole else None)


def _predecessor(file: Path) -> tuple[Path | None, bool]:
    """The checkpoint before this one, if there is one, and whether it is whole: it is read to be sure."""
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
    """What a checkpoint of ours must have and this one has not, in words; empty if nothing."""
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
    """Whether there is something of that name that can be one: a file, or a folder of pieces."""
    return path.is_file() or (path / META).is_file()


def checkpoint_of(path: str | os.PathLike[str]) -> Path:
    """The checkpoint that a path means: the last one of a run folder, else the path itself."""
    run = Path(path)
    is_run = run.is_dir() and not is_checkpoint(run) and ((run / FOLDER).is_dir() or (run / "metrics.csv").is_file())
    return run / FOLDER / LAST if is_run else run


def run_of(checkpoint: str | os.PathLike[str] | None) -> Path | None:
    """The run folder of a checkpoint, as the user wrote it if that is the same; None: it is in no run folder."""
    if checkpoint is None or not is_checkpoint(Path(checkpoint)):
        return None
    home, written = Path(checkpoint).resolve().parent.parent, Path(checkpoint).parent.parent
    if not any((home / name).is_file() for name in ("metrics.csv", "split.npz")):  # one of them may be moved away
        return None
    return written if written.resolve() == home else home


def rounds_in(path: Path) -> int:
    """Rounds completed in a checkpoint file."""
    return int(look_at_checkpoint(path)["state_dict"]["bank.progress"][0])


class RoundCheckpoint(Checkpoint, RoundCallback):
    """Saves `checkpoints/last.ckpt` every `trainer.checkpoint_every` rounds, at the end, and when the run is ended."""

    def __init__(self) -> None:
        self._saved: tuple[Path, int, bool] | None = None

    @property
    def saved(self) -> str:
        """What of the run is saved, and how to go on from there, in words."""
        if self._saved is None:
            return "nothing of the run is saved"
        file, rounds, _ = self._saved
        done = f"{rounds} complete round{'s are' if rounds > 1 else ' is'} saved"
        return f"{done}; go on with dfl-fit --ckpt_path {shlex.quote(str(file.parent.parent))}"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The checkpoint that a run resumes is saved already; saving it again would replace its predecessor."""
        if trainer.resumed_from is None or trainer.run.path is None:
            return
        file = trainer.run.path / FOLDER / LAST
        if file.resolve() == Path(trainer.resumed_from).resolve():
            boundary = pl_module.bank.boundary
            self._saved = (file, boundary.round, boundary.closed)

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Save where it is due."""
        if module.bank.boundary.round % trainer.checkpoint_every == 0:
            self._save(trainer, module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Save the last boundary."""
        self._save(trainer, pl_module)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Save the last boundary, whatever went wrong after it."""
        bank = getattr(pl_module, "bank", None)
        if trainer.state.fn != "fit" or bank is None or not trainer.run.is_open:
            return
        if bank.written_in_place() is not None:
            return  # these are no longer the models of a complete round; what was saved before is
        if bank.ranks.count == 1 or bank.ranks.stopped_together:  # else the others are elsewhere, or nowhere
            self._save(trainer, pl_module)

    def _save(self, trainer: RunTrainer, module: RunModule) -> None:
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
