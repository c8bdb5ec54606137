"""DPFL among clients with falsified labels (section 4.3)."""

import pytest
import torch

from dfl_lightning.callbacks import DPFL, SampleWeighted, Uniform
from dfl_lightning.data import Digits, FlippedLabels
from dfl_lightning.models import MLP
from dfl_lightning.utils.errors import UserError


@pytest.fixture
def flipped(start):
    """Make a run whose first three clients are adversaries; budgets are not limited."""

    def _flipped(rounds=4, **options):
        data = Digits(
            num_clients=6, samples_per_client=40, val_fraction=0.25, partition=FlippedLabels(clients=[0, 1, 2])
        )
        policies = DPFL(budget=5, initial_epochs=2, **options), SampleWeighted(count="train_and_val")
        return start(*policies, data=data, network=MLP(hidden=[16]), local_epochs=2).go(rounds)

    return _flipped


def test_adversaries_that_do_not_choose_only_send(flipped):
    run = flipped(adversaries_choose=False)
    adversaries = run.data.adversaries
    assert adversaries.tolist() == [True] * 3 + [False] * 3
    for round in run.rounds:
        assert not round.ledger.models[adversaries].any()
        assert torch.equal(round.after[adversaries], round.trained[adversaries])
    assert run.rounds[0].ledger.models[~adversaries][:, adversaries].all()
    assert run.rounds[0].selected[~adversaries].any()


def test_adversaries_that_choose_are_clients_like_others(flipped):
    run = flipped()
    assert run.rounds[0].ledger.models.sum(1).tolist() == [5] * 6
    assert run.rounds[0].selected[run.data.adversaries].any()


def test_adversaries_without_falsified_labels_are_refused(start, make_data):
    with pytest.raises(UserError, match=r"no client has falsified labels; use data\.partition FlippedLabels"):
        start(DPFL(adversaries_choose=False), Uniform(), data=make_data(val_fraction=1 / 3))
