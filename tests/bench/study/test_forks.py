"""Cells as forks of a server: they are what new Pythons are, end as these do, and do without the server."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from forked import Forked
from killing.cells import cells_of, fork_cells, is_alive, server_of
from killing.results import differences, result

from dfl_lightning.bench.study.cells.cell_state import state_of
from dfl_lightning.bench.study.cells.environment import environment_of_a_cell
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.main import study
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.processes import fork_end, forks, starting
from dfl_lightning.bench.study.processes.forks import ForkedCell, ForkServer
from dfl_lightning.bench.study.processes.starting import FORK, Starter, start_python
from dfl_lightning.cli.ending import ENDING, read_ending
from dfl_lightning.utils.storage.locks import FolderLock, is_locked

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="cells are forked on Linux only")

HELPERS = Path(__file__).parents[2] / "helpers"
CONFIG = {
    "trainer": {"max_rounds": 2, "checkpoint_every": 1, "accelerator": "cpu"},
    "model": {"network": {"class_path": "witness.Net"}, "local_epochs": 1, "batch_size": 64},
    "data": {"class_path": "Digits", "init_args": {"num_clients": 3, "samples_per_client": 200, "partition": "IID"}},
    "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
    "class_folders": [str(HELPERS)],
}
LONG = {**CONFIG, "trainer": {**CONFIG["trainer"], "max_rounds": 100_000, "check_val_every_n_epoch": 1000}}


@pytest.fixture(scope="module")
def server():
    """Start a server that has really imported the libraries, with two threads for its cells, even if tests have one."""
    made = ForkServer(environment_of_a_cell(2))
    until(lambda: not made.is_loading())
    assert made.why_lost == ""
    yield made
    made.close()


class Cell:
    """A run of `dfl-fit` below a folder."""

    def __init__(self, start, folder, config, lock=None, **variables):
        folder.mkdir(parents=True)
        (folder / "cell.yaml").write_text(yaml.safe_dump(config))
        self.folder, self._log = folder, folder / "log.txt"
        words = ["--config", str(folder / "cell.yaml"), f"--trainer.default_root_dir={folder}"]
        with open(self._log, "wb") as log:
            self.process = start(words, log, {**environment_of_a_cell(2), **variables}, lock)

    def wait(self):
        until(lambda: self.process.poll() is not None)
        self.process.stdin.close()
        return self.process.poll()

    @property
    def said(self):
        return self._log.read_text()

    @property
    def run(self):
        return next(self.folder.glob("cell/*"))

    def rounds(self):
        tables = list(self.folder.glob("cell/*/metrics.csv"))
        return tables[0].read_text().count("\n") - 1 if tables else 0


def until(true, seconds=300):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


# --- a fork is what a new Python is -----------------------------------------------------------------------------------
@pytest.mark.cpu_bits
def test_fork_gives_the_bits_of_a_new_process(server, tmp_path):
    """Also the second fork, after a first one that has changed whatever a process has."""
    made, noted = {}, {}
    for name, start in (("first", server.start), ("second", server.start), ("new", start_python)):
        folder = tmp_path / name
        made[name] = Cell(start, folder, CONFIG, DFL_TEST_NOTES=str(tmp_path / f"{name}.json"))
        assert made[name].wait() == 0, made[name].said
        text = (tmp_path / f"{name}.json").read_text().replace(str(folder), "FOLDER").replace(f"{name}.json", "NOTES")
        noted[name] = json.loads(re.sub(r"pipe:\[\d+\]", "pipe", text))
    assert isinstance(made["second"].process, ForkedCell)
    draws = [noted[name].pop("draws") for name in noted]
    assert all(len(set(column)) == 3 for column in zip(*draws, strict=True))  # of unseeded generators
    new = set(noted["new"]["modules"])
    for name in ("first", "second"):  # which have the parser
        more = {module.partition(".")[0] for module in set(noted[name]["modules"]) - new - {fork_end.__name__}}
        assert new <= set(noted[name].pop("modules"))
        assert more <= {"attr", "attrs"}
    del noted["new"]["modules"]
    assert noted["first"] == noted["new"]
    assert noted["second"] == noted["new"]
    assert noted["new"]["threads"][0].startswith("ATen/Parallel:\n\tat::get_num_threads() : 2")
    assert noted["new"]["cuda"] == [False, False]
    new = result(made["new"].run)
    for name in ("first", "second"):
        assert list(differences(new, result(made[name].run), name)) == []


@pytest.mark.slow
def test_fork_ends_with_codes_and_sentences_of_a_new_process(server, tmp_path):
    too_fast = {"class_path": "SGD", "init_args": {"lr": 1e30}}
    wrong = {**CONFIG, "model": {**CONFIG["model"], "on_divergence": "stop", "optimizer": too_fast}}
    ends = {}
    for name, kind, start, config in (
        ("mistake", "fork", server.start, {**CONFIG, "topology": "ring_of_rings"}),
        ("diverged", "fork", server.start, wrong),
        ("diverged", "new", start_python, wrong),
    ):  # one after the other, since each has a thread for every core
        file = tmp_path / f"{name}-{kind}.json"
        assert Cell(start, file.with_suffix(""), config, **{ENDING: str(file)}).wait() == 2
        ends[name, kind] = read_ending(file)
    assert ends["diverged", "fork"] == ends["diverged", "new"]
    for name, part in (("mistake", "ring_of_rings"), ("diverged", "training of client 0, 1, 2 diverged")):
        assert ends[name, "fork"].code == 2
        assert part in ends[name, "fork"].sentence


OF_THE_END = """
import atexit, threading, time
import torch
from dfl_lightning.cli.command import DFLCLI
from dfl_lightning.callbacks import Monitor

