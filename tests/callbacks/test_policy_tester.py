"""Policies with one mistake each, and the property of the tester that finds it."""

from fractions import Fraction
from pickle import UnpicklingError

import numpy as np
import pytest
import torch
from tester import properties
from tester.shipped import Listed

from dfl_lightning import callbacks as cb
from dfl_lightning.links import Links


class ByNumber(cb.Selection):
    """The neighbours with the lowest ids, which are no better than others."""

    k = 2

    def on_compare(self, round):
        round.scores = -round.candidates.senders.double()


class OneStreamForAll(cb.Gossip):
    """The draws of the receivers come from one stream, in the order of their ids."""

    def on_select(self, round):
        stream = round.generator("one for all")
        draws = torch.stack([torch.rand(round.num_nodes, generator=stream) for _ in range(round.num_nodes)])
        round.selected = round.candidates.keep(draws[round.candidates.receivers, round.candidates.senders] > 0.5)


class UnnamedDraws(cb.Gossip):
    """The draws come from a generator that was seeded at no particular time."""

    def on_select(self, round):
        draws = torch.from_numpy(np.random.default_rng().random(len(round.candidates)))
        round.selected = round.candidates.keep(draws > 0.5)


class Forgetful(cb.Gossip):
    """Counts rounds, and does not say so in its state."""

    rounds = 0

    def on_select(self, round):
        self.rounds += 1
        self.k = self.rounds % 3
        super().on_select(round)


class Unreadable(cb.Gossip):
    """Its state is of a class of its own, which a checkpoint would have to run code for."""

    def state_dict(self):
        return {"share": Fraction(1, 2)}


class ByCohort(cb.Gossip):
    """Learns from those whom the engine happens to work on at the same time."""

    def on_select(self, round):
        cohorts = torch.full((round.num_nodes,), -1)
        for number, cohort in enumerate(round.federation.engine.cohorts):
            cohorts[cohort] = number
        round.selected = round.candidates.within_groups(cohorts)


class ByThreads(cb.Gossip):
    """As many neighbours as there are threads."""

    def on_select(self, round):
        self.k = torch.get_num_threads()
        super().on_select(round)


class FarSighted(cb.Gossip):
    """Selects those that it did not look at."""

    def on_propose(self, round):
        round.candidates = round.candidates.keep(round.candidates.top(-round.candidates.senders.double(), 1))

    def on_select(self, round):
        round.selected = round.available


class Curious(cb.Gossip):
    """Fetches models of clients that are out of reach."""

    def on_compare(self, round):
        round.loss_of(Links.complete(round.num_nodes))


class NeverAlone(cb.Uniform):
    """Gives a client without neighbours the mean of all models."""

    def on_round_end(self, round):
        if round.has("votes"):
            models = round.bank.next_rows()["models"]
            models[round.receivers & (round.voters.sum(round.votes) < 2)] = models.mean(0) / 2


class Restless(cb.Gossip):
    """Changes a model at the end of a round without active clients."""

    def on_round_end(self, round):
        if not round.active.any():
            round.bank.next_rows()["models"][0] += 1


class Paying(cb.Gossip):
    """Charges models in a round without active clients."""

    def on_round_end(self, round):
        if not round.active.any():
            round.ledger.fetch(torch.tensor([0]), torch.tensor([1]))


class SecondBest(cb.Gossip):
    """Selects the second neighbour, although a client may have only one."""

    def on_select(self, round):
        second = round.reachable.mask.double().topk(2).indices[:, 1]
        round.selected = Links.of(torch.arange(round.num_nodes), second, round.num_nodes).intersection(round.candidates)


class OneStaysActive(cb.Bernoulli):
    """Keeps one client active, even with rate 1."""

    def draw(self, round):
        up = super().draw(round)
        up[0] |= not up.any()
        return up


class Dice(cb.Gossip):
    """Draws in a way that the tester does not know."""

    def on_select(self, round):
        dice = torch.randint(0, 2, (len(round.candidates),), generator=round.generator("dice"))
        round.selected = round.candidates.keep(dice > 0)


class Careless(cb.Gossip):
    """Looks at the lengths of models in their own memory."""

    def on_compare(self, round):
        round.bank.rows("trained").double().square_()


class Careful(cb.Gossip):
    """Looks at the lengths of models in memory of its own."""

    def on_compare(self, round):
        round.bank.rows("trained").to(torch.float64, copy=True).square_()


def changes_no_rows(listed, place):
    properties.changes_no_rows_but_by_verbs_that_write(listed, place, "64-true", True, "loop")


BY_IDS_OR_COHORTS = (ByNumber, OneStreamForAll, UnnamedDraws, ByCohort, ByThreads)
BROKEN = [
    *((policy, properties.sees_neither_ids_nor_cohorts) for policy in BY_IDS_OR_COHORTS),
    (Careless, changes_no_rows),
    (ByNumber, properties.does_not_see_ids),
    (OneStreamForAll, properties.does_not_see_ids),
    (UnnamedDraws, properties.goes_on_from_a_file),
    (UnnamedDraws, properties.does_not_see_ids),
    (Forgetful, properties.goes_on_from_a_file),
    (Unreadable, properties.goes_on_from_a_file),
    (ByCohort, properties.does_not_see_cohorts),
    (ByThreads, properties.does_not_see_cohorts),
    (ByThreads, properties.goes_on_from_a_file),
    (FarSighted, properties.selects_reachable_clients),
    (Curious, properties.selects_reachable_clients),
    (NeverAlone, properties.isolated_client_only_trains_locally),
    (NeverAlone, properties.lets_one_client_train_alone),
    (Restless, properties.skips_rounds_without_active_clients),
    (Paying, properties.skips_rounds_without_active_clients),
    (SecondBest, properties.lets_one_client_train_alone),
]


@pytest.mark.parametrize(("policy", "finds_out"), BROKEN, ids=lambda thing: thing.__name__)
def test_broken_policies_fail_their_property(policy, finds_out):
    with pytest.raises((AssertionError, RuntimeError, UnpicklingError)):
        finds_out(Listed("broken", policy), "clients")


def test_policy_may_change_its_copy_of_rows():
    changes_no_rows(Listed("fine", Careful), "clients")


def test_dropout_that_never_drops_all_clients_fails():
    listed = Listed("broken", cb.Bernoulli, all_up=cb.Bernoulli, all_down=lambda: OneStaysActive(1.0))
    with pytest.raises(AssertionError):
        properties.skips_rounds_without_active_clients(listed, "clients")


def test_policy_that_refuses_no_place_fails():
    with pytest.raises(pytest.fail.Exception):
        properties.refuses_where_it_cannot_work(Listed("broken", cb.Gossip), "server")


def test_draws_that_cannot_be_renamed_are_named():
    with pytest.raises(AssertionError, match="list what randint draws for 'dice'"):
        properties.does_not_see_ids(Listed("broken", Dice), "clients")
