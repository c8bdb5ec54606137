"""Medians and trimmed means against numpy and scipy."""

import numpy as np
import pytest
import torch
from scipy import stats

from dfl_lightning.functional import column_medians, trimmed_means


@pytest.mark.parametrize("equal", [False, True])
@pytest.mark.parametrize("received", [1, 2, 3, 4, 7, 10, 20, 128, 150])
def test_medians_and_trimmed_means_agree_with_numpy_and_scipy(received, equal):
    draws = torch.Generator().manual_seed(received)
    rows = torch.randn(3, received, 11, generator=draws, dtype=torch.float64)
    rows = rows.round() if equal else rows
    np.testing.assert_allclose(column_medians(rows).numpy(), np.median(rows.numpy(), axis=1), atol=1e-15)
    for trim in (0.0, 0.1, 0.25, 0.3, 0.49):
        expected = stats.trim_mean(rows.numpy(), trim, axis=1)
        np.testing.assert_allclose(trimmed_means(rows, trim).numpy(), expected, rtol=1e-13, atol=1e-15)


def test_a_minority_cannot_move_estimates_beyond_honest_rows():
    draws = torch.Generator().manual_seed(1)
    rows = torch.randn(9, 5, generator=draws)
    wrong = rows.clone()
    wrong[:2] = 1e9
    for found in (column_medians(wrong), trimmed_means(wrong, 0.25)):
        assert (found <= rows[2:].max(0).values).all()
        assert (found >= rows[2:].min(0).values).all()
