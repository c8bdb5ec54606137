"""Dis-PFL against plain modules over whole rounds with clients that drop out, and its parts against formulas."""

import copy
import functools
import itertools
import math

import networkx as nx
import pytest
import torch
from tester.rounds import Run, toy_data
from torch import nn
from torch.nn.functional import cross_entropy

from dfl_lightning.callbacks import (
    FDMS,
    Bernoulli,
    GaussianNoise,
    Gossip,
    MaskedAverage,
    Monitor,
    NoiseAttack,
    Stale,
    Uniform,
)
from dfl_lightning.functional import erk_densities, pruned_share, searched_mask
from dfl_lightning.models import MLP
from dfl_lightning.objectives import DisPFL
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream
from tests.helpers.orders import drawn_order

SIZES, RATE, ROUNDS, LAST = [6, 3, 9, 2, 5], 0.2, 5, 8


def start(rule=None, engine="loop", policies=None, aggregation=None, network=None, **model):
    policies = policies or [Gossip(k="all"), aggregation or MaskedAverage(), Bernoulli(0.3)]
    settings = {
        "network": network or MLP(hidden=[6]),
        "local_epochs": 2,
        "batch_size": 4,
        "optimizer": functools.partial(torch.optim.SGD, lr=RATE, momentum=0.5),
        "objective": rule or DisPFL(0.4),
        **model,
    }
    trainer = {"precision": "64-true", "engine": engine}
    return Run(policies, len(SIZES), LAST, nx.cycle_graph(len(SIZES)), toy_data(sizes=SIZES), settings, trainer)


# --- by hand ----------------------------------------------------------------------------------------------------------
class Client:
    def __init__(self, run, owner, kept):
        self.owner, self.data, self.samples, self.kept = owner, run.data, run.data.train[owner], kept
        self.module = copy.deepcopy(run.module.network).double()
        nn.utils.vector_to_parameters(run.models[owner].clone(), self.module.parameters())
        self.masks = []
        for layer, (p, n) in enumerate(zip(self.module.parameters(), kept, strict=True)):
            mask = torch.ones(p.numel(), dtype=torch.float64)
            if p.dim() > 1:
                mask[torch.randperm(p.numel(), generator=stream(0, "dispfl mask", 0, owner, layer))[n:]] = 0
            self.masks.append(mask.view_as(p))

    def batches(self, number):
        for epoch in itertools.count():
            order = drawn_order(len(self.samples), 0, "local", number, self.owner, epoch)
            for part in self.samples[order].split(4):
                yield self.data.batch(part, dtype=torch.float64)

    def grads(self, batch):
        return torch.autograd.grad(cross_entropy(self.module(batch[0]), batch[1]), list(self.module.parameters()))

    @torch.no_grad()
    def hide(self):
        for p, m in zip(self.module.parameters(), self.masks, strict=True):
            p *= m

    def work(self, number, share):
        """Training, then the new masks, one entry after the other."""
        batches, per_epoch = self.batches(number), -(-len(self.samples) // 4)
        optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE, momentum=0.5)
        self.hide()
        for _ in range(2 * per_epoch):
            for p, g, m in zip(self.module.parameters(), self.grads(next(batches)), self.masks, strict=True):
                p.grad = g * m
            optimizer.step()
        self.new = []
        batches = itertools.islice(self.batches(number), 2 * per_epoch, None)
        for p, g, m, n in zip(self.module.parameters(), self.grads(next(batches)), self.masks, self.kept, strict=True):
            if p.dim() < 2:
                self.new.append(m)
                continue
            w, m, g = p.detach().flatten().tolist(), m.flatten().tolist(), g.flatten().tolist()
            leaving = math.ceil(share * n - 1e-9)
            inside = sorted((i for i in range(len(m)) if m[i]), key=lambda i: -abs(w[i]))[: n - leaving]
            outside = sorted((i for i in range(len(m)) if i not in inside), key=lambda i: -abs(g[i]))[:leaving]
            new = torch.zeros(len(m), dtype=torch.float64)
            new[inside + outside] = 1
            self.new.append(new.view_as(p))

    def row(self):
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_each_round_is_that_of_the_paper(engine):
    rule = DisPFL(0.4)
    run, down, searched = start(rule, engine), 0, 0
    clients = [Client(run, i, rule.kept) for i in range(len(SIZES))]
    for number in range(ROUNDS):
        run.go(1)
        up = run.rounds[-1].participants.tolist()
        down += up.count(False)
        for c in clients:
            if up[c.owner]:
                c.work(number, pruned_share(number, LAST))
        trained = [[p.detach().clone() for p in c.module.parameters()] for c in clients]
        masks = [c.masks for c in clients]
        for i, c in enumerate(clients):
            if not up[i]:
                continue
            senders = [j for j in ((i - 1) % len(SIZES), i, (i + 1) % len(SIZES)) if up[j]]
            with torch.no_grad():
                for layer, p in enumerate(c.module.parameters()):
                    total, count = (sum(of[j][layer] for j in senders) for of in (trained, masks))
                    mean = torch.where(count > 0, total / count.clamp(min=1), 0.0)
                    p.copy_(mean * c.new[layer])
        for i, c in enumerate(clients):
            if up[i]:
                searched += any(not torch.equal(a, b) for a, b in zip(c.masks, c.new, strict=True))
                c.masks = c.new
        torch.testing.assert_close(run.models, torch.stack([c.row() for c in clients]), rtol=0, atol=1e-9)
        found = run.rows("mask")
        expected = torch.stack([torch.cat([m.flatten() for m in c.masks]) for c in clients])
        assert torch.equal(found, expected)
    assert down
    assert searched


