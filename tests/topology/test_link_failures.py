"""Links that are up in a round: frequencies, exact numbers, and dependence on seed and round alone."""

import math
from collections import Counter

import networkx as nx
import pytest
import torch
from scipy import stats

from dfl_lightning.links import Links
from dfl_lightning.topology import load_topology, reach
from dfl_lightning.topology.over_time.link_failures import LinkFailures

ROUNDS = 400
SMALL_WORLD = {"generator": "connected_watts_strogatz_graph", "args": {"k": 6, "p": 0.3}, "seed": 5}
ONE_WAY = {"generator": "gnp_random_graph", "args": {"p": 0.4, "directed": True}, "seed": 5}


def masks(keys, clients=14, rounds=ROUNDS, seed=0):
    topology = load_topology(keys, clients, seed)
    return torch.stack([topology.reachable(t).mask for t in range(rounds)])


def receives_from(graph, clients=14):
    """Return a mask [n, n] of each client's possible senders, by networkx's matrix, whose rows are sources of arcs."""
    return torch.tensor(nx.to_numpy_array(graph, nodelist=range(clients), weight=None).T > 0)


# how often


@pytest.mark.parametrize("probability", [0.3, 0.9])
@pytest.mark.parametrize("keys", [SMALL_WORLD, ONE_WAY], ids=["links", "arcs"])
def test_each_link_is_up_with_its_probability(keys, probability):
    """Every count lies within 4.5 standard deviations of a binomial one: one in 150,000 does not."""
    up = masks({**keys, "link_up": probability}).sum(0)
    linked = load_topology(keys, 14).reachable(0).mask
    assert (up[~linked] == 0).all()
    spread = math.sqrt(ROUNDS * probability * (1 - probability))
    assert ((up[linked] - ROUNDS * probability).abs() < 4.5 * spread).all()
    # and over all links the counts spread like binomial ones: neither copies of each other nor evened out
    ends = linked if keys is ONE_WAY else linked.triu()
    squares = ((up[ends] - ROUNDS * probability) / spread).square().sum().item()
    assert 0.001 < stats.chi2.cdf(squares, int(ends.sum())) < 0.999


def test_both_directions_of_a_link_fail_together():
    for mask in masks({**SMALL_WORLD, "link_up": 0.6}, rounds=30):
        assert torch.equal(mask, mask.T)


@pytest.mark.parametrize("keys", [{**SMALL_WORLD, "arc_up": 0.6}, {**ONE_WAY, "link_up": 0.6}], ids=["arc_up", "arcs"])
def test_directions_fail_separately_on_request(keys):
    up = masks(keys)
    linked = load_topology(keys, 14).linked(0).mask
    there, back = (up & (linked & linked.T).triu()).nonzero().T, 0
    back = up[there[0], there[2], there[1]]  # given that j receives from i, how often does i receive from j?
    assert len(back) > 1000
    assert abs(back.double().mean() - 0.6) < 4.5 * math.sqrt(0.24 / len(back))


def test_links_fail_independently_of_each_other_and_earlier_rounds():
    up = masks({"generator": "complete", "link_up": 0.5}, clients=10)[:, *torch.triu_indices(10, 10, 1)].double()
    for one, other in ((up, up), (up[:-1], up[1:])):  # within a round, and from one round to the next
        correlation = torch.corrcoef(torch.cat([one.T, other.T]))[:45, 45:]
        if one is up:
            correlation = correlation - torch.eye(45)
        assert correlation.abs().max() < 5 / math.sqrt(ROUNDS)


# exactly how many


