"""Construction of a sequence of graphs from the keys of a topology file."""

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


def sequence_of(content: Mapping[str, Any], context: Context) -> Topology:
    """Build the topology of a sequence of graphs, each for a number of rounds.

    Args:
        content: mapping with the keys `sequence` and `repeat`.
        context: source of the keys, and the seed and the link failures of items that do not set their own.

    Raises:
        UserError: the keys do not describe a sequence of graphs of the same nodes.
    """
    where, items, repeat = context.where, content["sequence"], content.get("repeat")
    for key in ("args", "every"):
        if content.get(key) is not None:
            raise UserError(f"{where}: {key} belongs to an item of the sequence, not next to it.")
    if repeat is not None and not isinstance(repeat, bool):
        raise UserError(f"{where}: repeat is true or false, not {brief(repeat)}.")
    if not isinstance(items, list) or not items or not all(isinstance(item, Mapping) for item in items):
        raise UserError(f"{where}: sequence takes a list of graphs with the rounds they hold, for example {_EXAMPLE}.")
    stages, rounds = [], []
    for number, item in enumerate(items, start=1):
        stage, duration = _item(item, replace(context, where=f"{where}: item {number} of the sequence", name=None))
        if duration is None and (repeat or number < len(items)):
            raise UserError(f"{where}: item {number} of the sequence needs rounds, the number of rounds it holds.")
        stages.append(stage)
        rounds.append(duration or 1)  # without `repeat`, the number of the last graph is ignored
    from_files = [index for index, item in enumerate(items) if "graph" in item]
    _check_nodes(stages, from_files, where)
    return Sequence(
        written=union(tuple(stages)),
        labels=stages[from_files[0] if from_files else 0].labels,
        num_servers=stages[0].num_servers,
        name=context.name or "changing",
        clusters=_agreed(stages, "cluster", where),
        budgets=_agreed(stages, "budget", where),
        complete=any(stage.complete for stage in stages),
        stages=tuple(stages),
        rounds=tuple(rounds),
        repeat=bool(repeat),
    )


def _item(item: Mapping[str, Any], context: Context) -> tuple[Topology, int | None]:
    """Build the graph of an item, and return it with its number of rounds; None if the item does not say."""
    refuse_unknown(item, _KEYS_OF_AN_ITEM, context.where)
    if ("generator" in item) == ("graph" in item):
        raise UserError(f"{context.where}: exactly one of the keys generator and graph is needed.")
    duration = item.get("rounds")
    if duration is not None and not is_count(duration, 1):
        raise UserError(f"{context.where}: rounds must be a whole number >= 1, not {brief(duration)}.")
    return graph_of(item, inside(item, context)), duration


def _check_nodes(stages: list[Topology], from_files: list[int], where: str) -> None:
    """Raise if the graphs have different numbers of servers, or graph files have different labels of nodes.

    Labels of generated graphs are not compared, as their nodes are the clients' ids.
    """
    servers = [stage.num_servers for stage in stages]
    for number, other in enumerate(servers, start=1):
        if other != servers[0]:
            have = f"{count(servers[0], 'server')} and item {number} has {other}"
            raise UserError(f"{where}: item 1 of the sequence has {have}; all graphs must have the same nodes.")
    labels = [{str(label) for label in stages[index].labels} for index in from_files]
    for index, others in zip(from_files[1:], labels[1:], strict=True):
        if unmatched := sorted(others ^ labels[0]):
            raise UserError(
                f"{where}: items {from_files[0] + 1} and {index + 1} of the sequence do not have the same nodes: "
                f"{brief(unmatched[0])} is in one of them only."
            )


def _agreed(stages: list[Topology], attribute: str, where: str) -> Tensor | None:
    """Return a node attribute, which must be the same in all graphs that have it; None if none has it."""
    agreed: Tensor | None = None
    first = 0
    for number, stage in enumerate(stages, start=1):
        values = stage.clusters if attribute == "cluster" else stage.budgets
        if values is None:
            continue
        if agreed is None:
            agreed, first = values, number
        same = same_groups(values, agreed) if attribute == "cluster" else torch.equal(values, agreed)
        if not same:
            raise UserError(
                f"{where}: items {first} and {number} of the sequence disagree about the '{attribute}' of their nodes; "
                "give all of them the same, or one of them none."
            )
    return agreed
