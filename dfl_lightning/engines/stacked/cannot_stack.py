"""Why something needs the loop engine."""

from __future__ import annotations


class CannotStack(Exception):
    """A network that the stacked engine cannot take; the message names the layer and the reason.

    Args:
        message: names the layer and the reason.
        by_failing: whether something failed while the network was tried out, where a difference would say more.

    Attributes:
        by_failing: something failed while the network was tried out, where a difference would say more.
    """

    def __init__(self, message: str, by_failing: bool = False) -> None:
        super().__init__(message)
        self.by_failing = by_failing
