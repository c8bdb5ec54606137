"""Advice of Lightning's that does not apply to rounds, silenced by name."""

from __future__ import annotations

import logging
import warnings

INAPPLICABLE = (
    ".*does not have many workers.*",  # data are resident; there are no workers
    ".*number of training batches.*",  # one batch is one round
    ".*is deprecated, use `isinstance.treespec.*",  # Lightning 2.6 on newer torch
    ".*`weights_only` was not set.*",  # our checkpoints are read with weights_only
    ".*when logging on epoch level in distributed setting.*",  # all processes log the same numbers
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


def quieten_lightning() -> None:
    """For a command: these warnings, and the log lines that the banner makes superfluous ("GPU available" …)."""
    ignore_inapplicable_warnings()
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.getLogger("lightning.pytorch.profilers").setLevel(logging.INFO)  # a table that was asked for
