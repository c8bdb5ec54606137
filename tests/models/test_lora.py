"""Adapters: their numbers, what is trained, what is refused, and both engines."""

import copy
import functools

import numpy as np
import pytest
import torch
from banks import make_federation, own
from torch import nn

from dfl_lightning import UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.bank.references import References
from dfl_lightning.models import MLP, CharTransformer, LoRA
from dfl_lightning.utils.code.adapters import adapters_of


def plain():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_an_adapter_adds_its_product_to_the_layer():
    network = LoRA(plain(), rank=2, alpha=3.0, targets=["network.*"])
    before = network(torch.ones(4, 6))
    torch.testing.assert_close(before, plain()(torch.ones(4, 6)), rtol=0, atol=0)  # B begins at 0
    state = {name: p.detach().double().numpy() for name, p in network.named_parameters()}
    rng = np.random.default_rng(1)
    for name, value in state.items():
        if name.endswith("lora_B"):
            state[name] = rng.normal(size=value.shape)
            network.get_parameter(name).data = torch.from_numpy(state[name]).float()
    x = rng.normal(size=(4, 6))
    hidden = x
    for layer, function in (("network.0", np.tanh), ("network.2", lambda values: values)):
        weight, bias, a, b = (state[f"{layer}.{leaf}"] for leaf in ("weight", "bias", "lora_A", "lora_B"))
        hidden = function(hidden @ (weight + 3.0 / 2 * b @ a).T + bias)
    inputs = np.float32(x)
    np.testing.assert_allclose(network(torch.from_numpy(inputs)).detach().numpy(), hidden, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("factors", "names"), [("both", ["lora_A", "lora_B"]), ("A", ["lora_A"]), ("B", ["lora_B"])])
def test_only_factors_and_what_is_named_are_trained(factors, names):
    network = LoRA(MLP(hidden=[7, 5]), rank=2, targets=["features.*"], trained=["head.bias"], factors=factors)
    network.draw((1, 4, 4), 3, seed=5)
    trained = [name for name, p in network.named_parameters() if p.requires_grad]
    assert trained == [*(f"features.fc{n}.{leaf}" for n in (1, 2) for leaf in names), "head.bias"]
    assert list(adapters_of(network)) == ["features.fc1", "features.fc2"]


def test_fresh_adapters_leave_a_shipped_networks_values():
    """The seed draws the network first, and then the adapters; another seed draws all of it again."""
    network = LoRA(MLP(hidden=[7]), rank=2, targets=["features.fc1"])
    network.draw((1, 4, 4), 3, seed=5)
    first, alone = network.state_dict(), MLP(hidden=[7]).draw((1, 4, 4), 3, seed=5).state_dict()
    assert all(torch.equal(first[name], value) for name, value in alone.items())
    network.draw((1, 4, 4), 3, seed=6)
    again = network.state_dict()
    assert again.keys() == first.keys() == {*alone, "features.fc1.lora_A", "features.fc1.lora_B"}
    assert not torch.equal(again["features.fc1.lora_A"], first["features.fc1.lora_A"])
    with torch.no_grad():
        network.head.bias += 1  # as a user who sets parameters
    network.draw((1, 4, 4), 3, seed=6)
    assert torch.equal(network.head.bias, again["head.bias"] + 0)


def test_the_base_may_come_from_a_file(small_run, tmp_path):
    state = MLP(hidden=[7]).draw((1, 8, 8), 10, seed=9).state_dict()
    torch.save(state, tmp_path / "base.pt")
    module = {
        "network": LoRA(MLP(hidden=[7]), rank=2, targets=["features.*"], trained=["head.bias"]),
        "init": str(tmp_path / "base.pt"),
        "init_skip": ["*lora_*"],
    }
    run = small_run(1, policies=[cb.Gossip(k=2), cb.Uniform()], module=module).fit()
    layout = run.module.federation.layout
    assert sorted(layout.base) == ["features.fc1.bias", "features.fc1.weight", "head.weight"]
    assert all(torch.equal(value, state[name]) for name, value in layout.base.items())


