"""Limits on the nodes, links and random draws of a generator, checked before it runs or while it draws."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from typing import Any

# Generators of networkx with loops that end by chance only, or never for some arguments (duplication_divergence_graph
# with p = 0). They receive a random stream that ends. The draws of all other generators are bounded by their numbers of
# nodes, pairs of nodes and attempts.
_UNTIL_IT_FITS = {
    *("LFR_benchmark_graph", "connected_watts_strogatz_graph", "directed_joint_degree_graph"),
    *("duplication_divergence_graph", "extended_barabasi_albert_graph", "gaussian_random_partition_graph"),
    *("joint_degree_graph", "random_degree_sequence_graph", "random_lobster", "random_lobster_graph"),
    *("random_powerlaw_tree", "random_powerlaw_tree_sequence", "random_regular_graph", "scale_free_graph"),
}
_DRAWS = 10**6
_DRAWS_A_PAIR = 20

# Arguments that list something about each node, so that their length is the number of nodes.
_LISTED = {
    "configuration_model": "deg_sequence",
    "degree_sequence_tree": "deg_sequence",
    "directed_configuration_model": "in_degree_sequence",
    "directed_havel_hakimi_graph": "in_deg_sequence",
    "expected_degree_graph": "w",
    "havel_hakimi_graph": "deg_sequence",
    "random_clustered_graph": "joint_degree_sequence",
    "random_degree_sequence_graph": "sequence",
    "visibility_graph": "series",
}

# Least or expected numbers of nodes, links or steps of these generators, by their arguments.
_WORK: dict[str, Callable[..., float]] = {
    "LCF_graph": lambda shift_list, repeats: len(shift_list) * repeats,
    "general_random_intersection_graph": lambda n, m: n * m,
    "geographical_threshold_graph": lambda n, dim=2: n * dim,
    "hexagonal_lattice_graph": lambda m, n: m * n / 2,
    "interval_graph": lambda intervals: len(intervals),
    "k_random_intersection_graph": lambda n, m, k: n * (m + k),
    "partial_duplication_graph": lambda N, n: max(N, n),
    "prefix_tree": lambda paths: sum(map(len, paths)) / 100,
    "prefix_tree_recursive": lambda paths: sum(map(len, paths)) / 100,
    "random_geometric_graph": lambda n, dim=2: n * dim,
    "random_k_out_graph": lambda n, k: n * k,
    "random_lobster": lambda n, p1, p2: _lobster(n, p1, p2),
    "random_lobster_graph": lambda n, p1, p2: _lobster(n, p1, p2),
    "random_shell_graph": lambda constructor: sum(shell[0] for shell in constructor),
    "scale_free_graph": lambda n, alpha=0.41, gamma=0.05: n / (alpha + gamma) if alpha + gamma > 0 else math.inf,
    "soft_random_geometric_graph": lambda n, dim=2: n * dim,
    "thresholded_random_geometric_graph": lambda n, dim=2: n * dim,
    "triangular_lattice_graph": lambda m, n: m * n / 4,
    "uniform_random_intersection_graph": lambda n, m: n * m,
}
_OF_NODES = {  # their work counts nodes, and a graph that fits has at most as many as there are clients
    *("hexagonal_lattice_graph", "interval_graph", "partial_duplication_graph", "random_lobster"),
    *("random_lobster_graph", "random_shell_graph", "triangular_lattice_graph"),
}

MOST_LINKS = 2 * 10**8  # networkx keeps a few hundred bytes for each


def _lobster(n: int, p1: float, p2: float) -> float:
    """Compute the expected number of nodes of a lobster.

    Each node of its backbone has a geometric number of leaves, and each of these has a geometric number of leaves too.
    """
    p1, p2 = abs(p1), abs(p2)
    if max(p1, p2) >= 1:
        return 0.0  # refused by networkx
    first = n * p1 / (1 - p1)
    return n + first + first * p2 / (1 - p2)


def listed_nodes(name: str, args: Mapping[str, Any]) -> int | None:
    """Return the number of nodes of a generator's graph, if an argument lists the nodes; None if it is not known.

    Args:
        name: name of the generator.
        args: its arguments by name.
    """
    value = args.get(_LISTED.get(name, ""))
    return len(value) if isinstance(value, list) else None


def out_of_proportion(name: str, args: Mapping[str, Any], m: int) -> bool:
    """Return True if a generator would make many more nodes, links or steps than a graph of m clients needs.

    Args:
        name: name of the generator.
        args: its arguments by name, of any types; arguments of a wrong type are left to the generator to refuse.
        m: number of clients.
    """
    work = _WORK.get(name)
    if work is None:
        return False
    parameters = work.__code__.co_varnames[: work.__code__.co_argcount]
    try:
        amount = work(**{parameter: args[parameter] for parameter in parameters if parameter in args})
        most = 10 * m + 1000 if name in _OF_NODES else 100 * m * m + 10**5
        return not amount <= most
    except (TypeError, ValueError, ArithmeticError, LookupError):
        return False


def too_many_links(name: str, args: Mapping[str, Any], m: int) -> int:
    """Return the expected number of links of a dense generator if it exceeds the limit `MOST_LINKS`; otherwise 0.

    Args:
        name: name of the generator.
        args: its arguments by name.
        m: number of nodes.
    """
    share: Any = {
        "complete_graph": 1.0,
        **dict.fromkeys(
            ("gnp_random_graph", "erdos_renyi_graph", "binomial_graph", "fast_gnp_random_graph"), args.get("p")
        ),
        "partial": args.get("fraction"),
    }.get(name)
    if isinstance(share, bool) or not isinstance(share, int | float) or math.isnan(share):
        return 0
    links = int(min(max(share, 0), 1) * (m * (m - 1) / 2))
    return links if links > MOST_LINKS else 0


class Stream(random.Random):
    """The random numbers of `random.Random(seed)`, with a limit on the number of draws.

    Args:
        seed: seed of the random numbers.
        most: largest number of draws.
    """

    def __init__(self, seed: int, most: int) -> None:
        self.most, self._left = most, iter(range(most))
        self.ended = False
        super().__init__(seed)
        self._random, self._bits = super().random, super().getrandbits

    def random(self) -> float:
        """Return the next number in [0, 1).

        Raises:
            ArithmeticError: the limit of draws is reached.
        """
        self._count()
        return self._random()

    def getrandbits(self, k: int, /) -> int:
        """Return the next k bits.

        Raises:
            ArithmeticError: the limit of draws is reached.
        """
        self._count()
        return self._bits(k)

    def _count(self) -> None:
        if next(self._left, None) is None:
            self.ended = True
            raise ArithmeticError("too many random draws")


def stream_for(name: str, seed: Any, m: int) -> Stream | None:
    """Create a limited random stream for a graph generator that might never end; None if it can take the seed itself.

    Args:
        name: name of the generator.
        seed: its seed.
        m: number of nodes.
    """
    if name not in _UNTIL_IT_FITS or not isinstance(seed, int):
        return None
    return Stream(seed, _DRAWS + _DRAWS_A_PAIR * m * m)
