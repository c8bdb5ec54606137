"""Convolutions by patches and a product: the numbers of plain layers, and where they are used."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from threads import Watching
from torch import nn

from dfl_lightning.engines.stacked.gpu.autotune import choose_recorded, choose_unfolded
from dfl_lightning.engines.stacked.layers import convolution
from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.convolution import unfolded
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork

SHAPES = {
    "plain": {"kernel_size": 3},
    "one by one": {"kernel_size": 1},
    "oblong": {"kernel_size": (2, 3), "stride": (1, 2), "padding": (2, 1)},
    "strided": {"kernel_size": 3, "stride": 2, "padding": 1},
    "dilated": {"kernel_size": 3, "dilation": (2, 1), "padding": 2},
    "same": {"kernel_size": 4, "padding": "same", "dilation": (1, 2)},
    "valid": {"kernel_size": 2, "padding": "valid", "stride": 3},
    "without bias": {"kernel_size": 3, "bias": False},
    "strides that do not fit": {"kernel_size": (5, 2), "stride": (4, 3), "padding": (1, 0)},
    "a stride beyond the kernel": {"kernel_size": 1, "stride": (3, 2)},
    "more padding than kernel": {"kernel_size": 3, "padding": 4, "stride": (2, 1)},
    "as high as the image": {"kernel_size": (9, 8)},
}


def images(*shape, clients=3):
    return torch.randn(clients, 5, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # the plain layer's
@pytest.mark.parametrize("shape", SHAPES)
def test_an_unfolded_convolution_gives_the_numbers_of_plain_layers(compare, shape):
    compare(nn.Sequential(nn.Conv2d(2, 3, **SHAPES[shape])), images(2, 9, 8), unfold={"0"})


def small_network():
    return nn.Sequential(
        *(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 5, 2), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(45, 3)),
    )


@pytest.mark.parametrize(
    "unfold", [set(), {"0"}, {"3"}, {"0", "3"}], ids=lambda names: "+".join(sorted(names)) or "none"
)
def test_unfolded_and_grouped_layers_follow_each_other(compare, unfold):
    compare(small_network(), images(2, 8, 8), unfold=unfold)


def test_the_named_layers_are_unfolded_and_no_others(compare, monkeypatch):
    calls = Counter()
    monkeypatch.setattr(F, "unfold", lambda *args, real=F.unfold: calls.update(["unfold"]) or real(*args))
    compare(small_network(), images(2, 8, 8), unfold={"3"})
    assert calls["unfold"] == 1


# --- three channels ---------------------------------------------------------------------------------------------------
@pytest.fixture(params=["AVX2", "AVX512"])
def processor(request, monkeypatch):
    """Make torch report this processor capability."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param)
    return request.param


@pytest.fixture
def widened(monkeypatch):
    """Counts the images that are given a fourth channel."""
    calls = []
    real = convolution._with_a_fourth
    monkeypatch.setattr(convolution, "_with_a_fourth", lambda *args: calls.append(1) or real(*args))
    return calls


@pytest.mark.parametrize("shape", ["plain", "oblong", "dilated", "same", "without bias"])
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")  # the plain layer's
def test_colours_get_a_fourth_channel_where_that_is_faster(compare, processor, widened, shape):
    compare(nn.Sequential(nn.Conv2d(3, 6, **SHAPES[shape]), nn.Conv2d(6, 3, 1), nn.Conv2d(3, 2, 1)), images(3, 9, 8))
    assert len(widened) == (2 if processor == "AVX2" else 0)


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_other_numbers_of_channels_are_not_padded(compare, processor, widened, channels):
    compare(nn.Sequential(nn.Conv2d(channels, 6, 3)), images(channels, 9, 8))
    assert not widened


def test_a_single_client_and_an_evaluation_are_not_padded(compare, stack, processor, widened):
    network = nn.Sequential(nn.Conv2d(3, 6, 3))
    compare(network, images(3, 9, 8, clients=1))
    with torch.no_grad():
        stack.network(network)(Pass(stack.tensors(stack.clients(network)), False), images(3, 9, 8))
    assert not widened


