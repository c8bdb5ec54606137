import torch
from matrices import told_by_matrices

from dfl_lightning import functional

above_threshold = told_by_matrices(functional.above_threshold, fill=False)


def test_a_score_equal_to_the_threshold_is_selected():
    scores = torch.tensor([[0.5, 0.499, 0.501], [0.5, 0.499, 0.501]], dtype=torch.float64)
    chosen = above_threshold(
        scores, torch.ones(2, 3, dtype=torch.bool), torch.tensor([0.5, 0.501], dtype=torch.float64)
    )
    assert chosen.tolist() == [[True, False, True], [False, False, True]]


def test_a_threshold_of_zero_selects_every_known_score():
    allowed = torch.tensor([[True, True, False, True]])
    scores = torch.tensor([[0.0, torch.nan, 1.0, 2.0]])
    assert above_threshold(scores, allowed, torch.zeros(1)).tolist() == [[True, False, False, True]]
