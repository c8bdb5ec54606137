"""Checkpoints in pieces: folders into which each process writes the rows of its own cohorts.

`meta.pt` has the content of a checkpoint in one file, without rows. The rows are tensors of
torch.distributed.checkpoint, one for each row set and cohort, so that any number of processes can read those that they
need. `meta.pt` also has a checksum of each tensor, computed by the process that writes it, and compared by the process
that reads it.
"""

from __future__ import annotations

import pickle
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.distributed.connection import shown
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.checksums import Damaged, check_archive, checksum, written_with_checksums
from dfl_lightning.utils.storage.files import sync_folder, write_atomically

META, ABOUT_PIECES = "meta.pt", ".metadata"
PIECES_AT_ONCE = 16
"""Cohorts whose rows are read into memory at a time."""

ROWS = "bank.rows."
KNOWN = {
    ("pathlib", "PosixPath"),
    ("pathlib", "WindowsPath"),
    ("pathlib._local", "PosixPath"),
    ("pathlib._local", "WindowsPath"),
    ("torch", "Size"),
    ("torch", "float32"),
    ("torch", "float64"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "Metadata"),
    ("torch.distributed.checkpoint.metadata", "MetadataIndex"),
    ("torch.distributed.checkpoint.metadata", "StorageMeta"),
    ("torch.distributed.checkpoint.metadata", "TensorProperties"),
    ("torch.distributed.checkpoint.metadata", "TensorStorageMetadata"),
    ("torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"),
    ("torch.serialization", "_get_layout"),
}
"""The classes in torch's description of the pieces: it is a pickle, which could name any other class or function."""


class _KnownOnly(pickle.Unpickler):
    """Unpickler that refuses all classes and functions but those in `KNOWN`."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"names {module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """Reader of the pieces that runs no code from their description, and refuses missing, torn or outside files."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        folder = Path(self.path)
        with open(folder / ABOUT_PIECES, "rb") as file:
            about = _KnownOnly(file).load()
        ends: dict[str, int] = {}
        for info in about.storage_data.values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        for name, end in ends.items():
            if Path(name).name != name or not (folder / name).is_file():
                raise Damaged(f"{name} is missing")
            if (folder / name).stat().st_size < end:
                raise Damaged(f"{name} is not whole")
        about.storage_meta.load_id = self.load_id
        return about


def write_shards(folder: Path, content: dict[str, Any], cohorts: Sequence[Tensor], ranks: Ranks) -> None:
    """Write a checkpoint in pieces; all processes call this at the same time.

    Args:
        folder: a folder that does not exist yet.
        content: the checkpoint, whose row sets [own, width] have the rows of this process.
        cohorts: node ids of each cohort, long; all of a cohort's rows are in one process.
        ranks: the processes.
    """
    with ranks.together():
        if ranks.rank == 0:
            folder.mkdir()
    sets = {key.removeprefix(ROWS): rows for key, rows in content["state_dict"].items() if key.startswith(ROWS)}
    keys = [_key(name, number) for name in sets for number in range(len(cohorts))]
    pieces = {
        _key(name, number): rows[torch.searchsorted(ranks.own, cohort).to(rows.device)].cpu()
        for name, rows in sets.items()
        for number, cohort in enumerate(cohorts)
        if int(ranks.owner[cohort[0]]) == ranks.rank
    }
    with ThreadPoolExecutor(1) as background:  # the checksums need a processor, and writing mostly waits for a disk
        sums = background.submit(lambda: [checksum(pieces[key]) if key in pieces else 0 for key in keys])
        with _no_warning_of_one_process(), shown():
            try:
                dcp.save(pieces, storage_writer=FileSystemWriter(folder, sync_files=True), no_dist=ranks.count == 1)
            except CheckpointException as error:  # torch's collection of the errors of all processes
                first = next(iter(error.failures.values()))[0]
                raise first if isinstance(first, OSError) else error from None
    mine = torch.tensor([number for number, key in enumerate(keys) if key in pieces], dtype=torch.long)
    [checksums] = ranks.join(mine, [torch.tensor(sums.result())])
    with ranks.together():
        if ranks.rank == 0:
            state = {key: value for key, value in content["state_dict"].items() if not key.startswith(ROWS)}
            about = {
                "cohorts": list(cohorts),
                "sets": {name: (rows.shape[1], rows.dtype) for name, rows in sets.items()},
                "checksums": dict(zip(keys, checksums.tolist(), strict=True)),
                "checksum": zlib.crc32((folder / ABOUT_PIECES).read_bytes()),
            }
            with written_with_checksums():
                whole = {**content, "state_dict": state, "pieces": about}
                write_atomically(folder / META, lambda file: torch.save(whole, file))
            sync_folder(folder)


