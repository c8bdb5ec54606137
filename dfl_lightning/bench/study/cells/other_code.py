"""Cells of other code: the user's own classes have changed since their run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from dfl_lightning.bench.study.plan import Cell
from dfl_lightning.checkpoints.history import CHANGED
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.utils.code.source_code import differing
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.words import enumerated

ACCEPTED = "accepted_code.json"
"""The file, in a cell's folder, that names the run that was accepted and the code for which it was."""

SET_ASIDE = "other_code"
"""The folder, in a cell's folder, of its runs of other code, which no table contains."""


def changes_of_code(cell: Cell, run: Path, summary: Mapping[str, Any]) -> str:
    """Describe how the code of a cell's run differs from the present code; empty if it does not.

    Args:
        cell: cell with hashes of the present code.
        run: folder of its run.
        summary: content of the run's summary.json; empty if there is none yet.
    """
    if not cell.code:
        return ""
    names = differing(summary.get(CODE) or {} if summary else _code_of(run), cell.code)
    if names:
        return f"{enumerated(names)} {'has' if len(names) == 1 else 'have'} changed since it was trained"
    rounds = [step["round"] for step in summary.get(CHANGED, []) if any(_is_of_code(name) for name in step["changed"])]
    return f"its code has changed after round {rounds[-1]}" if rounds else ""


def is_accepted(cell: Cell, run: Path) -> bool:
    """Return True if the cell's run was accepted as one of the present code."""
    try:
        content = json.loads((cell.folder / ACCEPTED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(content == _entry(cell, run))


def accept(cell: Cell, run: Path) -> None:
    """Record that the cell's run counts as one of the present code."""
    text = json.dumps(_entry(cell, run), indent=2) + "\n"
    write_atomically(cell.folder / ACCEPTED, lambda file: file.write(text.encode()))


def set_aside(cell: Cell, run: Path) -> None:
    """Move the folder of a run of other code away from the runs of its cell."""
    (cell.folder / SET_ASIDE).mkdir(exist_ok=True)
    run.rename(cell.folder / SET_ASIDE / run.name)


def _entry(cell: Cell, run: Path) -> dict[str, Any]:
    return {"run": run.name, CODE: cell.code}


def _is_of_code(name: str) -> bool:
    return name.startswith(f"{CODE}.")


def _code_of(run: Path) -> dict[str, str]:
    """Read the hashes from a run's config; nothing else is parsed, to be quick while cells run."""
    try:
        lines = (run / "config.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    except OSError:
        return {}
    inside: list[str] = []
    for line in lines:
        if inside and not line.startswith(" "):
            break
        if inside or line.startswith(f"{CODE}:"):
            inside.append(line)
    return dict((yaml.safe_load("".join(inside)) or {}).get(CODE) or {})
