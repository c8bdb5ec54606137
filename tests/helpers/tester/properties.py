"""Properties of every policy, shipped or a user's, of any family: each is checked for a policy and a place."""

import functools
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
from threads import threads

from dfl_lightning.bank import mixing
from dfl_lightning.bank.comparing import similarity
from dfl_lightning.callbacks import Substitution
from dfl_lightning.round.run.fits import begin_anew, end_fit
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import changed, states
from tester.renaming import Names, renamed_draws
from tester.rounds import through_a_file
from tester.scenes import (
    ALL_DOWN,
    FEDERATION,
    ISOLATED,
    PLACES,
    ROUNDS,
    SIZES,
    agree,
    folder_of_traces,
    pictures,
    renamed,
    start,
)
from tester.shipped import Listed, trace
from tester.watch import RowWatch

STOPPED_AFTER = 3
FORMER = [3, 0, 6, 5, 1, 4, 2]
ROUNDING = 1e-9
CLIENTS = len(SIZES)


@functools.cache
def usual(listed: Listed, place: str) -> SimpleNamespace:
    """The run that all others are compared with, and its checkpoint after `STOPPED_AFTER` rounds."""
    run = start(listed, place)
    generators = states()
    with threads(1):
        rounds = pictures(run, STOPPED_AFTER)
        saved = through_a_file(run.state())
        rounds += pictures(run, ROUNDS - STOPPED_AFTER)
    return SimpleNamespace(run=run, saved=saved, rounds=rounds, drawn=changed(generators))


def draws_by_name_only(listed: Listed, place: str) -> None:
    """The generators of the process are as they were."""
    assert not usual(listed, place).drawn


def selects_reachable_clients(listed: Listed, place: str) -> None:
    """Mixed are the selected, selected are the candidates, candidates are in reach; absent clients are left alone."""
    found = usual(listed, place)
    for seen in found.rounds:
        reachable, up = seen["round.reachable"], seen["round.active"]
        assert up[CLIENTS:].all()
        assert not (seen["participants"] & ~up[:CLIENTS]).any()
        assert torch.equal(seen["participants"], ~seen["round.losses"].isnan())
        assert not (seen["round.available"] & ~reachable).any()
        assert not (seen["round.candidates"] & ~seen["round.available"]).any()
        received = seen["ledger.models"] | seen["ledger.proxies"]
        assert not (received & ~reachable).any()
        if "round.weights" not in seen:
            assert not up[:CLIENTS].any()
            continue
        n, weights = len(reachable), seen["round.weights"]
        itself = torch.eye(n, dtype=torch.bool)
        assert not (seen["round.selected"] & ~seen["round.candidates"]).any()
        if "round.similarity" in seen:
            assert not (~seen["round.similarity"].isnan() & ~reachable & ~itself).any()
        assert not ((weights[:, :n] != 0) & ~seen["round.selected"] & ~itself).any()
        assert not weights[:, :n][:, ~up].any()
        assert not weights[~seen["round.receivers"]].any()
        given = listed.mixes_itself and listed.make().column_stochastic  # type: ignore[attr-defined]
        sums = weights.sum(0 if given else 1)
        assert ((sums == 0) | ((sums - 1).abs() < ROUNDING)).all()
        if found.run.trainer.policy(Substitution) is None:
            assert not (received[:, ~up] | seen["round.selected"][:, ~up] | seen["round.candidates"][:, ~up]).any()


def isolated_client_only_trains_locally(listed: Listed, place: str) -> None:
    """Check that a client without neighbours selects none, is not selected, and only trains locally."""
    for seen in usual(listed, place).rounds:
        if "round.weights" not in seen:
            continue
        others = torch.arange(CLIENTS) != ISOLATED
        for pairs in ("candidates", "selected"):
            assert not seen[f"round.{pairs}"][ISOLATED].any()
            assert not seen[f"round.{pairs}"][:, ISOLATED].any()
        assert not seen["round.weights"][ISOLATED, :CLIENTS][others].any()
        assert not seen["round.weights"][:CLIENTS, ISOLATED][others].any()
        kept = seen["rows.models"][ISOLATED] != 0 if listed.trims else slice(None)
        assert torch.equal(seen["rows.models"][ISOLATED][kept], seen["trained"][ISOLATED][kept])


def skips_rounds_without_active_clients(listed: Listed, place: str) -> None:
    """Check that a round without active clients changes and costs nothing, if the dropout can have such rounds."""
    if listed.all_present:
        with pytest.raises(UserError, match="use --dropout null"):
            start(listed, place, also=(trace,))
        return
    if listed.all_up is None:
        before, seen, after = usual(listed, place).rounds[ALL_DOWN - 1 : ALL_DOWN + 2]
        assert after["metrics.active"] > 0
        assert "round.weights" in after
    elif listed.all_down is not None:
        before, seen = pictures(start(listed, place, make=listed.all_down), 2)
    else:
        assert all(seen["metrics.active"] > 0 for seen in usual(listed, place).rounds)
        return
    assert seen["metrics.active"] == 0
    assert not {"round.selected", "round.weights"} & seen.keys()
    assert not (seen["ledger.models"] | seen["ledger.proxies"]).any()
    for name in (name for name in seen if name.startswith("rows.")):
        assert torch.equal(seen[name], before[name]), name


