import numpy as np
import pytest
import torch
from torchvision.transforms import InterpolationMode
from torchvision.transforms import functional as vision

from dfl_lightning.data import Digits, RotatedClusters, Source, SwappedLabelClusters
from dfl_lightning.data.materialise import materialise, rotate
from dfl_lightning.data.splits.split import Split
from dfl_lightning.utils.errors import UserError


def source_indices(data, split):
    """Return the positions of a part's images in the source, whose last ones are the official test set."""
    lists = getattr(data.client_split, split)
    return [torch.from_numpy(part) for part in lists]


def test_clients_of_a_rotated_cluster_see_the_raw_images_turned():
    data = Digits(num_clients=8, partition=RotatedClusters([0, 90, 180, 270]), val_fraction=0.2)
    data.setup()
    raw = data.source.images
    for split in ("train", "val", "test"):
        for client, indices in enumerate(source_indices(data, split)):
            seen = data.clients.images[getattr(data.clients, split)[client]]
            by_numpy = np.rot90(raw[indices].numpy(), client // 2, axes=(2, 3))
            np.testing.assert_array_equal(seen.numpy(), by_numpy)
            assert torch.equal(data.clients.labels[getattr(data.clients, split)[client]], data.source.labels[indices])


def test_clients_of_a_swapped_cluster_see_the_raw_images_renamed():
    data = Digits(num_clients=6, partition=SwappedLabelClusters([[], [[0, 1], [5, 6, 7]]]))
    data.setup()
    names = {0: 1, 1: 0, 5: 6, 6: 7, 7: 5}
    for client, indices in enumerate(source_indices(data, "train")):
        labels = data.clients.labels[data.clients.train[client]].tolist()
        raw = data.source.labels[indices].tolist()
        assert labels == (raw if client < 3 else [names.get(label, label) for label in raw])
        assert torch.equal(data.clients.images[data.clients.train[client]], data.source.images[indices])


def test_without_transformations_nothing_is_copied():
    data = Digits(partition=RotatedClusters([0, 360]))
    data.setup()
    assert data.clients.images.data_ptr() == data.source.images.data_ptr()
    assert data.clients.labels.data_ptr() == data.source.labels.data_ptr()


def test_each_distinct_image_and_transformation_is_kept_once(toy):
    data = toy(num_clients=4, partition=RotatedClusters([0, 180]))
    data.setup()
    # 40 training images belong to one client each, each cluster tests on all 30; the global test set is cluster 0's.
    assert len(data.clients.images) == 40 + 2 * 30


def test_the_global_test_set_is_the_official_one_untransformed(toy):
    data = toy(num_clients=4, partition=RotatedClusters([90, 180]))
    data.setup()
    assert torch.equal(data.clients.images[data.clients.global_test], data.source.test_images)
    assert torch.equal(data.clients.labels[data.clients.global_test], data.source.test_labels)


def test_without_official_tests_the_global_set_joins_the_clients():
    data = Digits(num_clients=8, partition=RotatedClusters())
    data.setup()
    union = torch.cat(list(data.clients.test)).sort().values
    assert torch.equal(data.clients.global_test, union)


def test_other_angles_are_torchvisions_bilinear_rotation():
    images = torch.randint(0, 256, (5, 1, 9, 9), dtype=torch.uint8)
    expected = torch.stack([vision.rotate(image, 30.0, InterpolationMode.BILINEAR) for image in images])
    assert torch.equal(rotate(images, 30.0), expected)
    assert torch.equal(rotate(images, -90), torch.rot90(images, -1, dims=(-2, -1)))


@pytest.mark.parametrize(
    ("shape", "angle", "sentence"),
    [
        ((4, 5), 180.0, "only images"),
        ((4, 1, 2, 3), 90.0, "2 x 3 pixels change their shape when rotated by 90 degrees"),
    ],
)
def test_inputs_that_cannot_be_rotated_are_refused(shape, angle, sentence):
    source = Source("S", torch.zeros(shape), torch.zeros(4, dtype=torch.int64), 1)
    nothing = np.empty(0, dtype=np.int64)
    split = Split([np.arange(4)], [nothing], [nothing], test_official=False, rotation=np.array([angle]))
    with pytest.raises(UserError, match=sentence):
        materialise(source, split)
