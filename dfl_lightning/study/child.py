"""`dfl-fit` as a study starts it: it saves and ends when the study is gone, in whatever way that has ended."""

from __future__ import annotations

import os
import signal
import threading

from dfl_lightning.cli.main import fit


def _end_with_the_study() -> None:
    """Standard input is a pipe that nobody writes into: its end means that the study's process is no more."""
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    threading.Thread(target=_end_with_the_study, daemon=True).start()
    fit()
