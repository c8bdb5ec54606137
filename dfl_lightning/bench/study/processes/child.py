"""The process of a cell: `dfl-fit`, which saves and ends when the study's process has ended in any way."""

from __future__ import annotations

import os
import signal
import threading

from dfl_lightning.cli.main import fit

REQUEUE = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}", None)
"""The signal that SLURM sends to all processes of submitit's job before it ends them; None if the system has none."""


def _end_with_the_study() -> None:
    """Wait for the end of standard input, which means that the study's process has ended; then save and end."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if REQUEUE is not None:
        signal.signal(REQUEUE, signal.SIG_IGN)  # the process of the job handles it, and asks this one to save
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    fit()
