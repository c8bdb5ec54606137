"""Graphs that follow a schedule: one-peer exponential graphs and Epidemic Learning, against numpy and networkx."""

import collections
import pickle

import networkx as nx
import numpy as np
import pytest
import torch
from pairs import weight_matrix
from scipy import stats

from dfl_lightning.links import Links
from dfl_lightning.topology import load_topology
from dfl_lightning.topology.generators.base_graph import base_rounds
from dfl_lightning.topology.graph import components
from dfl_lightning.topology.over_time.epidemic import epidemic_links, regular_links
from dfl_lightning.utils.errors import UserError

ONE_PEER, BASE, LOCAL, ORACLE = (
    {"generator": name} for name in ("one_peer_exponential", "base_graph", "el_local", "el_oracle")
)
TWO = {"args": {"s": 2}}


def equal_weights(mask):
    """Rows of a mixing matrix, by numpy: 1 / (1 + number received from)."""
    mask = np.asarray(mask, float) + np.eye(len(mask))
    return mask / mask.sum(1, keepdims=True)


# one-peer exponential graphs


@pytest.mark.parametrize("m", [2, 5, 8, 12])
def test_a_client_receives_from_the_papers_sender(m):
    """Eq. 7: w_ij = 1/2 if log2((j - i) mod m) = t mod tau, tau the whole number at or above log2 m."""
    topology, tau = load_topology(ONE_PEER, m), int(np.ceil(np.log2(m)))
    for t in (0, 1, tau, 7 * tau + 1):
        expected = [[(j - i) % m == 2 ** (t % tau) % m and i != j for j in range(m)] for i in range(m)]
        assert topology.reachable(t).mask.tolist() == expected


@pytest.mark.parametrize("m", [2, 8, 32])
@pytest.mark.parametrize("first", [0, 3])
def test_any_log2_rounds_in_a_row_give_the_exact_mean(m, first):
    topology, tau, product = load_topology(ONE_PEER, m), m.bit_length() - 1, np.eye(m)
    for t in range(first, first + tau):
        assert not np.allclose(product, 1 / m, atol=1e-3)
        product = equal_weights(topology.reachable(t).mask) @ product
    assert np.array_equal(product, np.full((m, m), 1 / m))


# Base-(k+1) graphs


@pytest.mark.parametrize("m", [1, 2, 3, 5, 6, 7, 8, 12, 13, 14, 22, 25, 31, 36, 60, 77])
@pytest.mark.parametrize("k", [1, 2, 3, 5, 11])
def test_the_base_graph_averages_exactly_within_its_degree(m, k):
    if k > max(m - 1, 1):
        with pytest.raises(UserError, match=f"whole number from 1 to the {max(m - 1, 1)} others, not {k}"):
            load_topology({**BASE, "args": {"k": k}}, m)
        return
    topology, product = load_topology({**BASE, "args": {"k": k}}, m), np.eye(m)
    rounds = len(base_rounds(m, k))
    for t in range(rounds):
        assert topology.linked(t).count.max() <= k
        weights = weight_matrix(topology, rounds + t).numpy()  # those of round t again
        weights += np.diag(1 - weights.sum(1))
        assert (weights >= 0).all()
        assert np.array_equal(weights, weights.T)
        product = weights @ product
    assert np.abs(product - 1 / m).max() < 1e-12
    assert rounds <= 2 * np.log(m) / np.log(k + 1) + 2  # theorem 1


def test_a_number_has_the_fewest_possible_factors():
    assert len(base_rounds(216, 7)) == 3  # 6 x 6 x 6; the largest factor first makes it 8 x 3 x 3 x 3


# Epidemic Learning


def test_el_local_draws_all_sets_of_s_receivers_equally_often():
    drawn = [epidemic_links(5, 2, seed).mask.numpy() for seed in range(3000)]
    assert all((sends.sum(0) == 2).all() for sends in drawn)
    assert len({tuple(sends.sum(1)) for sends in drawn}) > 10  # receivers have any number
    pairs = collections.Counter(tuple(np.flatnonzero(sends[:, 3])) for sends in drawn)
    assert sorted(pairs) == [(0, 1), (0, 2), (0, 4), (1, 2), (1, 4), (2, 4)]
    assert stats.chisquare(list(pairs.values())).pvalue > 1e-3


@pytest.mark.parametrize(("m", "s"), [(1, 0), (2, 1), (9, 4), (10, 5), (7, 6), (40, 3)])
def test_el_oracle_links_each_to_s_others(m, s):
    for seed in range(20):
        graph = nx.from_numpy_array(regular_links(m, s, seed).mask.numpy().astype(int), create_using=nx.DiGraph)
        assert set(dict(graph.in_degree).values()) == {s}
        assert nx.reciprocity(graph) == 1 if s else not graph.edges
        assert not list(nx.selfloop_edges(graph))


