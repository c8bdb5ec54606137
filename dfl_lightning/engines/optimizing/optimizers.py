"""User's optimizer: its kind, groups and options for one client's parameters, from which others are made."""

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
"""Elementwise optimizers of `torch.optim`, which update each number from its own history; they need no trial."""

Factory = Callable[..., torch.optim.Optimizer]
"""Parameters -> optimizer."""

Hyperparameters = tuple[dict[str, Any], ...]
"""For each group of parameters, the options that a round sets: its `lr`, and others that a schedule has changed."""

DEFAULT_OPTIMIZER = functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9)
"""Optimizer of a run that does not name one; a named optimizer has torch's own defaults."""

TRIAL_STEPS = 2
"""Number of steps that an optimizer of unknown kind takes in its trial before the run."""


class ClientOptimizer:
    """Kind, groups and options of the optimizer that the user's factory makes for one client's parameters.

    The factory is called once with all trainable parameters of the network, in their plain shapes. The groups that it
    forms, and their options, then hold for every phase, and for the tensors that replace these parameters: those of a
    client in the loop engine, or those of several stacked clients.

    Args:
        factory: parameters -> optimizer.
        network: the network for one client.

    Attributes:
        kind: the optimizer's class.
        groups: the options of each group, without its parameters.
        members: indices of each group's parameters among the network's trained parameters.
        elementwise: True if clients can be stacked without a trial.
        capturable: True if the user set `capturable`, which torch supports on GPUs only; see `on`.

    Raises:
        UserError: the factory fails, or does not make an optimizer with a learning rate for every group.
    """

    def __init__(self, factory: Factory, network: nn.Module) -> None:
        self._factory = factory
        self._own = dict(enumerate(p for p in network.parameters() if p.requires_grad))
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
            raise UserError(
                f"model.optimizer {self.name} updates other parameters than those that its factory gets; pass these on"
            )
        self.members = tuple([place_of[id(p)] for p in group["params"]] for group in optimizer.param_groups)
        if not all("lr" in options for options in self.groups):
            raise UserError(f"model.optimizer {self.name} has a group of parameters without a learning rate 'lr'")
        # A constructor of torch makes the same optimizer again from groups and defaults, but not its hooks.
        hooks = (optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks)
        touched = any(hooks) or "step" in vars(optimizer)
        self.of_torch = self.kind.__module__.startswith("torch.optim.") and not touched
        self.elementwise = self.of_torch and self.kind in {getattr(torch.optim, name) for name in ELEMENTWISE}
        accepted = inspect.signature(self.kind.__init__).parameters
        self._arguments = {name: value for name, value in optimizer.defaults.items() if name in accepted}
        self.capturable = any(bool(options.get("capturable")) for options in self.groups)
        self._captures = False  # Without a call of `on`, the device is the CPU.

    @property
    def name(self) -> str:
        """Name of the optimizer's class."""
        return self.kind.__name__

    @property
    def hyperparameters(self) -> Hyperparameters:
        """Hyperparameters of a run without a schedule: the groups' own learning rates."""
        return tuple({"lr": plain_number(options["lr"])} for options in self.groups)

    def make(
        self, parameters: Sequence[nn.Parameter], places: Sequence[int], hyperparameters: Hyperparameters
    ) -> torch.optim.Optimizer:
        """Make a fresh optimizer for some tensors.

        Args:
            parameters: the tensors to update, plain or stacked.
            places: for each tensor, the index of the network's trained parameter that it replaces.
            hyperparameters: options of the groups, instead of their own.

        Raises:
            UserError: the groups of a user's own class cannot be applied to these tensors.
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
        """Copy the optimizer for parameters on a device: `capturable` is kept on a GPU, and left out on a CPU."""
        placed = copy.copy(self)
        placed._captures = device.type != "cpu"
        return placed

    def stub(self) -> torch.optim.Optimizer:
        """Make an optimizer with the same groups, each with one number as its only parameter, for a schedule to step.

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
        """Refuse an optimizer that cannot step from gradients alone, or that draws from a global generator.

        Optimizers of torch that are known to be elementwise need no trial.

        Args:
            trained: for each phase of local training, the indices of the parameters that it trains.

        Raises:
            UserError: the optimizer is refused; the message names it and the reason.
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
        """Largest number of values that the optimizer keeps for one value of a model."""
        shaped = [[place for place in members if self._own[place].dim()] for members in self.members]
        places = [min(members, key=lambda place: self._own[place].numel()) for members in shaped if members]
        if not places:
            return 0
        optimizer, parameters = self._trial(places)
        optimizer.step()
        kept = [optimizer.state[parameter].values() for parameter in parameters]
        return max((sum(torch.is_tensor(value) and value.dim() > 0 for value in values) for values in kept), default=0)

    def remembered(self) -> dict[str, torch.dtype | None]:
        """Determine the entries of the optimizer's state for a parameter, by two steps of a trial.

        Returns:
            By name: None for a tensor of the parameter's shape, the type for a single number.

        Raises:
            UserError: the state cannot be kept, since it has entries of other kinds, or changes outside of the
                parameters' states.
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
                f"model.keep_optimizer: {self.name} changes '{changed[0]}' from step to step, which is not in a "
                "parameter's state and cannot be kept; set model.keep_optimizer to false, or choose another optimizer"
            )
        kinds: dict[str, torch.dtype | None] = {}
        for parameter in parameters:
            for name, value in optimizer.state.get(parameter, {}).items():
                like_it = isinstance(value, Tensor) and value.shape == parameter.shape
                kind = None if like_it else _number_type(value)
                if value is not None and ((kind is None and not like_it) or kinds.setdefault(name, kind) != kind):
                    raise UserError(
                        f"model.keep_optimizer: {self.name} remembers '{name}', which is neither a tensor of its "
                        "parameter's shape nor a number; set model.keep_optimizer to false, or choose another optimizer"
                    )
        return kinds

    def _settings(self, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Copy the options of all groups and, for a class of the user's own, its attributes; both by name."""
        settings: dict[str, Any] = {}
        if not self.of_torch:
            simple = int | float | Tensor
            settings = {name: value for name, value in vars(optimizer).items() if isinstance(value, simple)}
            generators = {name: value for name, value in vars(optimizer).items() if isinstance(value, torch.Generator)}
            settings |= {name: generator.get_state() for name, generator in generators.items()}
        for number, group in enumerate(optimizer.param_groups):
            options = _options(group)
            settings |= {f"{name} of group {number}" if number else name: value for name, value in options.items()}
        return copy.deepcopy(settings)

    def _of_each_group(self) -> list[int]:
        """Return the index of the smallest parameter of each group."""
        return [min(members, key=lambda place: self._own[place].numel()) for members in self.members if members]

    def fused_on(self, device: torch.device | str) -> ClientOptimizer:
        """Copy the optimizer for a device, with its fused kernel if it has one and the user has not chosen another."""
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
            except RuntimeError as error:  # Torch has no fused kernel for this device.
                if is_out_of_memory(error):
                    raise  # This says nothing about kernels.
                return self.on(device)
        return fused

    def device_of_numbers(self, device: torch.device) -> torch.device:
        """Return the device of a state's single numbers, given that of the parameters.

        It is the CPU, unless the optimizer's kernels (fused, capturable) read these numbers on the GPU.
        """
        there = any(o.get("fused") or (o.get("capturable") and self._captures) for o in self.groups)
        return device if there else torch.device("cpu")

    def works_on_tensors_alone(self, device: torch.device) -> bool:
        """Return True if a step needs no number on the host, so that a recorded step can have other learning rates."""
        fused = all(options.get("fused") for options in self.groups)
        return self.of_torch and (fused or (device.type == "cuda" and "capturable" in self._arguments))

    def _by_factory(
        self, parameters: list[nn.Parameter], members: list[list[nn.Parameter]], hyperparameters: Hyperparameters
    ) -> tuple[torch.optim.Optimizer, Hyperparameters]:
        """Make an optimizer of the user's own class, and return it with the options that each of its groups gets.

        If the factory groups these tensors as it grouped the network's parameters, its optimizer is used. Otherwise
        the tensors replace the parameters in the groups of the network's optimizer, which must not have a state yet.
        """
        wanted = [
            (tensors, options, fields)
            for tensors, options, fields in zip(members, self.groups, hyperparameters, strict=True)
            if tensors
        ]
        optimizer = self._factory(parameters)
        groups = [group for group in optimizer.param_groups if group["params"]]
        alike = len(groups) == len(wanted) == len(optimizer.param_groups) and all(
            list(map(id, group["params"])) == list(map(id, tensors)) and same_options(_options(group), options)
            for group, (tensors, options, _) in zip(groups, wanted, strict=True)
        )
        if alike:
            return optimizer, tuple(fields for _, _, fields in wanted)
        optimizer = self._factory(list(self._own.values()))
        if optimizer.state:
            raise UserError(
                f"model.optimizer {self.name} creates its state in __init__, and its groups depend on more than the "
                "shapes of its parameters; create the state in the first step"
            )
        for group, tensors in zip(optimizer.param_groups, members, strict=True):
            group["params"] = tensors
        return optimizer, hyperparameters

    def _trial(self, places: Sequence[int], dimensions: int = 0) -> tuple[torch.optim.Optimizer, list[nn.Parameter]]:
        """Make an optimizer for copies of some of the network's parameters; return it and the copies with gradients.

        Args:
            places: indices of the parameters.
            dimensions: 1: give parameters without dimensions one dimension; 0: keep all shapes.
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
    """Return the name of a factory: of the class whose arguments it binds, or its own name."""
    while isinstance(factory, functools.partial):
        factory = factory.func
    return getattr(factory, "__name__", type(factory).__name__)


def plain_number(value: Any) -> Any:
    """Convert a tensor with a single number to that number, also inside a tuple; return other values unchanged."""
    if isinstance(value, tuple):
        return tuple(map(plain_number, value))
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def same_options(some: Mapping[str, Any], others: Mapping[str, Any]) -> bool:
    """Return True if two parameter groups have equal options."""
    return some.keys() == others.keys() and all(same_value(value, others[name]) for name, value in some.items())


def same_value(one: Any, other: Any) -> bool:
    """Return True if two options are the same object or equal."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return isinstance(one, Tensor) and isinstance(other, Tensor) and torch.equal(one, other)
    return one is other or bool(one == other)


def _number_type(value: Any) -> torch.dtype | None:
    """Return the type of a single number, float64 for Python's own numbers; None for other values."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.dtype
    return torch.float64 if isinstance(value, int | float) else None


def _options(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a group, without its parameters and their names."""
    return {name: value for name, value in group.items() if name not in ("params", "param_names")}
