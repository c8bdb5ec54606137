"""FedeRiCo whole: E-step, M-step and the mixture of outputs, against plain modules and loops written from the paper."""

import math

import networkx as nx
import pytest
import torch
from plain_clients import LR, UP, combined, judged

from dfl_lightning.callbacks import (
    FDMS,
    PENS,
    Bernoulli,
    FedeRiCo,
    FedeRiCoStep,
    GaussianNoise,
    Gossip,
    Mixture,
    ScoreWeighted,
    Trace,
    Uniform,
)
from dfl_lightning.engines.engine import Engine
from dfl_lightning.objectives import Ditto
from dfl_lightning.utils.errors import UserError

ENGINES = pytest.mark.parametrize("engine", ["loop", "stacked"])
K, BETA = 2, 0.6


def softmax(losses):
    shares = {j: math.exp(-loss) for j, loss in losses.items()}
    return {j: share / sum(shares.values()) for j, share in shares.items()}


class FedeRiCoByHand:
    """Models phi_j, and averaged losses L_ij of those that client i has fetched."""

    def __init__(self, plain, known=K):
        self.plain, self.k, self.models, self.averages = plain, known, [plain.first] * 5, {}

    def round(self, fetched):
        """Perform E-step and M-step; `fetched` lists whose models each active client fetches."""
        weights = {}
        for i, others in fetched.items():
            for j in [*others, i] if others else []:
                loss, former = self.plain.loss(self.models[j], i), self.averages.get((i, j))
                self.averages[i, j] = loss if former is None else (1 - BETA) * former + BETA * loss
            weights[i] = softmax({j: self.averages[i, j] for j in [*others, i]}) if others else {i: 1.0}
        after = list(self.models)
        for j, model in enumerate(self.models):
            helpers = [i for i in fetched if j in weights[i]]
            trained = [self.plain.trained(model, i) for i in helpers]
            shares = [weights[i][j] for i in helpers]
            after[j] = combined([model, *trained], [1 - sum(shares), *shares])
        self.models = after
        return weights

    def predicted(self, i, split, own=None, reach=range(5)):
        others = sorted((loss, j) for (k, j), loss in self.averages.items() if k == i and j != i and j in reach)
        shares = softmax({j: self.averages[i, j] for j in [i, *(j for _, j in others[: self.k])]}) if others else {i: 1}
        x = self.plain.parts[split][i][0]
        with torch.no_grad():
            parts = [
                share * (own if own is not None and j == i else self.models[j])(x).softmax(1)
                for j, share in shares.items()
            ]
        return sum(parts).tolist()


def fetched_in(round, line):
    return {i: torch.nonzero(round.candidates[i]).flatten().tolist() for i, there in enumerate(line) if there == "1"}


def check(run, by_hand, **options):
    for i, model in enumerate(by_hand.models):
        row = torch.cat([p.detach().flatten() for p in model.parameters()])
        torch.testing.assert_close(run.models[i], row, rtol=1e-9, atol=1e-9)
    found = run.module.evaluate()
    for i in range(5):
        for split in ("val", "test"):
            loss, accuracy = judged(by_hand.predicted(i, split, **options), by_hand.plain.parts[split][i][1])
            assert found[f"{split}_loss"][i].item() == pytest.approx(loss, rel=1e-9, abs=1e-9)
            assert found[f"{split}_acc"][i].item() == pytest.approx(accuracy, abs=1e-12)


@ENGINES
@pytest.mark.parametrize("epsilon", [0.0, 0.5])
def test_rounds_and_predictions_are_those_of_the_paper(plain_run, engine, epsilon):
    policies = [FedeRiCo(k=K, epsilon=epsilon, beta=BETA), FedeRiCoStep(), Mixture(), Trace("up.txt")]
    run, plain = plain_run(*policies, engine=engine)
    by_hand = FedeRiCoByHand(plain)
    for line in UP:
        round = run.go().rounds[-1]
        weights = by_hand.round(fetched_in(round, line))
        expected = torch.zeros(5, 5, dtype=torch.float64)
        for i, own in weights.items():
            expected[i, list(own)] = torch.tensor(list(own.values()), dtype=torch.float64)
        torch.testing.assert_close(round.weights, expected, rtol=1e-9, atol=1e-9)
        check(run, by_hand)
        links = sum(len(own) - 1 for own in weights.values())
        assert links > 0
        width = run.module.federation.layout.width
        assert round.metrics["models_received"] == pytest.approx(links / 5)  # tried, and trained
        assert round.metrics["proxies_received"] == pytest.approx(links / 5)  # updates that come back
        assert round.metrics["bytes_received"] == pytest.approx(4 * 2 * links * width / 5)


def test_full_batch_step_is_a_weighted_sum_of_gradients(plain_run):
    """phi_j <- phi_j - lr sum_i w_ij grad F_i(phi_j), the M-step as printed."""
    run, plain = plain_run(FedeRiCo(k=4), FedeRiCoStep(), local_epochs=1, optimizer=lambda p: torch.optim.SGD(p, lr=LR))
    weights = run.go().rounds[-1].weights
    for j in range(5):
        row = torch.nn.utils.parameters_to_vector(plain.first.parameters())
        for i in range(5):
            x, y = plain.parts["train"][i]
            loss = torch.nn.functional.cross_entropy(plain.first(x), y)
            gradient = torch.autograd.grad(loss, list(plain.first.parameters()))
            row = row - LR * weights[i, j] * torch.cat([g.flatten() for g in gradient])
        torch.testing.assert_close(run.models[j], row.detach(), rtol=1e-9, atol=1e-9)


