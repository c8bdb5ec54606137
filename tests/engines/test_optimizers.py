"""The user's optimizer for one client's parameters, and the optimizers that are accepted."""

import functools

import pytest
import torch
from torch import nn

from dfl_lightning.engines.optimizing.optimizers import ELEMENTWISE, ClientOptimizer
from dfl_lightning.utils.errors import UserError


class Own(torch.optim.SGD):
    """A user's own optimizer."""


class Draws(torch.optim.SGD):
    """Langevin dynamics, with torch's global generator."""

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad += torch.randn_like(p)
        return super().step(closure)


def network(*shapes):
    """A module that has parameters of these shapes and does nothing."""
    module = nn.Module()
    for number, shape in enumerate(shapes):
        module.register_parameter(f"p{number}", nn.Parameter(torch.ones(shape)))
    return module


NET = network((2, 3), (3,), ())


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_optimizers_need_no_trial(name):
    kind = getattr(torch.optim, name)
    assert ClientOptimizer(functools.partial(kind, lr=0.1), NET).elementwise
    assert not ClientOptimizer(type("Mine", (kind,), {}), NET).elementwise


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_optimizers_update_numbers_together_as_alone(name):
    kind = functools.partial(getattr(torch.optim, name), lr=0.1)
    start, grads = torch.tensor([[0.5, -2.0], [3.0, 0.1]]), torch.tensor([[1.0, -1e3], [1e-3, 2.0]])

    def run(values, gradients):
        p = torch.nn.Parameter(values.clone())
        optimizer = kind([p])
        for step in range(4):
            p.grad = gradients * (1 - 0.4 * step)
            optimizer.step()
        return p.detach()

    together = run(start, grads)
    for i in range(2):
        for j in range(2):
            torch.testing.assert_close(together[i, j], run(start[i, j], grads[i, j]), rtol=1e-6, atol=1e-7)


def test_a_known_optimizer_that_was_changed_needs_a_trial():
    def hooked(parameters):
        optimizer = torch.optim.SGD(parameters)
        optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: None)
        return optimizer

    def patched(parameters):
        optimizer = torch.optim.SGD(parameters)
        optimizer.step = functools.partial(torch.optim.SGD.step, optimizer)
        return optimizer

    assert not ClientOptimizer(hooked, NET).elementwise
    assert not ClientOptimizer(patched, NET).elementwise


@pytest.mark.parametrize(
    ("factory", "net"),
    [(Own, NET), (torch.optim.Adafactor, NET), (torch.optim.Muon, network((2, 3), (3, 4))), (torch.optim.Adam, NET)],
    ids=["own", "Adafactor", "Muon", "Adam"],
)
def test_optimizers_that_need_only_gradients_are_accepted(factory, net):
    optimizer = ClientOptimizer(factory, net)
    before = torch.get_rng_state()
    optimizer.check([[0, 1], [1]])
    assert torch.equal(torch.get_rng_state(), before)
    assert all(bool((p == 1).all()) and p.grad is None for p in net.parameters())


def other_parameters(parameters):
    return torch.optim.SGD([nn.Parameter(torch.zeros(2))])


class NoRate(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})


@pytest.mark.parametrize(
    ("factory", "sentence"),
    [
        (torch.optim.LBFGS, r"^model\.optimizer LBFGS cannot take a step .*closure.*; choose another, for example SGD"),
        (torch.optim.SparseAdam, r"^model\.optimizer SparseAdam cannot take a step .*dense gradients"),
        (torch.optim.Muon, r"^model\.optimizer cannot be made for the parameters of Module \(Muon only supports 2D"),
        (lambda parameters: torch.optim.SGD(parameters, lr=-1), r"cannot be made .*\(Invalid learning rate: -1\)$"),
        (lambda parameters: list(parameters), r"^model\.optimizer makes a list, not a torch\.optim\.Optimizer$"),
        (Draws, r"^model\.optimizer Draws draws from torch's global generator"),
        (
            other_parameters,
            r"^model\.optimizer SGD updates other parameters than those that its factory gets; pass these on$",
        ),
        (NoRate, r"^model\.optimizer NoRate has a group of parameters without a learning rate 'lr'$"),
    ],
    ids=["LBFGS", "SparseAdam", "Muon", "negative", "list", "draws", "other", "no rate"],
)
def test_others_are_refused_in_one_sentence(factory, sentence):
    with pytest.raises(UserError, match=sentence):
        ClientOptimizer(factory, NET).check([[0, 1, 2]])


# --- groups
def by_dimensions(parameters, kind=torch.optim.SGD, **options):
    """Weights decay, biases do not and are faster."""
    many, few = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim <= 1]
    return kind([{"params": many, "weight_decay": 0.1}, {"params": few, "lr": 5.0, "name": "few"}], lr=0.5, **options)


def groups_of(optimizer):
    return [([id(p) for p in group["params"]], group) for group in optimizer.param_groups]


