"""Losses of clients side by side."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dfl_lightning.engines.stacked.batches import sample_weights
from dfl_lightning.engines.stacked.kernels import WeightedCrossEntropy
from dfl_lightning.engines.stacked.loss import StackedLoss

SIZES = [4, 1, 3]
WEIGHTS = torch.tensor([[1 / 4] * 4, [1, 0, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0]], dtype=torch.float64)


def batch():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(3, 4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    return scores, torch.randint(0, 5, (3, 4), generator=generator)


def nll_of_shares(scores, labels):
    return F.nll_loss(scores.log_softmax(1), labels) + scores.square().mean()


LOSSES = {
    "cross entropy": nn.CrossEntropyLoss(),
    "the function": F.cross_entropy,
    "weights": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4, 5], dtype=torch.float64)),
    "smoothing": nn.CrossEntropyLoss(label_smoothing=0.2),
    "an ignored class": nn.CrossEntropyLoss(ignore_index=1),
    "a sum": nn.CrossEntropyLoss(reduction="sum"),
    "margins": nn.MultiMarginLoss(),
    "one's own": nll_of_shares,
    "a partial": functools.partial(F.cross_entropy, label_smoothing=0.1),
}


@pytest.mark.parametrize("name", LOSSES)
def test_each_clients_loss_is_the_plain_one_of_its_real_samples(name):
    scores, labels = batch()
    loss = LOSSES[name]
    found = StackedLoss(loss)(scores, labels, SIZES, WEIGHTS)
    weights = torch.tensor([0.5, 2.0, -1.0], dtype=torch.float64)
    (gradient,) = torch.autograd.grad((found * weights).sum(), scores)
    for i, size in enumerate(SIZES):
        own = scores[i, :size].detach().requires_grad_()
        expected = loss(own, labels[i, :size])
        torch.testing.assert_close(found[i], expected, rtol=1e-12, atol=1e-12, equal_nan=True)
        (theirs,) = torch.autograd.grad(expected * weights[i], own)
        torch.testing.assert_close(gradient[i, :size], theirs, rtol=1e-12, atol=1e-12, equal_nan=True)
        assert not gradient[i, size:].any()


def test_only_the_plain_cross_entropy_is_computed_for_all_at_once():
    assert [name for name, loss in LOSSES.items() if StackedLoss(loss).is_cross_entropy] == ["cross entropy"]


def test_the_weights_of_a_batch():
    torch.testing.assert_close(sample_weights(torch.tensor(SIZES), 4, torch.float64), WEIGHTS, rtol=0, atol=0)


def test_the_gradient_of_the_weighted_cross_entropy():
    scores, labels = batch()
    weights = torch.rand(3, 4, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: WeightedCrossEntropy.apply(s, labels, weights), (scores,))
