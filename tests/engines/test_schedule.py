"""Optimizer groups under a schedule, round by round, against torch's own optimizers and schedules."""

import functools
import itertools
import random

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from dfl_lightning.engines.optimizing.optimizers import ClientOptimizer
from dfl_lightning.engines.optimizing.schedule import Schedule
from dfl_lightning.utils.errors import UserError

NET = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))


def by_dimensions(parameters, kind=torch.optim.SGD, **options):
    few = [p for p in parameters if p.ndim <= 1]
    return kind([{"params": [p for p in parameters if p.ndim > 1]}, {"params": few, "lr": 2.0}], lr=0.5, **options)


def schedule(optimizer, make):
    return Schedule(ClientOptimizer(optimizer, NET), make)


def torchs(optimizer, make, rounds):
    """The groups of an ordinary optimizer whose schedule takes a step a round, as torch has them."""
    optimizer = optimizer(list(NET.parameters()))
    scheduler = make(optimizer)
    for _ in range(rounds):
        yield [dict(group) for group in optimizer.param_groups]
        optimizer.step()
        scheduler.step()


MOMENTUM = functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)
CASES = {
    "step": (MOMENTUM, lambda o: schedules.StepLR(o, 2, gamma=0.3)),
    "one cycle": (MOMENTUM, lambda o: schedules.OneCycleLR(o, 0.5, total_steps=9)),
    "one cycle, betas": (torch.optim.Adam, lambda o: schedules.OneCycleLR(o, 0.5, total_steps=9)),
    "one cycle, without": (MOMENTUM, lambda o: schedules.OneCycleLR(o, 0.5, total_steps=9, cycle_momentum=False)),
    "cyclic": (MOMENTUM, lambda o: schedules.CyclicLR(o, 0.1, 0.4, step_size_up=3)),
    "groups": (by_dimensions, lambda o: schedules.LambdaLR(o, [lambda r: 0.9**r, lambda r: 1 / (1 + r)])),
    "groups, one cycle": (
        functools.partial(by_dimensions, momentum=0.5),
        lambda o: schedules.OneCycleLR(o, [0.5, 0.7], total_steps=9),
    ),
    "chained": (
        MOMENTUM,
        lambda o: schedules.ChainedScheduler([schedules.ExponentialLR(o, 0.9), schedules.ConstantLR(o, 0.5, 3)]),
    ),
    "sequential": (
        MOMENTUM,
        lambda o: schedules.SequentialLR(
            o, [schedules.LinearLR(o, 0.1, total_iters=3), schedules.CosineAnnealingLR(o, 4)], milestones=[3]
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_groups_of_a_round_equal_torchs(case):
    optimizer, make = CASES[case]
    found = schedule(optimizer, make)
    own = ClientOptimizer(optimizer, NET).groups
    expected = list(torchs(optimizer, make, 8))
    changed = set()
    for round, groups in enumerate(expected):
        for options, fields, group in zip(own, found.at(round), groups, strict=True):
            assert "lr" in fields
            assert {**options, **fields} == {name: group[name] for name in options}
            changed |= {name for name in options if group[name] != options[name]} - {"lr"}
    assert found.check(7) == tuple(sorted(changed))
    assert changed == {"one cycle": {"momentum"}, "cyclic": {"momentum"}, "one cycle, betas": {"betas"}}.get(
        case, {"momentum"} if case == "groups, one cycle" else set()
    )
    order = [3, 3, 7, 0, 5]  # a boundary may be loaded again
    again = schedule(optimizer, make)
    assert [again.at(round) for round in order] == [schedule(optimizer, make).at(round) for round in order]


def test_without_a_schedule_every_round_has_the_groups_own_rates():
    constant = schedule(by_dimensions, None)
    assert constant.at(0) == constant.at(1000) == ({"lr": 0.5}, {"lr": 2.0})
    assert constant.check(10**9) == ()


def test_the_stub_has_the_rates_of_the_round():
    """LearningRateMonitor reads it there."""
    found = schedule(by_dimensions, lambda o: schedules.ExponentialLR(o, 0.5))
    found.at(2)
    assert [group["lr"] for group in found.stub.param_groups] == [0.125, 0.5]
    assert sum(p.numel() for group in found.stub.param_groups for p in group["params"]) == 2


class Writes(schedules.LRScheduler):
    """A user's own schedule that writes what it likes."""

    def __init__(self, optimizer, **fields):
        self.fields = fields
        super().__init__(optimizer)

    def get_lr(self):
        for group in self.optimizer.param_groups:
            group.update({name: values[min(self.last_epoch, 3)] for name, values in self.fields.items()})
        return [group["lr"] for group in self.optimizer.param_groups]


def test_every_option_of_a_group_can_be_scheduled():
    found = schedule(MOMENTUM, lambda o: Writes(o, weight_decay=[0, 0.1, 0.2, 0.3], notes=[1, 2, 3, 4]))
    assert [found.at(round) for round in range(3)] == [
        ({"lr": 0.1},),
        ({"lr": 0.1, "weight_decay": 0.1},),
        ({"lr": 0.1, "weight_decay": 0.2},),
    ]
    assert found.check(2) == ("weight_decay",)


nan = float("nan")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (
            lambda o: schedules.OneCycleLR(o, 0.5, total_steps=5),
            r"^model\.lr_scheduler OneCycleLR gives no learning rate for round 7 \(Tried to step 6 times.*5\); "
            r"it must last for all trainer\.max_rounds$",
        ),
        (lambda o: schedules.StepLR(o, 0), r"^model\.lr_scheduler StepLR gives no learning rate for round 2 \(integer"),
        (lambda o: schedules.OneCycleLR(o, 0.5), r"^model\.lr_scheduler cannot be made \(You must define either"),
        (lambda o: schedules.ReduceLROnPlateau(o), r"^model\.lr_scheduler ReduceLROnPlateau depends on metrics"),
        (lambda o: "a rate", r"^model\.lr_scheduler str is not a schedule of torch\.optim\.lr_scheduler$"),
        (
            lambda o: schedules.StepLR(torch.optim.SGD(NET.parameters()), 1),
            r"^model\.lr_scheduler StepLR changes another optimizer than its factory gets$",
        ),
        (
            lambda o: schedules.LambdaLR(o, lambda r: nan if r == 4 else 1),
            r"^model\.lr_scheduler LambdaLR: 'lr' is nan in round 5; it must be a number, 0 or more$",
        ),
        (lambda o: schedules.LambdaLR(o, lambda r: 1 - r), r"LambdaLR: 'lr' is -0\.1 in round 3"),
        (lambda o: Writes(o, lr=[0.1, float("inf"), 0, 0]), r"Writes: 'lr' is inf in round 2"),
        (lambda o: Writes(o, momentum=[0.9, -0.5, 0, 0]), r"Writes: 'momentum' is -0\.5 in round 2"),
        (lambda o: Writes(o, momentum=[0.9, None, 0, 0]), r"Writes: 'momentum' is None in round 2"),
        (lambda o: schedules.LambdaLR(o, lambda r: random.random()), r"LambdaLR gives .* the second time; it must "),
    ],
    ids=lambda value: None if callable(value) else value[:40],
)
def test_schedules_that_end_early_are_refused_before_the_run(make, sentence):
    with pytest.raises(UserError, match=sentence):
        schedule(MOMENTUM, make).check(9)


def test_betas_stay_below_one():
    with pytest.raises(UserError, match=r"Writes: 'betas' are \(1, 0\.9\) in round 3; they must be below 1"):
        schedule(torch.optim.Adam, lambda o: Writes(o, betas=[(0.9, 0.9), (0.5, 0.9), (1, 0.9), (1, 1)])).check(9)


def test_a_schedule_may_end_with_the_run():
    make = functools.partial(schedules.OneCycleLR, max_lr=0.5, total_steps=5)
    assert schedule(MOMENTUM, make).check(5) == ("momentum",)
    with pytest.raises(UserError, match="round 7"):
        schedule(MOMENTUM, make).check(6)


def test_a_schedule_with_hidden_state_is_refused():
    count = itertools.count()
    with pytest.raises(UserError, match="must depend on the round alone"):
        schedule(MOMENTUM, lambda o: schedules.LambdaLR(o, lambda r: next(count) + 1.0)).check(3)


def test_a_nonfinite_rate_is_refused_without_a_schedule():
    with pytest.raises(UserError, match=r"^model\.optimizer SGD: 'lr' is nan in round 1"):
        schedule(functools.partial(torch.optim.SGD, lr=nan), None).check(0)
