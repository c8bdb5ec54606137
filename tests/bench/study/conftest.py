"""Studies of four cells, with runs that were made up or are real."""

import json
import os

import cells_here
import numpy as np
import pytest
import yaml

from dfl_lightning.bench.study.cells import resolve
from dfl_lightning.bench.study.cells.resolve import config_text
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import CONFIG, make_plan

SMALL = """\
# Four small cells
name: small
base:
  trainer: {max_rounds: 4, checkpoint_every: 1, accelerator: cpu}
  model: {network: {class_path: MLP, init_args: {hidden: [4]}}, local_epochs: 1}
  data: {class_path: Digits, init_args: {num_clients: 6, samples_per_client: 30}}
  selection: {class_path: Gossip, init_args: {k: 2}}
rows:
  Gossip: {}
  Local: {selection.k: 0}
columns:
  IID: {data.partition: IID}
  rotated: {data: {partition: {class_path: RotatedClusters, init_args: {degrees: [0, 90]}}}}
seeds: [0]
score: last
"""


@pytest.fixture(autouse=True, scope="session")
def equal_words_are_resolved_once():
    """Keep the answers of dfl-fit for all tests, as most studies here resolve the same few words.

    Not where they mean files of the working folder, modules such as own_mine included; and a refusal is made each time.
    """
    ask, kept = resolve.resolved, {}

    def asked(words):
        if any(os.path.isfile(word.partition("=")[2]) or "own_" in word for word in words):
            return ask(words)
        if tuple(words) not in kept:
            kept[tuple(words)] = ask(words)
        return kept[tuple(words)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resolve, "resolved", asked)
        yield


@pytest.fixture
def study_of(tmp_path, monkeypatch):
    """Write the small study file, with other values for some keys, in the test's working folder."""
    monkeypatch.chdir(tmp_path)

    def study_of(**changes):
        content = {**yaml.safe_load(SMALL), **changes}
        text = yaml.safe_dump({key: value for key, value in content.items() if value is not None}, sort_keys=False)
        (tmp_path / "small.yaml").write_text(f"# Four small cells\n{text}")
        return tmp_path / "small.yaml"

    return study_of


@pytest.fixture
def planned(study_of, tmp_path):
    """Plan a small study."""

    def planned(scale=1.0, **changes):
        return make_plan(read_study_file(study_of(**changes)), tmp_path / "studies" / "small", scale)

    return planned


@pytest.fixture
def pretend():
    """Leave in a cell's folder what a run leaves there."""
    return leave_a_run


@pytest.fixture(scope="module")
def in_this_process():
    """Make a context within which studies start no processes."""
    return cells_here.in_this_process


def leave_a_run(cell, accuracy=None, tested=0, trained=(1, 2, 3), status="finished", **summary):
    """Leave the files of a run of one client; `tested` is its only test sample, `trained` are its training samples."""
    run = cell.folder / "run" / "2026-01-01_00-00-00"
    (run / "checkpoints").mkdir(parents=True, exist_ok=True)
    (run / "checkpoints" / "last.ckpt").write_bytes(b"")
    (run / "metrics.csv").write_text("\n".join(["round", *map(str, range(cell.rounds)), ""]))
    (cell.folder / CONFIG).write_text(f"# dfl_lightning 0.1.0, commit abc\n{config_text(cell.config)}")
    train = {"train_indices": np.array(trained), "train_offsets": np.array([0, len(trained)])}
    np.savez(run / "split.npz", test_indices=np.array([tested]), test_offsets=np.array([0, 1]), **train)
    about = {"status": status, "rounds": cell.rounds, "seconds": {"rounds": 8.0}, "versions": {"torch": "2.9"}}
    accuracies = {} if accuracy is None else {"acc_last": accuracy, "acc_best_val": None}
    (run / "summary.json").write_text(json.dumps({**about, "test_accuracy": accuracies, **summary}))
    return run