def lets_one_client_train_alone(listed: Listed, place: str) -> None:
    """In a federation of one it learns from its own data only; a server learns from it where it selects it."""
    if place in listed.refuses_one:
        with pytest.raises(UserError):
            start(listed, place, former=[0])
        return
    run = start(listed, place, former=[0])
    before = run.models.clone()
    for seen in pictures(run):
        up, models = bool(seen["round.active"][0]), seen["rows.models"]
        selected = "round.selected" in seen and bool(seen["round.selected"].any())
        assert up or not selected
        if run.module.federation.servers_have_models:
            assert torch.equal(models[1:], before[1:]) != selected
        else:
            assert selected == (up and PLACES[place] > 0)
            assert not seen["ledger.models"].any()
            assert torch.equal(models, before) != up
            kept = models != 0 if listed.trims else slice(None)
            assert torch.equal(models[kept], (seen["trained"] if up else before)[kept])
        before = models


def goes_on_from_a_file(listed: Listed, place: str) -> None:
    """Stopped, saved, read without running code and taken up with other threads, it ends bit for bit as if never."""
    found = usual(listed, place)
    with threads(3):
        agree(found.rounds[STOPPED_AFTER:], pictures(start(listed, place).take_up(found.saved), ROUNDS - STOPPED_AFTER))


def computes_with_the_number_of_rounds_where_it_reads_it(listed: Listed, place: str) -> None:
    """Planned with fewer rounds, the first two are the same, unless the number was read."""
    found, fewer = usual(listed, place), start(listed, place, rounds=ROUNDS - 1)
    readers = found.run.module.federation.horizon.readers
    assert fewer.module.federation.horizon.readers == readers
    if not readers:
        agree(found.rounds[:2], pictures(fewer, 2))


def does_not_see_cohorts(listed: Listed, place: str) -> None:
    """Another engine with a cohort for each client, on several threads, does the same up to rounding."""
    found = usual(listed, place)
    run = start(listed, place, engine="stacked")
    run.module.engine.cohorts = list(torch.arange(CLIENTS).split(1))
    with threads(3):
        agree(found.rounds, pictures(run), ROUNDING)


def does_not_see_ids(listed: Listed, place: str) -> None:
    """Check that every client does the same under another id, if its draws are renamed too."""
    found, names = usual(listed, place), Names(FORMER, CLIENTS + PLACES[place])
    with renamed_draws(names, listed.draws):
        agree(renamed(found.rounds, names), pictures(start(listed, place, former=FORMER)), ROUNDING)


def sees_neither_ids_nor_cohorts(listed: Listed, place: str) -> None:
    """Check the two properties above by one run, in which clients have other ids and cohorts of their own."""
    found, names = usual(listed, place), Names(FORMER, CLIENTS + PLACES[place])
    with renamed_draws(names, listed.draws), threads(3):
        run = start(listed, place, former=FORMER, engine="stacked")
        run.module.engine.cohorts = list(torch.arange(CLIENTS).split(1))
        agree(renamed(found.rounds, names), pictures(run), ROUNDING)


def begins_anew_in_another_fit(listed: Listed, place: str) -> None:
    """Check that a policy that has served one fit does in another one what a new policy does."""
    with folder_of_traces(FEDERATION):
        policy = listed.make()
    begin_anew([policy])
    pictures(start(listed, place, make=lambda: policy), 2)
    end_fit([policy])
    begin_anew([policy])
    agree(usual(listed, place).rounds[:2], pictures(start(listed, place, make=lambda: policy), 2))


def changes_no_rows_but_by_verbs_that_write(
    listed: Listed, place: str, precision: str, few: bool, engine: str
) -> dict[str, int]:
    """Choosing, comparing and evaluating leave every row set as it was, bit for bit, and nothing touches the boundary.

    Args:
        listed: the policy.
        place: of `PLACES`.
        precision: that of the rows.
        few: whether pairs are compared, and rows mixed, one by one, as in a large sparse graph; otherwise by products.
        engine: see `DFLTrainer`.

    Returns:
        How often each verb and hook was watched.
    """
    where = "all clients" if place == "clients" else place  # rows of some are a copy of them in any case
    run = start(listed, where, engine=engine, precision=precision)
    watch = RowWatch(run)
    with (
        patch.object(similarity, "FEW", 1.0 if few else -1.0),
        patch.object(mixing, "DENSE", 1.0 if few else -1.0),
        watch.watching(),
    ):
        for _ in range(ROUNDS):
            run.go()
            with watch.still("the evaluation of a round"):
                run.module.evaluate()
    return watch.seen


def refuses_where_it_cannot_work(listed: Listed, place: str) -> None:
    """At a place that is not its own it says so before anything is trained."""
    with pytest.raises(UserError):
        start(listed, place)