def test_el_oracle_draws_all_matchings_equally_often():
    drawn = collections.Counter(tuple(regular_links(4, 1, seed).senders.tolist()) for seed in range(3000))
    assert len(drawn) == 3
    assert stats.chisquare(list(drawn.values())).pvalue > 1e-3
    with pytest.raises(ValueError, match="no graph of 5 nodes has the degree 3"):
        regular_links(5, 3, 0)


@pytest.mark.parametrize("keys", [LOCAL, ORACLE])
def test_a_round_depends_on_seed_and_number_alone(keys):
    topology, again = load_topology(keys, 12, 7), pickle.loads(pickle.dumps(load_topology(keys, 12, 7)))
    drawn = {t: topology.reachable(t).mask for t in (5, 0, 3, 5)}
    assert all(torch.equal(again.reachable(t).mask, mask) for t, mask in drawn.items())
    assert not torch.equal(drawn[0], drawn[3])
    assert not torch.equal(load_topology(keys, 12, 8).reachable(0).mask, drawn[0])
    assert not torch.equal(load_topology({**keys, "seed": 8}, 12, 7).reachable(0).mask, drawn[0])
    assert topology.identity() != load_topology(keys, 12, 8).identity()


def test_a_schedule_in_a_sequence_counts_its_own_rounds():
    keys = {"sequence": [{"generator": "cycle_graph", "rounds": 1}, {**ONE_PEER, "rounds": 2}], "repeat": True}
    topology, alone = load_topology(keys, 8), load_topology(ONE_PEER, 8)
    for t, own in {1: 0, 2: 1, 4: 2, 5: 0}.items():
        assert torch.equal(topology.reachable(t).mask, alone.reachable(own).mask)
    assert topology.warnings() == []
    assert topology.directed


# what a person reads


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        (ONE_PEER, "one_peer_exponential graph: 6 nodes, 3 graphs in turn, 6 arcs each, in-degree 1, together strongly "
         "connected"),
        ({**ONE_PEER, "link_up": 0.5}, "together strongly connected, each link up with probability 0.5"),
        ({**BASE, "args": {"k": 2}}, "base graph: 6 nodes, 2 graphs in turn, 3-6 links each, degrees 1-2, "
         "together connected"),
        ("base_graph", "base graph: 6 nodes, "),
        ({**LOCAL, "args": {"s": 5}}, "el_local graph: 6 nodes, 30 arcs, strongly connected, spectral gap 1.2, drawn "
         "anew in each round"),
        ({**ORACLE, **TWO}, "el_oracle graph: 6 nodes, 6 links, degree 2, "),
    ],
)  # fmt: skip
def test_schedules_are_described_in_one_line(keys, line):
    said = load_topology(keys, 6).describe()
    assert line in said
    assert load_topology(keys, 6).warnings() == []


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({**LOCAL, "args": {"s": 6}}, "el_local takes for s, the number of others that a client sends to, a whole "
         "number from 1 to the 5 others, not 6."),
        ({**ORACLE, "args": {"s": True}}, "from 1 to the 5 others, not True."),
        ({**ORACLE, "args": {"k": 2}}, "topology: el_oracle has no argument 'k' (it takes s)."),
        ({**ONE_PEER, "args": {"k": 2}}, "topology: one_peer_exponential has no argument 'k' (it takes none)."),
        ({**ONE_PEER, "every": 2}, "topology: every draws a graph anew, and one_peer_exponential has one for each "
         "round; leave it out."),
        ({"generator": "el_locale"}, "unknown generator 'el_locale'; did you mean 'el_local'?"),
    ],
)  # fmt: skip
def test_mistakes_are_reported_in_one_sentence(keys, sentence):
    with pytest.raises(UserError) as error:
        load_topology(keys, 6)
    assert sentence in str(error.value)


def test_an_impossible_regular_graph_is_refused_with_two_alternatives():
    sentence = "no graph links each of 7 clients to 3 others, since 7 x 3 is odd; choose s: 4, or generator: el_local"
    with pytest.raises(UserError, match=sentence):
        load_topology({**ORACLE, "args": {"s": 3}}, 7)
    with pytest.raises(UserError, match=r"of 100000 clients has 3,000,000,000 arcs, more than"):
        load_topology({**LOCAL, "args": {"s": 30_000}}, 100_000)


@pytest.mark.parametrize("seed", range(4))
def test_components_are_those_of_networkx(seed):
    graph = nx.gnp_random_graph(30, 0.05, seed=seed, directed=True)
    mask = torch.tensor(nx.to_numpy_array(graph).T > 0)
    for kind, found in (("weak", nx.weakly_connected_components), ("strong", nx.strongly_connected_components)):
        groups = collections.defaultdict(set)
        for node, number in enumerate(components(Links.from_mask(mask), kind).tolist()):
            groups[number].add(node)
        assert sorted(map(sorted, groups.values())) == sorted(map(sorted, found(graph)))
