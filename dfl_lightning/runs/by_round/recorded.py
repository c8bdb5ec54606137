"""The rounds of a run in memory, as its folder has them in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from dfl_lightning.callbacks import Substitution
from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.functional import of_clients, over_clients, without_mean
from dfl_lightning.round.record import Round
from dfl_lightning.runs.by_round.entries import MOST_CLIENTS, Comparisons, Entries, similarity_of, stacked
from dfl_lightning.runs.columns import undefined_numbers
from dfl_lightning.runs.links import links_of, substitutes_of
from dfl_lightning.runs.tables import as_csv, as_text, columns_of, read_metrics, read_rounds
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.storage.files import write_atomically, write_npz

if TYPE_CHECKING:
    from dfl_lightning.bank.boundary import Boundary
    from dfl_lightning.round.federation import Federation

METRICS, CLIENTS = "metrics.csv", "clients.npz"

Row = dict[str, str]
"""A row of metrics.csv, as text by column."""


class RecordedRounds:
    """The rounds of a run so far: rows of metrics.csv, evaluations of each client, links, dropouts, divergences.

    Attributes:
        rows: the rows of metrics.csv.
        has_new_columns: True if the last row has a column that earlier ones lack, so that the file is written anew.
        score: the score of the run's task.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.has_new_columns = False
        self.score = Score()
        self._extra = list[str]()
        self._honest: torch.Tensor | None = None  # see `honest_clients`
        self._chosen: tuple[str, ...] = ()  # names of the metrics in addition to the task's numbers
        self._evaluations: dict[int, dict[str, np.ndarray]] = {}
        self._graphs, self._diverged = Entries("graphs.npz", always=True), Entries("diverged.npz")
        self._dropouts, self._substitutes = Entries("dropouts.npz"), Entries("substitutes.npz")
        self._comparisons = Comparisons()
        tables = (self._graphs, self._diverged, self._dropouts, self._substitutes, self._comparisons)
        self._tables: dict[str, Entries | Comparisons] = {table.file.removesuffix(".npz"): table for table in tables}

    def describe(self, federation: Federation, metrics: Sequence[str]) -> None:
        """Take the score, the honest clients and the chosen metrics of a fit."""
        self.score, self._honest = Score.of(federation.task), honest_clients(federation)
        self._chosen = tuple(metrics)

    @property
    def columns(self) -> list[str]:
        """The columns of metrics.csv."""
        return [*columns_of(self.score.name), *self._extra]

    def table(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of a file by column; `name` is that of the file without its ending."""
        if name == "metrics":
            return {c: np.array([float(row.get(c) or "nan") for row in self.rows]) for c in self.columns}
        return stacked(self._evaluations) if name == "clients" else self._tables[name].before()

    # --- record -------------------------------------------------------------------------------------------------------
    def add_absent(self, round: Round) -> None:
        """Record the clients that diverged or dropped out in a round."""
        for table, clients in ((self._diverged, round.diverged), (self._dropouts, round.dropped & ~round.diverged)):
            if clients.any():
                ids = torch.nonzero(clients).squeeze(1).numpy().astype(np.int32)
                table.add(round.index, bool(round.earlier), client=ids)

    def add_links(self, round: Round, every: int, keep_comparisons: bool) -> None:
        """Record the links of an evaluated round, the substitutes, and if asked for the comparisons.

        Args:
            round: a round with weights.
            every: number of rounds from one evaluated round to the next.
            keep_comparisons: keep the similarities between clients, if there are few enough.
        """
        self._graphs.add(round.index, bool(round.earlier), **links_of(round))
        if round.federation.policy(Substitution) is not None:
            columns = substitutes_of(round)
            if len(columns["client"]):
                self._substitutes.add(round.index, bool(round.earlier), **columns)
        if keep_comparisons and round.num_clients <= MOST_CLIENTS:
            arrays = (None if tensor is None else tensor.numpy() for tensor in (similarity_of(round), round.threshold))
            self._comparisons.add(round.index // every, every, *arrays)

    def add_row(self, boundary: Boundary) -> None:
        """Add the metrics and the evaluation of the round before the boundary."""
        index = boundary.round - 1
        numbers: dict[str, Any] = dict(boundary.metrics)
        if boundary.evaluation:
            arrays = {name: values.cpu().double().numpy() for name, values in boundary.evaluation.items()}
            self._evaluations[index] = {name: a for name, a in arrays.items() if not name.startswith("global_")}
            shown = {name: values.numpy() for name, values in boundary.numbers.items() if name[0] != "_"}
            self._evaluations[index] |= shown
            numbers |= self._over_clients(boundary.evaluation)
        row = {name: as_text(value) for name, value in numbers.items()}
        extra = sorted({*self._extra, *(set(row) - set(columns_of(self.score.name)))})
        self.has_new_columns, self._extra = extra != self._extra, extra
        self.rows = [r for r in self.rows if int(r["round"]) < index] + [{"round": str(index), **row}]

    def _over_clients(self, evaluation: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Return means over honest clients, the spread of the score, and its mean over adversaries."""
        honest, score = of_clients(evaluation, self._honest), f"test_{self.score.name}"
        hidden, higher = without_mean(honest, self.score.name), self.score.higher_is_better
        statistics = {n: over_clients(values, n in hidden, higher) for n, values in honest.items()}
        numbers: dict[str, Any] = {name: over.mean for name, over in statistics.items()}
        numbers |= undefined_numbers(honest, self.score.name, self._chosen)
        if score in statistics:
            numbers |= {f"{score}_{name}": getattr(statistics[score], name) for name in ("std", "worst10")}
        if score in statistics and self._honest is not None:
            adversaries = of_clients(evaluation, ~self._honest)
            broken = score in without_mean(adversaries, self.score.name)
            numbers[f"{score}_adversaries"] = over_clients(adversaries[score], broken, higher).mean
        return numbers

    # --- files --------------------------------------------------------------------------------------------------------
    def counts(self, boundary: Boundary) -> dict[str, int]:
        """Count the rounds up to the boundary for each file; a resume that finds fewer has lost some."""
        done = rounds_done(boundary)
        counts = {
            METRICS: sum(int(row["round"]) < done for row in self.rows),
            CLIENTS: sum(round < done for round in self._evaluations),
        }
        for table in self._tables.values():
            rounds = sum(round < boundary.round for round in table.rounds)
            # comparisons are thinned as the run goes, so only their presence can be compared
            counts[table.file] = min(rounds, 1) if isinstance(table, Comparisons) else rounds
        return counts

    def clear(self) -> None:
        """Forget all rounds."""
        self.rows, self._extra, self._evaluations = [], [], {}
        for table in self._tables.values():
            table.rounds = {}

    def read(self, folder: Path, boundary: Boundary) -> list[Row]:
        """Read the rounds up to the boundary from the files of a run folder, and return the later rows.

        Raises:
            UserError: a file is damaged.
        """
        done, rows = rounds_done(boundary), read_metrics(folder / METRICS)
        self._extra = sorted({c for row in rows for c in row} - set(columns_of(self.score.name)))
        self.rows = [row for row in rows if int(row["round"]) < done]
        evaluations = read_rounds(folder / CLIENTS, "rounds")
        self._evaluations = {r: {k: v[0] for k, v in e.items()} for r, e in evaluations.items() if r < done}
        for table in self._tables.values():
            table.read(folder, boundary.round)
        return rows[len(self.rows) :]

    def write_rows(self, folder: Path) -> None:
        """Write metrics.csv anew."""
        text = as_csv(self.rows, self.columns)
        write_atomically(folder / METRICS, lambda file: file.write(text.encode()))

    def append_row(self, folder: Path) -> None:
        """Append the last row to metrics.csv; write the file anew if it lacks a column of the row."""
        if self.has_new_columns:
            self.write_rows(folder)
            return
        with open(folder / METRICS, "a", encoding="utf-8", newline="") as file:
            file.write(as_csv(self.rows[-1:], self.columns, header=False))

    def write_arrays(self, folder: Path, done: int) -> None:
        """Write the npz files.

        Args:
            folder: the run folder.
            done: number of complete rounds.
        """
        write_npz(folder / CLIENTS, self.table("clients"))
        for table in self._tables.values():
            table.write(folder, done)


def rounds_done(boundary: Boundary) -> int:
    """Return the number of rounds whose row is complete at a boundary."""
    return boundary.round if boundary.closed else boundary.round - 1
