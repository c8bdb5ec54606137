"""Studies that start no processes: each cell is run by the process that asks for it."""

import contextlib
import io
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from threads import threads

from dfl_lightning.bench.study.processes import starting
from dfl_lightning.cli import command as cli


class CellHere:
    """A substitute for `subprocess.Popen` in studies, which runs the cell in this process while it is made."""

    def __init__(self, command, *, stdout, env, **_):
        assert command[:3] == [sys.executable, "-m", "dfl_lightning.bench.study.processes.child"]
        said = io.TextIOWrapper(stdout, encoding="utf-8", write_through=True)
        with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            for name in env.keys() - os.environ.keys():
                patch.setenv(name, env[name])
            with threads(1):  # as forks have
                self.returncode = cli.run("fit", command[3:])
        said.detach()
        self.stdin, self.pid = io.BytesIO(), os.getpid()

    def poll(self):
        return self.returncode


@contextlib.contextmanager
def in_this_process():
    """Within it studies start no processes: for tests of what a finished study holds, not of how it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting, "subprocess", SimpleNamespace(Popen=CellHere, PIPE=subprocess.PIPE))
        patch.setenv(starting.FORK, "0")
        yield
