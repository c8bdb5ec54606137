from types import SimpleNamespace

import pytest
import torch

from dfl_lightning.data import ClientData


@pytest.fixture
def data():
    images = torch.arange(5 * 4, dtype=torch.uint8).view(5, 1, 2, 2)
    return ClientData(
        images=images,
        labels=torch.tensor([0, 1, 2, 0, 1]),
        train=(torch.tensor([0, 2]), torch.tensor([4])),
        val=(torch.tensor([], dtype=torch.int64),) * 2,
        test=(torch.tensor([1]), torch.tensor([3])),
        global_test=None,
        clusters=torch.tensor([0, 1]),
        num_classes=3,
        scale=torch.tensor(1 / 255, dtype=torch.float64),
        shift=torch.tensor(0.5, dtype=torch.float64),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_batch_is_scaled_shifted_and_cast(data, dtype):
    x, y = data.batch(torch.tensor([4, 0]), dtype)
    expected = torch.stack([data.images[4], data.images[0]]).to(dtype) / 255 + 0.5
    assert x.dtype == dtype
    torch.testing.assert_close(x, expected, rtol=1e-6 if dtype == torch.float32 else 1e-15, atol=0)
    assert y.tolist() == [1, 0]


def test_indices_of_several_clients_give_a_batch_each(data):
    x, y = data.batch(torch.tensor([[0, 1, 2], [4, 3, 2]]))
    assert x.shape == (2, 3, 1, 2, 2)
    torch.testing.assert_close(x[1], data.batch(torch.tensor([4, 3, 2]))[0], rtol=0, atol=0)
    assert y.tolist() == [[0, 1, 2], [1, 0, 2]]


def test_augmentation_needs_draws_and_sees_images_before_scaling(data):
    data.augment = SimpleNamespace(apply=lambda batch, draws: batch * 0 + draws.view(-1, 1, 1, 1))
    indices, drawn = torch.tensor([0, 1]), torch.tensor([[7.0], [9.0]])
    torch.testing.assert_close(data.batch(indices)[0], data.images[:2].float() / 255 + 0.5)
    x, _ = data.batch(indices, draws=drawn)
    torch.testing.assert_close(x, (drawn / 255 + 0.5).view(2, 1, 1, 1).expand_as(x))
    x, _ = data.batch(indices.view(1, 2), draws=drawn.view(1, 2, 1))
    torch.testing.assert_close(x[0], (drawn / 255 + 0.5).view(2, 1, 1, 1).expand_as(x[0]))


def test_sizes_and_shapes_are_those_of_the_tensors(data):
    assert data.num_clients == 2
    assert data.input_shape == (1, 2, 2)
    assert data.sizes("train").tolist() == [2, 1]
    assert data.sizes("val").tolist() == [0, 0]
    assert data.sizes("test").tolist() == [1, 1]


def test_moving_to_the_same_device_copies_nothing(data):
    moved = data.to("cpu")
    assert moved.images.data_ptr() == data.images.data_ptr()
    x, y = data.batch(torch.tensor([3]))
    assert torch.equal(moved.batch(torch.tensor([3]))[0], x)
    assert moved.labels[3] == y
    moved = data.to("meta")
    assert (moved.images.device.type, moved.train[0].device.type) == ("meta", "cpu")
