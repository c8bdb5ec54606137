import pytest
import torch

from dfl_lightning.data import Source
from dfl_lightning.data.fingerprint import checksum_of
from dfl_lightning.utils.errors import UserError


def test_normalised_channels_have_mean_zero_and_deviation_one():
    images = torch.randint(0, 256, (5000, 3, 2, 2), dtype=torch.uint8)
    images[:, 1] //= 4
    scale, shift = Source("S", images, torch.zeros(5000, dtype=torch.int64), 1, scale=1 / 255).affine(normalise=True)
    x = images.double() * scale + shift
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3, dtype=torch.float64), atol=1e-10, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3), correction=0), torch.ones(3, dtype=torch.float64))


def test_a_constant_channel_is_not_divided_by_zero():
    scale, shift = Source("S", torch.full((4, 1, 2, 2), 7.0), torch.zeros(4, dtype=torch.int64), 1).affine(True)
    assert (7.0 * scale + shift).item() == 0


def test_inputs_without_channels_are_normalised_as_a_whole():
    inputs = torch.randn(100, 5) * 3 + 2
    scale, shift = Source("S", inputs, torch.zeros(100, dtype=torch.int64), 1).affine(True)
    assert scale.ndim == 0
    assert abs((inputs * scale + shift).mean().item()) < 1e-6


def test_the_fingerprint_knows_the_order_of_the_labels():
    images = torch.zeros(3, 1, 1, 1)
    sources = [Source("S", images, torch.tensor(labels), 3) for labels in ([0, 1, 2], [1, 0, 2], [0, 1, 1])]
    assert len({source.fingerprint["targets"] for source in sources}) == 3


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_outside_the_classes_are_refused_with_the_numbers(labels):
    with pytest.raises(UserError, match=r"labels reach from .* but there are 3 classes"):
        Source("S", torch.zeros(2, 1), torch.tensor(labels), 3)


@pytest.mark.parametrize("together", [True, False])
def test_adjacent_images_are_joined_without_a_copy(together):
    whole = torch.randint(0, 256, (7, 1, 2, 2), dtype=torch.uint8)
    images, tests = whole[:5], whole[5:] if together else whole[5:].clone()
    source = Source("S", images, torch.zeros(5).long(), 2, tests, torch.ones(2).long())
    everything, labels = source.everything()
    assert torch.equal(everything, whole)
    assert labels.tolist() == [0] * 5 + [1] * 2
    assert (everything.data_ptr() == whole.data_ptr()) == together


def test_slices_that_are_not_adjacent_are_copied():
    whole = torch.arange(10).view(10, 1)
    for images, tests in ((whole[5:], whole[:5]), (whole[:4], whole[5:]), (whole[::2], whole[1::2])):
        labels = [torch.zeros(len(part)).long() for part in (images, tests)]
        everything, _ = Source("S", images, labels[0], 2, tests, labels[1]).everything()
        assert torch.equal(everything, torch.cat([images, tests]))


@pytest.mark.parametrize(
    ("writers", "names", "sentence"),
    [
        ([0, 0, 0], ("a",), "3 writers for 2 samples; name the natural client of each"),
        ([0, 2], ("a", "b"), "writers reach from 0 to 2, but writer_names has 2; name every writer"),
        ([-1, 0], ("a",), "writers reach from -1 to 0"),
    ],
)
def test_writers_without_an_image_or_a_name_are_refused(writers, names, sentence):
    images, labels, own = torch.zeros(2, 1), torch.zeros(2).long(), torch.tensor(writers)
    with pytest.raises(UserError, match=sentence):
        Source("S", images, labels, 1, writers=own, writer_names=names)
    with pytest.raises(UserError, match=sentence):
        Source("S", images, labels, 1, images, labels, test_writers=own, writer_names=names)


def test_test_images_of_another_shape_are_refused():
    labels = torch.tensor([0])
    with pytest.raises(UserError, match="make both alike"):
        Source("S", torch.zeros(1, 1, 2, 2), labels, 1, torch.zeros(1, 1, 3, 3), labels)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_whole_numbers_of_any_type_are_classes(dtype):
    source = Source("Mine", torch.zeros(3, 2), torch.tensor([0, 1, 2], dtype=dtype), 3)
    assert source.labels.dtype == torch.int64
    assert source.labels.tolist() == [0, 1, 2]


