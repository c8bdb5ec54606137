"""Tables of measurements."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch


@dataclass
class Table:
    """A table of measurements.

    Args:
        columns: heads of the columns.
        rows: cells as text.
        notes: sentences below it.
        numbers: the same with all digits and repetitions, for the JSON file.
    """

    title: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    numbers: list[dict[str, Any]] = field(default_factory=list)

    def markdown(self) -> str:
        """Format as Markdown, with columns of equal width so that a terminal shows it well too.

        Examples:
            >>> print(Table("Sizes", ["what", "MB"], [["rows", "248"]]).markdown())
            ### Sizes
            <BLANKLINE>
            | what | MB  |
            |------|-----|
            | rows | 248 |
        """
        lines = [list(self.columns), *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        shown = [
            "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |" for line in lines
        ]
        rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
        text = [f"### {self.title}", "", shown[0], rule, *shown[1:]]
        return "\n".join([*text, *(["", *(f"- {note}" for note in self.notes)] if self.notes else [])])


def microseconds(seconds: float, spread: float | None = None) -> str:
    """Format seconds as microseconds for a table, with the spread of the repetitions.

    Examples:
        >>> microseconds(39.4e-6, 0.031)
        '39.4 ±2 %'
    """
    number = seconds * 1e6
    text = f"{number:.0f}" if number >= 1000 else f"{number:.3g}"
    return text if spread is None else f"{text} ±{50 * spread:.0f} %"


def times(ratio: tuple[float, float, float]) -> str:
    """Format a ratio with the lowest and the highest of the repetitions.

    Examples:
        >>> times((3.62, 3.5, 3.7))
        '3.62 (3.50 to 3.70)'
    """
    return "{:.2f} ({:.2f} to {:.2f})".format(*ratio)


def busy_note(others: Sequence[float | None]) -> str:
    """Describe the load by other programs during the measurements."""
    known = [share for share in others if share is not None]
    if not known:
        return "How busy the machine was otherwise is not known on this system."
    return f"Other programs took up to {100 * max(known):.0f} % of the processors meanwhile."


def machine(device: str) -> dict[str, Any]:
    """Describe the machine and the versions of the measurements."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device.startswith("cuda") else "cpu",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()


def write_json(path: Path, words: dict[str, Any], tables: dict[str, Table]) -> None:
    """Write all numbers with all digits."""
    content = {**words, "tables": {name: asdict(table) for name, table in tables.items()}}
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
