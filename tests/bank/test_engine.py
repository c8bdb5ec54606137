"""Cohorts."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dfl_lightning.bank import References
from dfl_lightning.bank.engine import one_thread, plan_cohorts


@settings(deadline=None, derandomize=True, database=None, max_examples=60)
@given(st.integers(1, 3000))
def test_cohorts_are_short_contiguous_blocks_that_cover_all_clients(clients):
    cohorts = plan_cohorts(clients)
    assert torch.cat(cohorts).tolist() == list(range(clients))
    assert len(cohorts) >= min(8, clients)
    sizes = [len(cohort) for cohort in cohorts]
    assert min(sizes) >= 1
    assert max(sizes) <= 16
    assert max(sizes) - min(sizes) <= 1


def test_the_number_of_threads_comes_back_even_after_an_error():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        try:
            with one_thread():
                assert torch.get_num_threads() == 1
                raise InterruptedError
        except InterruptedError:
            pass
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_cohorts_do_not_depend_on_threads():
    before = torch.get_num_threads()
    try:
        plans = []
        for count in (1, 2):
            torch.set_num_threads(count)
            plans.append([cohort.tolist() for cohort in plan_cohorts(77)])
        assert plans[0] == plans[1]
    finally:
        torch.set_num_threads(before)


def test_jobs_run_in_their_owners_cohort(federation):
    f = federation(sizes=(4,) * 20)
    seen = []
    plain = f.bank.engine.train_cohort
    f.bank.engine.train_cohort = lambda bank, references, *more: (
        seen.append(references.owners.tolist()) or plain(bank, references, *more)
    )
    f.bank.train(References.rows("models", torch.tensor([19, 1, 0, 4, 2, 3])), f.training(epochs=1))
    assert seen == [[1, 0, 2], [4, 3], [19]]
