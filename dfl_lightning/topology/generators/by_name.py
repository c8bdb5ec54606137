"""Generators of graphs by name: our own, and those of networkx."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import networkx as nx

from dfl_lightning.links import Links
from dfl_lightning.topology.generators.bounds import listed_nodes, out_of_proportion, stream_for, too_many_links
from dfl_lightning.topology.generators.regular import TooManyDraws, may_be_regular, regular_links
from dfl_lightning.topology.over_time.schedules import SCHEDULES
from dfl_lightning.topology.reading.normalise import wrong_size
from dfl_lightning.utils.errors import UserError, nearest, reason

COMPLETE = "complete"
REGULAR = "random_regular_graph"
_OURS = (COMPLETE, "partial", "server")

# Number of nodes of generators of networkx for which it is not simply their argument n. It serves to find n for the
# number of clients if n is left out, and to refuse a graph of another size before it is made.
_SIZES: dict[str, Callable[..., int]] = {
    "balanced_tree": lambda r, h: sum(r**level for level in range(h + 1)),
    "barbell_graph": lambda m1, m2: 2 * m1 + m2,
    "binomial_tree": lambda n: 2**n,
    "caveman_graph": lambda l, k: l * k,
    "chordal_cycle_graph": lambda p: p,
    "circular_ladder_graph": lambda n: 2 * n,
    "complete_multipartite_graph": lambda subset_sizes: sum(subset_sizes),
    "connected_caveman_graph": lambda l, k: l * k,
    "dorogovtsev_goltsev_mendes_graph": lambda n: (3**n + 3) // 2,
    "generalized_petersen_graph": lambda n: 2 * n,
    "grid_2d_graph": lambda m, n: m * n,
    "grid_graph": lambda dim: math.prod(dim),
    "hypercube_graph": lambda n: 2**n,
    "kneser_graph": lambda n, k: math.comb(n, k),
    "ladder_graph": lambda n: 2 * n,
    "lollipop_graph": lambda m, n: m + n,
    "margulis_gabber_galil_graph": lambda n: n * n,
    "mycielski_graph": lambda n: 1 if n == 1 else 3 * 2**n // 4 - 1,
    "navigable_small_world_graph": lambda n, dim=2: n**dim,
    "paley_graph": lambda p: p,
    "planted_partition_graph": lambda l, k: l * k,
    "random_cograph": lambda n: 2**n,
    "random_partition_graph": lambda sizes: sum(sizes),
    "relaxed_caveman_graph": lambda l, k: l * k,
    "ring_of_cliques": lambda num_cliques, clique_size: num_cliques * clique_size,
    "star_graph": lambda n: n + 1,
    "stochastic_block_model": lambda sizes: sum(sizes),
    "sudoku_graph": lambda n: n**4,
    "tadpole_graph": lambda m, n: m + n,
    "windmill_graph": lambda n, k: n * (k - 1) + 1,
}
# The n of these generators is not the number of nodes, so that it must be given like any other argument.
_OTHER_N = {
    "ego_graph",
    "hexagonal_lattice_graph",
    "partial_duplication_graph",
    "random_lobster",
    "random_lobster_graph",
    "triangular_lattice_graph",
}

_TRIES = ("tries", "max_tries", "max_iters")
_MOST_TRIES = 10_000
# Arguments whose numbers are degrees, so that their sum counts the ends of links.
_DEGREES = {
    *("deg_sequence", "in_deg_sequence", "in_degree_sequence", "in_degrees", "joint_degree_sequence", "joint_degrees"),
    *("nkk", "out_deg_sequence", "out_degree_sequence", "out_degrees", "sequence"),
}
_SEVERAL = ("number_of_trees", "number_of_forests")


def generate(name: str, args: dict[str, Any], num_clients: int, seed: int, where: str) -> tuple[nx.Graph | Links, int]:
    """Generate a graph with a node for each client.

    Args:
        name: `complete`, `partial`, `server`, or a graph generator of networkx.
        args: its arguments; an `n` that is left out is chosen to give `num_clients` nodes.
        num_clients: number of clients.
        seed: seed of random generators, unless `args` has one.
        where: the source, for error messages.

    Returns:
        The graph over the clients, or its links if they are drawn without networkx, and the number of servers. The
        graph of `complete` is returned without its links.

    Raises:
        UserError: the generator or an argument is unknown, an argument is missing, or the generator refuses one.
    """
    if links := too_many_links(name, {"fraction": 0.5} | args if name == "partial" else args, num_clients):
        raise UserError(
            f"{where}: {name} of {num_clients} clients has {links:,} links, more than memory holds; choose a sparser "
            "graph."
        )
    if name in _OURS:
        return _ours(name, args, num_clients, seed, where)
    choices = networkx_generators()
    if name not in choices:
        hint = nearest(name[:100], [*_OURS, *SCHEDULES, *choices])
        raise UserError(
            f"{where}: unknown generator '{name[:100]}'{hint} "
            f"(ours: {', '.join((*_OURS, *SCHEDULES))}; or a graph generator of networkx)."
        )
    return _networkx(name, choices[name], args, num_clients, seed, where), 0


@cache
def networkx_generators() -> dict[str, Callable[..., Any]]:
    """Return the functions that networkx defines in its package `generators`, by name."""
    return {
        name: value
        for name, value in vars(nx.generators).items()
        if not name.startswith(("_", "is_", "number_of_"))  # functions with these names do not return graphs
        and callable(value)
        and not inspect.isclass(value)
        and getattr(value, "__module__", "").startswith("networkx.generators.")
    }


def is_random(name: str) -> bool:
    """Return True if a generator draws its graph from a seed."""
    if name in _OURS:
        return name == "partial"
    return "seed" in inspect.signature(networkx_generators()[name]).parameters


def _ours(name: str, args: dict[str, Any], m: int, seed: int, where: str) -> tuple[nx.Graph, int]:
    """Generate one of our own graphs; see `generate`."""
    accepted: dict[str, dict[str, Any]] = {"complete": {}, "partial": {"fraction": 0.5}, "server": {"servers": 1}}
    _refuse_unknown(name, args, accepted[name], where)
    args = {**accepted[name], **args}
    if name == COMPLETE:
        return nx.empty_graph(m), 0  # `Topology.complete` marks that all nodes are linked, without a list of links
    if name == "server":
        servers = args["servers"]
        if not _is_int(servers) or servers < 1 or servers > max(m, 1):
            raise UserError(
                f"{where}: servers must be a whole number from 1 to the {m} clients, not {_brief(servers)}."
            )
        return nx.empty_graph(m), servers
    fraction = args["fraction"]
    if isinstance(fraction, bool) or not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise UserError(f"{where}: fraction must be above 0 and at most 1, not {_brief(fraction)}.")
    return partial(m, fraction, seed), 0


def partial(m: int, fraction: float, seed: int) -> nx.Graph:
    """Draw a random regular graph in which each client is linked to a share of the others.

    The degree is the feasible one (m times degree is even) nearest to fraction * (m - 1); of two, the larger.

    Args:
        m: number of clients.
        fraction: share of the other clients that each client is linked to, 0 to 1.
        seed: seed of the draw.

    Examples:
        >>> sorted(dict(partial(8, 0.5, seed=0).degree()).values())
        [4, 4, 4, 4, 4, 4, 4, 4]
    """
    wanted = fraction * (m - 1)
    degree = min((d for d in range(m) if m * d % 2 == 0), key=lambda d: (abs(d - wanted), -d))
    if 2 * degree <= m - 1:
        return nx.random_regular_graph(degree, m, seed=seed)
    # Dense regular graphs are slow to draw, and the complement of a regular graph is regular too.
    return nx.complement(nx.random_regular_graph(m - 1 - degree, m, seed=seed))


def _networkx(
    name: str, function: Callable[..., Any], args: dict[str, Any], m: int, seed: int, where: str
) -> nx.Graph | Links:
    """Call a generator of networkx with checked arguments; see `generate`."""
    parameters = {
        key: parameter
        for key, parameter in inspect.signature(function).parameters.items()
        if key != "backend" and parameter.kind is not inspect.Parameter.VAR_KEYWORD
    }
    _refuse_unknown(name, args, parameters, where)
    args = dict(args)
    if "seed" in parameters:
        args.setdefault("seed", seed)
    if args.get("create_using") is not None:
        args["create_using"] = _graph_class(args["create_using"], where)
    for key in _TRIES:
        if _largest(args.get(key)) > _MOST_TRIES:
            raise UserError(
                f"{where}: {name} with {key}={_brief(args[key])} may try for ever; give {_MOST_TRIES} at most."
            )
    for key in _SEVERAL:
        if args.get(key) is not None:
            raise UserError(f"{where}: {name} with {key} makes several graphs; leave it out.")
    if any(_has_nan(value) for value in args.values()):
        raise UserError(f"{where}: {name} has an argument that is not a number (nan); give one.")
    _fit(name, args, "n" in parameters, m, where)
    missing = [
        key
        for key, parameter in parameters.items()
        if key not in args and (parameter.default is parameter.empty or parameter.kind is parameter.VAR_POSITIONAL)
    ]
    if missing:
        raise UserError(
            f"{where}: {name} needs {_arguments(missing)}; give {'it' if len(missing) == 1 else 'them'} in args."
        )
    positional = [value for key, value in args.items() if parameters[key].kind is inspect.Parameter.VAR_POSITIONAL]
    named = {key: value for key, value in args.items() if parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL}
    stream = stream_for(name, args.get("seed"), m)
    if stream is not None:
        named["seed"] = stream
    try:
        if name == REGULAR and stream is not None and may_be_regular(args.get("d"), args["n"]) and len(args) == 3:
            return regular_links(args["d"], args["n"], args["seed"], most=stream.most)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # networkx announces changes of its own functions
            graph = function(*(positional[0] if positional else ()), **named)
    except Exception as error:  # networkx raises many types of errors on arguments that do not fit together
        if isinstance(error, TooManyDraws) or (stream is not None and stream.ended):
            raise UserError(
                f"{where}: {name} came to no end in a million random draws and more; choose other arguments for "
                f"{m} clients (a dense regular graph is generator: partial)."
            ) from None
        raise UserError(f"{where}: {name} failed for {m} clients ({reason(error)}).") from error
    if not isinstance(graph, nx.Graph):
        raise UserError(f"{where}: {name} of networkx does not make one graph.")
    return graph


def _fit(name: str, args: dict[str, Any], takes_n: bool, m: int, where: str) -> None:
    """Set a missing `n`, and raise if the graph would have another size, before it is made."""
    size = _SIZES.get(name)
    if size is None:
        if takes_n and name not in _OTHER_N and args.setdefault("n", m) is not None:
            if not _is_int(args["n"]):
                raise UserError(f"{where}: {name} takes a whole number for n, not {_brief(args['n'])}.")
            if args["n"] != m:
                raise wrong_size(where, args["n"], m)
        if (listed := listed_nodes(name, args)) not in (None, m):
            raise wrong_size(where, listed or 0, m)
        # No other number that fits, of degrees or of links, exceeds the number of pairs of clients.
        for key, value in args.items():
            counted = _total(value) if key in _DEGREES else _largest(value)
            if key not in ("seed", *_TRIES) and counted > max(m * m, 1000):
                raise UserError(f"{where}: {name} with {key}={_brief(value)} is out of proportion for {m} clients.")
        if out_of_proportion(name, args, m):
            given = ", ".join(f"{key}={_brief(value)}" for key, value in args.items() if key != "seed")
            raise UserError(f"{where}: {name} with {given[:120]} is out of proportion for {m} clients.")
        return
    needed = inspect.signature(size).parameters
    size_args = {key: args[key] for key in needed if key in args}
    if any(key not in size_args and key != "n" and needed[key].default is needed[key].empty for key in needed):
        return  # `_networkx` reports the missing argument next
    # A graph has at least as many nodes as its size arguments say, so that huge ones are refused before any arithmetic.
    for key, value in size_args.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(_is_int(number) and number >= 0 for number in numbers):
            raise UserError(f"{where}: {name} takes whole numbers >= 0 for {key}, not {_brief(value)}.")
        if max(numbers, default=0) > max(m, 10):
            raise UserError(
                f"{where}: {name} with {key}={_brief(value)} has more nodes than the {m} clients of the data."
            )
    try:
        if "n" in needed and "n" not in size_args:
            fitting = [n for n in range(1, m + 1) if size(n=n, **size_args) == m]
            if not fitting:
                raise UserError(
                    f"{where}: {name} cannot have {m} nodes, one for each client of the data; choose another."
                )
            args["n"] = size_args["n"] = fitting[0]
        nodes = size(**size_args)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{where}: {name} failed for {m} clients ({reason(error)}).") from error
    if nodes != m:
        raise wrong_size(where, nodes, m)


def _refuse_unknown(name: str, args: dict[str, Any], accepted: Any, where: str) -> None:
    for key in args:
        if key not in accepted:
            takes = f"its arguments are: {', '.join(accepted)}" if accepted else "it takes none"
            raise UserError(f"{where}: {name} has no argument '{key[:60]}'{nearest(key[:60], accepted)} ({takes}).")


def _graph_class(name: Any, where: str) -> type[nx.Graph]:
    classes = {"Graph": nx.Graph, "DiGraph": nx.DiGraph}
    if not isinstance(name, str) or name not in classes:
        raise UserError(f"{where}: create_using takes Graph or DiGraph, not {_brief(name)}.")
    return classes[name]


def _arguments(names: list[str]) -> str:
    return f"the argument {names[0]}" if len(names) == 1 else f"the arguments {', '.join(names)}"


def _largest(value: Any) -> int:
    """Return the largest absolute value of the integers in a nested argument; 0 if there are none."""
    return max(map(abs, filter(_is_int, _leaves(value))), default=0)


def _total(value: Any) -> int:
    """Sum the absolute values of the integers in a nested argument."""
    return sum(map(abs, filter(_is_int, _leaves(value))))


def _has_nan(value: Any) -> bool:
    return any(isinstance(leaf, float) and math.isnan(leaf) for leaf in _leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    """Yield the values in nested lists, tuples and dictionaries."""
    if isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _brief(value: Any) -> str:
    """Shorten a value for a message."""
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    return repr(value)[:60]
