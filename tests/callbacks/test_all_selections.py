"""Properties of every selection, in addition to those of every policy; `tester/shipped.py` lists them."""

from collections import Counter

import pytest
import torch
from tester import properties
from tester.renaming import OF_SAMPLES
from tester.scenes import FEDERATION, start
from tester.shipped import LISTED, where_they_work

from dfl_lightning import callbacks as cb
from dfl_lightning.links.draws import uniform
from dfl_lightning.utils.randomness import random_streams

CLIENTS = len(FEDERATION)


def with_substitutions():
    """Pair each selection with each substitution, at all places where both work; IFCA refuses them.

    A selection does not ask which substitution there is: in a normal run each has one of them, by turns.
    """
    found = []
    for number, parameters in enumerate(where_they_work("selection")):
        listed, place = parameters.values
        others = [other for other in LISTED["substitution"] if place in other.places and listed.make is not cb.IFCA]
        for at, other in enumerate(others):
            marks = [] if at == number % len(others) else pytest.mark.slow
            name = f"{parameters.id} and {other.name}"
            found.append(pytest.param(listed.along_with(other), place, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("listed", "place"), with_substitutions())
def test_with_a_substitution_dropped_clients_may_be_selected(listed, place):
    properties.selects_reachable_clients(listed, place)
    for seen in properties.usual(listed, place).rounds:
        senders = torch.arange(len(seen["round.active"])) < CLIENTS
        in_reach = seen["round.reachable"] & seen["round.receivers"][:, None] & senders
        assert torch.equal(seen["round.available"], in_reach)


@pytest.mark.parametrize("name", ["gossip", "fixed neighbours"])
def test_draws_do_not_depend_on_absent_clients(name):
    listed = next(listed for listed in LISTED["selection"] if listed.name == name)
    gone = 5
    usual = start(listed, "clients", also=(lambda: cb.Bernoulli(0.0),)).go(3)
    thinner = start(listed, "clients", also=(lambda: cb.Bernoulli([float(i == gone) for i in FEDERATION]),)).go(3)
    for one, other in zip(usual.rounds, thinner.rounds, strict=True):
        untouched = ~one.selected[:, gone] & (torch.arange(CLIENTS) != gone)
        assert untouched.any()
        assert torch.equal(one.selected[untouched], other.selected[untouched])


@pytest.mark.parametrize(("listed", "place"), where_they_work("selection"))
def test_each_receiver_draws_independently(listed, place, monkeypatch):
    """From a stream of its own, or a number for each of its links by a seed that serves a single draw of the round."""
    run, drawn, seed_of = start(listed, place), Counter(), random_streams.stream_seed

    def numbers(receivers, senders, seed):
        drawn["links", seed] += 1
        return uniform(receivers, senders, seed)

    def listen(seed, purpose, *words):
        if not purpose.endswith(OF_SAMPLES):
            assert len(words) > 1, f"{purpose}: one stream for all"
            drawn[purpose, words] += 1
        return seed_of(seed, purpose, *words)

    monkeypatch.setattr(random_streams, "stream_seed", listen)
    monkeypatch.setattr("dfl_lightning.links.links.uniform", numbers)
    run.go(1)  # who has no choice need not draw
    alone = place != "clients"  # one server, which may look at its draw again
    assert alone or all(times == 1 for times in drawn.values()), f"a stream for several receivers: {drawn}"
