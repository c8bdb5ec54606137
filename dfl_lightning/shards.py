"""Checkpoints in pieces: a folder to which every process writes the rows of its own cohorts.

`meta.pt` holds what a checkpoint in one file does, without rows; the rows are tensors of torch.distributed.checkpoint,
one for each row set and cohort, so that any number of processes can read those that it needs.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.api import CheckpointException

from dfl_lightning.files import sync_folder, write_atomically

META = "meta.pt"
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
"""All that torch's description of the pieces is made of; it is a pickle, and could name anything else."""


class _Known(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in KNOWN:
            raise pickle.UnpicklingError(f"names {module}.{name}")
        return super().find_class(module, name)


class _Reader(FileSystemReader):
    """Reads a description without running anything that it names, and only files that are whole and in the folder."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        folder = Path(self.path)
        with open(folder / ".metadata", "rb") as file:
            about = _Known(file).load()
        ends: dict[str, int] = {}
        for info in about.storage_data.values():
            ends[info.relative_path] = max(ends.get(info.relative_path, 0), info.offset + info.length)
        for name, end in ends.items():
            if Path(name).name != name or (folder / name).stat().st_size < end:
                raise EOFError(f"{name} is not whole")
        about.storage_meta.load_id = self.load_id
        return about


def write_shards(
    folder: Path, content: dict[str, Any], cohorts: Sequence[Tensor], owner: Tensor, rank: int, processes: int
) -> None:
    """Write a checkpoint in pieces; all processes do this at once.

    Args:
        folder: does not exist.
        content: a checkpoint whose rows, [own, width], are those of this process.
        cohorts: of nodes, long each; a process has all of a cohort or nothing.
        owner: long [n], the process of each node.
        rank: this process.
        processes: number of processes.
    """
    if rank == 0:
        folder.mkdir()
    _wait(processes)
    sets = {key.removeprefix(ROWS): rows for key, rows in content["state_dict"].items() if key.startswith(ROWS)}
    own = torch.nonzero(owner == rank).squeeze(1)
    pieces = {
        _key(name, number): rows[torch.searchsorted(own, cohort).to(rows.device)].cpu()
        for name, rows in sets.items()
        for number, cohort in enumerate(cohorts)
        if int(owner[cohort[0]]) == rank
    }
    with _alone():
        try:
            dcp.save(pieces, storage_writer=FileSystemWriter(folder, sync_files=True), no_dist=processes == 1)
        except CheckpointException as error:  # torch's collection of what went wrong in each process
            first = next(iter(error.failures.values()))[0]
            raise first if isinstance(first, OSError) else error from None
    if rank == 0:
        state = {key: value for key, value in content["state_dict"].items() if not key.startswith(ROWS)}
        about = {name: (rows.shape[1], rows.dtype) for name, rows in sets.items()}
        whole = {**content, "state_dict": state, "pieces": {"cohorts": list(cohorts), "sets": about}}
        write_atomically(folder / META, lambda file: torch.save(whole, file))
        sync_folder(folder)
    _wait(processes)


def read_shards(folder: Path, map_location: Any = "cpu") -> dict[str, Any]:
    """A checkpoint in pieces; its rows are read when they are asked for.

    Raises:
        Exception: something is missing or torn; of many kinds.
    """
    content = torch.load(folder / META, map_location=map_location, weights_only=True)
    pieces = content.pop("pieces")
    _Reader(folder).read_metadata()
    for name, (width, dtype) in pieces["sets"].items():
        content["state_dict"][ROWS + name] = ShardedRows(folder, name, pieces["cohorts"], width, dtype)
    return content


class ShardedRows:
    """A row set in the pieces of a checkpoint; `rows[nodes]` reads those nodes' rows.

    Args:
        folder: the checkpoint.
        name: of the row set.
        cohorts: the nodes of each piece.
        width: of a row.
        dtype: of the rows.
    """

    def __init__(self, folder: Path, name: str, cohorts: Sequence[Tensor], width: int, dtype: torch.dtype) -> None:
        self._folder, self._name, self._cohorts, self.dtype = folder, name, list(cohorts), dtype
        self.shape = (sum(map(len, cohorts)), width)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, nodes: Tensor | int) -> Tensor:
        """Rows [len(nodes), width], or one row [width]; a few pieces at a time are read."""
        if isinstance(nodes, int):
            return self[torch.tensor([nodes])][0]
        found = torch.empty(len(nodes), self.shape[1], dtype=self.dtype)
        number_of, place = torch.empty(2, len(self), dtype=torch.long)
        for number, cohort in enumerate(self._cohorts):
            number_of[cohort], place[cohort] = number, torch.arange(len(cohort))
        for some in number_of[nodes].unique().split(PIECES_AT_ONCE):
            pieces = {
                _key(self._name, number): torch.empty(len(self._cohorts[number]), self.shape[1], dtype=self.dtype)
                for number in some.tolist()
            }
            with _alone():
                dcp.load(pieces, storage_reader=_Reader(self._folder), no_dist=True)
            for number in some.tolist():
                wanted = torch.nonzero(number_of[nodes] == number).squeeze(1)
                found[wanted] = pieces[_key(self._name, number)][place[nodes[wanted]]]
        return found


@contextmanager
def _alone() -> Iterator[None]:
    """Without torch's warning that one process reads or writes by itself."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*assuming the intent is to (save|load) in a single process")
        yield


def _key(name: str, number: int) -> str:
    return f"{name}/{number}"


def _wait(processes: int) -> None:
    if processes > 1:
        dist.barrier()
