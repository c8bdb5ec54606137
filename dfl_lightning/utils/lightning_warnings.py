"""Suppression of those warnings of Lightning that do not apply to communication rounds."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

INAPPLICABLE = (
    ".*does not have many workers.*",  # data are resident; there are no workers
    ".*number of training batches.*",  # one batch is one round
    ".*is deprecated, use `isinstance.treespec.*",  # Lightning 2.6 on newer torch
    ".*`weights_only` was not set.*",  # our checkpoints are read with weights_only
    ".*when logging on epoch level in distributed setting.*",  # all processes log the same numbers
    ".*`srun` command is available.*",  # a run starts its processes itself
    ".*GPU available but not used.*",  # the user chose the CPU
    ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run continues in its folder
    r"\s*By default only one JsonargparseDeprecationWarning.*",  # Lightning 2.6 on newer jsonargparse, and these:
    r"\s*``ArgumentParser.add_instantiator`` was deprecated.*",
    r"\s*``instantiate_classes`` was deprecated.*",
    r"\s*skip_none parameter was deprecated.*",
)


def ignore_inapplicable_warnings() -> None:
    """Ignore the warnings of `INAPPLICABLE`; to be called inside `warnings.catch_warnings()`."""
    for message in INAPPLICABLE:
        warnings.filterwarnings("ignore", message)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Suppress these warnings, and the log lines that the banner replaces ("GPU available" …), inside a block.

    The user's warning filters and log levels are restored afterwards. A level that the user has set stays.
    """
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = {logger: logger.level for logger in loggers if logger.level in (logging.NOTSET, logging.INFO)}
    profilers = logging.getLogger("lightning.pytorch.profilers")
    level_of_profilers = profilers.level
    with warnings.catch_warnings():
        ignore_inapplicable_warnings()
        for logger in before:
            logger.setLevel(logging.WARNING)
        profilers.setLevel(logging.INFO)  # the user has asked for the profiler's table
        try:
            yield
        finally:
            profilers.setLevel(level_of_profilers)
            for logger, level in before.items():
                logger.setLevel(level)
