"""Precision and recall of a method's lists of neighbours, where the ground-truth clusters are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dfl_lightning.functional import neighbour_precision_recall
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

MATCHED = ("matched_precision", "matched_recall")


def matched_names(federation: Federation) -> tuple[str, ...]:
    """Return the names of the numbers that `log_matched` logs: none if no clusters are known."""
    return () if federation.clusters is None else MATCHED


def log_matched(round: Round, lists: Links) -> None:
    """Log precision and recall of lists of neighbours, if clusters are known.

    Args:
        round: the round at whose end this is called.
        lists: links to the clients on each receiver's list.
    """
    if round.clusters is not None:
        shares = neighbour_precision_recall(lists, round.clusters, round.reachable)
        for name, share in zip(MATCHED, shares, strict=True):
            round.log(name, share)
