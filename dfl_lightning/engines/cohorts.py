"""Plans of cohorts: the clients that an engine works on together.

A plan is a pure function of the config; it never depends on threads or timings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

VIRTUAL_WORKERS = 8
"""The number of cohorts is a multiple of this if there is enough work, else of 4 or 2, so that all threads are busy."""


def plan_cohorts(steps: Sequence[int], narrowest: int = 1, widest: int = 16, fewest: int | None = None) -> list[Tensor]:
    """Sort clients by falling number of steps, and cut them into blocks with about equal shares of all steps.

    Clients of a block have similar numbers of steps, so that few of them finish before the others. Narrow blocks bound
    the wait for Ctrl-C and the memory of a block.

    Args:
        steps: optimizer steps of each client in a round.
        narrowest: least number of clients that makes a block worth its overhead, if there are enough for two blocks.
        widest: largest number of clients of a block.
        fewest: least number of blocks, if there are as many clients.

    Examples:
        >>> [cohort.tolist() for cohort in plan_cohorts([1, 4, 2, 1], widest=2)]
        [[1], [2], [0, 3]]
    """
    blocks = max(_number_of_blocks(len(steps), narrowest, widest), min(fewest or 1, len(steps)))
    ascending, order = torch.tensor(steps, dtype=torch.long).neg().sort(stable=True)
    taken = -ascending.double()
    total = float(taken.sum())
    middle = (taken.cumsum(0) - taken / 2) / total if total else torch.arange(len(steps)).double() / len(steps)
    block = (middle * blocks).long().clamp(max=blocks - 1)
    cohorts = order.split(block.bincount(minlength=blocks).tolist())
    split = (cohort.tensor_split(math.ceil(len(cohort) / widest)) for cohort in cohorts if len(cohort))
    return [part for parts in split for part in parts]


def cohorts_on_gpus(
    steps: Sequence[int], processes: int = 1, widest: int | None = None, fewest: int | None = None
) -> list[Tensor]:
    """Divide clients into few wide cohorts, since one kernel launch serves all clients of a cohort.

    The clients of a process do not depend on the number of cohorts: cohort c belongs to process c modulo `processes`,
    and all processes have the same number of cohorts.

    Args:
        steps: optimizer steps of each client in a round.
        processes: number of processes; each has a GPU and a block of clients.
        widest: largest number of clients of a cohort; None: any number.
        fewest: least number of cohorts, in all processes together, if there are as many clients.

    Examples:
        >>> [cohort.tolist() for cohort in cohorts_on_gpus([1, 4, 2, 1, 1], processes=2, widest=2)]
        [[1, 2], [3], [0], [4]]
    """
    order = torch.tensor(steps)
    blocks = [block for block in torch.arange(len(steps)).tensor_split(processes) if len(block)]
    blocks = [block[torch.argsort(order[block], descending=True, stable=True)] for block in blocks]
    each = math.ceil((fewest or 1) / len(blocks))
    each = max(each, math.ceil(max(map(len, blocks)) / widest)) if widest else each
    parts = [block.tensor_split(min(each, *map(len, blocks))) for block in blocks]
    return [part[turn] for turn in range(len(parts[0])) for part in parts]


def cohort_of(owners: Tensor, cohorts: Sequence[Tensor]) -> Tensor:
    """Return the index of each owner's cohort; the number of cohorts for the global test set (owner -1).

    Args:
        owners: long [J].
        cohorts: all clients, divided.
    """
    cohort_of_client = torch.full((sum(map(len, cohorts)) + 1,), len(cohorts))
    for index, cohort in enumerate(cohorts):
        cohort_of_client[cohort] = index
    return cohort_of_client[owners]  # -1 is the last entry


def by_cohort(owners: Tensor, cohorts: Sequence[Tensor]) -> list[Tensor]:
    """Group the indices of jobs by cohort; empty groups are left out, the global test set (owner -1) comes last.

    Args:
        owners: long [J].
        cohorts: all clients, divided.

    Examples:
        >>> cohorts = [torch.tensor([1]), torch.tensor([2]), torch.tensor([0, 3])]
        >>> [jobs.tolist() for jobs in by_cohort(torch.tensor([-1, 0, 1, 3]), cohorts)]
        [[2], [1, 3], [0]]
    """
    indices = cohort_of(owners, cohorts)
    order = torch.argsort(indices, stable=True)
    counts = torch.bincount(indices, minlength=len(cohorts) + 1)
    return [jobs for jobs in order.split(counts.tolist()) if len(jobs)]


def _number_of_blocks(clients: int, narrowest: int, widest: int) -> int:
    fewest, worthwhile = math.ceil(clients / widest), clients // narrowest
    eights = VIRTUAL_WORKERS * math.ceil(fewest / VIRTUAL_WORKERS)
    fitting = [blocks for blocks in (eights, 4, 2) if fewest <= blocks <= max(2, worthwhile)]
    return min(clients, fitting[0] if fitting else fewest)
