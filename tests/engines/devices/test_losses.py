"""Losses that have tensors of their own, which must be where the scores are."""

import functools

import pytest
import torch
from pretended import DEVICE, everything_on
from torch import nn
from torch.nn import functional as F

from dfl_lightning.bank.references import References
from dfl_lightning.engines.placing import placed
from dfl_lightning.utils.errors import UserError

pytestmark = pytest.mark.cpu_bits  # one side of the comparison is the CPU


class Weighted(nn.Module):
    """A user's own loss: a buffer, a parameter that is not trained, and a method that may be the loss as well."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weights", torch.linspace(1, 2, 10))
        self.offset = nn.Parameter(torch.linspace(0, 1, 10), requires_grad=False)

    def forward(self, scores, labels):
        return F.cross_entropy(scores + self.offset, labels, weight=self.weights)


class Smooth(nn.CrossEntropyLoss):
    """A loss that smooths labels in training mode only."""

    def forward(self, scores, labels):
        return F.cross_entropy(scores, labels, weight=self.weight, label_smoothing=0.2 if self.training else 0.0)


LOSSES = {
    "weights of classes": lambda: nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 10)),
    "smoothed labels": lambda: nn.CrossEntropyLoss(label_smoothing=0.1),
    "smoothed and weighted": lambda: nn.CrossEntropyLoss(weight=torch.linspace(1, 2, 10), label_smoothing=0.1),
    "a module of one's own": Weighted,
    "a method": lambda: Weighted().forward,
    "a partial": lambda: functools.partial(F.cross_entropy, weight=torch.linspace(1, 2, 10)),
    "by mode": lambda: Smooth(weight=torch.linspace(1, 2, 10)),
}


def results(small_run, loss, engine, **module):
    """Rows and evaluations of a whole run, with fine-tuning before evaluations, and of an evaluation after it."""
    options = {"engine": engine, "precision": "64-true", "policies": [], "defaults": True}
    run = small_run(rounds=2, module={"loss": loss, "finetune_epochs": 1, **module}, **options).fit()
    boundary = run.module.bank.boundary
    return [boundary.rows["models"], *boundary.evaluation.values(), *run.module.evaluate().values()]


QUICK = ("weights of classes", "a method", "by mode")
"""A module of torch's, one of a user's own behind a method, and one that asks for its mode."""


@pytest.mark.parametrize("engine", ["stacked", "loop"])
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in LOSSES])
def test_a_loss_is_moved_to_the_runs_device(small_run, name, engine):
    here = results(small_run, LOSSES[name](), engine)
    with everything_on(DEVICE):
        there = results(small_run, LOSSES[name](), engine)
    for mine, its in zip(here, there, strict=True):
        torch.testing.assert_close(its.cpu(), mine, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", ["weights of classes", "a module of one's own"])
def test_the_users_own_loss_is_not_moved(small_run, name):
    loss = LOSSES[name]()
    before = {key: (value, value.clone()) for key, value in loss.state_dict(keep_vars=True).items()}
    with everything_on(DEVICE):
        run = small_run(rounds=1, module={"loss": loss}).fit()
        assert run.module.loss is loss
        for key, value in loss.state_dict(keep_vars=True).items():
            assert value is before[key][0]
            assert torch.equal(value, before[key][1])


@pytest.mark.parametrize("name", ["weights of classes", "a module of one's own", "a partial"])
def test_a_loss_that_is_on_the_device_already_trains_there(small_run, name):
    loss = placed(LOSSES[name](), DEVICE, torch.float32)
    with everything_on(DEVICE):
        small_run(rounds=1, module={"loss": loss}).fit()


def test_a_loss_with_hidden_tensors_is_refused_with_the_remedy(small_run):
    weights = torch.linspace(1, 2, 10)
    run = small_run(rounds=1, module={"loss": lambda scores, labels: F.cross_entropy(scores, labels, weight=weights)})
    with everything_on(DEVICE), pytest.raises(UserError, match=r"on pretended:0; a module's buffers and a partial's"):
        run.fit()


def test_a_loss_with_trainable_parameters_is_refused(small_run):
    loss = Weighted()
    loss.offset.requires_grad_()
    with pytest.raises(UserError, match=r"model.loss Weighted has the parameter 'offset', which no optimizer would"):
        small_run(rounds=1, module={"loss": loss}).fit()


def test_a_loss_follows_training_and_evaluation_mode(federation, engine):
    seen = []

    class Loss(nn.CrossEntropyLoss):
        def forward(self, scores, labels):
            seen.append((torch.is_grad_enabled(), self.training))
            return super().forward(scores, labels)

    f = federation(engine=engine, loss=Loss(weight=torch.ones(3)))
    seen.clear()  # what the trial did
    all_clients = torch.arange(3)
    for _ in range(2):
        f.engine.train(References.rows("models", all_clients), f.training(epochs=1))
        f.engine.evaluate(References.rows("models", all_clients), "val")
    assert set(seen) == {(True, True), (False, False)}
