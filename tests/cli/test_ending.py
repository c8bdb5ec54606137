"""The record that a command leaves for the program which has started it."""

import json

import pytest

from dfl_lightning.checkpoints.names import FOLDER, LAST, PREVIOUS
from dfl_lightning.cli.command import run
from dfl_lightning.cli.ending import ENDING, Ending, read_ending

FIT = [
    *["--config=afind", "--data.num_clients=4", "--data.samples_per_client=20", "--model.network.hidden=[4]"],
    *["--selection=Gossip", "--selection.k=1", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"],
    *["--aggregation=Uniform", "--threshold=null", "--trainer.checkpoint_every=1"],
]


@pytest.fixture
def ended(tmp_path, monkeypatch, capsys):
    """Run a command; return its exit code, its record and what it prints."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(ENDING, str(tmp_path / "ending.json"))

    def ended(*words):
        code = run("fit", [*words])
        return code, read_ending(tmp_path / "ending.json"), capsys.readouterr().err

    return ended


def test_a_run_that_ends_well_records_nothing(ended):
    assert ended(*FIT, "--trainer.max_rounds=1")[:2] == (0, None)


def test_a_mistake_is_recorded_as_it_is_printed(ended):
    code, ending, printed = ended(*FIT, "--topology=ring_of_rings")
    assert (code, ending.code, ending.kind, ending.previous) == (2, 2, "other", None)
    assert printed == f"dfl-fit: {ending.sentence}\n"


def test_an_environment_that_is_refused_is_recorded(ended, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "many")
    code, ending, _ = ended(*FIT)
    assert (code, ending.code) == (2, 2)
    assert "WORLD_SIZE" in ending.sentence


@pytest.mark.parametrize(
    "data",
    [["MNIST"], ["CINIC10"], ["FEMNIST"], ["FEMNIST", "--data.path=elsewhere"], ["CIFAR100"]],
    ids=lambda words: " ".join(words),
)
def test_missing_files_are_recorded_as_such(ended, data):
    name, *more = data
    code, ending, _ = ended(*FIT, f"--data={name}", *more, "--data.root=nowhere")
    assert (code, ending.kind) == (2, "missing data")


@pytest.mark.parametrize("whole", [True, False])
def test_damaged_checkpoint_is_recorded_with_its_intact_predecessor(ended, tmp_path, whole):
    assert ended(*FIT, "--trainer.max_rounds=2")[0] == 0
    (run_folder,) = tmp_path.glob("runs/*/*")
    last, previous = run_folder / FOLDER / LAST, run_folder / FOLDER / PREVIOUS
    last.write_bytes(b"torn")
    if not whole:
        previous.write_bytes(b"torn too")
    code, ending, _ = ended("--ckpt_path", str(run_folder))
    assert (code, ending.kind) == (2, "damaged checkpoint")
    assert ending.previous == (str(previous) if whole else None)


def test_unwritable_record_does_not_hide_the_error(ended, monkeypatch, tmp_path):
    monkeypatch.setenv(ENDING, str(tmp_path / "nowhere" / "ending.json"))
    code, ending, printed = ended(*FIT, "--topology=ring_of_rings")
    assert (code, ending) == (2, None)
    assert "ring_of_rings" in printed


def test_other_files_are_read_as_no_record(tmp_path):
    file = tmp_path / "ending.json"
    for text in ("", "{", "[]", json.dumps({"code": 2}), json.dumps({"code": 2, "sentence": "", "other": 1})):
        file.write_text(text)
        assert read_ending(file) is None
    file.write_text(json.dumps({"code": 2, "sentence": "a"}))
    assert read_ending(file) == Ending(2, "a")
