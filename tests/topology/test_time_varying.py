"""Graphs that change over the rounds: drawn anew, several in turn, and runs that live with them."""

import json
import pickle

import networkx as nx
import pytest
import torch
from pairs import weight_matrix

from dfl_lightning.topology import load_topology
from dfl_lightning.topology.generators.by_name import partial
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed

PARTIAL = {"generator": "partial", "args": {"fraction": 0.5}}


def heard_in(graph, clients):
    return torch.tensor(nx.to_numpy_array(graph, nodelist=range(clients), weight=None).T > 0)


def same_rounds(one, other, rounds):
    return all(torch.equal(one.reachable(t).mask, other.reachable(t).mask) for t in rounds)


# drawn anew


def test_a_graph_is_drawn_anew_every_so_many_rounds():
    topology = load_topology({**PARTIAL, "every": 3, "seed": 4}, 10)
    drawn = [topology.reachable(t).mask for t in range(12)]
    for t, mask in enumerate(drawn):
        number = t // 3
        seed = 4 if number == 0 else stream_seed(4, "topology", number) % 2**32
        assert torch.equal(mask, heard_in(partial(10, 0.5, seed), 10))
    assert len({mask.numpy().tobytes() for mask in drawn}) == 4


def test_the_first_graph_equals_the_constant_one():
    for seed in (0, 3):
        once, again = (load_topology({**PARTIAL, **keys}, 12, seed) for keys in ({}, {"every": 1}))
        assert torch.equal(once.reachable(0).mask, again.reachable(0).mask)
        assert torch.equal(once.reachable(1).mask, once.reachable(0).mask)
        assert not torch.equal(again.reachable(1).mask, again.reachable(0).mask)


def test_every_graph_has_its_generators_properties():
    topology = load_topology({"generator": "random_regular_graph", "args": {"d": 3}, "every": 2}, 12)
    for t in range(0, 40, 2):
        graph = nx.Graph(topology.at(t).edges())
        assert nx.is_k_regular(graph, 3)
        assert sorted(graph) == list(range(12))


def test_random_graphs_and_failing_links_go_together():
    keys = {**PARTIAL, "every": 2, "link_share": 0.6}
    topology = load_topology(keys, 11)
    for t in range(8):
        linked, up = topology.linked(t).mask, topology.reachable(t).mask
        assert not (up & ~linked).any()
        assert (up.sum(1) == (linked.sum(1) * 0.6 + 0.5).long()).all()
    assert torch.equal(topology.linked(2).mask, topology.linked(3).mask)
    assert not torch.equal(topology.reachable(2).mask, topology.reachable(3).mask)


def test_a_failing_generator_is_tried_with_another_seed():
    """One try makes a connected graph with few seeds only: the first is one of them, and later ones are found."""
    keys = {"generator": "connected_watts_strogatz_graph", "args": {"k": 2, "p": 0.8, "tries": 1}, "every": 1}
    seeds = [seed for seed in range(40) if makes_a_graph(seed)]
    assert 0 < len(seeds) < 30
    topology = load_topology(keys, 30, seeds[0])
    for t in range(20):
        assert nx.is_connected(topology.at(t).graph)
    later = [stream_seed(seeds[0], "topology", number) % 2**32 for number in range(1, 20)]
    assert not all(makes_a_graph(seed) for seed in later)
    assert same_rounds(load_topology(keys, 30, seeds[0]), topology, reversed(range(20)))


def makes_a_graph(seed):
    try:
        nx.connected_watts_strogatz_graph(30, 2, 0.8, tries=1, seed=seed)
    except nx.NetworkXError:
        return False
    return True


def test_a_generator_that_keeps_failing_is_reported(monkeypatch):
    topology = load_topology({**PARTIAL, "every": 5}, 8)
    monkeypatch.setattr(
        "dfl_lightning.topology.reading.single.generate",
        lambda *_: (_ for _ in ()).throw(UserError("topology: partial failed.")),
    )
    topology.reachable(4)
    with pytest.raises(UserError) as error:
        topology.reachable(5)
    assert str(error.value) == "topology: partial failed; so it was 10 times for redrawn graph 2."


