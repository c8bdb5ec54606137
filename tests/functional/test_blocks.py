"""Rows some at a time: the same bits as all at once."""

import pytest
import torch

from dfl_lightning import functional
from dfl_lightning.functional import blocks

N = 70


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 20 * N)


def drawn(seed, *shape):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


COSINES = torch.where(drawn(0, N, N) < 0.1, torch.nan, 2 * drawn(1, N, N) - 1)
ALLOWED = drawn(2, N, N) < 0.4
LIMITS = (drawn(3, N) * 9).long()
FUNCTIONS = {
    "top_k": lambda: functional.top_k(COSINES.round(decimals=1), ALLOWED, LIMITS),
    "random_k": lambda: functional.random_k(ALLOWED, 3, drawn(4, N, N)),
    "drawn_k": lambda: functional.drawn_k(ALLOWED, LIMITS, lambda i: torch.Generator().manual_seed(i)),
    "selection_probabilities": lambda: functional.selection_probabilities(COSINES, ALLOWED, 0.2),
    "participation_ratio": lambda: functional.participation_ratio(COSINES, ALLOWED, 0.2),
    "updated_probabilities": lambda: functional.updated_probabilities(drawn(5, N, N), COSINES, ALLOWED, ALLOWED, 0.2),
    "entropy_sum": lambda: functional.entropy_sum(COSINES, ALLOWED),
    "adaptive_threshold": lambda: functional.adaptive_threshold(COSINES, ALLOWED, 0.5),
    "boltzmann_weights": lambda: functional.boltzmann_weights(COSINES, ALLOWED, 0.5),
    "one row for all": lambda: functional.boltzmann_weights(COSINES[:1], ALLOWED, 0.5),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_blocks_change_no_bit(name, small_blocks, monkeypatch):
    assert len(list(blocks.row_blocks(N, N))) == 4
    in_blocks = FUNCTIONS[name]()
    monkeypatch.setattr(blocks, "BLOCK_ENTRIES", 10**9)
    assert torch.equal(in_blocks, FUNCTIONS[name]())


def test_blocks_cover_all_rows_once():
    rows = [row for block in blocks.row_blocks(1000, 10**9) for row in range(1000)[block]]
    assert rows == list(range(1000))


def test_the_best_are_those_of_a_plain_sort(small_blocks):
    scores = COSINES.round(decimals=1)  # many ties
    for receiver, (row, allowed, limit) in enumerate(zip(scores, ALLOWED, LIMITS, strict=True)):
        known = [j for j in range(N) if allowed[j] and not row[j].isnan()]
        best = sorted(known, key=lambda j: (-float(row[j]), j))[: int(limit)]
        assert torch.nonzero(functional.top_k(scores, ALLOWED, LIMITS)[receiver]).flatten().tolist() == sorted(best)


def test_only_who_has_a_choice_draws():
    allowed = torch.tensor([[0, 1, 1, 1], [1, 0, 0, 0], [1, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)
    asked = []

    def generator(receiver):
        asked.append(receiver)
        return torch.Generator().manual_seed(receiver)

    chosen = functional.drawn_k(allowed, torch.tensor([2, 2, 0, 2]), generator)
    assert asked == [0]
    assert chosen.sum(1).tolist() == [2, 1, 0, 0]
    draws = torch.rand(4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert torch.equal(chosen[:1], functional.random_k(allowed[:1], 2, draws[None]))
