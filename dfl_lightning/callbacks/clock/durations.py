"""The longest durations that are counted in nanoseconds."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.functional.waves import NANOSECONDS
from dfl_lightning.utils.errors import UserError

LONGEST = 2**60
"""Nanoseconds, 36.5 years, of the longest training or message, and half of those of the longest run: sums of a few then
fit into 64 bits."""


def refuse_endless(seconds: Tensor, what: str, remedy: str) -> None:
    """Raise if a duration, float64 [m], is too long to be counted in nanoseconds.

    Args:
        seconds: the duration of each client.
        what: what takes so long, as the subject of a sentence.
        remedy: what the user can change.

    Raises:
        UserError: a duration is above `LONGEST`, infinite or NaN.
    """
    endless = torch.nonzero(~(seconds <= LONGEST / NANOSECONDS)).flatten().tolist()
    if endless:
        client = endless[0]
        raise UserError(
            f"clock Asynchronous: {what} takes client {client} {float(seconds[client]):.3g} s, and times of more than "
            f"36 years are not counted; {remedy}"
        )
