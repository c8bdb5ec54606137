"""The commands that made a run, as they were typed, in a file of its folder."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from dfl_lightning.runs.tables import damaged
from dfl_lightning.utils.errors import reason
from dfl_lightning.utils.storage.files import write_atomically

COMMANDS = "commands.csv"
"""The file with the columns `round`, the number of complete rounds when the command was typed, and `command`."""

_COLUMNS = ("round", "command")


def read_commands(path: Path, done: int | None = None) -> list[dict[str, str]]:
    """Read the rows of the file; return none if it does not exist.

    Args:
        path: the CSV file.
        done: leave out commands, except the first, that were typed when this many rounds or more were complete.

    Raises:
        UserError: the file is damaged.
    """
    if not path.is_file():
        return []
    try:
        rows = list(csv.DictReader(io.StringIO(path.read_bytes().decode(), newline=""), strict=True))
        if any(set(row) != set(_COLUMNS) or not str(row["round"]).isdigit() for row in rows):
            raise ValueError(f"its columns are not {' and '.join(_COLUMNS)}")
    except (csv.Error, ValueError) as error:
        raise damaged(path, reason(error)) from error
    return rows if done is None else [row for index, row in enumerate(rows) if not index or int(row["round"]) < done]


def write_commands(path: Path, rows: list[dict[str, str]]) -> None:
    """Write all rows, each a text by column, to the CSV file, atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))
