import numpy as np
import pytest

from dfl_lightning.data import LabelClusters, RotatedClusters, SwappedLabelClusters
from dfl_lightning.utils.errors import UserError

LABELS = np.arange(1000) % 10


def test_rotated_clusters_are_blocks_of_consecutive_clients():
    assignment = RotatedClusters([0, 90, 180]).assign(LABELS, 10, 8, seed=0)
    assert assignment.clusters.tolist() == [0, 0, 0, 1, 1, 1, 2, 2]
    assert assignment.rotation.tolist() == [0, 0, 0, 90, 90, 90, 180, 180]
    assert RotatedClusters([0, 22.5]).describe() == "RotatedClusters{0,22.5}"


@pytest.mark.parametrize("kind", [RotatedClusters, SwappedLabelClusters])
def test_clients_may_have_equally_many_images_of_each_class(kind):
    """As PANM says of its clients (section 4.1)."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), np.arange(80, 180, 10)))
    parts = kind(per_class=9).assign(labels, 10, 8, seed=0).train
    assert [np.bincount(labels[part]).tolist() for part in parts] == [[9] * 10] * 8
    assert len(np.unique(np.concatenate(parts))) == 8 * 90
    assert kind(per_class=9).describe().endswith("; 9 per class}")
    assert any(len(set(np.bincount(labels[part]))) > 1 for part in kind().assign(labels, 10, 8, seed=0).train)


def test_the_default_swaps_are_those_of_panm():
    assignment = SwappedLabelClusters().assign(LABELS, 10, 4, seed=0)
    assert assignment.clusters.tolist() == [0, 0, 1, 1]
    assert assignment.label_map[0].tolist() == [1, 0, 2, 3, 4, 5, 6, 7, 8, 9]
    assert assignment.label_map[3].tolist() == [0, 1, 2, 3, 4, 5, 7, 6, 8, 9]


def test_a_cycle_moves_each_label_to_the_next():
    label_map = SwappedLabelClusters([[], [[3, 1, 4], [0, 9]]]).assign(LABELS, 10, 2, seed=0).label_map
    assert label_map[0].tolist() == list(range(10))
    assert label_map[1].tolist() == [9, 4, 2, 1, 3, 5, 6, 7, 8, 0]


def test_fl_fdms_clusters_have_two_labels_and_equal_sizes():
    assignment = LabelClusters(5).assign(LABELS, 10, 20, seed=0)
    for client, part in enumerate(assignment.train):
        cluster = client // 4
        assert assignment.clusters[client] == cluster
        assert set(LABELS[part]) == {2 * cluster, 2 * cluster + 1}
        assert len(part) == 50


def test_label_clusters_cut_to_the_poorest_cluster():
    labels = np.repeat([0, 1], [10, 90])
    assert {len(part) for part in LabelClusters(2).assign(labels, 2, 6, seed=0).train} == {3}


def test_label_clusters_give_the_three_clients_of_afinds_toy():
    assignment = LabelClusters(labels=[[4, 5, 6, 7], [0, 1, 2, 3]]).assign(LABELS, 10, 3, seed=0)
    assert [set(LABELS[part]) for part in assignment.train] == [{4, 5, 6, 7}, {4, 5, 6, 7}, {0, 1, 2, 3}]
    assert assignment.clusters.tolist() == [0, 0, 1]
    assert LabelClusters(labels=[[4, 5], [0]]).describe() == "LabelClusters{4 5,0}"


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: LabelClusters(labels=[[1], []]), "must give each cluster labels of its own"),
        (lambda: LabelClusters(labels=[[1], [2, 1]]), "must give each cluster labels of its own"),
        (lambda: LabelClusters(labels=[[1], [10]]).assign(LABELS, 10, 4, 0), "label 10 does not exist, .* 0 to 9"),
        (lambda: RotatedClusters([]), "degrees must be a list of numbers"),
        (
            lambda: RotatedClusters(per_class=0),
            "RotatedClusters: per_class must be at least 1, or null for all samples",
        ),
        (lambda: SwappedLabelClusters(per_class=0), "SwappedLabelClusters: per_class must be at least 1"),
        (lambda: RotatedClusters(per_class=26).assign(LABELS, 10, 4, 0), "need 104, but class 0 has 100; lower"),
        (lambda: SwappedLabelClusters([]), "has no cluster"),
        (lambda: SwappedLabelClusters([[[0, 1], [1, 2]]]), "cluster 0 names a label twice"),
        (lambda: SwappedLabelClusters([[[0, 10]]]).assign(LABELS, 10, 4, 0), "10 classes, 0 to 9"),
        (lambda: LabelClusters(0), "at least 1, not 0"),
        (lambda: LabelClusters(11).assign(LABELS, 10, 20, 0), "11 clusters, but only 10 labels"),
        (lambda: LabelClusters(5).assign(LABELS, 10, 4, 0), "5 clusters, but only 4 clients"),
        (lambda: RotatedClusters().assign(LABELS, 10, 3, 0), "4 clusters, but only 3 clients"),
    ],
)
def test_impossible_clusters_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
