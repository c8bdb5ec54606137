import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.neighbors import KNeighborsClassifier

from dfl_lightning.functional import best_vote_shares, neighbour_votes
from dfl_lightning.functional.baselines import knn

KERNELS = {"squared": lambda d, scale, dims: -(d**2) / (dims * scale), "euclidean": lambda d, scale, dims: -d / scale}


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_votes_are_the_golden_numbers():
    """Squared distances 0, 2 and 6 in two dimensions, of the classes 1, 0 and 1; then half the network's .7 and .3."""
    stored = torch.tensor([[0.0, 0.0], [1.0, 1.0], [math.sqrt(6), 0.0]], dtype=torch.float64)
    votes = neighbour_votes(torch.zeros(1, 2, dtype=torch.float64), stored, torch.tensor([1, 0, 1]), 2)
    assert votes[0].tolist() == pytest.approx([0.259496, 0.740504], abs=1e-6)
    assert (0.5 * votes[0] + 0.5 * torch.tensor([0.7, 0.3])).tolist() == pytest.approx([0.479748, 0.520252], abs=1e-6)


@pytest.mark.parametrize("kernel", KERNELS)
@given(
    n=st.integers(1, 30),
    dims=st.integers(1, 6),
    k=st.integers(1, 40),
    scale=st.floats(0.1, 10),
    seed=st.integers(0, 1000),
    classes=st.integers(1, 4),
)
def test_votes_are_those_of_scikit_learn(kernel, n, dims, k, scale, seed, classes):
    """`KNeighborsClassifier` with the same weights; features are not far, for its weights may underflow."""
    stored, queries = drawn(seed, n, dims), drawn(seed + 1, 7, dims)
    labels = torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed))
    vote = KERNELS[kernel]
    model = KNeighborsClassifier(
        n_neighbors=min(k, n), algorithm="brute", weights=lambda d: torch.tensor(vote(d, scale, dims)).exp().numpy()
    )
    model.fit(stored.numpy(), labels.numpy())
    nearest = model.kneighbors(queries.numpy())[0][:, 0]
    if vote(nearest, scale, dims).min() < -600:
        return  # where all of its weights are 0
    expected = torch.zeros(7, classes, dtype=torch.float64)
    expected[:, torch.tensor(model.classes_)] = torch.tensor(model.predict_proba(queries.numpy()))
    found = neighbour_votes(queries, stored, labels, classes, k, scale, kernel)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kernel", KERNELS)
def test_votes_of_far_features_are_relative_to_the_nearest(kernel):
    """exp(-d) of each of them is 0."""
    stored = torch.tensor([[1e6], [1e6 + 1e-3], [2e6]], dtype=torch.float64)
    votes = neighbour_votes(torch.zeros(1, 1, dtype=torch.float64), stored, torch.tensor([0, 1, 1]), 2, kernel=kernel)
    assert votes.isfinite().all()
    assert votes[0, 0] > 0.5
    assert votes.sum() == pytest.approx(1)


def test_among_equal_distances_the_first_samples_vote():
    stored, query = torch.tensor([[1.0], [-1.0], [1.0], [-1.0]] * 50), torch.zeros(3, 1)
    for first in (0, 1, 2):
        labels = torch.full((200,), 3)
        labels[:3] = torch.tensor([0, 1, 2])
        votes = neighbour_votes(query, stored, labels, 4, k=first + 1)
        assert votes[0].tolist() == pytest.approx([1 / (first + 1)] * (first + 1) + [0] * (3 - first))


@pytest.mark.parametrize("offset", [0.0, 1e3, 1e8], ids=["near zero", "far", "where squares lose all digits"])
def test_the_nearest_of_many_samples_are_those_of_differences(offset):
    """Distances are taken from differences, in numpy; every sample stands twice, and the first one votes."""
    stored, queries = offset + drawn(0, 40, 5).repeat(2, 1), offset + drawn(1, 30, 5)
    distances = ((queries.numpy()[:, None] - stored.numpy()) ** 2).sum(-1)
    first = distances.argsort(axis=1, kind="stable")[:, :3]
    votes = neighbour_votes(queries, stored, torch.arange(80), 80, k=3)
    assert [sorted(row.nonzero().flatten().tolist()) for row in votes] == [sorted(row) for row in first.tolist()]


def test_the_first_of_many_copies_is_nearest():
    """As products of matrices, distances to copies would differ by rounding, and a later one might come first."""
    sample, queries = 100 + drawn(0, 1, 33), 100 + drawn(1, 64, 33)
    labels = torch.arange(101)
    votes = neighbour_votes(queries, sample.repeat(101, 1), labels, 101, k=1)
    assert (votes.argmax(1) == 0).all()


def test_clients_together_vote_as_each_alone(monkeypatch):
    queries, stored = drawn(0, 3, 11, 4), drawn(1, 3, 9, 4)
    labels = torch.randint(0, 3, (3, 9), generator=torch.Generator().manual_seed(2))
    alone = torch.stack([neighbour_votes(*each, 3, k=4) for each in zip(queries, stored, labels, strict=True)])
    assert torch.equal(neighbour_votes(queries, stored, labels, 3, k=4), alone)
    monkeypatch.setattr(knn, "BLOCK", 100)  # a few queries at a time
    assert torch.equal(neighbour_votes(queries, stored, labels, 3, k=4), alone)


def test_nonfinite_features_give_no_votes():
    stored = torch.tensor([[0.0], [math.nan]])
    votes = neighbour_votes(torch.tensor([[0.0], [math.nan]]), stored, torch.tensor([0, 1]), 2, k=1)
    assert votes[0].tolist() == [1, 0]
    assert votes[1].isnan().all()


# --- the share of the votes

GRID = torch.arange(11, dtype=torch.float64) / 10


@given(seed=st.integers(0, 500), samples=st.integers(1, 9), classes=st.integers(2, 4))
def test_the_best_share_is_that_of_a_loop(seed, samples, classes):
    votes, network = drawn(seed, samples, classes).softmax(-1), drawn(seed + 1, samples, classes).softmax(-1)
    labels = torch.randint(0, classes, (samples,), generator=torch.Generator().manual_seed(seed))

    def quality(share):
        mixed = [
            [share * v + (1 - share) * p for v, p in zip(*row, strict=True)]
            for row in zip(votes.tolist(), network.tolist(), strict=True)
        ]
        right = sum(row.index(max(row)) == y for row, y in zip(mixed, labels.tolist(), strict=True))
        return right, -sum(-math.log(row[y]) for row, y in zip(mixed, labels.tolist(), strict=True))

    best = max(GRID.tolist(), key=lambda share: (quality(share)[0], round(quality(share)[1], 12), -share))
    assert best_vote_shares(votes, network, labels, GRID).item() == best


def test_equal_shares_leave_the_decision_to_the_network():
    same = torch.tensor([[[0.4, 0.6]], [[0.9, 0.1]]])
    shares = best_vote_shares(same, same, torch.tensor([[1], [0]]), GRID)
    assert shares.tolist() == [0, 0]


def test_votes_that_exclude_the_right_class_get_no_weight():
    """A probability of 0 has an infinite loss; among equally many right answers it loses."""
    votes, network = torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([[0.5, 0.5], [0.6, 0.4]])
    assert best_vote_shares(votes, network, torch.tensor([0, 1]), GRID) == 0
    assert best_vote_shares(votes, votes, torch.tensor([1, 1]), GRID) == 0
