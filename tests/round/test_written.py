"""Fields of a round that hooks write, and the error if one is read too early."""

import functools

import pytest
import torch
from tester.rounds import Run, toy_data

from dfl_lightning import UserError, callbacks
from dfl_lightning.links import Links
from dfl_lightning.models import MLP


@pytest.fixture
def start():
    """Set a run up, with these policies in addition to the default ones."""

    def start(*policies):
        optimizer = functools.partial(torch.optim.SGD, lr=0.2)
        model = {"network": MLP(hidden=[4]), "local_epochs": 1, "batch_size": 3, "optimizer": optimizer}
        return Run(policies, 6, 9, "complete", toy_data(6), model, {})

    return start


class Reads(callbacks.Monitor):
    """Reads a field of the round in a hook."""

    def __init__(self, field):
        self.field = field

    def on_propose(self, round):
        getattr(round, self.field)


@pytest.mark.parametrize(
    ("field", "writer"),
    [
        ("losses", "local training"),
        ("scores", "on_compare"),
        ("selected", "on_select"),
        ("substitute", "the round after on_select"),
        ("voters", "the round after on_substitute"),
        ("weights", "on_weigh"),
    ],
)
def test_reading_a_field_early_names_the_hook_that_writes_it(start, field, writer):
    sentence = (
        rf"^round 1: tests\.round\.test_written\.Reads reads round\.{field} in on_propose; it is written by "
        rf"{writer}, which has not happened yet; test round\.has\('{field}'\) first$"
    )
    with pytest.raises(UserError, match=sentence):
        start(Reads(field)).go(1)


class Asks(callbacks.Monitor):
    """Notes which fields the round has in its first and its last hook."""

    FIELDS = ("losses", "selected", "substitute", "voters", "votes", "weights")

    def __init__(self):
        self.first, self.last, self.shown = [], [], ""

    def on_dropout(self, round):
        self.first = [name for name in self.FIELDS if round.has(name)]
        self.shown = repr(round)

    def on_round_end(self, round):
        self.last = [name for name in self.FIELDS if round.has(name)]


class NoneActive(callbacks.Dropout):
    def draw(self, round):
        return torch.zeros(round.num_clients, dtype=torch.bool)


def test_a_round_lists_its_fields(start):
    asks = Asks()
    start(asks).go(1)
    assert asks.first == []
    assert asks.last == list(Asks.FIELDS)
    assert asks.shown.startswith("Round(0: reachable, active, ")
    assert "selected" not in asks.shown


def test_a_round_without_active_clients_has_no_later_fields(start):
    asks = Asks()
    start(asks, NoneActive()).go(1)
    assert asks.last == ["losses"]


# --- what policies remember begins in `start` -------------------------------------------------------------------------
def test_an_empty_state_of_earlier_versions_is_restored(start):
    panm = callbacks.PANM(k=1, l=2, stage_one=2, tau=1)
    start(panm)
    assert isinstance(panm.neighbours, Links)
    panm.load_state_dict({"neighbours": None, "similarity": None})
    assert isinstance(panm.neighbours, Links)
    assert len(panm.neighbours) == 0


def test_an_evaluation_keeps_a_policys_state(small_run):
    panm = callbacks.PANM(k=2, l=2, stage_one=2, tau=1)
    run = small_run(rounds=3, policies=[panm, callbacks.Uniform()]).fit()
    known = panm.neighbours
    assert len(known)
    run.trainer.test(run.module, datamodule=run.data, verbose=False)
    assert torch.equal(panm.neighbours.codes, known.codes)
