"""Tasks: losses and numbers of single samples, added up by the engines whatever the network's outputs mean."""

import math

import pytest
import torch
import torch.nn.functional as F
from banks import SEED, _module, _row, make_federation

from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop import scratch
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked import engine as stacked_engine
from dfl_lightning.engines.stacked.loss import StackedLoss, is_plain_cross_entropy, sample_weights
from dfl_lightning.tasks import Classification, MeanLoss, Task

SIZES = (5, 1, 9, 4)


class Weighed(Task):
    """A task whose samples count by class, with two statistics, a score that is not a mean, and lower scores better."""

    numbers = ("spread", "acc")
    names = ("acc", "loss", "square")
    higher_is_better = False

    def losses(self, outputs, targets):
        return F.cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none").view(
            targets.shape
        ) * self.weights(targets)

    def statistics(self, outputs, targets):
        weights, losses = self.weights(targets), self.losses(outputs, targets)
        right = Classification().statistics(outputs, targets)["acc"]
        return {"acc": right * weights, "loss": losses, "square": losses * losses / weights}

    def weights(self, targets):
        return 1.0 + targets

    def finish(self, means):
        return {"spread": (means["square"] - means["loss"] ** 2).sqrt(), "acc": means["acc"]}


def expected(model, x, y):
    """Loss, spread and accuracy of a plain model, by the formulas."""
    with torch.no_grad():
        outputs = model(x)
    each, w = F.cross_entropy(outputs, y, reduction="none"), 1.0 + y
    loss = float((each * w).sum() / w.sum())
    spread = math.sqrt(float((w * (each - loss) ** 2).sum() / w.sum()))
    return loss, spread, float((w * (outputs.argmax(1) == y)).sum() / w.sum())


def plain_training(model, data, client, training):
    """The clients' batches one by one, with an ordinary optimizer; returns the mean loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    draws, samples, total, weight = training.draws(SEED), data.train[client], 0.0, 0
    for epoch in range(2):
        for part in samples[draws.orders_of(client, epoch, 1, len(samples))[0]].split(4):
            x, y = data.batch(part, dtype=torch.float64)
            each, w = F.cross_entropy(model(x), y, reduction="none"), 1.0 + y
            optimizer.zero_grad()
            ((each * w).sum() / w.sum()).backward()
            total, weight = total + float((each.detach() * w).sum()), weight + int(w.sum())
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
    return total / weight


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_weighted_sums_are_trained_and_evaluated_as_the_formulas(engine, monkeypatch):
    """Clients of unequal size, the last batch of an epoch smaller, a global test set in pieces, clipped gradients."""
    monkeypatch.setattr(stacked_engine, "GLOBAL_PIECE", 4)
    monkeypatch.setattr(scratch, "EVALUATION_BATCH", 3)
    task = Weighed()
    f = make_federation(engine=engine, sizes=SIZES, servers=1, loss=task.mean_loss(), task=task, clip_norm=0.5)
    training = f.training()
    trained = f.engine.train(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        model = _module(f.network, f.bank.rows("models")[client])
        mean = plain_training(model, f.data, client, training)
        assert float(trained.losses[client]) == pytest.approx(mean, rel=1e-9)
        assert torch.allclose(f.bank.rows("trained")[client], _row(model, torch.float64), rtol=0, atol=1e-9)
    gradients = f.engine.gradients(References.rows("models", torch.arange(4)), training)
    for client in range(4):
        model = _module(f.network, f.bank.rows("models")[client])
        x, y = f.data.batch(f.data.train[client], dtype=torch.float64)
        each, w = F.cross_entropy(model(x), y, reduction="none"), 1.0 + y
        ((each * w).sum() / w.sum()).backward()
        wanted = torch.cat([p.grad.flatten() for p in model.parameters()])
        assert torch.allclose(gradients[client], wanted, rtol=0, atol=1e-12)
    owners = torch.tensor([0, 1, 2, 3, -1, -1])
    found = f.engine.evaluate(References.rows("models", torch.tensor([1, 0, 3, 2, 4, 1]), owners=owners), "train")
    assert list(found.metrics) == ["spread", "acc"]
    assert task.score == "spread"
    for job, (row, owner) in enumerate(zip([1, 0, 3, 2, 4, 1], owners.tolist(), strict=True)):
        model = _module(f.network, f.bank.rows("models")[row])
        samples = f.data.global_test if owner < 0 else f.data.train[owner]
        wanted = expected(model, *f.data.batch(samples, dtype=torch.float64))
        got = [found.losses[job], *(found.metrics[name][job] for name in task.numbers)]
        assert [float(number) for number in got] == pytest.approx(wanted, rel=1e-9, abs=1e-7)


def test_classification_is_cross_entropy_and_accuracy():
    g = torch.Generator().manual_seed(0)
    outputs, targets = torch.randn(2, 5, 3, generator=g, dtype=torch.float64), torch.randint(0, 3, (2, 5), generator=g)
    task = Classification()
    wanted = -outputs.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    assert torch.allclose(task.losses(outputs, targets), wanted, rtol=1e-14)
    assert float(MeanLoss(task)(outputs[0], targets[0])) == pytest.approx(float(wanted[0].mean()), rel=1e-14)
    assert is_plain_cross_entropy(task.mean_loss())
    assert task.statistics(outputs, targets)["acc"].equal(outputs.argmax(-1) == targets)
    targets[0, :2] = 0  # what a NaN or an infinite score would answer with
    outputs[0, 0] = torch.nan
    outputs[0, 1, 0] = torch.inf
    assert not task.statistics(outputs, targets)["acc"][0, :2].any()


def test_padding_has_no_weight_in_the_loss():
    task, g = Weighed(), torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 4, 3, generator=g, dtype=torch.float64)
    targets = torch.randint(0, 3, (2, 4), generator=g)
    outputs[1, 2:] = torch.tensor([-torch.inf, 0.0, 0.0], dtype=torch.float64)
    targets[1, 2:] = 0
    outputs.requires_grad_()
    weights = sample_weights(torch.tensor([4, 2]), 4, torch.float64)
    found = StackedLoss(task.mean_loss())(outputs, targets, [4, 2], weights)
    wanted = torch.stack([MeanLoss(task)(outputs[0], targets[0]), MeanLoss(task)(outputs[1, :2], targets[1, :2])])
    assert torch.allclose(found, wanted, rtol=1e-14)


@pytest.mark.parametrize(("higher", "wanted"), [(True, [1.0, 2.0]), (False, [-1.0, -2.0])])
def test_the_higher_merit_is_the_better_score(higher, wanted, monkeypatch):
    monkeypatch.setattr(Weighed, "higher_is_better", higher)
    assert Weighed().merit(torch.tensor([1.0, 2.0])).tolist() == wanted
