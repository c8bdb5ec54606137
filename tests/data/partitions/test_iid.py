import numpy as np

from dfl_lightning.data import IID


def test_sizes_differ_by_at_most_one():
    sizes = [len(part) for part in IID().assign(np.zeros(1797, dtype=int), 1, 24, seed=0).train]
    assert sorted(set(sizes)) == [74, 75]
    assert sum(sizes) == 1797


def test_every_client_sees_the_class_distribution_of_the_whole():
    labels = np.repeat([0, 1], [3000, 1000])
    for part in IID().assign(labels, 2, 10, seed=0).train:
        assert abs(labels[part].mean() - 0.25) < 4 * np.sqrt(0.25 * 0.75 / 400)