@pytest.mark.parametrize("share", [0.1, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("keys", [SMALL_WORLD, ONE_WAY, {"generator": "star_graph"}], ids=["links", "arcs", "star"])
def test_every_receiver_keeps_its_exact_share_in_every_round(keys, share):
    linked = load_topology(keys, 14).reachable(0).mask
    exact = [math.floor(share * degree + 0.5) for degree in linked.sum(1).tolist()]
    for mask in masks({**keys, "link_share": share}, rounds=60):
        assert mask.sum(1).tolist() == exact
        assert not (mask & ~linked).any()


def test_halves_of_links_are_rounded_up():
    degrees = torch.tensor([0, 1, 5, 15, 25, 35, 45, 95])
    for tenth in range(1, 10):  # in whole numbers: (tenth * degree + 5) // 10
        assert torch.equal(LinkFailures(share=tenth / 10).numbers(degrees), (tenth * degrees + 5) // 10)


def test_every_set_of_links_is_kept_equally_often():
    """Four of a client's five links: five sets, whose counts are those of a fair die (p = 0.001)."""
    drawn = masks({"generator": "complete", "link_share": 0.8}, clients=6)
    for receiver in range(6):
        counts = Counter(tuple(mask[receiver].nonzero().flatten().tolist()) for mask in drawn)
        assert len(counts) == 5
        assert stats.chisquare(list(counts.values())).pvalue > 0.001


def test_receivers_draw_for_themselves():
    """Directions are independent: with 80 % each, both are up in 64 % and neither in 4 % of the cases."""
    topology = load_topology({"generator": "complete", "link_share": 0.8}, 11)
    assert topology.directed
    both, neither, pairs = 0, 0, ROUNDS * 55
    upper = torch.ones(11, 11, dtype=torch.bool).triu(1)
    for t in range(ROUNDS):
        mask = topology.reachable(t).mask
        both += int((mask & mask.T & upper).sum())
        neither += int((~mask & ~mask.T & upper).sum())
    assert both / pairs == pytest.approx(0.64, abs=0.015)
    assert neither / pairs == pytest.approx(0.04, abs=0.006)


def test_dpfl_participation_keeps_half_then_80_percent_of_links():
    topology = load_topology("dpfl_participation", 100)
    half = topology.reachable(0).mask  # the preprocessing: "initially, each client can communicate with only 50 %"
    assert set(half.sum(1).tolist()) == {50}
    drawn = torch.stack([topology.reachable(t).mask for t in range(1, 6)])
    assert not (drawn & ~half).any()
    assert set(drawn.sum(2).flatten().tolist()) == {40}
    assert len({mask.numpy().tobytes() for mask in drawn}) == 5


# depends on nothing but seed and round


@pytest.mark.parametrize("process", [{"link_up": 0.7}, {"arc_up": 0.7}, {"link_share": 0.5}])
def test_a_round_is_a_function_of_seed_and_round(process):
    keys = {**SMALL_WORLD, **process}
    topology = load_topology(keys, 14)
    forwards = [topology.reachable(t).mask for t in range(6)]
    backwards = [load_topology(keys, 14).reachable(t).mask for t in reversed(range(6))]
    torch.manual_seed(99)
    torch.rand(3)
    assert all(torch.equal(a, b) for a, b in zip(forwards, reversed(backwards), strict=True))
    assert not torch.equal(forwards[0], forwards[1])
    other = load_topology({**keys, "seed": 6}, 14)
    complete = [
        load_topology({"generator": "complete", **process, "seed": seed}, 14).reachable(0).mask for seed in (5, 6)
    ]
    assert not torch.equal(*complete)
    assert other.failures.seed == 6
    assert load_topology({"generator": "complete", **process}, 14, seed=8).failures.seed == 8


def test_links_of_round_7_never_change_between_versions():
    """Golden, from splitmix64 in plain Python: a change here changes every run with failing links."""
    keys = {"generator": "complete", "seed": 1}
    received = {
        key: [
            "".join("01"[up] for up in row) for row in load_topology({**keys, key: 0.5}, 5).reachable(7).mask.tolist()
        ]
        for key in ("link_up", "arc_up", "link_share")
    }
    assert received == {
        "link_up": ["00000", "00110", "01001", "01001", "00110"],
        "arc_up": ["01010", "00110", "01000", "01000", "00110"],
        "link_share": ["00101", "10100", "10001", "01100", "01010"],
    }


def test_another_link_does_not_change_the_others():
    graph = nx.cycle_graph(9)
    more = graph.copy()
    more.add_edge(0, 4)
    failures = LinkFailures(up=0.5, seed=3)
    for t in range(20):
        linked = (Links.from_mask(receives_from(g, 9)) for g in (graph, more))
        before, after = (failures.that_are_up(links, t, directed=False).mask for links in linked)
        after[0, 4] = after[4, 0] = False
        assert torch.equal(before, after)


@pytest.mark.parametrize("process", ["link_up", "arc_up", "link_share"])
def test_a_probability_and_a_share_of_one_change_nothing(process):
    topology = load_topology({**SMALL_WORLD, process: 1}, 14)
    assert not topology.changes
    assert not topology.directed
    assert torch.equal(topology.reachable(3).mask, load_topology(SMALL_WORLD, 14).reachable(0).mask)


# what a person reads


@pytest.mark.parametrize(
    ("process", "words"),
    [
        ({"link_up": 0.9}, "each link up with probability 0.9"),
        ({"arc_up": 0.25}, "each direction of a link up with probability 0.25"),
        ({"link_share": 0.8}, "80 % of the links to each receiver up"),
        ({"link_share": 0.07}, "7 % of the links to each receiver up"),
    ],
)
def test_the_line_before_training_says_how_links_fail(process, words):
    line = load_topology({"generator": "complete", **process}, 24).describe()
    assert line == f"complete graph: 24 nodes, 276 links, connected, spectral gap 1.04, {words}"


def test_shares_that_round_to_all_or_none_are_noted():
    assert load_topology({"generator": "cycle_graph", "link_share": 0.8}, 6).warnings() == [
        "cycle graph: link_share 0.8 of so few links is all of them, in every round."
    ]
    assert load_topology({"generator": "cycle_graph", "link_share": 0.2}, 3).warnings() == [
        "cycle graph: link_share 0.2 of so few links is none: clients 0, 1, 2 have no neighbours and train alone."
    ]
    star = {"generator": "star_graph", "link_share": 0.4}
    assert load_topology(star, 3).warnings() == [
        "star graph: link_share 0.4 of so few links is none: clients 1, 2 have no neighbours and train alone."
    ]
    assert load_topology({"generator": "complete", "link_share": 0.4}, 6).warnings() == []


def test_reach_is_counted_over_the_rounds():
    keys = {**SMALL_WORLD, "link_up": 0.7}
    received = masks(keys, rounds=60).sum(2)
    assert reach(load_topology(keys, 14), 60) == (
        pytest.approx(received.double().mean().item()), int(received.min()), int(received.max()), 60,
    )  # fmt: skip
    assert reach(load_topology(keys, 14), 1000).rounds == 100
    assert reach(load_topology("complete", 14), 1000) == (13, 13, 13, 1)
