"""The final numbers of a run: summary.json and the last table in the terminal."""

from __future__ import annotations

import functools
import math
import platform
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

import dfl_lightning
from dfl_lightning.callbacks.base import Outgoing, honest_clients
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.functional import (
    of_clients,
    over_clients,
    score_summary,
    undefined_counts,
    without_accuracy,
    without_mean,
)
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.memory_estimate import predicted_memory
from dfl_lightning.runs.processor import processor
from dfl_lightning.utils.code.source_code import hashes_of
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import as_percent

PACKAGES = ("lightning", "torch", "torchvision", "torchmetrics", "networkx", "numpy")


def summarise(trainer: RunTrainer, module: RunModule, status: str, reason: str = "") -> dict[str, Any]:
    """Return the content of summary.json: plain numbers, texts and nested mappings, with None instead of NaN.

    Args:
        trainer: the trainer, with the run folder.
        module: the module, with the bank of the last boundary.
        status: `finished`, `stopped` or `failed`.
        reason: the reason of a failure.
    """
    metrics, clients = trainer.run.metrics, trainer.run.clients
    score = Score.of(module.federation.task)
    recovered = {
        name: _last_number(metrics.get(name))
        for name in ("neighbour_precision", "neighbour_recall", "friend_accuracy")
        if name in metrics
    }
    received = {
        name: float(np.nansum(metrics[f"{name}_received"])) for name in ("models", "probes", "proxies", "bytes")
    }
    if "models_by_formula" in metrics:
        received["models_by_formula"] = float(np.nansum(metrics["models_by_formula"]))
    return _without_nan(
        {
            "status": status,
            **({"reason": reason} if reason else {}),
            **module.history,
            "rounds": module.bank.boundary.round,
            "clients": module.federation.num_clients,
            "network": type(module.federation.network).__name__,
            "parameters_per_client": module.federation.layout.num_parameters,
            "task": score.as_entry(),
            "data": trainer.datamodule.describe(),
            "topology": module.federation.topology.describe(),
            "policies": [type(policy).__name__ for policy in trainer.policies()],
            **_adversaries(module),
            "engine": describe_engine(module),
            score.block: _of_score(score, metrics, clients, honest_clients(module.federation)),
            **_of_metrics(score, module, clients),
            "neighbours_mean": _mean(metrics["neighbours"]),
            "diverged": _rounds_diverged(trainer.run.diverged),
            "found": recovered,
            "received_per_client": received,
            "seconds": {
                "rounds": float(np.nansum(metrics["seconds"])),
                **{name: round(seconds, 3) for name, seconds in trainer.phase_seconds.items()},
            },
            "seeds": {"run": module.federation.seed, "split": trainer.datamodule.split_seed},
            "device": str(module.device),
            "processor": processor(),
            **({CODE: hashes_of(module.sources)} if module.sources else {}),
            "versions": {
                "python": platform.python_version(),
                "dfl_lightning": dfl_lightning.__version__,
                **versions(),
            },
        }
    )


def _of_score(
    score: Score, metrics: dict[str, np.ndarray], clients: dict[str, np.ndarray], honest: torch.Tensor | None = None
) -> dict[str, Any]:
    """Return statistics of the test score over the honest clients, for each of the ways in which papers report one."""
    numbers: dict[str, Any] = {}
    tested, validated = f"test_{score.name}", f"val_{score.name}"
    if tested in clients:
        history, losses = torch.from_numpy(clients[tested]), torch.from_numpy(clients["test_loss"])
        validation = torch.from_numpy(clients[validated]) if validated in clients else None
        not_finite = without_accuracy(losses, history) | history.isinf()
        counted = torch.ones(history.shape[1], dtype=torch.bool) if honest is None else honest
        last = history[-1]
        history, broken = history[:, counted], not_finite[:, counted]
        validation = None if validation is None else validation[:, counted]
        scores = score_summary(history, validation, broken, score.higher_is_better)
        numbers = {
            **{score.prefix + name: value for name, value in scores.items()},
            **vars(over_clients(history[-1], bool(broken[-1].any()), score.higher_is_better)),
            "evaluated_after_round": int(clients["rounds"][-1]),
        }
        if honest is not None:
            theirs = over_clients(last[~honest], bool(not_finite[-1, ~honest].any()), score.higher_is_better)
            numbers["adversaries"] = {"mean": theirs.mean, "std": theirs.std, "worst10": theirs.worst10}
        broken = not_finite & counted  # the scores of adversaries do not enter the mean
        if bool(broken.any()):
            numbers["not_finite"] = {
                str(client): int(broken[:, client].sum()) for client in torch.nonzero(broken.any(0)).flatten().tolist()
            }
    of_server = metrics[f"global_test_{score.name}"]
    if not np.isnan(of_server).all():
        numbers["global_last"] = float(of_server[~np.isnan(of_server)][-1])
        numbers["global_mean_over_rounds"] = float(np.nanmean(of_server))
    return numbers