class Attends(nn.Module):
    """A network with torch's own attention, which reads the weight of its output layer."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(4, 2), nn.Linear(4, 3)


class Two(nn.Module):
    """A network with two inputs."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, y):
        return self.left(x) + self.right(y)


def test_networks_of_several_inputs_get_them_all():
    network = LoRA(Two(), rank=1, targets=["*.left"])
    x, y = torch.randn(2, 5, 3)
    assert torch.equal(network(x, y=y), network.network(x, y))
    assert torch.equal(copy.deepcopy(network)(x, y), network(x, y))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"targets": ["network.7"]}, r"targets 'network.7'; did you mean .* \(linear layers: network.0"),
        ({"targets": ["network.1"]}, "the layer 'network.1' is a Tanh; adapters are for linear layers"),
        ({"rank": 4}, r"rank=4 is above the size of the layer 'network.2' \(5 inputs, 3 outputs\); use 3 or less"),
        ({"rank": [2, 1, 2]}, r"rank=\[2, 1, 2\]; all clients have adapters of one rank"),
        ({"rank": 0}, "rank=0; it is a whole number of 1 or more"),
        ({"alpha": -1.0}, "alpha=-1.0; it is a number above 0"),
        ({"factors": "C"}, "factors=C; it is both, A or B"),
        ({"trained": ["head.*"]}, r"no parameter matches trained 'head.\*'"),
    ],
)
def test_mistakes_are_refused(options, sentence):
    with pytest.raises(UserError, match=sentence):
        LoRA(plain(), **{"rank": 2, "targets": ["network.*"], **options})


def test_layers_that_are_not_called_are_refused():
    with pytest.raises(UserError, match=r"'network.attention.out_proj' belongs to an nn.MultiheadAttention"):
        LoRA(Attends(), rank=2, targets=["*.out_proj"])
    with pytest.raises(UserError, match=r"base is <class .*MLP'>, not a torch.nn.Module; give the network"):
        LoRA(MLP)


# --- engines ----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("factors", ["both", "B"])
def test_adapters_are_trained_as_by_plain_torch(engine, naive, factors):
    network = LoRA(plain().double(), rank=2, alpha=3.0, targets=["network.*"], factors=factors)
    optimizer = functools.partial(torch.optim.SGD, lr=77.0, momentum=0.9, weight_decay=0.1)
    f = make_federation(network=network, optimizer=optimizer, engine=engine)
    assert (
        f.layout.width
        == sum(p.numel() for p in network.parameters() if p.requires_grad)
        == {"both": 2 * (6 + 5 + 5 + 3), "B": 2 * (5 + 3)}[factors]
    )
    f.engine.cohorts = [torch.arange(3)]
    f.engine.train(own(0, 1, 2), f.training(lr=0.1))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, weight_decay=0.1))


def test_a_transformer_with_adapters_is_stacked_as_in_the_loop(small_run):
    """The text of a few writers, two rounds: rows, and scores of an evaluation."""
    rows, losses = [], []
    for engine in ("loop", "stacked"):
        network = CharTransformer(width=8, depth=1, heads=2)
        network = LoRA(Lines(network), rank=2, targets=["*.query", "*.value"], trained=["*.head.*"])
        options = {"module": {"network": network}, "engine": engine, "precision": "64-true"}
        run = small_run(2, policies=[cb.Gossip(k=2), cb.Uniform()], **options)
        run.fit()
        rows.append(run.rows)
        evaluated = run.module.engine.evaluate(References.rows("models", torch.arange(6)), "val")
        losses.append(evaluated.losses)
    torch.testing.assert_close(*rows, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(*losses, rtol=1e-9, atol=1e-11)


class Lines(nn.Module):
    """Rows of an image as 8 words of 8 pixels, and the mean of their outputs as scores."""

    def __init__(self, body):
        super().__init__()
        torch.manual_seed(1)
        self.body = body.build((64,), 10)

    def forward(self, x):
        return self.body((x.flatten(1) * 9).long()).mean(1)
