"""ResNet-18; what it shares with the other networks is in test_networks.py."""

from __future__ import annotations

import operator
import re

import pytest
import torch
import torchvision
from torch import fx, nn

from dfl_lightning.models import ResNet18

every_norm = pytest.mark.parametrize("options", [{}, {"groups": 4}, {"norm": "batch"}], ids=str)


def build(shape: tuple[int, ...] = (3, 16, 16), classes: int = 7, **options: object) -> ResNet18:
    return ResNet18(input_shape=shape, num_classes=classes, **options)


def torchvisions(norm: str = "group", groups: int = 32) -> nn.Module:
    """Torchvision's ResNet-18 with the stem for small images."""
    norm_layer = nn.BatchNorm2d if norm == "batch" else lambda channels: nn.GroupNorm(groups, channels)
    network = torchvision.models.resnet18(num_classes=7, norm_layer=norm_layer)
    network.conv1, network.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
    return network


def their_name(name: str) -> str:
    name = name.removeprefix("features.").replace("head.", "fc.")
    name = name.replace("shortcut.conv", "downsample.0").replace("shortcut.norm", "downsample.1")
    return re.sub(r"norm(\d)", r"bn\1", name)


@every_norm
def test_resnet_is_torchvisions_with_another_stem(options):
    ours, theirs, x = build(**options), torchvisions(**options), torch.randn(4, 3, 16, 16)
    with torch.no_grad():
        for value in theirs.state_dict().values():
            if value.dim() == 1:  # scales, shifts and statistics that are not just ones and zeros
                value.uniform_(0.5, 0.6)
    state, names = theirs.state_dict(), {name: their_name(name) for name in ours.state_dict()}
    assert set(names.values()) == set(state)
    assert all(value.shape == state[names[name]].shape for name, value in ours.state_dict().items())
    ours.load_state_dict({name: state[theirs] for name, theirs in names.items()})
    for training in (False, True):
        torch.testing.assert_close(ours.train(training)(x), theirs.train(training)(x), atol=1e-6, rtol=1e-6)
    for name, value in ours.state_dict().items():  # once more: training moves the running statistics
        torch.testing.assert_close(value, theirs.state_dict()[names[name]], atol=1e-6, rtol=1e-6)


@every_norm
def test_a_tracer_sees_ordinary_layers_and_eight_additions(options):
    network = build(**options)
    nodes = fx.symbolic_trace(network).graph.nodes
    kinds = {type(network.get_submodule(node.target)) for node in nodes if node.op == "call_module"}
    norm = nn.BatchNorm2d if options.get("norm") == "batch" else nn.GroupNorm
    assert kinds == {nn.Conv2d, norm, nn.ReLU, nn.AdaptiveAvgPool2d, nn.Flatten, nn.Linear}
    assert [node.target for node in nodes if node.op == "call_function"] == [operator.add] * 8
    assert {node.op for node in nodes} == {"placeholder", "call_module", "call_function", "output"}


def test_the_number_of_groups_reaches_every_normalisation():
    for options, groups in ({"groups": 1}, 1), ({"groups": 64}, 64), ({}, 32):
        norms = [m for m in build(**options).modules() if isinstance(m, nn.GroupNorm)]
        assert [norm.num_groups for norm in norms] == [groups] * 20  # stem, 2 in each of 8 blocks, 3 shortcuts


def test_group_norm_scores_do_not_depend_on_the_batch():
    x = torch.randn(4, 3, 16, 16)
    group, batch = build(), build(norm="batch")
    torch.testing.assert_close(group(x)[:2], group(x[:2]), atol=1e-5, rtol=1e-5)
    assert (batch(x)[:2] - batch(x[:2])).abs().max() > 1e-3
    assert not list(group.buffers())
    assert len(list(batch.buffers())) == 60


def test_every_parameter_learns():
    network = build()
    nn.functional.cross_entropy(network(torch.randn(4, 3, 16, 16)), torch.arange(4)).backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in network.parameters())


@pytest.mark.parametrize("groups", [1, 32, 64])
@pytest.mark.parametrize("shape", [(1, 2, 2), (3, 2, 5), (1, 9, 7), (2, 40, 40)])
def test_images_from_2x2_on_are_accepted(shape, groups):
    logits = build(shape, groups=groups)(torch.rand(1, *shape))
    assert logits.shape == (1, 7)
    assert torch.isfinite(logits).all()
