from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from dfl_lightning.models import (
    CNN4,
    FEMNISTCNN,
    MLP,
    MNISTCNN,
    PENSCNN,
    TCN,
    CharLSTM,
    CharTransformer,
    LeNet,
    Network,
    ResNet18,
    Tabular,
)
from dfl_lightning.models.init import fresh_parameters
from dfl_lightning.utils.errors import UserError

NETWORKS: list[tuple[type[Network], tuple[int, ...]]] = [
    (MLP, (1, 28, 28)),
    (LeNet, (3, 32, 32)),
    (LeNet, (1, 28, 28)),
    (MNISTCNN, (1, 28, 28)),
    (MNISTCNN, (3, 32, 24)),
    (CNN4, (3, 32, 32)),
    (CNN4, (1, 28, 28)),
    (PENSCNN, (3, 32, 32)),
    (PENSCNN, (1, 28, 24)),
    (FEMNISTCNN, (1, 28, 28)),
    (FEMNISTCNN, (3, 16, 20)),
    (ResNet18, (3, 16, 12)),
    (ResNet18, (1, 8, 8)),
    (TCN, (2, 20)),
    (TCN, (20,)),
    (CharTransformer, (6,)),
    (CharLSTM, (6,)),
    (Tabular, (6,)),
]
every_network = pytest.mark.parametrize(("network", "shape"), NETWORKS)


def count(network: nn.Module) -> int:
    return sum(parameter.numel() for parameter in network.parameters())


@pytest.mark.parametrize(
    ("network", "shape", "classes", "parameters"),
    [
        (MLP(), (1, 28, 28), 10, 199_210),
        (MLP(hidden=[64]), (64,), 10, 4_810),
        (MLP(hidden=[]), (64,), 10, 650),
        (LeNet(), (3, 32, 32), 10, 62_006),
        (LeNet(), (1, 28, 28), 10, 44_426),
        (MNISTCNN(), (1, 28, 28), 10, 21_840),
        (CNN4(), (3, 32, 32), 10, 2_156_490),
        (PENSCNN(), (3, 32, 32), 10, 73_418),
        (FEMNISTCNN(), (1, 28, 28), 10, 37_586),
        (FEMNISTCNN(), (1, 28, 28), 62, 42_838),
        (ResNet18(), (3, 32, 32), 10, 11_173_962),
        (ResNet18(), (3, 32, 32), 100, 11_220_132),
        (ResNet18(norm="batch"), (3, 32, 32), 100, 11_220_132),
    ],
)
def test_each_network_has_the_parameters_of_its_paper(network, shape, classes, parameters):
    assert count(network.build(shape, classes)) == parameters


@every_network
def test_logits_have_one_column_a_class(network, shape):
    assert network(input_shape=shape, num_classes=7)(torch.rand(5, *shape)).shape in ((5, 7), (5, *shape, 7))


@every_network
def test_building_later_draws_the_same_parameters_as_building_at_once(network, shape):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        at_once = network(input_shape=shape, num_classes=4)
        torch.manual_seed(3)
        later = network().build(shape, 4)
    assert at_once.state_dict().keys() == later.state_dict().keys()
    assert all(torch.equal(value, later.state_dict()[name]) for name, value in at_once.state_dict().items())


def by_hand(name: str, w: dict[str, Tensor], x: Tensor) -> Tensor:
    """The networks as their papers' code writes them, without dropout layers."""

    def fc(x: Tensor, layer: str) -> Tensor:
        return F.linear(x, w[f"{layer}.weight"], w[f"{layer}.bias"])

    def conv(x: Tensor, layer: str, padding: int = 0) -> Tensor:
        return F.conv2d(x, w[f"{layer}.weight"], w[f"{layer}.bias"], padding=padding)

    padding = 2 if name == "CNN4" else 0
    for number in range({"MLP": 0, "PENSCNN": 3}.get(name, 2)):
        x = F.max_pool2d(F.relu(conv(x, f"features.conv{number + 1}", padding)), 2)
    x = F.relu(fc(x.flatten(1), "features.fc1"))
    if "features.fc2.weight" in w:
        x = F.relu(fc(x, "features.fc2"))
    return fc(x, "head")


@pytest.mark.parametrize(
    ("network", "shape"),
    [case for case in NETWORKS if case[0] not in (ResNet18, TCN, CharLSTM, CharTransformer, Tabular)],
)
def test_networks_agree_with_layers_applied_by_hand(network, shape):
    built, x = network(input_shape=shape, num_classes=4).eval(), torch.randn(3, *shape)
    assert torch.allclose(built(x), by_hand(network.__name__, built.state_dict(), x), atol=1e-6)


@pytest.mark.parametrize("training", [False, True])
@every_network
def test_networks_can_be_traced_and_the_trace_computes_the_same(network, shape, training):
    built = network(input_shape=shape, num_classes=4).train(training)
    traced, x = fx.symbolic_trace(built), torch.rand(2, *shape)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)  # of the dropout layers
        expected = built(x)
        torch.manual_seed(1)
        assert torch.equal(traced(x), expected)


