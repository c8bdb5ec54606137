"""The allocator's settings, each in a process of its own: they last as long as it does."""

import os
import platform
import subprocess
import sys

import pytest

from dfl_lightning.engines import allocator

PROGRAM = """
import resource, sys
import torch
from dfl_lightning.engines.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    cohort = [torch.zeros(10**6) for _ in range(12)]  # 4 MB each
    del cohort
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = [faults() for _ in range(4)]
took = keep_freed_memory()
later = [faults() for _ in range(4)]
print(took, max(first), max(later[1:]))
"""


def measured(**environment: str) -> tuple[bool, int, int]:
    """Return whether the allocator accepted the settings, and the pages requested by the first and by later cohorts."""
    inherited = {name: value for name, value in os.environ.items() if name not in allocator._OWN_SETTINGS}
    words = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(words, env={**inherited, **environment}, stdout=subprocess.PIPE, text=True, check=True)
    took, first, later = done.stdout.split()
    return took == "True", int(first), int(later)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")
def test_a_cohort_takes_the_memory_of_the_one_before_it() -> None:
    took, first, later = measured()
    assert took
    assert later < first / 4


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="these are settings of glibc")
def test_the_users_own_settings_stay() -> None:
    took, first, later = measured(MALLOC_TRIM_THRESHOLD_="131072")
    assert not took
    assert later > first / 2  # everything was given back, and is asked for again


def test_an_engine_sets_the_allocator_up(federation, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr("dfl_lightning.engines.engine.keep_freed_memory", lambda: asked.append("once"))
    federation()
    assert asked == ["once"]
