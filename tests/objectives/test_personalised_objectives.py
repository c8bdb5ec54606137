"""Ditto, APFL, Per-FedAvg and FedRep over whole rounds, against plain modules, with some clients dropped out.

The references are written from the papers; they share nothing with the library but the order in which a client takes
its samples.
"""

import copy
import functools
import itertools

import networkx as nx
import pytest
import torch
from tester.rounds import Run, toy_data
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from dfl_lightning.callbacks import Bernoulli, Gossip, SampleWeighted, Uniform
from dfl_lightning.models import MLP
from dfl_lightning.objectives import APFL, Ditto, FedPer, FedRep, PerFedAvg
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

SIZES, RATE, EPOCHS, ROUNDS = [6, 3, 9, 2, 5], 0.2, 2, 4


def start(rule, engine="loop", server=False, network=None, **model):
    policies = [Gossip(k="all"), SampleWeighted() if server else Uniform(), Bernoulli(0.3)]
    settings = {
        "network": network or MLP(hidden=[4]),
        "local_epochs": EPOCHS,
        "batch_size": 4,
        "optimizer": functools.partial(torch.optim.SGD, lr=RATE),
        "objective": rule,
        **model,
    }
    topology = "server" if server else nx.cycle_graph(len(SIZES))
    trainer = {"precision": "64-true", "engine": engine}
    return Run(policies, len(SIZES), 50, topology, toy_data(sizes=SIZES), settings, trainer)


class Client:
    """One client by hand: plain modules, and the batches that it takes."""

    def __init__(self, run, owner):
        self.data, self.samples, self.owner = run.data, run.data.train[owner], owner
        self.network = copy.deepcopy(run.module.network).double()
        self.w, self.v = self.copy_of(run.models[owner]), self.copy_of(run.models[owner])
        self.alpha = torch.tensor(0.25, dtype=torch.float64)

    def copy_of(self, row):
        module = copy.deepcopy(self.network)
        nn.utils.vector_to_parameters(row.clone(), module.parameters())
        return module

    def begin(self, number, purpose="local"):
        def endless():
            for epoch in itertools.count():
                order = drawn_order(len(self.samples), 0, purpose, number, self.owner, epoch)
                for part in self.samples[order].split(4):
                    yield self.data.batch(part, dtype=torch.float64)

        self.batches, self.taken = endless(), 0
        self.w0 = copy.deepcopy(self.w)

    def batch(self):
        self.taken += 1
        return next(self.batches)

    def loss(self, parameters, batch):
        names = [name for name, _ in self.network.named_parameters()]
        return cross_entropy(
            functional_call(self.network, dict(zip(names, parameters, strict=True)), batch[0]), batch[1]
        )

    def grad(self, parameters, batch, **options):
        leaves = [p.detach().clone().requires_grad_() for p in parameters]
        return torch.autograd.grad(self.loss(leaves, batch), leaves, **options)


def step(module, grads, rate=RATE):
    with torch.no_grad():
        for p, g in zip(module.parameters(), grads, strict=True):
            p -= rate * g


def row(module):
    return nn.utils.parameters_to_vector(module.parameters()).detach().clone()


# --- the papers' steps ------------------------------------------------------------------------------------------------


def apfl(c, adapt):
    batch = c.batch()
    mixture = [c.alpha * v + (1 - c.alpha) * w for v, w in zip(c.v.parameters(), c.w.parameters(), strict=True)]
    of_mixture, of_w = c.grad(mixture, batch), c.grad(c.w.parameters(), batch)
    slope = sum(
        ((v - w) * g).sum() for v, w, g in zip(c.v.parameters(), c.w.parameters(), of_mixture, strict=True)
    ).detach()
    before = c.alpha
    if adapt == "step" or (adapt == "round" and not c.moved):
        c.alpha = (c.alpha - RATE * slope).clamp(0, 1)
    c.moved = True
    step(c.w, of_w)
    step(c.v, [before * g for g in of_mixture])