# several in turn


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Two graph files of the same four clients, and a place to stand."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "line.edgelist").write_text("a b 1\nb c 2\nc d 3\n")
    (tmp_path / "star.edgelist").write_text("a b 4\na c 5\na d 6\n")
    return tmp_path


def test_graphs_take_turns_for_the_rounds_they_hold(files):
    line, star, ring = nx.path_graph(4), nx.star_graph(3), nx.cycle_graph(4)
    (files / "my.yaml").write_text(
        "sequence:\n- {graph: line.edgelist, rounds: 2}\n- {graph: star.edgelist, rounds: 3}\n"
        "- {generator: cycle_graph, rounds: 1}\n"
    )
    once = load_topology("my.yaml", 4)
    expected = [heard_in(graph, 4) for graph in [line] * 2 + [star] * 3 + [ring] * 5]
    assert all(torch.equal(once.reachable(t).mask, mask) for t, mask in enumerate(expected))
    (files / "my.yaml").write_text((files / "my.yaml").read_text() + "repeat: true\n")
    again = load_topology("my.yaml", 4)
    for t in range(20):
        assert torch.equal(again.reachable(t).mask, expected[t % 6])
    assert again.labels == ["a", "b", "c", "d"]
    assert again.name == "my"


def test_weights_are_those_of_the_graph_of_the_round(files):
    topology = load_topology({"sequence": [{"graph": "line.edgelist", "rounds": 2}, {"graph": "star.edgelist"}]}, 4)
    assert weight_matrix(topology, 1)[0].tolist() == [0, 1, 0, 0]
    assert weight_matrix(topology, 2)[0].tolist() == [0, 4, 5, 6]


def test_a_redrawn_graph_counts_its_own_rounds_only():
    redrawn = {**PARTIAL, "every": 2}
    alone = load_topology(redrawn, 8)
    items = [{"generator": "cycle_graph", "rounds": 3}, {**redrawn, "rounds": 5}]
    topology = load_topology({"sequence": items, "repeat": True}, 8)
    own = 0
    for t in range(32):
        if t % 8 < 3:
            assert torch.equal(topology.reachable(t).mask, heard_in(nx.cycle_graph(8), 8))
        else:
            assert torch.equal(topology.reachable(t).mask, alone.reachable(own).mask)
            own += 1


def test_items_without_link_options_use_those_of_the_sequence():
    items = [
        {"generator": "complete", "rounds": 1},
        {"generator": "complete", "rounds": 1, "link_up": 1},
        {"generator": "complete", "link_up": 0.5},
    ]
    topology = load_topology({"sequence": items, "link_share": 0.4}, 6)
    assert topology.reachable(0).mask.sum(1).tolist() == [2] * 6
    assert topology.reachable(1).mask.sum(1).tolist() == [5] * 6
    assert torch.equal(topology.reachable(2).mask, topology.reachable(2).mask.T)
    assert topology.directed  # in round 0 some links have one direction only


def test_rounds_do_not_depend_on_the_order_of_access():
    keys = {"sequence": [{**PARTIAL, "every": 1, "rounds": 4}, {"generator": "complete", "link_up": 0.5, "rounds": 3}],
            "repeat": True}  # fmt: skip
    topology, other = load_topology(keys, 9, 7), load_topology(keys, 9, 7)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0)).tolist()
    assert same_rounds(pickle.loads(pickle.dumps(topology)), other, order)
    assert same_rounds(topology, other, range(30))


def test_attributes_of_nodes_come_from_the_items_that_have_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write = lambda name, budgets: (tmp_path / name).write_text(  # noqa: E731
        json.dumps({"nodes": [{"id": i, "budget": b, "cluster": i % 2} for i, b in enumerate(budgets)], "links": []})
    )
    write("a.json", [1, 2, 3])
    write("b.json", [1, 2, 4])
    items = [{"generator": "complete", "rounds": 1}, {"graph": "a.json"}]
    topology = load_topology({"sequence": items}, 3)
    assert topology.budgets.tolist() == [1, 2, 3]
    assert topology.clusters.tolist() == [0, 1, 0]
    items = [{"graph": "a.json", "rounds": 1}, {"graph": "b.json"}]
    with pytest.raises(UserError, match=r"items 1 and 2 of the sequence disagree about the 'budget' of their nodes; "):
        load_topology({"sequence": items}, 3)