def write(name, text):
    with open(f"{PLACE}/{name}.txt", "w") as file:
        file.write(text)

write("parser", str("fit" in DFLCLI._made))
PLAIN = open(f"{PLACE}/global.txt", "w")
PLAIN.write("written")

class Object:
    def __del__(self):
        write("object", str(torch.tensor(3).item()))

class Leaves(Monitor):
    def on_start(self, round):
        self.file, self.me, self.object = open(f"{PLACE}/cycle.txt", "w"), self, Object()
        self.file.write("written")
        atexit.register(write, "handler", "called")
        threading.Thread(target=self.late).start()

    def late(self):
        time.sleep(0.5)
        write("thread", "ended")
"""


def test_fork_has_the_parser_and_ends_like_a_new_process(server, tmp_path):
    """Handlers, threads, files and objects that it has left to Python, though no library is taken to pieces."""
    (tmp_path / "leaves_to_python.py").write_text(f"PLACE = {str(tmp_path)!r}\n{OF_THE_END}")
    config = {
        **CONFIG,
        "class_folders": [*CONFIG["class_folders"], str(tmp_path)],
        "monitors": "leaves_to_python.Leaves",
    }
    cell = Cell(server.start, tmp_path / "cell", config)
    assert cell.wait() == 0, cell.said
    left = {file.stem: file.read_text() for file in tmp_path.glob("*.txt")}
    assert left == {
        **{"parser": "True", "global": "written", "cycle": "written", "object": "3"},
        **{"handler": "called", "thread": "ended"},
    }
    assert "Error" not in cell.said


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda process: process.send_signal(signal.SIGTERM), 143),
        (lambda process: process.send_signal(signal.SIGINT), 130),
        (lambda process: process.stdin.close(), 143),  # as where the study has ended
    ],
    ids=["SIGTERM", "SIGINT", "without a study"],
)
def test_a_fork_that_is_stopped_keeps_its_rounds(server, tmp_path, end, code):
    cell = Cell(server.start, tmp_path / "long", LONG)
    until(lambda: cell.rounds() > 1)
    end(cell.process)
    assert cell.wait() == code, cell.said
    assert json.loads((cell.run / "summary.json").read_text())["status"] == "stopped"


def test_only_the_fork_holds_the_lock_until_it_ends(server, tmp_path):
    lock = FolderLock()
    lock.take(tmp_path)
    cell = Cell(server.start, tmp_path / "cell", LONG, lock=lock.descriptor)
    os.close(lock.descriptor)  # as where the study is killed
    until(lambda: cell.rounds() > 1)
    assert is_locked(tmp_path)
    cell.process.kill()
    assert cell.wait() == -signal.SIGKILL
    assert not is_locked(tmp_path)
    assert cell.process.poll() == -signal.SIGKILL  # though the system does not answer again
    cell.process.kill()  # nothing, where it may be another process's number


# --- without the server -----------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_cells_outlive_their_server_and_later_cells_get_another(tmp_path, monkeypatch, capsys):
    """The servers are forks of this file's one process for forks, which has imported all."""
    forked = Forked(f"{__file__}:lose_servers", ["lose"], tmp_path, tmp_path / "lose")
    out, err = forked.communicate()
    assert forked.returncode == 0, err
    *ends, last = out.splitlines()
    assert ends == ["ForkedCell 1 works", "ForkedCell -9"] * 3
    assert last == "Popen"
    assert err.count("dfl-study: note: each further cell imports the libraries, which takes seconds: ") == 1
    assert "the process that was to start them has ended by SIGKILL" in err


