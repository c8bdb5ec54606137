from __future__ import annotations

import functools
import inspect
import json
import math
import pickle
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.linalg
import torch
import yaml
from pairs import weight_matrix

from dfl_lightning.topology import Topology, load_topology, spectral_gap
from dfl_lightning.topology.generators.by_name import networkx_generators
from dfl_lightning.topology.reading.spec import KEYS
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.shipped_files import shipped

SHIPPED = shipped("topologies")


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def adjacency(graph: nx.Graph, order: list) -> torch.Tensor:
    """Row = receiver, from networkx's own matrix, whose rows are the sources of arcs."""
    return torch.tensor(nx.to_numpy_array(graph, nodelist=order, weight=None).T > 0) & ~torch.eye(
        len(order), dtype=torch.bool
    )


def check(topology: Topology, num_clients: int) -> None:
    n = topology.num_nodes
    mask = topology.reachable(0).mask
    assert topology.num_clients == num_clients
    assert len(topology.labels) == num_clients
    assert sorted(topology.graph) == list(range(num_clients))
    assert mask.shape == (n, n)
    assert mask.dtype == torch.bool
    assert not mask.diagonal().any()
    assert topology.directed or torch.equal(mask, mask.T)
    assert "\n" not in topology.describe()
    assert all("\n" not in line for line in topology.warnings())
    weights = topology.weights()
    assert weights is None or (weights.shape == (len(topology.linked(0)),) and bool(weights.isfinite().all()))
    for numbers in (topology.clusters, topology.budgets):
        assert numbers is None or (numbers.shape == (num_clients,) and numbers.dtype == torch.long)


# shipped files


@pytest.mark.parametrize("clients", [8, 24])
@pytest.mark.parametrize("name", sorted(SHIPPED))
def test_shipped_topologies_load_by_name_at_any_size(name, clients):
    if name == "two_clusters" and clients != 8:
        with pytest.raises(UserError, match=r"8 nodes, but data has 24 clients; give a graph with 24 nodes"):
            load_topology(name, clients)
    else:
        topology = load_topology(name, clients)
        check(topology, clients)
        assert topology.name == name


@pytest.mark.parametrize("path", [path for path in SHIPPED.values() if path.suffix == ".yaml"], ids=lambda p: p.stem)
def test_shipped_topologies_have_a_description_without_sizes(path):
    assert path.read_text().startswith("# ")
    assert "n" not in yaml.safe_load(path.read_text()).get("args", {})


def test_the_example_has_clusters_and_weights():
    topology = load_topology("two_clusters", 8)
    assert topology.clusters.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    weights = weight_matrix(topology)
    assert weights.dtype == torch.float64
    assert weights[4, 0] == weights[0, 4] == 0.25
    assert weights[0, 1] == 1
    assert torch.equal(weights > 0, topology.reachable(0).mask)
    assert topology.budgets is None


def test_in_a_complete_graph_all_others_are_reachable():
    assert torch.equal(load_topology("complete", 5).reachable(3).mask, ~torch.eye(5, dtype=torch.bool))


def test_an_existing_path_wins_over_a_shipped_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "ring", "generator: complete")
    with pytest.raises(UserError, match="ring: unknown topology format"):
        load_topology("ring", 8)


# generators


@pytest.mark.parametrize(
    ("clients", "fraction", "degree"),
    [(24, 0.5, 12), (9, 0.5, 4), (100, 0.5, 50), (7, 0.4, 2), (8, 1.0, 7), (7, 0.75, 4), (1, 0.5, 0), (2, 0.9, 1)],
)
def test_partial_links_each_client_to_the_nearest_feasible_share(clients, fraction, degree):
    topology = load_topology({"generator": "partial", "args": {"fraction": fraction}}, clients)
    assert set(topology.reachable(0).mask.sum(1).tolist()) == {degree}
    feasible = [d for d in range(clients) if d * clients % 2 == 0]
    assert abs(degree - fraction * (clients - 1)) == min(abs(d - fraction * (clients - 1)) for d in feasible)


