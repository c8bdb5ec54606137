"""Numbers that differ between clients: learning rate, length of local training, number of neighbours."""

from __future__ import annotations

import csv
import io
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.engines.local_work import Duration
from dfl_lightning.utils.errors import UserError, nearest, reason

CLIENT = "client"
"""Name of the column that says which client a line is of."""

_KINDS: dict[str, tuple[Callable[[float], bool], str]] = {
    "lr": (lambda value: 0 <= value < math.inf, "a learning rate, 0 or more"),
    "local_epochs": (lambda value: value >= 0 and value == int(value), "a whole number of epochs, 0 or more"),
    "local_steps": (lambda value: value >= 1 and value == int(value), "a whole number of batches, 1 or more"),
    "k": (lambda value: value >= 0 and value == int(value), "a whole number of neighbours, 0 or more"),
    "budget": (lambda value: value >= 0 and value == int(value), "a whole number of neighbours, 0 or more"),
}
"""The columns: a test of their values, and its words for messages."""

Given = str | os.PathLike[str] | Mapping[str, Any]


@dataclass(frozen=True)
class ClientNumbers:
    """Numbers of each client; NaN where a client has the run's own number.

    Args:
        where: name of the table in messages.
        columns: float64 [m] by name: `lr`, `local_epochs`, `local_steps`, `k`.
    """

    where: str
    columns: Mapping[str, tuple[float, ...]]

    def rates(self, own: float) -> tuple[float, ...] | None:
        """Return each client's learning rate; None if the table has none.

        Args:
            own: the rate of the optimizer's first group, which clients without a number have.

        Raises:
            UserError: the optimizer's own rate is 0, so that schedules and other groups have no factor.
        """
        if "lr" not in self.columns:
            return None
        if not own > 0:
            raise UserError(f"{self.where} has learning rates, and model.optimizer the rate {own:g}; set one above 0")
        return tuple(own if math.isnan(value) else value for value in self.columns["lr"])

    def durations(self, own: Duration) -> tuple[Duration, ...] | None:
        """Return each client's length of local training; None if the table has none.

        Args:
            own: the run's length, which clients without a number have.

        Raises:
            UserError: the table counts epochs and the run counts batches.
        """
        if "local_epochs" in self.columns and own.steps is not None:
            raise UserError(
                f"{self.where} has local_epochs, and model.local_steps counts batches; name the column local_steps"
            )
        for name, make in (("local_epochs", Duration), ("local_steps", lambda steps: Duration(own.epochs, steps))):
            if name in self.columns:
                return tuple(own if math.isnan(value) else make(int(value)) for value in self.columns[name])
        return None

    def neighbours(self, default: int | str | None) -> Tensor | None:
        """Return how many neighbours each client may choose, long [m]; None if the table does not say it.

        Args:
            default: the selection's own number, for clients that the table gives none; `all`, or None without one.

        Raises:
            UserError: a client has no number, and the selection has none either.
        """
        values = self.columns.get("k")
        if values is None:
            return None
        number = len(values) if default == "all" else default
        if any(map(math.isnan, values)) and not isinstance(number, int):
            raise UserError(f"{self.where}: a client has no number of neighbours, nor has the selection; fill it in")
        return torch.tensor([number if math.isnan(value) else int(value) for value in values])

    def identity(self) -> dict[str, list[float | None]]:
        """Return the numbers as plain values, which a resume compares."""
        columns = sorted(self.columns.items())
        return {name: [None if math.isnan(value) else value for value in values] for name, values in columns}


