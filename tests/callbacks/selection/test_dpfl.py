"""Whole rounds of DPFL; its decisions by themselves are in tests/functional/test_dpfl.py."""

import itertools

import networkx as nx
import pytest
import torch
from turns import in_turn

from dfl_lightning.callbacks import DPFL, Boltzmann, FromTopology, Gossip, NeighbourAccuracy, SampleWeighted
from dfl_lightning.callbacks import Uniform as Equal
from dfl_lightning.callbacks.selection import dpfl as dpfl_policy
from dfl_lightning.data import Digits, RotatedClusters
from dfl_lightning.links.draws import uniform
from dfl_lightning.models import MLP
from dfl_lightning.topology import Topology
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed

SIZES = [12, 6, 9, 15, 6, 12]


@pytest.fixture
def dpfl(start, make_data):
    """Make a run of DPFL; its clients have different numbers of samples, a third of them for validation."""

    def _dpfl(*more, topology="complete", rounds=4, data=None, aggregation=None, model=None, **options):
        options = {"budget": 3, "initial_epochs": 2, **options}
        aggregation = aggregation or SampleWeighted(count="train_and_val")
        data = data or make_data(sizes=SIZES, val_fraction=1 / 3)
        return start(DPFL(**options), aggregation, *more, data=data, topology=topology, **(model or {})).go(rounds)

    return _dpfl


def with_budgets(budgets):
    graph = nx.complete_graph(len(budgets))
    nx.set_node_attributes(graph, dict(enumerate(budgets)), "budget")
    return graph


def recorded(run):
    """Record every later call of the engine's evaluation: (number of references, split)."""
    calls, evaluate = [], run.module.engine.evaluate

    def record(references, split):
        calls.append((len(references), split))
        return evaluate(references, split)

    run.module.engine.evaluate = record
    return calls


# --- against the pseudo-code ------------------------------------------------------------------------------------------
def mean(run, rows, members, shares):
    total = sum(shares[i] for i in members)
    row = sum(float(shares[i] / total) * rows[i] for i in sorted(members))
    personal = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    row[personal] = 0
    return row


def greedy(run, round, k, candidates, limit, shares):
    """Perform algorithm 2 of the paper, one client and one candidate after the other, with sets of models."""

    def drawn(j, what):
        return float(uniform(torch.tensor(k), torch.tensor(j), stream_seed(0, f"DPFL {what}", round.index)))

    order = sorted(candidates, key=lambda j: drawn(j, "order"))
    coins = [drawn(j, "coins") for j in order]

    def gain(before, after):
        before, after = (-run.loss(mean(run, round.trained, s, shares), k, "val") for s in (before, after))
        return after - before if after - before > 1e-6 * max(1, abs(before)) else 0.0

    x, y = {k}, {k, *order}
    for j, coin in zip(order, coins, strict=False):
        if len(x) - 1 >= limit:
            break
        a, b = gain(x, x | {j}), gain(y, y - {j})
        if coin < (a / (a + b) if a + b > 0 else 1):
            x |= {j}
        else:
            y -= {j}
    return x - {k}


@pytest.mark.parametrize("budgets", [[3] * 6, [5, 1, 2, 0, 9, 3], [1] * 6])
@pytest.mark.parametrize("graph", [nx.complete_graph(6), nx.circulant_graph(6, [1, 2])], ids=["complete", "ring"])
def test_the_rounds_are_those_of_the_pseudo_code(budgets, graph, dpfl):
    """BGGC with running sums chooses like GGC with sets of models (theorem 1), and all mix what was trained."""
    graph = graph.copy()
    nx.set_node_attributes(graph, dict(enumerate(budgets)), "budget")
    run = dpfl(topology=graph, model={"lr": 0.5})
    first = {}
    for round in run.rounds:
        for k in range(6):
            candidates = set(graph[k]) if round.index == 0 else first[k]
            chosen = greedy(run, round, k, candidates, budgets[k], SIZES)
            assert set(torch.nonzero(round.selected[k]).squeeze(1).tolist()) == chosen
            first.setdefault(k, chosen)
            torch.testing.assert_close(round.after[k], mean(run, round.trained, {k, *chosen}, SIZES))
    assert any(round.selected.any() for round in run.rounds[1:])


def hub(leaves=9):
    """Build a graph where one client receives from all others, and they from it and one or two more."""
    graph = nx.star_graph(leaves)
    graph.add_edges_from((i, i + 1) for i in range(1, leaves))
    return graph