def test_partial_draws_sparse_graphs_only(monkeypatch):
    """A dense one is the complement of a sparse one: networkx takes minutes to draw it."""
    draw, degrees = nx.random_regular_graph, []
    monkeypatch.setattr(nx, "random_regular_graph", lambda d, n, seed: degrees.append(d) or draw(d, n, seed=seed))
    topology = load_topology({"generator": "partial", "args": {"fraction": 0.9}}, 301)
    assert set(topology.reachable(0).mask.sum(1).tolist()) == {270}
    assert degrees == [30]


def test_servers_link_only_to_clients_and_clients_to_servers():
    topology = load_topology({"generator": "server", "args": {"servers": 2}}, 3)
    expected = [[0, 0, 0, 1, 1]] * 3 + [[1, 1, 1, 0, 0]] * 2
    assert topology.reachable(0).mask.int().tolist() == expected
    assert topology.servers.tolist() == [False, False, False, True, True]
    assert (topology.num_clients, topology.num_servers, topology.num_nodes) == (3, 2, 5)
    assert list(topology.graph) == [0, 1, 2]
    assert topology.warnings() == []
    assert topology.describe() == "server graph: 3 clients and 2 servers, 6 links, connected, spectral gap 1"


def test_networkx_generators_make_their_own_graph_from_the_seed():
    source = {"generator": "watts_strogatz_graph", "args": {"k": 4, "p": 0.5}}
    for seed in (0, 7):
        expected = adjacency(nx.watts_strogatz_graph(20, 4, 0.5, seed=seed), list(range(20)))
        assert torch.equal(load_topology(source, 20, seed=seed).reachable(0).mask, expected)
        assert torch.equal(load_topology({**source, "seed": seed}, 20, seed=99).reachable(0).mask, expected)


@pytest.mark.parametrize(
    ("name", "args", "clients", "same"),
    [
        ("star_graph", {}, 24, lambda: nx.star_graph(23)),
        ("hypercube_graph", {}, 32, lambda: nx.hypercube_graph(5)),
        ("ladder_graph", {}, 12, lambda: nx.ladder_graph(6)),
        ("grid_2d_graph", {"m": 4, "periodic": True}, 24, lambda: nx.grid_2d_graph(4, 6, periodic=True)),
        ("complete_multipartite_graph", {"subset_sizes": [2, 3]}, 5, lambda: nx.complete_multipartite_graph(2, 3)),
        ("navigable_small_world_graph", {"seed": 1}, 9, lambda: nx.navigable_small_world_graph(3, seed=1)),
        ("sudoku_graph", {}, 16, lambda: nx.sudoku_graph(2)),
        ("windmill_graph", {"k": 4}, 10, lambda: nx.windmill_graph(3, 4)),
        ("cycle_graph", {"create_using": "DiGraph"}, 5, lambda: nx.cycle_graph(5, create_using=nx.DiGraph)),
        ("petersen_graph", {}, 10, nx.petersen_graph),
    ],
)
def test_generators_get_the_size_that_gives_each_client_a_node(name, args, clients, same):
    topology = load_topology({"generator": name, "args": args}, clients)
    graph = same()
    assert torch.equal(topology.reachable(0).mask, adjacency(graph, topology.labels))


def load_or_refuse(source, clients: int) -> str:
    """A valid topology (an empty string) or the sentence of a refusal; nothing else can happen."""
    try:
        topology = load_topology(source, clients)
    except UserError as error:
        sentence = str(error)
    else:
        check(topology, clients)
        return ""
    assert "\n" not in sentence
    assert 0 < len(sentence) < 1000
    return sentence


