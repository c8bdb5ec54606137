"""Methods that draw neighbours anew by design, in which a new link says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def drawn_anew_from(config: Mapping[str, Any]) -> int | None:
    """Return the first round in which neighbours are drawn anew by design, counted from 0; None if there is none.

    Gossip draws in each round, PANM and PENS in their second stage. A graph that changes by plan gives new neighbours,
    too.

    Args:
        config: resolved config of a run; empty if unknown.

    Examples:
        >>> drawn_anew_from({"selection": {"class_path": "Gossip", "init_args": {"k": 3}}})
        0
        >>> drawn_anew_from({"selection": {"class_path": "PANM", "init_args": {"stage_one": 20}}})
        20
        >>> drawn_anew_from({"selection": {"class_path": "AFIND"}})
    """
    from dfl_lightning.topology import moves  # imported here, because networkx takes time to import

    selection = config.get("selection")
    if moves(config.get("topology")):
        return 0
    if not isinstance(selection, Mapping):
        return None
    name = str(selection.get("class_path", "")).rpartition(".")[2]
    arguments = selection.get("init_args") or {}
    if name == "Gossip":
        return 0 if arguments.get("redraw", True) and arguments.get("k", 1) not in (0, "all") else None
    return arguments.get("stage_one") if name in ("PANM", "PENS") else None
