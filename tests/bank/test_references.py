"""Weights of references: some of the sums, as rows of a plain matrix."""

import pytest
import torch

from dfl_lightning.bank.references import Weights


@pytest.fixture
def matrix():
    generator = torch.Generator().manual_seed(0)
    matrix = torch.rand(12, 7, generator=generator, dtype=torch.float64)
    matrix[matrix < 0.6] = 0
    matrix[3] = 0
    return matrix


@pytest.mark.parametrize("index", [[], [3], [0], [11, 2, 3, 2], list(range(12))])
def test_taken_sums_are_rows_of_the_matrix(matrix, index):
    index = torch.tensor(index, dtype=torch.long)
    assert torch.equal(Weights.of_dense(matrix).take(index).dense(), matrix[index])


def test_taking_further_sums_does_not_count_all_sums_again(matrix, monkeypatch):
    weights = Weights.of_dense(matrix)
    weights.take(torch.tensor([1]))
    monkeypatch.delattr(torch, "bincount")
    for row in range(len(matrix)):
        assert torch.equal(weights.take(torch.tensor([row])).dense(), matrix[row : row + 1])
