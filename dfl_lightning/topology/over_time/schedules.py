"""Generators by name whose graph changes in each round by a schedule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from dfl_lightning.topology.generators.base_graph import OneRound, base_rounds, links_of
from dfl_lightning.topology.generators.bounds import MOST_LINKS
from dfl_lightning.topology.over_time.epidemic import epidemic_links, regular_links
from dfl_lightning.topology.over_time.one_peer import one_peer_links, one_peer_rounds
from dfl_lightning.topology.over_time.scheduled import GraphSequence, Step
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed

_ARGUMENTS: dict[str, dict[str, int]] = {
    "one_peer_exponential": {},
    "base_graph": {"k": 1},
    "el_local": {"s": 5},
    "el_oracle": {"s": 5},
}
SCHEDULES = tuple(_ARGUMENTS)
"""Names of the generators with a schedule."""

_METHOD_NAMES = {
    "one_peer_exponential": "One-peer exponential",
    "base_graph": "Base-{} graph",
    "el_local": "EL-Local",
    "el_oracle": "EL-Oracle",
}


def method_name(generator: str, args: Mapping[str, Any]) -> str:
    """Return the name, for reports, of the method in which clients mix all neighbours in a generator's graphs.

    It is empty if the graphs do not belong to a method.

    Args:
        generator: name of the generator.
        args: arguments of the generator.

    Examples:
        >>> method_name("el_local", {}), method_name("base_graph", {"k": 3}), method_name("complete", {})
        ('EL-Local', 'Base-4 graph', '')
    """
    name = _METHOD_NAMES.get(generator, "")
    return name.format(int(args.get("k", 1)) + 1) if "{}" in name else name


def schedule_of(name: str, args: Mapping[str, Any], clients: int, seed: int, where: str) -> GraphSequence:
    """Create the schedule of a generator for a number of clients.

    Args:
        name: name of the generator, one of `SCHEDULES`.
        args: arguments of the generator.
        clients: number of clients m.
        seed: seed of random graphs.
        where: the source, for error messages.

    Raises:
        UserError: an argument is unknown, or there is no such graph.
    """
    defaults = _ARGUMENTS[name]
    for key in args:
        if key not in defaults:
            takes = f"it takes {', '.join(defaults)}" if defaults else "it takes none"
            raise UserError(f"{where}: {name} has no argument '{key[:60]}' ({takes}).")
    if name == "one_peer_exponential":
        return GraphSequence(
            partial(_one_peer, clients), one_peer_rounds(clients), "one-peer exponential graphs", arcs=True
        )
    if name == "base_graph":
        return _base(args.get("k", defaults["k"]), clients, where)
    return _epidemic(name, {**defaults, **args}["s"], clients, seed, where)


def _one_peer(clients: int, number: int) -> Step:
    return Step(one_peer_links(clients, number))


def _base(k: Any, clients: int, where: str) -> GraphSequence:
    if not isinstance(k, int) or isinstance(k, bool) or not 1 <= k <= max(clients - 1, 1):
        raise UserError(
            f"{where}: base_graph takes for k, the largest number of neighbours in a round, a whole number from 1 to "
            f"the {max(clients - 1, 1)} others, not {ascii(k)[:40]}."
        )
    if clients * k > MOST_LINKS:
        raise UserError(
            f"{where}: base_graph of {clients} clients with k={k} has up to {clients * k:,} arcs in a round, more than "
            "memory holds; choose a smaller k."
        )
    rounds = base_rounds(clients, k)
    return GraphSequence(partial(_base_step, rounds, clients), len(rounds), f"base_graph k={k}", mixing=True)


def _base_step(rounds: list[OneRound], clients: int, number: int) -> Step:
    return Step(*links_of(rounds[number], clients))


def _epidemic(name: str, s: Any, clients: int, seed: int, where: str) -> GraphSequence:
    if not isinstance(s, int) or isinstance(s, bool) or not 1 <= s <= max(clients - 1, 1):
        raise UserError(
            f"{where}: {name} takes for s, the number of others that a client sends to, a whole number from 1 to the "
            f"{max(clients - 1, 1)} others, not {ascii(s)[:40]}."
        )
    s = min(s, clients - 1)  # 0 for a single client
    if clients * s > MOST_LINKS:
        raise UserError(
            f"{where}: {name} of {clients} clients has {clients * s:,} arcs, more than memory holds; choose a "
            "smaller s."
        )
    if name == "el_oracle" and clients * s % 2:
        raise UserError(
            f"{where}: no graph links each of {clients} clients to {s} others, since {clients} x {s} is odd; choose "
            f"s: {s + 1 if s + 1 < clients else s - 1}, or generator: el_local."
        )
    draw = epidemic_links if name == "el_local" else regular_links
    recipe = f"{name} s={s} from seed {seed} anew every 1"
    return GraphSequence(partial(_epidemic_step, draw, clients, s, seed), None, recipe, arcs=name == "el_local")


def _epidemic_step(draw: Callable[[int, int, int], Any], clients: int, s: int, seed: int, number: int) -> Step:
    return Step(draw(clients, s, stream_seed(seed, "topology", number)))
