"""Division of an evaluation's jobs into pieces; a pure function of the jobs, the cohorts and an engine's widths."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References, Weights
from dfl_lightning.engines.cohorts import by_cohort


@dataclass(frozen=True)
class EvaluationPlan:
    """Division of an evaluation's jobs into pieces; it does not depend on the number of processes and threads.

    Args:
        read: long [J], the row that each job's model equals; -1 for a model that is combined from several rows.
        home: long [J], the client in whose cohort a job is done; -1 for the global test set.
        shared_samples: indices of jobs, long; each tensor has jobs of one owner that are scored together on its
            samples.
        others: indices of the other jobs, long; each tensor has jobs of one cohort, if they are not too many.
    """

    read: Tensor
    home: Tensor
    shared_samples: list[Tensor]
    others: list[Tensor]

    @property
    def pieces(self) -> list[Tensor]:
        """All pieces, those of shared samples first."""
        return [*self.shared_samples, *self.others]


def plan_evaluation(
    references: References,
    layout: Layout,
    cohorts: Sequence[Tensor],
    shared_samples: list[Tensor],
    composed_at_once: int,
) -> EvaluationPlan:
    """Divide the jobs of an evaluation into pieces, and assign each job to a cohort.

    A job that reads one unchanged row is done in the cohort of that row, so that the row need not be moved; other
    jobs, and those that share samples, are done in the cohort of the owner.

    Args:
        references: J models.
        layout: the columns of a row.
        cohorts: clients that are trained together, long [c] for each cohort.
        shared_samples: job indices of groups of one owner that are scored together, long.
        composed_at_once: number of models combined from several rows that are scored together.
    """
    read, owners = _rows_read(references, layout), references.owners
    num_clients = sum(map(len, cohorts))
    home = torch.where((read >= 0) & (read < num_clients) & (owners >= 0), read, owners)
    rest = torch.ones(len(owners), dtype=torch.bool)
    for jobs in shared_samples:
        home[jobs], rest[jobs] = owners[jobs], False
    left, others = torch.nonzero(rest).squeeze(1), []
    for jobs in (left[indices] for indices in by_cohort(home[left], cohorts)):
        composed = read[jobs] < 0
        others += [jobs[~composed], *jobs[composed].split(composed_at_once)]
    return EvaluationPlan(read, home, shared_samples, [piece for piece in others if len(piece)])


def _rows_read(references: References, layout: Layout) -> Tensor:
    """Return the row that each reference equals, long [J]; -1 for a model that is combined from several rows."""
    term, *others = references.terms
    if others or isinstance(term.which, Weights):
        return torch.full_like(references.owners, -1)
    if not len(layout.personal):
        return term.which
    mine = (term.which == references.owners) & (term.rows == references.personal)
    return torch.where(mine, term.which, -1)


def portions(pieces: Sequence[Tensor], cohort: Tensor, at_once: int) -> list[Tensor]:
    """Divide jobs into portions of whole pieces, with pieces of all cohorts in each portion.

    The portions are the same in all processes. Cohorts are scored at the same time if there are threads.

    Args:
        pieces: indices of jobs of one cohort each, long.
        cohort: index of each job's cohort, long [J].
        at_once: largest number of a cohort's pieces in a portion.

    Returns:
        The ascending job indices of each portion, long.

    Examples:
        >>> pieces = torch.tensor([0]), torch.tensor([3, 1]), torch.tensor([2])
        >>> [portion.tolist() for portion in portions(pieces, torch.tensor([0, 1, 0, 1]), at_once=1)]
        [[0, 1, 3], [2]]
    """
    divided: list[list[Tensor]] = []
    turn: Counter[int] = Counter()
    for piece in pieces:
        index = int(cohort[piece[0]])
        number = turn[index] // at_once
        if number == len(divided):
            divided.append([])
        divided[number].append(piece)
        turn[index] += 1
    return [torch.cat(portion).sort().values for portion in divided]
