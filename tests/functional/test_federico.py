import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matrices import everywhere, told_by_matrices

from dfl_lightning import functional
from dfl_lightning.functional import averaged_losses


def collaborator_weights(averages):
    return told_by_matrices(functional.collaborator_weights)(averages, everywhere(averages))


LOSSES = st.lists(st.one_of(st.just(math.nan), st.floats(0, 20)), min_size=1, max_size=6)


@given(st.lists(LOSSES.filter(lambda row: len(row) == 3), min_size=1, max_size=8), st.floats(0.05, 1))
def test_averages_agree_with_a_loop(history, beta):
    averages, expected = torch.full((3,), math.nan), [math.nan] * 3
    for losses in history:
        averages = averaged_losses(averages, torch.tensor(losses, dtype=torch.float64), beta)
        for j, loss in enumerate(losses):
            if not math.isnan(loss):
                expected[j] = loss if math.isnan(expected[j]) else (1 - beta) * expected[j] + beta * loss
    torch.testing.assert_close(averages, torch.tensor(expected, dtype=torch.float64), equal_nan=True)


def test_after_an_infinite_loss_the_average_starts_anew():
    inf = torch.tensor([math.inf])
    assert averaged_losses(torch.tensor([1.0]), inf).item() == math.inf
    assert averaged_losses(inf, inf).item() == math.inf
    assert averaged_losses(inf, torch.tensor([2.0])).item() == 2


@given(LOSSES)
def test_weights_are_a_softmax_times_the_number_seen(losses):
    row = torch.tensor([losses], dtype=torch.float64)
    seen = [loss for loss in losses if not math.isnan(loss)]
    total = sum(math.exp(-loss) for loss in seen)
    expected = [math.nan if math.isnan(loss) else len(seen) * math.exp(-loss) / total for loss in losses]
    weights = collaborator_weights(row)
    torch.testing.assert_close(weights, torch.tensor([expected], dtype=torch.float64), equal_nan=True)
    if seen:
        assert weights.nanmean() == pytest.approx(1)


def test_useless_models_have_no_weight():
    assert collaborator_weights(torch.tensor([[math.inf, 1.0, math.nan]])).nan_to_num(nan=-1).tolist() == [[0, 2, -1]]
    assert collaborator_weights(torch.full((1, 2), math.inf)).tolist() == [[0, 0]]
