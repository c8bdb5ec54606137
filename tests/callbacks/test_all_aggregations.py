"""What every aggregation must do, whoever wrote it."""

import networkx as nx
import pytest
import torch

from dfl_lightning.callbacks import (
    FDMS,
    Aggregation,
    Bernoulli,
    Boltzmann,
    FromTopology,
    Gossip,
    Metropolis,
    SampleWeighted,
    ScoreWeighted,
    Stale,
    Trace,
    Uniform,
)
from dfl_lightning.errors import UserError


class Scoring(Gossip):
    """Gossip that also says what it thinks of everybody: the more samples the better."""

    scores_are_weights = True

    def on_compare(self, trainer, module, round):
        scores = torch.ones(round.num_nodes, dtype=torch.float64)
        scores[: round.num_clients] = round.data.sizes("train").double()
        round.scores = scores.expand(round.num_nodes, -1).clone()


AGGREGATIONS = {
    "uniform": Uniform,
    "by samples": SampleWeighted,
    "from the topology": FromTopology,
    "by scores": ScoreWeighted,
    "metropolis": Metropolis,
    "boltzmann": Boltzmann,
    "boltzmann, cold, without oneself": lambda: Boltzmann(temperature=0.1, include_self=False),
    "boltzmann, own losses": lambda: Boltzmann(contribution="own"),
}
AT_A_SERVER = ["uniform", "by samples", "boltzmann, own losses"]
every_aggregation = pytest.mark.parametrize("name", AGGREGATIONS)


@pytest.fixture
def weighted_ring():
    graph = nx.circulant_graph(6, [1, 2])
    for i, j in graph.edges:
        graph.edges[i, j]["weight"] = 1.0 + min(i, j)
    return graph


@pytest.fixture
def uneven(make_data):
    return lambda **kwargs: make_data(sizes=[6, 3, 5, 2, 4, 6], **kwargs)


def check_weights(round, include_self=True):
    receiving = round.receivers & (round.votes.sum(1) > 0)
    torch.testing.assert_close(round.weights.sum(1)[receiving], torch.ones(int(receiving.sum()), dtype=torch.float64))
    own = torch.eye(*round.weights.shape, dtype=torch.bool)
    assert not ((round.weights != 0) & (round.votes == 0) & ~own).any()
    assert (round.weights >= 0).all()
    assert not round.weights[~receiving].any()


def test_every_shipped_aggregation_is_tested_here(exported):
    assert {type(make()) for make in AGGREGATIONS.values()} == exported(Aggregation)


@every_aggregation
def test_weights_are_shares_of_the_votes(name, start, weighted_ring, uneven):
    run = start(Scoring(k=2), AGGREGATIONS[name](), Bernoulli(0.3), topology=weighted_ring, data=uneven()).go(5)
    for round in run.rounds:
        check_weights(round)
        mixing = torch.nonzero(round.weights.any(1)).squeeze(1)
        naive = (round.weights[:, :6] @ round.trained.double()).float()
        torch.testing.assert_close(round.after[mixing], naive[mixing])
        resting = [i for i in range(6) if i not in mixing]
        assert torch.equal(round.after[resting], round.trained[resting])


@every_aggregation
def test_who_reaches_nobody_keeps_its_model(name, start, weighted_ring, uneven):
    weighted_ring.remove_edges_from(list(weighted_ring.edges(0)))
    for round in start(Scoring(k="all"), AGGREGATIONS[name](), topology=weighted_ring, data=uneven()).go(2).rounds:
        assert torch.equal(round.after[0], round.trained[0])
        assert not round.weights[1:, 0].any()


@pytest.mark.parametrize("name", [name for name in AGGREGATIONS if name != "from the topology"])
def test_one_client_alone_keeps_its_model(name, start, make_data):
    run = start(Scoring(k="all"), AGGREGATIONS[name](), clients=1, data=make_data(1)).go(2)
    assert all(torch.equal(round.after, round.trained) for round in run.rounds)