@every_network
def test_a_copy_computes_the_same_and_shares_nothing(network, shape):
    built, x = network(input_shape=shape, num_classes=4).eval(), torch.rand(2, *shape)
    expected = built(x)
    twin = copy.deepcopy(built)
    assert torch.equal(twin(x), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    assert torch.equal(built(x), expected)


@every_network
def test_every_layer_can_be_drawn_anew(network, shape):
    built = network(input_shape=shape, num_classes=4)
    first, again, second = (dict(fresh_parameters(built, 0, node).named_parameters()) for node in (0, 0, 1))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    assert not any(torch.equal(value, second[name]) for name, value in first.items() if "norm" not in name)


@every_network
def test_modules_are_named_in_the_order_of_the_forward_pass(network, shape):
    built = network(input_shape=shape, num_classes=4)
    called: list[str] = []
    for name, module in built.named_modules():
        if not list(module.children()):
            module.register_forward_hook(lambda *_, name=name: called.append(name))
    built(torch.rand(1, *shape))
    assert called == [name for name, module in built.named_modules() if not list(module.children())]
    assert called[-1] == "head"
    assert all(name.startswith("features.") for name in called[:-1])


@every_network
def test_a_new_network_is_in_training_mode_throughout(network, shape):
    assert all(module.training for module in network(input_shape=shape, num_classes=4).modules())


def test_the_recurrent_network_agrees_with_gates_computed_by_hand():
    built = CharLSTM(3, 4, depth=2, padding_idx=1, input_shape=(5,), num_classes=6).double().eval()
    w = {name: value.numpy() for name, value in built.state_dict().items()}
    x = torch.tensor([[0, 3, 2, 1, 5], [2, 2, 0, 3, 4]])
    y = w["features.embedding.characters.weight"][x.numpy()]
    assert not y[0, 3].any()
    for number in (0, 1):
        of_inputs, of_hidden, bias, other = (
            w[f"features.recurrent.layers.{kind}_l{number}"]
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        )
        hidden, cells, outputs = np.zeros((2, 4)), np.zeros((2, 4)), []
        for step in range(5):
            gates = y[:, step] @ of_inputs.T + bias + hidden @ of_hidden.T + other
            enter, forget, new, leave = np.split(gates, 4, 1)
            cells = cells / (1 + np.exp(-forget)) + np.tanh(new) / (1 + np.exp(-enter))
            hidden = np.tanh(cells) / (1 + np.exp(-leave))
            outputs.append(hidden)
        y = np.stack(outputs, 1)
    expected = y @ w["head.weight"].T + w["head.bias"]
    np.testing.assert_allclose(built(x).detach().numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_transformer_is_causal_and_agrees_with_torchs():
    built = CharTransformer(width=8, heads=2, padding_idx=1, input_shape=(5,), num_classes=4).double().eval()
    w, x = built.state_dict(), torch.tensor([[0, 3, 2, 1, 2], [2, 2, 0, 3, 0]])
    y = w["features.embedding.characters.weight"][x] + w["features.embedding.places.weight"]
    for number in (1, 2):
        plain = nn.TransformerEncoderLayer(8, 2, 32, 0.0, "gelu", batch_first=True, norm_first=True).double().eval()
        inside = {
            "self_attn.out_proj": "out",
            "linear1": "wide",
            "linear2": "narrow",
            "norm1": "norm1",
            "norm2": "norm2",
        }
        own = {name.removeprefix(f"features.block{number}."): value for name, value in w.items()}
        state = {
            f"{theirs}.{kind}": own[f"{ours}.{kind}"] for theirs, ours in inside.items() for kind in ("weight", "bias")
        }
        for kind in ("weight", "bias"):
            state[f"self_attn.in_proj_{kind}"] = torch.cat(
                [own[f"{part}.{kind}"] for part in ("query", "key", "value")]
            )
        plain.load_state_dict(state)
        y = plain(y, src_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64), is_causal=True)
    y = F.layer_norm(y, (8,), w["features.norm.weight"], w["features.norm.bias"])
    wanted = F.linear(y, w["head.weight"], w["head.bias"])
    assert torch.allclose(built(x), wanted, atol=1e-12)
    assert not w["features.embedding.characters.weight"][1].any()


def test_forecasts_agree_with_convolutions_computed_by_hand():
    built = TCN(channels=[2, 3], kernel_size=2, input_shape=(1, 6), num_classes=2).double().eval()
    w, x = built.state_dict(), torch.randn(3, 1, 6, dtype=torch.float64)

    def conv(x: Tensor, name: str, dilation: int) -> Tensor:
        weight, out = w[f"{name}.weight"], torch.zeros(len(x), len(w[f"{name}.bias"]), x.shape[2], dtype=torch.float64)
        for t in range(x.shape[2]):
            out[:, :, t] = w[f"{name}.bias"]
            for tap in range(weight.shape[2]):
                past = t - dilation * (weight.shape[2] - 1 - tap)
                if past >= 0:
                    out[:, :, t] += x[:, :, past] @ weight[:, :, tap].T
        return out

    y = x
    for number, dilation in ((1, 1), (2, 2)):
        block = f"features.block{number}"
        z = conv(conv(y, f"{block}.conv1", dilation).relu(), f"{block}.conv2", dilation).relu()
        y = conv(y, f"{block}.same", 1) + z
    assert torch.allclose(built(x), F.linear(y[:, :, -1], w["head.weight"], w["head.bias"]), atol=1e-12)


def test_dropout_layers_draw_from_the_seeded_generator_only():
    built, x = MNISTCNN(input_shape=(1, 28, 28), num_classes=10), torch.rand(4, 1, 28, 28)

    def under(seed: int) -> torch.Tensor:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return built(x)

    assert torch.equal(under(1), under(1))
    assert not torch.equal(under(1), under(2))


def test_the_dropout_probability_reaches_both_layers():
    built = MNISTCNN(dropout=0.25, input_shape=(1, 28, 28), num_classes=10)
    assert [m.p for m in built.modules() if isinstance(m, nn.Dropout | nn.Dropout2d)] == [0.25, 0.25]


def test_measuring_the_flattened_size_draws_nothing():
    # the parameters of layer k depend only on the layers made before it
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        built = MNISTCNN(input_shape=(1, 28, 28), num_classes=10)
        torch.manual_seed(0)
        plain = [nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5), nn.Linear(320, 50), nn.Linear(50, 10)]
    expected = [parameter for layer in plain for parameter in layer.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(built.parameters(), expected, strict=True))


