"""Trial of users' optimizers: those that may take the steps of stacked clients."""

import functools

import pytest
import torch
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.stacked import CannotStack
from dfl_lightning.engines.trials.optimizer_trial import LARGE, try_out
from dfl_lightning.utils.errors import UserError

SHAPES = [(4, 2, 3, 3), (4,), (), (5, 4), (5,)]


def network(shapes=SHAPES):
    return nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])


class Changed(torch.optim.SGD):
    """Changes the gradients of its parameters, then steps as SGD does."""

    def __init__(self, parameters, lr=0.05, momentum=0.9):
        super().__init__(parameters, lr=lr, momentum=momentum)

    def step(self, closure=None):
        self.change([p for group in self.param_groups for p in group["params"] if p.grad is not None])
        return super().step(closure)


class Nothing(Changed):
    def change(self, parameters):
        pass


class Sign(Changed):
    def change(self, parameters):
        for p in parameters:
            p.grad = p.grad.sign() + 0.1 * p.grad.clamp(-1, 1) + 0.01 * p.detach()


class LARS(Changed):
    def change(self, parameters):
        for p in parameters:
            p.grad *= p.detach().norm() / (p.grad.norm() + 1e-9)


class Centralised(Changed):
    def change(self, parameters):
        for p in parameters:
            if p.dim() > 1:
                p.grad -= p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True)


class Clipped(Changed):
    """Only large gradients show it."""

    def change(self, parameters):
        nn.utils.clip_grad_norm_(parameters, 1e5)


class Careful(Changed):
    """Only what is not finite shows it."""

    def change(self, parameters):
        if not all(bool(p.grad.isfinite().all()) for p in parameters):
            for p in parameters:
                p.grad.zero_()


class Idle(Changed):
    """Only a client without gradients shows it."""

    def change(self, parameters):
        for p in parameters:
            if not bool(p.grad.any()):
                p.grad = None


class Last(Changed):
    """Only the first client of several notices."""

    def change(self, parameters):
        for p in parameters:
            if p.dim():
                p.grad[0] += 1e-3 * p.grad[-1]


class Counts(Changed):
    """Keeps its number of steps in an attribute that is not cut when clients are done."""

    def change(self, parameters):
        self.steps = getattr(self, "steps", 0) + 1
        for p in parameters:
            p.grad /= self.steps


class InGroups(Changed):
    def change(self, parameters):
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for p in group["params"]:
                p.grad /= group["steps"]


def hooked(parameters):
    optimizer = torch.optim.SGD(parameters, lr=0.1)

    def clip(optimizer, args, kwargs):
        nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 0.5)

    optimizer.register_step_pre_hook(clip)
    return optimizer


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, Nothing, Sign], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("shapes", [SHAPES, [(1200, 900), (900,), (1200, 900)]], ids=["small", "large"])
def test_elementwise_optimizers_are_stacked(kind, shapes):
    assert sum(torch.Size(shape).numel() for shape in SHAPES) < LARGE
    try_out(ClientOptimizer(kind, network(shapes)), network(shapes))


COUPLED = [LARS, Centralised, Clipped, Careful, Idle, Last, Counts, InGroups, hooked]
COUPLED += [torch.optim.Adafactor]


@pytest.mark.parametrize("kind", COUPLED, ids=lambda kind: kind.__name__)
def test_optimizers_that_couple_clients_are_not_stacked(kind):
    name = "SGD" if kind is hooked else kind.__name__
    with pytest.raises(CannotStack, match=f"^optimizer {name} is not elementwise"):
        try_out(ClientOptimizer(kind, network()), network())


def test_optimizers_that_fail_on_stacked_parameters_are_not_stacked():
    shapes = [(3, 4), (4, 5)]
    with pytest.raises(CannotStack, match=r"^optimizer Muon fails on several clients at once \(Muon only supports 2D"):
        try_out(ClientOptimizer(torch.optim.Muon, network(shapes)), network(shapes))


def test_a_rate_of_zero_does_not_hide_coupling():
    with pytest.raises(CannotStack, match="LARS"):
        try_out(ClientOptimizer(functools.partial(LARS, lr=0.0), network()), network())


# --- whole trainings
def all_clients(f):
    return References.rows("models", torch.arange(f.m))


@pytest.mark.parametrize("kind", [LARS, Centralised, Counts, Sign, torch.optim.Adafactor], ids=lambda k: k.__name__)
@pytest.mark.parametrize("shared", [["*"], ["0.*"]], ids=["one phase", "two phases"])
def test_under_auto_each_client_trains_as_by_itself(federation, naive, kind, shared):
    f = federation(optimizer=kind, engine=functools.partial(make_engine, "auto"), shared=shared)
    assert f.engine.name == ("stacked" if kind is Sign else "loop")
    f.engine.train(all_clients(f), f.training(epochs=2, lr=0.03))
    if shared == ["*"]:
        naive.check(f, functools.partial(kind, lr=0.03))
    found = f.bank.rows("trained").clone()
    f.data.images[f.data.train[0]] *= 50  # client 0 must not affect the others
    f.engine.train(all_clients(f), f.training(epochs=2, lr=0.03))
    assert torch.equal(f.bank.rows("trained")[1:], found[1:])
    assert not torch.equal(f.bank.rows("trained")[0], found[0])


def test_the_reason_is_given_and_the_stacked_engine_refuses(federation):
    f = federation(optimizer=LARS, engine=functools.partial(make_engine, "auto"))
    assert f.engine.reason.startswith("Sequential cannot be stacked: optimizer LARS is not elementwise")
    with pytest.raises(UserError, match=r"^engine=stacked: .*optimizer LARS is not elementwise.*; use engine: loop"):
        federation(optimizer=LARS, engine=functools.partial(make_engine, "stacked"))
