"""Checkpoint files: written whole or not at all, read without running their code, refused where they do not fit."""

import dataclasses
import os
import random
import signal
from pathlib import Path

import networkx as nx
import pytest
import torch

from dfl_lightning import callbacks as families
from dfl_lightning.checkpoints.io import FORMAT, AtomicCheckpointIO, read_checkpoint, rounds_in
from dfl_lightning.data import Digits
from dfl_lightning.models import MLP
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_atomically


@pytest.fixture
def saved(small_run):
    """A run of four rounds with last.ckpt after four and previous.ckpt after three of them."""
    return small_run(4, checkpoint_every=3).fit()


@pytest.fixture(scope="module")
def kept(read_only_run):
    """The same for tests that leave it as it is."""
    return read_only_run(4, checkpoint_every=3).fit()


ABOUT = {
    **{"format": FORMAT, "metrics": {}, "network": {}, "clients": 2, "nodes": 2, "seed": 0, "data": "", "rows": ""},
    **{"row sets": ["models"], "reported": "models", "of_server": False, "policies": {}, "config": {}},
    **{"checksums": {}, "rounds": {}},
}


def minimal(number=0):
    state = {"bank.progress": torch.tensor([number, 1]), "bank.rows.models": torch.zeros(2, 3)}
    return {"dfl_lightning": dict(ABOUT), "number": number, "state_dict": state, "callbacks": {}}


@pytest.mark.parametrize("lost", [*(key for key in ABOUT if key != "format"), "state_dict", "callbacks"])
@pytest.mark.parametrize("instead", [None, 7.5])
def test_an_incomplete_checkpoint_is_refused(tmp_path, lost, instead):
    checkpoint = minimal()
    place = checkpoint["dfl_lightning"] if lost in ABOUT else checkpoint
    place[lost] = instead
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=rf"last\.ckpt: not a whole checkpoint \(without .*{lost}"):
        read_checkpoint(tmp_path / "last.ckpt")


@pytest.mark.parametrize("rows", [None, torch.zeros(3, 3), torch.zeros(2), [[0.0], [0.0]]])
def test_a_checkpoint_has_a_row_for_every_node(tmp_path, rows):
    checkpoint = minimal()
    checkpoint["state_dict"]["bank.rows.models"] = rows
    torch.save(checkpoint, tmp_path / "last.ckpt")
    with pytest.raises(UserError, match=r"not a whole checkpoint \(without rows of 'models' for 2 nodes\)"):
        read_checkpoint(tmp_path / "last.ckpt")


def last(run):
    return run.folder / "checkpoints" / "last.ckpt"


def contents(folder):
    return {f.relative_to(folder): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


# --- writing


def test_a_kill_before_the_rename_leaves_the_old_file(tmp_path, monkeypatch):
    file = tmp_path / "x.ckpt"
    AtomicCheckpointIO().save_checkpoint(minimal(1), file)
    before = file.read_bytes()

    def killed(*_):
        raise OSError("killed")

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(OSError, match="killed"):
        AtomicCheckpointIO().save_checkpoint(minimal(2), file)
    assert contents(tmp_path) == {file.relative_to(tmp_path): before}


def test_a_full_disk_leaves_only_the_old_file(tmp_path):
    file = tmp_path / "x.bin"
    write_atomically(file, lambda f: f.write(b"old"))

    def half(f):
        f.write(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        write_atomically(file, half)
    assert contents(tmp_path) == {file.relative_to(tmp_path): b"old"}


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "a file system without them"])
def test_previous_checkpoint_is_the_one_before_last(tmp_path, monkeypatch, links):
    if not links:
        monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(PermissionError()))
    file = tmp_path / "last.ckpt"
    for number in range(3):
        AtomicCheckpointIO().save_checkpoint(minimal(number), file)
    assert read_checkpoint(file)["number"] == 2
    assert read_checkpoint(file.with_name("previous.ckpt"))["number"] == 1
    assert len(contents(tmp_path)) == 2


def test_other_files_have_no_predecessor(tmp_path):
    for number in range(2):
        AtomicCheckpointIO().save_checkpoint(minimal(number), tmp_path / "best.ckpt")
    assert [f.name for f in tmp_path.iterdir()] == ["best.ckpt"]


def test_a_run_saves_at_intervals_and_at_its_end(kept):
    assert rounds_in(last(kept)) == 4
    assert rounds_in(last(kept).with_name("previous.ckpt")) == 3


def test_an_unwritable_checkpoint_is_refused_naming_the_saved_rounds(small_run, monkeypatch):
    run = small_run(4, checkpoint_every=2)
    save, full = AtomicCheckpointIO.save_checkpoint, OSError(28, "No space left on device")

    def sometimes(self, checkpoint, path, storage_options=None):
        if run.module.bank.boundary.round > 2:
            raise full
        save(self, checkpoint, path)

    monkeypatch.setattr(AtomicCheckpointIO, "save_checkpoint", sometimes)
    with pytest.raises(
        UserError, match=r"last\.ckpt: cannot be written \(No space left on device\); saved before: 2 rounds$"
    ):
        run.fit()
    assert rounds_in(last(run)) == 2
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler  # the run's handler has been removed


