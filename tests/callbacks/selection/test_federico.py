"""FedeRiCo as a sampler: whom it fetches, and with which weights it averages."""

import pytest
import torch
from matrices import remembered

from dfl_lightning.callbacks import AFIND, FedeRiCo, ScoreWeighted, Uniform
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.utils.errors import UserError

OTHERS = ~torch.eye(6, dtype=torch.bool)


def ids(row):
    return torch.nonzero(row).flatten().tolist()


def test_without_exploration_the_largest_weights_are_fetched(start):
    policy = FedeRiCo(k=2, epsilon=0)
    run = start(policy, ScoreWeighted(), init="independent").go()
    for _ in range(7):
        losses = remembered(policy.averages)
        seen = ~losses.isnan()
        shares = (-losses).exp().nan_to_num(nan=0.0)
        value = shares / shares.sum(1, keepdim=True) * seen.sum(1, keepdim=True)
        value[~seen] = 1.0  # unknown: an average neighbour
        round = run.go().rounds[-1]
        for i in range(6):
            fetched = ids(round.selected[i])
            rest = [j for j in range(6) if j != i and j not in fetched]
            assert min(value[i, j] for j in fetched) >= max(value[i, j] for j in rest) - 1e-12


def test_unknown_neighbours_are_drawn_at_random(start):
    """In the first round all are equal: without a random order, all clients would fetch the lowest ids."""
    first = start(FedeRiCo(k=1, epsilon=0), Uniform()).go().rounds[0].selected
    assert len({tuple(ids(row)) for row in first}) > 2


def test_exploring_all_the_time_is_gossip(start):
    run = start(FedeRiCo(k=2, epsilon=1), Uniform()).go(40)
    drawn = sum(round.selected.double() for round in run.rounds)[OTHERS]
    assert (drawn > 5).all()  # 16 expected
    assert all((round.selected.sum(1) == 2).all() for round in run.rounds)


def test_share_of_exploring_rounds_is_epsilon(start):
    """With two kinds of clients that cannot stand each other, strangers are fetched in rounds of exploration only."""
    policy = FedeRiCo(k=1, epsilon=0.3)
    run = start(policy, Uniform(), local_epochs=0, rounds=200)
    losses = torch.full((6, 6), 20.0, dtype=torch.float64)
    friends = torch.tensor([1, 0, 3, 2, 5, 4])
    losses[torch.arange(6), friends] = 0.0
    losses.diagonal().zero_()
    share = 0.0
    for _ in range(100):
        policy.averages = LinkMemory(Links.from_mask(torch.ones(6, 6, dtype=torch.bool)), losses.flatten())
        round = run.go().rounds[-1]
        share += float((~round.selected[torch.arange(6), friends]).double().mean()) / 100
    assert share == pytest.approx(0.3 * 4 / 5, abs=0.06)  # sd 0.017


def test_fetched_models_are_mixed_and_charged_once(start):
    metrics = start(FedeRiCo(k=3), ScoreWeighted()).go(2).rounds[1].metrics
    assert (metrics["models_received"], metrics["probes_received"], metrics["neighbours"]) == (3, 0, 3)


def test_scores_that_are_not_weights_are_refused(start):
    with pytest.raises(UserError, match="those of AFIND are not weights; use --selection FedeRiCo"):
        start(AFIND(), ScoreWeighted())