@pytest.mark.parametrize("budget", in_turn([2, "all"]))
def test_choices_do_not_depend_on_the_grouping_of_clients(budget, start, make_data, monkeypatch):
    """All together, the hub and the others apart, or each by itself."""

    def run():
        data = make_data(10, val_fraction=1 / 3)
        policies = DPFL(budget=budget, initial_epochs=2, repeat_bggc=True), Equal()
        return start(*policies, clients=10, data=data, topology=hub(), trainer={"precision": "64-true"}).go(3)

    together = run()
    assert any(round.selected.any() for round in together.rounds)
    for places in (1, 20):
        monkeypatch.setattr(dpfl_policy, "PLACES_AT_ONCE", places)
        for one, other in zip(together.rounds, run().rounds, strict=True):
            assert torch.equal(one.selected, other.selected)
            torch.testing.assert_close(one.after, other.after, rtol=1e-12, atol=1e-12)
            assert one.metrics["models_received"] == other.metrics["models_received"]


@pytest.mark.parametrize("places", [1, 7, 12, 40, 2**22])
def test_groups_have_clients_with_similar_numbers_of_candidates(places, monkeypatch):
    monkeypatch.setattr(dpfl_policy, "PLACES_AT_ONCE", places)
    count = torch.tensor([3, 0, 12, 3, 1, 2, 0, 3])
    groups = list(dpfl_policy._together(count))
    assert sorted(i for group in groups for i in group.tolist()) == [0, 2, 3, 4, 5, 7]
    for group in groups:
        assert group.tolist() == sorted(group.tolist())
        assert len(group) == 1 or len(group) * int(count[group].max()) <= places
    for former, later in itertools.pairwise(groups):
        assert count[former].min() >= count[later].max()


def test_additional_link_does_not_change_other_clients_draws(dpfl):
    """Client 0 receives from one more; round 0 of all other clients is the same."""
    graph = nx.DiGraph(nx.circulant_graph(6, [1]))
    more = graph.copy()
    more.add_edge(3, 0)
    one, other = (dpfl(topology=g, budget="all", rounds=1, model={"lr": 0.5}).rounds[0] for g in (graph, more))
    assert torch.equal(one.selected[1:], other.selected[1:])
    assert torch.equal(one.after[1:], other.after[1:])
    assert int(other.ledger.models[0].sum()) == 3


def test_clients_mix_trained_models_instead_of_mixed_ones(start, make_data):
    """Each of three clients receives from the next: if models were mixed in place, the last one would get 2.5."""
    ring = nx.DiGraph([(1, 0), (2, 1), (0, 2)])
    data = make_data(3, val_fraction=1 / 3)
    policies = DPFL(initial_epochs=0), Equal()
    run = start(*policies, clients=3, data=data, topology=ring, local_epochs=0)
    assert run.module.federation.topology.reachable(0).mask.long().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]
    bias = int(run.module.federation.layout.module_columns("features.fc1").ranges[0][0])
    models = torch.zeros_like(
        run.models
    )  # without weights behind it a bias does no good or harm: 0 / 0, so it is added
    models[:, bias] = torch.tensor([0.0, 2, 4])
    run.write(models)
    assert run.go().models[:, bias].tolist() == [1, 3, 2]


def test_only_round_0_trains_for_initial_epochs(dpfl, start, make_data):
    run = dpfl(initial_epochs=3, rounds=2)
    data = make_data(sizes=SIZES, val_fraction=1 / 3)
    longer = start(Gossip(k=0), Equal(), data=data, local_epochs=3).go()
    assert torch.equal(run.rounds[0].trained, longer.models)
    assert run.rounds[0].record.phases[0].duration.epochs == 3
    assert run.rounds[1].record.phases[0].duration.epochs == 1


def test_budget_0_equals_local_training(dpfl, start, make_data):
    run = dpfl(budget=0, initial_epochs=1)
    local = start(Gossip(k=0), Equal(), data=make_data(sizes=SIZES, val_fraction=1 / 3)).go(4)
    assert torch.equal(run.models, local.models)
    assert all(round.metrics["models_received"] == round.metrics["held"] == 0 for round in run.rounds)


# --- what is received, and kept at once -------------------------------------------------------------------------------
@pytest.mark.parametrize("budgets", [[3] * 6, [5, 1, 2, 0, 9, 3], [1] * 6])
@pytest.mark.parametrize("options", [{}, {"repeat_bggc": True}, {"period": 2}], ids=str)
def test_clients_never_hold_more_models_than_their_budget(budgets, options, dpfl):
    limits = torch.tensor(budgets)
    for round in dpfl(topology=with_budgets(budgets), **options).rounds:
        assert (round.selected.sum(1) <= limits).all()
        assert (round.ledger.held <= limits).all()
        assert round.metrics["held"] == float(round.ledger.held.max())
        reach = torch.minimum(limits, torch.tensor(5))
        if round.index == 0:
            assert torch.equal(round.ledger.held, reach)  # a batch is as large as it may be
            assert torch.equal(round.ledger.models.sum(1), 5 * (limits > 0))  # and all neighbours are evaluated


