"""Several graphs in turn from their keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.topology.clusters import same_groups
from dfl_lightning.topology.graph import Topology, count
from dfl_lightning.topology.over_time.time_varying import Sequence, union
from dfl_lightning.topology.reading.single import (
    KEYS_OF_A_GRAPH,
    Context,
    brief,
    graph_of,
    inside,
    is_count,
    refuse_unknown,
)
from dfl_lightning.utils.errors import UserError

_KEYS_OF_AN_ITEM = (*KEYS_OF_A_GRAPH, "rounds")
_EXAMPLE = "[{graph: a.graphml, rounds: 10}, {generator: cycle_graph, rounds: 5}]"


def sequence_of(content: Mapping[str, Any], place: Context) -> Topology:
    """The graphs of a sequence, with the rounds that each of them holds.

    Args:
        content: `sequence` and `repeat`.
        place: where they were written, with the seed and the links for items that name none.

    Raises:
        UserError: anything that is not a sequence of graphs of the same nodes, in one sentence.
    """
    where, items, repeat = place.where, content["sequence"], content.get("repeat")
    for key in ("args", "every"):
        if content.get(key) is not None:
            raise UserError(f"{where}: {key} belongs to an item of the sequence, not next to it.")
    if repeat is not None and not isinstance(repeat, bool):
        raise UserError(f"{where}: repeat is true or false, not {brief(repeat)}.")
    if not isinstance(items, list) or not items or not all(isinstance(item, Mapping) for item in items):
        raise UserError(f"{where}: sequence takes a list of graphs with the rounds they hold, for example {_EXAMPLE}.")
    stages, rounds = [], []
    for number, item in enumerate(items, start=1):
        stage, held = _item(item, replace(place, where=f"{where}: item {number} of the sequence", name=None))
        if held is None and (repeat or number < len(items)):
            raise UserError(f"{where}: item {number} of the sequence needs rounds, the number of rounds it holds.")
        stages.append(stage)
        rounds.append(held or 1)  # the last one holds for ever
    named = [number for number, item in enumerate(items) if "graph" in item]
    _refuse_other_nodes(stages, named, where)
    return Sequence(
        written=union(tuple(stages)),
        labels=stages[named[0] if named else 0].labels,
        num_servers=stages[0].num_servers,
        name=place.name or "changing",
        clusters=_agreed(stages, "cluster", where),
        budgets=_agreed(stages, "budget", where),
        complete=any(stage.complete for stage in stages),
        stages=tuple(stages),
        rounds=tuple(rounds),
        repeat=bool(repeat),
    )


def _item(item: Mapping[str, Any], place: Context) -> tuple[Topology, int | None]:
    refuse_unknown(item, _KEYS_OF_AN_ITEM, place.where)
    if ("generator" in item) == ("graph" in item):
        raise UserError(f"{place.where}: exactly one of the keys generator and graph is needed.")
    held = item.get("rounds")
    if held is not None and not is_count(held, 1):
        raise UserError(f"{place.where}: rounds must be a whole number >= 1, not {brief(held)}.")
    return graph_of(item, inside(item, place)), held


def _refuse_other_nodes(stages: list[Topology], named: list[int], where: str) -> None:
    """Graph files must name the same nodes; a generator's nodes are the clients by number."""
    servers = [stage.num_servers for stage in stages]
    for number, other in enumerate(servers, start=1):
        if other != servers[0]:
            have = f"{count(servers[0], 'server')} and item {number} has {other}"
            raise UserError(f"{where}: item 1 of the sequence has {have}; all graphs must have the same nodes.")
    labels = [{str(label) for label in stages[number].labels} for number in named]
    for number, others in zip(named[1:], labels[1:], strict=True):
        if strange := sorted(others ^ labels[0]):
            raise UserError(
                f"{where}: items {named[0] + 1} and {number + 1} of the sequence do not have the same nodes: "
                f"{brief(strange[0])} is in one of them only."
            )


def _agreed(stages: list[Topology], attribute: str, where: str) -> Tensor | None:
    """A node attribute of the graphs that have it, which must be the same in all of them."""
    found: Tensor | None = None
    first = 0
    for number, stage in enumerate(stages, start=1):
        values = stage.clusters if attribute == "cluster" else stage.budgets
        if values is None:
            continue
        if found is None:
            found, first = values, number
        same = same_groups(values, found) if attribute == "cluster" else torch.equal(values, found)
        if not same:
            raise UserError(
                f"{where}: items {first} and {number} of the sequence disagree about the '{attribute}' of their nodes; "
                "give all of them the same, or one of them none."
            )
    return found
