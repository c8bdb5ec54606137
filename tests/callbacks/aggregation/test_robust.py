"""Medians and trimmed means as aggregations; `test_all_aggregations.py` holds them against numpy."""

import pytest
import torch

from dfl_lightning.bank import reducing
from dfl_lightning.callbacks import Aggregation, Gossip, Median, SignFlip, TrimmedMean, Uniform
from dfl_lightning.utils.errors import UserError


@pytest.mark.parametrize("aggregation", [Median, lambda: TrimmedMean(0.25)])
def test_adversaries_harm_less_than_under_a_plain_mean(start, aggregation):
    def last(make, *attack):
        torch.manual_seed(0)
        return start(Gossip("all"), make(), *attack, clients=9, rounds=5, trainer={"precision": "64-true"}).go(5).models

    attack = [lambda: SignFlip(clients=[0, 5], scale=20.0)]
    moved = {
        name: float((last(make) - last(make, *[a() for a in attack])).norm())
        for name, make in {"mean": Uniform, "robust": aggregation}.items()
    }
    assert moved["robust"] < 0.2 * moved["mean"]


@pytest.mark.parametrize("include_self", [False, True])
def test_median_of_one_or_two_rows_is_their_mean(start, include_self):
    run = start(Gossip(1), Median(include_self=include_self), clients=4, trainer={"precision": "64-true"}).go()
    seen = run.rounds[0]
    for i in range(4):
        (j,) = torch.nonzero(seen.selected[i]).flatten().tolist()
        expected = (seen.trained[i] + seen.trained[j]) / 2 if include_self else seen.trained[j]
        torch.testing.assert_close(seen.after[i], expected, rtol=1e-14, atol=1e-15)
    assert run.rounds[0].metrics["models_received"] == 1


def test_blocks_of_columns_and_groups_of_receivers_change_nothing(start, monkeypatch):
    def models():
        torch.manual_seed(0)
        return start(Gossip(3), TrimmedMean(0.3), clients=7).go(2).models

    usual = models()
    monkeypatch.setattr(reducing, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(reducing, "block_width", lambda rows, itemsize, memory: 3)
    assert torch.equal(usual, models())


def test_personal_columns_stay(start):
    run = start(Gossip(3), Median(), clients=5, shared=["features.*"]).go()
    layout, seen = run.module.federation.layout, run.rounds[0]
    personal = layout.personal.mask(layout.width)
    assert torch.equal(seen.after[:, personal], seen.trained[:, personal])
    assert not torch.equal(seen.after[:, ~personal], seen.trained[:, ~personal])


class Wrong(Aggregation):
    """Forgets to leave a row for each receiver."""

    def on_weigh(self, round):
        round.weights = round.votes / round.voters.sum(round.votes)[round.voters.receivers]

    def on_mix(self, round):
        round.reduce(round.votes, lambda rows: rows.mean((0, 1)))


def test_wrong_shapes_and_trimmed_shares_are_refused(start):
    with pytest.raises(UserError, match="the function that reduces rows returns"):
        start(Gossip(2), Wrong()).go()
    with pytest.raises(UserError, match=r"aggregation.trim=0.5; it is a share from 0 to less than 0.5"):
        TrimmedMean(0.5)
