"""`dfl-report --to-wandb DIR`: runs of Weights & Biases that are not sent, and that `wandb sync` sends later."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dfl_lightning.bench.report.trackers.tracked import Tracked, empty_folder, settings_of_tracker
from dfl_lightning.utils.errors import UserError

PROJECT = "dfl_lightning"
"""Project of the runs, which `wandb sync --project` changes."""


def write_offline(runs: Sequence[Tracked], folder: str) -> Path:
    """Write each run as an offline run: nothing is sent, and no account is needed.

    Each has the columns of metrics.csv by round, the settings as its config, and its method as group.

    Args:
        runs: the runs.
        folder: a folder that is new or empty.

    Returns:
        The folder, with a folder for each run in its `wandb`.

    Raises:
        UserError: wandb is not installed, or the folder has files.
    """
    try:
        import wandb
    except ImportError as error:
        raise UserError("--to-wandb needs Weights & Biases: pip install wandb") from error
    path = empty_folder("to-wandb", folder)
    path.mkdir(parents=True, exist_ok=True)
    settings = wandb.Settings(silent=True, console="off", disable_git=True, disable_code=True, x_disable_stats=True)
    for tracked in runs:
        sent = wandb.init(
            mode="offline",
            dir=str(path),
            project=PROJECT,
            name=tracked.name,
            group=tracked.method,
            config=settings_of_tracker(tracked.run),
            settings=settings,
        )
        for number, _, values in tracked.rounds():
            sent.log(values, step=number)
        sent.finish()
    return path
