"""Names of methods, from the `method_name` of a run's policies and objective, or from its topology."""

from __future__ import annotations

from typing import Any

import numpy as np

from dfl_lightning.runs.reading import Run

_GROUPS = {
    "outgoing": "Outgoing",
    "selection": "Selection",
    "threshold": "Threshold",
    "substitution": "Substitution",
    "aggregation": "Aggregation",
    "prediction": "Prediction",
}
"""Groups of policies that may name a method, with their base classes.

The summary of a run that was started from Python lists policies without their groups."""

_NOT_A_USERS = ("dfl_lightning.", "torch.")
"""Beginnings of import paths of classes that are not a user's own."""


def base_name(run: Run) -> str:
    """Name the method of a run by its policies, objective or topology.

    A robust aggregation is added to the name, or is the name of a run that would be called Gossip.
    """
    if is_local(run):
        return "Local"
    chosen = _chosen(run)
    named = {group: _method_name(word) for group, word in chosen.items()}
    if chosen["objective"] and class_of(chosen["objective"]) is None:  # it is a user's own class
        named["objective"] = chosen["objective"]
    drops_out = not run.config or bool(_class_names(run.config.get("dropout")))
    if not drops_out:  # no update has to be replaced, so a substitution has no effect
        named["substitution"] = ""
    if chosen["selection"] not in ("", "Gossip"):
        is_own = class_of(chosen["selection"]) is None
        named["selection"] = (named["selection"] or chosen["selection"]) + named["threshold"] * (not is_own)
    addition = named["objective"] or named["prediction"]
    neighbours = named["selection"] or named["substitution"]
    robust = getattr(class_of(chosen["aggregation"]), "against_adversaries", False)
    name = neighbours or named["objective"] or named["outgoing"] or ("" if robust else named["aggregation"]) or addition
    if neighbours and addition:
        name = f"{neighbours} with {addition}"
    server = "server" in str(run.summary.get("topology", run.config.get("topology", "")))
    if not name and server:
        tuned = (run.config.get("model") or {}).get("finetune_epochs")
        name = f"FedAvg{'-FT' * bool(tuned)}{', dropped clients left out' * bool(run.config and drops_out)}"
    elif not name and _selects_all(run):
        from dfl_lightning.topology import method_of  # imported here, because networkx takes time to import

        name = method_of(run.config.get("topology"))
    name = name or chosen["selection"] or next(iter(run.summary.get("policies", [])), "")
    if robust:
        words = named["aggregation"]
        return f"{name}, {words}" if name not in ("", "Gossip") else f"{words[:1].upper()}{words[1:]}"
    return name or run.path.parent.name or "run"


def is_local(run: Run) -> bool:
    """Return True if clients train alone: no client received anything.

    A run in which no message was received because clients diverged counts only if its selection has `k = 0`.
    """
    if np.nansum(run.metrics.get("bytes_received", np.array([1.0]))):
        return False
    selection = run.config.get("selection")
    selects_none = isinstance(selection, dict) and (selection.get("init_args") or {}).get("k") == 0
    return selects_none or not run.diverged.get("client", np.array([])).size


def class_name(path: str) -> str:
    """Return the short name of a class; with its module if it is a user's own and the library has one of that name.

    Args:
        path: import path; without a dot it is a name of this library.

    Examples:
        >>> class_name("dfl_lightning.callbacks.AFIND"), class_name("AFIND"), class_name("torch.optim.SGD")
        ('AFIND', 'AFIND', 'SGD')
        >>> class_name("mine.Ours"), class_name("mine.AFIND"), class_name("mine.Ditto")
        ('Ours', 'mine.AFIND', 'mine.Ditto')
    """
    module, _, name = path.rpartition(".")
    is_own = bool(module) and not f"{module}.".startswith(_NOT_A_USERS)
    return path if is_own and class_of(name) is not None else name


def class_of(name: str) -> Any:
    """Return the policy or objective of this library with the name, as `class_name` returns it.

    The result is None for a user's own class, because a report does not run a user's code.
    """
    from dfl_lightning import callbacks, objectives  # imported here, because torch takes seconds to import

    found = getattr(callbacks, name, None) or getattr(objectives, name, None) if name else None
    return found if isinstance(found, type) else None


def _selects_all(run: Run) -> bool:
    """Return True if clients select all their neighbours, so that the topology alone names the method."""
    selection = run.config.get("selection")
    options = (selection.get("init_args") or {}) if isinstance(selection, dict) else {}
    return bool(options.get("k") == "all" and not options.get("within"))


def _chosen(run: Run) -> dict[str, str]:
    """Return the class name of each group that may name a method: of several policies, the first one that names it."""
    chosen = {}
    for group in (*_GROUPS, "objective"):
        names = _class_names(run.config.get(group))
        chosen[group] = next((name for name in names if _method_name(name)), names[0] if names else "")
    for name in run.summary.get("policies", []):
        for group, base in _GROUPS.items():
            policy, family = class_of(name), class_of(base)
            if not chosen[group] and policy is not None and issubclass(policy, family) and group not in run.config:
                chosen[group] = name
    return chosen


def _class_names(value: Any) -> list[str]:
    """List the class names in a group of a config: a class path, a mapping, or a list of these."""
    values = value if isinstance(value, list) else [value]
    paths = (v if isinstance(v, str) else v.get("class_path", "") if isinstance(v, dict) else "" for v in values)
    return [class_name(str(path)) for path in paths if path]


def _method_name(name: str) -> str:
    return str(getattr(class_of(name), "method_name", ""))
