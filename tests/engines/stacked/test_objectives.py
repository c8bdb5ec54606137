"""Kinds of objectives on both engines, against loops written by hand."""

import copy
import functools
import itertools

import pytest
import torch
from banks import own
from torch import nn
from torch.func import functional_call
from turns import in_turn

from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.objectives import Duration, Objective, Phase
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

RATE, EPOCHS = 0.1, 3


@pytest.fixture(params=[LoopEngine, StackedEngine], ids=lambda engine: engine.name)
def engine(request):
    """Both, as everywhere above this folder."""
    return request.param


pytestmark = pytest.mark.usefixtures("one_cohort")


class Kind(Objective):
    """One phase of everything."""

    stackable = True


def toward(point, gradient, rate):
    return [p - rate * g for p, g in zip(point, gradient, strict=True)]


class Proximal(Kind):
    """Stay near the start."""

    def step(self, ctx):
        model = ctx.model()
        gradient = model.grad(ctx.next_batch())
        model.update([g + 0.5 * (p - s) for g, p, s in zip(gradient, model.params, model.start, strict=True)])


class NearInitial(Kind):
    """Stay near a row set."""

    row_sets = {"initial": "models"}

    def step(self, ctx):
        model = ctx.model()
        gradient, initial = model.grad(ctx.next_batch()), ctx.rows("initial")
        model.update([g + 0.5 * (p - s) for g, p, s in zip(gradient, model.params, initial, strict=True)])


class TwoBatches(Kind):
    """The gradient on one batch after a trial step on another (first-order MAML)."""

    def step(self, ctx):
        model = ctx.model()
        trial = toward(model.params, model.grad(ctx.next_batch()), 0.2)
        model.update(model.grad(ctx.next_batch(), at=trial))


class BothFirst(Kind):
    """Two batches taken before any gradient; the mean of theirs."""

    def step(self, ctx):
        model, batches = ctx.model(), (ctx.next_batch(), ctx.next_batch())
        one, two = (model.grad(batch) for batch in batches)
        model.update([(a + b) / 2 for a, b in zip(one, two, strict=True)])


class ThreeBatches(Kind):
    """Three batches a step."""

    def step(self, ctx):
        model = ctx.model()
        several = [model.grad(ctx.next_batch()) for _ in range(3)]
        model.update([sum(parts) for parts in zip(*several, strict=True)])


class SameBatch(Kind):
    """The gradient of a batch where its own gradient leads."""

    def step(self, ctx):
        model, batch = ctx.model(), ctx.next_batch()
        model.update(model.grad(batch, at=toward(model.params, model.grad(batch), -0.3)))


class Mixture(Kind):
    """Partly the gradient of one's own model, partly of a model of a row set."""

    row_sets = {"initial": "models"}

    def step(self, ctx):
        model, batch = ctx.model(), ctx.next_batch()
        mine, its = model.grad(batch), model.grad(batch, at=ctx.rows("initial"))
        model.update([0.25 * a + 0.75 * b for a, b in zip(mine, its, strict=True)])


class TwoUpdates(Kind):
    """Two optimizer steps on each batch."""

    def step(self, ctx):
        batch = ctx.next_batch()
        for _ in range(2):
            ctx.model().update(ctx.model().grad(batch))


# --- by hand: each works on one client's plain tensors ----------------------------------------------------------------
def by_hand_proximal(hand):
    return [
        g + 0.5 * (p - s)
        for g, p, s in zip(hand.gradient(hand.params, hand.draw()), hand.params, hand.start, strict=True)
    ]


def by_hand_near_initial(hand):
    return [
        g + 0.5 * (p - s)
        for g, p, s in zip(hand.gradient(hand.params, hand.draw()), hand.params, hand.initial, strict=True)
    ]


def by_hand_two_batches(hand):
    first = hand.gradient(hand.params, hand.draw())
    return hand.gradient([p - 0.2 * g for p, g in zip(hand.params, first, strict=True)], hand.draw())


