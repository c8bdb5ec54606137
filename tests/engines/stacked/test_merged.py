"""Merged networks: networks that cannot be traced, against plain modules and the loop engine."""

import dataclasses
import functools

import pytest
import torch
from banks import make_federation, own
from threads import threads
from torch import nn
from torch.nn import functional as F

from dfl_lightning.engines.calling.adapted import Calling
from dfl_lightning.engines.calling.finding import find_calling
from dfl_lightning.engines.dropout_layers import mask_key, replace_dropout_layers
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.networks.merged import MergedNetwork

TOKENS, WIDTH, WORDS = 5, 4, 7


class Scale(nn.Module):
    """A norm without a rule."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, WIDTH))

    def forward(self, x):
        return self.weight * x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()


class Attention(nn.Module):
    """A transformer with a class token, shared positions and a branch that looks at the data."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(TOKENS + 1, WIDTH)
        self.start = nn.Parameter(torch.linspace(-1, 1, WIDTH).view(1, 1, WIDTH))
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.norm, self.scale, self.drop = nn.LayerNorm(WIDTH), Scale(), nn.Dropout(dropout)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens):
        tokens = tokens.long()
        if bool((tokens >= WORDS).any()):  # No tracer can follow this.
            raise ValueError("unknown word")
        x = torch.cat([self.start.expand(len(tokens), -1, -1), self.words(tokens)], 1)
        x = self.norm(x + self.places(torch.arange(x.shape[1]).unsqueeze(0)))
        x = x + self.drop(F.scaled_dot_product_attention(self.query(x), self.key(x), self.value(x)))
        return {"logits": self.head(self.scale(x)[:, 0])}


class Tied(nn.Module):
    """Predicts words by the matrix of their vectors."""

    def __init__(self):
        super().__init__()
        self.words, self.output = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        self.output.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens.long())
        return self.output(x.mean(1) if float(x.detach().sum()) < 1e9 else x)


def tokens(*shape, seed=0):
    return torch.randint(0, WORDS, shape, generator=torch.Generator().manual_seed(seed)).float()


def made(network, *args):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network(*args)


class Scores(nn.Module):
    """The logits of a network, as `adapted` returns them."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x):
        return self.network(x)["logits"]


@pytest.mark.parametrize("training", [True, False])
def test_merged_clients_equal_plain_modules(compare, training):
    network = Scores(made(Attention, 0.3)).double()
    replace_dropout_layers(network)
    inputs = torch.stack([tokens(4, TOKENS, seed=seed) for seed in range(3)])
    compare(MergedNetwork(network), inputs.long(), training)


def test_tied_parameters_are_one(compare):
    inputs = torch.stack([tokens(4, TOKENS, seed=seed) for seed in range(3)])
    compare(MergedNetwork(made(Tied).double()), inputs.long())


def test_common_parameters_are_taken_from_the_network():
    network = Scores(made(Attention)).double()
    common = [name for name, _ in network.named_parameters() if "head" not in name]
    stacked, inputs = MergedNetwork(network, common=common), tokens(2, 3, TOKENS).double()
    weight = torch.randn(2, 3, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bias = torch.zeros(2, 3, dtype=torch.float64)
    found = stacked(Pass({"network.head.weight": weight, "network.head.bias": bias}, False), inputs)
    for client in range(2):
        network.network.head.weight.data, network.network.head.bias.data = weight[client], bias[client]
        torch.testing.assert_close(found[client], network(inputs[client]), rtol=1e-12, atol=1e-12)


@pytest.fixture
def trained(make_data):
    """Train clients with 9, 4 and 6 sequences for two epochs; return the federation and its rows."""

    def train(network, engine, **options):
        calling, _ = find_calling(network, torch.zeros(2, TOKENS))
        data = make_data((9, 4, 6), (TOKENS,))
        one, zero = torch.tensor(1.0), torch.tensor(0.0)
        data = dataclasses.replace(data, images=tokens(*data.images.shape), scale=one, shift=zero)
        f = make_federation(network=network, engine=engine, calling=calling, data=data, **options)
        f.engine.train(own(*range(f.m)), f.training())
        return f, f.bank.rows("trained").clone()

    return train


class Unusual(nn.Module):
    """Has what no rule supports: a pooling that returns indices, and a hook of an activation."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(TOKENS, 6), nn.Linear(3, 3)
        self.pool = nn.MaxPool1d(2, return_indices=True)

    def forward(self, x):
        x = self.inner(x)
        if isinstance(x, torch.fx.Proxy) or x.requires_grad:
            x.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
        return self.head(self.pool(x.unsqueeze(1))[0].squeeze(1))


