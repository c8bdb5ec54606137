"""The graph of selected neighbours, counted by networkx, and by hand."""

import networkx as nx
import pytest
import torch

from dfl_lightning.callbacks import DPFL, CollaborationGraph, Gossip, SampleWeighted, SignFlip, Uniform

COLUMNS = ("collaboration_sparsity", "collaboration_symmetry", "malicious_neighbours")


def graph_of(round):
    return nx.from_numpy_array(round.selected.numpy().astype(int), create_using=nx.DiGraph)


def test_sparsity_and_symmetry_are_those_of_networkx(start, make_data):
    """DPFL evaluates all neighbours in round 0, and few of them are chosen."""
    data = make_data(sizes=[12] * 6, val_fraction=0.25)
    run = start(DPFL(budget=2, initial_epochs=1), SampleWeighted(), CollaborationGraph(), data=data).go(3)
    seen = set()
    for round in run.rounds:
        graph = graph_of(round)
        assert round.metrics["collaboration_sparsity"] == pytest.approx(1 - nx.density(graph))
        if graph.number_of_edges():
            assert round.metrics["collaboration_symmetry"] == pytest.approx(nx.overall_reciprocity(graph))
        assert "malicious_neighbours" not in round.metrics
        seen.add(round.metrics["collaboration_sparsity"])
    assert seen != {0.0}
    assert run.rounds[0].metrics["collaboration_sparsity"] >= 1 - 2 / 5  # of 30 pairs at most 12


def test_malicious_neighbours_are_counted_for_benign_clients_only(start):
    run = start(Gossip(k=2), Uniform(), SignFlip(fraction=0.34), CollaborationGraph()).go(4)
    policy = next(one for one in run.module.federation.policies if isinstance(one, SignFlip))
    malicious = policy.adversaries(run.module.federation)
    assert 0 < int(malicious.sum()) < 6
    found = []
    for round in run.rounds:
        graph = graph_of(round)
        shares = [
            sum(bool(malicious[j]) for j in graph.successors(i)) / graph.out_degree(i)
            for i in range(6)
            if not malicious[i] and graph.out_degree(i)
        ]
        assert round.metrics["malicious_neighbours"] == pytest.approx(sum(shares) / len(shares))
        found.append(round.metrics["malicious_neighbours"])
    assert len(set(found)) > 1


def test_sparsity_and_symmetry_by_hand(start):
    """0 and 1 choose each other, 2 chooses 0; no client chooses 3."""
    graph = nx.DiGraph([(0, 1), (1, 0), (0, 2)])  # from sender to receiver
    graph.add_node(3)
    run = start(Gossip(k="all"), Uniform(), CollaborationGraph(), clients=4, topology=graph).go(1)
    assert run.rounds[0].metrics["collaboration_sparsity"] == pytest.approx(1 - 3 / 12)
    assert run.rounds[0].metrics["collaboration_symmetry"] == pytest.approx(2 / 3)


def test_metrics_without_links_and_under_a_server(start):
    alone = start(Gossip(k=0), Uniform(), CollaborationGraph()).go(1).rounds[0].metrics
    assert alone["collaboration_sparsity"] == 1.0
    assert "collaboration_symmetry" not in alone
    under = start(Gossip(k="all"), SampleWeighted(), CollaborationGraph(), topology="server").go(1).rounds[0].metrics
    assert not set(COLUMNS) & set(under)
    assert torch.tensor(list(alone.values())).isfinite().all()
