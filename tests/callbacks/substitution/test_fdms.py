import functools
import math

import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import FDMS, Bernoulli, FriendAccuracy, Gossip, GroupedCount, Trace, Uniform
from dfl_lightning.data import Digits, LabelClusters
from dfl_lightning.errors import UserError
from dfl_lightning.models import MLP


@pytest.fixture
def at_a_server(start, tmp_path):
    """A run of all clients at a server, those of `lines` being up."""

    def _start(lines, *more, eta=1.0, rounds=50, **settings):
        file = tmp_path / "trace.txt"
        file.write_text(lines.replace(", ", "\n"))
        policies = Gossip(k="all"), Uniform(server_step=eta), Trace(str(file), repeat=True)
        return start(*policies, *more, topology="server", rounds=rounds, **settings)

    return _start


LINES = "1 1 1 1 1 1, 1 0 1 1 0 1, 0 1 1 0 1 1, 1 1 0 0 0 0"


def naive_server(w, trained, active, scores, counts, eta):
    """FL-FDMS section 3, one client at a time; changes scores and counts."""
    updates = {k: trained[k] - w for k in range(len(trained)) if active[k]}
    for i in updates:
        for j in updates:
            if i != j:
                r = 0.5 * (updates[i] @ updates[j] / np.linalg.norm(updates[i]) / np.linalg.norm(updates[j]) + 1)
                scores[i, j] = (counts[i, j] * scores[i, j] + r) / (counts[i, j] + 1)
                counts[i, j] += 1
    total = np.zeros_like(w)
    for k in range(len(trained)):
        if k in updates:
            total += updates[k]
            continue
        known = [i for i in updates if counts[k, i] > 0]
        friend = max(known, key=lambda i: scores[k, i]) if known else None
        total += updates[friend] if known else np.mean(list(updates.values()), axis=0)
    return w + eta * total / len(trained)


@pytest.mark.parametrize("eta", [1.0, 0.1, 1.5])
def test_the_server_moves_as_the_paper_says(eta, at_a_server):
    fdms = FDMS()
    run = at_a_server(LINES, fdms, eta=eta).go(6)
    scores, counts = np.zeros((6, 6)), np.zeros((6, 6))
    for round in run.rounds:
        before, trained = round.before.double().numpy(), round.trained.double().numpy()
        expected = naive_server(before[6], trained[:6], round.active.tolist(), scores, counts, eta)
        np.testing.assert_allclose(round.after[6].numpy(), expected, atol=2e-6)
    np.testing.assert_allclose(fdms.scores.numpy(), scores, atol=1e-5)
    assert (fdms.counts.numpy() == counts).all()


def test_without_a_common_history_a_client_counts_as_the_mean_of_the_active_ones(at_a_server):
    lines = "1 1 1 0 0 0, 0 0 0 1 1 1, 1 1 0 0 0 0"
    run = at_a_server(lines, FDMS()).go(3)
    assert run.rounds[1].stand_in[6, :3].tolist() == [-1, -1, -1]
    torch.testing.assert_close(run.rounds[1].after[6], run.rounds[1].trained[3:6].mean(0))
    scores, counts = np.zeros((6, 6)), np.zeros((6, 6))
    for round in run.rounds:
        before, trained = round.before.double().numpy(), round.trained.double().numpy()
        expected = naive_server(before[6], trained[:6], round.active.tolist(), scores, counts, 1.0)
        np.testing.assert_allclose(round.after[6].numpy(), expected, atol=2e-6)


def test_the_servers_step_with_everybody_up(at_a_server):
    run = at_a_server("1 1 1 1 1 1", FDMS(), eta=0.25).go(2)
    for round in run.rounds:
        torch.testing.assert_close(round.after[6], 0.75 * round.before[6] + 0.25 * round.trained[:6].mean(0))


def test_clients_start_from_the_server_and_keep_no_mixture_of_their_own(at_a_server):
    run = at_a_server(LINES, FDMS(), local_epochs=0).go(2)
    for round in run.rounds:
        up = torch.nonzero(round.active[:6]).squeeze(1)
        assert torch.equal(round.trained[up], round.before[6].expand(len(up), -1))
        assert torch.equal(round.after[:6], round.trained[:6])


def test_scores_are_means_over_the_rounds_in_whatever_order(at_a_server):
    forth, back = FDMS(), FDMS()
    lines = ["1 1 1 1 0 0", "1 1 1 0 1 1", "1 1 0 1 1 1"]
    # a server that stays where it is and a batch of all samples: a client's update is the same in each round
    settings = {"eta": 1e-12, "batch_size": 6, "trainer": {"precision": "64-true"}}
    at_a_server(", ".join(lines), forth, **settings).go(3)
    at_a_server(", ".join(reversed(lines)), back, **settings).go(3)
    assert torch.equal(forth.counts, back.counts)
    assert forth.counts.max() == 3
    torch.testing.assert_close(forth.scores, back.scores)
    torch.testing.assert_close(forth.scores, forth.scores.T)
    assert ((forth.scores >= 0) & (forth.scores <= 1)).all()


def test_with_a_full_first_round_every_friend_is_of_the_same_cluster(start):
    data = Digits(num_clients=10, samples_per_client=20, partition=LabelClusters(5))
    dropout = GroupedCount(0.5, full_first_round=True)
    policies = Gossip(k="all"), Uniform(), dropout, FDMS(), FriendAccuracy()
    optimizer = functools.partial(torch.optim.SGD, lr=0.05)
    run = start(
        *policies, topology="server", clients=10, data=data, network=MLP(hidden=[16]), batch_size=5, optimizer=optimizer
    ).go(8)
    assert "friend_accuracy" not in run.rounds[0].metrics
    assert [round.metrics["friend_accuracy"] for round in run.rounds[1:]] == [1.0] * 7


def test_a_friend_speaks_for_a_client_that_diverged(at_a_server):
    run = at_a_server("1 1 1 1 1 1", FDMS()).go(1)
    run.module.data.images[run.module.data.train[2]] = math.inf
    with pytest.warns(UserWarning, match="training of client 2 diverged"):
        run.go(1)
    round = run.rounds[1]
    friend = int(round.stand_in[6, 2])
    assert friend not in (2, -1)
    assert round.votes[6, friend] == 2
    assert round.votes[6, 2] == 0


def test_friends_cost_no_message_and_the_dropped_ones_none(at_a_server):
    for round in at_a_server(LINES, FDMS()).go(4).rounds:
        up = int(round.active[:6].sum())
        assert round.metrics["models_received"] == pytest.approx(2 * up / 6)  # downloads and uploads
        assert round.metrics["proxies_received"] == round.metrics["probes_received"] == 0


def test_there_is_no_one_to_know_friends_without_a_server(start):
    with pytest.raises(UserError, match="FDMS keeps its scores at a server"):
        start(Gossip(k=2), Uniform(), Bernoulli(0.5), FDMS())
