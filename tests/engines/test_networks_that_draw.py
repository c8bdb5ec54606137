"""Networks that call random functions of torch: both engines, any number of threads, other clients."""

import hashlib

import pytest
import torch
from banks import make_federation, own
from threads import threads
from torch import nn
from torch.nn import functional as F

from dfl_lightning.engines.calling.finding import find_calling
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine


class Functional(nn.Module):
    """Three functions that draw, one of them in place, and a dropped path."""

    def __init__(self):
        super().__init__()
        self.first, self.alpha, self.head = nn.Linear(6, 8), nn.AlphaDropout(0.2), nn.Linear(8, 3)

    def forward(self, x, scale=None):
        x = F.dropout(torch.tanh(self.first(x)), 0.3, self.training)
        x = F.dropout2d(x[:, :, None, None], 0.2, self.training, True).flatten(1)
        if self.training:
            x = x * x.new_empty((x.shape[0], 1)).bernoulli_(0.8)
        return self.head(self.alpha(x))


class Attending(nn.Module):
    """Attention in three forms, with dropout in each."""

    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.2, batch_first=True)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        x = self.layer(x.unflatten(-1, (3, 2)).repeat(1, 1, 2))
        x = x + F.scaled_dot_product_attention(x, x, x, dropout_p=0.25 if self.training else 0.0)
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


class Noisy(nn.Module):
    """Draws by functional dropout, and noise from torch's generator."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = F.dropout(self.first(x), 0.2, self.training)
        return self.head(x + torch.rand_like(x) if self.training else x)


def train(network, engine, **options):
    """Rows after two epochs in an engine, [m, width]."""
    calling, _ = find_calling(network, torch.zeros(2, 6))
    f = make_federation(network=network, engine=engine, calling=calling, **options)
    f.engine.train(own(*range(f.m)), f.training())
    return f.bank.rows("trained").clone()


def made(network):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return network()


class Calm(nn.Module):
    """Attention without dropout."""

    def __init__(self):
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(2, 3)

    def forward(self, x):
        x = x.unflatten(-1, (3, 2))
        return self.head(self.attention(x, x, x, need_weights=False)[0].mean(1))


@pytest.mark.parametrize("network", [Functional, Attending, Calm])
def test_both_engines_draw_the_same_masks(network):
    model = made(network)
    rows, stacked = (train(model, engine) for engine in (LoopEngine, StackedEngine))
    torch.testing.assert_close(stacked, rows, rtol=1e-9, atol=1e-9)


def test_a_network_with_other_draws_needs_the_loop_engine():
    with pytest.raises(CannotStack, match="it draws by rand_like from torch's global generator"):
        train(made(Noisy), StackedEngine)


def test_threads_do_not_share_draws_of_torchs_generator():
    model, sizes, digests = made(Noisy), (4, 5, 6, 7, 8, 9, 8, 7), set()
    for number in (*[4] * 20, 1):
        with threads(number):
            rows = train(model, LoopEngine, sizes=sizes, cohorts=4)
        digests.add(hashlib.sha256(rows.numpy().tobytes()).hexdigest())
    assert len(digests) == 1