def lose_servers():
    """Kill each server while a cell of it works, until there is no further one."""
    fork_cells()
    short = {**environment_of_a_cell(1)}
    with Starter() as starter:
        for number in range(4):
            until(lambda: starter.is_ready(short))
            cell = Cell(starter.start, Path(f"cell-{number}"), LONG, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1")
            if not isinstance(cell.process, ForkedCell):
                print("Popen")
                cell.process.kill()
                cell.process.wait()
                return
            until(lambda cell=cell: cell.rounds() > 1)
            os.kill(server_of(os.getpid()), signal.SIGKILL)
            rounds = cell.rounds()
            until(lambda cell=cell, rounds=rounds: cell.rounds() > rounds + 2)
            print(type(cell.process).__name__, int(cell.process.poll() is None), "works")
            cell.process.send_signal(signal.SIGTERM)
            print(type(cell.process).__name__, cell.wait())
            assert json.loads((cell.run / "summary.json").read_text())["status"] == "stopped"


@pytest.fixture
def false_server(tmp_path, monkeypatch):
    """Make a server whose process is another Python program; its standard input is the socket."""

    def false_server(program):
        command = [sys.executable, "-c", f"import json, os, socket, sys, time\n{program}"]
        popen = subprocess.Popen
        monkeypatch.setattr(
            forks, "subprocess", SimpleNamespace(Popen=lambda words, **options: popen(command, **options))
        )
        server = ForkServer(dict(os.environ))
        until(lambda: not server.is_loading())
        return server

    return false_server


READY = 'control = socket.socket(fileno=0); control.send(b\'{"obstacle": ""}\')'


def test_unresponsive_server_is_abandoned(false_server, tmp_path, monkeypatch):
    monkeypatch.setattr(forks, "ANSWER", 0.2)
    server = false_server(f"{READY}; time.sleep(600)")
    with open(tmp_path / "log.txt", "wb") as log:
        assert server.start([], log, os.environ, None) is None
    assert server.why_lost.startswith("the process that was to start them has ended by SIGKILL")
    assert not is_alive(server.pid)
    assert server.exit_code(1) is None


def test_unannounced_fork_does_nothing(tmp_path):
    """The server is killed after the fork, and before it has said the number."""
    forked = Forked(f"{__file__}:never_told", ["never"], tmp_path, tmp_path / "never")
    out, err = forked.communicate()
    assert (forked.returncode, out) == (0, "0\n"), err
    assert (tmp_path / "log.txt").read_bytes() == b""


def never_told():
    from dfl_lightning.bench.study.processes.fork_server import Work, become_cell

    theirs, ours = os.pipe()
    log = os.open("log.txt", os.O_WRONLY | os.O_CREAT)
    pid = os.fork()
    if pid == 0:
        os.close(ours)
        become_cell(Work("dfl_lightning.bench.study.processes.child", ["--help"], {}, [], [theirs, log]), b"printed")
    os.close(ours)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


OBSTACLE = READY.replace('""', '"threads"')


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("sys.exit('torch cannot be imported')", "the process that was to start them has ended by exit code 1 (torch"),
        (f"{OBSTACLE}; time.sleep(600)", "threads"),
    ],
)
def test_without_a_server_cells_are_new_processes_with_a_note(false_server, program, why, capsys):
    server = false_server(program)
    assert server.why_lost.startswith(why)
    assert server.refuses
    assert not is_alive(server.pid)
    starter = Starter()
    starter._server = server
    assert [starter.is_ready(os.environ), starter.is_ready(os.environ)] == [True, True]
    err = capsys.readouterr().err
    assert err.startswith(f"dfl-study: note: each further cell imports the libraries, which takes seconds: {why}")
    assert err.count("\n") == 1


