"""The memory of a step, against what real steps are seen to hold."""

import functools

import pytest
import torch
from torch import nn

from dfl_lightning.engines.stacked.cost import Cost
from dfl_lightning.engines.stacked.gpu import footprint as footprints
from dfl_lightning.engines.stacked.gpu.budget import LARGEST_TENSOR, SHARE, UNFOLDED_SHARE, Budget
from dfl_lightning.engines.stacked.gpu.footprint import Footprint, Live, footprint_of
from dfl_lightning.engines.stacked.layers import rules as layers
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.networks.traced import StackedNetwork
from dfl_lightning.models import CNN4, MLP, LeNet, ResNet18

SHAPE = (3, 32, 32)
NETWORKS = {
    "perceptron": functools.partial(MLP, hidden=[20, 30], input_shape=SHAPE, num_classes=10),
    "lenet": functools.partial(LeNet, input_shape=SHAPE, num_classes=10),
    "cnn4": functools.partial(CNN4, input_shape=SHAPE, num_classes=10),
}


def found(federation, make_data, network, batch_size=4, **options):
    """The footprint of an engine's clients, in float32."""
    engine = federation(
        network=network, data=make_data((6, 4), SHAPE), dtype=torch.float32, batch_size=batch_size, **options
    ).engine
    return footprint_of(network, engine.cost, torch.zeros(2, *SHAPE), engine.config)


def held(network, clients, batch_size, unfolded=frozenset()):
    """Bytes at the highest point of a real pass of k clients, and numbers in the largest tensor."""
    stacked = StackedNetwork(network)
    stacked.unfolded = frozenset(unfolded)
    with Live() as live, torch.enable_grad():
        inputs = torch.zeros(clients, batch_size, *SHAPE)
        tensors = {name: torch.zeros(clients, *p.shape).requires_grad_() for name, p in network.named_parameters()}
        scores = stacked(Pass(dict(tensors), True, None), inputs)
        losses = nn.functional.cross_entropy(scores.flatten(0, 1), torch.zeros(clients * batch_size, dtype=torch.long))
        torch.autograd.grad(losses, list(tensors.values()))
    return live.peak, live.largest


@pytest.mark.parametrize("name", NETWORKS)
def test_a_prediction_is_what_a_real_step_holds(federation, make_data, name):
    network, clients = NETWORKS[name](), 3
    predicted = found(federation, make_data, network)
    peak, largest = held(network, clients, 4)
    assert clients * predicted.step == pytest.approx(peak, rel=0.05)
    assert clients * predicted.longest() == largest


def test_group_norms_on_a_device_need_the_predicted_memory(federation, make_data, monkeypatch):
    """There they are computed otherwise."""
    blocks = [[nn.Conv2d(a, 8, 3), nn.GroupNorm(4, 8), nn.ReLU()] for a in (3, 8)]
    network = nn.Sequential(*blocks[0], *blocks[1], nn.Flatten(), nn.Linear(8 * 28 * 28, 10))
    predicted = found(federation, make_data, network)
    monkeypatch.setattr(layers, "keeps_layout", lambda x: x.dim() == 4)
    peak, largest = held(network, 3, 4)
    assert 3 * predicted.step == pytest.approx(peak, rel=0.05)
    assert 3 * predicted.longest() == largest


def test_live_memory_is_counted_while_it_is_held():
    with Live() as live:
        first = torch.zeros(10)
        view = first[2:]
        second = first + 1
        assert live.now == 2 * 40
        del first
        assert live.now == 2 * 40  # the view holds it
        del view
        assert live.now == 40
        del second
    assert (live.now, live.peak, live.largest) == (0, 80, 10)


@pytest.mark.parametrize("name", ["lenet", "cnn4"])
def test_patches_are_counted_by_hand_and_bound_what_unfolding_holds(federation, make_data, name):
    network = NETWORKS[name]()
    predicted = found(federation, make_data, network)
    layers = {key: layer for key, layer in network.named_modules() if isinstance(layer, nn.Conv2d)}
    assert predicted.patches.keys() == layers.keys()
    if name == "lenet":
        rows = [4 * 32 + 4, 4 * 14 + 4]  # images above one another, and four rows of zeros more than patches need
        assert list(predicted.patches.values()) == [3 * 25 * rows[0] * 28, 6 * 25 * rows[1] * 10]
    everything = frozenset(layers)
    peak, largest = held(network, 3, 4, everything)
    assert peak <= 3 * predicted.bytes(everything) <= 2 * peak
    assert 3 * predicted.longest(everything) == largest
    assert predicted.bytes() == predicted.step + predicted.rest