def by_hand_both_first(hand):
    one, two = (hand.gradient(hand.params, batch) for batch in [hand.draw(), hand.draw()])
    return [(a + b) / 2 for a, b in zip(one, two, strict=True)]


def by_hand_three_batches(hand):
    one, two, three = (hand.gradient(hand.params, hand.draw()) for _ in range(3))
    return [a + b + c for a, b, c in zip(one, two, three, strict=True)]


def by_hand_same_batch(hand):
    batch = hand.draw()
    first = hand.gradient(hand.params, batch)
    return hand.gradient([p + 0.3 * g for p, g in zip(hand.params, first, strict=True)], batch)


def by_hand_mixture(hand):
    batch = hand.draw()
    mine, its = hand.gradient(hand.params, batch), hand.gradient(hand.initial, batch)
    return [0.25 * a + 0.75 * b for a, b in zip(mine, its, strict=True)]


OBJECTIVES = {
    "proximal": (Proximal, by_hand_proximal),
    "near a row set": (NearInitial, by_hand_near_initial),
    "two batches": (TwoBatches, by_hand_two_batches),
    "two batches at once": (BothFirst, by_hand_both_first),
    "three batches": (ThreeBatches, by_hand_three_batches),
    "one batch twice": (SameBatch, by_hand_same_batch),
    "mixture": (Mixture, by_hand_mixture),
}


class Hand:
    """One client's tensors, batches and gradients, without the library but for the names of its draws."""

    def __init__(self, naive, network, data, owner, row, initial):
        self.module, self.owner, self.data, self.naive = naive.module(network, row), owner, data, naive
        self.params = list(self.module.parameters())
        self.start = [p.detach().clone() for p in self.params]
        self.initial = [p.detach() for p in naive.module(network, initial).parameters()]
        self.batches, self.taken = self._endless(), 0

    def _endless(self):
        samples = self.data.train[self.owner]
        for epoch in itertools.count():
            order = drawn_order(len(samples), self.naive.seed, "local", 3, self.owner, epoch)
            for part in samples[order].split(4):
                yield self.naive.inputs(self.data, part, torch.float64)

    def draw(self):
        self.taken += 1
        return next(self.batches)

    def gradient(self, point, batch):
        names = [name for name, _ in self.module.named_parameters()]
        point = [p.detach().clone().requires_grad_() for p in point]
        outputs = functional_call(self.module, dict(zip(names, point, strict=True)), (batch[0],))
        return torch.autograd.grad(nn.functional.cross_entropy(outputs, batch[1]), point)


