"""A user's network that notes what its process is like when it is imported, and then leaves that in disorder."""

import gc
import json
import logging
import os
import random
import signal
import sys
import threading
import warnings
from pathlib import Path

import numpy
import torch
from torch import nn

import __main__

NOTES = "DFL_TEST_NOTES"


class Net(nn.Module):
    """As large as it takes for torch to use several threads."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 10))

    def forward(self, images):
        return self.layers(images)


def notes():
    """Return the state that a process has inherited from its parent or from former work in it."""
    loggers = [one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger)]
    # jsonargparse makes this one when it looks at a type that may be a protocol, which a fork's parser has done.
    loggers = [one for one in loggers if one.name != "implements_protocol"]
    files = [os.path.realpath(file) for file in Path("/proc/self/fd").iterdir() if file.exists()]
    streams = (sys.stdin, sys.stdout, sys.stderr)
    return {
        "main": [__main__.__spec__.name, __main__.__file__, sys.argv, sys.orig_argv],
        "places": [os.getcwd(), sys.path, os.umask(0o22)],
        "environment": dict(sorted(os.environ.items())),
        "threads": [torch.__config__.parallel_info(), [thread.name for thread in threading.enumerate()]],
        "signals": {int(number): str(signal.getsignal(number)) for number in signal.valid_signals()},
        "blocked": [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())],
        "warnings": list(map(str, warnings.filters)),
        "loggers": sorted(f"{one.name} {one.level} {one.handlers}" for one in loggers if one.level or one.handlers),
        "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "garbage": [gc.isenabled(), *gc.get_threshold()],
        "files": sorted(file for file in files if not file.startswith("/proc")),
        "streams": [[one.fileno(), one.line_buffering, one.encoding, one.errors] for one in streams],
        "cuda": [torch.cuda._is_in_bad_fork(), torch.cuda.is_initialized()],
        "torch": [str(torch.get_default_dtype()), hasattr(torch, "left_behind")],
        "modules": sorted(sys.modules),
        "draws": [random.random(), numpy.random.rand(), torch.rand(1).item()],
    }


def leave_in_disorder():
    """Change what another run would meet if it came after this one in the same process."""
    os.environ["LEFT_BEHIND"] = "1"
    random.seed(0)
    numpy.random.seed(0)
    torch.manual_seed(0)
    warnings.simplefilter("ignore")
    logging.getLogger("left behind").setLevel(1)
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    sys.path.append("left behind")
    torch.left_behind = True


if os.environ.get(NOTES):
    Path(os.environ[NOTES]).write_text(json.dumps(notes()))
    leave_in_disorder()
