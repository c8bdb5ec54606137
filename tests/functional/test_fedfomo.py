"""What a model received is worth, in FedFomo, at the edge of a model's last digits."""

import pytest
import torch

from dfl_lightning.functional import first_order_gain


@pytest.mark.parametrize("precision", [torch.float32, torch.float64])
def test_models_that_differ_in_their_last_digits_are_worth_nothing(precision):
    """Quotients of two rounding errors are of any size; a gain of a thousand of them is known."""
    digit = torch.finfo(precision).eps
    losses = torch.tensor([2.0, 2.0 * (1 - 4 * digit), 2.0 * (1 - 1000 * digit)], dtype=torch.float64)
    found = first_order_gain(torch.full((3,), 2.0), losses, torch.full((3,), digit), precision)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.0, 2000.0], dtype=torch.float64), rtol=1e-5, atol=0.0)


def test_what_is_not_known_or_useless_stays_so():
    after = torch.tensor([torch.nan, torch.inf])
    found = first_order_gain(torch.ones(2), after, torch.ones(2))
    assert found[0].isnan()
    assert found[1] == -torch.inf
