"""What every selection must do, whoever wrote it."""

import functools

import networkx as nx
import pytest
import torch

from dfl_lightning.callbacks import (
    AFIND,
    DPFL,
    FDMS,
    IFCA,
    PANM,
    PENS,
    AdaptiveThreshold,
    Bernoulli,
    FedeRiCo,
    Gossip,
    Selection,
    Stale,
    Trace,
    Uniform,
)

SELECTIONS = {
    "gossip": lambda: [Gossip(k=2)],
    "everybody": lambda: [Gossip(k="all")],
    "nobody": lambda: [Gossip(k=0)],
    "oracle": lambda: [Gossip(k="all", within="cluster")],
    "fixed neighbours": lambda: [Gossip(k=2, redraw=False)],
    "afind": lambda: [AFIND(), AdaptiveThreshold()],
    "afind, k best": lambda: [AFIND(k=2)],
    "afind, uncentred": lambda: [AFIND(center=False), AdaptiveThreshold()],
    "afind, update of the round": lambda: [AFIND(proxy="delta"), AdaptiveThreshold()],
    "afind, weights": lambda: [AFIND(proxy="weight", center=False), AdaptiveThreshold()],
    "afind, first batch": lambda: [AFIND(proxy="grad_batch"), AdaptiveThreshold()],
    "afind by the letter": lambda: [
        AFIND(nu=0.01, rule="literal", proxy="grad_batch", center=False),
        AdaptiveThreshold(rule="literal"),
    ],
    "dpfl": lambda: [DPFL(budget=2, initial_epochs=2)],
    "dpfl, no budget, in every other round": lambda: [DPFL(budget="all", initial_epochs=2, period=2)],
    "dpfl, always among all": lambda: [DPFL(budget=2, initial_epochs=2, repeat_bggc=True)],
    "dpfl by the letter": lambda: [DPFL(budget=2, initial_epochs=2, rule="literal")],
    # two rounds of stage one, a round of gossip at once, a matching in every second one
    "panm": lambda: [PANM(k=2, l=2, stage_one=2, tau=2)],
    "panm, losses": lambda: [PANM(metric="loss", k=2, l=2, stage_one=2, tau=2)],
    "panm by the letter": lambda: [PANM(k=2, l=2, stage_one=2, tau=2, candidates="all", matching="literal")],
    "panm, everybody in sight": lambda: [PANM(k=2, l=5)],
    "federico": lambda: [FedeRiCo(k=2)],
    "federico, greedy": lambda: [FedeRiCo(k=2, epsilon=0)],
    "federico, everybody in sight": lambda: [FedeRiCo(k=5)],
    # a round of stage one, then of stage two
    "pens": lambda: [PENS(k=2, sampled=3, top=2, stage_one=1)],
    "pens, sent": lambda: [PENS(k=2, sampled=3, top=2, stage_one=2, rule="sent")],
    "pens, everybody in sight": lambda: [PENS(k=2, sampled=5, top=2)],
}
WITHOUT_DRAWS = ["everybody", "nobody", "oracle"]
WITHOUT_DRAWS += [name for name in SELECTIONS if name.endswith("everybody in sight")]
WITHOUT_DRAWS += [name for name in SELECTIONS if name.startswith("afind")]
CLUSTERS = [0, 0, 0, 1, 1, 1]
every_selection = pytest.mark.parametrize("name", SELECTIONS)


@pytest.fixture
def make_data(make_data):
    """A third of a client's samples are for validation, which some selections need."""
    return functools.partial(make_data, val_fraction=1 / 3)


@pytest.fixture
def start(start, make_data):
    def _start(*policies, clients=6, data=None, **settings):
        return start(*policies, clients=clients, data=make_data(clients) if data is None else data, **settings)

    return _start


@pytest.fixture
def ring(make_clusters):
    return make_clusters(6, CLUSTERS, nx.circulant_graph(6, [1, 2]))


def selections(name):
    return [*SELECTIONS[name](), Uniform()]


def agree(one, other):
    assert torch.equal(one.selected, other.selected)
    torch.testing.assert_close(one.weights, other.weights)
    torch.testing.assert_close(one.after, other.after)


def test_every_shipped_selection_is_tested_here(exported):
    tested = {type(policy) for make in SELECTIONS.values() for policy in make() if isinstance(policy, Selection)}
    assert tested == exported(Selection) - {IFCA}  # which needs several servers: tests/callbacks/selection/test_ifca.py


