"""Reading and writing of `split.npz`, a file that repeats a split exactly."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.ownership import refuse_shared_images
from dfl_lightning.data.splits.split import Split
from dfl_lightning.data.target_counts import target_counts
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage.files import read_npz, write_npz

__all__ = ["origin", "read_split", "write_split"]

FORMAT = 2
"""Version of the file format; others are refused."""
PARTS = ("train", "val", "test")
KINDS = {
    "rotation": "fiu",
    "label_map": "iu",
    "test_label_map": "iu",
    "clusters": "iu",
    "adversaries": "b",
    "writers": "U",
}
COLUMNS = ("input_means", "input_deviations", "target_means", "target_deviations")
CLIENTS_COLUMNS = ("client_means", "client_deviations")
OPTIONAL = (*KINDS, *COLUMNS, *CLIENTS_COLUMNS)
_MOST_BYTES = 64 * 10**6  # in addition to the size that follows from the data


def write_split(path: str | Path, split: Split, source: Source) -> None:
    """Write a split atomically: under a temporary name, which is renamed when the file is complete.

    The arrays are `<part>_indices` and `<part>_offsets` for the parts train, val and test. Client i has the samples
    `indices[offsets[i]:offsets[i + 1]]` of the source's training samples; test indices refer to the official test set
    if `test_official`. `rotation`, `label_map`, `test_label_map`, `clusters`, `adversaries`, `writers`, `input_means`,
    `input_deviations`, `target_means`, `target_deviations`, `client_means` and `client_deviations` are empty if the
    split has none. `dataset`, `num_samples`, `num_test_samples`, `inputs_crc32`, `targets_crc32` and `names_crc32`
    identify the data; `partition` and `format` describe the split. `train_counts`, `target_edges` and `test_counts` are
    for readers only; see `target_counts`.

    Args:
        path: the npz file.
        split: the samples of each client and their transformations.
        source: the data set of the indices; its name, size and checksums are stored.

    Raises:
        UserError: the file cannot be written.
    """
    arrays: dict[str, np.ndarray] = {}
    for part in PARTS:
        lists: list[np.ndarray] = getattr(split, part)
        arrays[f"{part}_indices"] = np.concatenate(lists).astype(np.int64)
        arrays[f"{part}_offsets"] = np.cumsum([0] + [len(indices) for indices in lists], dtype=np.int64)
    for name in OPTIONAL:
        value = getattr(split, name)
        arrays[name] = np.empty(0) if value is None else value
    arrays |= target_counts(source, split)
    arrays |= origin(source)
    arrays |= {
        "test_official": np.array(split.test_official),
        "partition": np.array(split.partition),
        "format": np.array(FORMAT),
    }
    path = Path(path)
    try:
        write_npz(path, arrays, compressed=True)
    except OSError as error:
        raise UserError(
            f"{path}: the split cannot be written ({error}); choose another place or free the disk"
        ) from error


def origin(source: Source) -> dict[str, np.ndarray]:
    """Return the arrays of a split file that identify its data set.

    Args:
        source: the data set of the split.
    """
    return {
        "dataset": np.array(source.name),
        "num_samples": np.array(len(source.labels)),
        "num_test_samples": np.array(source.num_test),
        **{f"{what}_crc32": np.array(crc) for what, crc in source.fingerprint.items()},
    }


def read_split(path: str | Path, source: Source, num_clients: int) -> Split:
    """Read a split and check that it fits this data set and this number of clients.

    Args:
        path: the npz file.
        source: the data set of the run.
        num_clients: number of clients m of the run.

    Raises:
        UserError: the file is missing, malformed or made for other data or another number of clients.
    """
    path = Path(path)
    try:
        # The size is bounded: each sample of the source occurs once, each one of the official test set at most once for
        # each client, and there are tables of clients by classes.
        images = len(source.labels) + num_clients * source.num_test
        arrays = read_npz(path, most=_MOST_BYTES + 8 * images + 16 * num_clients * source.num_classes)
    except FileNotFoundError as error:
        raise UserError(f"data.split: {path} does not exist; give the split.npz of a run, or null") from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"data.split: {path} is not a split file ({reason(error)}); give the split.npz of a run"
        ) from error
    try:
        _check_origin(path, arrays, source)
        return _unpack(path, arrays, source, num_clients)
    except KeyError as error:
        raise UserError(f"data.split: {path} is malformed (no array {error}); give the split.npz of a run") from error
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise UserError(f"data.split: {path} is malformed ({reason(error)}); give the split.npz of a run") from error


def _check_origin(path: Path, arrays: dict[str, np.ndarray], source: Source) -> None:
    """Raise if a split file has another format or belongs to other data."""
    if (version := int(arrays["format"])) != FORMAT:
        raise UserError(f"data.split: {path} has format {version}, this version reads {FORMAT}; make the split again")
    if (name := str(arrays["dataset"])) != source.name:
        raise UserError(
            f"data.split: {path} divides {name}, but data is {source.name}; use data {name} or another split"
        )
    for field, number, what in (
        ("num_samples", len(source.labels), "samples"),
        ("num_test_samples", source.num_test, "test samples"),
    ):
        if (expected := int(arrays[field])) != number:
            raise UserError(
                f"data.split: {path} divides {source.name} with {expected} {what}, but data has {number}; "
                f"use the data it was made for or another split"
            )
    if (expected := int(arrays["targets_crc32"])) != (crc := source.fingerprint["targets"]):
        raise UserError(
            f"data.split: {path} divides a {source.name} with other labels (CRC-32 {expected}, data has "
            f"{crc}); use the data it was made for or another split"
        )


def _unpack(path: Path, arrays: dict[str, np.ndarray], source: Source, num_clients: int) -> Split:
    """Check the arrays of a split file and return the split.

    Raises:
        UserError: the split does not fit the run.
        ValueError: an array is malformed.
    """
    for name in (f"{part}_{what}" for part in PARTS for what in ("indices", "offsets")):
        if arrays[name].ndim != 1 or arrays[name].dtype.kind not in "iu":
            raise ValueError(f"{name} is {arrays[name].dtype} {list(arrays[name].shape)}")
    clients = len(arrays["train_offsets"]) - 1
    if clients != num_clients:
        raise UserError(
            f"data.split: {path} has {clients} clients, but num_clients is {num_clients}; set num_clients: {clients}"
        )
    parts: dict[str, list[np.ndarray]] = {}
    for part in PARTS:
        indices, offsets = arrays[f"{part}_indices"].astype(np.int64), arrays[f"{part}_offsets"].astype(np.int64)
        if (
            len(offsets) != clients + 1
            or offsets[0] != 0
            or offsets[-1] != len(indices)
            or (np.diff(offsets) < 0).any()
        ):
            raise ValueError(f"{part}_offsets do not fit {clients} clients and {len(indices)} indices")
        parts[part] = np.split(indices, offsets[1:-1])
    for client, indices in enumerate(parts["train"]):
        if not len(indices):
            raise UserError(f"data.split: {path} leaves client {client} without training samples; use another split")
    official = bool(arrays["test_official"])
    train, val, test = (parts[part] for part in PARTS)
    refuse_shared_images(train, val, test, official, len(source.labels), source.num_test, where=f"data.split: {path}")
    partition = str(arrays["partition"])
    if not partition.isprintable() or len(partition) > 500:
        raise ValueError("partition is not a line of text")
    optional = {name: arrays[name] for name in OPTIONAL if arrays[name].size}
    for name, array in optional.items():
        is_map = name.endswith("label_map")
        shape = (clients, source.num_classes) if is_map else (clients,)
        if name in COLUMNS:
            shape = (array.size,)
        if name in CLIENTS_COLUMNS:
            shape = (clients, source.images.shape[1])
        if array.shape != shape:
            raise ValueError(f"{name} has shape {array.shape} instead of {shape}")
        if array.dtype.kind not in KINDS.get(name, "f"):
            raise ValueError(f"{name} is {array.dtype}")
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ValueError(f"{name} has values that are not finite")
        if name == "client_deviations" and not (array > 0).all():
            raise ValueError("client_deviations has values that are not above 0")
        if is_map and not ((array >= 0) & (array < source.num_classes)).all():
            raise ValueError(f"{name} names labels outside 0 to {source.num_classes - 1}")

    def whole(name: str) -> np.ndarray | None:
        return optional[name].astype(np.int64) if name in optional else None

    return Split(
        train=train,
        val=val,
        test=test,
        test_official=official,
        rotation=optional.get("rotation"),
        label_map=whole("label_map"),
        clusters=whole("clusters"),
        partition=partition,
        test_label_map=whole("test_label_map"),
        adversaries=optional.get("adversaries"),
        writers=optional.get("writers"),
        **{name: optional[name].astype(np.float64) for name in (*COLUMNS, *CLIENTS_COLUMNS) if name in optional},
    )
