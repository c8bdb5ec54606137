"""Limits of generators: none needs too much memory or time, and accepted graphs are those of networkx."""

import random

import networkx as nx
import pytest

from dfl_lightning.topology import load_topology
from dfl_lightning.topology.generators import bounds
from dfl_lightning.topology.generators.bounds import Stream, out_of_proportion, stream_for
from dfl_lightning.utils.errors import UserError


def of(generator, **args):
    return {"generator": generator, "args": args}


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        # without end, or by luck only
        (of("duplication_divergence_graph", p=0), "duplication_divergence_graph came to no end in a million random"),
        (of("gaussian_random_partition_graph", s=-1e6, v=1e9, p_in=0.5, p_out=0.1), "came to no end"),
        # nodes and links out of proportion
        (of("random_lobster_graph", n=24, p1=0.9999999, p2=0.5), "n=24, p1=0.9999999, p2=0.5 is out of proportion"),
        *(
            [(of("random_lobster", n=24, p1=0.99, p2=0.99), "is out of proportion for 24 clients.")]
            if hasattr(nx, "random_lobster")  # a former name, gone in networkx 3.7
            else []
        ),
        (of("random_lobster_graph", n=10**9, p1=0.1, p2=0.1), "is out of proportion for 24 clients."),
        (of("hexagonal_lattice_graph", m=500, n=500), "is out of proportion"),
        (of("triangular_lattice_graph", m=500, n=500), "is out of proportion"),
        (of("partial_duplication_graph", N=500, n=20, p=0.1, q=0.1), "500 nodes, but data has 24 clients"),
        (of("LCF_graph", shift_list=[5, -5] * 400, repeats=500), "is out of proportion"),
        (of("uniform_random_intersection_graph", m=10**9, p=1.0), "is out of proportion"),
        (of("random_geometric_graph", radius=0.1, dim=900_000), "is out of proportion"),
        (of("scale_free_graph", alpha=1e-9, beta=1 - 2e-9, gamma=1e-9), "is out of proportion"),
        (of("random_shell_graph", constructor=[[900, 900, 0.5], [900, 900, 0.5]]), "is out of proportion"),
        (of("configuration_model", deg_sequence=[500] * 24), "is out of proportion"),
        (of("interval_graph", intervals=[[i, i + 1] for i in range(1000)] * 2), "is out of proportion"),
        (of("hypercube_graph", n=40), "has more nodes than the 24 clients"),
        (of("dorogovtsev_goltsev_mendes_graph", n=20), "more than a billion nodes, but data has 24 clients"),
        (of("balanced_tree", r=2, h=24), "nodes, but data has 24 clients"),
        (of("star_graph", n=-1), "star_graph takes whole numbers >= 0 for n, not -1."),
        # lists of nodes
        (of("configuration_model", deg_sequence=[2] * 25), "25 nodes, but data has 24 clients"),
        (of("visibility_graph", series=[0.5] * 3000), "3000 nodes, but data has 24 clients"),
        (of("havel_hakimi_graph", deg_sequence=[]), "0 nodes, but data has 24 clients"),
        # arguments that are not numbers, or not graphs
        (of("gnp_random_graph", p=float("nan")), "gnp_random_graph has an argument that is not a number (nan)"),
        (of("random_unlabeled_tree", number_of_trees=500), "with number_of_trees makes several graphs; leave it out."),
        (of("random_regular_graph", d=24), "random_regular_graph failed for 24 clients"),
    ],
    ids=lambda value: value["generator"] if isinstance(value, dict) else "",
)
def test_a_generator_beyond_its_bounds_is_refused_quickly(source, sentence):
    with pytest.raises(UserError) as error:
        load_topology(source, 24)
    assert sentence in str(error.value)


def test_a_dense_regular_graph_has_a_remedy(monkeypatch):
    monkeypatch.setattr(bounds, "_DRAWS", 10**5)
    with pytest.raises(UserError, match=r"draws and more; .* \(a dense regular graph is generator: partial\)"):
        load_topology(of("random_regular_graph", d=90), 100)


