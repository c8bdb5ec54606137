"""Runs whose graph changes: policies, costs, monitors and checkpoints go by the graph of the round."""

import networkx as nx
import pytest
import torch
from matrices import remembered
from turns import in_turn

from dfl_lightning.callbacks import (
    AFIND,
    AdaptiveThreshold,
    Bernoulli,
    Boltzmann,
    FromTopology,
    Gossip,
    NeighbourAccuracy,
    Uniform,
)
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError

RING, COMPLETE = {"generator": "cycle_graph"}, {"generator": "complete"}
TURNS = {"sequence": [{**RING, "rounds": 2}, {**COMPLETE, "link_share": 0.6, "rounds": 2}, {"generator": "path_graph"}]}
CHANGING = {
    "in turn": TURNS,
    "failing links": {**COMPLETE, "link_up": 0.5},
    "exact share": {**COMPLETE, "link_share": 0.5},
    "drawn anew": {"generator": "partial", "args": {"fraction": 0.4}, "every": 1},
}


def learned_from(round):
    """Return the links that the round mixed, from its weights."""
    mixed = round.weights[:, : round.num_nodes] != 0
    return mixed & ~torch.eye(round.num_nodes, dtype=torch.bool)


@pytest.mark.parametrize("name", CHANGING)
def test_selection_sees_only_clients_reachable_in_the_round(start, name):
    run = start(AFIND(), AdaptiveThreshold(), Boltzmann(), Bernoulli(0.2), topology=CHANGING[name]).go(6)
    topology = load_topology(CHANGING[name], 6)
    for t, round in enumerate(run.rounds):
        graph = topology.reachable(t).mask
        assert torch.equal(round.reachable, graph)
        for seen in (round.available, round.candidates, round.selected, ~round.similarity.isnan()):
            assert not (seen & ~graph).any()
        assert not (learned_from(round) & ~graph).any()
        assert not ((round.ledger.used) & ~graph).any()
        up = round.active[:, None] & round.active[None, :] & graph
        assert torch.equal(round.ledger.proxies, up)  # all reachable clients are compared, and no others are charged


def test_k_all_follows_the_graphs_of_a_sequence(start):
    rounds = start(Gossip(k="all"), Uniform(), topology=TURNS).go(6).rounds
    ring, path = (torch.tensor(nx.to_numpy_array(graph(6)) > 0) for graph in (nx.cycle_graph, nx.path_graph))
    for t, expected in ((0, ring), (1, ring), (4, path), (5, path)):
        assert torch.equal(learned_from(rounds[t]), expected)
    assert [round.metrics["neighbours"] for round in rounds[:4]] == [2, 2, 3, 3]
    assert [round.metrics["models_received"] for round in rounds[:4]] == [2, 2, 3, 3]


@pytest.mark.parametrize(("name", "rule"), in_turn(CHANGING, ["ratio", "literal"]))
def test_resumed_run_has_the_graphs_of_an_uninterrupted_one(start, go_on, name, rule):
    def policies():
        return AFIND(rule=rule, k=1), Boltzmann()

    whole = start(*policies(), topology=CHANGING[name]).go(5)
    half = start(*policies(), topology=CHANGING[name]).go(2)
    later = go_on(half, *policies(), topology=CHANGING[name]).go(3)
    for one, other in zip(whole.rounds[2:], later.rounds, strict=True):
        assert torch.equal(one.reachable, other.reachable)
        assert torch.equal(one.after, other.after)


def test_recall_counts_clients_reachable_in_the_round(start, make_clusters, make_data, tmp_path, monkeypatch):
    """All friends in reach are found, though there are fewer of them in some rounds."""
    monkeypatch.chdir(tmp_path)
    clusters = [0, 0, 0, 1, 1, 1]
    nx.write_gml(make_clusters(6, clusters), "clusters.gml")
    topology = {"graph": "clusters.gml", "link_up": 0.4}
    rounds = start(Gossip(k="all", within="cluster"), Uniform(), NeighbourAccuracy(), topology=topology).go(4).rounds
    assert {int(round.selected.sum()) for round in rounds} != {12}
    for round in rounds:
        assert round.metrics["neighbour_precision"] == round.metrics["neighbour_recall"] == 1


