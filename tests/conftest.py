"""Small runs; the scripts, imported; the order of tests.

What is tested is imported where it is used: xdist's first process only hands out tests, and the others wait for it.
"""

import functools
import gc
import importlib
import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest

ACCELERATOR = os.environ.get("DFL_TEST_ACCELERATOR", "cpu")
"""Where small runs and the tester of policies compute: `cpu`, `gpu`, or `pretended`, a GPU that is not there."""

if ACCELERATOR != "gpu":  # the same tests on every machine; torch has one accelerator, CUDA or the pretended one
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Several workers share the cores: each computes with one thread, and so does what its tests start, unless the user set
# the number. Torch reads it once, at its import. Tests of threads set their number: tests/helpers/threads.py.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def small_run(tmp_path):
    """Make a small run below the test's own folder."""
    from small_run import SmallRun

    return lambda *args, root=tmp_path, **options: SmallRun(root, *args, **options)


@pytest.fixture
def trace(tmp_path):
    """Make a dropout of who is active in each round, a line each; for ever, from the first one again."""
    from dfl_lightning.callbacks import Trace

    def trace(*lines):
        (tmp_path / "trace.txt").write_text("\n".join(lines))
        return Trace(str(tmp_path / "trace.txt"), repeat=True)

    return trace


@pytest.fixture(scope="module")
def read_only_run(tmp_path_factory):
    """Make a small run that several tests of a file look at and none of them changes."""
    from small_run import SmallRun

    return lambda *args, **options: SmallRun(tmp_path_factory.mktemp("run"), *args, **options)


@pytest.fixture(scope="session")
def make_run():
    """Write a run folder by hand."""
    from written_runs import write_run

    return write_run


@pytest.fixture(scope="session")
def make_links():
    """Draw the links of a run folder that is written by hand."""
    from written_runs import drawn_links

    return drawn_links


@pytest.fixture(scope="module")
def load():
    """Import a script, or a module of one, by name."""
    return importlib.import_module


LONG = ("cli", "bench", "scripts", "distributed", "docs")
"""Folders of tests that start processes: they come first, so that no worker is left alone with one at the end.

By itself xdist would begin with the files of many tests, and end with the few that take half a minute each:
`--no-loadscope-reorder` in pyproject.toml."""


SAME_RUNS = ("test_all_policies.py", "test_all_aggregations.py", "test_all_dropouts_and_substitutions.py")
"""Tests that compare with the same usual runs of all policies, which a worker keeps: tests/helpers/tester."""


def pytest_configure(config):
    """Draw the same examples each time and keep none of them, since the folder may belong to another user."""
    import hypothesis

    hypothesis.settings.register_profile("tests", deadline=None, derandomize=True, database=None)
    hypothesis.settings.load_profile("tests")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Exclude imported modules and collected tests from garbage collection, since they stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items):
    """The long ones first; what the accelerator is not there for is skipped."""
    long = tuple(str(Path(__file__).parent / folder) + os.sep for folder in LONG)
    items.sort(key=lambda item: not str(item.path).startswith(long))  # parents of thousands of paths take seconds
    for item in items:
        reason = _not_here(item)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def _not_here(item):
    """Why a test cannot run on this accelerator; empty if it can."""
    if item.get_closest_marker("hf") and importlib.util.find_spec("transformers") is None:
        return "needs the extra hf"
    if item.get_closest_marker("wandb") and importlib.util.find_spec("wandb") is None:
        return "needs wandb"
    if item.get_closest_marker("gpu"):
        return "" if ACCELERATOR == "gpu" else "needs a GPU, and DFL_TEST_ACCELERATOR=gpu"
    if ACCELERATOR == "cpu":
        return ""
    if item.get_closest_marker("cpu_bits"):
        return f"is about the CPU, and DFL_TEST_ACCELERATOR is {ACCELERATOR}"
    if ACCELERATOR == "gpu" and _pretends(item.path):
        return "is about a pretended GPU, and DFL_TEST_ACCELERATOR is gpu"
    return ""


@functools.cache
def _pretends(path):
    return "from pretended import" in path.read_text()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    """`-n auto` is one more than there are cores, which work while tests wait for browsers and other processes."""
    return 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """File by file, except that tests go to one worker if they start forks of one process, or look at the same runs."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            if _starts_forks(config.rootpath / file):
                return "forks"
            return "policies" if file.endswith(SAME_RUNS) else super()._split_scope(nodeid)

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@functools.cache
def _starts_forks(file):
    """Return True if processes of a file's tests are forks of one that has loaded everything: helpers/forked.py."""
    imports = ("from forked import", "from walk import", "from killing.cells import")
    text = file.read_text(encoding="utf-8")
    return file.parent.name == "distributed" or any(line.startswith(imports) for line in text.splitlines())


@pytest.fixture(autouse=True, scope="session")
def pretended_gpu():
    """With DFL_TEST_ACCELERATOR=pretended, every run of the tests' own process has its models and data on it."""
    if ACCELERATOR != "pretended":
        yield
        return
    from pretended import everything_on

    with everything_on(), pytest.MonkeyPatch.context() as patch:
        from dfl_lightning.engines.stacked import engine

        patch.setattr(engine, "StepTimer", lambda *_: lambda: 1.0)
        patch.setattr(engine, "EvaluationTimer", lambda *_: lambda way, samples: 1.0)
        yield


@pytest.fixture(autouse=True)
def users_modules_are_forgotten(tmp_path_factory):
    """Two tests may both have a `mine.py`, as two users do: what a test imported from its own folder goes with it."""
    before, last = len(sys.modules), next(reversed(sys.modules))
    yield
    if (len(sys.modules), next(reversed(sys.modules))) == (before, last):
        return  # as after almost every test: nothing was imported
    root = str(tmp_path_factory.getbasetemp())
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(root):
            del sys.modules[name]


@pytest.fixture(autouse=True)
def no_seed_is_left_over():
    """The seed of a run stays in the environment, where the next test's data would find it."""
    yield
    os.environ.pop("PL_GLOBAL_SEED", None)


@pytest.fixture(autouse=True, scope="session")
def installed_packages_are_read_once():
    """Every trainer asks all installed packages for callbacks of theirs, and gets the same answer."""
    from lightning.fabric.utilities import registry

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "entry_points", functools.cache(registry.entry_points))
        yield


@pytest.fixture(autouse=True, scope="session")
def no_file_waits_for_the_disk():
    """Skip waiting for the disk: no test cuts the power, so runs need not wait until files are on it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def ctrl_c_is_handled():
    """Restore Python's handler of SIGINT, which a shell that starts pytest in the background ignores."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