def test_complete_graphs_beyond_memory_are_refused():
    for source, share in (
        (of("complete_graph"), 1),
        (of("partial", fraction=0.25), 0.25),
        (of("partial"), 0.5),
        (of("gnp_random_graph", p=0.5), 0.5),
    ):
        links = int(share * 10**6 * (10**6 - 1) / 2)
        with pytest.raises(UserError, match=f"of 1000000 clients has {links:,} links, more than memory holds"):
            load_topology(source, 10**6)


def test_large_complete_graphs_need_no_list_of_links():
    """The list would need 80 GB."""
    topology = load_topology(of("complete"), 10**5)
    assert len(topology.reachable(0)) == 10**5 * (10**5 - 1)
    assert topology.describe() == "complete graph: 100000 nodes, 4999950000 links, connected"


ENDING = {
    "connected_watts_strogatz_graph": (24, {"k": 4, "p": 0.3}),
    "duplication_divergence_graph": (24, {"p": 0.4}),
    "extended_barabasi_albert_graph": (24, {"m": 2, "p": 0.2, "q": 0.3}),
    "gaussian_random_partition_graph": (24, {"s": 6, "v": 2, "p_in": 0.7, "p_out": 0.1}),
    "joint_degree_graph": (4, {"joint_degrees": {1: {2: 2}, 2: {1: 2, 2: 2}}}),
    "random_degree_sequence_graph": (24, {"sequence": [3] * 24}),
    "random_powerlaw_tree": (10, {"tries": 5000}),
    "random_regular_graph": (60, {"d": 30}),
    "scale_free_graph": (40, {}),
}


@pytest.mark.parametrize("name", sorted(ENDING))
def test_bounded_generators_make_networkxs_graphs(name):
    clients, args = ENDING[name]
    own = args if name in ("joint_degree_graph", "random_degree_sequence_graph") else {"n": clients, **args}
    for seed in (0, 3, 11):
        try:
            graph = getattr(nx, name)(**own, seed=seed)
        except (nx.NetworkXError, nx.NetworkXUnfeasible, nx.ExceededMaxIterations):
            continue  # bad luck
        if len(graph) != clients:
            continue
        topology = load_topology(of(name, **args), clients, seed=seed)
        ids = {label: i for i, label in enumerate(topology.labels)}
        links = {(ids[u], ids[v]) for u, v in graph.edges() if u != v}
        links |= set() if graph.is_directed() else {(v, u) for u, v in links}
        assert {(j, i) for i, j in topology.reachable(0).mask.nonzero().tolist()} == links


@pytest.mark.parametrize("seed", [0, 1, -7, 10**30, True])
def test_a_stream_gives_pythons_numbers_until_its_limit(seed):
    ours, theirs = Stream(seed, 1000), random.Random(seed)
    for draw in ("random", "gauss", "shuffle", "sample", "choice", "randint", "getrandbits"):
        words = {
            "gauss": (0, 1),
            "sample": (range(90), 5),
            "choice": ("abc",),
            "randint": (0, 10**9),
            "getrandbits": (70,),
        }
        if draw == "shuffle":
            a, b = list(range(50)), list(range(50))
            ours.shuffle(a)
            theirs.shuffle(b)
            assert a == b
        else:
            assert getattr(ours, draw)(*words.get(draw, ())) == getattr(theirs, draw)(*words.get(draw, ()))
    assert not ours.ended
    with pytest.raises(ArithmeticError):
        ours.shuffle(list(range(2000)))
    assert ours.ended


def test_graphs_within_the_limits_are_made():
    for name, args in (
        ("random_lobster", {"n": 10, "p1": 0.5, "p2": 0.5}),
        ("triangular_lattice_graph", {"m": 4, "n": 6}),
    ):
        assert not out_of_proportion(name, args, 24)
    assert stream_for("gnp_random_graph", 3, 24) is None
    assert stream_for("random_regular_graph", None, 24) is None
    assert load_topology(of("visibility_graph", series=[5, 900, 3, 700, 1]), 5).num_clients == 5
