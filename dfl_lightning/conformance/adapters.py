"""The adapter of an implementation: it is loaded, and run on every case that it offers."""

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
"""From this similarity on (difflib's ratio) a function's name is taken for a misspelt method."""


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a case.

    Attributes:
        case: its name.
        differences: of each output that the adapter has given.
        missing: outputs that it has left out, as it may.
        refused: why the adapter does not offer the case.
        failed: the error that it ended with.
    """

    case: str
    differences: dict[str, float] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    refused: str = ""
    failed: str = ""

    @property
    def largest(self) -> float:
        """The largest difference of an output; infinite where the adapter has failed."""
        return math.inf if self.failed else max(self.differences.values(), default=0.0)


@dataclass(frozen=True)
class MethodOutcome:
    """What became of the cases of a method.

    Attributes:
        cases: the method and its cases.
        tolerance: up to which outputs agree.
        outcomes: one for each case; none where the adapter does not offer the method.
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
        """In how many cases everything that was given agrees."""
        return sum(outcome.largest <= self.tolerance for outcome in self.offered)

    @property
    def worst(self) -> CaseOutcome | None:
        """The case with the largest difference; None where none is offered."""
        return max(self.offered, key=lambda outcome: outcome.largest, default=None)

    @property
    def agrees(self) -> bool | None:
        """Whether all cases that are offered agree; None where none is."""
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
        own = f"{name}.".startswith(f"{error.name}.")  # the module, or a package that it would be in
        what = "there is no such module" if own else f"it imports {error.name}, which is not installed"
        raise UserError(f"adapter {name}: {what}; name an importable module, or a file that ends with .py") from error


def _module_of(file: Path) -> ModuleType:
    if not file.is_file():
        raise UserError(f"adapter {file}: there is no such file")
    spec = importlib.util.spec_from_file_location(f"adapter_{file.stem}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for the names in their annotations
    spec.loader.exec_module(module)
    return module


def run_method(adapter: ModuleType, cases: MethodCases, tolerance: float | None = None) -> MethodOutcome:
    """Ask an adapter for all cases of a method.

    Args:
        adapter: with a function of the method's name, if it offers the method: inputs by keyword, returns outputs by
            name, the main ones at least. A case that it does not offer raises NotImplementedError with a reason.
        cases: of the method.
        tolerance: in place of that of the cases.
    """
    function = getattr(adapter, cases.method, None)
    outcomes = () if function is None else tuple(_run_case(function, case, cases.main) for case in cases.cases)
    return MethodOutcome(cases, cases.tolerance if tolerance is None else tolerance, outcomes)


def _run_case(function: Any, case: MethodCase, main: Sequence[str]) -> CaseOutcome:
    try:
        found = function(**copy.deepcopy(case.inputs))  # an adapter may write into what it gets
    except NotImplementedError as error:
        return CaseOutcome(case.name, refused=str(error) or "not offered")
    except Exception as error:  # whatever another library raises is a result, which the table shows
        return CaseOutcome(case.name, failed=f"{type(error).__name__}: {error}")
    mistake = _mistake(found, case.outputs, main)
    if mistake:
        return CaseOutcome(case.name, failed=mistake)
    differences = {name: difference(case.outputs[name], value) for name, value in found.items()}
    return CaseOutcome(case.name, differences, tuple(name for name in case.outputs if name not in found))


def _mistake(found: Any, outputs: Collection[str], main: Sequence[str]) -> str:
    """Say what is wrong with what an adapter returned; an empty text if it can be compared."""
    needed, others = ", ".join(main), ", ".join(name for name in outputs if name not in main)
    wanted = f"it must hold {needed}" + (f", and may hold {others}" if others else "")
    if not isinstance(found, dict):
        return f"the adapter must return a dictionary of outputs, not {type(found).__name__}; {wanted}"
    if not found:
        return f"the adapter returned an empty dictionary of outputs; {wanted}"
    unknown = [name for name in found if name not in outputs]
    if unknown:
        return f"the case has no output {unknown[0]}; it has {', '.join(outputs)}"
    missing = [name for name in main if name not in found]
    return f"the adapter left out {', '.join(missing)}; {wanted}" if missing else ""


def check_names(adapter: ModuleType, methods: Collection[str]) -> list[str]:
    """Find functions of an adapter that no case asks for.

    Args:
        adapter: the module.
        methods: names of the methods that have cases.

    Returns:
        Names of its own public functions that are not methods: helpers, or methods without cases.

    Raises:
        UserError: a function has nearly the name of a method that the adapter does not offer.
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
    found = {name: value for name, value in vars(adapter).items() if not name.startswith("_")}
    return {name: value for name, value in found.items() if callable(value) and not inspect.isclass(value)}


def _letters(name: str) -> str:
    """Return a name as it is compared with others: FedAvg, fed_avg and fedavg are the same."""
    return name.replace("_", "").lower()