def test_fixed_neighbours_are_not_replaced_while_a_link_is_down(start):
    fixed = start(Gossip(k=2, redraw=False), Uniform(), topology="complete").go().rounds[0].selected
    rounds = start(Gossip(k=2, redraw=False), Uniform(), topology=CHANGING["failing links"]).go(6).rounds
    assert any(not torch.equal(round.selected, fixed) for round in rounds)
    for round in rounds:
        assert torch.equal(round.selected, fixed & round.reachable)


def test_literal_rule_gives_newcomers_an_even_probability(start):
    """A22: p over the neighbours of round 0's graph; one that a later graph brings starts at 1/n."""
    topology = {"sequence": [{**RING, "rounds": 2}, {**COMPLETE}]}
    afind = AFIND(rule="literal", k=2)
    run = start(afind, Uniform(), topology=topology)
    first, _ = run.go(2).rounds
    learned = remembered(afind.probabilities, 0)
    third = run.go().rounds[-1]
    ring = first.reachable
    assert torch.equal(first.scores.nan_to_num(), ring.double() / 2)
    assert (learned[~ring] == 0).all()
    stranger = ~ring & ~torch.eye(6, dtype=torch.bool)
    assert (third.scores[stranger] == 1 / 5).all()
    assert torch.equal(third.scores[ring], learned[ring])
    assert not torch.equal(learned[ring], first.scores[ring])


def test_literal_rule_covers_neighbours_with_failed_links(start):
    afind = AFIND(rule="literal", k=1)
    (first,) = start(afind, Uniform(), topology=CHANGING["failing links"]).go().rounds
    others = ~torch.eye(6, dtype=torch.bool)
    assert not first.reachable[others].all()
    assert (first.scores[first.candidates] == 1 / 5).all()
    torch.testing.assert_close(remembered(afind.probabilities, 0), others.double() / 5)  # of one, all that others leave


def test_weights_from_the_topology_are_those_of_the_round(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.edgelist").write_text("0 1 3\n2\n")
    (tmp_path / "b.edgelist").write_text("0 1 1\n1 2 2\n")
    (tmp_path / "none.edgelist").write_text("0\n1\n2\n")
    items = [{"graph": f"{name}.edgelist", "rounds": 1} for name in ("a", "b", "none")]
    rounds = start(Gossip(k="all"), FromTopology(), clients=3, topology={"sequence": items}).go(3).rounds
    assert rounds[0].weights.tolist() == [[0.25, 0.75, 0], [0.75, 0.25, 0], [0, 0, 1]]
    assert rounds[1].weights.tolist() == [[0.5, 0.5, 0], [0.25, 0.25, 0.5], [0, 2 / 3, 1 / 3]]
    assert rounds[2].weights.tolist() == torch.eye(3).tolist()
    (tmp_path / "b.edgelist").write_text("0 1\n1 2\n")
    with pytest.raises(UserError, match="needs a 'weight' attribute on every edge"):
        start(Gossip(k="all"), FromTopology(), clients=3, topology={"sequence": items})
    (tmp_path / "b.edgelist").write_text("0 1 1\n1 2 -2\n")
    with pytest.raises(UserError, match="no weight may be negative; the link from 2 to 1 has -2"):
        start(Gossip(k="all"), FromTopology(), clients=3, topology={"sequence": items})


def test_budgets_of_nodes_limit_selections_in_every_graph(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = nx.complete_graph(6)
    nx.set_node_attributes(graph, dict(enumerate([0, 1, 2, 3, 4, 5])), "budget")
    nx.write_graphml(graph, "budgets.graphml")
    topology = {"sequence": [{**RING, "rounds": 1}, {"graph": "budgets.graphml"}]}
    run = start(Gossip(k=5), Uniform(), topology=topology).go(2)
    assert run.module.federation.topology.budgets.tolist() == [0, 1, 2, 3, 4, 5]
    assert run.rounds[0].selected.sum(1).tolist() == [0, 1, 2, 2, 2, 2]
    assert run.rounds[1].selected.sum(1).tolist() == [0, 1, 2, 3, 4, 5]