@every_selection
def test_only_neighbours_that_are_up_are_looked_at_and_selected(name, start, ring):
    run = start(*selections(name), Bernoulli(0.4), topology=ring).go(5)
    for round in run.rounds:
        if round.selected is None:
            assert not round.active.any()
            continue
        up = round.reachable & round.active[:, None] & round.active[None, :]
        assert not (round.candidates & ~up).any()
        assert not (round.selected & ~round.candidates).any()


@pytest.mark.parametrize("name", ["gossip", "everybody", "nobody", "fixed neighbours"])
@pytest.mark.parametrize("substitution", [FDMS, Stale])
def test_with_a_substitution_a_server_still_chooses_among_the_dropped_ones(name, substitution, start):
    run = start(*selections(name), Bernoulli(0.5), substitution(), topology="server").go(3)
    for round in run.rounds:
        assert round.available[6, :6].all()
        assert not (round.selected & ~round.reachable).any()


@every_selection
def test_a_client_that_reaches_nobody_selects_nobody_and_keeps_its_model(name, start, make_clusters):
    graph = make_clusters(6, CLUSTERS)
    graph.remove_edges_from(list(graph.edges(0)))
    for round in start(*selections(name), topology=graph).go(3).rounds:
        assert not round.selected[0].any()
        assert not round.selected[:, 0].any()
        assert torch.equal(round.after[0], round.trained[0])


@every_selection
def test_one_client_alone_trains(name, start, make_data, make_clusters):
    run = start(*selections(name), clients=1, topology=make_clusters(1, [0]), data=make_data(1)).go(2)
    assert all(not round.selected.any() and torch.equal(round.after, round.trained) for round in run.rounds)


@every_selection
def test_a_round_in_which_everybody_is_down_changes_nothing(name, start, ring, tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_text("1 1 1 1 1 1\n0 0 0 0 0 0\n1 1 1 1 1 1\n")
    run = start(*selections(name), Trace(str(trace)), topology=ring, rounds=3).go(3)
    assert run.rounds[1].selected is None
    assert torch.equal(run.rounds[1].after, run.rounds[0].after)
    assert run.rounds[2].selected is not None


@every_selection
def test_the_next_round_after_a_checkpoint_is_the_one_that_would_have_come(name, start, go_on, ring):
    run = start(*selections(name), Bernoulli(0.3), topology=ring).go(2)
    later = go_on(run, *selections(name), Bernoulli(0.3), topology=ring)
    for one, other in zip(run.go(2).rounds[2:], later.go(2).rounds, strict=True):
        assert torch.equal(one.selected, other.selected)
        assert torch.equal(one.after, other.after)
        if one.scores is not None:
            torch.testing.assert_close(one.scores, other.scores, rtol=0, atol=0, equal_nan=True)


@every_selection
def test_cohorts_change_nothing(name, start, ring, other_cohorts):
    usual = start(*selections(name), topology=ring).go(3)
    other_cohorts()
    for one, other in zip(usual.rounds, start(*selections(name), topology=ring).go(3).rounds, strict=True):
        agree(one, other)


@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_other_names_for_the_clients_give_the_same_neighbours_under_their_names(name, start, make_data, make_clusters):
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    # a batch of all samples, so that the order in which a client sees them does not matter
    settings = {"trainer": {"precision": "64-true"}, "batch_size": 6}
    usual_data = make_data(6, val_fraction=0)  # which samples are held out goes by the names
    usual = start(*selections(name), topology=make_clusters(6, CLUSTERS), data=usual_data, **settings).go(3)
    renamed_clusters = make_clusters(6, [CLUSTERS[i] for i in order])
    data = make_data(6, val_fraction=0, order=order.tolist())
    renamed = start(*selections(name), topology=renamed_clusters, data=data, **settings).go(3)
    for one, other in zip(usual.rounds, renamed.rounds, strict=True):
        assert torch.equal(one.selected[order][:, order], other.selected)
        torch.testing.assert_close(one.after[order], other.after)


@pytest.mark.parametrize("name", [name for name in SELECTIONS if name.startswith(("gossip", "fixed"))])
def test_who_is_drawn_does_not_depend_on_who_else_is_there(name, start, tmp_path):
    trace = tmp_path / "trace.txt"
    trace.write_text("1 1 1 1 1 0\n" * 3)
    usual = start(*selections(name)).go(3)
    thinner = start(*selections(name), Trace(str(trace)), rounds=3).go(3)
    for one, other in zip(usual.rounds, thinner.rounds, strict=True):
        without_5 = one.selected.clone()
        untouched = ~one.selected[:, 5] & torch.tensor([True] * 5 + [False])
        assert untouched.any()
        assert torch.equal(without_5[untouched], other.selected[untouched])
