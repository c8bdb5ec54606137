"""A checkpoint of any kind, saved by any number of processes, is gone on from by any number of processes."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch
from test_runs import contents, fit, same

from dfl_lightning.checkpoints import read_checkpoint, rounds_in
from dfl_lightning.errors import UserError
from dfl_lightning.export import reported_state

WORDS = ["--config", "afind", "--data.num_clients", "12", "--data.samples_per_client", "12", "--trainer.cohorts", "3"]


def run(on_ranks, count, folder, *words):
    folder.mkdir(exist_ok=True)
    for code, said in on_ranks(count, fit, str(folder), [*WORDS, *words]):
        assert code == 0, said
    [made] = Path(folder, "runs").glob("*/*")
    return made


@pytest.fixture(scope="module")
def uninterrupted(on_ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    run(on_ranks, 1, folder, "--trainer.max_rounds", "3")
    return contents(folder)


def forget_rows(checkpoint):
    return {**checkpoint, "state_dict": {k: v for k, v in checkpoint["state_dict"].items() if ".rows." not in k}}


@pytest.mark.parametrize("kind", ["full", "sharded"])
@pytest.mark.parametrize("saved_by", [1, 2, 3])
def test_any_number_of_processes_goes_on_where_any_number_stopped(on_ranks, tmp_path, uninterrupted, saved_by, kind):
    first = run(on_ranks, saved_by, tmp_path / "first", "--trainer.max_rounds", "2", "--trainer.checkpoints", kind)
    assert (first / "checkpoints" / "last.ckpt").is_dir() == (kind == "sharded")
    assert rounds_in(first / "checkpoints" / "last.ckpt") == 2
    for count in (1, 2, 3):
        folder = tmp_path / f"then {count}"
        shutil.copytree(first, folder / "runs" / "afind" / first.name)
        last = Path("runs", "afind", first.name, "checkpoints", "last.ckpt")
        run(on_ranks, count, folder, "--trainer.max_rounds", "3", "--ckpt_path", str(last))
        same(uninterrupted, contents(folder), f"{saved_by} then {count}")


@pytest.fixture
def sharded(on_ranks, tmp_path):
    run_folder = run(on_ranks, 2, tmp_path / "made", "--trainer.max_rounds", "1", "--trainer.checkpoints", "sharded")
    return run_folder / "checkpoints" / "last.ckpt"


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