# what a person reads


@pytest.mark.parametrize(
    ("keys", "line"),
    [
        ({**PARTIAL, "every": 1}, "partial graph: 8 nodes, 16 links, degree 4, connected, spectral gap 0.75, "
         "drawn anew in each round"),
        ({**PARTIAL, "every": 5, "link_up": 0.9}, ", each link up with probability 0.9, drawn anew every 5 rounds"),
        ({"sequence": [{"generator": "cycle_graph", "rounds": 10}, {"generator": "complete"}]},
         "changing graph: 8 nodes, cycle for 10 rounds (8 links, degree 2, connected, spectral gap 0.293), then "
         "complete for the rest (28 links, connected, spectral gap 1.14)"),
        ({"sequence": [{"generator": "cycle_graph", "rounds": 1}, {"generator": "complete", "rounds": 2}],
          "repeat": True},
         "(8 links, degree 2, connected, spectral gap 0.293), then complete for 2 rounds (28 links, connected, "
         "spectral gap 1.14), then again"),
        ({"sequence": [{"generator": "cycle_graph", "rounds": 1}] * 9}, ", then 6 more"),
    ],
)  # fmt: skip
def test_graphs_that_change_are_described_in_one_line(keys, line):
    said = load_topology(keys, 8).describe()
    assert line.removeprefix("partial graph: 8 nodes, 16 links, degree 4, connected, spectral gap 0.75, ") in said
    assert said.startswith(line.split(":")[0]) or line.startswith((",", "("))
    assert "\n" not in said


def test_a_client_without_senders_in_all_graphs_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.edgelist").write_text("0 1\n2\n3\n4\n")
    (tmp_path / "b.edgelist").write_text("2 3\n0\n1\n4\n")
    keys = {"sequence": [{"graph": "a.edgelist", "rounds": 1}, {"graph": "b.edgelist", "rounds": 1}], "repeat": True}
    assert load_topology(keys, 5).warnings() == [
        "changing graph: client 4 has no neighbours and trains alone.",
        "changing graph: disconnected, 2 groups of clients never learn from each other.",
    ]
    keys["sequence"].append({"generator": "cycle_graph", "rounds": 1})
    assert load_topology(keys, 5).warnings() == []
    keys["sequence"][2] = {"generator": "gnp_random_graph", "args": {"p": 0.5}, "every": 1, "rounds": 1}
    assert load_topology(keys, 5).warnings() == []  # not known beforehand
    for up in ({"link_share": 0.5}, {"arc_up": 0.5}):  # links have both directions, of which one may be down
        keys = {"sequence": [{"generator": "star_graph", "rounds": 1}, {"generator": "path_graph"}], **up}
        assert load_topology(keys, 5).warnings() == []
    alone = load_topology({"generator": "gnp_random_graph", "args": {"p": 0.01}, "every": 1}, 4).warnings()
    assert alone == ["gnp_random graph: clients 0, 1, 2, 3 have no neighbours and train alone at first."]


# mistakes