def client_numbers(given: Given | None, num_clients: int, labels: Sequence[Hashable]) -> ClientNumbers | None:
    """Read the numbers of each client, and check that there is one line for each.

    Args:
        given: a CSV file with the column `client` and others of `lr`, `local_epochs`, `local_steps` and `k` (or
            `budget`); or a mapping of these names to a value for each client. An empty cell, or None, is the run's own
            number. None: clients do not differ.
        num_clients: number of clients, m.
        labels: labels of the clients in the topology, which the column `client` may have instead of ids from 0.

    Raises:
        UserError: the table cannot be read, lacks a client, names an unknown client or column, or has a bad number.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        where, columns = "model.per_client", _columns(given, num_clients)
    else:
        where = f"model.per_client {os.fspath(given)}"
        columns = _read(Path(given), where, num_clients, labels)
    known = set(_KINDS)
    for name in columns:
        if name not in known:
            raise UserError(f"{where}: unknown column '{name}'{nearest(name, known)}; columns are {', '.join(_KINDS)}")
    if not columns:
        raise UserError(f"{where} has no column with numbers; columns are {', '.join(_KINDS)}")
    for one, other in (("k", "budget"), ("local_epochs", "local_steps")):
        if one in columns and other in columns:
            raise UserError(f"{where} has the columns {one} and {other}, which are about the same; keep one")
    numbers = {
        "k" if name == "budget" else name: tuple(
            _number(value, name, f"{where}, client {client}") for client, value in enumerate(values)
        )
        for name, values in columns.items()
    }
    return ClientNumbers(where, numbers)


def _columns(given: Mapping[str, Any], num_clients: int) -> dict[str, list[Any]]:
    """Return the columns of a mapping, a value for each client."""
    columns = {}
    for name, values in given.items():
        if name == CLIENT:
            raise UserError("model.per_client lists values in the order of the clients' ids; leave out client")
        listed = values.tolist() if hasattr(values, "tolist") else values
        if not isinstance(listed, (list, tuple)) or len(listed) != num_clients:
            count = f"{len(listed)} values" if isinstance(listed, (list, tuple)) else repr(values)
            raise UserError(f"model.per_client: {name} has {count}, and there are {num_clients} clients; give one each")
        columns[name] = list(listed)
    return columns


def _read(file: Path, where: str, num_clients: int, labels: Sequence[Hashable]) -> dict[str, list[Any]]:
    """Read the columns of a CSV file, a value for each client."""
    try:
        text = file.read_text(encoding="utf-8-sig")
        first = text.partition("\n")[0]
        separator = max(",;\t", key=first.count)
        lines = list(csv.reader(io.StringIO(text), delimiter=separator))
    except (OSError, ValueError, csv.Error) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or reason(error)
        raise UserError(f"{where} cannot be read ({why}); give a CSV file") from error
    head = [word.strip() for word in lines[0]] if lines else []
    if CLIENT not in head:
        raise UserError(f"{where}: the first line has no column '{CLIENT}'; begin it with {CLIENT},lr for example")
    twice = next((name for name in head if head.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{where} has the column '{twice}' twice; keep one")
    rows = [
        (number, [cell.strip() for cell in line]) for number, line in enumerate(lines[1:], 2) if "".join(line).strip()
    ]
    for number, row in rows:
        if len(row) != len(head):
            raise UserError(f"{where}, line {number} has {len(row)} cells, and the first line has {len(head)}")
    at = head.index(CLIENT)
    ids = _ids([row[at] for _, row in rows], labels)
    by_client: dict[int, list[str]] = {}
    for (number, row), client in zip(rows, ids, strict=True):
        if client is None or not 0 <= client < num_clients:
            names = f"clients are 0 to {num_clients - 1}"
            raise UserError(f"{where}, line {number}: there is no client {row[at] or '(empty)'}; {names}")
        if client in by_client:
            raise UserError(f"{where}, line {number}: client {row[at]} has a line already; keep one")
        by_client[client] = row
    missing = [client for client in range(num_clients) if client not in by_client]
    if missing:
        raise UserError(f"{where} has no line for client {missing[0]}; there are {num_clients} clients, one line each")
    return {
        name: [by_client[client][place] for client in range(num_clients)]
        for place, name in enumerate(head)
        if place != at
    }


def _ids(words: Sequence[str], labels: Sequence[Hashable]) -> list[int | None]:
    """Return the clients that words name: by their ids, or else by their labels in the topology; None: unknown."""
    if all(word.isdigit() for word in words):
        return [int(word) for word in words]
    by_label = {str(label): client for client, label in enumerate(labels)}
    return [by_label.get(word) for word in words]


def _number(value: Any, name: str, where: str) -> float:
    """Check a value of a column, and return it as a number; NaN for an empty one."""
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return math.nan
    is_right, words = _KINDS[name]
    try:
        number = float(value)
        right = math.isfinite(number) and is_right(number)
    except (TypeError, ValueError):
        right = False
    if not right:
        raise UserError(f"{where}: {name} is {value}; it is {words}")
    return number
