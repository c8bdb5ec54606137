"""An adapter is found and asked for every case that it offers."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from dfl_lightning.conformance.cases import MethodCase, MethodCases, difference
from dfl_lightning.utils.errors import UserError

__all__ = ["CaseOutcome", "MethodOutcome", "load_adapter", "run_method"]


@dataclass(frozen=True)
class CaseOutcome:
    """What became of a case.

    Attributes:
        case: its name.
        differences: of each output that the adapter has given.
        missing: outputs that it has not given.
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
        adapter: with a function of the method's name, if it offers the method: inputs by keyword, returns the outputs
            that it has by name. A case that it does not offer raises NotImplementedError with a reason.
        cases: of the method.
        tolerance: in place of that of the cases.
    """
    function = getattr(adapter, cases.method, None)
    outcomes = () if function is None else tuple(_run_case(function, case) for case in cases.cases)
    return MethodOutcome(cases, cases.tolerance if tolerance is None else tolerance, outcomes)


def _run_case(function: Any, case: MethodCase) -> CaseOutcome:
    try:
        found = function(**copy.deepcopy(case.inputs))  # an adapter may write into what it gets
    except NotImplementedError as error:
        return CaseOutcome(case.name, refused=str(error) or "not offered")
    except Exception as error:  # whatever another library raises is a result, which the table shows
        return CaseOutcome(case.name, failed=f"{type(error).__name__}: {error}")
    unknown = _unknown(found, case.outputs)
    if unknown:
        return CaseOutcome(case.name, failed=unknown)
    differences = {name: difference(case.outputs[name], value) for name, value in found.items()}
    return CaseOutcome(case.name, differences, tuple(name for name in case.outputs if name not in found))


def _unknown(found: Any, outputs: Sequence[str] | dict[str, Any]) -> str:
    """What is wrong with what an adapter returned; nothing where it is a dictionary of outputs."""
    if not isinstance(found, dict) or not found:
        return f"the adapter must return a dictionary of outputs ({', '.join(outputs)}), not {type(found).__name__}"
    others = [name for name in found if name not in outputs]
    return f"the case has no output {others[0]}; it has {', '.join(outputs)}" if others else ""