def read_shards(folder: Path, map_location: Any, refusal: Callable[[Exception], UserError]) -> dict[str, Any]:
    """Read a checkpoint in pieces; its rows are read, and compared with their checksums, when they are used.

    Args:
        folder: the checkpoint.
        map_location: see `torch.load`.
        refusal: makes the error about damaged rows from the error that reading them has raised.

    Returns:
        The content of the checkpoint, with a `ShardedRows` for each row set.

    Raises:
        Exception: a file is missing or torn; the error can be of many types.
    """
    check_archive(folder / META)
    content = torch.load(folder / META, map_location=map_location, weights_only=True)
    pieces = content.pop("pieces")
    if zlib.crc32((folder / ABOUT_PIECES).read_bytes()) != pieces["checksum"]:
        raise Damaged(f"the checksum of {ABOUT_PIECES} does not match")
    files = {index.fqn: info.relative_path for index, info in _Reader(folder).read_metadata().storage_data.items()}
    for name in pieces["sets"]:
        content["state_dict"][ROWS + name] = ShardedRows(folder, name, pieces, files, refusal)
    return content


class ShardedRows:
    """A row set in the pieces of a checkpoint; `rows[nodes]` reads those nodes' rows.

    Args:
        folder: the checkpoint.
        name: name of the row set.
        pieces: entries of `meta.pt`: `cohorts`, the nodes of each piece, `sets`, width and type of rows, `checksums`.
        files: name of the file of each piece.
        refusal: see `read_shards`.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        pieces: dict[str, Any],
        files: dict[str, str],
        refusal: Callable[[Exception], UserError],
    ) -> None:
        self._folder, self._name, self._files, self._refusal = folder, name, files, refusal
        self._cohorts, self._checksums = list(pieces["cohorts"]), pieces["checksums"]
        width, self.dtype = pieces["sets"][name]
        self.shape = (sum(map(len, self._cohorts)), width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, nodes: Tensor | int) -> Tensor:
        """Return the rows of some nodes, [len(nodes), width], or one row [width]; a few pieces at a time are read.

        Raises:
            UserError: a piece is damaged.
        """
        if isinstance(nodes, int):
            return self[torch.tensor([nodes])][0]
        rows = torch.empty(len(nodes), self.shape[1], dtype=self.dtype)
        cohort_of, index_in = torch.empty(2, len(self), dtype=torch.long)
        for number, cohort in enumerate(self._cohorts):
            cohort_of[cohort], index_in[cohort] = number, torch.arange(len(cohort))
        for some in cohort_of[nodes].unique().split(PIECES_AT_ONCE):
            pieces = self._read(some.tolist())
            for number, piece in zip(some.tolist(), pieces, strict=True):
                wanted = torch.nonzero(cohort_of[nodes] == number).squeeze(1)
                rows[wanted] = piece[index_in[nodes[wanted]]]
        return rows

    def check(self) -> None:
        """Read all pieces, to compare them with their checksums.

        Raises:
            UserError: a piece is damaged.
        """
        for some in torch.arange(len(self._cohorts)).split(PIECES_AT_ONCE):
            self._read(some.tolist())

    def _read(self, numbers: Sequence[int]) -> list[Tensor]:
        """Read the pieces of some cohorts, [nodes, width] each, and compare them with their checksums."""
        pieces = {
            _key(self._name, number): torch.empty(len(self._cohorts[number]), self.shape[1], dtype=self.dtype)
            for number in numbers
        }
        try:
            with _no_warning_of_one_process():
                dcp.load(pieces, storage_reader=_Reader(self._folder), no_dist=True)
            for key, piece in pieces.items():
                if checksum(piece) != self._checksums[key]:
                    raise Damaged(f"{self._files[key]}: the checksum of '{key}' does not match")
        except Damaged as error:
            raise self._refusal(error) from None
        except (Exception, CheckpointException) as error:  # torch's collection of errors does not derive from Exception
            files = ", ".join(sorted({self._files.get(key, key) for key in pieces}))
            raise self._refusal(Damaged(f"{files}: {_error_name(error)}")) from None
        return list(pieces.values())


def _error_name(error: BaseException) -> str:
    """Return the class name of an error, or of the first one in torch's collection of errors."""
    if isinstance(error, CheckpointException) and error.failures:
        return type(next(iter(error.failures.values()))[0]).__name__
    return type(error).__name__


@contextmanager
def _no_warning_of_one_process() -> Iterator[None]:
    """Suppress torch's warning that a single process reads or writes."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load) in a single process")
        yield


def _key(name: str, number: int) -> str:
    return f"{name}/{number}"
