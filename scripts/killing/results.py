"""Results of a run on disk, and the differences of two runs."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dfl_lightning.checkpoints.io import read_checkpoint

TIMES = ("seconds", "phase_seconds")
"""Names of what may differ: times."""


def run_folder(root: Path) -> Path | None:
    """Find the newest run folder with a table, under the `out` of a case."""
    found = sorted(f.parent for f in root.glob("out/*/*/metrics.csv"))
    return found[-1] if found else None


def rounds_written(folder: Path | None) -> int:
    """Count the whole rows of metrics.csv, which are the rounds done."""
    if folder is None or not (folder / "metrics.csv").is_file():
        return 0
    return (folder / "metrics.csv").read_text().count("\n") - 1


def rounds_saved(checkpoint: Path) -> int:
    """Complete rounds in a checkpoint; 0 where there is none."""
    if not checkpoint.is_file():
        return 0
    return int(torch.load(checkpoint, weights_only=True)["state_dict"]["bank.progress"][0])


def result(folder: Path) -> dict[str, Any]:
    """Read everything that must not depend on the number of stops of a run."""
    with open(folder / "metrics.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    arrays = {}
    for name in ("clients.npz", "graphs.npz", "split.npz"):
        with np.load(folder / name, allow_pickle=False) as content:
            arrays[name] = {key: content[key] for key in content.files}
    return {
        "metrics.csv": dict(enumerate(rows)),
        "last.ckpt": _checkpoint(folder / "checkpoints" / "last.ckpt"),
        "summary.json": json.loads((folder / "summary.json").read_text()),
        "files": sorted(str(f.relative_to(folder)) for f in folder.rglob(".*")),  # half-written ones stay behind
        **arrays,
    }


def _checkpoint(path: Path) -> dict[str, Any]:
    """Read all of a checkpoint, in one file or in pieces."""
    content = read_checkpoint(path)
    nodes = torch.arange(content["dfl_lightning"]["nodes"])
    state = {key: values[nodes] if "rows." in key else values for key, values in content["state_dict"].items()}
    return {**content, "state_dict": state}


def differences(a: Any, b: Any, where: str = "") -> Iterator[str]:
    """List the differences of two results, to the last bit, except times."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in [*a, *(key for key in b if key not in a)]:
            if key in TIMES:
                continue
            if key not in a or key not in b:
                yield f"{where}/{key} in one of them only"
            else:
                yield from differences(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        yield from differences(a.numpy(), b.numpy(), where)
    elif isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if (a.shape, a.dtype, a.tobytes()) != (b.shape, b.dtype, b.tobytes()):
            yield where
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)) and len(a) == len(b):
        for number, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from differences(one, other, f"{where}/{number}")
    elif a != b and not (a != a and b != b):
        yield f"{where}: {a} and {b}"