def test_only_plain_two_dimensional_convolutions_are_candidates():
    network = nn.Sequential(
        nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1, groups=2), nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular")
    )
    assert StackedNetwork(network).can_be_unfolded() == ["0"]
    assert StackedNetwork(nn.Sequential(nn.Conv1d(2, 2, 1))).can_be_unfolded() == []


# --- the choice -------------------------------------------------------------------------------------------------------
def timer(network, costs):
    """A step's time where each unfolded layer adds its cost; counts the calls."""

    def seconds():
        seconds.calls += 1
        return 100.0 + sum(costs[name] for name in network.unfolded)

    seconds.calls = 0
    return seconds


def three_convolutions():
    return StackedNetwork(nn.Sequential(*(nn.Conv2d(2, 2, 1) for _ in range(3))))


def test_layers_are_unfolded_where_that_is_faster():
    network = three_convolutions()
    seconds = timer(network, {"0": -20.0, "1": 5.0, "2": -10.0})
    assert choose_unfolded(network, seconds) == network.unfolded == {"0", "2"}
    assert seconds.calls == 4  # as they are, and once for each layer


def test_a_difference_within_the_noise_changes_nothing():
    network = three_convolutions()
    assert choose_unfolded(network, timer(network, {"0": -1.0, "1": -2.0, "2": 0.0})) == frozenset()


def test_choosing_again_starts_without_unfolded_layers():
    network = three_convolutions()
    network.unfolded = frozenset({"1"})
    assert choose_unfolded(network, timer(network, dict.fromkeys("012", 50.0))) == frozenset()


@pytest.mark.parametrize(
    ("saved", "recorded", "unfolded"), [(0.0, False, {"0"}), (2.0, False, {"0"}), (30.0, True, {"2"})]
)
def test_recorded_and_plain_steps_each_have_their_own_convolutions(saved, recorded, unfolded):
    """A plain step takes 80 with layer 0 unfolded; a replay takes 80 less `saved` with layer 2 instead."""
    network = three_convolutions()
    plain = timer(network, {"0": -20.0, "1": 5.0, "2": 5.0})
    replay = timer(network, {"0": 5.0, "1": 5.0, "2": -20.0 - saved})
    assert choose_recorded(network, plain, replay) == recorded
    assert network.unfolded == unfolded


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")
@pytest.mark.parametrize("shape", SHAPES)
def test_unfolded_convolutions_agree_on_a_gpu(compare, shape):
    compare(nn.Sequential(nn.Conv2d(2, 3, **SHAPES[shape])), images(2, 9, 8), unfold={"0"}, device="cuda")


def test_the_rule_works_without_a_network():
    """The output has the clients side by side, as the next pooling wants them."""
    layer = nn.Conv2d(1, 2, 2)
    tensors = {"weight": torch.ones(3, 2, 1, 2, 2), "bias": torch.zeros(3, 2)}
    out = unfolded(layer, "", Pass(tensors, True), Activation(torch.ones(3, 1, 1, 3, 3), 3))
    assert out.leading().tolist() == torch.full((3, 1, 2, 2, 2), 4.0).tolist()
    assert out.tensor.is_contiguous(memory_format=torch.channels_last)
    assert out.side_by_side() is out.tensor


class Copies(Watching):
    """Record of how many numbers each operation copies unchanged, largest first."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::clone", "aten::copy_", "aten::_to_copy"):
            self.sizes.append(result.numel())
        return result


@pytest.mark.parametrize("shape", ["plain", "strided", "dilated"])
def test_patches_are_multiplied_where_they_lie(stack, shape):
    """A matrix of patches has many times the numbers of the images: forth and back, nothing of its size is copied."""
    network = nn.Sequential(nn.Conv2d(4, 3, **SHAPES[shape]))
    stacked = stack.network(network)
    stacked.unfolded = frozenset(stacked.can_be_unfolded())
    leaves = stack.tensors(stack.clients(network, 5))
    images = torch.zeros(5, 6, 4, 12, 12, dtype=torch.float64, requires_grad=True)
    with Copies() as copies:
        out = stacked(Pass(dict(leaves), True), images)
        torch.autograd.grad(out.sum(), [images, *leaves.values()])
    assert 2 * max(copies.sizes) < 5 * 6 * 4 * 9 * out.shape[-2] * out.shape[-1]
