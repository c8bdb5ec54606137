"""Construction of a single graph from its keys: from a file, or from a generator, which may draw it repeatedly."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx
import torch

from dfl_lightning.links import Links
from dfl_lightning.topology.formats.files import read_graph
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.topology.generators.by_name import COMPLETE, generate, is_random
from dfl_lightning.topology.graph import Topology
from dfl_lightning.topology.over_time.link_failures import LinkFailures
from dfl_lightning.topology.over_time.moving import moving_of, schedule_of_moving
from dfl_lightning.topology.over_time.scheduled import Scheduled
from dfl_lightning.topology.over_time.schedules import SCHEDULES, schedule_of
from dfl_lightning.topology.over_time.time_varying import Redrawn
from dfl_lightning.topology.reading.normalise import to_topology
from dfl_lightning.utils.errors import UserError, nearest

_KEYS_OF_LINKS = ("link_up", "arc_up", "link_share")
KEYS_OF_A_GRAPH = (
    *("generator", "args", "seed", "graph", "directed", "class_path", "init_args"),
    *_KEYS_OF_LINKS,
    "every",
)
KINDS = ("generator", "graph", "class_path")
"""Keys that say what a graph is made from; it has exactly one."""


@dataclass(frozen=True)
class Context:
    """The source of a graph's keys, and the settings that the keys inherit.

    Attributes:
        where: the source, for error messages.
        name: name of the topology; None: that of its generator or graph file.
        folder: folder to which paths of graph files are relative.
        num_clients: number of clients m.
        seed: seed of random draws, unless the keys set one.
        failures: failures of links, unless the keys set them.
        read: graph files that have been read, by path and the key `directed`.
        everyone: nodes of all graph files of a sequence, with their attributes; None: those of one file are all.
    """

    where: str
    name: str | None
    folder: Path
    num_clients: int
    seed: int
    failures: LinkFailures = field(default_factory=LinkFailures)
    read: Mapping[tuple[Path, bool | None], GraphRead] = field(default_factory=dict)
    everyone: Mapping[Hashable, Mapping[str, Any]] | None = None


def inside(content: Mapping[str, Any], context: Context) -> Context:
    """Return the context with the seed and the failures of links that the keys set.

    Args:
        content: keys and values of a topology.
        context: source of the keys, and the settings that they inherit.

    Raises:
        UserError: the seed is not a whole number >= 0, or two keys about links exclude each other.
    """
    seed = content.get("seed")
    if seed is None:
        seed = context.seed
    elif not is_count(seed, 0):
        raise UserError(f"{context.where}: seed must be a whole number >= 0, not {brief(seed)}.")
    given = [key for key in _KEYS_OF_LINKS if content.get(key) is not None]
    if len(given) > 1:
        raise UserError(f"{context.where}: {given[0]} and {given[1]} exclude each other; keep one.")
    failures = _failures(given[0], content[given[0]], context.where) if given else context.failures
    return replace(context, seed=seed, failures=replace(failures, seed=seed))


def _failures(key: str, value: Any, where: str) -> LinkFailures:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UserError(f"{where}: {key} must be above 0 and at most 1, not {brief(value)}.")
    if key == "link_share":
        return LinkFailures(share=float(value))
    return LinkFailures(up=float(value), each_way=key == "arc_up")


def graph_of(content: Mapping[str, Any], context: Context) -> Topology:
    """Build the topology of a single graph, which may be drawn again every few rounds.

    Args:
        content: keys and values of a graph, with exactly one of `KINDS`.
        context: source of the keys, and the settings that they inherit.

    Raises:
        UserError: the keys do not describe a graph of this size.
    """
    every = content.get("every")
    if every is not None and not is_count(every, 1):
        raise UserError(f"{context.where}: every must be a whole number of rounds >= 1, not {brief(every)}.")
    if "class_path" in content:
        return _from_class(content, every, context)
    return _from_generator(content, every, context) if "generator" in content else _from_file(content, every, context)


def _from_class(content: Mapping[str, Any], every: int | None, context: Context) -> Topology:
    for key in ("args", "directed", "every"):
        if content.get(key) is not None:
            instead = "; its arguments are init_args" if key == "args" else "; the class says it"
            raise UserError(f"{context.where}: {key} does not go with class_path{instead}.")
    moving = moving_of(content, context.where)
    schedule = schedule_of_moving(moving, context.num_clients, context.seed)
    return Scheduled.of(schedule, context.num_clients, context.name or type(moving).__name__, context.failures)


def read_of(content: Mapping[str, Any], context: Context) -> tuple[Path, GraphRead]:
    """Read the graph file of a single graph, unless it has been read; return its path and the graph.

    Args:
        content: keys and values of a graph, with `graph`.
        context: source of the keys.

    Raises:
        UserError: the file does not exist or is not a graph, or keys do not fit.
    """
    where, directed = context.where, content.get("directed")
    if not isinstance(content["graph"], str) or "args" in content:
        raise UserError(f"{where}: graph takes the path of a graph file and no args.")
    if directed is not None and not isinstance(directed, bool):
        raise UserError(f"{where}: directed is true or false, not {brief(directed)}.")
    path = _existing(context.folder / content["graph"], where)
    read = context.read.get((path, directed))
    return path, read_graph(path, context.num_clients, directed) if read is None else read


def _from_file(content: Mapping[str, Any], every: int | None, context: Context) -> Topology:
    path, read = read_of(content, context)
    if every is not None:
        raise UserError(f"{context.where}: every draws a generator's graph anew; for graph files in turn use sequence.")
    there = {str(node) for node in read.graph}
    away = {node: given for node, given in (context.everyone or {}).items() if str(node) not in there}
    if away:
        graph = read.graph.copy()
        graph.add_nodes_from((node, dict(given)) for node, given in away.items())
        read = replace(read, graph=graph)
    topology = to_topology(read, context.num_clients, str(path), context.name or path.stem)
    members = torch.tensor([str(label) in there for label in topology.labels]) if away else None
    return replace(topology, failures=context.failures, members=members)


def _from_generator(content: Mapping[str, Any], every: int | None, context: Context) -> Topology:
    where, generator, args = context.where, content["generator"], content.get("args")
    if content.get("directed") is not None:
        raise UserError(f"{where}: directed is for graph files; a generator takes create_using: DiGraph in args.")
    if not isinstance(generator, str):
        raise UserError(f"{where}: generator takes a name, not a {type(generator).__name__}.")
    if args is not None and (not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args)):
        raise UserError(f"{where}: args takes names and values, for example args: {{k: 4}}.")
    args = dict(args or {})
    if generator in SCHEDULES:
        if every is not None:
            raise UserError(f"{where}: every draws a graph anew, and {generator} has one for each round; leave it out.")
        schedule = schedule_of(generator, args, context.num_clients, context.seed, where)
        return Scheduled.of(schedule, context.num_clients, context.name or generator, context.failures)
    draw = partial(_generate_topology, generator, args, context)
    topology = draw(context.seed)
    if every is None:
        return topology
    if not is_random(generator):
        raise UserError(f"{where}: every needs a random generator, and {generator} makes the same graph each time.")
    if args.get("seed") is not None:
        raise UserError(f"{where}: every with the seed in args makes the same graph each time; put seed next to args.")
    first = {entry.name: getattr(topology, entry.name) for entry in fields(topology)}
    recipe = f"{generator} {sorted(args.items())}"
    return Redrawn(**first, draw=draw, seed=context.seed, every=every, recipe=recipe)


def _generate_topology(generator: str, args: dict[str, Any], context: Context, seed: int) -> Topology:
    graph, num_servers = generate(generator, args, context.num_clients, seed, context.where)
    if num_servers and context.failures.fail:
        raise UserError(
            f"{context.where}: links to a server do not fail by link_up, arc_up or link_share, since a client without "
            "its only link is a client that dropped out; use --dropout Bernoulli or ExactCount."
        )
    name = context.name or generator.removesuffix("_graph")
    if isinstance(graph, Links):
        nodes = nx.empty_graph(context.num_clients)
        return Topology(nodes, list(nodes), name=name, failures=context.failures, listed=graph)
    topology = to_topology(graph, context.num_clients, context.where, name, num_servers)
    return replace(topology, failures=context.failures, complete=generator == COMPLETE)


def _existing(path: Path, where: str) -> Path:
    """Return the path of a file; raise if the file does not exist."""
    try:
        exists = path.is_file()
    except (OSError, ValueError):
        exists = False
    if not exists:
        raise UserError(f"{where}: the graph file {ascii(str(path))[1:-1][:200]} does not exist.")
    return path


def refuse_unknown(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Raise if there are unknown keys, with a suggestion.

    Args:
        content: keys and values of a topology.
        known: the keys that are allowed.
        where: the source, for the message.

    Raises:
        UserError: a key is unknown; the message lists the known ones.
    """
    for key in content:
        if key not in known:
            name = str(key)[:60]
            raise UserError(f"{where}: unknown key '{name}'{nearest(name, known)} (keys: {', '.join(known)}).")


def join_of(content: Mapping[str, Any], where: str) -> str:
    """Return the value of the key `join`, which says where clients that come later start.

    Args:
        content: keys and values of a topology.
        where: the source, for the message.

    Raises:
        UserError: it is neither `own` nor `neighbours`.
    """
    join = content.get("join") or "own"
    if join not in ("own", "neighbours"):
        raise UserError(f"{where}: join is own or neighbours, not {brief(join)}.")
    return str(join)


def is_count(value: Any, least: int) -> bool:
    """Return True if a value is an integer, not a bool, of at least `least`.

    Args:
        value: a value of any type.
        least: smallest number that is allowed.
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def brief(value: Any) -> str:
    """Format a value for a message, with at most 60 characters."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    return ascii(value)[:60]