class Encoder(nn.Module):
    """Draws in a layer of torch that is computed as a whole, and after it."""

    def __init__(self):
        super().__init__()
        self.words, self.drop = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.4)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.3, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, tokens):
        x = self.layer(self.words(tokens.long()))
        return self.head(self.drop(x if float(x.detach().sum()) < 1e9 else -x).mean(1))


NETWORKS = {"attention": functools.partial(Attention, 0.3), "tied": Tied, "unusual": Unusual, "encoder": Encoder}


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_both_engines_train_the_same_models(trained, network):
    stacked, rows = trained(made(network), StackedEngine, dtype=torch.float64)
    _, expected = trained(made(network), LoopEngine, dtype=torch.float64)
    assert type(stacked.engine._context.network) is MergedNetwork
    torch.testing.assert_close(rows, expected, rtol=1e-10, atol=1e-10)


def test_rows_do_not_depend_on_the_number_of_threads(trained):
    rows = []
    for count in (1, 2, 4):
        with threads(count):
            rows.append(trained(made(Attention, 0.3), StackedEngine, cohorts=3)[1])
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])


def test_other_clients_change_no_bit_of_a_client():
    network = Scores(made(Attention)).train()
    stacked = MergedNetwork(network)
    state = {name: torch.stack([p.detach()] * 3) for name, p in network.named_parameters()}
    results = []
    for seed in (0, 1):
        inputs = torch.stack([tokens(4, TOKENS, seed=5), *(tokens(4, TOKENS, seed=seed + s) for s in (10, 20))])
        tensors = {name: t.clone().requires_grad_() for name, t in state.items()}
        masks = torch.stack([mask_key(client) for client in range(3)])
        outputs = stacked(Pass(dict(tensors), True, masks), inputs)
        gradients = torch.autograd.grad(outputs.square().sum(), tensors.values())
        results.append([outputs[0].detach(), *(g[0] for g in gradients)])
    assert all(map(torch.equal, *results))


class Container(nn.Module):
    """Uses a vector of its own next to a layer."""

    def __init__(self):
        super().__init__()
        self.head, self.shift = nn.Linear(TOKENS, 3), nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.head(x) + (self.shift if float(x.detach().sum()) >= 0 else 0)


class TimeFirst(nn.Module):
    """Puts time before the samples."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(1, 2), nn.Linear(2, 3)

    def forward(self, x):
        x = self.inner(x.t().unsqueeze(-1))
        return self.head(x.mean(0) if float(x.detach().sum()) < 1e9 else x[0])


class Mixing(nn.Module):
    """Subtracts the mean of the batch in training."""

    def __init__(self):
        super().__init__()
        self.inner, self.head = nn.Linear(TOKENS, 4), nn.Linear(4, 3)

    def forward(self, x):
        x = self.inner(x if float(x.detach().sum()) >= 0 else -x)
        return self.head(x - x.mean(0) if self.training else x)


@pytest.mark.parametrize(
    ("network", "reason"),
    [
        (Container, r"'shift' is used by a module of several layers, and is not \[1, ...\]"),
        (TimeFirst, r"its forward pass fails .*layer 'inner' has an input of shape \[5, 8, 1\]"),
        (Mixing, "its outputs in training differ when clients are stacked"),
    ],
)
def test_networks_that_cannot_be_merged_are_refused(trained, network, reason):
    with pytest.raises(CannotStack, match=f"cannot be traced .*; as one batch of all clients, {reason}"):
        trained(made(network), StackedEngine)


def test_inputs_that_differ_from_the_trial_are_named():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(TOKENS, 3)

        def forward(self, x):
            return self.head(x if float(x.detach().sum()) >= 0 else x[:1]).expand(len(x), -1)

    network = Sometimes()
    stacked = MergedNetwork(network)
    tensors = {name: torch.stack([p.detach()] * 2) for name, p in network.named_parameters()}
    stacked(Pass(dict(tensors), False), torch.ones(2, 4, TOKENS))
    with pytest.raises(RuntimeError, match=r"layer 'head' has an input of shape \[1, 5\]"):
        stacked(Pass(dict(tensors), False), -torch.ones(2, 4, TOKENS))


def test_cost_counts_what_a_training_pass_writes():
    stacked = MergedNetwork(nn.Sequential(nn.Linear(TOKENS, 3), nn.Tanh(), nn.Flatten()))
    assert stacked.activations(torch.ones(2, TOKENS)) == 2 * (TOKENS + 3 + 3)
    assert stacked.calls == 2  # The last layer returns a view.


def test_calling_is_that_of_the_network():
    assert find_calling(made(Attention), torch.zeros(2, TOKENS))[0] == Calling(has_scores=True)
