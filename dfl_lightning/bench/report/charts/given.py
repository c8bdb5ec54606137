"""Runs as people give them to a chart: objects, paths of run folders, or a dict of these by name."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dfl_lightning.bench.report.methods import Method, find_methods
from dfl_lightning.runs.reading import Run, RunFiles
from dfl_lightning.utils.errors import UserError

_RUNS, _RUN = ("runs",), ("run", "local")
"""Names of the charts' arguments that are several runs, and one run."""


@functools.cache
def taking_any_runs(chart: Callable[..., Any]) -> Callable[..., Any]:
    """Let a chart take runs in every form: those of `read_run` and `trainer.run`, paths, and a dict by name.

    Args:
        chart: a function whose arguments `runs`, `run` and `local` are runs or methods.
    """
    signature = inspect.signature(chart)

    @functools.wraps(chart)
    def with_runs(*args: Any, **options: Any) -> Any:
        given = signature.bind(*args, **options)
        for name, value in given.arguments.items():
            if name in _RUNS:
                given.arguments[name] = several(value)
            elif name in _RUN and value is not None:
                given.arguments[name] = one(value)
        return chart(*given.args, **given.kwargs)

    return with_runs


def several(given: Any) -> Sequence[Run | Method]:
    """Return runs as charts read them.

    Args:
        given: a run, or several: a sequence, or a dict whose keys are the names of methods and whose values are a run,
            or the runs of several seeds.

    Raises:
        UserError: something in it is not a run.
    """
    if isinstance(given, Mapping):
        named = [(str(name), run) for name, runs in given.items() for run in several(runs)]
        if any(isinstance(run, Method) for _, run in named):
            raise UserError("a chart takes a dict of runs by the name of their method, not of methods")
        return find_methods([run for _, run in named if isinstance(run, Run)], [name for name, _ in named])
    return [one(run) for run in given] if isinstance(given, (list, tuple)) else [one(given)]


def one(given: Any) -> Run | Method:
    """Return a run as charts read it.

    Args:
        given: a run of `read_run` or `trainer.run`, a method, or the path of a run folder.

    Raises:
        UserError: it is none of these.
    """
    if isinstance(given, (Run, Method)):
        return given
    if isinstance(given, RunFiles):
        if given.path is None:
            raise UserError("this run has no folder yet, so that there is nothing to draw; trainer.fit makes one")
        return Run(given.path)
    if isinstance(given, (str, os.PathLike)):
        return Run(given)
    raise UserError(
        f"a chart takes runs, not a {type(given).__name__}: read_run(...), trainer.run, the path of a run folder, or a "
        "dict of these by name"
    )