ITEM = {"generator": "complete", "rounds": 1}
SECOND = "topology: item 2 of the sequence"


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"link_up": 0}, "topology: link_up must be above 0 and at most 1, not 0."),
        ({"link_up": 1.5}, "topology: link_up must be above 0 and at most 1, not 1.5."),
        ({"link_up": True}, "topology: link_up must be above 0 and at most 1, not True."),
        ({"link_up": float("nan")}, "topology: link_up must be above 0 and at most 1, not nan."),
        ({"arc_up": "x"}, "topology: arc_up must be above 0 and at most 1, not 'x'."),
        ({"link_share": 80}, "topology: link_share must be above 0 and at most 1, not 80."),
        ({"link_share": 0.8, "link_up": 0.9}, "topology: link_up and link_share exclude each other; keep one."),
        ({"link_upp": 1}, "topology: unknown key 'link_upp'; did you mean 'link_up'?"),
        ({"every": 0}, "topology: every must be a whole number of rounds >= 1, not 0."),
        ({"every": 1.5}, "topology: every must be a whole number of rounds >= 1, not 1.5."),
        ({"every": 1}, "topology: every needs a random generator, and complete makes the same graph each time."),
        ({"generator": "gnp_random_graph", "args": {"p": 0.5, "seed": 1}, "every": 1},
         "topology: every with the seed in args makes the same graph each time; put seed next to args."),
        ({"repeat": True}, "topology: repeat goes with sequence; a single graph holds for ever."),
        ({"rounds": 3}, "topology: unknown key 'rounds'"),
        ({"generator": "server", "link_share": 0.8}, "topology: links to a server do not fail by link_up, arc_up or "
         "link_share, since a client without its only link is a client that dropped out; use --dropout Bernoulli or"),
        ({"sequence": [ITEM]}, "topology: exactly one of the keys generator, graph, class_path and sequence is "),
        ({"generator": None, "graph": "line.edgelist", "every": 2},
         "topology: every draws a generator's graph anew; for graph files in turn use sequence."),
    ],
)  # fmt: skip
def test_mistakes_about_links_and_redraws_are_reported(files, keys, sentence):
    keys = {"generator": "complete", **keys}
    refused({key: value for key, value in keys.items() if value is not None}, sentence)


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"sequence": []}, "topology: sequence takes a list of graphs with the rounds they hold, for example [{graph"),
        ({"sequence": "ring"}, "topology: sequence takes a list of graphs with the rounds they hold, for example [{"),
        ({"sequence": ["ring"]}, "topology: sequence takes a list of graphs with the rounds they hold, for example ["),
        ({"sequence": [ITEM], "args": {"k": 1}}, "topology: args belongs to an item of the sequence, not next to it."),
        ({"sequence": [ITEM], "every": 2}, "topology: every belongs to an item of the sequence, not next to it."),
        ({"sequence": [ITEM], "repeat": 3}, "topology: repeat is true or false, not 3."),
        ({"sequence": [{"generator": "complete"}, ITEM]},
         "topology: item 1 of the sequence needs rounds, the number of rounds it holds."),
        ({"sequence": [ITEM, {"generator": "complete"}], "repeat": True}, f"{SECOND} needs rounds, the number of "),
        ({"sequence": [ITEM, {**ITEM, "rounds": 0}]}, f"{SECOND}: rounds must be a whole number >= 1, not 0."),
        ({"sequence": [ITEM, {"rounds": 1}]}, f"{SECOND}: exactly one of the keys generator, graph and class_path "),
        ({"sequence": [ITEM, {"sequence": [ITEM], "rounds": 1}]}, f"{SECOND}: unknown key 'sequence' (keys: generat"),
        ({"sequence": [ITEM, {**ITEM, "generator": "compleet"}]}, f"{SECOND}: unknown generator 'compleet'; did you"),
        ({"sequence": [ITEM, {**ITEM, "seed": -1}]}, f"{SECOND}: seed must be a whole number >= 0, not -1."),
        ({"sequence": [ITEM, {"graph": "no.gml"}]}, f"{SECOND}: the graph file no.gml does not exist."),
        ({"sequence": [ITEM, {"generator": "cycle_graph", "args": {"n": 7}}]}, f"{SECOND}: 7 nodes, but data has 4 "),
        ({"sequence": [ITEM, {"generator": "server"}]}, "topology: item 1 of the sequence has 0 servers and item 2 has "
         "1; all graphs must have the same nodes."),
        ({"sequence": [{"graph": "line.edgelist", "rounds": 1}, {"graph": "other.edgelist"}]},
         "topology: the graph files of the sequence have 5 different nodes, but data has 4 clients; give them as many "
         "together; 'e' is first in item 2."),
    ],
)  # fmt: skip
def test_mistakes_about_sequences_are_reported(files, keys, sentence):
    (files / "other.edgelist").write_text("a b\nb c\nc e\n")
    refused(keys, sentence)


def refused(keys, sentence):
    with pytest.raises(UserError) as error:
        load_topology(keys, 4)
    assert str(error.value).startswith(sentence)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")
