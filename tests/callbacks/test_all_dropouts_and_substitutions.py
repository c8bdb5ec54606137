"""Properties of every dropout and every substitution, alone and together, in addition to those of every policy.

They are listed in `tester/shipped.py`.
"""

from itertools import pairwise

import pytest
import torch
from tester import properties
from tester.scenes import FEDERATION, pictures, start
from tester.shipped import LISTED, all_up, each, trace, where_they_work

from dfl_lightning import callbacks as cb
from dfl_lightning.utils.errors import UserError

CLIENTS = len(FEDERATION)
every_dropout = pytest.mark.parametrize("listed", each("dropout"))
every_substitution = pytest.mark.parametrize(("listed", "place"), where_they_work("substitution"))


def pairs(quick=None):
    """Pair each substitution with each dropout, at all places where it works; dropouts other than `quick` are slow.

    If none is named, each dropout takes its turn.
    """
    found = []
    for turn, parameters in enumerate(where_they_work("substitution")):
        listed, place = parameters.values
        in_turn = LISTED["dropout"][turn % len(LISTED["dropout"])].name
        for other in LISTED["dropout"]:
            marks = [] if other.name == (quick or in_turn) else pytest.mark.slow
            name = f"{parameters.id} and {other.name}"
            found.append(pytest.param(listed.along_with(other), place, id=name, marks=marks))
    return found


together = pytest.mark.parametrize(("listed", "place"), pairs())
with_memory_together = pytest.mark.parametrize(("listed", "place"), pairs("markov"))
"""In a normal run with the dropout that remembers who dropped out; with a trace they are in `test_all_policies.py`."""


def history(rounds):
    """Return the active clients, bool [rounds, m]."""
    return torch.stack([seen["round.active"][:CLIENTS] for seen in rounds])


# --- dropouts


@every_dropout
def test_only_active_clients_take_part(listed):
    rounds = properties.usual(listed, "clients").rounds
    assert not history(rounds).all()
    assert history(rounds).any()
    for before, seen in pairwise(rounds):
        up = seen["round.active"]
        assert torch.equal(seen["participants"], up)
        assert torch.equal(seen["rows.models"][~up], before["rows.models"][~up])
        assert (seen["rows.models"][up] != before["rows.models"][up]).any(1).all()
        assert seen["metrics.active"] == int(up.sum())


@every_dropout
def test_dropout_of_no_client_changes_nothing(listed):
    without = start(listed, "clients", make=all_up).go(3)
    assert torch.equal(start(listed, "clients", make=listed.all_up).go(3).models, without.models)


@every_dropout
def test_all_clients_take_part_in_a_full_first_round(listed):
    without = history(properties.usual(listed, "clients").rounds)
    full = history(pictures(start(listed, "clients", make=lambda: listed.make(full_first_round=True))))
    assert full[0].all()
    assert torch.equal(without[1:], full[1:])


@every_dropout
def test_the_first_round_is_not_full_by_default(listed):
    assert not history(properties.usual(listed, "clients").rounds)[0].all()


@every_dropout
def test_seed_decides_the_rounds_unless_a_trace_does(listed, monkeypatch):
    without = history(properties.usual(listed, "clients").rounds)
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    assert torch.equal(without, history(pictures(start(listed, "clients")))) == (listed.make is trace)


def test_single_client_may_drop_out(start, make_data):
    run = start(cb.Gossip(k="all"), cb.Uniform(), cb.Bernoulli(0.5), clients=1, data=make_data(1)).go(8)
    assert {bool(round.active[0]) for round in run.rounds} == {True, False}


@pytest.mark.parametrize("drawn", [torch.tensor(True), torch.ones(6), torch.ones(7, dtype=torch.bool)])
def test_a_draw_of_another_shape_or_type_is_refused(drawn, start):
    class Odd(cb.Dropout):
        def draw(self, round):
            return drawn

    with pytest.raises(UserError, match=r"round 1: Odd drew .*, and active must be bool \[6\]"):
        start(cb.Gossip(k="all"), cb.Uniform(), Odd()).go()


# --- substitutions


@every_substitution
def test_substitution_without_dropouts_changes_nothing(listed, place):
    substituted = start(listed, place, also=(all_up,)).go(3)
    assert torch.equal(start(listed, place, make=all_up).go(3).models, substituted.models)


@every_substitution
def test_client_that_was_never_active_is_replaced_by_the_mean(listed, place):
    def never_up():
        return cb.Bernoulli([float(i in (3, 4, 5)) for i in FEDERATION])

    for seen in pictures(start(listed, place, also=(never_up,)), 2):
        votes, selected = seen["round.votes"], seen["round.selected"]
        for i in torch.nonzero(seen["round.receivers"]).flatten().tolist():
            others = [j for j in (0, 1, 2, 6) if selected[i, j]]
            for j in others:
                assert votes[i, j] == pytest.approx(int(selected[i].sum()) / len(others))
            assert int(votes[i].count_nonzero()) == len(others) + (place == "clients")


@every_substitution
def test_substitution_changes_the_models(listed, place):
    substituted = start(listed, place).go(4)
    assert not torch.allclose(start(listed, place, make=trace).go(4).models, substituted.models)


@every_substitution
def test_substitution_keeps_personal_parameters_in_place(listed, place):
    run = start(listed, place, shared=["features.*"])
    personal = run.module.federation.layout.personal.mask(run.module.federation.layout.width)
    servers = run.models[CLIENTS:, personal].clone()
    for seen in pictures(run):
        assert torch.equal(seen["rows.models"][CLIENTS:, personal], servers)
        if seen["trained"] is not None:
            assert torch.equal(seen["rows.models"][:CLIENTS, personal], seen["trained"][:CLIENTS, personal])
        for name in seen.keys() & {"rows.stale", "rows.initial"}:
            assert not seen[name][:, personal].any(), name


# --- together


@together
def test_every_selected_client_counts_and_only_active_ones_are_mixed(listed, place):
    properties.selects_reachable_clients(listed, place)
    found = properties.usual(listed, place)
    assert not history(found.rounds).all()
    for seen in found.rounds:
        if "round.votes" not in seen:
            continue
        active, selected, votes = (seen[f"round.{name}"] for name in ("active", "selected", "votes"))
        n, up = len(active), torch.nonzero(active).flatten()
        assert torch.equal(seen["round.substitute"][:, up], up.expand(n, -1))
        assert not votes[:, :n][:, ~active].any()
        of_its_own = (seen["round.receivers"] & (torch.arange(n) < CLIENTS)).double()
        has_neighbours = (selected & active).any(1)
        expected = selected.sum(1) + of_its_own
        torch.testing.assert_close(votes.sum(1)[has_neighbours], expected[has_neighbours])
        assert (votes.sum(1) < expected + 1e-9).all()


@with_memory_together
def test_dropouts_and_substitutions_resume_from_a_file(listed, place):
    properties.goes_on_from_a_file(listed, place)


@with_memory_together
def test_dropouts_and_substitutions_do_not_depend_on_ids(listed, place):
    properties.does_not_see_ids(listed, place)