@pytest.mark.parametrize("labels", [torch.tensor([0.0, 1.0, 1.9]), torch.tensor([True, False, True])])
def test_labels_that_are_not_integers_are_refused(labels):
    with pytest.raises(UserError, match=r"^data Mine: labels are torch\.(float32|bool); give the numbers of classes"):
        Source("Mine", torch.zeros(3, 2), labels, 3)


def test_each_image_has_one_label():
    with pytest.raises(UserError, match=r"labels of shape \(2,\) for 3 samples"):
        Source("Mine", torch.zeros(3, 2), torch.tensor([0, 1]), 3)
    with pytest.raises(UserError, match=r"labels of shape \(3, 1, 1\) for 3 samples"):
        Source("Mine", torch.zeros(3, 2), torch.zeros(3, 1, 1, dtype=torch.int64), 3)


def test_a_column_of_classes_of_images_is_one_label_each():
    labels = torch.tensor([[0], [2], [1]])
    source = Source("Mine", torch.zeros(3, 1, 2, 2), labels, 3, torch.zeros(3, 1, 2, 2), labels.int())
    assert source.labels.tolist() == source.test_labels.tolist() == [0, 2, 1]
    assert Source("Lines", torch.zeros(3, 1), labels, 3).labels.shape == (3, 1)
    with pytest.raises(UserError, match=r"labels of shape \(3, 2\) for 3 samples; give one for each"):
        Source("Mine", torch.zeros(3, 1, 2, 2), torch.zeros(3, 2, dtype=torch.int64), 3)


@pytest.mark.parametrize("numbers", [[1e200] * 4, [0, 1e308, 1e308, 1e308], [0, 1e160, 0, -1e160]])
def test_an_overflowing_deviation_gives_a_nan_scale(numbers):
    images = torch.tensor(numbers, dtype=torch.float64)[:, None]
    scale, _ = Source("S", images, torch.zeros(4, dtype=torch.int64), 1).affine(normalise=True)
    assert scale.isnan()


def test_a_constant_image_keeps_its_scale():
    scale, shift = Source("S", torch.full((4, 2), 3.0), torch.zeros(4, dtype=torch.int64), 1).affine(normalise=True)
    assert (float(scale), float(shift)) == (1, -3)


SOURCE = {
    "images": torch.arange(12.0).reshape(4, 3),
    "labels": torch.tensor([0, 1, 2, 0]),
    "test_images": torch.ones(2, 3),
    "test_labels": torch.tensor([1, 2]),
    "writers": torch.tensor([0, 0, 1, 1]),
    "writer_names": ("ann", "bob"),
    "categories": (3,),
    "words": ("red", "blue"),
}
CHANGED = {
    "images": ("inputs", SOURCE["images"] * torch.tensor([1.0, 2.0, 1.0])),
    "test_images": ("inputs", SOURCE["test_images"] * torch.tensor([1.0, 1.0, -1.0])),
    "labels": ("targets", SOURCE["labels"].flip(0).roll(1)),
    "test_labels": ("targets", SOURCE["test_labels"].flip(0)),
    "writers": ("names", 1 - SOURCE["writers"]),
    "writer_names": ("names", ("bob", "ann")),
    "categories": ("names", (4,)),
    "words": ("names", ("rot", "blue")),
}


@pytest.mark.parametrize("field", CHANGED)
def test_the_fingerprint_covers_every_part_of_the_data(field):
    what, other = CHANGED[field]
    before = Source("S", num_classes=3, **SOURCE).fingerprint
    after = Source("S", num_classes=3, **{**SOURCE, field: other}).fingerprint
    assert {key for key in before if before[key] != after[key]} == {what}


def test_a_checksum_does_not_depend_on_the_layout_in_memory(monkeypatch):
    values = torch.arange(600.0).reshape(20, 30)
    monkeypatch.setattr("dfl_lightning.data.fingerprint._BYTES", 500)  # several blocks
    assert checksum_of([values]) == checksum_of([values.T.contiguous().T])
    assert checksum_of([values]) != checksum_of([values.flip(0)])
    assert checksum_of([values]) != checksum_of([values.reshape(30, 20)])