def test_building_twice_for_the_same_numbers_keeps_the_layers():
    built = MLP(input_shape=(64,), num_classes=10)
    before = built.head.weight
    assert built.build([64], 10) is built
    assert built.head.weight is before


def test_building_for_other_numbers_is_refused_with_both():
    built = LeNet(input_shape=(3, 32, 32), num_classes=10)
    with pytest.raises(UserError, match=r"LeNet: built for inputs of shape 3x32x32 and 10 classes.* 1x28x28 and 62"):
        built.build((1, 28, 28), 62)


@pytest.mark.parametrize("network", [LeNet, MNISTCNN, CNN4, PENSCNN, FEMNISTCNN])
def test_documented_smallest_image_sizes_are_exact(network):
    side = network.smallest
    assert network(input_shape=(1, side, side), num_classes=2)(torch.rand(3, 1, side, side)).shape == (3, 2)
    with pytest.raises(
        UserError, match=rf"{network.__name__}: .* 1x{side}x{side}, but the data has 1x{side}x{side - 1};"
    ):
        network(input_shape=(1, side, side - 1), num_classes=2)
    with pytest.raises((RuntimeError, UserError)):  # the limit is not stricter than torch's
        nn.Sequential(network().convolutions(1))(torch.rand(1, 1, side, side - 1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda: CharTransformer(width=10, heads=4),
            "width=10, depth=2, heads=4; each must be 1 or more, and heads must divide",
        ),
        (lambda: CharTransformer().build((1, 8, 8), 10), "needs lines of characters.*has 1x8x8; choose another"),
        (lambda: CharLSTM(units=0), "CharLSTM: width=8, units=0, depth=2; each must be 1 or more"),
        (lambda: CharLSTM(cell="gru"), "CharLSTM: there is no cell='gru'; choose LSTM, GRU, RNN"),
        (lambda: CharLSTM(depth=1, dropout=0.1), "dropout=0.1 with depth=1; .* is between layers"),
        (lambda: CharLSTM().build((1, 8, 8), 10), "CharLSTM: needs lines of characters.*has 1x8x8; choose another"),
        (lambda: TCN(channels=[]), r"TCN: channels=\[\], kernel_size=3; give at least one block"),
        (lambda: TCN().build((1, 8, 8), 10), "TCN: needs windows .* has 1x8x8; choose another network"),
        (lambda: MLP()(torch.rand(1, 64)), r"MLP: not built yet; call build\(input_shape, num_classes\)"),
        (lambda: CNN4().build((64,), 10), "CNN4: needs images .* but the data has 64;"),
        (lambda: MLP(hidden=[10, 0]), r"hidden layers need widths of 1 or more, not \[10, 0\]"),
        (lambda: MNISTCNN(dropout=1.5), "dropout must be a probability from 0 to 1, not 1.5"),
        (lambda: MLP(input_shape=(64,)), "give both input_shape and num_classes, or neither"),
        (lambda: MLP().build((), 10), "make no network"),
        (lambda: MLP().build((64,), 0), "64 and 0 classes make no network"),
    ],
)
def test_impossible_options_are_refused(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
