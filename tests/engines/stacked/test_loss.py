"""Losses of clients side by side."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dfl_lightning.engines.stacked.batches import sample_weights
from dfl_lightning.engines.stacked.layers.kernels import FULL_VECTOR, WeightedCrossEntropy, cross_entropies
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
def test_each_clients_loss_ignores_padding(name):
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


def test_equal_clients_share_one_call_of_the_loss():
    scores, labels = batch()
    calls = []

    def counted(s, y):
        calls.append(tuple(s.shape))
        return F.cross_entropy(s, y)

    StackedLoss(counted)(scores, labels, [4, 4, 4], WEIGHTS)
    assert calls == [(4, 5)]
    StackedLoss(counted)(scores, labels, [4, 1, 4], WEIGHTS)
    assert calls[1:] == [(4, 5), (1, 5)]


def test_a_data_dependent_loss_is_called_for_each_client():
    scores, labels = batch()
    calls = []

    def looking(s, y):
        calls.append(len(y))
        return F.cross_entropy(s, y) * (2.0 if float(s.detach().sum()) > 0 else 3.0)

    loss = StackedLoss(looking)
    for _ in range(2):
        calls.clear()
        found = loss(scores, labels, SIZES, WEIGHTS)
    assert calls == SIZES  # vmap is not tried again
    for i, size in enumerate(SIZES):
        torch.testing.assert_close(found[i], looking(scores[i, :size], labels[i, :size]), rtol=1e-12, atol=0)


def test_errors_of_a_loss_are_passed_on():
    scores, labels = batch()

    def broken(s, y):
        raise ZeroDivisionError("in the user's loss")

    with pytest.raises(ZeroDivisionError, match="in the user's loss"):
        StackedLoss(broken)(scores, labels, SIZES, WEIGHTS)


@pytest.mark.parametrize("longest", [2, 100])
def test_evaluation_means_equal_the_plain_loss_on_pieces(longest):
    generator = torch.Generator().manual_seed(3)
    scores = [torch.randn(size, 5, generator=generator) for size in (4, 1, 4, 3)]
    labels = [torch.randint(0, 5, (len(s),), generator=generator) for s in scores]
    loss = nn.CrossEntropyLoss(label_smoothing=0.2)
    found = StackedLoss(loss).means(scores, labels, longest)
    for mean, s, y in zip(found, scores, labels, strict=True):
        pieces = [float(loss(a, b)) * len(b) for a, b in zip(s.split(longest), y.split(longest), strict=True)]
        assert float(mean) == pytest.approx(sum(pieces) / len(y), rel=1e-6)


def test_only_plain_cross_entropy_is_computed_for_all_together():
    assert [name for name, loss in LOSSES.items() if StackedLoss(loss).is_cross_entropy] == ["cross entropy"]


def test_weights_of_a_batch_ignore_padding():
    torch.testing.assert_close(sample_weights(torch.tensor(SIZES), 4, torch.float64), WEIGHTS, rtol=0, atol=0)


@pytest.mark.parametrize("classes", [2, 5, FULL_VECTOR - 1, FULL_VECTOR, 40])
def test_weighted_cross_entropy_has_the_correct_gradient(classes):
    generator = torch.Generator().manual_seed(classes)
    scores = torch.randn(3, 4, classes, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.randint(0, classes, (3, 4), generator=generator)
    weights = torch.rand(3, 4, generator=generator, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda s: WeightedCrossEntropy.apply(s, labels, weights), (scores,))


INF, NAN = float("inf"), float("nan")
ODD_SCORES = {
    "ordinary": [0.3, -1.2, 2.0],
    "large": [1e30, -1e30, 0.0],
    "large and near": [10_000.0, 10_001.0, 9_999.0],
    "small": [-10_000.0, -10_001.0, -9_999.0],
    "all alike": [7.0, 7.0, 7.0],
    "an impossible class": [0.0, -INF, 1.0],
    "one possible class": [-INF, 0.0, -INF],
    "no possible class": [-INF, -INF, -INF],
    "a certain class": [0.0, INF, 1.0],
    "not a number": [0.0, 1.0, NAN],
}


@pytest.mark.parametrize("classes", [3, FULL_VECTOR - 1, FULL_VECTOR])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ODD_SCORES)
def test_cross_entropies_agree_with_torch_for_extreme_scores(name, dtype, classes):
    odd = torch.tensor(ODD_SCORES[name] + [ODD_SCORES[name][0]] * (classes - 3), dtype=dtype)
    scores, labels = odd.expand(1, 3, classes), torch.arange(3).unsqueeze(0)
    losses, softmax = cross_entropies(scores, labels)
    tolerance = {"rtol": 4 * torch.finfo(dtype).eps, "atol": torch.finfo(dtype).tiny, "equal_nan": True}
    torch.testing.assert_close(losses[0], F.cross_entropy(scores[0], labels[0], reduction="none"), **tolerance)
    torch.testing.assert_close(softmax[0], scores[0].softmax(-1), **tolerance)


def test_nan_scores_do_not_affect_other_clients():
    scores, labels = batch()
    scores = scores.detach()
    scores[1, 0, 2] = NAN
    losses = WeightedCrossEntropy.apply(scores.requires_grad_(), labels, WEIGHTS)
    (gradient,) = torch.autograd.grad(losses.sum(), scores)
    assert losses.isnan().tolist() == [False, True, False]
    assert gradient.isnan().any(-1).any(-1).tolist() == [False, True, False]
