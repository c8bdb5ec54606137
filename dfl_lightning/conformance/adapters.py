"""The adapter of an implementation, which is loaded and run on every case that it offers."""

from __future__ import annotations

import copy
import difflib
import importlib
import importlib.util
import inspect
import math
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dfl_lightning.conformance.cases import MethodCase, MethodCases, difference
from dfl_lightning.utils.errors import UserError

__all__ = ["CaseOutcome", "MethodOutcome", "check_names", "load_adapter", "run_method"]

NEARNESS = 0.8
"""Similarity (difflib's ratio) from which a function's name counts as a misspelt method."""


@dataclass(frozen=True)
class CaseOutcome:
    """The outcome of a case.

    Attributes:
        case: name of the case.
        differences: difference of each output that the adapter returned.
        missing: outputs that it left out, which is allowed.
        refused: why the adapter does not offer the case; empty if it does.
        failed: the error that it raised; empty if there was none.
    """

    case: str
    differences: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    refused: str = ""
    failed: str = ""

    @property
    def largest(self) -> float:
        """The largest difference of an output; infinite if the adapter failed."""
        return math.inf if self.failed else max(self.differences.values(), default=0.0)


@dataclass(frozen=True)
class MethodOutcome:
    """The outcome of all cases of a method.

    Attributes:
        cases: the method and its cases.
        tolerance: largest difference up to which outputs agree.
        outcomes: outcome of each case; none if the adapter does not offer the method.
    """

    cases: MethodCases
    tolerance: float
    outcomes: tuple[CaseOutcome, ...]

    @property
    def offered(self) -> list[CaseOutcome]:
        """Outcomes of the cases that the adapter offers."""
        return [outcome for outcome in self.outcomes if not outcome.refused]

    @property
    def agreeing(self) -> int:
        """The number of cases in which all returned outputs agree."""
        return sum(outcome.largest <= self.tolerance for outcome in self.offered)

    @property
    def worst(self) -> CaseOutcome | None:
        """The case with the largest difference; None if no case is offered."""
        return max(self.offered, key=lambda outcome: outcome.largest, default=None)

    @property
    def agrees(self) -> bool | None:
        """True if all offered cases agree; None if no case is offered."""
        return self.agreeing == len(self.offered) if self.offered else None


def load_adapter(name: str) -> ModuleType:
    """Load a module by its import path, or by its file.

    Args:
        name: `package.module`, or a path that ends with .py.

    Raises:
        UserError: there is no such file or module.
    """
    try:
        return _module_of(Path(name)) if name.endswith(".py") else importlib.import_module(name)
    except ModuleNotFoundError as error:
        is_missing = f"{name}.".startswith(f"{error.name}.")  # the module itself, or a package that would contain it
        what = "there is no such module" if is_missing else f"it imports {error.name}, which is not installed"
        raise UserError(f"adapter {name}: {what}; name an importable module, or a file that ends with .py") from error


def _module_of(file: Path) -> ModuleType:
    if not file.is_file():
        raise UserError(f"adapter {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"adapter_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up the names in their annotations there
    spec.loader.exec_module(module)
    return module


def run_method(adapter: ModuleType, cases: MethodCases, tolerance: float | None = None) -> MethodOutcome:
    """Run an adapter on all cases of a method.

    Args:
        adapter: module with a function of the method's name, if it offers the method. The function gets the inputs of
            a case by keyword, and returns at least the main outputs by name. For a case that it does not offer, it
            raises NotImplementedError with a reason.
        cases: method and its cases.
        tolerance: largest difference up to which outputs agree; None: that of the cases.
    """
    function = getattr(adapter, cases.method, None)
    outcomes = () if function is None else tuple(_run_case(function, case, cases.main) for case in cases.cases)
    return MethodOutcome(cases, cases.tolerance if tolerance is None else tolerance, outcomes)


def _run_case(function: Any, case: MethodCase, main: Sequence[str]) -> CaseOutcome:
    try:
        returned = function(**copy.deepcopy(case.inputs))  # an adapter may change its inputs
    except NotImplementedError as error:
        return CaseOutcome(case.name, refused=str(error) or "not offered")
    except Exception as error:  # any error of an adapter is a result, which the table shows
        return CaseOutcome(case.name, failed=f"{type(error).__name__}: {error}")
    mistake = _mistake(returned, case.outputs, main)
    if mistake:
        return CaseOutcome(case.name, failed=mistake)
    differences = {name: difference(case.outputs[name], value) for name, value in returned.items()}
    return CaseOutcome(case.name, differences, tuple(name for name in case.outputs if name not in returned))


def _mistake(returned: Any, outputs: Collection[str], main: Sequence[str]) -> str:
    """Describe what is wrong with the result of an adapter; empty if it can be compared."""
    needed, others = ", ".join(main), ", ".join(name for name in outputs if name not in main)
    wanted = f"it must hold {needed}" + (f", and may hold {others}" if others else "")
    if not isinstance(returned, dict):
        return f"the adapter must return a dictionary of outputs, not {type(returned).__name__}; {wanted}"
    if not returned:
        return f"the adapter returned an empty dictionary of outputs; {wanted}"
    unknown = [name for name in returned if name not in outputs]
    if unknown:
        return f"the case has no output {unknown[0]}; it has {', '.join(outputs)}"
    missing = [name for name in main if name not in returned]
    return f"the adapter left out {', '.join(missing)}; {wanted}" if missing else ""


def check_names(adapter: ModuleType, methods: Collection[str]) -> list[str]:
    """Find the public functions of an adapter that no case runs.

    Args:
        adapter: module of the adapter.
        methods: names of the methods that have cases.

    Returns:
        Names of its own public functions that are not among the methods: helpers, or methods without cases.

    Raises:
        UserError: a function's name is close to that of a method that the adapter does not offer.
    """
    public = _public_callables(adapter)
    lacking = {_letters(name): name for name in methods if name not in public}
    others = [name for name in public if name not in methods]
    for name in others:
        near = difflib.get_close_matches(_letters(name), lacking, n=1, cutoff=NEARNESS)
        if near:
            raise UserError(
                f"adapter {adapter.__name__}: there are no cases of {name}, so nothing would run it; call it "
                f"{lacking[near[0]]} if that is meant, or _{name} if it is a helper"
            )
    listed = getattr(adapter, "__all__", ())
    modules = {name: f"{getattr(public[name], '__module__', '')}." for name in others}
    return [name for name in others if name in listed or modules[name].startswith(f"{adapter.__name__}.")]


def _public_callables(adapter: ModuleType) -> dict[str, Any]:
    public = {name: value for name, value in vars(adapter).items() if not name.startswith("_")}
    return {name: value for name, value in public.items() if callable(value) and not inspect.isclass(value)}


def _letters(name: str) -> str:
    """Normalise a name for comparison: FedAvg, fed_avg and fedavg become the same."""
    return name.replace("_", "").lower()
