"""Generators of graphs: ours, and networkx's own by name. Nothing else can be named."""

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

# How many nodes networkx's generators make where that is not simply their argument n. With it, n is found from the
# number of clients where it is left out, and a graph that cannot fit is refused before it is made.
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
# Their n is something else, and does not fix the number of nodes: it must be given like any other argument.
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
# Arguments whose numbers are ends of links, which are counted together.
_DEGREES = {
    *("deg_sequence", "in_deg_sequence", "in_degree_sequence", "in_degrees", "joint_degree_sequence", "joint_degrees"),
    *("nkk", "out_deg_sequence", "out_degree_sequence", "out_degrees", "sequence"),
}
_SEVERAL = ("number_of_trees", "number_of_forests")


def generate(name: str, args: dict[str, Any], num_clients: int, seed: int, where: str) -> tuple[nx.Graph | Links, int]:
    """The graph that a generator makes for this number of clients.

    Args:
        name: `complete`, `partial`, `server`, or a graph generator of networkx.
        args: its arguments; an `n` that is left out becomes what gives `num_clients` nodes.
        num_clients: the number of clients.
        seed: given to generators that take one.
        where: the source, for error messages.

    Returns:
        The graph over the clients, or its links where they are drawn without networkx, and the number of servers beside
        them; `complete` has no link written down.

    Raises:
        UserError: unknown generator or argument, missing argument, or one that the generator refuses.
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
    """The functions that networkx defines in its folder of generators, by name."""
    return {
        name: value
        for name, value in vars(nx.generators).items()
        if not name.startswith(("_", "is_", "number_of_"))  # these answer questions instead of making graphs
        and callable(value)
        and not inspect.isclass(value)
        and getattr(value, "__module__", "").startswith("networkx.generators.")
    }


def is_random(name: str) -> bool:
    """Whether a generator draws its graph from a seed."""
    if name in _OURS:
        return name == "partial"
    return "seed" in inspect.signature(networkx_generators()[name]).parameters


def _ours(name: str, args: dict[str, Any], m: int, seed: int, where: str) -> tuple[nx.Graph, int]:
    accepted: dict[str, dict[str, Any]] = {"complete": {}, "partial": {"fraction": 0.5}, "server": {"servers": 1}}
    _refuse_unknown(name, args, accepted[name], where)
    args = {**accepted[name], **args}
    if name == COMPLETE:
        return nx.empty_graph(m), 0  # all nodes are linked: `Topology.complete` says so without a list
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
    """A random regular graph: each client is linked to a share of the others.

    The degree is the feasible one (m times degree is even) nearest to fraction * (m - 1); of two, the larger.

    Args:
        m: number of clients.
        fraction: of the other clients that each client is linked to, 0 to 1.
        seed: of the draw.

    Examples:
        >>> sorted(dict(partial(8, 0.5, seed=0).degree()).values())
        [4, 4, 4, 4, 4, 4, 4, 4]
    """
    wanted = fraction * (m - 1)
    degree = min((d for d in range(m) if m * d % 2 == 0), key=lambda d: (abs(d - wanted), -d))
    if 2 * degree <= m - 1:
        return nx.random_regular_graph(degree, m, seed=seed)
    # dense regular graphs are slow to draw, and the complement of a regular graph is one
    return nx.complement(nx.random_regular_graph(m - 1 - degree, m, seed=seed))


def _networkx(
    name: str, function: Callable[..., Any], args: dict[str, Any], m: int, seed: int, where: str
) -> nx.Graph | Links:
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
                f"{where}: {name} with {key}={_brief(args[key])} may try for ever; {_MOST_TRIES} is the most."
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
    several = [value for key, value in args.items() if parameters[key].kind is inspect.Parameter.VAR_POSITIONAL]
    named = {key: value for key, value in args.items() if parameters[key].kind is not inspect.Parameter.VAR_POSITIONAL}
    stream = stream_for(name, args.get("seed"), m)
    if stream is not None:
        named["seed"] = stream
    try:
        if name == REGULAR and stream is not None and may_be_regular(args.get("d"), args["n"]) and len(args) == 3:
            return regular_links(args["d"], args["n"], args["seed"], most=stream.most)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # networkx's plans for its own functions
            graph = function(*(several[0] if several else ()), **named)
    except Exception as error:  # networkx raises what it likes on arguments that do not go together
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
    """Fill in `n`, and refuse a graph of another size before it is made."""
    size = _SIZES.get(name)
    if size is None:
        if takes_n and name not in _OTHER_N and args.setdefault("n", m) is not None:
            if not _is_int(args["n"]):
                raise UserError(f"{where}: {name} takes a whole number for n, not {_brief(args['n'])}.")
            if args["n"] != m:
                raise wrong_size(where, args["n"], m)
        if (listed := listed_nodes(name, args)) not in (None, m):
            raise wrong_size(where, listed or 0, m)
        # whatever else is counted, degrees or links, there are fewer than pairs of clients
        for key, value in args.items():
            counted = _total(value) if key in _DEGREES else _largest(value)
            if key not in ("seed", *_TRIES) and counted > max(m * m, 1000):
                raise UserError(f"{where}: {name} with {key}={_brief(value)} is out of proportion for {m} clients.")
        if out_of_proportion(name, args, m):
            given = ", ".join(f"{key}={_brief(value)}" for key, value in args.items() if key != "seed")
            raise UserError(f"{where}: {name} with {given[:120]} is out of proportion for {m} clients.")
        return
    words = inspect.signature(size).parameters
    known = {word: args[word] for word in words if word in args}
    if any(word not in known and word != "n" and words[word].default is words[word].empty for word in words):
        return  # the missing argument is told next
    # no size argument exceeds the nodes it makes: huge numbers stop here, before any arithmetic with them
    for word, value in known.items():
        numbers = value if isinstance(value, list) else [value]
        if not all(_is_int(number) and number >= 0 for number in numbers):
            raise UserError(f"{where}: {name} takes whole numbers >= 0 for {word}, not {_brief(value)}.")
        if max(numbers, default=0) > max(m, 10):
            raise UserError(
                f"{where}: {name} with {word}={_brief(value)} has more nodes than the {m} clients of the data."
            )
    try:
        if "n" in words and "n" not in known:
            fitting = [n for n in range(1, m + 1) if size(n=n, **known) == m]
            if not fitting:
                raise UserError(
                    f"{where}: {name} cannot have {m} nodes, one for each client of the data; choose another."
                )
            args["n"] = known["n"] = fitting[0]
        nodes = size(**known)
    except (TypeError, ValueError, ArithmeticError) as error:
        raise UserError(f"{where}: {name} failed for {m} clients ({reason(error)}).") from error
    if nodes != m:
        raise wrong_size(where, nodes, m)


def _refuse_unknown(name: str, args: dict[str, Any], accepted: Any, where: str) -> None:
    for key in args:
        if key not in accepted:
            takes = f"its arguments are: {', '.join(accepted)}" if accepted else "it takes none"
            raise UserError(f"{where}: {name} has no argument '{key[:60]}'{nearest(key[:60], accepted)} ({takes}).")


def _graph_class(word: Any, where: str) -> type[nx.Graph]:
    classes = {"Graph": nx.Graph, "DiGraph": nx.DiGraph}
    if not isinstance(word, str) or word not in classes:
        raise UserError(f"{where}: create_using takes Graph or DiGraph, not {_brief(word)}.")
    return classes[word]


def _arguments(words: list[str]) -> str:
    return f"the argument {words[0]}" if len(words) == 1 else f"the arguments {', '.join(words)}"


def _largest(value: Any) -> int:
    """The largest whole number anywhere in an argument; 0 where there is none."""
    return max(map(abs, filter(_is_int, _leaves(value))), default=0)


def _total(value: Any) -> int:
    """The sum of the whole numbers anywhere in an argument, without their signs."""
    return sum(map(abs, filter(_is_int, _leaves(value))))


def _has_nan(value: Any) -> bool:
    return any(isinstance(leaf, float) and math.isnan(leaf) for leaf in _leaves(value))


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple | dict):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _leaves(inner)
    else:
        yield value


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _brief(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**18:
        return "a huge number"
    return repr(value)[:60]
