import numpy as np
import pytest

from dfl_lightning.data.partitions import GivenParts
from dfl_lightning.utils.errors import UserError

LABELS = np.zeros(6, dtype=int)


def test_each_client_has_what_its_list_says():
    parts = GivenParts([[5, 0], [1], [2, 3]]).assign(LABELS, 1, 3, seed=0).train
    assert [part.tolist() for part in parts] == [[0, 5], [1], [2, 3]]


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ([[0], [6]], "client 1 lists sample 6, but the data set has 6 samples"),
        ([[0], [-1]], "client 1 lists sample -1"),
        ([[0], [1, 2, 1]], "client 1 lists sample 1 twice"),
        ([[0, 3], [1], [3]], "sample 3 is listed by client 0 and by client 2"),
    ],
)
def test_wrong_lists_are_refused_naming_client_and_image(parts, sentence):
    with pytest.raises(UserError, match=sentence):
        GivenParts(parts).assign(LABELS, 1, len(parts), seed=0)
