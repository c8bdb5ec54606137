"""Gains of received models in FedFomo, where models differ in their last digits or losses are not finite."""

import pytest
import torch

from dfl_lightning.functional import first_order_gain


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_models_that_differ_by_rounding_have_no_weight(precision):
    """Quotients of two rounding errors are of any size; a gain of a thousand of them is known."""
    digit = torch.finfo(precision).eps
    losses = torch.tensor([2.0, 2.0 * (1 - 4 * digit), 2.0 * (1 - 1000 * digit)], dtype=torch.float64)
    found = first_order_gain(torch.full((3,), 2.0), losses, torch.full((3,), digit), precision)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 2000.0], dtype=torch.float64), rtol=1e-5, atol=0.0)


def test_unknown_losses_give_nan_and_infinite_ones_minus_infinity():
    after = torch.tensor([torch.nan, torch.inf])
    found = first_order_gain(torch.ones(2), after, torch.ones(2))
    assert found[0].isnan()
    assert found[1] == -torch.inf


def test_a_client_with_infinite_loss_weighs_models_by_distance():
    after = torch.tensor([1.0, 2.0, torch.inf, torch.nan])
    found = first_order_gain(torch.full((4,), torch.inf), after, torch.tensor([1.0, 3.0, 1.0, 1.0]))
    assert found[2] == -torch.inf
    assert found[3].isnan()
    torch.testing.assert_close(found[:2] / found[:2].sum(), torch.tensor([0.75, 0.25], dtype=torch.float64))
