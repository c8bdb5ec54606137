"""Cohorts."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from threads import threads

from dfl_lightning.bank.references import References
from dfl_lightning.engines.cohorts import plan_cohorts

few = settings(max_examples=60)
steps = st.lists(st.integers(0, 400), min_size=1, max_size=300)


@few
@given(steps, st.integers(1, 40), st.integers(1, 40))
def test_cohorts_cover_all_clients_once_and_are_not_too_wide(steps, narrowest, widest):
    cohorts = plan_cohorts(steps, narrowest, widest)
    assert sorted(torch.cat(cohorts).tolist()) == list(range(len(steps)))
    assert min(len(cohort) for cohort in cohorts) >= 1
    assert max(len(cohort) for cohort in cohorts) <= widest


@few
@given(steps, st.integers(1, 40), st.integers(1, 40))
def test_clients_are_sorted_by_falling_steps(steps, narrowest, widest):
    order = torch.cat(plan_cohorts(steps, narrowest, widest)).tolist()
    assert [steps[client] for client in order] == sorted(steps, reverse=True)


@few
@given(st.integers(1, 3000), st.integers(1, 20))
def test_equal_clients_make_equal_cohorts_in_multiples_of_eight(clients, widest):
    sizes = [len(cohort) for cohort in plan_cohorts([3] * clients, 1, widest)]
    if clients >= 8 * math.ceil(math.ceil(clients / widest) / 8):
        assert len(sizes) % 8 == 0
    assert max(sizes) - min(sizes) <= 1


def test_cohorts_share_the_steps_evenly():
    steps = [round(20 * math.exp(0.9 * math.sin(37 * i))) for i in range(100)]
    shares = [sum(steps[i] for i in cohort) / sum(steps) for cohort in plan_cohorts(steps, 1, 100)]
    assert len(shares) == 8
    assert max(shares) < 1.2 / 8


def test_blocks_below_their_overhead_are_not_divided():
    assert len(plan_cohorts([5] * 24, narrowest=17, widest=100)) == 2  # two, for two threads
    assert len(plan_cohorts([5] * 100, narrowest=20, widest=100)) == 4
    assert len(plan_cohorts([5] * 100, narrowest=12, widest=100)) == 8
    assert len(plan_cohorts([5] * 100, narrowest=20, widest=4)) == 25  # memory comes first


def test_clients_without_data_are_in_a_cohort_too():
    assert torch.cat(plan_cohorts([0, 0, 0], 1, 2)).tolist() == [0, 1, 2]
    assert sorted(torch.cat(plan_cohorts([0, 7, 0], 1, 2)).tolist()) == [0, 1, 2]


def test_cohorts_do_not_depend_on_threads(federation):
    plans = []
    for count in (1, 2, 3):
        with threads(count):
            plans.append([cohort.tolist() for cohort in federation(sizes=(4, 9) * 20).engine.cohorts])
    assert plans[0] == plans[1] == plans[2]


def test_jobs_run_in_their_owners_cohort(federation, monkeypatch):
    threes = list(torch.arange(20).split(3))
    for module in ("engine", "stacked.engine"):
        monkeypatch.setattr(f"dfl_lightning.engines.{module}.plan_cohorts", lambda *_, **more: threes)
    f = federation(sizes=(4,) * 20)
    seen = []
    plain = f.engine.train_cohort
    f.engine.train_cohort = lambda references, *more: (
        seen.append(references.owners.tolist()) or plain(references, *more)
    )
    f.engine.train(References.rows("models", torch.tensor([19, 1, 0, 4, 2, 3])), f.training(epochs=1))
    assert sorted(seen) == [[1, 0, 2], [4, 3], [19]]
