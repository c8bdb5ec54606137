import numpy as np
import pytest

from dfl_lightning.data import ClassCounts
from dfl_lightning.utils.errors import UserError

LABELS = np.random.default_rng(0).permutation(np.arange(6000) % 10)


def test_dpfls_three_clients_have_the_images_of_its_appendix():
    parts = ClassCounts().assign(LABELS, 10, 3, seed=0).train
    counts = np.stack([np.bincount(LABELS[part], minlength=10) for part in parts])
    assert counts.tolist() == [
        [50, 0, 0, 0, 50, 0, 50, 0, 50, 0],
        [300, 200, 0, 200, 0, 0, 300, 0, 0, 0],
        [0, 0, 0, 0, 300, 200, 0, 200, 300, 0],
    ]


@pytest.mark.parametrize(
    ("counts", "sentence"),
    [
        ([{0: 1}], "counts lists 1 clients, but num_clients is 2; set num_clients: 1"),
        ([{0: 1}, {10: 1}], "client 1 names class 10, but the data have 10 classes, 0 to 9"),
        ([{0: 400}, {0: 201}], "ask for 601 samples of class 0, but the data have 600; lower counts"),
    ],
)
def test_counts_beyond_the_data_are_refused_with_the_numbers(counts, sentence):
    with pytest.raises(UserError, match=sentence):
        ClassCounts(counts).assign(LABELS, 10, 2, seed=0)