def _of_metrics(score: Score, module: RunModule, clients: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the entry `metrics`: chosen metrics and undefined numbers of the last evaluation, over honest clients.

    Each has `mean`, `std`, `worst10` (None if it is not known which numbers are better), `undefined`, the number of
    clients for which it is undefined, and `clients`, the number of those with data.
    """
    arrays = {name: values for name, values in clients.items() if name.startswith(SPLITS) and len(values)}
    last = {name: torch.from_numpy(values[-1]) for name, values in arrays.items()}
    last = of_clients(last, honest_clients(module.federation))
    hidden, chosen = without_mean(last, score.name), module.engine.config.metrics
    entries = {}
    for name, (count, among) in undefined_counts(last, score.name).items():
        metric = name.partition("_")[2]
        if metric not in chosen and not count:
            continue
        higher = getattr(
            chosen.get(metric), "higher_is_better", score.higher_is_better if metric == score.name else None
        )
        over = over_clients(last[name], name in hidden, higher is not False)
        worst = None if higher is None else over.worst10
        entries[name] = {"mean": over.mean, "std": over.std, "worst10": worst, "undefined": count, "clients": among}
    return {"metrics": entries} if entries else {}


SPLITS = ("val_", "test_")
"""Beginnings of the names of arrays of an evaluation of the clients."""


def _adversaries(module: RunModule) -> dict[str, Any]:
    """Describe the attack: what falsifies messages or labels, and the ids of its clients; empty without one."""
    federation = module.federation
    labels = federation.data.adversaries
    outgoing = [policy for policy in federation.policies if isinstance(policy, Outgoing)]
    attacks = {
        type(policy).__name__: marks for policy in outgoing if (marks := policy.adversaries(federation)) is not None
    }
    by = list(attacks)
    by += [LABELS] * (labels is not None and bool(labels.any()))
    if not by:
        return {}
    of_messages = [marks.bool().cpu() for marks in attacks.values()]
    of_all = [*of_messages, *([] if labels is None else [labels.bool().cpu()])]
    entries: dict[str, Any] = {"attack": {"by": by, "clients": _ids(torch.stack(of_all).any(0))}}
    return {**entries, "adversaries": _ids(torch.stack(of_messages).any(0))} if of_messages else entries


LABELS = "falsified labels"
"""The name in summary.json of the attack by clients whose training labels are falsified."""


def _ids(clients: torch.Tensor) -> list[int]:
    """Return the ids of the marked clients; `clients` is bool [n]."""
    ids: list[int] = torch.nonzero(clients).flatten().tolist()
    return ids


@functools.cache  # since it reads a file of each package
def versions() -> dict[str, str]:
    """Return the versions of the packages on which numbers depend."""
    return {name: version(name) for name in PACKAGES}


def describe_engine(module: RunModule) -> dict[str, Any] | None:
    """Describe the engine, the reason for it, and how it divides the work; None before there is an engine."""
    engine = module.engine
    if engine is None:
        return None
    return {
        "name": engine.name,
        "reason": engine.reason,
        "cohorts": [len(cohort) for cohort in engine.cohorts],
        "processes": module.bank.ranks.count,
        "threads": engine.threads,
        **engine.details,
        "predicted_bytes": predicted_memory(module),
    }


def final_table(summary: dict[str, Any]) -> list[str]:
    """Return the lines of the table that ends a run in the terminal.

    Args:
        summary: the content of summary.json.
    """
    score = Score.read(summary)
    numbers = score.numbers(summary)
    lines = [*_score_lines(summary, score), *metric_lines(summary)]
    if summary.get("attack"):
        theirs = numbers.get("adversaries", {}).get("mean")
        lines.append(_attack_line(summary["attack"], summary["clients"], theirs, score))
    if numbers.get("not_finite"):
        lines.append(_not_finite_line(numbers["not_finite"], score.label))
    if numbers.get("global_last") is not None:
        lines.append(
            f"global model on the global test set: {score.text(numbers['global_last'])} after the last evaluated "
            f"round, {score.text(numbers['global_mean_over_rounds'])} on average over rounds"
        )
    if summary["diverged"]:
        lines.append(_divergence_line(summary["diverged"], summary["rounds"]))
    recovered = summary["found"]
    if recovered.get("neighbour_precision") is not None:
        recall = recovered.get("neighbour_recall")
        also = f", recall {as_percent(recall)}" if recall is not None else ""
        lines.append(
            f"neighbours found: precision {as_percent(recovered['neighbour_precision'])}{also} "
            "(clusters known from the data)"
        )
    if recovered.get("friend_accuracy") is not None:
        lines.append(
            f"friends found: {as_percent(recovered['friend_accuracy'])} of the substitutes are of the dropped client's "
            "cluster"
        )
    return lines


def _score_lines(summary: dict[str, Any], score: Score) -> list[str]:
    """Return the line of the test score and the cost, under a line of headings; one line if the score is unknown."""
    numbers = score.numbers(summary)
    received = summary["received_per_client"]
    parts = [f"{received['models']:,.0f} models"]
    if "models_by_formula" in received:
        parts[0] += f", by the paper's formula {received['models_by_formula']:,.0f}"
    if received["proxies"]:
        parts.append(f"{received['proxies']:,.0f} proxies")
    cost = f"{size(received['bytes'])} ({', '.join(parts)})"
    neighbours = summary["neighbours_mean"]
    if numbers.get("mean") is not None:
        words = [f"{score.text(numbers[name]):>{width}}" for name, width in (("mean", 6), ("std", 8), ("worst10", 13))]
        ends = [len(word) for word in words]
        heads = [f"{head:>{end}}" for head, end in zip(("mean", "std", "worst 10 %"), ends, strict=True)]
        name = f"test {score.label}"
        around = f"{neighbours:13.1f}" if neighbours is not None else f"{'–':>13}"
        head = f"{'':{max(16, len(name))}}{''.join(heads)}{'neighbours':>13}   received per client"
        return [head, f"{name:16}{''.join(words)}{around}   {cost}"]
    why = "no round was evaluated on test data"
    if numbers.get("global_last") is not None:
        why = "no client has test data"
    if summary.get("metrics", {}).get(score.column):
        why = "it is undefined for all clients"
    if numbers.get("not_finite"):
        why = f"not every loss and {score.label} of the last evaluation is finite"
    return [f"test {score.label} unknown: {why} · received per client: {cost}"]


def metric_lines(summary: dict[str, Any]) -> list[str]:
    """Return a line for each chosen metric of the last evaluation, and for each number that is undefined somewhere.

    Args:
        summary: the content of summary.json.

    Examples:
        >>> area = {"mean": 0.875, "std": 0.1, "worst10": 0.75, "undefined": 1, "clients": 5}
        >>> metric_lines({"metrics": {"test_auroc": area}})
        ['test AUROC 87.5 % (std 10.0 %, worst 10 % 75.0 %), 1 of 5 clients undefined']
    """
    lines, of_task = [], Score.read(summary)
    for column, numbers in summary.get("metrics", {}).items():
        split, _, name = column.partition("_")
        score = Score("", name, True, of_task.is_share(column))
        words = f"{split} {score.label} "
        if numbers["mean"] is None:
            words += "unknown"
        else:
            worst = "" if numbers["worst10"] is None else f", worst 10 % {score.text(numbers['worst10'])}"
            words += f"{score.text(numbers['mean'])} (std {score.text(numbers['std'])}{worst})"
        if numbers["undefined"]:
            words += f", {numbers['undefined']} of {numbers['clients']} clients undefined"
        lines.append(words)
    return lines


def _attack_line(attack: dict[str, Any], clients: int, mean: float | None, score: Score) -> str:
    """Describe the attack in a line, with the mean score of the adversaries.

    Examples:
        >>> _attack_line({"by": ["SignFlip"], "clients": [1, 4]}, 6, 0.25, Score())
        'under attack (SignFlip, 2 of 6 clients): scores are over the honest clients; adversaries have 25.0 %'
    """
    attack_of = f"under attack ({' and '.join(attack['by'])}, {len(attack['clients'])} of {clients} clients)"
    if len(attack["clients"]) == clients:
        return f"{attack_of}: no client is honest"
    theirs = "" if mean is None else f"; adversaries have {score.text(mean)}"
    return f"{attack_of}: scores are over the honest clients{theirs}"


def _rounds_diverged(diverged: dict[str, np.ndarray]) -> dict[str, int]:
    """Count the rounds in which a client's training diverged, by id, the most frequent first; leave out zeros."""
    clients, times = np.unique(diverged.get("client", np.array([], dtype=np.int32)), return_counts=True)
    order = np.argsort(-times, kind="stable")
    return {str(clients[index]): int(times[index]) for index in order}


def _divergence_line(times: dict[str, int], rounds: int, most: int = 5) -> str:
    """List the clients that diverged, in one line, at most `most` of them.

    Examples:
        >>> _divergence_line({"3": 12, "0": 1}, rounds=30)
        'training diverged: client 3 in 12 of 30 rounds, client 0 in 1'
    """
    (first, often), *others = list(times.items())[:most]
    words = [f"client {first} in {often} of {rounds} rounds", *(f"client {who} in {n}" for who, n in others)]
    if len(times) > most:
        words.append(f"and {len(times) - most} more in diverged.npz")
    return f"training diverged: {', '.join(words)}"


def _not_finite_line(times: dict[str, int], label: str, most: int = 5) -> str:
    """List the clients whose losses or scores were not finite, in one line, at most `most` of them.

    Examples:
        >>> _not_finite_line({"3": 12, "0": 1}, "perplexity")
        'the loss or perplexity on test data was not finite: client 3 in 12 evaluations, client 0 in 1'
    """
    (first, often), *others = list(times.items())[:most]
    words = [f"client {first} in {often} evaluation{'s' * (often > 1)}", *(f"client {who} in {n}" for who, n in others)]
    if len(times) > most:
        words.append(f"and {len(times) - most} more in clients.npz")
    return f"the loss or {label} on test data was not finite: {', '.join(words)}"


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def _last_number(values: np.ndarray | None) -> float:
    numbers = values[~np.isnan(values)] if values is not None else np.array([])
    return float(numbers[-1]) if len(numbers) else math.nan


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
