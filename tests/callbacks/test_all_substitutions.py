"""What every substitution must do, whoever wrote it."""

import pytest
import torch

from dfl_lightning.callbacks import FDMS, Bernoulli, Gossip, Stale, Substitution, Trace, Uniform

SUBSTITUTIONS = {"fdms": FDMS, "stale": Stale}
every_substitution = pytest.mark.parametrize("name", SUBSTITUTIONS)


@pytest.fixture
def go(start, tmp_path):
    """A run at a server whose clients come and go by these lines."""

    def _go(name, lines="1 1 1 1 1 1, 1 0 1 1 0 1, 0 1 1 0 1 1, 1 1 0 1 0 0", rounds=4, **settings):
        file = tmp_path / "trace.txt"
        file.write_text(lines.replace(", ", "\n"))
        policies = [Gossip(k="all"), Uniform(), Trace(str(file), repeat=True)]
        policies += [SUBSTITUTIONS[name]()] if name else []
        return start(*policies, topology="server", **settings).go(rounds)

    return _go


def test_every_shipped_substitution_is_tested_here(exported):
    assert exported(Substitution) == set(SUBSTITUTIONS.values())


@every_substitution
def test_rows_exist_and_those_that_are_up_speak_for_themselves(name, go):
    for round in go(name).rounds:
        rows = 7 + 6 * len(round.speakers)
        assert ((round.stand_in >= -1) & (round.stand_in < rows)).all()
        up = torch.nonzero(round.active[:6]).squeeze(1)
        assert (round.stand_in[6, up] == up).all()
        assert round.votes.shape == (7, rows)


@every_substitution
def test_nobody_who_is_down_speaks_for_anybody(name, go):
    for round in go(name).rounds:
        assert not round.votes[6, :6][round.dropped].any()


@every_substitution
def test_with_everybody_up_it_changes_nothing(name, go):
    usual, substituted = go(None, "1 1 1 1 1 1"), go(name, "1 1 1 1 1 1")
    assert torch.equal(usual.models, substituted.models)


@every_substitution
def test_without_any_history_the_dropped_ones_are_left_out(name, go):
    # clients 0 to 2 are the only ones that are ever up: nothing is known about the others
    usual, substituted = go(None, "1 1 1 0 0 0"), go(name, "1 1 1 0 0 0")
    torch.testing.assert_close(usual.models, substituted.models)


@every_substitution
def test_a_round_in_which_everybody_is_down_changes_nothing(name, go):
    run = go(name, "0 0 0 0 0 0, 1 1 1 1 1 1, 0 0 0 0 0 0, 1 0 1 1 1 1")
    assert torch.equal(run.rounds[2].after, run.rounds[1].after)
    assert run.rounds[3].weights[6].sum() == pytest.approx(1)


@every_substitution
def test_one_client_alone_has_nobody_to_speak_for_it(name, go, make_data):
    run = go(name, "1, 0, 1, 0", clients=1, data=make_data(1))
    assert torch.equal(run.rounds[1].after, run.rounds[0].after)
    assert not torch.equal(run.rounds[2].after, run.rounds[1].after)


@every_substitution
def test_the_next_round_after_a_checkpoint_is_the_one_that_would_have_come(name, start, go_on):
    def policies():
        return Gossip(k="all"), Uniform(), Bernoulli(0.5), SUBSTITUTIONS[name]()

    run = start(*policies(), topology="server").go(3)
    later = go_on(run, *policies(), topology="server")
    assert any(round.dropped.any() for round in run.rounds)
    for one, other in zip(run.go(3).rounds[3:], later.go(3).rounds, strict=True):
        assert torch.equal(one.stand_in, other.stand_in)
        assert torch.equal(one.after, other.after)


@every_substitution
def test_cohorts_change_nothing(name, go, other_cohorts):
    usual = go(name)
    other_cohorts()
    for one, other in zip(usual.rounds, go(name).rounds, strict=True):
        assert torch.equal(one.stand_in, other.stand_in)
        torch.testing.assert_close(one.after, other.after)


@every_substitution
def test_other_names_for_the_clients_give_the_same_stand_ins_under_their_names(name, go, make_data):
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    lines = ["111111", "101101", "011011", "110100"]
    renamed_lines = ["".join(line[i] for i in order) for line in lines]
    # a batch of all samples, so that the order in which a client sees them does not matter
    settings = {"trainer": {"precision": "64-true"}, "batch_size": 6}
    usual = go(name, ", ".join(" ".join(line) for line in lines), **settings)
    data = make_data(6, order=order.tolist())
    renamed = go(name, ", ".join(" ".join(line) for line in renamed_lines), data=data, **settings)
    new_name = torch.empty(6, dtype=torch.long).scatter_(0, order, torch.arange(6))
    new_row = torch.cat([new_name, torch.tensor([6]), 7 + new_name, torch.tensor([-1])])  # -1 indexes the last: -1
    for one, other in zip(usual.rounds, renamed.rounds, strict=True):
        assert torch.equal(other.stand_in[6, :6], new_row[one.stand_in[6, order]])
        torch.testing.assert_close(one.after[6], other.after[6])


@every_substitution
def test_personal_parts_never_reach_the_server(name, go, start):
    run = go(name, shared=["features.*"])
    layout = run.module.layout
    personal = layout.personal.mask(layout.width)
    assert personal.any()
    first = run.rounds[0].before[6, personal]
    assert all(torch.equal(round.after[6, personal], first) for round in run.rounds)
    for round in run.rounds:
        for rows in round.sets.values():
            assert not rows[:, personal].any()
