"""Monitors on rounds made by hand."""

import math
from types import SimpleNamespace

import pytest
import torch

from dfl_lightning import callbacks
from dfl_lightning.callbacks import (
    FDMS,
    FriendAccuracy,
    Gossip,
    GroupedCount,
    Monitor,
    NeighbourAccuracy,
    Stale,
    SubstitutionError,
    Uniform,
)
from dfl_lightning.data import Digits, LabelClusters
from dfl_lightning.links import Links
from dfl_lightning.models import MLP


class Seen(SimpleNamespace):
    """A round with only the fields that a monitor reads."""

    def __init__(self, **fields):
        super().__init__(metrics={}, **fields)

    def has(self, field):
        return getattr(self, field) is not None

    def log(self, name, value):
        self.metrics[name] = value


CLUSTERS = torch.tensor([0, 0, 0, 1, 1])
ALL = ~torch.eye(5, dtype=torch.bool)


def pairs(*chosen):
    mask = torch.zeros(5, 5, dtype=torch.bool)
    for i, j in chosen:
        mask[i, j] = True
    return mask


def neighbours(selected, available=ALL, clusters=CLUSTERS, servers=0):
    selected, available = (None if mask is None else Links.from_mask(mask) for mask in (selected, available))
    round = Seen(num_clients=5, num_servers=servers, clusters=clusters, selected=selected, available=available)
    NeighbourAccuracy().on_round_end(round)
    return round.metrics


def friends(substitute, dropped, substitution=True, clusters=CLUSTERS, substitute_rows=()):
    dropped = torch.tensor([i in dropped for i in range(5)])
    round = Seen(
        num_clients=5,
        clusters=clusters,
        substitute=torch.tensor(substitute),
        substitute_rows=substitute_rows,
        active=torch.cat([~dropped, torch.tensor([True])]),
        federation=SimpleNamespace(policy=lambda family: object() if substitution else None),
        selected=Links(torch.full((5,), 5), torch.arange(5), nodes=6),
    )
    FriendAccuracy().on_round_end(round)
    return round.metrics


