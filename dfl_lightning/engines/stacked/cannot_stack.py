"""Exception for networks and objectives that need the loop engine."""

from __future__ import annotations


class CannotStack(Exception):
    """Error for a network, loss, optimizer or objective that cannot be stacked.

    Args:
        message: names the layer or other part, and the reason.
        by_failing: True if an operation failed in the trial; False if results differ, which says more. It is an
            attribute of the exception, too.
    """

    def __init__(self, message: str, by_failing: bool = False) -> None:
        super().__init__(message)
        self.by_failing = by_failing
