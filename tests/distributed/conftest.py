"""Real processes that talk over gloo, started once, as copies of one that has imported everything."""

import contextlib
import csv
import io
import os
import socket
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked import context, function_of

from dfl_lightning.cli import command as cli

TORCHRUN = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def _work(number, tasks, answers):
    import pretended  # noqa: F401  # a device: autograd counts them once, in its first backward pass

    torch.set_num_threads(1)
    for file, name, count, port, args in iter(tasks.get, None):
        try:
            _join(number, count, port)
            answers.put((number, True, function_of(f"{file}:{name}")(*args)))
        except BaseException:
            answers.put((number, False, traceback.format_exc()))
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            os.chdir(Path(__file__).parent)  # the folder of a test is deleted with it


def _join(number, count, port):
    """As torchrun would start it."""
    for name in (*TORCHRUN, "TORCHELASTIC_RUN_ID"):
        os.environ.pop(name, None)
    if count == 1:
        return
    values = (number, number, 0, count, count, "127.0.0.1", port)
    os.environ |= {name: str(value) for name, value in zip(TORCHRUN, values, strict=True)}
    os.environ["TORCHELASTIC_RUN_ID"] = "test"
    dist.init_process_group("gloo", rank=number, world_size=count)


class Pool:
    """Runs a function of a test file in several processes at once."""

    def __init__(self):
        self._context = context()
        self._answers = self._context.Queue()
        self._tasks, self._processes = [], []

    def run(self, count, function, *args):
        """`function(*args)` in `count` processes that are connected; their answers in the order of ranks."""
        for number in range(len(self._processes), count):
            self._tasks.append(self._context.Queue())
            args_of_process = (number, self._tasks[number], self._answers)
            self._processes.append(self._context.Process(target=_work, args=args_of_process, daemon=True))
            self._processes[number].start()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for tasks in self._tasks[:count]:
            tasks.put((function.__code__.co_filename, function.__name__, count, port, args))
        found = sorted((self._answers.get(timeout=300) for _ in range(count)), key=lambda answer: answer[0])
        for number, fine, answer in found:
            assert fine, f"process {number}: {answer}"
        return [answer for _, _, answer in found]

    def close(self):
        for process in self._processes:  # they have answered, and have nothing else to save
            process.kill()
            process.join()


@pytest.fixture(scope="session")
def on_ranks():
    """`on_ranks(count, function, *args)`; what travels between the processes must pickle."""
    pool = Pool()
    yield pool.run
    pool.close()


def _fit(folder, words):
    """`dfl-fit` in this process, which may be one of several; returns its exit code and what it said."""
    os.chdir(folder)
    count = os.environ.get("WORLD_SIZE", "1")
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run("fit", [*words, "--trainer.accelerator", "cpu", "--trainer.devices", count])
    return code, said.getvalue()


def _contents(folder):
    """Return the files and numbers of a run that must not depend on the number of processes."""
    [run] = Path(folder, "runs").glob("*/*")
    table = csv.DictReader((run / "metrics.csv").read_text().splitlines())
    rows = [{k: v for k, v in row.items() if k != "seconds"} for row in table]
    arrays = {name: dict(np.load(run / name)) for name in ("clients.npz", "graphs.npz", "split.npz")}
    checkpoint = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    return rows, arrays, checkpoint


def _same(a, b, where=""):
    """Equal to the last bit, through dicts and lists."""
    assert type(a) is type(b), where
    if isinstance(a, dict):
        assert a.keys() == b.keys(), where
        for key in a:
            if key not in ("seconds", "loops"):
                _same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), where
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            _same(x, y, f"{where}/{i}")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype, where
        assert torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8)), where
    elif isinstance(a, np.ndarray):
        np.testing.assert_array_equal(a, b, err_msg=where)
    else:
        assert a == b or (a != a and b != b), (where, a, b)


@pytest.fixture(scope="session")
def runs(on_ranks):
    """Runs of `dfl-fit`: `fit(count, folder, words)` gives the run folder, `said` its words, `contents`, `same`."""

    def said(count, folder, words):
        """The words of the first process of a run."""
        answers = on_ranks(count, _fit, str(folder), words)
        for code, words_of_process in answers:
            assert code == 0, words_of_process
        return answers[0][1]

    def fit(count, folder, words):
        said(count, folder, words)
        [made] = Path(folder, "runs").glob("*/*")
        return made

    return SimpleNamespace(fit=fit, said=said, contents=_contents, same=_same)