@pytest.mark.parametrize(
    ("sizes", "name"), in_turn([(9, 4, 14), (16, 12, 3), (4, 4, 4), (20, 19, 17)], OBJECTIVES), ids=str
)
def test_an_objective_gives_many_clients_the_steps_of_one(federation, naive, name, sizes):
    """A phase is over when its own batches are taken; a step that needs more begins one more epoch of the client."""
    kind, by_hand = OBJECTIVES[name]
    momentum = functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9)
    f = federation(sizes=sizes, objective=kind(), sets=["initial"], optimizer=momentum)
    before = f.bank.rows("models").clone()
    f.engine.train(own(0, 1, 2), f.training(epochs=EPOCHS, lr=RATE))
    for i, size in enumerate(sizes):
        hand = Hand(naive, f.network, f.data, i, before[i], f.bank.rows("initial")[i])
        optimizer = momentum(hand.params)
        while hand.taken < EPOCHS * -(-size // 4):
            for p, g in zip(hand.params, by_hand(hand), strict=True):
                p.grad = g.detach()
            optimizer.step()
        expected = naive.row(hand.module, f.dtype)
        torch.testing.assert_close(f.bank.rows("trained")[i], expected, rtol=1e-10, atol=1e-10)


def test_two_updates_in_a_step_are_two_optimizer_steps(federation, naive):
    adam = functools.partial(torch.optim.Adam, lr=0.01)
    f = federation(objective=TwoUpdates(), optimizer=adam)
    before = f.bank.rows("models").clone()
    f.engine.train(own(0, 1, 2), f.training(epochs=2, lr=0.01))
    for i, size in enumerate((9, 4, 14)):
        hand = Hand(naive, f.network, f.data, i, before[i], before[i])
        optimizer = adam(hand.params)
        for _ in range(2 * -(-size // 4)):
            batch = hand.draw()
            for _ in range(2):
                for p, g in zip(hand.params, hand.gradient(hand.params, batch), strict=True):
                    p.grad = g.detach()
                optimizer.step()
        expected = naive.row(hand.module, f.dtype)
        torch.testing.assert_close(f.bank.rows("trained")[i], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
@pytest.mark.parametrize("name", ["two batches", "two batches at once", "one batch twice", "mixture"])
def test_both_engines_agree_on_buffers_and_dropout_masks(federation, kind, name):
    rows = []
    for engine in (LoopEngine, StackedEngine):
        f = federation(kind, sizes=(10, 4, 14), objective=OBJECTIVES[name][0](), sets=["initial"], engine=engine)
        f.engine.train(own(0, 1, 2), f.training(epochs=2))
        rows.append(f.bank.rows("trained").clone())
    torch.testing.assert_close(*rows, rtol=1e-10, atol=1e-10)


class InTwoPhases(TwoBatches):
    """Two phases, of which each ends in the middle of an epoch."""

    def phases(self, layout, duration, round):
        return (Phase(self, Duration(1), layout.all), Phase(self, duration, layout.all))


def test_the_next_phase_begins_with_an_epoch_of_its_own(federation):
    rows, samples = [], []
    for engine in (LoopEngine, StackedEngine):
        f = federation(sizes=(9, 4, 14), objective=InTwoPhases(), engine=engine)
        result = f.engine.train(own(0, 1, 2), f.training(epochs=1))
        rows.append(f.bank.rows("trained").clone())
        samples.append(result.samples.tolist())
    torch.testing.assert_close(*rows, rtol=1e-10, atol=1e-10)
    assert samples[0] == samples[1] == [9 + 4, 4 + 4, 14]  # 3, 1 and 4 batches of at most 4, in pairs


class Unsaid(Proximal):
    """As proximal, without a word about stacking."""

    stackable = False


def test_an_objective_that_does_not_say_so_is_not_stacked(federation, naive):
    sentence = "objective Unsaid does not declare stackable = True"
    with pytest.raises(CannotStack, match=sentence):
        federation(objective=Unsaid(), engine=StackedEngine)
    with pytest.raises(UserError, match=sentence):
        federation(objective=Unsaid(), engine=functools.partial(make_engine, "stacked"))
    f = federation(objective=Unsaid(), engine=functools.partial(make_engine, "auto"))
    assert type(f.engine) is LoopEngine
    assert sentence in f.engine.reason
    said = federation(objective=Proximal(), engine=StackedEngine)
    for each in (f, said):
        each.engine.train(own(0, 1, 2), each.training())
    torch.testing.assert_close(f.bank.rows("trained"), said.bank.rows("trained"), rtol=1e-10, atol=1e-10)


class Watcher(Kind):
    """Writes down what a step sees."""

    row_sets = {"initial": "models"}

    def __init__(self):
        self.seen = []

    def step(self, ctx):
        model, initial = ctx.model(), ctx.rows("initial")
        self.seen.append((len(model.params[0]), [copy.deepcopy(t) for t in (model.start[0], initial[0])]))
        ctx.model().update(ctx.model().grad(ctx.next_batch()))


def test_start_and_rows_belong_to_the_remaining_clients(federation):
    watcher = Watcher()
    f = federation(objective=watcher, sizes=(9, 4, 14), sets=["initial"], engine=StackedEngine)
    f.engine.train(own(0, 1, 2), f.training(epochs=1))
    assert [count for count, _ in watcher.seen] == [3, 2, 2, 1]
    order = [2, 0, 1]  # by falling number of batches
    for count, (start, initial) in watcher.seen:
        for found, name in ((start, "models"), (initial, "initial")):
            expected = f.bank.rows(name)[order[:count], : found[0].numel()]
            assert torch.equal(found.reshape(count, -1), expected)
