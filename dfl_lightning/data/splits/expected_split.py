"""Comparison of a run's data with those of another run, by the other run's split.npz."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split
from dfl_lightning.data.splits.split_file import origin, write_split
from dfl_lightning.utils.errors import reason
from dfl_lightning.utils.storage.files import read_npz


def difference(file: Path, split: Split, source: Source, same_draw: bool) -> str:
    """Describe in one sentence how the data differ from those of a split file; empty if they are the same.

    Args:
        file: the split.npz of the other run.
        split: the split of this run.
        source: the data set of this run.
        same_draw: True to compare the samples of each client, too; otherwise only the data set is compared.
    """
    try:
        then = read_npz(file)
    except (OSError, ValueError) as error:
        return f"{file} cannot be read ({reason(error)}), so that these data are compared with nothing"
    about_data = origin(source)
    for name in about_data:
        if name in then and not _same(then[name], about_data[name]):
            return f"these are not the data of {file}: {name} is {about_data[name]} and was {then[name]}"
    if not same_draw:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        write_split(temporary := Path(folder) / "split.npz", split, source)
        now = read_npz(temporary)
    for name in (name for name in now if name not in about_data):
        if name in then and not _same(then[name], now[name]):
            return (
                f"clients have other samples than in {file} ({name} differs) though the data are the same; "
                f"--data.split {file} gives them those"
            )
    return ""


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.dtype.kind == other.dtype.kind and one.tobytes() == other.tobytes()
