"""A command imports little before its first round, and ends as every Python process does."""

import gc
import importlib
import json
import os
import subprocess
import sys

import pytest
import yaml

from dfl_lightning.cli import loading

HEAVY = {
    *("jinja2", "matplotlib", "pandas", "sklearn", "torchvision"),
    *("scipy", "scipy.cluster", "scipy.signal", "scipy.sparse", "scipy.spatial", "scipy.special", "scipy.stats"),
}
CONFIG = {
    "trainer": {"max_rounds": 1, "accelerator": "cpu", "enable_progress_bar": False},
    "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
    "data": {"class_path": "Digits", "init_args": {"num_clients": 4, "samples_per_client": 30}},
    "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
    "monitors": {"class_path": "of_the_end.Leaves"},
}
OF_THE_END = """
import atexit, gc, json, sys, threading, time
from dfl_lightning.callbacks import Monitor

class Leaves(Monitor):
    \"\"\"Notes what has been imported, and leaves to Python what it does when it ends.\"\"\"

    def on_start(self, round):
        if round.index == 0:
            noted = {"modules": sorted(sys.modules), "garbage": [gc.isenabled(), *gc.get_threshold()]}
            noted["frozen"] = gc.get_freeze_count()
            with open("noted.json", "w") as file:
                json.dump(noted, file)
            self.file = open("cycle.txt", "w")
            self.file.write("written")
            self.me = self  # a cycle: only the collector finds it
            atexit.register(lambda: open("handler.txt", "w").write("called"))
            threading.Thread(target=self.late).start()

    def late(self):
        time.sleep(0.5)
        with open("thread.txt", "w") as file:
            file.write("ended")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Run `dfl-fit` in a Python process of its own, since a fork would have other imports and another end."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "of_the_end.py").write_text(OF_THE_END)
    (folder / "small.yaml").write_text(yaml.safe_dump(CONFIG))
    words = [sys.executable, "-c", "from dfl_lightning.cli.main import fit; fit()", "--config", "small.yaml"]
    with open(folder / "said.txt", "w") as said:
        code = subprocess.run(words, cwd=folder, stdout=said, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert code.returncode == 0, (folder / "said.txt").read_text()
    return folder


def test_unneeded_heavy_modules_are_not_imported_before_training(folder):
    noted = json.loads((folder / "noted.json").read_text())
    assert HEAVY & set(noted["modules"]) == set()


def test_garbage_collector_is_on_and_ignores_imported_objects(folder):
    noted = json.loads((folder / "noted.json").read_text())
    assert noted["garbage"] == [True, *gc.get_threshold()]
    assert noted["frozen"] > 100_000


@pytest.mark.parametrize(("file", "text"), [("handler", "called"), ("cycle", "written"), ("thread", "ended")])
def test_exit_handlers_open_files_and_threads_end_as_usual(folder, file, text):
    assert (folder / f"{file}.txt").read_text() == text


def test_loading_leaves_the_collector_of_a_callers_process(monkeypatch):
    monkeypatch.setattr(loading, "_is_own", False)
    frozen = gc.get_freeze_count()
    with loading.loading():
        assert gc.isenabled()
    assert gc.get_freeze_count() == frozen


def test_the_collector_is_as_before_where_an_import_fails(monkeypatch):
    monkeypatch.setattr(loading, "_is_own", True)
    monkeypatch.setattr(gc, "freeze", lambda: None)  # for the tests' own process
    with pytest.raises(ImportError, match="not_there_at_all"), loading.loading():
        importlib.import_module("off" if gc.isenabled() else "not_there_at_all")
    assert gc.isenabled()
