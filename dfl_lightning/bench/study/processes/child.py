"""`dfl-fit` as a study starts it: it saves and ends when the study's process has ended, in any way."""

from __future__ import annotations

import os
import signal
import threading

from dfl_lightning.cli.main import fit

REQUEUE = getattr(signal, f"SIG{os.environ.get('SUBMITIT_PREEMPT_SIGNAL', 'USR2')}", None)
"""What SLURM sends to all processes of a job of submitit's before it ends them; None where the system has it not."""


def _end_with_the_study() -> None:
    """Standard input is a pipe without writers: its end means that the study's process has ended."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    if REQUEUE is not None:
        signal.signal(REQUEUE, signal.SIG_IGN)  # the job's own process handles it, and asks this one to save
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    fit()