@every_aggregation
def test_a_round_in_which_everybody_is_down_changes_nothing(name, start, weighted_ring, tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_text("0 0 0 0 0 0\n1 1 1 1 1 1\n")
    dropout = Trace(str(trace), repeat=True)
    run = start(Scoring(k=2), AGGREGATIONS[name](), dropout, topology=weighted_ring).go(3)
    assert run.rounds[0].weights is None
    assert torch.equal(run.rounds[2].after, run.rounds[1].after)
    assert not torch.equal(run.rounds[1].after, run.rounds[0].after)


@every_aggregation
def test_the_next_round_after_a_checkpoint_is_the_one_that_would_have_come(name, start, go_on, weighted_ring, uneven):
    def policies():
        return Scoring(k=2), AGGREGATIONS[name](), Bernoulli(0.3)

    run = start(*policies(), topology=weighted_ring, data=uneven()).go(2)
    later = go_on(run, *policies(), topology=weighted_ring, data=uneven())
    for one, other in zip(run.go(2).rounds[2:], later.go(2).rounds, strict=True):
        assert torch.equal(one.weights, other.weights)
        assert torch.equal(one.after, other.after)


@every_aggregation
def test_cohorts_change_nothing(name, start, weighted_ring, uneven, other_cohorts):
    def run():
        return start(Scoring(k=3), AGGREGATIONS[name](), topology=weighted_ring, data=uneven()).go(3)

    usual = run()
    other_cohorts()
    for one, other in zip(usual.rounds, run().rounds, strict=True):
        torch.testing.assert_close(one.weights, other.weights)
        torch.testing.assert_close(one.after, other.after)


@every_aggregation
def test_other_names_for_the_clients_give_the_same_weights_under_their_names(name, start, weighted_ring, uneven):
    order = [3, 0, 5, 1, 4, 2]
    renamed_ring = nx.relabel_nodes(weighted_ring, {old: new for new, old in enumerate(order)})
    # a batch of all samples, so that the order in which a client sees them does not matter
    settings = {"trainer": {"precision": "64-true"}, "batch_size": 6}

    def run(graph, data):
        return start(Scoring(k="all"), AGGREGATIONS[name](), topology=graph, data=data, **settings).go(3)

    usual, renamed = run(weighted_ring, uneven()), run(renamed_ring, uneven(order=order))
    for one, other in zip(usual.rounds, renamed.rounds, strict=True):
        torch.testing.assert_close(one.weights[order][:, order], other.weights)
        torch.testing.assert_close(one.after[order], other.after)


@pytest.mark.parametrize("name", AT_A_SERVER)
@pytest.mark.parametrize("substitution", [FDMS, Stale])
def test_every_aggregation_works_with_every_substitution(name, substitution, start, uneven):
    policies = Scoring(k="all"), AGGREGATIONS[name](), Bernoulli(0.5), substitution()
    run = start(*policies, topology="server", data=uneven()).go(6)
    assert any(round.dropped.any() for round in run.rounds)
    for round in run.rounds:
        check_weights(round)
        assert round.votes[6].sum() == pytest.approx(6)  # everybody has a vote, however it is spoken
        assert round.after.isfinite().all()


@pytest.mark.parametrize(
    "name", ["uniform", "by samples", "by scores", "metropolis", "boltzmann", "boltzmann, own losses"]
)
def test_stale_updates_work_between_clients_too(name, start, uneven):
    run = start(Scoring(k=3), AGGREGATIONS[name](), Bernoulli(0.5), Stale(), data=uneven()).go(6)
    assert any(round.weights[:, 6:].any() for round in run.rounds if round.weights is not None)
    for round in run.rounds:
        if round.weights is not None:
            check_weights(round)


@pytest.mark.parametrize("name", ["boltzmann", "boltzmann, cold, without oneself"])
def test_a_server_cannot_judge_models_on_data_it_does_not_have(name, start):
    with pytest.raises(UserError, match="a server has"):
        start(Scoring(k="all"), AGGREGATIONS[name](), topology="server")