@pytest.mark.parametrize("name", sorted(networkx_generators()))
def test_generators_without_arguments_fit_or_ask_for_arguments(name):
    """A filled-in n that gave another number of nodes would show here as a wrong size."""
    takes_n = "n" in inspect.signature(networkx_generators()[name]).parameters
    for clients in (8, 16):
        sentence = load_or_refuse({"generator": name}, clients)
        assert not (takes_n and "nodes, but data has" in sentence)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("balanced_tree", {"r": 2, "h": 3}),
        ("barbell_graph", {"m1": 3, "m2": 2}),
        ("caveman_graph", {"l": 2, "k": 3}),
        ("chordal_cycle_graph", {"p": 7}),
        ("connected_caveman_graph", {"l": 2, "k": 3}),
        ("dorogovtsev_goltsev_mendes_graph", {"n": 2}),
        ("generalized_petersen_graph", {"n": 5, "k": 2}),
        ("grid_graph", {"dim": [2, 3]}),
        ("kneser_graph", {"n": 5, "k": 2}),
        ("lollipop_graph", {"m": 3, "n": 4}),
        ("margulis_gabber_galil_graph", {"n": 3}),
        ("mycielski_graph", {"n": 4}),
        ("mycielski_graph", {"n": 1}),
        ("paley_graph", {"p": 5}),
        ("planted_partition_graph", {"l": 2, "k": 3, "p_in": 0.5, "p_out": 0.1}),
        ("random_cograph", {"n": 3}),
        ("random_partition_graph", {"sizes": [2, 3], "p_in": 0.5, "p_out": 0.1}),
        ("relaxed_caveman_graph", {"l": 2, "k": 3, "p": 0.1}),
        ("ring_of_cliques", {"num_cliques": 3, "clique_size": 4}),
        ("stochastic_block_model", {"sizes": [2, 2], "p": [[0.5, 0.1], [0.1, 0.5]]}),
        ("tadpole_graph", {"m": 3, "n": 2}),
    ],
)
def test_the_sizes_known_beforehand_are_those_networkx_makes(name, args):
    nodes = len(getattr(nx, name)(**args))
    check(load_topology({"generator": name, "args": args}, nodes), nodes)
    with pytest.raises(UserError, match=rf"{nodes} nodes?, but data has {nodes + 1} clients|has more nodes"):
        load_topology({"generator": name, "args": args}, nodes + 1)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("complete_graph", {"n": 10**9}),
        ("gnp_random_graph", {"n": 10**5000, "p": 0.5}),
        ("hypercube_graph", {"n": 60}),
        ("star_graph", {"n": 10**12}),
        ("balanced_tree", {"r": 24, "h": 24}),
        ("grid_2d_graph", {"m": 10**9, "n": 10**9}),
        ("caveman_graph", {"l": 24, "k": 24}),
        ("configuration_model", {"deg_sequence": [10**9, 10**9]}),
        ("gnm_random_graph", {"m": 10**12}),
        ("complete_multipartite_graph", {"subset_sizes": [10**9, 10**9]}),
    ],
)
def test_graphs_that_cannot_fit_are_refused_before_they_are_made(name, args, monkeypatch):
    make = networkx_generators()[name]
    unmade = functools.wraps(make)(lambda *args, **named: pytest.fail(f"{name} is called"))
    monkeypatch.setitem(networkx_generators(), name, unmade)
    with pytest.raises(UserError, match="24 clients"):
        load_topology({"generator": name, "args": args}, 24)


# from nodes to clients


def test_the_target_of_an_arc_receives_from_its_source():
    topology = load_topology(nx.DiGraph([(0, 1), (1, 2)]), 3)
    assert topology.reachable(0).mask.int().tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert topology.directed


def test_weights_follow_the_direction_of_arcs():
    graph = nx.DiGraph()
    graph.add_edge(0, 1, weight=2)
    graph.add_edge(1, 0, weight=0.5)
    assert weight_matrix(load_topology(graph, 2)).tolist() == [[0, 0.5], [2, 0]]


def test_labels_that_read_as_ids_are_the_ids():
    graph = nx.Graph([("2", "0"), ("0", "1")])
    topology = load_topology(graph, 3)
    assert topology.labels == ["0", "1", "2"]
    assert topology.reachable(0).mask[0].tolist() == [False, True, True]


def test_other_labels_are_numbered_in_natural_order():
    topology = load_topology(nx.path_graph(["c10", "c02", "a", "c3"]), 4)
    assert topology.labels == ["a", "c02", "c3", "c10"]
    assert topology.reachable(0).mask[1].tolist() == [True, False, False, True]


def test_labels_from_one_to_m_keep_their_order():
    assert load_topology(nx.path_graph([str(i) for i in range(1, 12)]), 11).labels == [str(i) for i in range(1, 12)]


