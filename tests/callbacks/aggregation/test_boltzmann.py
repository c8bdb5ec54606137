import math

import networkx as nx
import numpy as np
import pytest
import torch

from dfl_lightning.callbacks import AFIND, FDMS, AdaptiveThreshold, Bernoulli, Boltzmann, GaussianNoise, Gossip, Stale
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.utils.errors import UserError


def softmax(losses, temperature):
    powers = [math.exp(-(loss - min(losses)) / temperature) for loss in losses]
    return [power / sum(powers) for power in powers]


def received(run, round, sender, receiver):
    """Combine the sender's shared parameters with the receiver's personal ones, after training."""
    layout = run.module.federation.layout
    personal = layout.personal.mask(layout.width)
    return torch.where(personal, round.trained[receiver], round.trained[sender])


@pytest.mark.parametrize("shared", [["*"], ["features.*"]])
@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("include_self", [True, False])
def test_cross_weights_are_softmax_of_losses_on_receivers_data(shared, temperature, include_self, start):
    run = start(Gossip(k=3), Boltzmann(temperature, include_self=include_self), shared=shared).go(2)
    for round in run.rounds:
        for i in range(6):
            substitutes = [j for j in range(6) if round.selected[i, j] or (j == i and include_self)]
            losses = [run.loss(received(run, round, j, i), i) for j in substitutes]
            expected = np.zeros(6)
            expected[substitutes] = softmax(losses, temperature)
            np.testing.assert_allclose(round.weights[i].numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("gamma", [0.9, 0.0, 1.0])
def test_own_weights_are_a_softmax_of_each_senders_smoothed_loss(gamma, start):
    run = start(Gossip(k="all"), Boltzmann(contribution="own", gamma=gamma), shared=["features.*"]).go(2)
    for round in run.rounds:
        losses = []
        for j in range(6):
            before, after = run.loss(round.before[j], j), run.loss(round.trained[j], j)
            losses.append(gamma * before + (1 - gamma) * after)
        for i in range(6):
            np.testing.assert_allclose(round.weights[i].numpy(), softmax(losses, 1.0), atol=1e-6)


# --- as printed -------------------------------------------------------------------------------------------------------
def asked(run, round, rows, receiver, sender):
    """Compute by plain torch the loss on the sender's data of its personal and the receiver's shared parameters."""
    personal = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    return run.loss(torch.where(personal, rows[sender], rows[receiver]), sender)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("shared", [["*"], ["features.*"]])
@pytest.mark.parametrize(("gamma", "include_self"), [(0.9, False), (0.0, True), (1.0, False), (0.4, True)])
def test_printed_rule_evaluates_receivers_models_on_senders_data(gamma, include_self, shared, engine, start):
    """Eq. 14 to 16: F_j(w_i, beta_j) on j's data, before i's local steps and after them."""
    policy = Boltzmann(0.5, contribution="printed", gamma=gamma, include_self=include_self)
    run = start(Gossip(k=3), policy, shared=shared, trainer={"engine": engine}).go(2)
    for round in run.rounds:
        for i in range(6):
            mixed = [j for j in range(6) if round.selected[i, j] or (j == i and include_self)]
            losses = [
                gamma * asked(run, round, round.before, i, j) + (1 - gamma) * asked(run, round, round.trained, i, j)
                for j in mixed
            ]
            np.testing.assert_allclose(round.weights[i, mixed].numpy(), softmax(losses, 0.5), atol=1e-6)


@pytest.mark.parametrize("gamma", [0.9, 0.0])
def test_printed_rule_charges_both_models_and_the_returned_loss(gamma, start):
    run = start(Gossip(k=2), Boltzmann(contribution="printed", gamma=gamma)).go(2)
    width = len(run.module.federation.layout.shared)
    for round in run.rounds:
        selected = round.selected
        models = int((selected | selected.T).sum())  # who mixes a model has it already
        former = int(selected.sum()) if gamma else 0
        assert round.metrics["models_received"] == pytest.approx(models / 6)
        assert round.metrics["proxies_received"] == pytest.approx(former / 6)
        assert round.metrics["messages_received"] == pytest.approx(int(selected.sum()) / 6)
        bytes_ = 4 * (width * (models + former) + int(selected.sum()))
        assert round.metrics["bytes_received"] == pytest.approx(bytes_ / 6)


def test_printed_rule_asks_the_friend_of_a_dropped_client(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 0 1 1 1")
    run = start(Gossip(k="all"), Boltzmann(contribution="printed"), up, FDMS(), rounds=2).go(2)
    round = run.rounds[1]
    for i in (0, 1, 3, 4, 5):
        mixed = torch.nonzero(round.votes[i]).squeeze(1).tolist()
        losses = [0.9 * run.loss(round.before[i], j) + 0.1 * run.loss(round.trained[i], j) for j in mixed]
        weights = round.votes[i, mixed].numpy() * np.exp(-np.array(losses))
        np.testing.assert_allclose(round.weights[i, mixed].numpy(), weights / weights.sum(), atol=1e-6)
    assert round.votes.max() > 1  # some friend has two votes


def test_printed_rule_averaged_over_rounds_evaluates_sent_models(start):
    class Sent(RoundCallback):
        def on_trained(self, round):
            self.rows = round.bank.rows("sent").clone()

    policy, seen = Boltzmann(contribution="printed", smooth="rounds", include_self=False), Sent()
    run = start(Gossip(k="all"), policy, GaussianNoise(sigma=0.1), seen).go()
    (round,), sent = run.rounds, seen.rows
    assert not torch.equal(sent, round.trained)
    for i in range(6):
        losses = [run.loss(sent[i], j) for j in range(6) if j != i]
        np.testing.assert_allclose(round.weights[i][torch.arange(6) != i].numpy(), softmax(losses, 1.0), atol=1e-6)


ONE_WAY = nx.DiGraph([(i, (i + 1) % 6) for i in range(6)])


@pytest.mark.parametrize(
    ("company", "settings", "sentence"),
    [
        ([], {"topology": "server"}, "a server trains none; use --aggregation.contribution own"),
        (
            [],
            {"topology": nx.DiGraph([(i, (i + 1) % 6) for i in range(6)])},
            "some links lead one way only; use an und",
        ),
        ([Bernoulli(0.3), Stale()], {}, "substitution Stale mixes stored models .*; use --substitution FDMS or"),
        ([GaussianNoise()], {}, "no Outgoing policy changes; use --aggregation.smooth rounds, or --outgoing null"),
    ],
)
def test_printed_rule_is_refused_if_senders_cannot_evaluate(company, settings, sentence, start):
    with pytest.raises(UserError, match=sentence):
        start(Gossip(k="all"), Boltzmann(contribution="printed"), *company, **settings)


# --- over rounds ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("contribution", ["printed", "own"])
def test_losses_may_be_averaged_over_rounds(contribution, engine, start, go_on):
    """F~ = .7 F~ + .3 F, the first one F; of a pair that did not meet in the last round, what it was when it did."""

    def policies():
        return Gossip(k=3), Boltzmann(contribution=contribution, gamma=0.7, smooth="rounds")

    settings = {"trainer": {"engine": engine}}
    run, averages = start(*policies(), **settings).go(4), {}
    for number, round in enumerate(run.rounds):
        met = [(i, j) for i in range(6) for j in range(6) if round.selected[i, j] or j == i]
        if contribution == "own":
            met = [(j, j) for j in range(6)]
        for i, j in met:
            loss = run.loss(round.trained[i], j)
            averages[i, j] = 0.7 * averages.get((i, j), loss) + 0.3 * loss
        for i in range(6):
            mixed = [j for j in range(6) if round.selected[i, j] or j == i]
            losses = [averages[(i, j) if contribution == "printed" else (j, j)] for j in mixed]
            np.testing.assert_allclose(round.weights[i, mixed].numpy(), softmax(losses, 1.0), atol=1e-6)
        assert round.metrics["proxies_received"] == 0, number
    resumed = go_on(start(*policies(), **settings).go(2), *policies(), **settings).go(2)
    assert torch.equal(resumed.models, run.models)


def test_cross_losses_are_not_averaged_over_rounds():
    with pytest.raises(UserError, match=r"contribution=cross smooths none; use --aggregation.contribution printed, or"):
        Boltzmann(smooth="rounds")


# --- validation data --------------------------------------------------------------------------------------------------
def on_validation_data(contribution, run, before, after, i, j):
    """Compute the loss that decides the weight of row j at receiver i, with all parameters shared."""
    row, owner = {"cross": (j, i), "printed": (i, j), "own": (j, j)}[contribution]
    last = run.loss(after[row], owner, "val")
    return last if contribution == "cross" else 0.9 * run.loss(before[row], owner, "val") + 0.1 * last


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("contribution", ["cross", "printed", "own"])
def test_losses_may_be_of_validation_data(contribution, engine, start, make_data):
    policy = Boltzmann(contribution=contribution, split="val")
    run = start(Gossip(k=3), policy, data=make_data(6, val_fraction=0.5), trainer={"engine": engine}).go(2)
    for round in run.rounds:
        for i in range(6):
            mixed = [j for j in range(6) if round.selected[i, j] or j == i]
            losses = [on_validation_data(contribution, run, round.before, round.trained, i, j) for j in mixed]
            np.testing.assert_allclose(round.weights[i, mixed].numpy(), softmax(losses, 1.0), atol=1e-6)


def test_clients_without_validation_data_are_refused_before_training(start):
    sentence = "split=val evaluates models on validation data, and client 0 has none; set data.val_fraction, for"
    with pytest.raises(UserError, match=sentence):
        start(Gossip(k=3), Boltzmann(split="val"))


def test_own_losses_under_a_server_are_at_its_model(start):
    run = start(Gossip(k="all"), Boltzmann(contribution="own"), topology="server").go(2)
    for round in run.rounds:
        losses = [0.9 * run.loss(round.before[6], j) + 0.1 * run.loss(round.trained[j], j) for j in range(6)]
        np.testing.assert_allclose(round.weights[6, :6].numpy(), softmax(losses, 1.0), atol=1e-6)


def test_dropped_clients_keep_their_last_loss(start):
    run = start(Gossip(k="all"), Boltzmann(contribution="own"), Bernoulli(0.5), Stale(), topology="server").go(5)
    last = [math.nan] * 6
    for round in run.rounds:
        for j in torch.nonzero(round.active[:6]).squeeze(1).tolist():
            last[j] = 0.9 * run.loss(round.before[6], j) + 0.1 * run.loss(round.trained[j], j)
        mixed = torch.nonzero(round.votes[6]).squeeze(1).tolist()
        losses = [last[row if row < 6 else row - 7] for row in mixed]
        votes = round.votes[6, mixed].numpy()
        weights = votes * np.exp(-np.array(losses))
        np.testing.assert_allclose(round.weights[6, mixed].numpy(), weights / weights.sum(), atol=1e-6)
    assert any(row > 6 for row in mixed)


def test_stale_models_are_judged_as_they_are_mixed(start):
    run = start(Gossip(k="all"), Boltzmann(), Bernoulli(0.5), Stale()).go(5)
    stored_rows = 0
    for round in run.rounds:
        for i in torch.nonzero(round.receivers).squeeze(1).tolist():
            mixed = torch.nonzero(round.votes[i]).squeeze(1).tolist()
            stored_rows += sum(row >= 6 for row in mixed)
            rows = [round.trained[r] if r < 6 else round.before[i] + round.sets["stale"][r - 6] for r in mixed]
            weights = round.votes[i, mixed].numpy() * np.exp([-run.loss(row, i) for row in rows])
            np.testing.assert_allclose(round.weights[i, mixed].numpy(), weights / weights.sum(), atol=1e-6)
    assert stored_rows


def test_evaluating_mixed_models_costs_nothing_more(start):
    ours = start(AFIND(), AdaptiveThreshold(), Boltzmann()).go(2)
    for round in ours.rounds:
        assert round.metrics["models_received"] == pytest.approx(int(round.selected.sum()) / 6)
        assert round.metrics["probes_received"] == 0
