"""What every dropout must do, whoever wrote it."""

import pytest
import torch

from dfl_lightning.callbacks import Bernoulli, Dropout, ExactCount, Gossip, GroupedCount, Markov, Trace, Uniform
from dfl_lightning.errors import UserError

CLUSTERS = [0, 0, 0, 1, 1, 1]


@pytest.fixture(params=["bernoulli", "exact count", "grouped count", "markov", "trace"])
def make_dropout(request, tmp_path):
    file = tmp_path / "trace.txt"
    file.write_text("0 1 1 0 1 0\n1 0 0 0 1 1\n")

    def make(**settings):
        return {
            "bernoulli": lambda: Bernoulli(0.5, **settings),
            "exact count": lambda: ExactCount(0.5, **settings),
            "grouped count": lambda: GroupedCount(0.5, **settings),
            "markov": lambda: Markov(0.5, **settings),
            "trace": lambda: Trace(str(file), repeat=True, **settings),
        }[request.param]()

    return make


@pytest.fixture
def go(start, make_clusters):
    def _go(dropout, rounds=6):
        return start(Gossip(k="all"), Uniform(), dropout, topology=make_clusters(6, CLUSTERS)).go(rounds)

    return _go


def test_every_shipped_dropout_is_tested_here(exported):
    assert exported(Dropout) == {Bernoulli, ExactCount, GroupedCount, Markov, Trace}


def test_some_are_down_and_the_others_do_all_the_work(make_dropout, go):
    run = go(make_dropout())
    assert any(round.dropped.any() for round in run.rounds)
    for round in run.rounds:
        assert round.active.dtype == torch.bool
        down = torch.nonzero(round.dropped).squeeze(1)
        assert sorted(round.jobs.owners.tolist()) == torch.nonzero(round.active).squeeze(1).tolist()
        assert round.losses[down].isnan().all()
        assert not round.losses[round.active].isnan().any()
        if round.active.any():
            assert not round.selected[down].any()
            assert not round.selected[:, down].any()
            assert torch.equal(round.after[down], round.before[down])
        assert round.metrics["active"] == int(round.active.sum())


def test_everybody_takes_part_in_a_full_first_round(make_dropout, go):
    without, full = go(make_dropout()), go(make_dropout(full_first_round=True))
    assert full.rounds[0].active.all()
    for one, other in zip(without.rounds[1:], full.rounds[1:], strict=True):
        assert torch.equal(one.active, other.active)


def test_the_first_round_is_not_full_by_default(make_dropout, go):
    assert not make_dropout().full_first_round
    assert go(make_dropout(), rounds=1).rounds[0].dropped.any()


def test_the_same_seed_gives_the_same_rounds_and_another_one_does_not(make_dropout, go, monkeypatch):
    one, again = go(make_dropout()), go(make_dropout())
    monkeypatch.setenv("PL_GLOBAL_SEED", "1")
    other = go(make_dropout())
    history, repeated, changed = (torch.stack([round.active for round in run.rounds]) for run in (one, again, other))
    assert torch.equal(history, repeated)
    assert torch.equal(history, changed) == isinstance(make_dropout(), Trace)


def test_the_next_round_after_a_checkpoint_is_the_one_that_would_have_come(make_dropout, go, go_on, make_clusters):
    run = go(make_dropout(), rounds=2)
    later = go_on(run, Gossip(k="all"), Uniform(), make_dropout(), topology=make_clusters(6, CLUSTERS))
    for one, other in zip(run.go(3).rounds[2:], later.go(3).rounds, strict=True):
        assert torch.equal(one.active, other.active)
        assert torch.equal(one.after, other.after)


def test_cohorts_change_nothing(make_dropout, go, other_cohorts):
    usual = go(make_dropout())
    other_cohorts()
    for one, other in zip(usual.rounds, go(make_dropout()).rounds, strict=True):
        assert torch.equal(one.active, other.active)
        torch.testing.assert_close(one.after, other.after)


def test_one_client_alone_is_up_or_down(start, make_data):
    run = start(Gossip(k="all"), Uniform(), Bernoulli(0.5), clients=1, data=make_data(1)).go(8)
    assert {bool(round.active[0]) for round in run.rounds} == {True, False}


@pytest.mark.parametrize("drawn", [torch.tensor(True), torch.ones(6), torch.ones(7, dtype=torch.bool)])
def test_a_draw_of_another_shape_or_type_is_refused(drawn, start):
    class Odd(Dropout):
        def draw(self, round):
            return drawn

    with pytest.raises(UserError, match=r"round 0: Odd drew .*; who is up must be bool \[6\]"):
        start(Gossip(k="all"), Uniform(), Odd()).go()
