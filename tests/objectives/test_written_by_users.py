"""Local rules of the literature against plain modules and plain optimizers; one is written as a user would.

The references share nothing with the library but the order in which a client takes its samples.
"""

import copy
import functools
import itertools

import pytest
import torch
import torch.nn.functional as F
from banks import SEED, make_federation
from rules import NearPrototypes
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.objectives import APFL, MOON, DFedSAM, Ditto, PerFedAvg
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

EPOCHS, RATE, SIZES = 2, 0.125, (9, 4, 14, 12)  # recorded rates are float32, which has this one
MOMENTUM = functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9)


# --- by hand ----------------------------------------------------------------------------------------------------------
class Client:
    """One client's plain modules and batches."""

    def __init__(self, f, owner, rows):
        self.models = {name: module_of(f.network, rows[name][owner]) for name in rows}
        self.optimizers = {name: MOMENTUM(model.parameters()) for name, model in self.models.items()}
        self.w = self.models["models"]
        self.start, self.size, self.taken = copy.deepcopy(self.w), len(f.data.train[owner]), 0
        self.batches = self._endless(f, owner)

    def _endless(self, f, owner):
        samples = f.data.train[owner]
        for epoch in itertools.count():
            order = drawn_order(len(samples), SEED, "local", 3, owner, epoch)
            for part in samples[order].split(4):
                yield f.data.images[part] * 0.5 + 0.25, f.data.labels[part]

    def batch(self):
        self.taken += 1
        return next(self.batches)

    def descend(self, name, loss):
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()


def module_of(network, row):
    module = copy.deepcopy(network).double()
    nn.utils.vector_to_parameters(row.clone(), module.parameters())
    return module


def ditto(c):
    x, y = c.batch()
    c.descend("models", F.cross_entropy(c.w(x), y))
    v = c.models["personal"]
    pull = sum((p - s.detach()).square().sum() for p, s in zip(v.parameters(), c.start.parameters(), strict=True))
    c.descend("personal", F.cross_entropy(v(x), y) + 0.3 / 2 * pull)


def apfl(c):
    x, y = c.batch()
    v, w = c.models["local"], c.w
    frozen = {name: p.detach().clone() for name, p in w.named_parameters()}
    mixed = {name: 0.25 * p + 0.75 * frozen[name] for name, p in v.named_parameters()}
    loss = F.cross_entropy(torch.func.functional_call(v, mixed, (x,)), y)
    c.descend("models", F.cross_entropy(w(x), y))
    c.descend("local", loss)


def per_fedavg(c):
    (x, y), (x2, y2) = c.batch(), c.batch()
    ahead = copy.deepcopy(c.w)
    grads = torch.autograd.grad(F.cross_entropy(c.w(x), y), list(c.w.parameters()))
    with torch.no_grad():
        for p, g in zip(ahead.parameters(), grads, strict=True):
            p -= 0.2 * g
    grads = torch.autograd.grad(F.cross_entropy(ahead(x2), y2), list(ahead.parameters()))
    take(c, grads)


def dfedsam(c):
    x, y = c.batch()
    grads = torch.autograd.grad(F.cross_entropy(c.w(x), y), list(c.w.parameters()))
    length = torch.cat([g.flatten() for g in grads]).norm()
    climbed = copy.deepcopy(c.w)
    with torch.no_grad():
        for p, g in zip(climbed.parameters(), grads, strict=True):
            p += 0.05 * g / length
    take(c, torch.autograd.grad(F.cross_entropy(climbed(x), y), list(climbed.parameters())))


def take(c, grads):
    for p, g in zip(c.w.parameters(), grads, strict=True):
        p.grad = g
    c.optimizers["models"].step()


def moon(c):
    x, y = c.batch()
    z, near, far = (model[:2](x) for model in (c.w, c.start, c.models["previous"]))
    a = torch.exp(F.cosine_similarity(z, near.detach()) / 0.5)
    b = torch.exp(F.cosine_similarity(z, far.detach()) / 0.5)
    c.descend("models", F.cross_entropy(c.w(x), y) + 0.7 * -torch.log(a / (a + b)).mean())


def near_prototypes(c):
    x, y = c.batch()
    prototypes = c.models["prototypes"][2].weight.detach()
    c.descend("models", F.cross_entropy(c.w(x), y) + 0.4 * ((c.w[:2](x) - prototypes[y]) ** 2).mean())


RULES = {
    "Ditto": (functools.partial(Ditto, 0.3), ditto),
    "APFL": (functools.partial(APFL, 0.25, "never"), apfl),
    "Per-FedAvg": (functools.partial(PerFedAvg, 0.2), per_fedavg),
    "DFedSAM": (functools.partial(DFedSAM, 0.05), dfedsam),
    "MOON": (functools.partial(MOON, 0.7, 0.5), moon),
    "near prototypes": (NearPrototypes, near_prototypes),
}


@pytest.fixture(params=["loop", "stacked", "recorded"])
def make(request, monkeypatch):
    """A federation of either engine, or of one that records its steps."""
    engine = LoopEngine if request.param == "loop" else StackedEngine
    if request.param != "recorded":
        return functools.partial(make_federation, engine=engine)
    from tapes import TapeRecorder

    monkeypatch.setattr("dfl_lightning.engines.stacked.gpu.cuda_graphs.FEWEST_STEPS", 1)

    def recorded(**options):
        f = make_federation(engine=StackedEngine, **options)
        f.recorder = TapeRecorder()
        f.engine.all_at_once(f.recorder)
        return f

    return recorded


@pytest.mark.parametrize("name", RULES)
def test_a_users_rule_agrees_with_plain_modules(make, name):
    kind, by_hand = RULES[name]
    rule = kind()
    sets = [name for name in rule.row_sets if name != "mixture"]  # made after mixing
    f = make(sizes=SIZES, objective=rule, sets=tuple(sets), optimizer=MOMENTUM)
    owners = torch.arange(len(SIZES))
    for _ in range(2):  # rounds: the second begins with a fresh optimizer where the first has ended
        before = {set_: f.bank.rows(set_).clone() for set_ in ("models", *sets)}
        f.engine.train(References.rows("models", owners), f.training(epochs=EPOCHS, lr=RATE))
        for owner, size in enumerate(SIZES):
            c = Client(f, owner, before)
            while c.taken < EPOCHS * -(-size // 4):
                by_hand(c)
            if "previous" in c.models:
                c.models["previous"] = c.w  # for the next round
            for set_, model in c.models.items():
                rows = f.bank.rows("trained" if set_ == "models" else set_)
                expected = nn.utils.parameters_to_vector(model.parameters()).detach()
                torch.testing.assert_close(rows[owner], expected, rtol=1e-9, atol=1e-9)
        boundary = f.bank.boundary
        f.bank.commit(boundary._replace(rows=f.bank.next_rows()))
    if hasattr(f, "recorder"):
        assert f.recorder.replayed


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_an_undeclared_row_set_is_refused_by_name(engine):
    class Forgetful(Ditto):
        row_sets = {}

    f = make_federation(objective=Forgetful(), engine=engine)
    with pytest.raises(UserError, match=r"Forgetful uses the row set 'personal', which it does not declare; add"):
        f.engine.train(References.rows("models", torch.arange(3)), f.training())
