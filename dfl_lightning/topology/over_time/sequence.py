"""Construction of a sequence of graphs from the keys of a topology file."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.topology.clusters import same_groups
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.topology.graph import Topology, count
from dfl_lightning.topology.over_time.time_varying import Sequence, union
from dfl_lightning.topology.reading.normalise import WrongSize
from dfl_lightning.topology.reading.single import (
    KEYS_OF_A_GRAPH,
    KINDS,
    Context,
    brief,
    graph_of,
    inside,
    is_count,
    join_of,
    read_of,
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
    context = _with_everyone(items, context)
    stages, rounds = [], []
    for number, item in enumerate(items, start=1):
        stage, duration = _item(item, _of_item(number, context))
        if duration is None and (repeat or number < len(items)):
            raise UserError(f"{where}: item {number} of the sequence needs rounds, the number of rounds it holds.")
        stages.append(stage)
        rounds.append(duration or 1)  # without `repeat`, the number of the last graph is ignored
    from_files = [index for index, item in enumerate(items) if "graph" in item]
    _check_servers(stages, where)
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
        join=join_of(content, where),
    )


def _item(item: Mapping[str, Any], context: Context) -> tuple[Topology, int | None]:
    """Build the graph of an item, and return it with its number of rounds; None if the item does not say."""
    refuse_unknown(item, _KEYS_OF_AN_ITEM, context.where)
    if sum(key in item for key in KINDS) != 1:
        raise UserError(f"{context.where}: exactly one of the keys generator, graph and class_path is needed.")
    duration = item.get("rounds")
    if duration is not None and not is_count(duration, 1):
        raise UserError(f"{context.where}: rounds must be a whole number >= 1, not {brief(duration)}.")
    return graph_of(item, inside(item, context)), duration


def _of_item(number: int, context: Context) -> Context:
    return replace(context, where=f"{context.where}: item {number} of the sequence", name=None)


def _with_everyone(items: list[Mapping[str, Any]], context: Context) -> Context:
    """Read the graph files of all items, and return the context with their graphs and all of their nodes.

    A node has the attributes of the first file that gives it any. If an item has no file, the clients' ids are nodes
    too, unless the files have other names.

    Raises:
        UserError: a file is not a graph, or the files together do not have a node for each client.
    """
    read: dict[tuple[Path, bool | None], GraphRead] = {}
    everyone: dict[str, tuple[Hashable, dict[str, Any]]] = {}
    first: dict[str, int] = {}
    for number, item in enumerate(items, start=1):
        if [key for key in KINDS if key in item] != ["graph"]:
            continue
        path, graph = read_of(item, replace(_of_item(number, context), read=read))
        read[path, item.get("directed")] = graph
        for node, attributes in graph.graph.nodes(data=True):
            label, given = everyone.setdefault(str(node), (node, {}))
            everyone[str(node)] = label, {**attributes, **given}
            first.setdefault(str(node), number)
    ids = {str(client): client for client in range(context.num_clients)}
    if any("graph" not in item for item in items) and everyone.keys() <= ids.keys():
        is_text = all(isinstance(node, str) for node, _ in everyone.values())
        for label, client in ids.items():  # the nodes of a generator or a class are all ids
            everyone.setdefault(label, (label if is_text else client, {}))
    if everyone and len(everyone) != context.num_clients:
        last = max(first, key=lambda label: first[label])
        seen = f"; {brief(last)} is first in item {first[last]}" if first[last] > min(first.values()) else ""
        raise WrongSize(
            f"{context.where}: the graph files of the sequence have {count(len(everyone), 'different node')}, but data "
            f"has {count(context.num_clients, 'client')}; give them as many together{seen}.",
            len(everyone),
        )
    return replace(context, read=read, everyone=dict(everyone.values()) or None)


def _check_servers(stages: list[Topology], where: str) -> None:
    """Raise if the graphs have different numbers of servers."""
    servers = [stage.num_servers for stage in stages]
    for number, other in enumerate(servers, start=1):
        if other != servers[0]:
            have = f"{count(servers[0], 'server')} and item {number} has {other}"
            raise UserError(f"{where}: item 1 of the sequence has {have}; all graphs must have the same nodes.")


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
