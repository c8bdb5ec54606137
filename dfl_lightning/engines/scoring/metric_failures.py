"""Errors of clients' metrics in evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.metrics import ClientMetric


class MetricFailures:
    """Record of the metrics that failed in this process' evaluations, and are NaN therefore.

    Args:
        columns: names of the metrics.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._reasons: dict[tuple[str, int], str] = {}

    def add(self, owner: int, metrics: Iterable[ClientMetric]) -> None:
        """Record the errors of a client's metrics.

        Args:
            owner: the client; -1: the global test set.
            metrics: one for each column, after `compute`.
        """
        for column, metric in zip(self._columns, metrics, strict=True):
            if metric.error is not None:
                self._reasons[column, owner] = metric.failure

    def update(self, reasons: Mapping[tuple[str, int], str]) -> None:
        """Record errors in words, by column and client."""
        self._reasons |= reasons

    def clear(self) -> None:
        """Forget all errors."""
        self._reasons = {}

    def gather(self, ranks: Ranks) -> dict[tuple[str, int], str]:
        """Return the errors of all processes since the last call, by column and client; all processes call this."""
        reasons, self._reasons = self._reasons, {}
        if not self._columns or ranks.count == 1 or not ranks.any(bool(reasons)):
            return reasons
        alike: dict[tuple[str, str], list[int]] = {}
        for (column, owner), why in sorted(reasons.items()):
            alike.setdefault((column, why), []).append(owner)
        lines = [f"{column}\t{' '.join(map(str, owners))}\t{why}\n" for (column, why), owners in alike.items()]
        together: dict[tuple[str, int], str] = {}
        for text in ranks.texts("".join(lines)):
            for line in text.splitlines(keepends=True):
                if line.endswith("\n"):  # a line that was cut off is left out
                    column, owners_in_words, why = line.rstrip("\n").split("\t")
                    together |= {(column, int(owner)): why for owner in owners_in_words.split()}
        return together