# --- reading


def test_a_checkpoint_is_plain_tensors_and_numbers(kept):
    content = torch.load(last(kept), weights_only=True)
    assert content["state_dict"]["bank.progress"].tolist() == [4, 1]
    assert content["global_step"] == content["epoch"] == 4


def test_a_torn_checkpoint_names_the_one_before_it(saved, small_run):
    whole = last(saved).read_bytes()
    draw = random.Random(0)
    for size in [0, 1, 2, 100, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(30))]:
        last(saved).write_bytes(whole[:size])
        with pytest.raises(
            UserError, match=r"last\.ckpt: not a whole checkpoint .*; the one before it is .*previous\.ckpt"
        ):
            read_checkpoint(last(saved))
    with pytest.raises(UserError, match=r"previous\.ckpt"):
        small_run(4).fit(last(saved))


def test_a_run_resumes_from_the_checkpoint_before_a_torn_one(saved, small_run):
    torn = last(saved).read_bytes()[:1000]
    last(saved).write_bytes(torn)
    resumed = small_run(4).fit(last(saved).with_name("previous.ckpt"))
    assert resumed.folder == saved.folder
    assert torch.equal(resumed.rows, saved.rows)
    assert rounds_in(last(saved)) == 4
    (aside,) = (saved.folder / "superseded").iterdir()
    assert (aside / "last.ckpt").read_bytes() == torn


@pytest.mark.parametrize(
    "content", [{"state_dict": {}}, [1, 2], {"dfl_lightning": None}, {"dfl_lightning": {"format": None}}]
)
def test_foreign_files_are_refused(small_run, tmp_path, content):
    torch.save(content, tmp_path / "x.ckpt")
    with pytest.raises(UserError, match=r"x\.ckpt: not a checkpoint of dfl_lightning"):
        small_run(2).fit(tmp_path / "x.ckpt")


def test_a_missing_file_is_refused_in_one_sentence(small_run, tmp_path):
    with pytest.raises(UserError, match=r"none\.ckpt: no such checkpoint"):
        small_run(2).fit(tmp_path / "none.ckpt")


# --- whose it is


def policies(nu=0.2, tau=0.5, aggregation=families.Boltzmann):
    return [families.AFIND(nu=nu), families.AdaptiveThreshold(tau), aggregation(), families.Bernoulli(0.3)]


OTHER_MODELS = {
    "network": ({"module": {"network": MLP(hidden=[9])}}, "network.* is .* in the checkpoint and .* in this run"),
    "clients": ({"data": {"num_clients": 7}}, "clients is 6 in the checkpoint and 7 in this run"),
    "nodes": (
        {"topology": "server", "policies": [families.Gossip("all"), families.Uniform()]},
        "nodes is 6 in the checkpoint and 7 in this run",
    ),
    "rows": ({"precision": "64-true"}, "rows is torch.float32 in the checkpoint and torch.float64 in this run"),
}
OTHER_RUNS = {
    "data": ({"data": {"samples_per_client": 30}}, "data is Digits.* in the checkpoint and Digits.* in this run"),
    "policy argument": ({"policies": policies(nu=0.3)}, "nu is 0.2 in the checkpoint and 0.3 in this run"),
    "policy": (
        {"policies": policies(aggregation=families.Uniform)},
        "policies.Boltzmann is .* in the checkpoint and None",
    ),
    "graph": (
        {"topology": "ring"},
        r"topology is 15 links \(graph \w+\) in the checkpoint and 6 links \(graph \w+\) in this run",
    ),
    "links": (
        {"topology": {"generator": "complete", "link_up": 0.9}},
        r"topology is 15 links .* and 15 links \(graph \w+\), each link up with probability 0.9 by seed 0 in this run",
    ),
    "graphs": (
        {"topology": {"sequence": [{"generator": "complete", "rounds": 2}, {"generator": "cycle_graph"}]}},
        r"topology is .* and 15 links \(graph \w+\) for 2, then 6 links \(graph \w+\) for the rest in this run",
    ),
}


@pytest.mark.parametrize("what", [*OTHER_MODELS, *OTHER_RUNS])
def test_a_checkpoint_of_another_run_is_refused_naming_what_differs(kept, small_run, what):
    options, sentence = {**OTHER_MODELS, **OTHER_RUNS}[what]
    before = contents(kept.folder)
    with pytest.raises(UserError, match=sentence) as refusal:
        make(small_run, options, kept).fit(last(kept))
    assert str(refusal.value).startswith(f"{last(kept)}: ")
    assert ("--fork" in str(refusal.value)) == (what in OTHER_RUNS)
    assert contents(kept.folder) == before


def make(small_run, options, other):
    options = {"policies": policies(), "root": other.folder.parents[1], **options}
    network = dict(options.get("module", {})).get("network")
    run = small_run(6, **{k: v for k, v in options.items() if k != "module"})
    if network is not None:
        run.module._network = [network]
    return run


class Favouring(families.Uniform):
    """Has an attribute that is null, or a list, which fingerprints leave out."""

    def __init__(self, favoured=None):
        super().__init__()
        self.favoured = favoured