def per_fedavg(c, order):
    w = [p.detach() for p in c.w.parameters()]
    first, second = c.batch(), c.batch()
    ahead = [p - 0.1 * g for p, g in zip(w, c.grad(w, first), strict=True)]
    meta = c.grad(ahead, second)
    if order != "first":
        third = c.batch()
        flat, sizes = torch.cat([p.flatten() for p in w]), [p.numel() for p in w]

        def loss_at(vector):
            parts = [part.view(p.shape) for part, p in zip(vector.split(sizes), w, strict=True)]
            return c.loss(parts, third)

        hessian = torch.autograd.functional.hessian(loss_at, flat)
        product = hessian @ torch.cat([g.flatten() for g in meta])
        meta = [g - 0.1 * h.view(g.shape) for g, h in zip(meta, product.split(sizes), strict=True)]
    step(c.w, meta)


def run_by_hand(run, clients, number, a_step):
    """Local work of those that are there, then means over the ring."""
    up = run.rounds[-1].participants.tolist()
    for c in clients:
        if up[c.owner]:
            c.begin(number)
            while c.taken < EPOCHS * -(-len(c.samples) // 4):
                a_step(c)
    rows = [row(c.w) for c in clients]
    for i, c in enumerate(clients):
        if up[i]:
            senders = [j for j in ((i - 1) % len(SIZES), i, (i + 1) % len(SIZES)) if up[j]]
            c.w = c.copy_of(torch.stack([rows[j] for j in senders]).mean(0))
    return up


def agree(found, expected, atol=1e-9):
    torch.testing.assert_close(found.cpu(), torch.stack(expected), rtol=0, atol=atol)


@pytest.mark.parametrize("adapt", ["never", "step", "round"])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_apfl_agrees_with_plain_modules(engine, adapt):
    run = start(APFL(0.25, adapt), engine)
    clients = [Client(run, i) for i in range(len(SIZES))]
    for number in range(ROUNDS):
        run.go(1)
        for c in clients:
            c.moved = False
        run_by_hand(run, clients, number, functools.partial(apfl, adapt=adapt))
        agree(run.models, [row(c.w) for c in clients])
        agree(run.rows("local"), [row(c.v) for c in clients])
        agree(run.bank.boundary.numbers["alpha"], [c.alpha for c in clients])
        mixtures = [c.alpha * row(c.v) + (1 - c.alpha) * row(c.w) for c in clients]
        agree(run.rows("mixture"), mixtures)
    assert ({float(c.alpha) for c in clients} == {0.25}) is (adapt == "never")


@pytest.mark.parametrize(
    ("order", "engine", "atol"),
    [
        ("first", "loop", 1e-9),
        ("first", "stacked", 1e-9),
        ("hessian", "loop", 1e-9),
        ("difference", "loop", 1e-5),
        ("difference", "stacked", 1e-5),
    ],
)
def test_per_fedavg_agrees_with_plain_modules(order, engine, atol):
    """On a smooth network: differences across a kink of ReLU say nothing of a derivative."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
    run = start(PerFedAvg(0.1, order), engine, network=network)
    clients = [Client(run, i) for i in range(len(SIZES))]
    for number in range(ROUNDS):
        run.go(1)
        run_by_hand(run, clients, number, functools.partial(per_fedavg, order=order))
        agree(run.models, [row(c.w) for c in clients], atol)
    judged = run.bank.materialise(run.module.evaluated_models())
    adapted = []
    for c in clients:
        c.begin(ROUNDS, "finetune")
        grads = c.grad(c.w.parameters(), c.batch())
        adapted.append(row(c.w) - 0.1 * torch.cat([g.flatten() for g in grads]))
    agree(judged, adapted, atol)
    agree(run.models, [row(c.w) for c in clients], atol)  # the evaluation has changed nothing


def test_fedbn_keeps_norms_and_their_statistics_local():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Sequential(nn.Flatten(), nn.Linear(5, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))
    policies = [Gossip(k="all"), Uniform()]
    settings = {"network": network, "batch_size": 3, "objective": FedPer(), "shared": ["1.*", "4.*"]}
    run = Run(policies, 4, 9, "complete", toy_data(sizes=[6, 3, 9, 3]), settings, {}).go(2)
    spread = (run.models - run.models[:1]).abs().amax(0)
    for entry in run.module.federation.layout.entries:
        differs = bool((spread[entry.start : entry.stop] > 1e-6).any())
        assert differs is entry.name.startswith("2."), entry.name


# --- what closed forms say --------------------------------------------------------------------------------------------
class Offset(nn.Module):
    """One parameter vector that is the scores of any input, so that a squared loss is a quadratic of it."""

    def __init__(self):
        super().__init__()
        self.at = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.at.expand(len(x), 3) + 0 * x.flatten(1).sum(1, keepdim=True)


def quadratic(scores, labels):
    """1/2 ||at - one-hot(label)||^2, the mean over samples."""
    return 0.5 * (scores - nn.functional.one_hot(labels, 3).to(scores)).square().sum(1).mean()


def settled(rule, rounds=60):
    """Clients that never mix, on a quadratic, until nothing moves; the shares of each client's classes."""
    policies = [Gossip(k=0), Uniform()]
    settings = {
        "network": Offset(),
        "local_epochs": 1,
        "batch_size": 100,
        "optimizer": functools.partial(torch.optim.SGD, lr=0.5),
        "objective": rule,
        "loss": quadratic,
    }
    run = Run(policies, 5, 200, "complete", toy_data(sizes=SIZES), settings, {"precision": "64-true", "engine": "loop"})
    run.go(rounds)
    data = run.data
    classes = [nn.functional.one_hot(data.labels[part], 3).double().mean(0) for part in data.train]
    return run, torch.stack(classes)


def test_ditto_converges_to_the_optimum_of_its_quadratic():
    """Alone, w settles at the mean c of its data, and so does v: (c + lam w) / (1 + lam)."""
    run, optimum = settled(Ditto(0.75))
    torch.testing.assert_close(run.models, optimum, rtol=0, atol=1e-9)
    torch.testing.assert_close(run.rows("personal"), (optimum + 0.75 * run.models) / 1.75, rtol=0, atol=1e-9)


@pytest.mark.slow
def test_apfls_mixture_converges_to_the_optimum_of_the_quadratic():
    run, optimum = settled(APFL(0.5, "never"), rounds=250)
    torch.testing.assert_close(run.rows("mixture"), optimum, rtol=0, atol=1e-9)


# --- under a server ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("rule", "rows"), [(Ditto(0.75), "personal"), (APFL(0.25), "mixture")])
def test_under_a_server_clients_are_evaluated_by_their_own_rows(rule, rows):
    run = start(rule, "stacked", server=True).go(3)
    judged = run.module.evaluated_models()
    assert judged.owners.tolist() == list(range(len(SIZES)))
    torch.testing.assert_close(run.bank.materialise(judged).cpu(), run.rows(rows)[: len(SIZES)], rtol=0, atol=0)
    losses = run.module.engine.evaluate(judged, "train").losses
    for owner in range(len(SIZES)):
        assert abs(float(losses[owner]) - run.loss(run.rows(rows)[owner], owner)) < 1e-6  # that is in float32


def test_apfl_under_a_server_mixes_with_the_servers_model():
    run = start(APFL(0.25, "never"), "loop", server=True).go(3)
    expected = 0.25 * run.rows("local")[: len(SIZES)] + 0.75 * run.models[len(SIZES)]
    torch.testing.assert_close(run.rows("mixture")[: len(SIZES)], expected, rtol=0, atol=1e-12)


# --- what is refused --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: Ditto(-0.1), r"objective\.lam=-0\.1; .*0 or more"),
        (lambda: APFL(1.5), r"objective\.alpha=1\.5; .*between 0 and 1"),
        (lambda: APFL(0.5, "sometimes"), r"objective\.adapt=sometimes; it is never, step or round"),
        (lambda: PerFedAvg(-1.0), r"objective\.alpha=-1\.0; .*0 or more"),
        (lambda: PerFedAvg(order="second"), r"objective\.order=second; it is first, difference or hessian"),
        (lambda: PerFedAvg(delta=0.0), r"objective\.delta=0\.0; it must be above 0"),
        (lambda: FedRep(-1), r"objective\.head_epochs=-1; it must be 0 or more"),
        (lambda: start(FedRep()), r"FedRep trains a part that is not exchanged, .*model\.shared .*'head"),
        (lambda: start(FedPer()), r"FedPer trains a part that is not exchanged, and all parameters are"),
    ],
)
def test_bad_values_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()