def test_optimizer_states_count_as_memory_outside_a_step(federation, make_data):
    network = NETWORKS["lenet"]()
    momentum = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    plain, heavy = (found(federation, make_data, network, optimizer=o) for o in (None, momentum))
    assert plain.rest == 4 * 62006
    assert heavy.rest == plain.rest + 4 * 62006


def test_a_large_network_is_predicted_without_computing(federation, make_data):
    """Nothing of this size fits a test: 65 GB of activations for a hundred clients."""
    network = ResNet18(input_shape=SHAPE, num_classes=10)
    cost = Cost(activations=1, operations=1, calls=1, columns=1, states=0, batch_size=128, itemsize=4)
    config = Config(128)
    predicted = footprint_of(network, cost, torch.zeros(2, *SHAPE), config)
    assert 60e9 < 100 * predicted.step < 75e9


class Config:
    """The fields of an engine's config that a footprint reads."""

    loss, dtype, reduced, base = nn.CrossEntropyLoss(), torch.float32, None, {}

    def __init__(self, batch_size):
        self.largest_batch = batch_size

    def arithmetic(self, device):
        return torch.autocast(device.type, enabled=False)


def test_a_network_that_needs_numbers_is_estimated_and_says_so(federation, make_data, monkeypatch):
    def no_numbers(*_):
        raise RuntimeError("no numbers here")

    monkeypatch.setattr(footprints, "_fake_step", no_numbers)
    network = NETWORKS["lenet"]()
    predicted = found(federation, make_data, network)
    assert predicted.note == "estimated from activations: no numbers here"
    assert predicted.step >= held(network, 1, 4)[0] / 2
    assert "estimated" in Budget(predicted, None).describe(frozenset(), 1)


# --- the budget -------------------------------------------------------------------------------------------------------
def test_a_cohort_fits_its_share_of_the_free_memory():
    footprint = Footprint(step=900, rest=100, largest=10, patches={"0": 100})
    assert footprint.bytes(frozenset({"0"})) == 1000 + 4 * 4 * 25 * 3
    for room in (10_000, 12_499, 12_500):
        assert Budget(footprint, room).widest == int(SHARE * room // 1000)
    assert Budget(footprint, 10).widest == 1
    assert Budget(footprint, 10_000).allows(frozenset(), int(UNFOLDED_SHARE * 10))
    assert Budget(footprint, 10_000).allows(frozenset({"0"}), 2)
    assert not Budget(footprint, 10_000).allows(frozenset({"0"}), 3)


def test_no_tensor_has_more_numbers_than_kernels_can_count():
    """A batch of 128 images of 64 channels, 32 x 32, and its patches, as a convolution of CNN4 has them."""
    batch, patches = 128 * 64 * 32 * 32, 32 * 25 * 32 * 32
    footprint = Footprint(step=1, rest=0, largest=batch, patches={"0": 128 * patches})
    budget = Budget(footprint, None)
    assert budget.widest == LARGEST_TENSOR // batch == 255
    assert 256 * batch == 2**31
    widest = LARGEST_TENSOR // (128 * patches)
    assert budget.allows(frozenset({"0"}), widest)
    assert not budget.allows(frozenset({"0"}), widest + 1)
    assert Budget(Footprint(step=1, rest=0, largest=2**31), None).widest == 1


def test_masked_batch_norms_with_plain_averages_are_predicted(federation, make_data):
    """Only a GPU's engine uses these layers, which allocate tensors of their own on the device."""
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=None), nn.Flatten(), nn.Linear(3600, 10))
    config = Config(16)
    cost = Cost(activations=1, operations=1, calls=1, columns=1, states=0, batch_size=16, itemsize=4)
    predicted = footprint_of(network.to("meta"), cost, torch.zeros(2, *SHAPE, device="meta"), config)
    assert not predicted.note
    assert 2 * 16 * 3600 * 4 < predicted.step < 10 * 16 * 3600 * 4 + 3 * 40_000 * 4
