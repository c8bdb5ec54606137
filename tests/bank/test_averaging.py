"""The weights of buffers, against a reference that goes through sums, row sets and rows one by one."""

import pytest
import torch

from dfl_lightning.bank.averaging import averages
from dfl_lightning.bank.references import Weights

CLIENTS, NODES = 5, 7
SETS = ["trained", "models", "stale"]


def by_hand(matrices, nodes):
    """Compute the weights of each sum by (row set, row), as the page about the bank defines them."""
    found = []
    for job, node in enumerate(nodes):
        weights = {}
        for name, matrix in matrices:
            for row, share in enumerate(matrix[job].tolist()):
                if share:
                    weights[name, row] = weights.get((name, row), 0.0) + share
        total = sum(weights.values())
        kept = {key: share for key, share in weights.items() if share > 0}
        positive = dict(kept)
        if total > 1 + 1e-6:
            kept.pop(("models", node), None)
        if node >= CLIENTS:
            kept.pop(("models", node), None)
            kept.pop(("trained", node), None)
        kept = kept or positive or {key: abs(share) for key, share in weights.items()}
        found.append({key: share / sum(kept.values()) for key, share in kept.items()})
    return found


def read(terms, sums):
    found = [{} for _ in range(sums)]
    for weights, name in terms:
        for job, row, share in zip(weights.jobs.tolist(), weights.rows.tolist(), weights.shares.tolist(), strict=True):
            found[job][name, row] = found[job].get((name, row), 0.0) + share
    return found


@pytest.mark.parametrize("seed", range(30))
def test_weights_of_buffers_are_those_of_the_reference(seed):
    g = torch.Generator().manual_seed(seed)
    nodes = torch.randperm(NODES, generator=g)[:4]
    names = [SETS[i] for i in torch.randint(0, len(SETS), (3,), generator=g)]  # a set may occur twice
    matrices = []
    for name in names:
        matrix = torch.randn(4, NODES, generator=g, dtype=torch.float64)
        matrices.append((name, matrix * (torch.rand(4, NODES, generator=g) < 0.4)))
    matrices.append(("models", torch.eye(NODES, dtype=torch.float64)[nodes]))
    terms = [(Weights.of_dense(matrix), name) for name, matrix in matrices]
    for one, other in zip(read(averages(terms, nodes, CLIENTS), 4), by_hand(matrices, nodes.tolist()), strict=True):
        assert one == pytest.approx(other)
        assert sum(one.values()) == pytest.approx(1)
        assert min(one.values()) > 0


def test_terms_that_are_averages_are_returned_unchanged():
    matrix = torch.rand(3, NODES, dtype=torch.float64)
    terms = [(Weights.of_dense((matrix / matrix.sum(1, keepdim=True)).float()), "trained")]
    assert averages(terms, torch.arange(3), CLIENTS) is terms
    assert averages(terms, torch.tensor([0, 1, CLIENTS]), CLIENTS) is not terms  # a server's own row counts in it


def test_copying_a_servers_own_row_keeps_its_weight():
    server = torch.tensor([CLIENTS])
    terms = [(Weights.of_rows(server, NODES), "models")]
    assert read(averages(terms, server, CLIENTS), 1) == [{("models", CLIENTS): 1.0}]


def test_only_negative_weights_count_by_their_size():
    terms = [(Weights.of_dense(torch.tensor([[-1.0, -3.0, 0, 0, 0, 0, 0]])), "models")]
    assert read(averages(terms, torch.tensor([4]), CLIENTS), 1) == [{("models", 0): 0.25, ("models", 1): 0.75}]
    assert read(averages([(Weights.of_dense(torch.zeros(1, NODES)), "models")], torch.tensor([4]), CLIENTS), 1) == [{}]
