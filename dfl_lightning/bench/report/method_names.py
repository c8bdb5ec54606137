"""What a run's method is called: after its policies and its objective, which say so by `method_name`, or its graphs."""

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
"""Policies that may name a method; of a run from Python its summary lists them without their groups."""


def base_name(run: Run) -> str:
    """What the run's method is called; an aggregation against adversaries makes one of Gossip."""
    if is_local(run):
        return "Local"
    chosen = _chosen(run)
    named = {group: _method_name(word) for group, word in chosen.items()}
    if chosen["objective"] and _class_of(chosen["objective"]) is None:  # a user's own
        named["objective"] = chosen["objective"]
    drops_out = not run.config or bool(_class_names(run.config.get("dropout")))
    if not drops_out:  # there is no update to replace
        named["substitution"] = ""
    if chosen["selection"] not in ("", "Gossip"):
        named["selection"] = (named["selection"] or chosen["selection"]) + named["threshold"]
    more = named["objective"] or named["prediction"]
    whom = named["selection"] or named["substitution"]
    robust = getattr(_class_of(chosen["aggregation"]), "against_adversaries", False)
    found = whom or named["objective"] or named["outgoing"] or ("" if robust else named["aggregation"]) or more
    if whom and more:
        found = f"{whom} with {more}"
    server = "server" in str(run.summary.get("topology", run.config.get("topology", "")))
    if not found and server:
        tuned = (run.config.get("model") or {}).get("finetune_epochs")
        found = f"FedAvg{'-FT' * bool(tuned)}{', dropped clients left out' * bool(run.config and drops_out)}"
    elif not found and _takes_all(run):
        from dfl_lightning.topology import method_of  # takes networkx a while

        found = method_of(run.config.get("topology"))
    found = found or chosen["selection"] or next(iter(run.summary.get("policies", [])), "")
    if robust:
        words = named["aggregation"]
        return f"{found}, {words}" if found not in ("", "Gossip") else f"{words[:1].upper()}{words[1:]}"
    return found or run.path.parent.name or "run"


def is_local(run: Run) -> bool:
    """Whether no client received anything, for another reason than that all others had diverged."""
    if np.nansum(run.metrics.get("bytes_received", np.array([1.0]))):
        return False
    selection = run.config.get("selection")
    none_wanted = isinstance(selection, dict) and (selection.get("init_args") or {}).get("k") == 0
    return none_wanted or not run.diverged.get("client", np.array([])).size


def _takes_all(run: Run) -> bool:
    """Whether clients learn from all their neighbours, so that the graphs alone decide from whom."""
    selection = run.config.get("selection")
    options = (selection.get("init_args") or {}) if isinstance(selection, dict) else {}
    return bool(options.get("k") == "all" and not options.get("within"))


def _chosen(run: Run) -> dict[str, str]:
    """The class of each group that may name a method; of several, the first that does."""
    found = {}
    for group in (*_GROUPS, "objective"):
        words = _class_names(run.config.get(group))
        found[group] = next((word for word in words if _method_name(word)), words[0] if words else "")
    for word in run.summary.get("policies", []):
        for group, kind in _GROUPS.items():
            known, wanted = _class_of(word), _class_of(kind)
            if not found[group] and known is not None and issubclass(known, wanted) and group not in run.config:
                found[group] = word
    return found


def _class_names(value: Any) -> list[str]:
    """Of a config's group, which may be a list."""
    values = value if isinstance(value, list) else [value]
    paths = (v if isinstance(v, str) else v.get("class_path", "") if isinstance(v, dict) else "" for v in values)
    return [str(path).rpartition(".")[2] for path in paths if path]


def _class_of(word: str) -> Any:
    """A shipped policy or objective; None for one of a user's, whose code no report runs."""
    from dfl_lightning import callbacks, objectives  # not before a run is read: torch takes seconds

    return getattr(callbacks, word, None) or getattr(objectives, word, None) if word else None


def _method_name(word: str) -> str:
    return str(getattr(_class_of(word), "method_name", ""))
