"""Sequences of graphs whose nodes come and go: the clients are those of all graphs."""

import json

import networkx as nx
import pytest
import torch
from pairs import weight_matrix
from small_run import SmallRun

from dfl_lightning.callbacks import ExactCount, Gossip, Monitor, Uniform
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError

CONTACTS = """# t i j, seconds of a day, badges 11 to 16
20 11 12
20 12 13
40 11 12
60 12 14
80 13 14
80 13 15
100 15 14
120 15 16
120 14 15
"""
"""A trace of contacts in the form of SocioPatterns."""


@pytest.fixture
def windows(tmp_path, monkeypatch):
    """Cut the trace into windows of 40 seconds, each a graph file, and return these graphs and the topology file."""
    monkeypatch.chdir(tmp_path)
    graphs = [nx.Graph() for _ in range(3)]
    for line in CONTACTS.splitlines()[1:]:
        t, i, j = line.split()
        graphs[(int(t) - 1) // 40].add_edge(i, j)
    for number, graph in enumerate(graphs):
        nx.write_edgelist(graph, f"window{number}.txt", data=False)
    items = "\n".join(f"- {{graph: window{number}.txt, rounds: 2}}" for number in range(3))
    (tmp_path / "trace.yaml").write_text(f"sequence:\n{items}\n")
    return graphs


LABELS = [str(label) for label in range(11, 17)]


def test_all_graphs_together_have_the_clients_of_a_sequence(windows):
    topology = load_topology("trace.yaml", 6)
    assert topology.labels == LABELS
    for t in range(8):
        graph = windows[min(t // 2, 2)]
        assert topology.present(t).tolist() == [label in graph for label in LABELS]
        whole = nx.Graph()
        whole.add_nodes_from(LABELS)
        whole.add_edges_from(graph.edges())
        expected = torch.tensor(nx.to_numpy_array(whole, nodelist=LABELS) > 0)
        assert torch.equal(topology.reachable(t).mask, expected)
    assert topology.describe() == (
        "trace graph: 6 nodes, window0 for 2 rounds (3 of 6 nodes, 2 links, degrees 1-2, connected, spectral gap 1), "
        "then window1 for 2 rounds (4 of 6 nodes, 3 links, degrees 1-2, connected, spectral gap 0.5), then window2 for "
        "the rest (3 of 6 nodes, 2 links, degrees 1-2, connected, spectral gap 1)"
    )
    assert topology.warnings() == []


class Activity(Monitor):
    """The active clients of each round."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, round):
        self.rounds.append(round.active.tolist())


def test_who_is_not_in_the_graph_takes_no_part(tmp_path, windows):
    activity = Activity()
    policies = [Gossip(k="all"), Uniform()]
    run = SmallRun(tmp_path, rounds=5, policies=policies, callbacks=[activity], topology="trace.yaml").fit()
    there = [[label in windows[min(t // 2, 2)] for label in LABELS] for t in range(5)]
    assert activity.rounds == there
    saved = run.trainer.run.dropouts
    gone = {(t, i) for t in range(5) for i in range(6) if not there[t][i]}
    assert set(zip(saved["round"].tolist(), saved["client"].tolist(), strict=True)) == gone


def test_dropouts_are_among_those_who_are_there(tmp_path, windows):
    activity = Activity()
    policies = [ExactCount(0.5), Gossip(k="all"), Uniform()]
    SmallRun(tmp_path, rounds=4, policies=policies, callbacks=[activity], topology="trace.yaml").fit()
    for t, active in enumerate(activity.rounds):
        assert all(label in windows[t // 2] for label, is_active in zip(LABELS, active, strict=True) if is_active)


def test_a_node_without_links_is_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("a b\nc\n")
    (tmp_path / "b.txt").write_text("a b\n")
    (tmp_path / "c.txt").write_text("a b\nb c\n")
    sequence = lambda first: {"sequence": [{"graph": first, "rounds": 1}, {"graph": "c.txt"}]}  # noqa: E731
    with_c, without_c = load_topology(sequence("a.txt"), 3), load_topology(sequence("b.txt"), 3)
    assert with_c.present(0).tolist() == [True, True, True]
    assert without_c.present(0).tolist() == [True, True, False]
    assert with_c.reachable(0).mask.tolist() == without_c.reachable(0).mask.tolist()
    assert with_c.identity() != without_c.identity()


def test_nodes_that_are_away_keep_their_attributes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, nodes in (("a.json", "ab"), ("b.json", "bc")):
        content = {
            "nodes": [{"id": node, "cluster": "abc".index(node) % 2, "budget": "abc".index(node)} for node in nodes],
            "links": [{"source": nodes[0], "target": nodes[1], "weight": 2}],
        }
        (tmp_path / name).write_text(json.dumps(content))
    topology = load_topology({"sequence": [{"graph": "a.json", "rounds": 1}, {"graph": "b.json"}]}, 3)
    assert topology.clusters.tolist() == [0, 1, 0]
    assert topology.budgets.tolist() == [0, 1, 2]
    assert weight_matrix(topology, 1).tolist() == [[0, 0, 0], [0, 0, 2], [0, 2, 0]]


def test_a_generator_in_a_sequence_has_all_clients(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text("source,target\n0,1\n3,4\n")
    topology = load_topology({"sequence": [{"graph": "a.csv", "rounds": 1}, {"generator": "cycle_graph"}]}, 6)
    assert topology.present(0).tolist() == [True, True, False, True, True, False]
    assert topology.present(1).tolist() == [True] * 6
    assert topology.labels == ["0", "1", "2", "3", "4", "5"]
    assert topology.reachable(0).mask.nonzero().tolist() == [[0, 1], [1, 0], [3, 4], [4, 3]]


def test_an_attribute_that_no_file_gives_a_node_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.json").write_text(json.dumps({"nodes": [{"id": "a", "budget": 1}], "links": []}))
    (tmp_path / "b.txt").write_text("a b\n")
    with pytest.raises(
        UserError, match=r"a\.json: 1 of 2 nodes have a 'budget' \('b' has none\); give it to all or to none"
    ):
        load_topology({"sequence": [{"graph": "a.json", "rounds": 1}, {"graph": "b.txt"}]}, 2)