def test_parallel_links_count_once_and_self_loops_never():
    graph = nx.MultiGraph([(0, 1), (0, 1), (1, 0), (2, 2)])
    topology = load_topology(graph, 3)
    assert not topology.graph.is_multigraph()
    assert list(topology.graph.edges()) == [(0, 1)]
    assert topology.reachable(0).mask.sum() == 2


def test_a_given_graph_is_left_as_it_is():
    graph = nx.Graph([("a", "b"), ("b", "b")])
    load_topology(graph, 2)
    assert sorted(graph.edges()) == [("a", "b"), ("b", "b")]


def test_named_clusters_are_numbered_in_natural_order():
    graph = nx.path_graph(3)
    nx.set_node_attributes(graph, {0: "c10", 1: "c2", 2: "c10"}, "cluster")
    assert load_topology(graph, 3).clusters.tolist() == [1, 0, 1]
    nx.set_node_attributes(graph, {0: 5, 1: -1, 2: 5}, "cluster")
    assert load_topology(graph, 3).clusters.tolist() == [5, -1, 5]


def test_attributes_follow_the_order_of_ids():
    graph = nx.Graph()
    for label, budget in (("b", 2), ("a", 1)):
        graph.add_node(label, budget=budget, cluster=budget)
    topology = load_topology(graph, 2)
    assert topology.labels == ["a", "b"]
    assert topology.budgets.tolist() == topology.clusters.tolist() == [1, 2]


def test_changing_a_returned_mask_does_not_change_the_topology():
    topology = load_topology("ring", 4)
    topology.reachable(0).mask.fill_(False)
    assert topology.reachable(0).mask.any()


def test_a_topology_survives_copies():
    topology = load_topology("two_clusters", 8)
    assert torch.equal(pickle.loads(pickle.dumps(topology)).reachable(0).mask, topology.reachable(0).mask)


# formats

