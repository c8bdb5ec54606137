"""Properties of every aggregation, in addition to those of every policy; `tester/shipped.py` lists them."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tester import properties
from tester.scenes import FEDERATION
from tester.shipped import LISTED, aggregations_that_average

CLIENTS = len(FEDERATION)


def with_substitutions():
    """Pair each aggregation with each substitution, at all places where both work.

    In a normal run they take turns, variants excepted.
    """
    found = []
    for turn, parameters in enumerate(aggregations_that_average()):
        listed, place = parameters.values
        others = [other for other in LISTED["substitution"] if place in other.places]
        others = [other for other in others if not issubclass(type(other.make()), listed.refuses)]
        usual = [other for other in others if "," not in other.name]
        for other in others:
            in_turn = other is usual[turn % len(usual)] and "," not in listed.name
            marks = [] if in_turn else pytest.mark.slow
            name = f"{parameters.id} and {other.name}"
            found.append(pytest.param(listed.along_with(other), place, id=name, marks=marks))
    return found


def mixed_by_hand(seen, before, listed):
    """Compute the round's models as sums over its weights, or by numpy from the columns, one model at a time."""
    n, models = len(before), seen["trained"].clone()
    stored = seen.get("rows.stale")
    if stored is not None and not listed.name.endswith("stale, models"):  # updates, added to the receiver's model
        stored = [[before[i] + update for update in stored] for i in range(n)]
    elif stored is not None:
        stored = [stored] * n
    for i in range(n):
        if listed.keeps_former and seen["round.votes"][i].any() and not seen["round.weights"][i].any():
            models[i] = before[i]
        if seen["round.weights"][i].any():
            if listed.of_columns is not None:
                voters = torch.nonzero(seen["round.votes"][i]).flatten().tolist()
                rows = [seen["trained"][p] if p < n else stored[i][p - n] for p in voters]
                models[i] = torch.from_numpy(np.asarray(listed.of_columns(torch.stack(rows).numpy())))
                continue
            models[i] = 0
            for row, weight in enumerate(seen["round.weights"][i].tolist()):
                if weight and row < n:
                    models[i] += weight * seen["trained"][row]
                elif weight:
                    models[i] += weight * stored[i][row - n]
    return models


def check_weights(seen, keeps_former):
    """Check that weights are shares of the votes and never negative; the rest is the receiver's own."""
    weights, votes = seen["round.weights"], seen["round.votes"]
    has_votes = seen["round.receivers"] & (votes.sum(1) > 0)
    if keeps_former:
        has_votes &= weights.any(1)
    own = torch.eye(*weights.shape, dtype=torch.bool)
    torch.testing.assert_close(weights.sum(1), has_votes.double())
    assert (weights >= 0).all()
    assert not ((weights != 0) & (votes == 0) & ~own).any()


@pytest.mark.parametrize(("listed", "place"), aggregations_that_average())
def test_models_are_mixed_by_shares_of_the_votes(listed, place):
    check(properties.usual(listed, place), listed)


@pytest.mark.parametrize(("listed", "place"), with_substitutions())
def test_aggregation_works_with_every_substitution(listed, place):
    found = properties.usual(listed, place)
    check(found, listed)
    for seen in found.rounds:
        if "round.votes" in seen and place == "server":  # all clients have a vote, also dropped ones
            torch.testing.assert_close(
                seen["round.votes"][CLIENTS].sum(), seen["round.selected"][CLIENTS].sum().double()
            )


def check(found, listed):
    rounds = found.rounds
    assert any(seen["round.weights"].any() for seen in rounds if "round.weights" in seen)
    for earlier, seen in pairwise(rounds):
        if "round.weights" in seen:
            check_weights(seen, listed.keeps_former)
            expected = mixed_by_hand(seen, earlier["rows.models"], listed)
            torch.testing.assert_close(seen["rows.models"], expected, rtol=1e-9, atol=1e-9)
