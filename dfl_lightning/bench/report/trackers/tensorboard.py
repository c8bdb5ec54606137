"""`dfl-report --to-tensorboard DIR`: event files of runs, which TensorBoard reads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dfl_lightning.bench.report.trackers.tracked import Tracked, empty_folder
from dfl_lightning.checkpoints.history import config_text
from dfl_lightning.utils.errors import UserError


def write_events(runs: Sequence[Tracked], folder: str) -> Path:
    """Write each run as a folder of its method with an event file.

    All columns of metrics.csv are scalars, the arrays of clients.npz are histograms over clients, and the config is a
    text. Rounds count from 1, as on pages.

    Args:
        runs: the runs.
        folder: a folder that is new or empty.

    Returns:
        The folder.

    Raises:
        UserError: TensorBoard is not installed, or the folder has files.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UserError("--to-tensorboard needs TensorBoard: pip install tensorboard") from error
    path = empty_folder("to-tensorboard", folder)
    for tracked in runs:
        with SummaryWriter(str(path / tracked.folder)) as writer:
            if tracked.run.config:
                writer.add_text("config", f"```\n{config_text(tracked.run.config)}```", 0)
            for number, moment, values in tracked.rounds():
                for name, value in values.items():
                    writer.add_scalar(name, value, number, walltime=moment)
            for number, arrays in tracked.clients():
                for name, of_clients in arrays.items():
                    writer.add_histogram(f"clients/{name}", of_clients, number)
    return path
