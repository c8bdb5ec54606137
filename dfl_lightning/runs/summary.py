"""The final numbers of a run: summary.json and the table in the terminal."""

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
from dfl_lightning.functional import over_clients, score_summary, without_accuracy
from dfl_lightning.round.hosts import RunModule, RunTrainer
from dfl_lightning.runs.memory_estimate import predicted_memory
from dfl_lightning.runs.processor import processor
from dfl_lightning.utils.code.source_code import hashes_of
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import as_percent

PACKAGES = ("lightning", "torch", "torchvision", "torchmetrics", "networkx", "numpy")


def summarise(trainer: RunTrainer, module: RunModule, status: str, reason: str = "") -> dict[str, Any]:
    """What summary.json holds; plain numbers, null for what does not exist.

    Args:
        trainer: with its run folder.
        module: with its bank.
        status: `finished`, `stopped` or `failed`.
        reason: why it failed.
    """
    metrics, clients = trainer.run.metrics, trainer.run.clients
    score = Score.of(module.federation.task)
    found = {
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
            "neighbours_mean": _mean(metrics["neighbours"]),
            "diverged": _times(trainer.run.diverged),
            "found": found,
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
    """Return the task's score on test data, in the ways in which papers report one, over the honest clients."""
    numbers: dict[str, Any] = {}
    tested, validated = f"test_{score.name}", f"val_{score.name}"
    if tested in clients:
        history, losses = torch.from_numpy(clients[tested]), torch.from_numpy(clients["test_loss"])
        validation = torch.from_numpy(clients[validated]) if validated in clients else None
        everyone = without_accuracy(losses, history) | history.isinf()
        who = torch.ones(history.shape[1], dtype=torch.bool) if honest is None else honest
        last = history[-1]
        history, broken = history[:, who], everyone[:, who]
        validation = None if validation is None else validation[:, who]
        found = score_summary(history, validation, broken, score.higher_is_better)
        numbers = {
            **{score.prefix + name: value for name, value in found.items()},
            **vars(over_clients(history[-1], bool(broken[-1].any()), score.higher_is_better)),
            "evaluated_after_round": int(clients["rounds"][-1]),
        }
        if honest is not None:
            others = over_clients(last[~honest], bool(everyone[-1, ~honest].any()), score.higher_is_better)
            numbers["adversaries"] = {"mean": others.mean, "std": others.std, "worst10": others.worst10}
        broken = everyone & who  # those of adversaries leave a mean over honest clients
        if bool(broken.any()):
            numbers["not_finite"] = {
                str(client): int(broken[:, client].sum()) for client in torch.nonzero(broken.any(0)).flatten().tolist()
            }
    of_server = metrics[f"global_test_{score.name}"]
    if not np.isnan(of_server).all():
        numbers["global_last"] = float(of_server[~np.isnan(of_server)][-1])
        numbers["global_mean_over_rounds"] = float(np.nanmean(of_server))
    return numbers


def _adversaries(module: RunModule) -> dict[str, Any]:
    """Name the attack: what falsifies, whose messages, and which clients are not honest; nothing without one."""
    federation = module.federation
    labels = federation.data.adversaries
    outgoing = [policy for policy in federation.policies if isinstance(policy, Outgoing)]
    attacks = {type(policy).__name__: who for policy in outgoing if (who := policy.adversaries(federation)) is not None}
    by = list(attacks)
    by += [LABELS] * (labels is not None and bool(labels.any()))
    if not by:
        return {}
    messages = [who.bool().cpu() for who in attacks.values()]
    everyone = [*messages, *([] if labels is None else [labels.bool().cpu()])]
    found: dict[str, Any] = {"attack": {"by": by, "clients": _ids(torch.stack(everyone).any(0))}}
    return {**found, "adversaries": _ids(torch.stack(messages).any(0))} if messages else found


LABELS = "falsified labels"
"""What summary.json calls the attack of clients whose training labels are falsified."""


def _ids(clients: torch.Tensor) -> list[int]:
    found: list[int] = torch.nonzero(clients).flatten().tolist()
    return found


@functools.cache  # reads a file of each package
def versions() -> dict[str, str]:
    """Return the versions of what numbers depend on, by package."""
    return {name: version(name) for name in PACKAGES}


def describe_engine(module: RunModule) -> dict[str, Any] | None:
    """Which engine, why, and how it divided the work; None before there is one."""
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
    """The lines that end a run in the terminal."""
    score, lines = Score.read(summary), []
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
        lines.append(f"{'':{max(16, len(name))}}{''.join(heads)}{'neighbours':>13}   received per client")
        lines.append(f"{name:16}{''.join(words)}{around}   {cost}")
    else:
        why = "no round was evaluated on test data"
        if numbers.get("not_finite"):
            why = f"not every loss and {score.label} of the last evaluation is finite"
        lines.append(f"test {score.label} unknown: {why} · received per client: {cost}")
    if summary.get("attack"):
        theirs = numbers.get("adversaries", {}).get("mean")
        lines.append(_attacked(summary["attack"], summary["clients"], theirs, score))
    if numbers.get("not_finite"):
        lines.append(_not_finite(numbers["not_finite"], score.label))
    if numbers.get("global_last") is not None:
        lines.append(
            f"global model on the global test set: {score.text(numbers['global_last'])} after the last evaluated "
            f"round, {score.text(numbers['global_mean_over_rounds'])} on average over rounds"
        )
    if summary["diverged"]:
        lines.append(_divergence(summary["diverged"], summary["rounds"]))
    found = summary["found"]
    if found.get("neighbour_precision") is not None:
        recall = found.get("neighbour_recall")
        also = f", recall {as_percent(recall)}" if recall is not None else ""
        lines.append(
            f"neighbours found: precision {as_percent(found['neighbour_precision'])}{also} "
            "(clusters known from the data)"
        )
    if found.get("friend_accuracy") is not None:
        lines.append(
            f"friends found: {as_percent(found['friend_accuracy'])} of the substitutes are of the dropped client's "
            "cluster"
        )
    return lines


def _attacked(attack: dict[str, Any], clients: int, mean: float | None, score: Score) -> str:
    """Name the attack in a line, with the score of the adversaries.

    Examples:
        >>> _attacked({"by": ["SignFlip"], "clients": [1, 4]}, 6, 0.25, Score())
        'under attack (SignFlip, 2 of 6 clients): scores are over the honest clients; adversaries have 25.0 %'
    """
    who = f"under attack ({' and '.join(attack['by'])}, {len(attack['clients'])} of {clients} clients)"
    if len(attack["clients"]) == clients:
        return f"{who}: no client is honest"
    theirs = "" if mean is None else f"; adversaries have {score.text(mean)}"
    return f"{who}: scores are over the honest clients{theirs}"


def _times(diverged: dict[str, np.ndarray]) -> dict[str, int]:
    """In how many rounds each client's training diverged, those with most first; others are not listed."""
    clients, times = np.unique(diverged.get("client", np.array([], dtype=np.int32)), return_counts=True)
    order = np.argsort(-times, kind="stable")
    return {str(clients[place]): int(times[place]) for place in order}


def _divergence(times: dict[str, int], rounds: int, most: int = 5) -> str:
    """The clients that diverged, in one line.

    Examples:
        >>> _divergence({"3": 12, "0": 1}, rounds=30)
        'training diverged: client 3 in 12 of 30 rounds, client 0 in 1'
    """
    (first, often), *others = list(times.items())[:most]
    words = [f"client {first} in {often} of {rounds} rounds", *(f"client {who} in {n}" for who, n in others)]
    if len(times) > most:
        words.append(f"and {len(times) - most} more in diverged.npz")
    return f"training diverged: {', '.join(words)}"


def _not_finite(times: dict[str, int], label: str, most: int = 5) -> str:
    """Name the clients whose losses or scores were not finite, in one line.

    Examples:
        >>> _not_finite({"3": 12, "0": 1}, "perplexity")
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
    known = values[~np.isnan(values)] if values is not None else np.array([])
    return float(known[-1]) if len(known) else math.nan


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_nan(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
