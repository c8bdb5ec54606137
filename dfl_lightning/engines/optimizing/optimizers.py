"""The user's optimizer: what it is for one client's parameters, to be made again for other tensors."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dfl_lightning.utils.errors import UserError, is_out_of_memory, reason
from dfl_lightning.utils.randomness.global_generators import changed, states

ELEMENTWISE = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
"""Optimizers of `torch.optim` that update every number from its own history, so that clients can be stacked."""

Factory = Callable[..., torch.optim.Optimizer]
"""Parameters -> optimizer."""

Hyperparameters = tuple[dict[str, Any], ...]
"""For each group of parameters, the options that a round sets: its `lr`, and what a schedule has changed besides."""

DEFAULT_OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
"""Where no optimizer is named; one that is named has torch's own defaults."""

TRIAL_STEPS = 2
"""Steps that an optimizer of unknown kind takes before the run, to see that it can."""


class ClientOptimizer:
    """What the user's factory makes of one client's parameters: a kind of optimizer, groups and their options.

    The factory sees the network's own parameters, with plain shapes, all trainable ones at once. Which of them go
    together in a group, and with which options, then holds for every phase and for any other tensors in their place:
    those of a client in the loop, or those of many clients side by side.

    Args:
        factory: parameters -> optimizer.
        network: the plain network.

    Attributes:
        kind: the optimizer's class.
        groups: the options of each group, everything but its parameters.
        members: the places of each group's parameters in `network.parameters()`.
        elementwise: whether clients can be stacked without a trial.
        capturable: whether the user asked for `capturable`, which torch takes on GPUs only; see `on`.

    Raises:
        UserError: the factory fails, or makes no optimizer with a learning rate for every group.
    """

    def __init__(self, factory: Factory, network: nn.Module) -> None:
        self._factory = factory
        self._own = {place: p for place, p in enumerate(network.parameters()) if p.requires_grad}
        try:
            optimizer = factory(list(self._own.values()))
        except Exception as error:
            raise UserError(
                f"model.optimizer cannot be made for the parameters of {type(network).__name__} ({reason(error)})"
            ) from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UserError(f"model.optimizer makes a {type(optimizer).__name__}, not a torch.optim.Optimizer")
        self.kind = type(optimizer)
        place_of = {id(p): place for place, p in self._own.items()}
        self.groups: tuple[dict[str, Any], ...] = tuple(_options(group) for group in optimizer.param_groups)
        if any(id(p) not in place_of for group in optimizer.param_groups for p in group["params"]):
            raise UserError(f"model.optimizer {self.name} is made for other parameters than those it was given")
        self.members = tuple([place_of[id(p)] for p in group["params"]] for group in optimizer.param_groups)
        if not all("lr" in options for options in self.groups):
            raise UserError(f"model.optimizer {self.name} has a group of parameters without a learning rate 'lr'")
        # A constructor of torch's makes the same again from groups and defaults; hooks and the like would be lost.
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        touched = any(hooks) or "step" in vars(optimizer)
        self.of_torch = self.kind.__module__.startswith("torch.optim.") and not touched
        self.elementwise = self.of_torch and self.kind in {getattr(torch.optim, name) for name in ELEMENTWISE}
        accepted = inspect.signature(self.kind.__init__).parameters
        self._arguments = {name: value for name, value in optimizer.defaults.items() if name in accepted}
        self.capturable = any(bool(options.get("capturable")) for options in self.groups)
        self._captures = False  # where no device was said, it is the CPU

    @property
    def name(self) -> str:
        """The name of its class."""
        return self.kind.__name__

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Those of a run without a schedule: the groups' own learning rates."""
        return tuple({"lr": plain_number(options["lr"])} for options in self.groups)

    def make(
        self, parameters: Sequence[nn.Parameter], places: Sequence[int], hyperparameters: Hyperparameters
    ) -> torch.optim.Optimizer:
        """A fresh optimizer.

        Args:
            parameters: the tensors to update; plain or stacked ones.
            places: which of the network's parameters each of them stands for.
            hyperparameters: options of the groups in place of their own.

        Raises:
            UserError: the groups of a user's own class cannot be carried over to these tensors.
        """
        given = dict(zip(places, parameters, strict=True))
        members = [[given[place] for place in group if place in given] for group in self.members]
        if self.of_torch:
            groups = [{**options, "params": tensors} for options, tensors in zip(self.groups, members, strict=True)]
            optimizer, present = self.kind(groups, **self._arguments), hyperparameters
        else:
            optimizer, present = self._by_factory(list(parameters), members, hyperparameters)
        for group, fields in zip(optimizer.param_groups, present, strict=True):
            group.update(fields)
            if self.capturable and not self._captures:
                group["capturable"] = False
        return optimizer

    def on(self, device: torch.device) -> ClientOptimizer:
        """The same for parameters on a device: `capturable` holds on GPUs, and is left out on a CPU."""
        placed = copy.copy(self)
        placed._captures = device.type != "cpu"
        return placed

    def stub(self) -> torch.optim.Optimizer:
        """An optimizer with the same groups and a number in the place of each one's parameters, for schedules to move.

        Learning rates that are tensors become numbers: a schedule would write into the user's own tensor.
        """
        optimizer = self._factory(list(self._own.values()))
        optimizer.state.clear()
        for group in optimizer.param_groups:
            group.pop("param_names", None)
            group |= {name: plain_number(value) for name, value in group.items() if name != "params"}
            group["params"] = [nn.Parameter(torch.zeros(()))]
        return optimizer

    def check(self, trained: Sequence[Sequence[int]]) -> None:
        """Refuse what cannot take steps from gradients alone, or draws numbers that cannot be drawn again.

        Optimizers of torch that are known to act on every number by itself need no trial.

        Args:
            trained: for each phase of local training, the places of the parameters that it trains.

        Raises:
            UserError: names the optimizer and what is in the way.
        """
        if self.elementwise:
            return
        for places in trained:
            with torch.random.fork_rng(devices=[]):
                before = states()
                self._take_steps(places)
                drawn = changed(before)
                if drawn:
                    raise UserError(
                        f"model.optimizer {self.name} draws from {' and '.join(drawn)}, which is not saved, so that "
                        "no run could be resumed; draw from a torch.Generator of its own, seeded in __init__"
                    )

    @property
    def states(self) -> int:
        """How many numbers it keeps for each number of a model, at most."""
        shaped = [[place for place in members if self._own[place].dim()] for members in self.members]
        places = [min(members, key=lambda place: self._own[place].numel()) for members in shaped if members]
        if not places:
            return 0
        optimizer, parameters = self._trial(places)
        optimizer.step()
        kept = [optimizer.state[parameter].values() for parameter in parameters]
        return max((sum(torch.is_tensor(value) and value.dim() > 0 for value in values) for values in kept), default=0)

    def remembered(self) -> dict[str, torch.dtype | None]:
        """What it remembers of each parameter from step to step, by name, as two steps of a trial show.

        Returns:
            None for a tensor of the parameter's shape; the type of a single number.

        Raises:
            UserError: it remembers something else, or something that is no parameter's, so that a state cannot be kept.
        """
        places = self._of_each_group() if self.elementwise else sorted(self._own)
        with torch.random.fork_rng(devices=[]):
            optimizer, parameters = self._trial(places, dimensions=1)
            before = self._settings(optimizer)
            for _ in range(TRIAL_STEPS):
                optimizer.step()
        changed = [name for name, value in self._settings(optimizer).items() if not same_value(value, before.get(name))]
        if changed:
            raise UserError(
                f"model.keep_optimizer: {self.name} changes its own '{changed[0]}' from step to step, which belongs to "
                "no parameter and is not kept; set model.keep_optimizer to false, or choose another optimizer"
            )
        found: dict[str, torch.dtype | None] = {}
        for parameter in parameters:
            for name, value in optimizer.state.get(parameter, {}).items():
                like_it = isinstance(value, Tensor) and value.shape == parameter.shape
                kind = None if like_it else _number_type(value)
                if value is not None and ((kind is None and not like_it) or found.setdefault(name, kind) != kind):
                    raise UserError(
                        f"model.keep_optimizer: {self.name} remembers '{name}', which is neither a tensor of its "
                        "parameter's shape nor a number; set model.keep_optimizer to false, or choose another optimizer"
                    )
        return found

    def _settings(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Options of all groups by name, and what an optimizer of the user's own has as attributes."""
        found: dict[str, Any] = {}
        if not self.of_torch:
            simple = int | float | Tensor
            found = {name: value for name, value in vars(optimizer).items() if isinstance(value, simple)}
            drawn = {name: value for name, value in vars(optimizer).items() if isinstance(value, torch.Generator)}
            found |= {name: generator.get_state() for name, generator in drawn.items()}
        for number, group in enumerate(optimizer.param_groups):
            options = _options(group)
            found |= {f"{name} of group {number}" if number else name: value for name, value in options.items()}
        return copy.deepcopy(found)

    def _of_each_group(self) -> list[int]:
        """The smallest parameter of each group."""
        return [min(members, key=lambda place: self._own[place].numel()) for members in self.members if members]

    def fused_on(self, device: torch.device | str) -> ClientOptimizer:
        """The same with its fused kernel, where it has one there and the user has not chosen another."""
        device = torch.device(device)
        options = [self._arguments, *self.groups]
        asked = any(o.get(name) is not None for o in options for name in ("foreach", "fused"))
        asked |= any(o.get(name) for o in options for name in ("capturable", "differentiable"))
        tensors = any(torch.is_tensor(value) for o in options for value in o.values())
        if not self.of_torch or "fused" not in self._arguments or asked or tensors:
            return self.on(device)
        fused = self.on(device)
        fused._arguments = self._arguments | {"fused": True}
        fused.groups = tuple(options | {"fused": True} for options in self.groups)
        if device.type != "cpu":
            trial = nn.Parameter(torch.zeros(1, device=device))
            trial.grad = torch.zeros_like(trial)
            try:
                self.kind([trial], **fused._arguments).step()
            except RuntimeError as error:  # torch's way to say that it has no such kernel there
                if is_out_of_memory(error):
                    raise  # which says nothing about kernels
                return self.on(device)
        return fused

    def device_of_numbers(self, device: torch.device) -> torch.device:
        """Return where the single numbers of a state lie: on the CPU, unless its kernels must not wait for a GPU.

        Args:
            device: of the parameters.
        """
        there = any(o.get("fused") or (o.get("capturable") and self._captures) for o in self.groups)
        return device if there else torch.device("cpu")

    def works_on_tensors_alone(self, device: torch.device) -> bool:
        """Whether a step needs no number on the host, so that it can be recorded with learning rates that change."""
        fused = all(options.get("fused") for options in self.groups)
        return self.of_torch and (fused or (device.type == "cuda" and "capturable" in self._arguments))

    def _by_factory(
        self, parameters: list[nn.Parameter], members: list[list[nn.Parameter]], hyperparameters: Hyperparameters
    ) -> tuple[torch.optim.Optimizer, Hyperparameters]:
        """An optimizer of the user's own class, and what each of its groups gets.

        The factory makes it, if it sorts these tensors as it did the network's own; else the groups that it made of
        those get these tensors in the place of theirs, which only works before there is any state.
        """
        wanted = [
            (tensors, options, fields)
            for tensors, options, fields in zip(members, self.groups, hyperparameters, strict=True)
            if tensors
        ]
        optimizer = self._factory(parameters)
        found = [group for group in optimizer.param_groups if group["params"]]
        alike = len(found) == len(wanted) == len(optimizer.param_groups) and all(
            list(map(id, group["params"])) == list(map(id, tensors)) and same_options(_options(group), options)
            for group, (tensors, options, _) in zip(found, wanted, strict=True)
        )
        if alike:
            return optimizer, tuple(fields for _, _, fields in wanted)
        optimizer = self._factory(list(self._own.values()))
        if optimizer.state:
            raise UserError(
                f"model.optimizer {self.name} makes its state when it is made, and its groups depend on more than the "
                "shapes of the parameters it is given; make the state in the first step"
            )
        for group, tensors in zip(optimizer.param_groups, members, strict=True):
            group["params"] = tensors
        return optimizer, hyperparameters

    def _trial(self, places: Sequence[int], dimensions: int = 0) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
        """An optimizer of copies of the network's own parameters, and these, with gradients to take a step from.

        Args:
            places: which parameters.
            dimensions: parameters without dimensions get one, if this is 1.
        """
        parameters = [nn.Parameter(self._own[place].detach().clone()) for place in places]
        if dimensions:
            parameters = [p if p.dim() else nn.Parameter(p.detach()[None]) for p in parameters]
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 1e-3)
        return self.make(parameters, places, self.hyperparameters), parameters

    def _take_steps(self, places: Sequence[int]) -> None:
        try:
            optimizer, _ = self._trial(places)
            for _ in range(TRIAL_STEPS):
                optimizer.step()
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"model.optimizer {self.name} cannot take a step from the gradients of a batch alone "
                f"({reason(error)}); choose another, for example SGD or Adam"
            ) from error


def name_of(factory: Callable[..., Any]) -> str:
    """What a factory is called: the class whose arguments it binds, or its own name."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__name__", type(factory).__name__)


def plain_number(value: Any) -> Any:
    """A tensor with a single number as that number, also inside a tuple; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(map(plain_number, value))
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def same_options(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Whether two parameter groups have equal options.

    Args:
        some: options by name.
        others: those of the other group.
    """
    return some.keys() == others.keys() and all(same_value(value, others[name]) for name, value in some.items())


def same_value(one: Any, other: Any) -> bool:
    """Whether two options are equal; NaN equals NaN.

    Args:
        one: a value.
        other: the other one.
    """
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    return one is other or bool(one == other)


def _number_type(value: Any) -> torch.dtype | None:
    """The type of a single number, float64 for Python's own; None for anything else."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.dtype
    return torch.float64 if isinstance(value, int | float) else None


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """A group without its parameters and their names."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}
