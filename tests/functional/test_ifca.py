import math

import torch

from dfl_lightning.functional import best_server


def test_the_first_of_the_lowest_losses_wins():
    losses = torch.tensor([[0.3, 0.1, 0.2], [0.2, 0.1, 0.1], [1.0, 1.0, 1.0]])
    assert best_server(losses).tolist() == [1, 1, 0]


def test_models_that_are_not_finite_come_last():
    losses = torch.tensor([[math.nan, 9.0, math.inf], [math.inf, math.nan, math.nan], [-1e9, math.nan, 0.0]])
    assert best_server(losses).tolist() == [1, 0, 0]