def test_precision_and_recall_are_means_over_receivers():
    # 0 chooses one of two friends; 1 a friend and a stranger; 3 its only friend; 2 and 4 no client
    found = neighbours(pairs((0, 1), (1, 0), (1, 3), (3, 4)))
    assert found["neighbour_precision"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert found["neighbour_recall"] == pytest.approx((1 / 2 + 1 / 2 + 0 + 1 + 0) / 5)


def test_recall_counts_only_friends_that_could_be_chosen():
    available = ALL & ~pairs((0, 2), (4, 3))
    found = neighbours(pairs((0, 1)), available)
    assert found["neighbour_recall"] == pytest.approx((1 + 0 + 0 + 0) / 4)  # 4 has no friend in reach


def test_precision_is_nan_without_selected_neighbours():
    found = neighbours(pairs())
    assert math.isnan(found["neighbour_precision"])
    assert found["neighbour_recall"] == 0


@pytest.mark.parametrize("fields", [{"clusters": None}, {"selected": None}, {"servers": 1}])
def test_neighbour_metrics_need_clusters_and_selecting_clients(fields):
    assert neighbours(**{"selected": pairs((0, 1)), **fields}) == {}


def test_friend_accuracy_is_a_share_of_the_dropped():
    assert friends([1, 1, 3, 3, 3], dropped=[0, 2, 4])["friend_accuracy"] == pytest.approx(2 / 3)
    assert friends([-1, 1, 2, 3, 3], dropped=[0, 4])["friend_accuracy"] == pytest.approx(1 / 2)


@pytest.mark.parametrize(
    "fields", [{"dropped": []}, {"clusters": None}, {"substitution": False}, {"substitute_rows": ["stale"]}]
)
def test_friend_accuracy_is_absent_without_friends(fields):
    assert friends(**{"substitute": [1, 1, 2, 3, 4], "dropped": [0], **fields}) == {}


def test_every_shipped_monitor_is_tested_in_this_folder():
    shipped = (getattr(callbacks, name) for name in callbacks.__all__)
    assert {c for c in shipped if issubclass(c, Monitor) and c is not Monitor} == {
        NeighbourAccuracy,
        FriendAccuracy,
        SubstitutionError,
        *(
            callbacks.Fairness,
            callbacks.GraphSparsity,
            callbacks.CollaborationGraph,
            callbacks.LinkMessages,
            callbacks.SimulatedTime,
        ),  # test_costs
        *(callbacks.ConsensusDistance, callbacks.MergedModel),  # test_consensus
        callbacks.ProductError,  # test_product_error
    }


def test_neighbour_metrics_of_runs_with_known_selections(start, make_clusters):
    graph = make_clusters(6, [0, 0, 0, 1, 1, 1])
    oracle = start(Gossip(k="all", within="cluster"), Uniform(), NeighbourAccuracy(), topology=graph).go()
    assert oracle.rounds[0].metrics["neighbour_precision"] == 1
    assert oracle.rounds[0].metrics["neighbour_recall"] == 1
    complete = start(Gossip(k="all"), Uniform(), NeighbourAccuracy(), topology=graph).go()
    assert complete.rounds[0].metrics["neighbour_precision"] == pytest.approx(2 / 5)


# --- the substitution error -------------------------------------------------------------------------------------------
@pytest.fixture
def watched(start, trace):
    """Make a run with the monitor or without; the lines say which clients are active."""

    def _watched(lines, *more, topology="server", monitor=True, **settings):
        policies = [Gossip(k="all"), Uniform(**settings.pop("uniform", {})), trace(*lines.split(", ")), *more]
        policies += [SubstitutionError()] if monitor else []
        return start(*policies, topology=topology, rounds=len(lines.split(", ")), **settings)

    return _watched


@pytest.mark.parametrize("engine", ["stacked", pytest.param("loop", marks=pytest.mark.slow)])
@pytest.mark.parametrize("topology", ["server", "complete", "ring"])
@pytest.mark.parametrize("substitution", [FDMS, Stale, None])
def test_substitution_error_is_the_distance_to_full_participation(substitution, topology, engine, watched):
    more = [substitution()] if substitution else []
    settings = {"topology": topology, "trainer": {"precision": "64-true", "engine": engine}}
    dropped = watched("111111, 101011".replace("1", "1 ").replace("0", "0 "), *more, **settings).go(2)
    more = [substitution()] if substitution else []
    full = watched("1 1 1 1 1 1, 1 1 1 1 1 1", *more, **settings).go(2)
    one, other = dropped.rounds[1], full.rounds[1]
    assert torch.equal(one.before, other.before)
    error = (one.after - other.after)[one.receivers].square().sum(1).mean()
    assert error > 0
    assert one.metrics["substitution_error"] == pytest.approx(float(error), rel=1e-9)
    assert [round.metrics["substitution_error"] for round in full.rounds] == [0.0, 0.0]


def test_substitution_error_does_not_depend_on_the_server_step(watched):
    lines = "1 1 1 1 1 1, 1 0 1 0 1 1"
    whole, part = (watched(lines, FDMS(), uniform={"server_step": eta}).go(2) for eta in (1.0, 0.5))
    other = watched("1 1 1 1 1 1, 1 1 1 1 1 1", FDMS(), uniform={"server_step": 0.5}).go(2)
    distance = (part.rounds[1].after[6] - other.rounds[1].after[6]).double().square().sum()
    assert part.rounds[1].metrics["substitution_error"] == pytest.approx(float(distance) / 0.25, rel=1e-4)
    assert whole.rounds[0].metrics["substitution_error"] == 0


@pytest.mark.parametrize("substitution", [FDMS, Stale])
@pytest.mark.parametrize("topology", ["server", "ring"])
def test_extra_training_of_dropped_clients_changes_nothing(substitution, topology, watched):
    lines = "1 1 1 1 1 1, 1 0 1 0 1 1, 0 0 0 0 0 0, 0 1 1 1 0 0"
    bare = watched(lines, substitution(), monitor=False, topology=topology).go(4)
    seen = watched(lines, substitution(), topology=topology).go(4)
    assert torch.equal(bare.models, seen.models)
    for one, other in zip(bare.rounds, seen.rounds, strict=True):
        error = {name: other.metrics[name] for name in other.metrics if name not in one.metrics}
        assert one.metrics == {name: value for name, value in other.metrics.items() if name not in error}
        assert set(error) == ({"substitution_error"} if other.trained is not None else set())
        for name in one.sets if one.trained is not None else ():
            assert torch.equal(one.sets[name], other.sets[name])


def test_a_client_that_diverges_has_no_true_update(watched):
    run = watched("1 1 1 1 1 1, 1 1 0 1 1 1, 1 0 1 1 1 1", FDMS()).go(1)
    run.module.federation.data.images[run.module.federation.data.train[2]] = math.inf
    run.go(1)  # client 2 has dropped out, and would have diverged
    with pytest.warns(UserWarning, match="training of client 2 diverged"):
        run.go(1)
    assert ["substitution_error" in round.metrics for round in run.rounds] == [True, False, False]


def test_friends_have_less_error_than_the_mean_of_active_clients(start):
    def errors(*substitution):
        data = Digits(num_clients=10, samples_per_client=20, partition=LabelClusters(5))
        dropout = GroupedCount(0.3, full_first_round=True)
        run = start(
            *(Gossip(k="all"), Uniform(), dropout, *substitution, SubstitutionError()),
            topology="server",
            clients=10,
            data=data,
            network=MLP(hidden=[16]),
            batch_size=5,
            lr=0.05,
        ).go(5)
        return sum(round.metrics["substitution_error"] for round in run.rounds)

    assert errors(FDMS()) < 0.5 * errors()
