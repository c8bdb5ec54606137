"""A checkpoint of any kind, saved by any number of processes, is gone on from by any number of processes."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch

from dfl_lightning.checkpoints import read_checkpoint, rounds_in
from dfl_lightning.errors import UserError
from dfl_lightning.export import reported_state

WORDS = ["--config", "afind", "--data.num_clients", "12", "--data.samples_per_client", "12", "--trainer.cohorts", "3"]


@pytest.fixture(scope="module")
def uninterrupted(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    runs.fit(1, folder, [*WORDS, "--trainer.max_rounds", "3"])
    return runs.contents(folder)


QUICK = [(1, "full"), (2, "sharded")]
WAYS = [(saved_by, kind) for saved_by in (1, 2, 3) for kind in ("full", "sharded")]


@pytest.mark.parametrize(
    ("saved_by", "kind"), [pytest.param(*way, marks=[] if way in QUICK else pytest.mark.slow) for way in WAYS]
)
def test_any_number_of_processes_goes_on_where_any_number_stopped(runs, tmp_path, uninterrupted, saved_by, kind):
    (tmp_path / "first").mkdir()
    words = [*WORDS, "--trainer.max_rounds", "2", "--trainer.checkpoints", kind]
    first = runs.fit(saved_by, tmp_path / "first", words)
    assert (first / "checkpoints" / "last.ckpt").is_dir() == (kind == "sharded")
    assert rounds_in(first / "checkpoints" / "last.ckpt") == 2
    for count in (1, 2, 3):
        folder = tmp_path / f"then {count}"
        shutil.copytree(first, folder / "runs" / "afind" / first.name)
        last = Path("runs", "afind", first.name, "checkpoints", "last.ckpt")
        runs.fit(count, folder, [*WORDS, "--trainer.max_rounds", "3", "--ckpt_path", str(last)])
        runs.same(uninterrupted, runs.contents(folder), f"{saved_by} then {count}")


@pytest.fixture
def sharded(runs, tmp_path):
    words = [*WORDS, "--trainer.max_rounds", "1", "--trainer.checkpoints", "sharded"]
    return runs.fit(2, tmp_path, words) / "checkpoints" / "last.ckpt"


def test_a_torn_folder_is_refused_and_its_predecessor_is_offered(sharded):
    whole = read_checkpoint(sharded)
    rows = whole["state_dict"]["bank.rows.models"]
    assert rows[torch.arange(12)].shape == (12, 4810)
    assert torch.equal(rows[torch.tensor([7, 2])], rows[torch.arange(12)][[7, 2]])
    assert reported_state(whole, 3)["head.bias"].shape == (10,)
    shutil.copytree(sharded, sharded.with_name("previous.ckpt"))
    [piece, *_] = sorted(sharded.glob("*.distcp"))
    content = piece.read_bytes()
    for damage in (lambda: piece.write_bytes(content[:-1]), piece.unlink):
        damage()
        with pytest.raises(UserError, match=r"not a whole checkpoint .* the one before it is .*previous\.ckpt"):
            read_checkpoint(sharded)
    shutil.rmtree(sharded)
    with pytest.raises(UserError, match=r"no such checkpoint; the one before it is .*previous\.ckpt"):
        read_checkpoint(sharded)


class Payload:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return Path.touch, (self.file,)


@pytest.mark.parametrize("name", [".metadata", "meta.pt"])
def test_a_folder_cannot_run_code(sharded, tmp_path, name):
    (sharded / name).write_bytes(pickle.dumps({"state_dict": Payload(tmp_path / "touched")}))
    with pytest.raises(UserError, match="not a whole checkpoint"):
        read_checkpoint(sharded)
    assert not (tmp_path / "touched").exists()


def test_a_folder_reads_only_files_of_its_own(sharded):
    about = sharded / ".metadata"
    text = about.read_bytes()
    assert text.count(b"__0_0.distcp") == 1  # pickle says a name once
    (sharded.parent / "_0_0.distcp").write_bytes((sharded / "__0_0.distcp").read_bytes())
    about.write_bytes(text.replace(b"__0_0.distcp", b"../_0_0.dist"))
    with pytest.raises(UserError, match="not a whole checkpoint"):
        read_checkpoint(sharded)