def test_a_policy_whose_null_attribute_became_a_list_is_refused(small_run):
    def policies(favoured):
        return [families.Gossip(k="all"), Favouring(favoured)]

    before = small_run(2, policies=policies(None)).fit()
    with pytest.raises(UserError, match="--fork starts a new run from it"):
        small_run(4, policies=policies([0, 1])).fit(last(before))


def test_another_seed_is_refused_and_allowed_in_a_fork(saved, small_run, monkeypatch):
    run = small_run(6)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    with pytest.raises(
        UserError, match="seed is 0 in the checkpoint and 7 in this run; --fork starts a new run from it"
    ):
        run.fit(last(saved))
    run = small_run(6)
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    run.fit(last(saved), fork=True)
    assert run.module.bank.boundary.round == 6


def test_changed_inputs_are_refused_or_noted_in_forks_and_evaluations(kept, small_run, monkeypatch):
    load = Digits.load

    def rescaled(data):
        source = load(data)
        return dataclasses.replace(source, images=source.images * torch.arange(1, 9))  # by columns

    monkeypatch.setattr(Digits, "load", rescaled)
    sentence = "the inputs of this run are not those of the checkpoint"
    with pytest.raises(UserError, match=f"{sentence}; restore the data, or --fork"):
        small_run(6).fit(last(kept))
    fork = small_run(4, data={"split": str(kept.folder / "split.npz")})
    fork.fit(last(kept), fork=True)
    assert [remark for remark in fork.trainer.remarks if sentence in remark]
    assert "inputs_crc32" in " ".join(fork.data.notes())
    other = small_run(4)
    with pytest.warns(UserWarning, match="the inputs of this evaluation are not those of the checkpoint"):
        other.trainer.test(other.module, datamodule=other.data, ckpt_path=last(kept))


@pytest.mark.parametrize("what", OTHER_RUNS)
def test_a_fork_with_other_policies_leaves_the_old_run_untouched(kept, small_run, what):
    before = contents(kept.folder)
    run = make(small_run, OTHER_RUNS[what][0], kept)
    run.fit(last(kept), fork=True)
    assert run.folder != kept.folder
    assert contents(kept.folder) == before
    assert list(run.trainer.run.metrics["round"]) == [0, 1, 2, 3, 4, 5]
    assert not (run.folder / "superseded").exists()


@pytest.mark.parametrize("what", OTHER_MODELS)
def test_a_fork_needs_the_same_models_too(kept, small_run, what):
    options, sentence = OTHER_MODELS[what]
    with pytest.raises(UserError, match=sentence):
        make(small_run, options, kept).fit(last(kept), fork=True)


def test_a_fork_copies_the_rows_before_its_checkpoint(saved, small_run):
    previous = last(saved).with_name("previous.ckpt")
    before = contents(saved.folder)
    fork = small_run(3).fit(previous, fork=True)
    assert list(fork.trainer.run.metrics["round"]) == [0, 1, 2]
    assert list(fork.trainer.run.clients["rounds"]) == [0, 1, 2]
    assert sorted(set(fork.trainer.run.graphs["round"])) == [0, 1, 2]
    assert contents(saved.folder) == before


@pytest.mark.cpu_bits
def test_more_rounds_and_another_folder_do_not_prevent_resuming(saved, small_run):
    longer = small_run(6, checkpoint_every=1, check_val_every_n_epoch=1).fit(last(saved))
    whole = small_run(6).fit()
    assert torch.equal(longer.rows, whole.rows)


def test_an_equal_topology_with_another_name_is_accepted(saved, small_run):
    same = small_run(6, topology=nx.complete_graph(6)).fit(last(saved))
    assert same.module.bank.boundary.round == 6


def test_resuming_removes_files_that_a_killed_process_left_half_written(small_run):
    folder = small_run(2).fit().folder
    half, mine = folder / "checkpoints" / ".last.ckpt.123.tmp", folder / ".mine.tmp"
    half.write_bytes(b"half")
    mine.write_bytes(b"whole")
    small_run(3).fit(folder / "checkpoints" / "last.ckpt")
    assert not half.exists()
    assert mine.exists()


def test_a_write_that_fails_twice_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    file = tmp_path / "last.ckpt"
    AtomicCheckpointIO().save_checkpoint(minimal(1), file)
    monkeypatch.setattr("dfl_lightning.checkpoints.io.write_atomically", full)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            AtomicCheckpointIO().save_checkpoint(minimal(2), file)
    assert {f.name for f in tmp_path.iterdir()} == {"last.ckpt", "previous.ckpt"}
    monkeypatch.setattr(os, "link", full)
    monkeypatch.setattr("shutil.copyfile", lambda source, target: [Path(target).write_bytes(b"half"), full()])
    with pytest.raises(OSError, match="No space"):
        AtomicCheckpointIO().save_checkpoint(minimal(2), file)
    assert {f.name for f in tmp_path.iterdir()} == {"last.ckpt", "previous.ckpt"}
    assert read_checkpoint(file)["number"] == read_checkpoint(tmp_path / "previous.ckpt")["number"] == 1
