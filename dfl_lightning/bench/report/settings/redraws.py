"""Rounds in which neighbours are drawn anew by design, so that a new link says nothing."""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from typing import Any

from dfl_lightning.bench.report.method_names import class_name, class_of


def drawn_anew_from(config: Mapping[str, Any]) -> int | None:
    """Return the first round in which neighbours are drawn anew by design, counted from 0; None if there is none.

    The selection of the run knows it, if it is one of this library. A graph that changes by plan gives new neighbours,
    too.

    Args:
        config: resolved config of a run; empty if unknown.

    Examples:
        >>> drawn_anew_from({"selection": {"class_path": "Gossip", "init_args": {"k": 3}}})
        0
        >>> drawn_anew_from({"selection": {"class_path": "PANM", "init_args": {"stage_one": 20}}})
        20
        >>> drawn_anew_from({"selection": {"class_path": "AFIND"}})
        >>> drawn_anew_from({"selection": {"class_path": "mine.Gossip", "init_args": {"k": 3}}})
    """
    from dfl_lightning.callbacks import Selection  # imported here, because torch takes seconds to import
    from dfl_lightning.topology import moves  # the same for networkx

    if moves(config.get("topology")):
        return 0
    chosen = config.get("selection")
    if not isinstance(chosen, Mapping):
        chosen = {"class_path": chosen}
    selection = class_of(class_name(str(chosen.get("class_path") or "")))
    if selection is None or not issubclass(selection, Selection):
        return None
    defaults = {name: option.default for name, option in signature(selection).parameters.items()}
    return selection.drawn_anew_from({**defaults, **(chosen.get("init_args") or {})})
