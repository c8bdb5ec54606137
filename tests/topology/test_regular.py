"""The random regular graph that is drawn with arrays against networkx's own function."""

import random

import networkx as nx
import numpy as np
import pytest

from dfl_lightning.topology import load_topology
from dfl_lightning.topology.generators.regular import TooManyDraws, _Words, regular_codes

CASES = [(0, 4, 2), (1, 4, 5), (2, 5, 40), (3, 4, 10), (4, 9, 40), (6, 9, 40), (5, 12, 20), (10, 100, 10), (40, 100, 4)]
LARGER = [(10, 3000, 2), (3, 10_000, 1), (90, 1000, 1)]


@pytest.mark.parametrize(("degree", "nodes", "seeds"), CASES + LARGER)
def test_a_regular_graph_equals_networkxs(degree, nodes, seeds):
    for seed in range(seeds):
        graph = nx.random_regular_graph(degree, nodes, seed=seed)
        expected = sorted(min(edge) * nodes + max(edge) for edge in graph.edges())
        assert regular_codes(degree, nodes, seed, most=10**9).tolist() == expected


@pytest.mark.parametrize("size", [2, 3, 4, 5, 17, 1000, 30_000])
def test_a_shuffle_equals_pythons(size):
    words, generator = _Words(7, most=10**9), random.Random(7)
    for _ in range(2):  # the second shuffle continues the stream
        items, expected = np.arange(size), list(range(size))
        words.shuffle(items)
        generator.shuffle(expected)
        assert items.tolist() == expected


def test_generation_ends_where_networkx_would_never_return():
    with pytest.raises(TooManyDraws):
        regular_codes(8, 10, seed=0, most=5)


def test_a_topology_has_its_links_without_a_graph_of_networkx():
    topology = load_topology({"generator": "random_regular_graph", "args": {"d": 4}}, 30, 5)
    graph = nx.random_regular_graph(4, 30, seed=5)
    assert topology.written.number_of_edges() == 0
    assert nx.utils.graphs_equal(topology.graph, graph)
    links = topology.linked(0)
    ours = zip(links.receivers.tolist(), links.senders.tolist(), strict=True)
    assert sorted(ours) == sorted([*graph.edges(), *((b, a) for a, b in graph.edges())])
