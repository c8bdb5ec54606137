"""Dropout layers that draw from a named stream, and networks that draw from nowhere else."""

import pytest
import torch
from torch import nn

from dfl_lightning.engines.calling.adapted import Calling
from dfl_lightning.engines.calling.finding import find_calling
from dfl_lightning.engines.dropout_layers import keep_mask, mask_key, replace_dropout_layers
from dfl_lightning.utils.randomness.random_streams import stream_seed


def dropped(layer, x, seed=0):
    network = nn.Sequential(layer)
    source = replace_dropout_layers(network)
    source.begin(mask_key(seed))
    return network.train()(x)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_a_share_p_is_zeroed_and_the_others_are_scaled(p):
    y = dropped(nn.Dropout(p), torch.ones(100, 400))
    assert float((y == 0).double().mean()) == pytest.approx(p, abs=0.01)
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / (1 - p)))
    assert float(y.mean()) == pytest.approx(1, abs=0.03)


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Dropout1d, (60, 50, 7)), (nn.Dropout2d, (60, 50, 3, 2)), (nn.Dropout3d, (60, 50, 2, 2, 2))]
)
def test_whole_channels_are_zeroed(layer, shape):
    y = dropped(layer(0.3), torch.ones(shape)).flatten(2)
    assert torch.equal(y, y[:, :, :1].expand_as(y))
    assert float((y[:, :, 0] == 0).double().mean()) == pytest.approx(0.3, abs=0.03)
    rates = (y[:, :, 0] == 0).double()
    assert rates.mean(0).std() > 0  # not the same channels in every sample
    assert rates.mean(1).std() > 0


@pytest.mark.parametrize("layer", [nn.Dropout, nn.Dropout2d])
def test_evaluation_and_p_0_drop_nothing_p_1_everything(layer):
    x = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(0))
    network = nn.Sequential(layer(0.5))
    replace_dropout_layers(network)
    assert torch.equal(network.eval()(x), x)
    assert torch.equal(dropped(layer(0.0), x), x)
    assert torch.equal(dropped(layer(1.0), x), torch.zeros_like(x))


def test_masks_are_named_by_the_key_whatever_the_dtype():
    x = torch.ones(50, 8)
    assert torch.equal(dropped(nn.Dropout(), x, 1), dropped(nn.Dropout(), x, 1))
    assert not torch.equal(dropped(nn.Dropout(), x, 1), dropped(nn.Dropout(), x, 2))
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(torch.float64)
        in_double = dropped(nn.Dropout(), x.double(), 1)
    finally:
        torch.set_default_dtype(default)
    assert in_double.dtype == torch.float64
    assert torch.equal(in_double.float(), dropped(nn.Dropout(), x, 1))


def test_gradients_flow_through_what_is_kept():
    x = torch.ones(4, 5, requires_grad=True)
    y = dropped(nn.Dropout(0.5), x)
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def test_layers_are_replaced_wherever_they_stand():
    twice = nn.Dropout()
    network = nn.Sequential(twice, nn.Sequential(nn.Linear(3, 3), twice, nn.Dropout2d()), twice)
    network.register_module("absent", None)
    replace_dropout_layers(network)
    assert not any(isinstance(module, nn.Dropout | nn.Dropout2d) for module in network.modules())
    assert not find_calling(network[:1], torch.zeros(2, 3))[0].foreign


@pytest.mark.parametrize("kind", ["mlp", "batchnorm", "dropout"])
def test_ordinary_networks_draw_in_their_dropout_layers_only(make_network, kind):
    example = torch.zeros(2, *((6,) if kind == "mlp" else (1, 6, 6)))
    assert find_calling(make_network(kind), example)[0] == Calling()


def test_masks_are_unbiased_for_client_layer_and_position():
    keys = torch.stack([mask_key(stream_seed(0, "masks", client)) for client in range(16)])
    kept = torch.stack([keep_mask(keys, call, (4096,), 0.5) for call in range(8)]).double()  # [calls, clients, entries]
    spread = 0.5 / 4096**0.5
    assert (kept.mean(2) - 0.5).abs().max() < 5 * spread
    bits = (2 * kept - 1).flatten(0, 1)
    alike = bits @ bits.T / 4096  # of other clients, and of other layers of the same client
    assert (alike - torch.eye(len(bits))).abs().max() < 12 * spread
    for lag in (1, 2, 3, 16, 64, 1024):  # adjacent entries, and entries of other samples
        assert (bits[:, lag:] * bits[:, :-lag]).mean(1).abs().max() < 12 * spread


def test_no_mask_depends_on_padding_or_on_other_clients():
    keys = torch.stack([mask_key(seed) for seed in (5, 2**62 + 3, 2**63 - 1)])
    together = keep_mask(keys, 3, (6, 4), 0.3)
    for client, key in enumerate(keys):
        assert torch.equal(keep_mask(key.unsqueeze(0), 3, (2, 4), 0.3)[0], together[client, :2])
