"""PENS: whom stage one tries, keeps and counts, and whom stage two gossips with."""

import networkx as nx
import pytest
import torch
from matrices import remembered

from dfl_lightning.callbacks import PENS, Bernoulli, Uniform

OTHERS = ~torch.eye(6, dtype=torch.bool)


def pens(**arguments):
    return PENS(**{"k": 2, "sampled": 3, "top": 2, "stage_one": 4, **arguments})


def test_every_client_is_drawn_eventually(start):
    run = start(pens(stage_one=30), Uniform()).go(25)
    assert (sum(round.candidates for round in run.rounds)[OTHERS] > 0).all()


@pytest.mark.parametrize("rule", ["expected", "all_clients", "one_less", "sent", "panm"])
def test_stage_two_gossips_with_those_that_were_chosen_often(rule, start):
    run = start(pens(rule=rule), Uniform(), init="independent").go(12)
    first, second = run.rounds[:4], run.rounds[4:]
    counts = sum(round.selected.long() for round in first)
    looks = sum(round.candidates.long() for round in first)
    bar = {"expected": 2 * 4 / 5, "all_clients": 2 * 4 / 6, "one_less": 2 * 4 / 5 - 1, "panm": 4}.get(rule)
    for i in range(6):
        peers = [j for j in range(6) if j != i and counts[i, j] > (looks[j, i] * 2 / 3 if bar is None else bar)]
        allowed = set(peers or [j for j in range(6) if j != i])
        for round in second:
            chosen = set(torch.nonzero(round.selected[i]).flatten().tolist())
            assert chosen <= allowed
            assert len(chosen) == min(2, len(allowed))
        assert allowed == {j for round in second for j in torch.nonzero(round.candidates[i]).flatten().tolist()}


def test_without_peers_stage_two_is_gossip(start):
    """ceil(4 (3 + 2) / 6) = 4 is never exceeded in four rounds."""
    policy = pens(rule="panm", stage_one=4)
    run = start(policy, Uniform()).go(30)
    assert all(round.metrics["peers"] == 0 for round in run.rounds)
    drawn = sum(round.selected.long() for round in run.rounds[4:])
    assert (drawn[OTHERS] > 0).all()
    assert all((round.selected.sum(1) == 2).all() for round in run.rounds[4:])


def test_two_kinds_of_clients_are_distinguished(start, make_clusters, make_data):
    """Opposite labels: the models of the other kind are far worse than those of one's own."""
    data = make_data(6, samples=30)
    data.dataset.tensors[1][90:] = 2 - data.dataset.tensors[1][90:]
    clusters = [0, 0, 0, 1, 1, 1]
    policy = pens(sampled=5, stage_one=20)  # both friends are always among those tried
    run = start(policy, Uniform(), data=data, topology=make_clusters(6, clusters), local_epochs=5).go(23)
    own = torch.tensor(clusters)[:, None] == torch.tensor(clusters)
    for round in run.rounds[20:]:
        assert torch.equal(round.candidates, own & OTHERS)


def test_evaluated_models_are_received_and_mixed_ones_once(start):
    run = start(pens(), Uniform()).go(6)
    for round in run.rounds[:4]:
        assert (round.metrics["models_received"], round.metrics["probes_received"]) == (3, 1)
    for round in run.rounds[4:]:
        assert round.metrics["probes_received"] == 0
        assert round.metrics["models_received"] == round.metrics["neighbours"]


def test_expected_counts_follow_the_rounds_in_reach(start):
    """The bar of a peer adds up, over the rounds in which it was active, what chance would have chosen."""
    policy = pens(stage_one=20)
    run = start(policy, Uniform(), Bernoulli(0.4), topology=nx.circulant_graph(6, [1, 2])).go(8)
    expected = torch.zeros(6, 6, dtype=torch.float64)
    for round in run.rounds:
        for i in range(6):
            up = [j for j in range(6) if round.reachable[i, j] and round.active[i] and round.active[j]]
            for j in up:
                expected[i, j] += min(2, len(up)) / len(up)
    torch.testing.assert_close(remembered(policy.expected, 0), expected)
    assert torch.equal(remembered(policy.counts, 0), sum(round.selected.long() for round in run.rounds))


def test_budgets_come_first(start):
    graph = nx.complete_graph(6)
    nx.set_node_attributes(graph, dict(enumerate([0, 1, 2, 3, 2, 1])), "budget")
    run = start(pens(rule="panm"), Uniform(), topology=graph).go(6)
    for round in run.rounds:
        assert round.selected.sum(1).tolist() == [0, 1, 2, 3, 2, 1]
    assert not run.rounds[0].candidates[0].any()


def test_a_run_without_stage_two_is_remarked(start):
    remarks = start(PENS(stage_one=50), Uniform(), rounds=50).trainer.remarks
    assert "PENS stays in stage one for all 50 rounds: lower selection.stage_one" in remarks


def test_peers_are_judged_against_known_clusters(start, make_clusters):
    """The peers are counted by hand; a client without peers counts in the recall only."""
    run = start(pens(), Uniform(), topology=make_clusters(6, [0, 0, 0, 1, 1, 1]), init="independent").go(5)
    counts = sum(round.selected.long() for round in run.rounds[:4])
    peers = [[j for j in range(6) if j != i and counts[i, j] > 2 * 4 / 5] for i in range(6)]
    right = [sum(j // 3 == i // 3 for j in listed) for i, listed in enumerate(peers)]
    found = run.rounds[-1].metrics
    shares = [good / len(listed) for good, listed in zip(right, peers, strict=True) if listed]
    assert found["matched_precision"] == pytest.approx(sum(shares) / len(shares))
    assert found["matched_recall"] == pytest.approx(sum(good / 2 for good in right) / 6)
    assert "matched_precision" not in start(pens(), Uniform()).go(1).rounds[0].metrics
