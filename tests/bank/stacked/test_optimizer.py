"""The user's optimizer on clients of whom fewer and fewer are left, against an optimizer for each."""

import functools
import weakref

import pytest
import torch
from torch import nn

from dfl_lightning.bank.stacked.optimizer import PrefixOptimizer, _fused_if_possible
from dfl_lightning.bank.stacked.staging import memory
from dfl_lightning.optimizers import ELEMENTWISE

STEPS = [7, 4, 4, 1]  # of four clients, most first
SHAPES = [(5,), (), (2, 3), (3, 2, 2, 4), (1, 2, 1, 1)]
CHOSEN = [
    *[(name, {}) for name in ELEMENTWISE],
    ("SGD", {"momentum": 0.9}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.5, "dampening": 0.2, "maximize": True}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1, "betas": (0.7, 0.8)}),
    ("AdamW", {"weight_decay": 0.5, "eps": 1e-3}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "weight_decay": 0.1}),
    ("Adagrad", {"initial_accumulator_value": 0.3, "lr_decay": 0.1}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("SGD", {"momentum": 0.9, "foreach": True}),
    ("Adam", {"foreach": True}),
    ("Adam", {"fused": True}),
]


def numbers(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def staged(tensor):
    """A copy in the memory of `Staging`: channels last for four dimensions of a client."""
    if tensor.dim() != 5:
        return tensor.clone()
    last = tensor.permute(0, 1, 3, 4, 2).clone(memory_format=torch.contiguous_format)
    return last.permute(0, 1, 4, 2, 3)


@pytest.mark.parametrize(("name", "options"), CHOSEN, ids=lambda value: str(value))
def test_every_client_has_an_optimizer_of_its_own_in_effect(name, options):
    kind = getattr(torch.optim, name)
    start = [numbers(len(STEPS), *shape, seed=i) for i, shape in enumerate(SHAPES)]
    grads = [[numbers(len(STEPS), *shape, seed=99 * s + i) for i, shape in enumerate(SHAPES)] for s in range(STEPS[0])]
    together = [staged(tensor) for tensor in start]
    optimizer = PrefixOptimizer(functools.partial(kind, lr=77.0, **options), lr=0.05)
    for step in range(STEPS[0]):
        left = sum(steps > step for steps in STEPS)
        optimizer.step([t[:left] for t in together], [g[:left] for g in grads[step]])
    for client, steps in enumerate(STEPS):
        alone = [nn.Parameter(tensor[client].clone()) for tensor in start]
        own = kind(alone, lr=77.0, **{key: value for key, value in options.items() if key not in ("foreach", "fused")})
        own.param_groups[0]["lr"] = 0.05
        for step in range(steps):
            for parameter, grad in zip(alone, grads[step], strict=True):
                parameter.grad = grad[client].clone()
            own.step()
        for mine, theirs, before in zip(together, alone, start, strict=True):
            torch.testing.assert_close(mine[client], theirs.detach(), rtol=1e-10, atol=1e-10)
            assert not torch.equal(theirs.detach(), before[client])


def test_a_step_lets_go_of_the_gradients():
    """The next ones take their memory; otherwise a step works on two sets of gradients, and leaves the cache."""
    grads = [torch.ones(3, 2)]
    kept = weakref.ref(grads[0])
    optimizer = PrefixOptimizer(functools.partial(torch.optim.SGD, momentum=0.9), lr=0.05)
    optimizer.step([torch.zeros(3, 2)], grads)
    del grads
    assert kept() is None


def test_updates_happen_in_the_clients_own_memory():
    tensor = staged(numbers(3, 2, 3, 2, 2, seed=0))
    data, before = tensor.data_ptr(), tensor.clone()
    optimizer = PrefixOptimizer(functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9), lr=0.5)
    ones = torch.ones(3, 2, 3, 2, 2, dtype=torch.float64)
    optimizer.step([tensor], [ones])
    optimizer.step([tensor[:1]], [ones[:1]])
    assert tensor.data_ptr() == data
    assert memory(tensor).is_contiguous()
    torch.testing.assert_close(before - tensor, torch.tensor([1.45, 0.5, 0.5]).double().view(3, 1, 1, 1, 1) * ones)


class Own(torch.optim.SGD):
    """A user's own optimizer."""


@pytest.mark.parametrize(
    ("make", "fused"),
    [
        (functools.partial(torch.optim.SGD, lr=0.1), True),
        (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1), True),
        (functools.partial(torch.optim.Adam, lr=0.1, betas=(0.5, 0.6)), True),
        (functools.partial(torch.optim.AdamW, lr=0.1), True),
        (functools.partial(torch.optim.RMSprop, lr=0.1), False),
        (functools.partial(torch.optim.NAdam, lr=0.1), False),
        (functools.partial(torch.optim.SGD, lr=0.1, foreach=True), False),
        (functools.partial(torch.optim.SGD, lr=0.1, foreach=False), False),
        (functools.partial(torch.optim.SGD, lr=0.1, fused=False), False),
        (functools.partial(torch.optim.Adam, lr=0.1, fused=False), False),
        (functools.partial(torch.optim.Adam, lr=0.1, fused=True), True),
        (functools.partial(torch.optim.Adam, lr=0.1, differentiable=True), False),
        (functools.partial(torch.optim.Adam, lr=0.1, capturable=True), False),
        (functools.partial(torch.optim.Adam, lr=torch.tensor(0.1)), False),
        (functools.partial(Own, lr=0.1), False),
        (lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.5), True),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],  # the same in every process
)
def test_the_fused_kernel_is_taken_where_nobody_chose_another(make, fused):
    asked = make([nn.Parameter(torch.zeros(2))]).defaults
    found = _fused_if_possible(make)([nn.Parameter(torch.zeros(2))])
    assert bool(found.defaults.get("fused")) == fused
    ours = {key: value for key, value in found.defaults.items() if key != "fused"}
    assert ours == {key: value for key, value in asked.items() if key != "fused"}
