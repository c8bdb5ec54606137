import pytest
import torch

from dfl_lightning.data import Source
from dfl_lightning.errors import UserError


def test_normalised_images_have_mean_zero_and_deviation_one_in_each_channel():
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
    prints = {
        Source("S", images, torch.tensor(labels), 3).fingerprint() for labels in ([0, 1, 2], [1, 0, 2], [0, 1, 1])
    }
    assert len(prints) == 3


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_that_are_no_class_are_refused_with_the_numbers(labels):
    with pytest.raises(UserError, match=r"labels reach from .* but there are 3 classes"):
        Source("S", torch.zeros(2, 1), torch.tensor(labels), 3)


def test_test_images_of_another_shape_are_refused():
    labels = torch.tensor([0])
    with pytest.raises(UserError, match="make both alike"):
        Source("S", torch.zeros(1, 1, 2, 2), labels, 1, torch.zeros(1, 1, 3, 3), labels)