@pytest.mark.slow
def test_import_errors_of_libraries_are_quoted(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so is not there')")
    server = ForkServer({**os.environ, "PYTHONPATH": str(tmp_path)})
    until(lambda: not server.is_loading())
    assert server.refuses
    end = "has ended by exit code 1 (ImportError: libcudart.so is not there)"
    assert server.why_lost == f"the process that was to start them {end}"


def test_threads_started_by_imports_do_not_reach_forks(tmp_path):
    forked = Forked(f"{__file__}:with_a_thread", ["thread"], tmp_path, tmp_path / "thread")
    out, err = forked.communicate()
    assert forked.returncode == 0, err
    assert out.splitlines() == ["", "importing the libraries starts threads (left behind)"]


def with_a_thread():
    import threading

    from dfl_lightning.bench.study.processes.fork_server import obstacle

    print(obstacle())
    threading.Thread(target=time.sleep, args=(600,), name="left behind", daemon=True).start()
    print(obstacle())


# --- which way --------------------------------------------------------------------------------------------------------
@pytest.fixture
def asked(monkeypatch):
    """Make a starter with a server that starts nothing real, and record how cells are started."""
    environment = {"A": "1", "DFL_DATA_ROOT": "data"}
    server = SimpleNamespace(
        environment=environment, why_lost="", is_loading=lambda: False, start=lambda *_: "fork", close=lambda: None
    )
    monkeypatch.setattr(starting, "ForkServer", lambda environment: server)
    monkeypatch.setattr(starting, "start_python", lambda *_: "new")
    monkeypatch.delenv(FORK, raising=False)

    def asked(environment=environment):
        starter = Starter()
        assert starter.is_ready(environment)
        return lambda changed=environment: starter.start([], None, changed)

    return asked


def test_changed_environment_needs_a_new_process(asked):
    start = asked()
    late = {"A": "1", "PL_GLOBAL_SEED": "3", "CUDA_VISIBLE_DEVICES": "1", "DFL_DEBUG": "1"}
    assert [start(), start(late), start({"A": "2"}), start({}), start({**late, "OMP_NUM_THREADS": "1"})] == [
        *("fork", "fork", "new", "new", "new")
    ]


def test_changed_folder_or_library_needs_a_new_process(asked, tmp_path, monkeypatch):
    start = asked()
    before = os.getcwd()
    monkeypatch.chdir(tmp_path)
    assert start() == "new"
    monkeypatch.chdir(before)
    assert start() == "fork"
    monkeypatch.setattr(starting, "dfl_lightning", SimpleNamespace(__file__=str(tmp_path / "__init__.py")))
    (tmp_path / "changed.py").write_text("")
    assert start() == "new"


@pytest.mark.parametrize(("variable", "platform"), [("0", "linux"), ("1", "darwin"), (None, "win32")])
def test_cells_are_new_processes_on_request_or_other_systems(asked, monkeypatch, variable, platform):
    if variable is not None:
        monkeypatch.setenv(FORK, variable)
    monkeypatch.setattr(sys, "platform", platform)
    assert asked()() == "new"


# --- a study ----------------------------------------------------------------------------------------------------------
def begin():
    """Run `dfl-study` with a fork of it as its server."""
    fork_cells()
    study()


@pytest.fixture
def start(tmp_path):
    """Start `dfl-study` as a fork; it is gone when the test is."""
    begun = []

    def start(*words):
        begun.append(Forked(f"{__file__}:begin", ["dfl-study", *words], tmp_path, tmp_path / f"study-{len(begun)}"))
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.communicate()


def plan_of():
    return make_plan(read_study_file("small.yaml"), Path("studies/small"))


LONG_CELLS = {
    "trainer": {"max_rounds": 150, "checkpoint_every": 5, "accelerator": "cpu", "check_val_every_n_epoch": 50},
    "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
    "data": {"class_path": "Digits", "init_args": {"num_clients": 6, "samples_per_client": 30}},
    "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
}


def test_study_continues_when_its_server_and_cell_are_killed(study_of, start):
    """Two cells run at a time, and a user's mistake ends one of them."""
    wrong = {"model": {"on_divergence": "stop", "optimizer.lr": 1e30}}
    study_of(base=LONG_CELLS, columns={"IID": {}}, rows={"Gossip": {}, "Local": {"selection.k": 0}, "Wrong": wrong})
    process = start("run", "small.yaml", "-j", "2")
    cells = plan_of().distinct()[:2]
    until(lambda: all(state_of(cell).rounds > 5 for cell in cells))
    server, running = server_of(process.pid), cells_of(process.pid)
    assert len(running) == 2
    os.kill(server, signal.SIGKILL)
    os.kill(running[0], signal.SIGKILL)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 2, err
    assert "2/3 cells done · 0 running · 1 failed" in out
    sentence = next(line for line in err.splitlines() if line.startswith("dfl-study: Wrong, IID, seed 0: "))
    assert "exit code" not in sentence
    assert err.count("\n") == 1
    for cell in cells:
        assert state_of(cell).is_done
        assert len(list((cell.folder / "run").iterdir())) == 1
    assert not any(map(is_alive, [server, *running]))


@pytest.mark.parametrize("signum", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGKILL])
def test_stopped_or_killed_study_leaves_no_processes(study_of, start, signum):
    study_of(base={**LONG_CELLS, "trainer": {**LONG_CELLS["trainer"], "max_rounds": 100_000}}, columns={"IID": {}})
    process = start("run", "small.yaml", "-j", "2")
    cells = plan_of().distinct()
    until(lambda: all(state_of(cell).rounds > 5 for cell in cells))
    begun = [server_of(process.pid), *cells_of(process.pid)]
    assert len(begun) == 3
    process.send_signal(signum)
    _, err = process.communicate(timeout=300)
    until(lambda: not any(map(is_alive, begun)))
    until(lambda: not any(state_of(cell).is_running for cell in cells))  # threads outlive the first
    if signum == signal.SIGINT:
        assert process.returncode == 130
        again = "0 of 2 cells are done; continue with: dfl-study run small.yaml"
        assert err == f"dfl-study: stopped by SIGINT; {again}\n"
    for cell in cells:
        state = state_of(cell)
        assert (state.word, state.summary["status"]) == ("stopped", "stopped")
        FolderLock().take(cell.folder)
