"""Advice of Lightning's that does not apply to rounds, silenced by name."""

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
    ".*Checkpoint directory .* exists and is not empty.*",  # a resumed run goes on in its folder
    r"\s*By default only one JsonargparseDeprecationWarning.*",  # Lightning 2.6 on newer jsonargparse, and these:
    r"\s*``ArgumentParser.add_instantiator`` was deprecated.*",
    r"\s*``instantiate_classes`` was deprecated.*",
    r"\s*skip_none parameter was deprecated.*",
)


def ignore_inapplicable_warnings() -> None:
    """Inside `warnings.catch_warnings()`: pass over the warnings of `INAPPLICABLE`."""
    for message in INAPPLICABLE:
        warnings.filterwarnings("ignore", message)


@contextmanager
def quiet_lightning() -> Iterator[None]:
    """Without these warnings and the log lines that the banner makes superfluous ("GPU available" …).

    Warning filters and log levels are the user's own again afterwards; a level that the user has set stays.
    """
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    before = {logger: logger.level for logger in loggers if logger.level in (logging.NOTSET, logging.INFO)}
    profilers = logging.getLogger("lightning.pytorch.profilers")
    asked = profilers.level
    with warnings.catch_warnings():
        ignore_inapplicable_warnings()
        for logger in before:
            logger.setLevel(logging.WARNING)
        profilers.setLevel(logging.INFO)  # a table that was asked for
        try:
            yield
        finally:
            profilers.setLevel(asked)
            for logger, level in before.items():
                logger.setLevel(level)
