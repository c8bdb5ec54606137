"""Write the tables of torchmetrics' classes into docs/tasks.md: what each returns on clients without a value, and here.

python scripts/list_metrics.py
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torchmetrics
import torchmetrics.classification as of_classes
import torchmetrics.regression as of_numbers
from torch import Tensor
from torchmetrics import Metric

from dfl_lightning.metrics import ClientMetric
from dfl_lightning.metrics.client_metric import quiet
from dfl_lightning.metrics.conditions import kind_of
from dfl_lightning.metrics.trial import try_metric
from dfl_lightning.tasks import Classification, MultiLabel, Regression, Task
from dfl_lightning.utils.errors import UserError, reason

PAGE = Path(__file__).parent.parent / "docs" / "tasks.md"
START, END = "<!-- scripts/list_metrics.py makes these tables -->\n", "<!-- end of the tables -->\n"

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.0, 1.0, 0.5], [-1.0, 0.5, 1.0], [0.25, 1.0, -0.25]])
"""Outputs for four samples."""

ARGUMENTS: dict[str, Any] = {
    **{"num_classes": 3, "num_labels": 3, "average": "macro", "beta": 2.0, "threshold": 0.5, "p": 3.0, "num_groups": 2},
    **{"min_recall": 0.5, "min_precision": 0.5, "min_specificity": 0.5, "min_sensitivity": 0.5},
}
"""The arguments that a class gets if it has no default for them; `average` and `num_classes` wherever they exist."""


@dataclass(frozen=True)
class Client:
    """The test part of a client.

    Attributes:
        name: what is special about it.
        task: the task.
        outputs: outputs of its model.
        targets: its targets.
    """

    name: str
    task: Task
    outputs: Tensor
    targets: Tensor


def _labels(*rows: list[int]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float32)


CLIENTS: dict[str, tuple[Client, ...]] = {
    "Binary": (
        Client("no positive", MultiLabel(), LOGITS[:, :1], _labels([0], [0], [0], [0])),
        Client("all positive", MultiLabel(), LOGITS[:, :1], _labels([1], [1], [1], [1])),
        Client("one sample", MultiLabel(), LOGITS[1:2, 1:2], _labels([1])),
    ),
    "Multiclass": (
        Client("one class", Classification(), LOGITS, torch.tensor([1, 1, 1, 1])),
        Client("one sample", Classification(), LOGITS[1:2], torch.tensor([1])),
    ),
    "Multilabel": (
        Client("no label", MultiLabel(), LOGITS, torch.zeros(4, 3)),
        Client("one sample", MultiLabel(), LOGITS[1:2], _labels([0, 1, 1])),
    ),
    "": (
        Client("equal targets", Regression(), LOGITS[:, :1] + 2, torch.full((4, 1), 1.5)),
        Client("one sample", Regression(), LOGITS[:1, :1], torch.tensor([[1.5]])),
        Client("targets of 0", Regression(), LOGITS[:, :1] + 2, torch.zeros(4, 1)),
    ),
}
"""The clients of the tables, by the prefix of classes for them; the empty prefix is of regressions."""

WHOLE = {
    "Binary": Client("whole", MultiLabel(), LOGITS[:, :1], _labels([0], [1], [0], [1])),
    "Multiclass": Client("whole", Classification(), LOGITS[[0, 1, 2, 3]], torch.tensor([0, 1, 2, 1])),
    "Multilabel": Client("whole", MultiLabel(), LOGITS, _labels([1, 0, 0], [0, 1, 1], [1, 0, 1], [0, 1, 0])),
    "": Client("whole", Regression(), LOGITS[:, :1] + 2, torch.tensor([[1.5], [0.5], [2.0], [3.0]])),
}
"""Clients on which every metric is defined."""


def main() -> int:
    """Replace the tables in the page; returns the exit code."""
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(PAGE.parent.parent)}: {len(list(classes()))} classes")
    return 0


def with_tables(page: str) -> str:
    """Replace the tables of the page by the current ones."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{tables()}\n\n{END}{after}"


def classes() -> Iterator[tuple[str, str, type[Metric]]]:
    """Yield the prefix, the name without it, and the class of each metric of classes, labels or numbers."""
    for room in (of_classes, of_numbers):
        for name in room.__all__:
            made = getattr(room, name)
            prefix = next((p for p in ("Binary", "Multiclass", "Multilabel") if name.startswith(p)), "")
            if inspect.isclass(made) and issubclass(made, Metric) and (prefix or room is of_numbers):
                yield prefix, name.removeprefix(prefix), made


