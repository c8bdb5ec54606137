"""Dropout replayed from a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Dropout
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import size

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

_MOST_BYTES = 64 * 10**6  # 10,000 clients for 3,000 rounds


class Trace(Dropout):
    """Dropout replayed from a text file with a line for each round and a column for each client.

    1 stands for active, 0 for dropped out. Columns are separated by commas or blanks; lines that start with `#` are
    comments.

    Args:
        file: path of the trace.
        repeat: start again at the first line when the file ends; otherwise a short file is refused.
        full_first_round: whether all clients take part in round 0, instead of those of the first line.
        join: the model from which a client trains that the trace lets in later: `own`, its first model, or
            `neighbours`, the mean of the models of its neighbours that are active and have trained before.
    """

    against_clock = "a trace has a line for each round"

    def __init__(
        self,
        file: str,
        repeat: bool = False,
        full_first_round: bool = False,
        join: Literal["own", "neighbours"] = "own",
    ) -> None:
        super().__init__(full_first_round)
        if join not in ("own", "neighbours"):
            raise UserError(f"dropout.join={join!r}; it is own or neighbours")
        self.join = join
        self.file, self.repeat = file, repeat
        self.table = read_trace(file)

    def start(self, federation: Federation) -> None:
        """Require a column of the trace for each client and, unless it repeats, a line for each round."""
        rounds, clients = self.table.shape
        m = federation.num_clients
        if clients != m:
            raise UserError(f"{self.file}: {clients} columns, but data has {m} clients; give one column a client")
        wanted = federation.planned_rounds
        if not self.repeat and (wanted is None or wanted < 0 or rounds < wanted):
            raise UserError(
                f"{self.file}: {rounds} lines, but trainer.max_rounds={wanted}; add lines or set dropout.repeat=true"
            )

    def draw(self, round: Round) -> Tensor:
        """Return the line of this round."""
        return self.table[round.index % len(self.table)]


def read_trace(file: str | Path) -> Tensor:
    """Read a trace file, bool [rounds, clients].

    Raises:
        UserError: the file does not exist, is not a table of 0 and 1, or has lines of unequal length.
    """
    try:
        if Path(file).exists() and not Path(file).is_file():
            raise OSError("a folder or a pipe")
        if Path(file).stat().st_size > _MOST_BYTES:
            length = size(Path(file).stat().st_size)
            raise UserError(
                f"{file}: a dropout trace of {length}, and at most {size(_MOST_BYTES)} are read; give fewer lines, "
                "and dropout.repeat=true if they should start again"
            )
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:  # ValueError: bytes that are not UTF-8, or a path with a null character
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"{file}: the dropout trace cannot be read ({reason}); give a text file of 0 and 1") from None
    rows: list[Tensor] = []
    for number, line in enumerate(lines, 1):
        words = line.replace(",", " ").split()
        if not words or words[0].startswith("#"):
            continue
        if any(word not in ("0", "1") for word in words):
            raise UserError(f"{file}, line {number}: a dropout trace holds 0 (dropped out) and 1 (active) only")
        if rows and len(words) != len(rows[0]):
            raise UserError(f"{file}, line {number}: {len(words)} columns, but the lines above have {len(rows[0])}")
        rows.append(torch.tensor([word == "1" for word in words]))
    if not rows:
        raise UserError(f"{file}: the dropout trace is empty; give a line of 0 and 1 for each round")
    return torch.stack(rows)