def test_masks_keep_their_density_per_layer_and_dense_biases():
    rule = DisPFL(0.3)
    run = start(rule).go(4)
    for name, rows in (("mask", run.rows("mask")),):
        for entry, kept in zip(
            [e for e in run.module.federation.layout.entries if not e.is_buffer], rule.kept, strict=True
        ):
            counts = rows[:, entry.start : entry.stop].sum(1)
            assert (counts == kept).all(), (name, entry.name)
            assert len(entry.shape) > 1 or kept == entry.stop - entry.start
    masked = [n for e, n in zip(run.module.federation.layout.entries, rule.kept, strict=False) if len(e.shape) > 1]
    sizes = [e.stop - e.start for e in run.module.federation.layout.entries if len(e.shape) > 1]
    assert abs(sum(masked) / sum(sizes) - 0.3) < 0.03


def test_first_masks_differ_unless_they_are_common():
    apart, alike = start(DisPFL(0.5)).go(1), start(DisPFL(0.5, prune=0.0, common_masks=True)).go(1)
    assert not torch.equal(apart.bank.boundary.rows["mask"][0], apart.bank.boundary.rows["mask"][1])
    assert torch.equal(alike.bank.boundary.rows["mask"][0], alike.bank.boundary.rows["mask"][1])


def test_a_message_costs_kept_entries_and_one_bit_per_entry():
    rule = DisPFL(0.25)
    run = start(rule, policies=[Gossip(k="all"), MaskedAverage()]).go(2)
    possible = sum(e.stop - e.start for e in run.module.federation.layout.entries if len(e.shape) > 1)
    message = 4 * sum(rule.kept) + -(-possible // 8)
    metrics = run.rounds[-1].metrics
    assert metrics["models_received"] == 2
    assert metrics["bytes_received"] == 2 * message
    assert message < 4 * len(run.module.federation.layout.shared)


def test_personal_layers_are_not_part_of_a_message():
    rule = DisPFL(0.25)
    metrics = start(rule, policies=[Gossip(k="all"), MaskedAverage()], shared=["features.*"]).go(1).rounds[0].metrics
    weight, bias = rule.kept[:2]  # of the first layer, 6 x 5; the head's are the other two
    assert metrics["bytes_received"] == 2 * (4 * (weight + bias) + -(-6 * 5 // 8))


class Sent(Monitor):
    """Keeps what the clients of a round have sent."""

    def on_weigh(self, round):
        self.rows = round.bank.rows("sent").cpu().clone()


@pytest.mark.parametrize("make", [lambda: GaussianNoise(0.5, 0.3), lambda: NoiseAttack(clients=[1, 3])])
def test_noise_outside_the_senders_mask_is_removed(make):
    sent = Sent()
    run = start(policies=[Gossip(k="all"), MaskedAverage(), make(), sent]).go(2)
    sets, trained, n = run.witness.sets, run.rounds[-1].trained, len(SIZES)
    assert (sent.rows * (1 - sets["mask"])).abs().max() > 0.01
    for i in range(n):
        near = (i - 1) % n, (i + 1) % n
        total = trained[i] + sum(sent.rows[j] * sets["mask"][j] for j in near)
        count = sum(sets["mask"][j] for j in (i, *near))
        expected = torch.where(count > 0, total / count.clamp(min=1), 0.0) * run.rows("mask")[i]
        torch.testing.assert_close(run.models[i], expected, rtol=0, atol=1e-12)


def test_the_search_does_not_change_the_training_loss():
    """With nothing masked and nothing exchanged between masks it is plain training, loss for loss."""
    sparse = start(DisPFL(1.0, prune=0.0), policies=[Gossip(k="all"), MaskedAverage()]).go(3)
    plain = start(policies=[Gossip(k="all"), Uniform()], objective=None).go(3)
    torch.testing.assert_close(sparse.models, plain.models, rtol=0, atol=1e-12)
    for a, b in zip(sparse.rounds, plain.rounds, strict=True):
        torch.testing.assert_close(a.losses, b.losses, rtol=0, atol=1e-12)


def test_running_statistics_do_not_move_in_the_search():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        body = [nn.Flatten(), nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3)]
    network = nn.Sequential(*body)
    sizes = {"batch_size": 3, "network": network}
    sparse = start(DisPFL(1.0, prune=0.0), policies=[Gossip(k=0), MaskedAverage()], **sizes).go(1)
    plain = start(policies=[Gossip(k=0), Uniform()], objective=None, **sizes).go(1)
    torch.testing.assert_close(sparse.models, plain.models, rtol=0, atol=1e-12)


# --- the parts --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9, 1.0])
def test_densities_are_proportional_and_give_the_wanted_total(density):
    shapes = [(64, 3, 5, 5), (64, 64, 5, 5), (384, 1600), (10, 384), (2, 2)]
    found = erk_densities(shapes, density)
    sizes = [math.prod(s) for s in shapes]
    assert sum(d * n for d, n in zip(found, sizes, strict=True)) == pytest.approx(density * sum(sizes))
    below = [i for i, d in enumerate(found) if d < 1]
    ratios = [found[i] / (sum(shapes[i]) / sizes[i]) for i in below]
    assert all(r == pytest.approx(ratios[0]) for r in ratios)
    assert all(d <= 1 for d in found)


def test_removed_weights_may_return_and_full_layers_stay_full():
    mask, w = torch.tensor([[1.0, 1, 0]]), torch.tensor([[1.0, 2, 0]])
    assert searched_mask(mask, w, torch.tensor([[9.0, 0, 1]]), 2, 1).tolist() == [[1, 1, 0]]
    full = torch.ones(1, 3)
    assert torch.equal(searched_mask(full, w, torch.zeros(1, 3), 3, 2), full)


# --- what is refused --------------------------------------------------------------------------------------------------
class Vector(nn.Module):
    def __init__(self):
        super().__init__()
        self.at = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x.flatten(1)[:, :3] * self.at


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: DisPFL(0.0), r"objective\.density=0\.0; it is a share above 0"),
        (lambda: DisPFL(0.5, 1.5), r"objective\.prune=1\.5; it is a share between 0 and 1"),
        (lambda: start(network=Vector()), r"DisPFL masks weights of two dimensions or more, and Vector has none"),
        (lambda: start(objective=None), r"MaskedAverage averages models where their masks hold, and objective Plain"),
        (
            lambda: start(policies=[Gossip(k="all"), MaskedAverage(), Bernoulli(0.3), Stale()]),
            r"MaskedAverage averages the models that .* substitution Stale mixes stored ones; use --substitution FDMS",
        ),
    ],
)
def test_impossible_settings_are_refused_before_training(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make()


def test_substitutes_work_with_masks():
    start(policies=[Gossip(k="all"), MaskedAverage(), Bernoulli(0.4), FDMS()]).go(4)