def test_groups_are_those_of_the_plain_parameters():
    net = network((2, 3), (3,), (), (4, 1))
    net.p2.requires_grad_(False)
    optimizer = ClientOptimizer(by_dimensions, net)
    assert optimizer.members == ([0, 2], [1])  # the frozen p2 does not count
    assert [options["lr"] for options in optimizer.groups] == [0.5, 5.0]
    assert [options["weight_decay"] for options in optimizer.groups] == [0.1, 0]
    assert optimizer.hyperparameters == ({"lr": 0.5}, {"lr": 5.0})


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, Own], ids=["SGD", "Adagrad", "own"])
def test_groups_apply_to_stacked_tensors(kind):
    net = network((2, 3), (3,), (), (4, 1))
    optimizer = ClientOptimizer(functools.partial(by_dimensions, kind=kind), net)
    stacked = [nn.Parameter(torch.zeros(2, *p.shape)) for p in net.parameters()]
    (weights, first), (others, second) = groups_of(optimizer.make(stacked, [0, 1, 2, 3], ({"lr": 0.3}, {"lr": 0.4})))
    assert weights == [id(stacked[0]), id(stacked[3])]
    assert others == [id(stacked[1]), id(stacked[2])]
    assert (first["lr"], first["weight_decay"]) == (0.3, 0.1)
    assert (second["lr"], second["weight_decay"], second["name"]) == (0.4, 0, "few")
    (weights, _), (others, second) = groups_of(optimizer.make(stacked[1:3], [1, 2], ({"lr": 0.3}, {"lr": 0.4})))
    assert not weights
    assert others == [id(stacked[1]), id(stacked[2])]
    assert second["lr"] == 0.4


def test_a_factory_may_tell_the_network_s_own_parameters_apart():
    net = network((2, 2), (2, 2), (2, 2))
    net.p1.slow = True

    def factory(parameters, kind=torch.optim.SGD):
        slow = [p for p in parameters if hasattr(p, "slow")]
        return kind([{"params": [p for p in parameters if not hasattr(p, "slow")]}, {"params": slow, "lr": 0.1}], lr=1)

    for kind in (torch.optim.SGD, Own):
        optimizer = ClientOptimizer(functools.partial(factory, kind=kind), net)
        others = [nn.Parameter(torch.zeros(2, 2)) for _ in range(3)]
        found = groups_of(optimizer.make(others, [0, 1, 2], optimizer.hyperparameters))
        assert [members for members, _ in found] == [[id(others[0]), id(others[2])], [id(others[1])]]
        assert [group["lr"] for _, group in found] == [1, 0.1]


class Early(torch.optim.Adagrad):
    """Makes its state when it is made."""


def test_a_state_made_before_the_first_step_is_refused():
    optimizer = ClientOptimizer(functools.partial(by_dimensions, kind=Early), NET)
    optimizer.make([nn.Parameter(torch.zeros(2, 3)), nn.Parameter(torch.zeros(3))], [0, 1], optimizer.hyperparameters)
    stacked = [nn.Parameter(torch.zeros(2, *p.shape)) for p in NET.parameters()]
    with pytest.raises(UserError, match=r"model\.optimizer Early creates its state in __init__"):
        optimizer.make(stacked, [0, 1, 2], optimizer.hyperparameters)


def test_parameters_that_the_factory_leaves_out_stay_out():
    optimizer = ClientOptimizer(lambda ps: torch.optim.SGD([p for p in ps if p.ndim > 1]), NET)
    assert optimizer.members == ([0],)
    assert groups_of(optimizer.make([nn.Parameter(torch.zeros(3))], [1], ({"lr": 1.0},)))[0][0] == []


def test_schedules_read_a_tensor_rate_as_a_number():
    rate = torch.tensor(0.25)
    optimizer = ClientOptimizer(functools.partial(torch.optim.Adam, lr=rate), NET)
    assert optimizer.hyperparameters == ({"lr": 0.25},)
    (group,) = optimizer.stub().param_groups
    group["lr"] *= 2
    assert isinstance(group["lr"], float)
    assert rate == 0.25


# --- fused kernels
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
        (by_dimensions, True),
        (functools.partial(by_dimensions, foreach=True), False),
        (lambda parameters: torch.optim.SGD([{"params": parameters, "foreach": True}]), False),
    ],
    ids=lambda value: str(value).partition(" at 0x")[0],  # the same in every process
)
def test_the_fused_kernel_is_the_default(make, fused):
    parameters = [nn.Parameter(p.detach().clone()) for p in NET.parameters()]
    asked = make(parameters)
    optimizer = ClientOptimizer(make, NET)
    found = optimizer.fused_on("cpu").make(parameters, [0, 1, 2], tuple({} for _ in optimizer.groups))
    assert not any(group.get("capturable") for group in found.param_groups)  # which torch takes on GPUs only
    assert bool(found.defaults.get("fused")) == fused
    for ours, theirs in zip([found.defaults, *found.param_groups], [asked.defaults, *asked.param_groups], strict=True):
        assert bool(ours.get("fused")) == fused
        rest = {key: value for key, value in ours.items() if key not in ("fused", "params", "capturable")}
        assert rest == {key: value for key, value in theirs.items() if key not in ("fused", "params", "capturable")}