def test_round_0_charges_models_for_the_sum_and_for_evaluation(dpfl):
    run = dpfl(topology=with_budgets([3, 1, 5, 9, 0, 2]), model={"lr": 0.0}, rounds=1, aggregation=Equal())
    (round,) = run.rounds
    # without learning all models are alike, so that clients are added until the budget is spent
    assert round.selected.sum(1).tolist() == [3, 1, 5, 5, 0, 2]
    received = (round.ledger.models.long() + round.ledger.again).sum(1)
    assert received.tolist() == [5 + 3, 5 + 1, 5, 5, 0, 5 + 2]
    assert round.metrics["models_received"] == pytest.approx(int(received.sum()) / 6)
    assert round.metrics["probes_received"] == pytest.approx(int(received.sum() - round.selected.sum()) / 6)


def test_later_rounds_receive_only_the_first_choice(dpfl):
    run = dpfl()
    first = run.rounds[0].selected
    assert 0 < int(first.sum()) < 30
    for round in run.rounds[1:]:
        assert torch.equal(round.ledger.models, first)
        assert not (round.selected & ~first).any()
        assert not round.ledger.again.any()


def test_literal_rule_exceeds_the_budget(dpfl):
    run = dpfl(budget=2, rule="literal", model={"lr": 0.0}, aggregation=Equal())
    assert run.rounds[0].selected.sum(1).tolist() == [4] * 6  # batches of 2, 2 and 1; the first is left after one
    assert all(round.ledger.held.tolist() == [4] * 6 for round in run.rounds[1:])


def test_random_rule_replaces_the_choices_by_a_random_graph(dpfl):
    """Section 4.5: the longer first round, the kept best model and the mean are DPFL's."""
    run = dpfl(budget=2, rule="random")
    first = run.rounds[0].selected
    assert first.sum(1).tolist() == [2] * 6
    assert all(torch.equal(round.selected, first) for round in run.rounds)
    assert all(torch.equal(round.ledger.models, first) and not round.ledger.again.any() for round in run.rounds)
    for k in range(6):
        members = {k, *torch.nonzero(first[k]).squeeze(1).tolist()}
        torch.testing.assert_close(run.rounds[2].after[k], mean(run, run.rounds[2].trained, members, SIZES))
    greedy = dpfl(budget=2)
    assert torch.equal(run.rounds[0].trained, greedy.rounds[0].trained)  # both take `initial_epochs`
    assert not torch.equal(first, greedy.rounds[0].selected)


def test_each_candidate_costs_two_evaluations_for_all_clients_together(dpfl):
    run = dpfl(budget="all", rounds=0)
    calls = recorded(run)
    run.go()
    assert calls == [(6, "val")] + [(12, "val")] * (1 + 5)  # which model to keep; both sets, then each candidate
    calls.clear()
    run.go()
    candidates = run.rounds[0].selected.sum(1)
    assert len(calls) == 1 + 1 + int(candidates.max())
    assert sum(count for count, _ in calls) == 6 + int((2 * candidates + 2 * (candidates > 0)).sum())


# --- when, and among whom ---------------------------------------------------------------------------------------------
def test_choices_hold_for_a_period_without_probes(dpfl):
    run = dpfl(budget="all", period=3, rounds=8, model={"lr": 0.5})
    selected = [round.selected for round in run.rounds]
    for round in run.rounds:
        if round.index in (0, 1, 4, 7):
            assert round.ledger.models.sum() >= round.selected.sum()
        else:
            assert torch.equal(round.selected, selected[round.index - 1])
            assert torch.equal(round.ledger.models, round.selected)
            assert round.metrics["probes_received"] == 0
    assert any(not torch.equal(selected[i], selected[i + 1]) for i in (3, 6))


def test_choosing_among_all_again_may_leave_the_first_choice(dpfl):
    run = dpfl(budget=2, repeat_bggc=True, rounds=5)
    first = run.rounds[0].selected
    assert any((round.selected & ~first).any() for round in run.rounds[1:])
    assert all(torch.equal(round.ledger.models.sum(1), torch.full((6,), 5)) for round in run.rounds)


class Flaky(Topology):
    """Complete graph where each client receives from three others in a round, and from all in round 0."""

    def reachable(self, round):
        up = super().reachable(round)
        return up.draw(3, seed=round) if round else up