WEIGHTED = nx.Graph()
WEIGHTED.add_nodes_from((f"c{i}", {"cluster": i // 6, "budget": i}) for i in range(12))
WEIGHTED.add_edges_from((f"c{i}", f"c{(i + 1) % 12}", {"weight": 0.5 + i}) for i in range(12))


def node_link(graph: nx.Graph, key: str) -> str:
    return json.dumps(
        {
            "directed": graph.is_directed(),
            "multigraph": graph.is_multigraph(),
            "graph": {},
            "nodes": [{**attributes, "id": node} for node, attributes in graph.nodes(data=True)],
            key: [{**attributes, "source": u, "target": v} for u, v, attributes in graph.edges(data=True)],
        }
    )


WRITERS = {
    "graphml": lambda graph: "\n".join(nx.generate_graphml(graph)),
    "gml": lambda graph: "\n".join(nx.generate_gml(graph)),
    "json": lambda graph: node_link(graph, "links"),
}


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("suffix", sorted(WRITERS))
def test_formats_with_attributes_agree_with_the_graph_they_came_from(tmp_path, suffix, directed):
    graph = WEIGHTED.to_directed() if directed else WEIGHTED.copy()
    if directed:
        graph.remove_edge("c1", "c0")
    topology = load_topology(write(tmp_path / f"my.{suffix}", WRITERS[suffix](graph)), 12)
    order = [f"c{i}" for i in range(12)]
    assert topology.labels == order
    assert topology.name == "my"
    assert topology.directed == directed
    assert torch.equal(topology.reachable(0).mask, adjacency(graph, order))
    assert weight_matrix(topology).tolist() == nx.to_numpy_array(graph, nodelist=order).T.tolist()
    assert topology.clusters.tolist() == [i // 6 for i in range(12)]
    assert topology.budgets.tolist() == list(range(12))


@pytest.mark.parametrize("generate", [nx.generate_edgelist, nx.generate_adjlist])
def test_line_formats_agree_with_the_graph_they_came_from(tmp_path, generate):
    suffix = generate.__name__.removeprefix("generate_")
    text = "# written by networkx\n\n" + "\n".join(generate(WEIGHTED))
    topology = load_topology(write(tmp_path / f"my.{suffix}", text), 12)
    assert torch.equal(topology.reachable(0).mask, adjacency(WEIGHTED, [f"c{i}" for i in range(12)]))
    assert (topology.weights() is not None) == (suffix == "edgelist")


def test_edge_lists_may_have_weights_and_isolated_clients(tmp_path):
    topology = load_topology(write(tmp_path / "my.edgelist", "a b 0.25\nb c 2 # comment\nd\n"), 4)
    assert weight_matrix(topology)[:2].tolist() == [[0, 0.25, 0, 0], [0.25, 0, 2, 0]]
    assert topology.labels == ["a", "b", "c", "d"]


def test_node_link_data_is_read_under_either_name(tmp_path):
    for key in ("links", "edges"):
        check(load_topology(write(tmp_path / "my.json", node_link(nx.path_graph(5), key)), 5), 5)
    grid = nx.grid_2d_graph(2, 6)  # labels are tuples, lists in JSON
    assert load_topology(write(tmp_path / "my.json", node_link(grid, "links")), 12).labels == sorted(grid)


def test_graphml_defaults_of_attributes_count(tmp_path):
    text = SHIPPED["two_clusters"].read_text()
    text = text.replace('attr.type="int"/>', 'attr.type="int"><default>3</default></key>')
    text = text.replace('<data key="cluster">0</data>', "")
    assert load_topology(write(tmp_path / "my.graphml", text), 8).clusters.tolist() == [3, 3, 3, 3, 1, 1, 1, 1]


def test_gml_is_utf_8_as_other_texts_are(tmp_path):
    text = 'graph [ node [ id 0 label "Zürich" ] node [ id 1 label "Bern &#38; Thun" ] edge [ source 0 target 1 ] ]'
    for mark in ("", "\ufeff"):
        assert load_topology(write(tmp_path / "my.gml", mark + text), 2).labels == ["Bern & Thun", "Zürich"]


def test_gml_needs_no_labels(tmp_path):
    text = "graph [ node [ id 0 ] node [ id 1 ] edge [ source 0 target 1 ] ]"
    assert load_topology(write(tmp_path / "my.gml", text), 2).labels == [0, 1]


def test_a_topology_file_names_a_graph_file_relative_to_itself(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    write(tmp_path / "deep" / "g.edgelist", "0 1\n1 2")
    write(tmp_path / "deep" / "my.yaml", "graph: g.edgelist")
    monkeypatch.chdir(tmp_path)
    topology = load_topology("deep/my.yaml", 3)
    assert (topology.name, len(topology.graph.edges)) == ("my", 2)


# the line before training


@pytest.mark.parametrize("n", [3, 8, 24])
def test_spectral_gaps_of_ring_and_complete_have_closed_forms(n):
    assert spectral_gap(load_topology("complete", n).reachable(0)) == pytest.approx(n / (n - 1))
    assert spectral_gap(load_topology("ring", n).reachable(0)) == pytest.approx(1 - math.cos(2 * math.pi / n))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("directed", [False, True])
def test_the_spectral_gap_is_the_laplacian_eigenvalue_of_networkx(seed, directed):
    graph = nx.gnp_random_graph(15, 0.25, seed=seed, directed=directed)
    laplacian = nx.normalized_laplacian_matrix(graph.to_undirected()).toarray()
    expected = np.sort(scipy.linalg.eigvals(laplacian).real)[1]
    assert spectral_gap(load_topology(graph, 15).reachable(0)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(
    ("source", "clients", "line"),
    [
        ("complete", 24, "complete graph: 24 nodes, 276 links, connected, spectral gap 1.04"),
        ("ring", 24, "ring graph: 24 nodes, 24 links, degree 2, connected, spectral gap 0.0341"),
        ("server", 4, "server graph: 4 clients and 1 server, 4 links, connected, spectral gap 1"),
        ({"generator": "path_graph"}, 3, "path graph: 3 nodes, 2 links, degrees 1-2, connected, spectral gap 1"),
        ({"generator": "empty_graph"}, 3, "empty graph: 3 nodes, 0 links, degree 0, 3 components, spectral gap 0"),
        (
            nx.DiGraph([(0, 1), (1, 2)]),
            3,
            "given graph: 3 nodes, 2 arcs, in-degrees 0-1, weakly connected, spectral gap 1",
        ),
        (nx.DiGraph([(0, 1), (1, 2), (2, 0)]), 3, "given graph: 3 nodes, 3 arcs, in-degree 1, strongly connected, "),
        ("complete", 1, "complete graph: 1 node, 0 links, connected"),
    ],
)
def test_a_graph_is_described_in_one_line(source, clients, line):
    assert load_topology(source, clients).describe().startswith(line)


def test_very_large_graphs_are_described_without_their_spectrum():
    assert load_topology("ring", 2001).describe() == "ring graph: 2001 nodes, 2001 links, degree 2, connected"


def test_clients_without_neighbours_are_named():
    graph = nx.path_graph(3)
    graph.add_nodes_from([3, 4])
    assert load_topology(graph, 5).warnings() == ["given graph: clients 3, 4 have no neighbours and train alone."]
    arcs = nx.DiGraph([(0, 1), (1, 2), (2, 1)])
    assert load_topology(arcs, 3).warnings() == ["given graph: client 0 has no neighbours and trains alone."]
    many = load_topology({"generator": "empty_graph"}, 30).warnings()
    assert many == ["empty graph: clients 0, 1, 2, 3, 4, 5, 6, 7, 8, 9 and 20 more have no neighbours and train alone."]


def test_disconnected_groups_are_counted():
    graph = nx.disjoint_union(nx.path_graph(3), nx.path_graph(2))
    assert load_topology(graph, 5).warnings() == [
        "given graph: disconnected, 2 groups of clients never learn from each other."
    ]
    assert load_topology("ring", 5).warnings() == []


# errors


def of(generator: str, **args) -> dict:
    return {"generator": generator, "args": args}


def graph_with(**attributes) -> nx.Graph:
    graph = nx.path_graph(3)
    for key, values in attributes.items():
        if key == "weight":
            nx.set_edge_attributes(graph, dict(zip(graph.edges(), values, strict=False)), key)
        else:
            nx.set_node_attributes(graph, dict(enumerate(values)), key)
    return graph


def parallel() -> nx.MultiGraph:
    graph = nx.MultiGraph()
    graph.add_node(2)
    graph.add_edge(0, 1, weight=1)
    graph.add_edge(0, 1, weight=2)
    return graph


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (nx.path_graph(2), "topology graph: 2 nodes, but data has 3 clients; give a graph with 3 nodes."),
        (nx.Graph(), "topology graph: 0 nodes, but data has 3 clients; give a graph with 3 nodes."),
        (of("ring"), "topology: unknown generator 'ring' (ours: complete, partial, server, "
         "one_peer_exponential, base_graph, el_local, el_oracle; or a graph generator of networkx)."),
        (of("compleet"), "topology: unknown generator 'compleet'; did you mean 'complete'? (ours: "),
        (of("wats_strogatz_graph"), "did you mean 'watts_strogatz_graph'?"),
        (of("read_gpickle"), "unknown generator 'read_gpickle'"),
        (of("os.system"), "unknown generator 'os.system'"),
        (of("from_numpy_array"), "unknown generator 'from_numpy_array'"),
        (of("watts_strogatz_graph", p=0.1), "topology: watts_strogatz_graph needs the argument k; give it in args."),
        (of("watts_strogatz_graph"), "topology: watts_strogatz_graph needs the arguments k, p; give them in args."),
        (of("gnp_random_graph", q=1), "topology: gnp_random_graph has no argument 'q' (its arguments are: n, p, seed"),
        (of("connected_watts_strogatz_graph", trys=1), "; did you mean 'tries'?"),
        (of("complete_graph", backend="evil"), "complete_graph has no argument 'backend'"),
        (of("cycle_graph", create_using="os"), "topology: create_using takes Graph or DiGraph, not 'os'."),
        (of("cycle_graph", n=12), "topology: 12 nodes, but data has 3 clients; give a graph with 3 nodes."),
        (of("cycle_graph", n="x"), "topology: cycle_graph takes a whole number for n, not 'x'."),
        (of("hypercube_graph"), "topology: hypercube_graph cannot have 3 nodes, one for each client of the data; "),
        (of("grid_2d_graph", m="x"), "topology: grid_2d_graph takes whole numbers >= 0 for m, not 'x'."),
        (of("random_regular_graph", d=1), "topology: random_regular_graph failed for 3 clients (n * d must be even)."),
        (of("graph_atlas_g"), "topology: graph_atlas_g of networkx does not make one graph."),
        (of("complete", n=3), "topology: complete has no argument 'n' (it takes none)."),
        (of("partial", fraction=0), "topology: fraction must be above 0 and at most 1, not 0."),
        (of("partial", frction=1), "has no argument 'frction'; did you mean 'fraction'? (its arguments are: fraction)"),
        (of("server", servers=0), "topology: servers must be a whole number from 1 to the 3 clients, not 0."),
        ({"generator": 3}, "topology: generator takes a name, not a int."),
        ({"generator": "complete", "args": [3]}, "topology: args takes names and values, for example args: {k: 4}."),
        ({"generator": "complete", "seed": -1}, "topology: seed must be a whole number >= 0, not -1."),
        ({"generatr": "x"}, "unknown key 'generatr'; did you mean 'generator'? (keys: generator, args, seed, "),
        ({"seed": 1}, "topology: exactly one of the keys generator, graph, class_path and sequence is needed."),
        ({"generator": "complete", "graph": "x.gml"}, "exactly one of the keys generator, graph, class_path and "),
        ({"graph": "no.gml"}, "topology: the graph file no.gml does not exist."),
        ({"graph": "a\0b"}, "topology: the graph file a\\x00b does not exist."),
        ({"graph": "x.gml", "args": {}}, "topology: graph takes the path of a graph file and no args."),
        (3, "topology=3: a path, a name, a mapping, a networkx graph or a matrix is needed; leave it out"),
        ("rink", "rink: no such file, and none of that name among the shipped topologies; did you mean 'ring'?"),
        ("a\0b", "no such file"),
        ("a" * 5000, "is not a path ("),
        (graph_with(cluster=[1, 1]), "topology graph: 2 of 3 nodes have a 'cluster' (2 has none); "
         "give it to all or to none."),
        (graph_with(budget=[1]), "topology graph: 1 of 3 nodes have a 'budget' (1 has none); give it to all or"),
        (graph_with(budget=[1, "x", 2]), "topology graph: node 1 has the budget 'x'; a whole number >= 0 is needed."),
        (graph_with(budget=[1, -1, 2]), "topology graph: node 1 has the budget -1; a whole number >= 0 is needed."),
        (graph_with(weight=[1]), "topology graph: 1 of 2 links have a 'weight'; give it to all or to none."),
        (graph_with(weight=[1, "x"]), "topology graph: link 1 - 2 has the weight 'x'; a finite number is needed."),
        (graph_with(weight=[1, math.inf]), "topology graph: link 1 - 2 has the weight inf; a finite number is needed."),
        (parallel(), "topology graph: parallel links 0 - 1 carry different weights; keep one."),
    ],
)  # fmt: skip
def test_mistakes_are_reported_in_one_sentence(source, sentence):
    with pytest.raises(UserError) as error:
        load_topology(source, 3)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("my.yaml", "generator: [", "my.yaml: not YAML (line 1: "),
        ("my.yaml", "", f"my.yaml: keys are needed ({', '.join(KEYS)}), not a NoneType."),
        ("my.yaml", "- a", f"my.yaml: keys are needed ({', '.join(KEYS)}), not a list."),
        ("my.yaml", "a: 2001-99-99", "my.yaml: not YAML (month must be in 1..12)."),
        ("my.yaml", "generator: !!python/name:os.system ''", "my.yaml: not YAML (line 1: could not determine a constr"),
        (
            "my.yaml",
            "generator: complete\nargs: {k: &a [x], l: *a}",
            "my.yaml: not YAML (aliases (*name) are not allow",
        ),
        ("my.yaml", "[" * 100_000, "my.yaml: not YAML ("),
        (
            "my.yaml",
            "generator: cycle_graph\nargs: {n: 4}",
            "my.yaml: 4 nodes, but data has 3 clients; give a graph with",
        ),
        ("my.yaml", "graph: other.yaml", "my.yaml: the graph file "),
        (
            "my.yaml",
            "graph: my.yaml",
            "my.yaml: unknown graph format '.yaml'; known are: .graphml, .gexf, .gml, .net, .dot, .json, .edgelist",
        ),
        (
            "my.xlsx",
            "0 1",
            "my.xlsx: unknown topology format '.xlsx'; known are: .yaml, .yml, .graphml, .gexf, .gml, .net",
        ),
        ("my.graphml", "<graphml", "my.graphml: not a .graphml graph ("),
        ("my.graphml", "<a/>", "my.graphml: not a .graphml graph ("),
        ("my.gml", "graph [", "my.gml: not a .gml graph ("),
        ("my.json", "{", "my.json: not a .json graph ("),
        ("my.json", "[]", "my.json: not a .json graph (no key 'nodes')."),
        ("my.json", '{"nodes": []}', "my.json: not a .json graph (no key 'links')."),
        ("my.json", '{"nodes": [{"id": {}}], "links": []}', "my.json: not a .json graph ("),
        (
            "my.json",
            '{"nodes": [{"id": 0}], "links": [{"source": 0, "target": 7}]}',
            "my.json: not a .json graph (a link names the unknown node '7').",
        ),
        ("my.edgelist", "a b c d", "my.edgelist: line 1 has 4 columns: a line is: a b, or a b 0.5 with a weight; "),
        ("my.edgelist", "a b " + "-" * 10**6 + "1", "my.edgelist: line 1 has a very long cell; write names as"),
        ("my.edgelist", "a b __import__('os').getcwd()", "my.edgelist: line 1: \"__import__('os').getcwd()\" is no w"),
        ("my.adjlist", b"\xff\xfe", "my.adjlist: the text is not UTF-8 (invalid start byte at"),
        (
            "my.adjlist",
            "a b",
            "my.adjlist: 2 nodes, but data has 3 clients; give a graph with 3 nodes (its nodes are 'a', 'b'); a client "
            "without links has a line of its own.",
        ),
    ],
)
def test_broken_files_are_reported_by_name(tmp_path, monkeypatch, name, text, sentence):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / name, text)
    with pytest.raises(UserError) as error:
        load_topology(name, 3)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
@pytest.mark.parametrize(
    "declaration",
    [
        '<!DOCTYPE g [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>',
        '<!DOCTYPE g [<!ENTITY a SYSTEM "file:///etc/hostname">]>',
        '<!DOCTYPE g SYSTEM "http://localhost/x.dtd">',
    ],
)
def test_graphml_with_declarations_is_refused_in_any_encoding(tmp_path, declaration, encoding):
    text = f'<?xml version="1.0" encoding="{encoding}"?>\n{declaration}\n<graphml>&a;</graphml>'
    with pytest.raises(UserError, match="document type and entity declarations are not allowed"):
        load_topology(write(tmp_path / "my.graphml", text.encode(encoding)), 3)


def test_a_folder_is_not_a_topology(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        load_topology(tmp_path, 3)


@pytest.mark.parametrize("name", sorted(set(shipped("topologies")) - {"server", "two_clusters", "dpfl_participation"}))
def test_the_networkx_graph_of_a_round_has_its_links(name):
    """Also where the links are listed, or all there are, and no graph is kept in a run."""
    topology = load_topology(name, 12, 3)
    for t in (0, 1, 7):
        one = topology.at(t)
        matrix = nx.to_numpy_array(one.graph, nodelist=range(12), weight=None)
        assert (one.linked(t).mask.numpy() == matrix.T).all()
    assert nx.utils.graphs_equal(load_topology("complete", 9, 0).graph, nx.complete_graph(9))


def test_the_graph_has_the_weights_of_its_links():
    one = load_topology("base_graph", 6, 0).at(0)
    weights = nx.to_numpy_array(one.graph)
    assert weights.any()
    np.testing.assert_array_equal(weights, weights.T)
    links = one.linked(0)
    np.testing.assert_array_equal(weights[links.receivers, links.senders], one._weights)