def test_updates_go_back_over_links_that_exist(plain_run):
    """Client 0 receives from 1 and 2, but only 1 receives from 0: it cannot send anything to 2."""
    graph = nx.DiGraph([(1, 0), (0, 1), (2, 0), (3, 4), (4, 3)])
    run, plain = plain_run(FedeRiCo(k=3), FedeRiCoStep(), Mixture(), topology=graph)
    by_hand = FedeRiCoByHand(plain, known=3)
    for _ in range(3):
        round = run.go().rounds[-1]
        found = fetched_in(round, "11111")
        assert found == {0: [1], 1: [0], 2: [], 3: [4], 4: [3]}
        by_hand.round(found)
        check(run, by_hand)


@ENGINES
def test_fine_tuning_changes_only_the_clients_own_model(plain_run, engine):
    run, plain = plain_run(FedeRiCo(k=K), ScoreWeighted(), Mixture(), engine=engine, finetune_epochs=2)
    run.go(2)
    by_hand = FedeRiCoByHand(plain)
    averages = run.trainer.callbacks[0].averages
    receivers, senders = averages.links.receivers.tolist(), averages.links.senders.tolist()
    by_hand.averages = dict(zip(zip(receivers, senders, strict=True), averages.values.tolist(), strict=True))
    for i, row in enumerate(run.models):
        by_hand.models[i] = combined([plain.first], [1.0])
        torch.nn.utils.vector_to_parameters(row, by_hand.models[i].parameters())
    found = run.module.evaluate()
    for i in range(5):
        tuned = plain.trained(by_hand.models[i], i)
        loss, _ = judged(by_hand.predicted(i, "test", own=tuned), plain.parts["test"][i][1])
        assert found["test_loss"][i].item() == pytest.approx(loss, rel=1e-9)


def test_without_a_round_clients_predict_by_their_own_models(plain_run):
    policies = [FedeRiCo(k=K), FedeRiCoStep()]
    mixed, alone = plain_run(*policies, Mixture())[0].module.evaluate(), plain_run(*policies)[0].module.evaluate()
    for name, values in mixed.items():
        torch.testing.assert_close(values, alone[name], rtol=1e-12, atol=1e-12)


def test_a_model_that_diverges_on_anothers_data_sends_no_update(plain_run, monkeypatch):
    """Client 3's training of others ends in NaN: the others' models are moved by the others' updates."""
    run, _ = plain_run(FedeRiCo(k=4), FedeRiCoStep())
    rehearse = Engine.rehearse

    def broken(self, references, training, into):
        found = rehearse(self, references, training, into)
        bad = references.owners == 3
        self.bank.rows(into)[references.owners[bad]] = torch.nan
        return type(found)(found.losses, found.samples, found.finite & ~bad)

    monkeypatch.setattr(Engine, "rehearse", broken)
    round = run.go().rounds[-1]
    assert run.models.isfinite().all()
    assert round.metrics["proxies_received"] == pytest.approx((20 - 4) / 5)


@ENGINES
def test_personal_columns_stay_with_their_clients(plain_run, engine):
    """The head is trained on its own client's data only, and neither sent nor sent back."""
    run, _ = plain_run(FedeRiCo(k=4), FedeRiCoStep(), Mixture(), engine=engine, shared=["0.*"])
    layout = run.module.federation.layout
    personal = layout.personal.mask(layout.width)
    for round in run.go(3).rounds:
        assert torch.equal(round.after[:, personal], round.trained[:, personal])
        assert not torch.equal(round.after[:, ~personal], round.trained[:, ~personal])
        links = round.metrics["models_received"] + round.metrics["proxies_received"]
        assert links == pytest.approx(8)
        assert round.metrics["bytes_received"] == pytest.approx(4 * links * int((~personal).sum()))
    assert run.module.evaluate()["test_loss"].isfinite().all()


REFUSED = {
    "aggregation FedeRiCoStep trains the models that FedeRiCo": [Gossip(), FedeRiCoStep()],
    "which outgoing GaussianNoise does not support; use --outgoing null": [
        *(FedeRiCo(), FedeRiCoStep(), GaussianNoise(clip=1.0, sigma=0.1))
    ],
    "which substitution FDMS does not support; use --substitution null": [
        *(FedeRiCo(), FedeRiCoStep(), Bernoulli(0.3), FDMS())
    ],
    "and PENS does not say; use --selection FedeRiCo": [PENS(), Uniform(), Mixture()],
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_incompatible_policies_are_refused(plain_run, sentence):
    with pytest.raises(UserError, match=sentence):
        plain_run(*REFUSED[sentence])


def test_an_objective_that_keeps_something_is_refused(plain_run):
    with pytest.raises(UserError, match="Ditto keeps personal for each client's own; use --objective Plain"):
        plain_run(FedeRiCo(), FedeRiCoStep(), objective=Ditto())


@pytest.mark.parametrize("policies", [[FedeRiCo(), FedeRiCoStep()], [Gossip(), Uniform(), Mixture()]])
def test_servers_are_refused(plain_run, policies):
    with pytest.raises(UserError, match=r"a server has none|does not say"):
        plain_run(*policies, topology="server")
