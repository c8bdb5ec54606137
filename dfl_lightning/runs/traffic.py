"""The bytes that the processes of a run exchange, to be compared with the costs of the simulated clients."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_atomically

FILE = "processes.csv"
COLUMNS = ("round", "bytes_received", "bytes_moved")


class ProcessTraffic(RoundCallback):
    """Callback that writes `processes.csv` if a run has several processes, a row for each round.

    `bytes_received` is what all simulated clients together received, `bytes_moved` what all processes received. The
    second is smaller if clients evaluate many models: a model is evaluated in its own process, and several clients of a
    process share one copy. It is larger if whole vectors are compared.
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, str]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the rows of the rounds that a resumed run keeps."""
        if pl_module.bank.ranks.count == 1 or not trainer.is_global_zero or trainer.run_folder is None:
            return
        rows = read_metrics(self._file(trainer), gaps=True)  # rounds with a single process have no row
        self._rows = [row for row in rows if int(row["round"]) < pl_module.bank.boundary.round]

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Sum the bytes of all processes, and write the round's row in the first."""
        ranks = module.bank.ranks
        if ranks.count == 1:
            return
        moved, ranks.moved = ranks.total(ranks.moved), 0
        if not trainer.is_global_zero or trainer.run_folder is None:
            return
        boundary = module.bank.boundary
        received = boundary.metrics["bytes_received"] * module.federation.num_clients
        numbers = (boundary.round - 1, round(received), moved)
        self._rows.append({name: str(number) for name, number in zip(COLUMNS, numbers, strict=True)})
        text = io.StringIO()
        writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        file = self._file(trainer)
        try:
            write_atomically(file, lambda open_file: open_file.write(text.getvalue().encode()))
        except OSError as error:
            raise UserError(f"{file}: cannot be written ({error.strerror})") from error

    def _file(self, trainer: RunTrainer) -> Path:
        return Path(trainer.run.path or ".") / FILE
