"""The reader of run folders: arrays and plain tables of any run, as `trainer.run` offers them after a fit."""

from __future__ import annotations

import json
import os
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml

from dfl_lightning.runs.run_tables import RunTables
from dfl_lightning.runs.tables import damaged, read_metrics, read_npz
from dfl_lightning.runs.typed import COMMANDS, read_commands
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.storage.files import unique_pairs

if TYPE_CHECKING:
    from torch import Tensor, nn

_TABLES = ("metrics", "clients", "graphs", "diverged", "dropouts", "substitutes", "link_messages")

PAGE = "report.html"
"""Name of the file with a run's page, which not every run has."""


class RunFiles(RunTables):
    """The files of a run folder: those that `trainer.run` reads after a fit, and `read_run` of any run.

    Attributes:
        path: the folder; None before the run.
        summary: the content of summary.json; empty while the run lasts, and if it was killed.
    """

    path: Path | None
    summary: dict[str, Any]

    def _table(self, name: str) -> dict[str, np.ndarray]:
        return self._metrics() if name == "metrics" else read_npz(self._in_folder(f"{name}.npz"))

    def _in_folder(self, name: str) -> Path:
        """Return a file of the run folder.

        Raises:
            UserError: the run has not begun.
        """
        if self.path is None:
            raise UserError("there is no run folder yet; trainer.fit makes one")
        return self.path / name

    def _metrics(self) -> dict[str, np.ndarray]:
        rows = read_metrics(self._in_folder("metrics.csv"))
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: np.array([float(row.get(name) or "nan") for row in rows]) for name in names or ["round"]}

    # --- tables -------------------------------------------------------------------------------------------------------
    @property
    def link_messages(self) -> dict[str, np.ndarray]:
        """link_messages.npz, by column: `receiver`, `sender`, `models`, `parts`, `bytes`; with `LinkMessages` only."""
        return self._table("link_messages")

    @property
    def split(self) -> dict[str, np.ndarray]:
        """split.npz: the samples of each client, ground-truth clusters, adversaries."""
        return self._table("split")

    @property
    def config(self) -> dict[str, Any]:
        """config.yaml; empty if the folder has none."""
        path = self._in_folder("config.yaml")
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}
        except (OSError, ValueError, yaml.YAMLError) as error:
            raise damaged(path, reason(error)) from error
        return content if isinstance(content, dict) else {}

    @property
    def num_clients(self) -> int | None:
        """The number of clients, from the summary or else from the split; None if both are missing."""
        offsets = self.split.get("test_offsets", ())
        number: int | None = self.summary.get("clients")
        return number if number is not None else len(offsets) - 1 if len(offsets) else None

    @property
    def score(self) -> Score:
        """The score with which the task compares models: its name, direction and unit."""
        return Score.read(self.summary) if self.summary else Score.of_columns(self.metrics)

    @property
    def commands(self) -> list[str]:
        """The commands as they were typed, the first and every resume; empty for a run that Python code started."""
        return [row["command"] for row in read_commands(self._in_folder(COMMANDS))]

    def frame(self, table: str = "metrics") -> Any:
        """Return a table as a pandas frame; `clients` gets a row for each evaluation and client.

        Args:
            table: `metrics`, `clients`, `graphs`, `diverged`, `dropouts`, `substitutes` or `link_messages`.

        Raises:
            UserError: pandas is not installed, or there is no such table.
        """
        if table not in _TABLES:
            raise UserError(f"there is no table '{table}'; tables are: {', '.join(_TABLES)}")
        try:
            import pandas
        except ImportError as error:
            raise UserError(
                f"frame('{table}') needs pandas: pip install pandas; run.{table} works without it"
            ) from error
        columns = getattr(self, table)
        return pandas.DataFrame(_long(columns) if table == "clients" else columns)

    # --- models -------------------------------------------------------------------------------------------------------
    def model(self, client: int, network: nn.Module | None = None) -> Any:
        """Return a client's model after the last checkpoint, as `dfl-export` writes it.

        Args:
            client: id of the client, from 0.
            network: a plain network into which the model is loaded.

        Returns:
            The state dict; or the network, if one is given.

        Raises:
            UserError: the checkpoint or the client does not exist, or the run has several servers.
        """
        from dfl_lightning.checkpoints.state_dicts import checked_content, reported_state

        folder = self._in_folder("")
        state: dict[str, Tensor] = reported_state(checked_content(folder, [client]), client)
        if network is None:
            return state
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            raise UserError(f"{type(network).__name__} is not the network of {folder} ({reason(error)})") from error
        return network


class Run(RunFiles):
    """A run, finished or not, whose files are read from its folder when they are first used.

    Args:
        folder: the run folder.

    Raises:
        UserError: the folder has no metrics.csv.

    Attributes:
        path: the folder.
    """

    path: Path

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder)
        self._read: dict[str, dict[str, np.ndarray]] = {}
        if not (self.path / "metrics.csv").is_file():
            raise UserError(f"{folder}: no metrics.csv in there; give a run folder, as in runs/afind/<time>")

    def __repr__(self) -> str:
        """Show the folder and the number of rounds."""
        return f"Run({str(self.path)!r}, {len(self.metrics['round'])} rounds)"

    def _table(self, name: str) -> dict[str, np.ndarray]:
        if name not in self._read:
            self._read[name] = super()._table(name)
        return self._read[name]

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.yaml; empty if the folder has none."""
        return super().config

    @cached_property
    def summary(self) -> dict[str, Any]:  # type: ignore[override]  # `RunFolder` assigns it
        """summary.json; empty while the run lasts, and if it was killed."""
        path = self.path / "summary.json"
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else "{}"
            content = json.loads(text, object_pairs_hook=unique_pairs)
        except (OSError, ValueError) as error:
            raise damaged(path, reason(error)) from error
        return content if isinstance(content, dict) else {}

    @cached_property
    def score(self) -> Score:
        """The score with which the task compares models: its name, direction and unit."""
        return super().score

    @cached_property
    def commands(self) -> list[str]:
        """The commands as they were typed, the first and every resume; empty for a run that Python code started."""
        return super().commands


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read a run's tables as arrays, its configuration, its summary and its models.

    Args:
        folder: the run folder, `runs/<name>/<time>`; the run may be finished, stopped or still running.

    Returns:
        The run: `metrics` has the columns of metrics.csv, `clients` an array [evaluations, m] for each score, `config`
        and `summary` are mappings. Each file is read when it is first used.

    Raises:
        UserError: the folder has no metrics.csv.

    Examples:
        >>> read_run("runs/nowhere")
        Traceback (most recent call last):
        ...
        dfl_lightning.utils.errors.UserError: runs/nowhere: no metrics.csv in there; give a run folder...
    """
    return Run(folder)


def _long(clients: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Flatten arrays [evaluations, clients] to columns, and add the columns `round` and `client`."""
    arrays = {name: array for name, array in clients.items() if name != "rounds"}
    if not arrays:
        return {"round": np.array([], dtype=np.int64), "client": np.array([], dtype=np.int64)}
    evaluations, number = next(iter(arrays.values())).shape
    return {
        "round": np.repeat(clients["rounds"], number),
        "client": np.tile(np.arange(number), evaluations),
        **{name: array.reshape(-1) for name, array in arrays.items()},
    }
