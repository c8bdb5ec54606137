"""One graph from its keys: from a file, from a generator, or from a generator again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import networkx as nx

from dfl_lightning.links import Links
from dfl_lightning.topology.generators.by_name import COMPLETE, generate, is_random
from dfl_lightning.topology.graph import Topology
from dfl_lightning.topology.over_time.link_failures import LinkFailures
from dfl_lightning.topology.over_time.scheduled import Scheduled
from dfl_lightning.topology.over_time.schedules import SCHEDULES, schedule_of
from dfl_lightning.topology.over_time.time_varying import Redrawn
from dfl_lightning.topology.reading.files import read_graph
from dfl_lightning.topology.reading.normalise import to_topology
from dfl_lightning.utils.errors import UserError, nearest

_KEYS_OF_LINKS = ("link_up", "arc_up", "link_share")
KEYS_OF_A_GRAPH = ("generator", "args", "seed", "graph", *_KEYS_OF_LINKS, "every")


@dataclass(frozen=True)
class Context:
    """Where keys were written, and what they take from there.

    Attributes:
        where: the source, for error messages.
        name: what the topology is called; None: after its generator or graph file.
        folder: that paths of graph files start from.
        num_clients: m.
        seed: for draws where the keys have none.
        failures: for graphs whose keys say nothing about links.
    """

    where: str
    name: str | None
    folder: Path
    num_clients: int
    seed: int
    failures: LinkFailures = field(default_factory=LinkFailures)


def inside(content: Mapping[str, Any], place: Context) -> Context:
    """The place with the seed and the link options that these keys set.

    Args:
        content: keys of a topology.
        place: where the topology is read, with what it inherits.

    Raises:
        UserError: the seed is not a whole number >= 0, or two keys about links exclude each other.
    """
    seed = content.get("seed")
    if seed is None:
        seed = place.seed
    elif not is_count(seed, 0):
        raise UserError(f"{place.where}: seed must be a whole number >= 0, not {brief(seed)}.")
    given = [key for key in _KEYS_OF_LINKS if content.get(key) is not None]
    if len(given) > 1:
        raise UserError(f"{place.where}: {given[0]} and {given[1]} exclude each other; keep one.")
    failures = _failures(given[0], content[given[0]], place.where) if given else place.failures
    return replace(place, seed=seed, failures=replace(failures, seed=seed))


def _failures(key: str, value: Any, where: str) -> LinkFailures:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
        raise UserError(f"{where}: {key} must be above 0 and at most 1, not {brief(value)}.")
    if key == "link_share":
        return LinkFailures(share=float(value))
    return LinkFailures(up=float(value), each_way=key == "arc_up")


def graph_of(content: Mapping[str, Any], place: Context) -> Topology:
    """One graph, which may be drawn anew every few rounds.

    Args:
        content: keys and values of a single graph; exactly one of `generator` and `graph`.
        place: where they were written.

    Raises:
        UserError: anything that is not a graph of this size, in one sentence.
    """
    every = content.get("every")
    if every is not None and not is_count(every, 1):
        raise UserError(f"{place.where}: every must be a whole number of rounds >= 1, not {brief(every)}.")
    return _from_generator(content, every, place) if "generator" in content else _from_file(content, every, place)


def _from_file(content: Mapping[str, Any], every: int | None, place: Context) -> Topology:
    where = place.where
    if not isinstance(content["graph"], str) or "args" in content:
        raise UserError(f"{where}: graph takes the path of a graph file and no args.")
    if every is not None:
        raise UserError(f"{where}: every draws a generator's graph anew; for graph files in turn use sequence.")
    path = _existing(place.folder / content["graph"], where)
    topology = to_topology(read_graph(path, place.num_clients), place.num_clients, str(path), place.name or path.stem)
    return replace(topology, failures=place.failures)


def _from_generator(content: Mapping[str, Any], every: int | None, place: Context) -> Topology:
    where, generator, args = place.where, content["generator"], content.get("args")
    if not isinstance(generator, str):
        raise UserError(f"{where}: generator takes a name, not a {type(generator).__name__}.")
    if args is not None and (not isinstance(args, Mapping) or not all(isinstance(key, str) for key in args)):
        raise UserError(f"{where}: args takes names and values, for example args: {{k: 4}}.")
    args = dict(args or {})
    if generator in SCHEDULES:
        if every is not None:
            raise UserError(f"{where}: every draws a graph anew, and {generator} has one for each round; leave it out.")
        schedule = schedule_of(generator, args, place.num_clients, place.seed, where)
        return Scheduled.of(schedule, place.num_clients, place.name or generator, place.failures)
    draw = partial(_drawn, generator, args, place)
    topology = draw(place.seed)
    if every is None:
        return topology
    if not is_random(generator):
        raise UserError(f"{where}: every needs a random generator, and {generator} makes the same graph each time.")
    if args.get("seed") is not None:
        raise UserError(f"{where}: every with the seed in args makes the same graph each time; put seed next to args.")
    first = {entry.name: getattr(topology, entry.name) for entry in fields(topology)}
    recipe = f"{generator} {sorted(args.items())}"
    return Redrawn(**first, draw=draw, seed=place.seed, every=every, recipe=recipe)


def _drawn(generator: str, args: dict[str, Any], place: Context, seed: int) -> Topology:
    graph, num_servers = generate(generator, args, place.num_clients, seed, place.where)
    if num_servers and place.failures.fail:
        raise UserError(
            f"{place.where}: links to a server do not fail by link_up, arc_up or link_share, since a client without "
            "its only link is a client that dropped out; use --dropout Bernoulli or ExactCount."
        )
    name = place.name or generator.removesuffix("_graph")
    if isinstance(graph, Links):
        nodes = nx.empty_graph(place.num_clients)
        return Topology(nodes, list(nodes), name=name, failures=place.failures, listed=graph)
    topology = to_topology(graph, place.num_clients, place.where, name, num_servers)
    return replace(topology, failures=place.failures, complete=generator == COMPLETE)


def _existing(path: Path, where: str) -> Path:
    try:
        found = path.is_file()
    except (OSError, ValueError):
        found = False
    if not found:
        raise UserError(f"{where}: the graph file {ascii(str(path))[1:-1][:200]} does not exist.")
    return path


def refuse_unknown(content: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    """Refuse unknown keys, with a suggestion.

    Args:
        content: keys of a topology.
        known: the keys that may be given.
        where: the place, for the message.

    Raises:
        UserError: names the unknown key and the known ones.
    """
    for key in content:
        if key not in known:
            word = str(key)[:60]
            raise UserError(f"{where}: unknown key '{word}'{nearest(word, known)} (keys: {', '.join(known)}).")


def is_count(value: Any, least: int) -> bool:
    """Whether a value is a whole number (no bool) of at least `least`.

    Args:
        value: anything.
        least: the smallest that is allowed.
    """
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def brief(value: Any) -> str:
    """A value in a sentence."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    return ascii(value)[:60]
