"""The user's optimizer on stacked clients, whose number falls during a round, against an optimizer for each."""

import functools
import weakref

import pytest
import torch
from torch import nn

from dfl_lightning.engines.optimizing.optimizers import ELEMENTWISE, ClientOptimizer
from dfl_lightning.engines.stacked.optimizer import PrefixOptimizer
from dfl_lightning.engines.stacked.parameters import memory

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


def side_by_side(factory, shapes, *rates):
    """The optimizer of stacked clients with a network of these shapes, and with these learning rates."""
    network = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])
    optimizer = ClientOptimizer(factory, network).fused_on("cpu")
    present = tuple({"lr": rate} for rate in rates)
    return PrefixOptimizer(functools.partial(optimizer.make, places=range(len(shapes)), hyperparameters=present))


@pytest.mark.parametrize(("name", "options"), CHOSEN, ids=lambda value: str(value))
def test_every_client_has_an_optimizer_of_its_own_in_effect(name, options):
    kind = getattr(torch.optim, name)
    start = [numbers(len(STEPS), *shape, seed=i) for i, shape in enumerate(SHAPES)]
    grads = [[numbers(len(STEPS), *shape, seed=99 * s + i) for i, shape in enumerate(SHAPES)] for s in range(STEPS[0])]
    together = [staged(tensor) for tensor in start]
    optimizer = side_by_side(functools.partial(kind, lr=77.0, **options), SHAPES, 0.05)
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


def test_a_step_frees_the_gradients():
    """The next ones take their memory; otherwise a step works on two sets of gradients, and leaves the cache."""
    grads = [torch.ones(3, 2)]
    kept = weakref.ref(grads[0])
    optimizer = side_by_side(functools.partial(torch.optim.SGD, momentum=0.9), [(2,)], 0.05)
    optimizer.step([torch.zeros(3, 2)], grads)
    del grads
    assert kept() is None


def test_updates_happen_in_the_clients_own_memory():
    tensor = staged(numbers(3, 2, 3, 2, 2, seed=0))
    data, before = tensor.data_ptr(), tensor.clone()
    optimizer = side_by_side(functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9), [(2, 3, 2, 2)], 0.5)
    ones = torch.ones(3, 2, 3, 2, 2, dtype=torch.float64)
    optimizer.step([tensor], [ones])
    optimizer.step([tensor[:1]], [ones[:1]])
    assert tensor.data_ptr() == data
    assert memory(tensor).is_contiguous()
    torch.testing.assert_close(before - tensor, torch.tensor([1.45, 0.5, 0.5]).double().view(3, 1, 1, 1, 1) * ones)


def by_dimensions(parameters, kind=torch.optim.SGD):
    """Weights decay; others are twice as fast, with less momentum."""
    many, few = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    return kind([{"params": many, "weight_decay": 0.1}, {"params": few, "momentum": 0.5}], lr=0.05, momentum=0.9)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.RMSprop], ids=["fused", "plain"])
def test_parameter_groups_equal_those_of_each_client_alone(kind):
    """Stacked, a bias has one dimension more: the user's factory must not see that."""
    factory = functools.partial(by_dimensions, kind=kind)
    start = [numbers(2, *shape, seed=i) for i, shape in enumerate(SHAPES)]
    together = [staged(tensor) for tensor in start]
    optimizer = side_by_side(factory, SHAPES, 0.05, 0.1)
    alone = [[nn.Parameter(tensor[client].clone()) for tensor in start] for client in range(2)]
    own = [factory(parameters) for parameters in alone]
    for client in range(2):
        own[client].param_groups[1]["lr"] = 0.1
    for step in range(3):
        grads = [numbers(2, *shape, seed=50 * step + i) for i, shape in enumerate(SHAPES)]
        optimizer.step(together, grads)
        for client in range(2):
            for parameter, grad in zip(alone[client], grads, strict=True):
                parameter.grad = grad[client].clone()
            own[client].step()
    for client in range(2):
        for mine, theirs in zip(together, alone[client], strict=True):
            torch.testing.assert_close(mine[client], theirs.detach(), rtol=1e-10, atol=1e-10)