def make(cls: type[Metric]) -> Metric:
    """Make an object with plain arguments."""
    parameters = inspect.signature(cls.__init__).parameters
    given = {name: ARGUMENTS[name] for name, p in parameters.items() if name in ARGUMENTS and p.default is p.empty}
    given |= {name: ARGUMENTS[name] for name in ("average", "num_classes") if name in parameters}
    return cls(**given)


def refusal(prefix: str, cls: type[Metric]) -> str:
    """Return the sentence with which a metric is refused before training; empty if it is not."""
    client = WHOLE[prefix]
    try:
        try_metric("column", make(cls), client.outputs, client.targets, client.task, lambda generators: generators)
    except UserError as error:
        return str(error)
    return ""


def by_torchmetrics(cls: type[Metric], client: Client) -> float | str:
    """Return the number that the class itself gives for a client, or its error."""
    metric = make(cls)
    try:
        with quiet():
            outputs, targets = client.task.for_metrics(client.outputs, client.targets)
            metric.update(outputs, targets)
            return float(metric.compute())
    except Exception as error:
        return reason(error)


def here(cls: type[Metric], client: Client) -> float:
    """Return the number that a run reports for a client."""
    metric = ClientMetric(make(cls))
    metric.update(client.task, client.outputs, client.targets)
    return float(metric.compute())


def tables() -> str:
    """Format the tables: metrics of classes and labels, metrics of numbers, and those that are refused."""
    found = list(classes())
    refused = {(prefix, name): sentence for prefix, name, cls in found if (sentence := refusal(prefix, cls))}
    kept = {(prefix, name): cls for prefix, name, cls in found if (prefix, name) not in refused}
    lines = [f"With torchmetrics {torchmetrics.__version__}:", ""]
    names = list(dict.fromkeys(name for prefix, name in kept if prefix))
    heads = [f"{prefix}: {client.name}" for prefix, several in CLIENTS.items() if prefix for client in several]
    lines += [f"| metric | undefined if | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for name in names:
        words = {prefix: _undefined(cls) for (prefix, other), cls in kept.items() if other == name}
        several = [f"{prefix}: {said}" for prefix, said in words.items()] if len(set(words.values())) > 1 else []
        cells = [
            _cell(kept[prefix, name], client) if (prefix, name) in kept else ""
            for prefix, several in CLIENTS.items()
            if prefix
            for client in several
        ]
        lines.append(f"| {name} | {'; '.join(several) or next(iter(words.values()))} | {' | '.join(cells)} |")
    heads = [client.name for client in CLIENTS[""]]
    lines += ["", f"| metric of numbers | undefined if | {' | '.join(heads)} |", f"|---|---|{'---|' * len(heads)}"]
    for (prefix, name), cls in kept.items():
        if not prefix:
            cells = [_cell(cls, client) for client in CLIENTS[""]]
            lines.append(f"| {name} | {_undefined(cls)} | {' | '.join(cells)} |")
    by_remedy: dict[str, list[str]] = {}
    for (prefix, name), sentence in refused.items():
        by_remedy.setdefault(_remedy(sentence), []).append(f"{prefix}{name}")
    lines += ["", "| refused: not one number of outputs and targets | what the sentence says |", "|---|---|"]
    lines += [f"| {', '.join(several)} | {remedy} |" for remedy, several in by_remedy.items()]
    return "\n".join(lines)


def _undefined(cls: type[Metric]) -> str:
    kind = kind_of(cls)
    return kind.undefined or "never" if kind is not None else "it returns NaN"


def _cell(cls: type[Metric], client: Client) -> str:
    """Write what torchmetrics returns, and what is reported if that is something else."""
    theirs, ours = by_torchmetrics(cls, client), here(cls, client)
    text = "error" if isinstance(theirs, str) else _number(theirs)
    same = not isinstance(theirs, str) and (theirs == ours or (math.isnan(theirs) and math.isnan(ours)))
    return text if same or text == _number(ours) else f"{text} → {_number(ours)}"


def _number(value: float) -> str:
    return "NaN" if math.isnan(value) else f"{value:.3g}"


def _remedy(sentence: str) -> str:
    """Return the last part of a sentence, after the semicolon."""
    return sentence.rpartition("; ")[2] if "; " in sentence else "it fails"


if __name__ == "__main__":
    raise SystemExit(main())
