"""PACFL: angles against scipy, clusters by joining one pair at a time, what is sent, and what a resumed run knows."""

from functools import partial

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from tester.scenes import FEDERATION, ISOLATED, ROUNDS, SIZES, UP, start
from tester.shipped import Listed

from dfl_lightning import callbacks as cb
from dfl_lightning.functional import class_vectors, clusters_below, proximity

CLIENTS = len(SIZES)


def gen(seed):
    return torch.Generator().manual_seed(seed)


def test_class_vectors_equal_numpys_svd_with_fixed_signs():
    inputs, labels = torch.randn(12, 2, 4, generator=gen(0)), torch.arange(12) % 3
    found = class_vectors(inputs, labels, 2)
    assert found.shape == (8, 6)
    for place, label in enumerate(range(3)):
        matrix = inputs[labels == label].flatten(1).double().numpy().T
        left = np.linalg.svd(matrix)[0][:, :2]
        mine = found[:, 2 * place : 2 * place + 2].numpy()
        np.testing.assert_allclose(np.abs((left * mine).sum(0)), 1, atol=1e-9)
        assert (mine[np.abs(mine).argmax(0), range(2)] > 0).all()
    few = class_vectors(inputs[:4], labels[:4], 5)
    assert few.shape == (8, 4)  # two samples of class 0, one of each of the others


@pytest.mark.parametrize("widths", [(2, 2), (3, 5), (5, 3), (1, 4)])
@pytest.mark.parametrize("near", [False, True])
def test_the_smallest_principal_angle_is_scipys(widths, near):
    a = torch.randn(9, widths[0], generator=gen(1), dtype=torch.float64)
    b = torch.randn(9, widths[1], generator=gen(2), dtype=torch.float64)
    if near:
        b[:, 0] = a[:, 0] + 1e-6 * b[:, 0]
    found = proximity([a, b])
    expected = np.rad2deg(subspace_angles(a.numpy(), b.numpy()).min())
    np.testing.assert_allclose(float(found[0, 1]), expected, atol=1e-9 if not near else 1e-6)
    assert found[0, 1] == found[1, 0]
    assert not found.diagonal().any()


@pytest.mark.parametrize("widths", [(3, 3), (2, 4), (4, 1)])
def test_trace_and_entries_follow_their_formulas(widths):
    a, b = (
        torch.linalg.qr(torch.randn(7, k, generator=gen(s), dtype=torch.float64)).Q
        for k, s in zip(widths, (3, 4), strict=True)
    )
    if widths == (4, 1):  # all of its angles are obtuse
        a = a * -(a.T @ b).sign().T
    products = (a.T @ b).numpy()
    expected = {
        "trace": np.rad2deg(np.arccos(np.diag(products))).sum(),
        "entries": np.rad2deg(np.arccos(products)).min(),
    }
    for distance, value in expected.items():
        np.testing.assert_allclose(float(proximity([a, b], distance)[0, 1]), value, err_msg=distance)


def joined_by_hand(distances, threshold, weighted):
    """Join the nearest two clusters as long as they are near enough; distances follow their definitions."""
    groups, between = [[i] for i in range(len(distances))], {}
    for i in range(len(distances)):
        for j in range(i):
            between[frozenset([(i,), (j,)])] = float(distances[i, j])
    while len(groups) > 1:
        pair = min(between, key=between.get)
        if between[pair] > threshold:
            break
        a, b = (list(g) for g in pair)
        new = tuple(a + b)
        for other in [g for g in groups if tuple(g) not in pair]:
            to_a, to_b = (between[frozenset([tuple(x), tuple(other)])] for x in (a, b))
            mean = (to_a + to_b) / 2 if weighted else (len(a) * to_a + len(b) * to_b) / len(new)
            between[frozenset([new, tuple(other)])] = mean
        groups = [g for g in groups if tuple(g) not in pair] + [list(new)]
        between = {k: v for k, v in between.items() if not (set(k) & {tuple(a), tuple(b)})}
    numbers = torch.full((len(distances),), -1)
    for number, group in enumerate(sorted(groups, key=min)):
        numbers[group] = number
    return numbers


@pytest.mark.parametrize("method", ["average", "weighted"])
@pytest.mark.parametrize("threshold", [0.0, 20.0, 45.0, 60.0, 200.0])
def test_clusters_are_joined_up_to_the_threshold(method, threshold):
    for seed in range(5):
        d = 90 * torch.rand(8, 8, generator=gen(seed), dtype=torch.float64)
        d = (d + d.T) / 2
        d.fill_diagonal_(0)
        found = clusters_below(d, threshold, method)
        assert found.tolist() == joined_by_hand(d, threshold, method == "weighted").tolist()


def listed(*args, **options):
    return Listed("pacfl", partial(cb.PACFL, *args, **options))


def test_clients_learn_from_the_neighbours_of_their_cluster():
    run = start(listed(60.0, vectors=2), "clients").go(ROUNDS)
    (policy,) = (p for p in run.trainer.policies() if isinstance(p, cb.PACFL))
    data, signatures = run.data, []
    for part in data.train:
        x, y = data.batch(part, torch.float64)
        signatures.append(class_vectors(x, y, 2))
    degrees = torch.zeros(CLIENTS, CLIENTS, dtype=torch.float64)
    for i in FEDERATION:
        for j in range(i):
            angles = subspace_angles(signatures[i].numpy(), signatures[j].numpy())
            degrees[i, j] = degrees[j, i] = float(np.rad2deg(angles.min()))
    clusters = joined_by_hand(degrees, 60.0, False)
    assert torch.equal(policy.mates.mask, (clusters[:, None] == clusters) & ~torch.eye(CLIENTS, dtype=torch.bool))
    assert run.rounds[0].metrics["pacfl_clusters"] == int(clusters.max()) + 1 == policy.number
    for number, round in enumerate(run.rounds):
        up = [UP[number][i] == "1" for i in FEDERATION]
        for i in FEDERATION:
            for j in FEDERATION:
                linked = ISOLATED not in (i, j) and (i - j) % ISOLATED in (1, 2, 4, 5)
                expected = linked and up[i] and up[j] and bool(clusters[i] == clusters[j])
                if any(up):
                    assert bool(round.selected[i, j]) is expected


def test_signatures_are_sent_once_and_charged():
    run = start(listed(vectors=2), "clients").go(2)
    data, numbers = run.data, 0
    for part in data.train:
        labels = data.labels[part]
        numbers += sum(min(2, int((labels == c).sum())) for c in labels.unique()) * data.images[0].numel()
    first, second = (round.metrics for round in run.rounds)
    assert first["messages_received"] == CLIENTS - 1
    assert "messages_received" not in second
    ledger, width = run.rounds[0].record.ledger, len(run.module.federation.layout.shared)
    models = len(ledger.models.receivers) * 4 * width
    assert ledger.total_bytes(width) == models + 4 * numbers * (CLIENTS - 1)
    assert int(ledger.by_link(width).bytes.sum()) == ledger.total_bytes(width)
