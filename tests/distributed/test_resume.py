"""A checkpoint of any kind, saved by any number of processes, is gone on from by any number of processes."""

import contextlib
import io
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from dfl_lightning.checkpoints.io import read_checkpoint, rounds_in
from dfl_lightning.checkpoints.state_dicts import reported_state
from dfl_lightning.cli import command as cli
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.locks import FolderLock

WORDS = ["--config", "afind", "--data.num_clients", "12", "--data.samples_per_client", "12", "--trainer.cohorts", "3"]


@pytest.fixture(scope="module")
def uninterrupted(runs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("uninterrupted")
    runs.fit(1, folder, [*WORDS, "--trainer.max_rounds", "3"])
    return runs.contents(folder)


QUICK = [(2, "sharded", (1, 3))]
WAYS = [
    pytest.param(saved_by, kind, (1, 2, 3), marks=pytest.mark.slow)
    for saved_by in (1, 2, 3)
    for kind in ("full", "sharded")
]


@pytest.mark.parametrize(("saved_by", "kind", "counts"), [*QUICK, *WAYS])
def test_any_number_of_processes_resumes_any_checkpoint(runs, tmp_path, uninterrupted, saved_by, kind, counts):
    (tmp_path / "first").mkdir()
    words = [*WORDS, "--trainer.max_rounds", "2", "--trainer.checkpoints", kind]
    first = runs.fit(saved_by, tmp_path / "first", words)
    assert (first / "checkpoints" / "last.ckpt").is_dir() == (kind == "sharded")
    assert rounds_in(first / "checkpoints" / "last.ckpt") == 2
    for count in counts:
        folder = tmp_path / f"then {count}"
        shutil.copytree(first, folder / "runs" / "afind" / first.name)
        last = Path("runs", "afind", first.name, "checkpoints", "last.ckpt")
        runs.fit(count, folder, [*WORDS, "--trainer.max_rounds", "3", "--ckpt_path", str(last)])
        runs.same(uninterrupted, runs.contents(folder), f"{saved_by} then {count}")


@pytest.fixture(scope="module")
def saved(runs, tmp_path_factory):
    """The run folders that two processes leave after a round, by kind of checkpoint."""
    found = {}
    for kind in ("full", "sharded"):
        words = [*WORDS, "--trainer.max_rounds", "1", "--trainer.checkpoints", kind]
        found[kind] = runs.fit(2, tmp_path_factory.mktemp(kind), words)
    return found


@pytest.fixture
def copy_of(saved, tmp_path):
    """A run folder of one's own, by kind of checkpoint."""

    def copy_of(kind):
        return shutil.copytree(saved[kind], tmp_path / "runs" / "afind" / saved[kind].name)

    return copy_of


@pytest.fixture
def sharded(copy_of):
    return copy_of("sharded") / "checkpoints" / "last.ckpt"


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


def _resume(folder, words):
    """Run `dfl-fit` in this process of several; return its exit code and what it prints."""
    os.chdir(folder)
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = cli.run("fit", [*words, "--trainer.accelerator", "cpu", "--trainer.devices", os.environ["WORLD_SIZE"]])
    return code, said.getvalue()


@pytest.mark.parametrize("kind", ["full", "sharded"])
def test_all_processes_refuse_what_one_finds_damaged(copy_of, on_ranks, tmp_path, kind):
    words = [*WORDS, "--trainer.checkpoints", kind]
    run = copy_of(kind)
    last = run / "checkpoints" / "last.ckpt"
    row = read_checkpoint(last)["state_dict"]["bank.rows.models"][torch.tensor([0])].numpy().tobytes()
    [(file, at)] = [
        (file, file.read_bytes().find(row))
        for file in ([last] if kind == "full" else last.glob("*.distcp"))
        if row in file.read_bytes()
    ]
    content = bytearray(file.read_bytes())
    content[at + len(row) // 2] ^= 1
    file.write_bytes(content)
    before = {f: f.read_bytes() for f in run.rglob("*") if f.is_file()}
    answers = on_ranks(2, _resume, str(tmp_path), [*words, "--trainer.max_rounds", "2", "--ckpt_path", str(last)])
    what = "data/" if kind == "full" else f"{file.name}: the checksum of 'models/"
    for code, said in answers:
        assert code == 2, said
        assert "last.ckpt: not a whole checkpoint (" in said
        assert what in said
    assert {f: f.read_bytes() for f in run.rglob("*") if f.is_file()} == before


def test_all_processes_refuse_a_locked_or_damaged_run(copy_of, on_ranks, tmp_path):
    run = copy_of("full")
    assert not (run / ".lock").exists()
    writer, words = FolderLock(), [*WORDS, "--trainer.max_rounds", "2"]
    writer.take(run)
    for code, said in on_ranks(2, _resume, str(tmp_path), [*words, "--ckpt_path", str(run / "checkpoints/last.ckpt")]):
        assert code == 2, said
        assert f"process {os.getpid()} on " in said
    writer.release()
    damaged = run / "processes.csv"
    damaged.write_text(f"{damaged.read_text()}nonsense\n")
    answers = on_ranks(2, _resume, str(tmp_path), [*words, "--ckpt_path", str(run / "checkpoints/last.ckpt")])
    assert all(code == 2 for code, _ in answers)
    assert "processes.csv: damaged" in answers[0][1]