def test_choices_are_limited_to_first_choices_with_present_links(start, make_data):
    policies = DPFL(budget=4, initial_epochs=2), Equal()
    run = start(*policies, data=make_data(sizes=SIZES, val_fraction=1 / 3))
    run.module.federation.topology = Flaky(nx.complete_graph(6), list(range(6)))
    first = run.go(5).rounds[0].selected
    for round in run.rounds[1:]:
        assert round.reachable.sum(1).tolist() == [3] * 6
        assert torch.equal(round.ledger.models, first & round.reachable)
        assert not (round.selected & ~(first & round.reachable)).any()
    assert any((first & ~round.reachable).any() for round in run.rounds[1:])


def test_client_missing_round_0_chooses_among_all_later(dpfl, trace):
    run = dpfl(trace("0 1 1 1 1 1", "0 1 1 1 1 1", "1 1 1 1 1 1", "1 1 1 1 1 1"))
    assert [int(round.ledger.models[0].sum()) for round in run.rounds[:3]] == [0, 0, 5]
    assert torch.equal(run.rounds[3].ledger.models[0], run.rounds[2].selected[0])


# --- the model that is kept -------------------------------------------------------------------------------------------
def accuracy(run, row, owner, split):
    state = run.module.federation.layout.state_dict(row)
    x, y = run.data.batch(getattr(run.data, split)[owner])
    with torch.no_grad():
        scores = torch.func.functional_call(run.module.network, state, x)
    return float((scores.argmax(1) == y).double().mean())


def test_best_validated_model_is_kept_and_ties_take_the_latest(dpfl):
    run = dpfl(rounds=8, model={"lr": 1.0})
    history = torch.tensor([[accuracy(run, round.trained[i], i, "val") for i in range(6)] for round in run.rounds])
    latest = len(history) - 1 - history.flip(0).argmax(0)
    assert latest.unique().numel() > 1
    for i, t in enumerate(latest.tolist()):
        assert torch.equal(run.rows("best")[i], run.rounds[t].trained[i])


def test_clients_are_evaluated_by_the_model_that_is_kept(dpfl):
    run = dpfl(rounds=8, model={"lr": 1.0})
    assert not torch.equal(run.rows("best"), run.models)
    found = run.module.evaluate()["val_acc"]
    expected = [accuracy(run, row, i, "val") for i, row in enumerate(run.rows("best"))]
    assert found.tolist() == pytest.approx(expected)


def test_untrained_client_keeps_its_first_model(dpfl, trace):
    run = dpfl(trace("0 1 1 1 1 1"), rounds=0)
    first = run.models[0].clone()
    assert torch.equal(run.go(2).rows("best")[0], first)


def test_personal_parameters_and_buffers_are_kept_with_it(dpfl):
    run = dpfl(rounds=2, model={"shared": ["features.*"]})
    assert torch.equal(run.rows("best").sum(1) != 0, torch.ones(6, dtype=torch.bool))
    layout = run.module.federation.layout
    personal = layout.personal.mask(layout.width)
    rounds = torch.stack([round.trained for round in run.rounds])
    for i, row in enumerate(run.rows("best")):
        assert any(torch.equal(row[personal], rounds[t, i, personal]) for t in range(2))


# --- what it is good for, and bad input -------------------------------------------------------------------------------
def test_clients_find_those_with_data_like_theirs(start):
    data = Digits(num_clients=8, samples_per_client=60, val_fraction=0.3, partition=RotatedClusters([0, 90]))
    policies = DPFL(budget=3, initial_epochs=5), SampleWeighted(), NeighbourAccuracy()
    settings = {"clients": 8, "data": data, "network": MLP(hidden=[32]), "lr": 0.1, "local_epochs": 2}
    run = start(*policies, **settings).go(8)
    late = [round.metrics["neighbour_precision"] for round in run.rounds[4:]]
    assert sum(late) / len(late) > 0.8  # 3 of 7 others are of the same cluster


def test_a_client_without_validation_data_is_named(start, make_data):
    with pytest.raises(UserError, match=r"and client 0 has none; set data\.val_fraction"):
        start(DPFL(), Equal())
    run = start(DPFL(), Equal(), data=make_data(val_fraction=1 / 3))
    run.module.federation.data.val = tuple(
        part[:0] if i == 2 else part for i, part in enumerate(run.module.federation.data.val)
    )
    with pytest.raises(UserError, match="and client 2 has none"):
        run.module.federation.start()


@pytest.mark.parametrize("aggregation", [Boltzmann, FromTopology])
def test_averages_that_cannot_be_tried_beforehand_are_refused(aggregation, start, make_data):
    graph = nx.complete_graph(6)
    nx.set_edge_attributes(graph, 1.0, "weight")
    with pytest.raises(UserError, match=f"{aggregation.__name__} decides later: use SampleWeighted or Uniform"):
        start(DPFL(), aggregation(), data=make_data(val_fraction=1 / 3), topology=graph)
