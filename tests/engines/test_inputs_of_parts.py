"""Networks with several inputs, optional arguments and outputs with `logits`: both engines against plain training."""

import pytest
import torch
from banks import SEED, make_federation, own
from torch import nn
from torch.nn import functional as F

from dfl_lightning.data import ClientData
from dfl_lightning.data.parts import Parts
from dfl_lightning.engines.calling.finding import find_calling
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine


class Towers(nn.Module):
    """Two towers: words with a mask, and numbers; an optional argument, and a dict of outputs."""

    def __init__(self, positional=False):
        super().__init__()
        self.words, self.numbers, self.head = nn.Embedding(9, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, ids, mask, x, temperature=1.0, hidden=None):
        words = self.words(ids) * mask.unsqueeze(-1)
        together = torch.tanh(words.sum(1)) + self.numbers(x)
        assert hidden is None
        return {"hidden": together, "logits": self.head(together) / temperature}


def inputs_of(count):
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 9, (count, 5), generator=g)
    return ids, torch.rand(count, 5, generator=g) < 0.7, torch.randn(count, 2, generator=g, dtype=torch.float64)


def clients(names):
    inputs, labels = inputs_of(40), torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
    items = [dict(zip(names, item, strict=True)) if names else item for item in zip(*inputs, strict=True)]
    parts, train = Parts.of(items[0]), torch.arange(27).split([9, 4, 14])
    rest = [torch.arange(start, start + 4) for start in (27, 31, 35)]
    rows = torch.stack([parts.pack(item) for item in items])
    one, zero = torch.tensor(1.0), torch.tensor(0.0)
    return ClientData(rows, labels, train, rest, rest, None, None, 3, one, zero, parts=parts)


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
@pytest.mark.parametrize("names", [("ids", "mask", "x"), ()])
def test_clients_train_on_inputs_of_parts_as_plain_modules_do(engine, names):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Towers()
    data = clients(names)
    calling, scores = find_calling(network, data.batch(torch.tensor([0, 1]))[0], data.parts)
    assert (calling.has_scores, scores.shape) == (True, (2, 3))
    f = make_federation(network=network, data=data, engine=engine, calling=calling)
    training = f.training()
    f.engine.train(own(0, 1, 2), training)
    inputs, draws = inputs_of(40), training.draws(SEED)
    for client, samples in enumerate(data.train):
        module, at = Towers().double(), 0
        for p in module.parameters():
            p.data = f.bank.rows("models")[client][at : at + p.numel()].view(p.shape).clone()
            at += p.numel()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
        for epoch in range(2):
            for part in samples[draws.orders_of(client, epoch, 1, len(samples))[0]].split(4):
                optimizer.zero_grad()
                F.cross_entropy(module(*(one[part] for one in inputs))["logits"], data.labels[part]).backward()
                optimizer.step()
        expected = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
        torch.testing.assert_close(f.bank.rows("trained")[client], expected, rtol=1e-9, atol=1e-9)
    of_models = f.engine.evaluate(own(0, 1, 2), "test")
    module.eval()
    scored = module(*(one[data.test[2]] for one in inputs))["logits"]
    assert of_models.losses.shape == (3,)
    assert scored.shape == (4, 3)
