from types import SimpleNamespace

import networkx as nx
import pytest
import torch

from dfl_lightning.callbacks import FDMS, PACFL, Gossip, Stale, Uniform
from dfl_lightning.links import AllPairs
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

CLUSTERS = [0, 0, 0, 1, 1, 1]


def history(run):
    return torch.stack([round.selected for round in run.rounds])


@pytest.mark.parametrize("k", [0, 1, 3, 5])
def test_each_client_draws_k_neighbours(k, start):
    assert (history(start(Gossip(k=k), Uniform()).go(4)).sum(2) == k).all()


def test_fewer_neighbours_are_drawn_if_fewer_are_reachable(start):
    assert (history(start(Gossip(k=4), Uniform(), topology="ring").go(3)).sum(2) == 2).all()


def test_k_all_selects_all_reachable_clients(start):
    run = start(Gossip(k="all"), Uniform(), topology=nx.circulant_graph(6, [1, 2])).go(2)
    assert all(torch.equal(round.selected, round.reachable) for round in run.rounds)


def test_each_round_draws_anew_and_every_neighbour_comes_up(start):
    drawn = history(start(Gossip(k=1), Uniform()).go(30))
    assert (drawn.sum(0)[~torch.eye(6, dtype=torch.bool)] > 0).all()
    assert not torch.equal(drawn[0], drawn[1])


def test_within_a_cluster_only_its_members_are_drawn(start, make_clusters):
    clusters = torch.tensor(CLUSTERS)
    same = (clusters[:, None] == clusters) & ~torch.eye(6, dtype=torch.bool)
    every_member = history(
        start(Gossip(k="all", within="cluster"), Uniform(), topology=make_clusters(6, CLUSTERS)).go()
    )
    assert torch.equal(every_member[0], same)
    one = history(start(Gossip(k=1, within="cluster"), Uniform(), topology=make_clusters(6, CLUSTERS)).go(4))
    assert (one.sum(2) == 1).all()
    assert not (one & ~same).any()


def test_fixed_neighbours_are_those_of_the_first_round(start):
    drawn = history(start(Gossip(k=2, redraw=False), Uniform()).go(4))
    assert (drawn == drawn[0]).all()
    assert torch.equal(drawn[0], start(Gossip(k=2), Uniform()).go().rounds[0].selected)


def test_fixed_neighbour_that_dropped_out_is_not_replaced(start, trace):
    usual = history(start(Gossip(k=2, redraw=False), Uniform()).go(3))
    thinned = history(start(Gossip(k=2, redraw=False), Uniform(), trace("1 1 1 1 1 1", "1 1 0 1 0 1")).go(3))
    assert torch.equal(thinned[0], usual[0])
    up = torch.tensor([1, 1, 0, 1, 0, 1], dtype=torch.bool)
    assert torch.equal(thinned[1], usual[1] & up & up[:, None])
    assert torch.equal(thinned[2], usual[2])


def test_a_drawn_neighbour_is_replaced_where_neighbours_are_drawn_anew(start, trace):
    run = start(Gossip(k=3), Uniform(), trace("1 1 0 1 1 1")).go(3)
    assert (history(run)[:, [0, 1, 3, 4, 5]].sum(2) == 3).all()


def test_the_budget_of_a_client_comes_before_k(start):
    graph = nx.complete_graph(6)
    nx.set_node_attributes(graph, dict(enumerate([0, 1, 2, 3, 4, 5])), "budget")
    for selection in (Gossip(k=2), Gossip(k="all"), PACFL(threshold=90.0)):
        assert (history(start(selection, Uniform(), topology=graph).go(3)).sum(2) == torch.arange(6)).all()


# --- a server that samples --------------------------------------------------------------------------------------------
def test_only_the_k_called_clients_train_and_are_charged(start):
    run = start(Gossip(k=2), Uniform(), topology="server").go(5)
    for round in run.rounds:
        called = torch.nonzero(round.selected[6]).squeeze(1)
        assert len(called) == 2
        assert torch.equal(round.jobs.owners, called)
        resting = [i for i in range(6) if i not in called]
        assert torch.equal(round.trained[resting], round.before[resting])
        assert round.metrics["models_received"] == pytest.approx((2 + 2) / 6)  # two downloads, two uploads
        torch.testing.assert_close(round.after[6], round.trained[called].mean(0))
        assert round.metrics["neighbours"] == 2
    assert len({tuple(round.jobs.owners.tolist()) for round in run.rounds}) > 1


def test_server_can_keep_the_clients_of_the_first_round(start):
    drawn = history(start(Gossip(k=2, redraw=False), Uniform(), topology="server").go(4))
    assert (drawn == drawn[0]).all()


def test_server_calls_only_active_clients(start, trace):
    run = start(Gossip(k=2), Uniform(), trace("1 0 1 0 1 0"), topology="server").go(4)
    assert all(set(round.jobs.owners.tolist()) < {0, 2, 4} and len(round.jobs.owners) == 2 for round in run.rounds)


@pytest.mark.parametrize("substitution", [FDMS, Stale])
def test_substitutions_do_not_remember_clients_that_were_not_called(substitution, start, trace):
    policy = substitution()
    run = start(Gossip(k=2), Uniform(), policy, trace("1 1 1 1 1 1"), topology="server").go(1)
    called = run.rounds[0].selected[6, :6]
    if substitution is FDMS:
        assert torch.equal(policy.counts > 0, (called[:, None] & called) & ~torch.eye(6, dtype=torch.bool))
    else:
        assert torch.equal(policy.seen, called)
        assert torch.equal(run.rows("stale")[:6].any(1), called)


def test_a_friend_is_one_of_the_clients_that_were_called(start, trace):
    run = start(Gossip(k=3), Uniform(), FDMS(), trace("1 1 1 1 1 1", "1 1 0 1 0 1"), topology="server").go(8)
    for round in run.rounds:
        assert not round.weights[6, :6][~round.participants].any()


# --- very many clients ------------------------------------------------------------------------------------------------
def proposal(policy, links, clusters=None, active=None):
    """Return the links that a policy selects in a round of a federation with nothing but links."""
    n = links.nodes
    topology = SimpleNamespace(budgets=None, linked=lambda index: links)
    federation = SimpleNamespace(
        topology=topology, num_clients=n, num_nodes=n, num_servers=0, seed=0, clusters=clusters
    )
    up = torch.ones(n, dtype=torch.bool) if active is None else active
    fields = {"reachable": links, "active": up, "receivers": up, "jobs": None, "phases": (), "hyperparameters": ()}
    available = links.between(up, up)
    round = Round(index=3, federation=federation, available=available, candidates=available, **fields)
    policy.on_select(round)
    return round.selected


@pytest.mark.parametrize("redraw", [True, False])
def test_large_complete_graph_is_not_stored_as_a_list(redraw):
    n = 100_000
    active = torch.rand(n, generator=torch.Generator().manual_seed(0)) < 0.9
    all_pairs = AllPairs.of_nodes(n)
    selected = proposal(Gossip(k=3, redraw=redraw), all_pairs, active=active)
    assert "_ends" not in vars(all_pairs)
    if redraw:
        assert torch.equal(selected.count, torch.where(active, 3, 0))
    else:
        whole = proposal(Gossip(k=3, redraw=False), AllPairs.of_nodes(n))
        assert torch.equal(selected.codes, whole.between(active, active).codes)


def test_oracle_with_many_clients_stores_only_clusters():
    n = 20_000
    clusters = torch.arange(n) % 500
    selected = proposal(Gossip(k=2, within="cluster"), AllPairs.of_nodes(n), clusters)
    assert torch.equal(selected.count, torch.full((n,), 2))
    assert torch.equal(clusters[selected.receivers], clusters[selected.senders])


# --- refusals ---------------------------------------------------------------------------------------------------------
def test_within_is_refused_under_a_server(start):
    from dfl_lightning.data import Digits, RotatedClusters

    data = Digits(num_clients=4, samples_per_client=4, partition=RotatedClusters([0, 180]))
    with pytest.raises(UserError, match="a server belongs to no cluster"):
        start(Gossip(k=1, within="cluster"), Uniform(), topology="server", clients=4, data=data)
