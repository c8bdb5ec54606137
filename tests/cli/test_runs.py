"""Commands on runs: a run folder is named where a checkpoint is taken, and its own config is read."""

import json
import re
import shutil
import sys
import warnings

import numpy as np
import pytest
import yaml

from dfl_lightning import UserError
from dfl_lightning import callbacks as cb
from dfl_lightning.checkpoints.history import changes, settings_text
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.cli import command as cli
from dfl_lightning.cli.runs import command_to_go_on

SMALL = """
trainer: {max_rounds: 2, accelerator: cpu}
model:
  network: {class_path: MLP, init_args: {hidden: [8]}}
  local_epochs: 1
  batch_size: 16
  optimizer: {class_path: SGD, init_args: {lr: 0.1}}
data: {class_path: Digits, init_args: {num_clients: 6, samples_per_client: 40, val_fraction: 0.2}}
selection: {class_path: Gossip, init_args: {k: 2}}
aggregation: Uniform
"""


@pytest.fixture
def here(here):
    """Make a working folder with a config."""
    (here / "small.yaml").write_text(SMALL)
    return here


@pytest.fixture
def dfl(here, capsys):
    """Run a command in this process: exit code, output, errors."""

    def _dfl(command, *words):
        code = cli.run(command, [str(word) for word in words])
        return code, *capsys.readouterr()

    return _dfl


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return a folder in which a run of two rounds has ended."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "small.yaml").write_text(SMALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PL_GLOBAL_SEED", "0")
        patch.setattr(sys, "path", list(sys.path))
        assert cli.run("fit", ["--config", "small.yaml"]) == 0
    return folder


@pytest.fixture
def run(here, finished):
    """Copy a run of two rounds; return its folder as one types it."""
    shutil.copytree(finished / "runs", here / "runs")
    (folder,) = here.glob("runs/small/*")
    return folder.relative_to(here)


def rounds(folder):
    rows = np.genfromtxt(folder / "metrics.csv", delimiter=",", names=True)
    return {name: rows[name].tolist() for name in rows.dtype.names if name != "seconds"}


def rows(folder):
    return read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]["bank.rows.models"]


# --- resume -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", ["", "checkpoints/last.ckpt"])
def test_run_resumes_by_its_name_alone(dfl, here, run, name):
    assert dfl("fit", "--ckpt_path", run / name, "--trainer.max_rounds", "4")[::2] == (0, "")
    assert dfl("fit", "--config", "small.yaml", "--trainer.max_rounds", "4")[0] == 0
    (whole,) = (folder for folder in here.glob("runs/*/*") if folder != here / run)
    np.testing.assert_equal(rounds(run), rounds(whole))
    assert rows(run).equal(rows(whole))


def test_last_given_number_of_rounds_counts_by_either_name(dfl, here, run):
    for name, many in (("max_epochs", 3), ("max_rounds", 4), ("max_epochs", 5)):
        assert dfl("fit", "--ckpt_path", run, f"--trainer.{name}", many)[::2] == (0, "")
        assert len(rounds(run)["round"]) == many


def test_run_killed_before_its_first_checkpoint_must_begin_again(dfl, here, run):
    shutil.rmtree(here / run / "checkpoints")
    for command in (["fit", "--ckpt_path", run], ["test", run]):
        code, _, said = dfl(*command)
        assert code == 2
        assert f"{run}: the run has no checkpoint; it was killed before its first one" in said
        assert f"dfl-fit --config {run}/config.yaml begins it again" in said


@pytest.mark.parametrize(("words", "what"), [(["--seed_everything", 1], "seed"), (["--data.val_fraction", 0], "data")])
def test_an_evaluation_on_other_samples_is_warned_of(dfl, run, words, what):
    """Other samples may have been in a client's training data."""
    assert dfl("test", run)[0] == 0  # without a warning, which would be an error here
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        code, _, said = dfl("test", run, *words)
    assert code == 0
    assert re.search(f"warning: .*last.ckpt: {what} is .* so clients may be tested on samples", said)


def test_fork_without_changes_ends_like_the_resumed_run(dfl, here, run):
    assert dfl("fit", "--ckpt_path", run, "--fork", "--trainer.max_rounds", "3")[::2] == (0, "")
    fork = other_than(here, run)
    assert written(fork)["forked_from"]["changed"] == {}
    assert dfl("fit", "--ckpt_path", run, "--trainer.max_rounds", "3")[::2] == (0, "")
    np.testing.assert_equal(rounds(run), rounds(fork))
    assert rows(run).equal(rows(fork))


def test_fork_by_name_takes_the_runs_and_the_typed_settings(dfl, here, run):
    before = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    words = ["--fork", "--model.optimizer.lr", "0.01", "--trainer.max_rounds", "3"]
    assert dfl("fit", "--ckpt_path", run, *words)[::2] == (0, "")
    (fork,) = (folder for folder in here.glob("runs/small/*") if folder != here / run)
    assert len(rounds(fork)["round"]) == 3
    config = yaml.safe_load((fork / "config.yaml").read_text())
    assert config["model"]["optimizer"]["init_args"]["lr"] == 0.01
    assert config["selection"]["init_args"]["k"] == 2
    assert {file: file.read_bytes() for file in before} == before


def test_a_config_that_is_given_is_the_one_that_counts(dfl, run):
    code, _, err = dfl("fit", "--config", "small.yaml", "--selection.k", "3", "--ckpt_path", run)
    assert code == 2
    assert "k is 2 in the checkpoint and 3 in this run; --fork starts a new run from it" in err


def test_resumed_run_stays_in_its_folder_and_says_so(dfl, here, run):
    words = ["--ckpt_path", run, "--trainer.max_rounds", "3", "--trainer.default_root_dir"]
    code, out, _ = dfl("fit", *words, "other")
    place = "trainer.default_root_dir=other: the run continues in its own folder"
    assert (code, notes(out)) == (0, [f"{place}, {run}; with --fork a new one would start there"])
    assert not (here / "other").exists()
    code, out, _ = dfl("fit", *words, "runs", "--trainer.max_rounds", "4")
    assert (code, notes(out)) == (0, [])
    assert len(rounds(run)["round"]) == 4


def test_explain_names_the_resumed_folder_and_refuses_like_a_resume(dfl, here, run):
    before = sorted(path.name for path in (here / run).rglob("*"))
    words = ["--ckpt_path", run, "--trainer.max_rounds", "5", "--explain"]
    code, out, _ = dfl("fit", *words)
    assert code == 0
    assert {"rounds: 5, evaluated 5 times; 2 are done", f"run folder: {run}"} <= set(out.splitlines())
    assert "run folder: runs/small/<time>" in dfl("fit", *words, "--fork")[1].splitlines()
    code, _, err = dfl("fit", *words, "--selection.k", "3")
    assert (code, "k is 2 in the checkpoint and 3 in this run" in err) == (2, True)
    code, _, err = dfl("fit", "--ckpt_path", run, "--trainer.max_rounds", "1", "--explain")
    assert (code, "the run has 2 rounds already" in err) == (2, True)
    assert sorted(path.name for path in (here / run).rglob("*")) == before


def test_an_evaluation_starts_no_run(dfl, run):
    assert dfl("test", run, "--fork") == (
        2,
        "",
        "dfl-test: --fork is an option of dfl-fit: dfl-test starts no run; leave it out\n",
    )


def test_fork_without_a_run_is_refused(dfl, here, small_run):
    code, _, err = dfl("fit", "--config", "small.yaml", "--fork")
    assert (code, err) == (2, "dfl-fit: --fork starts a new run from another one; name it with --ckpt_path RUN\n")
    assert not (here / "runs").exists()
    with pytest.raises(UserError, match="fork starts a new run from a checkpoint; set ckpt_path"):
        small_run(1).fit(fork=True)


def test_from_python_a_folder_means_its_last_checkpoint_too(small_run):
    first = small_run(2).fit()
    again = small_run(3).fit(first.folder)
    assert again.folder == first.folder
    assert again.rows.equal(small_run(3).fit().rows)
    other = small_run(3)
    other.trainer.test(other.module, datamodule=other.data, ckpt_path=first.folder, verbose=False)
    assert other.rows.equal(again.rows)
    other.trainer.validate(other.module, datamodule=other.data, ckpt_path=first.folder, verbose=False)
    with pytest.raises(UserError, match="no checkpoint; give a run folder or a checkpoint"):
        small_run(3).fit(first.folder.parent)


# --- evaluate ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("command", ["validate", "test"])
def test_a_run_is_evaluated_by_its_name_alone(dfl, here, run, command):
    before = {file: file.read_bytes() for file in here.rglob("*") if file.is_file()}
    code, out, err = dfl(command, run)
    assert (code, err) == (0, "")
    last = run / "checkpoints" / "last.ckpt"
    for words in [
        ["--config", "small.yaml", "--ckpt_path", last],
        ["--config", run / "config.yaml", run],
        ["--ckpt_path", run],
        [last],
        ["--trainer.enable_progress_bar", "false", run, "--trainer.max_rounds", "7"],
    ]:
        assert dfl(command, *words) == (0, out, "")
    with np.load(run / "clients.npz") as arrays:
        column = out.splitlines()[1].split().index("test_acc")
        shown = [line.split()[column] for line in out.splitlines()[2:8]]
        assert shown == [f"{value:.4f}" for value in arrays["test_acc"][-1]]
    table = np.genfromtxt(run / "metrics.csv", delimiter=",", names=True)
    below = [float(line.split()[-1]) for line in out.splitlines()[8:11]]  # of the last column, the test accuracy
    assert below == pytest.approx([table[f"test_acc{which}"][-1] for which in ("", "_std", "_worst10")], abs=5e-5)
    assert {file: file.read_bytes() for file in here.rglob("*") if file.is_file()} == before


def test_options_override_the_runs_own(dfl, run):
    assert "engine: stacked" in dfl("test", run, "--explain")[1]
    assert "engine: loop" in dfl("test", run, "--explain", "--engine", "loop")[1]


@pytest.mark.parametrize(
    ("command", "words", "answer"),
    [
        ("test", [], "no run is named; give its folder: dfl-test RUN"),
        ("validate", ["--config", "small.yaml"], "no run is named; give its folder: dfl-validate RUN"),
        ("test", ["RUN", "RUN"], "'RUN' and 'RUN': a command evaluates one run; options begin with --"),
        ("test", ["RUN", "--ckpt_path", "RUN"], "'RUN' and --ckpt_path both name a run; give one of them"),
        ("test", [""], "--ckpt_path needs a value, a run folder or a checkpoint"),
        ("fit", ["--ckpt_path", ""], "--ckpt_path needs a value, a run folder or a checkpoint"),
        ("test", ["nowhere"], "nowhere: no such checkpoint"),
        ("test", ["nowhere", "--config", "small.yaml"], "nowhere: no such checkpoint"),
        ("test", ["runs", "--config", "small.yaml"], "runs: no checkpoint; give a run folder or a checkpoint"),
        ("fit", ["RUN"], "unexpected argument 'RUN'; to resume that run use --ckpt_path RUN"),
        ("fit", ["small.yaml"], "unexpected argument 'small.yaml'; write --config small.yaml"),
        ("fit", ["afind"], "unexpected argument 'afind'; write --config afind"),
        ("fit", ["what", "--config", "small.yaml"], "unexpected argument 'what'; options begin with --"),
    ],
)
def test_misplaced_words_are_refused_in_one_sentence(dfl, run, command, words, answer):
    code, out, err = dfl(command, *(word.replace("RUN", str(run)) for word in words))
    shown = answer.replace("RUN", str(run)) if "folder: dfl" not in answer else answer
    assert (code, out, err) == (2, "", f"dfl-{command}: {shown}\n")


def test_a_run_without_a_config_asks_for_one(dfl, run):
    (run / "config.yaml").unlink()
    answer = f"{run} has no config.yaml, for it was not started by dfl-fit; give a config with --config"
    for command in ("fit", "test"):
        assert dfl(command, "--ckpt_path", run) == (2, "", f"dfl-{command}: {answer}\n")
    assert dfl("test", run, "--config", "small.yaml")[0] == 0


@pytest.mark.parametrize(
    ("command", "missing", "answer"),
    [
        ("validate", "val", "no client has validation data to evaluate; set data.val_fraction, or use dfl-test"),
        ("test", "test", "no client has test data to evaluate; set data.test_fraction above 0, or use dfl-validate"),
    ],
)
def test_an_evaluation_needs_data_of_its_kind(dfl, here, small_run, command, missing, answer):
    assert dfl("fit", "--config", "small.yaml", f"--data.{missing}_fraction=0")[0] == 0
    (run,) = here.glob("runs/small/*")
    assert dfl(command, run) == (2, "", f"dfl-{command}: {answer}\n")
    other = small_run(1, data={f"{missing}_fraction": 0.0})
    with pytest.raises(UserError, match=answer):
        getattr(other.trainer, command)(other.module, datamodule=other.data)


# --- what to type -----------------------------------------------------------------------------------------------------
def test_suggested_command_has_the_name_that_was_typed(tmp_path, monkeypatch):
    program = tmp_path / "bin" / "dfl-fit"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(program)])
    monkeypatch.setenv("PATH", str(program.parent))
    assert command_to_go_on("runs/a b") == "dfl-fit --ckpt_path 'runs/a b'"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert command_to_go_on("runs/a") == f"{program} --ckpt_path runs/a"
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert command_to_go_on("runs/a") == "dfl-fit --ckpt_path runs/a"


# --- where a run comes from -------------------------------------------------------------------------------------------
def written(folder):
    """Read from config.yaml and summary.json where a run comes from."""
    config, summary = (
        yaml.safe_load((folder / "config.yaml").read_text()),
        json.loads((folder / "summary.json").read_text()),
    )
    found = [
        {key: about[key] for key in ("forked_from", "changed_on_resume") if key in about} for about in (config, summary)
    ]
    assert found[0] == found[1]
    return found[0]


def notes(out):
    return [line.removeprefix("note: ") for line in out.splitlines() if line.startswith("note: ")]


def other_than(here, *folders):
    (new,) = set(here.glob("runs/small/*")) - {here / folder for folder in folders}
    return new.relative_to(here)


def test_fork_records_its_origin_and_how_to_repeat_it(dfl, here, run):
    assert written(run) == {}
    words = ["--trainer.max_rounds", "4", "--fork", "--ckpt_path", run]
    code, out, _ = dfl("fit", *words, "--model.optimizer.lr", "0.01", "--aggregation", "SampleWeighted")
    assert (code, notes(out)) == (0, [])
    fork = other_than(here, run)
    classes = [f"dfl_lightning.callbacks.{name}" for name in ("Uniform", "SampleWeighted")]
    last = str(run / "checkpoints" / "last.ckpt")
    changed = {"model.optimizer.lr": [0.1, 0.01], "aggregation": classes, "aggregation.count": [None, "train"]}
    history = {"forked_from": {"checkpoint": last, "round": 2, "changed": changed}}
    assert written(fork) == history

    code, out, err = dfl("fit", "--ckpt_path", fork, "--trainer.max_rounds", "5")
    assert (code, notes(out), written(fork)) == (0, [], history), err
    code, out, _ = dfl("fit", "--config", fork / "config.yaml", "--ckpt_path", run, "--fork")
    assert (code, notes(out)) == (0, [])
    repeated = other_than(here, run, fork)
    np.testing.assert_equal(rounds(repeated), rounds(fork))
    assert rows(repeated).equal(rows(fork))

    code, out, err = dfl("fit", "--config", fork / "config.yaml", "--explain")
    config = fork / "config.yaml"
    assert notes(out) == [
        f"{config} is of a run that was forked from {last} after round 2, with model.optimizer.lr from 0.1 to 0.01, "
        f"aggregation from {classes[0]} to {classes[1]}, aggregation.count from null to train; this run begins with "
        f"round 1, and --ckpt_path {last} --fork repeats that one"
    ]
    assert dfl("fit", "--ckpt_path", run, "--trainer.max_rounds", "3")[0] == 0
    code, out, _ = dfl("fit", "--config", config, "--ckpt_path", run, "--fork", "--explain")
    assert notes(out) == [
        f"{config} is of a run that was forked from {last} after round 2; {last} has 3 rounds, so this run does not "
        "repeat that one"
    ]


def test_what_a_resume_changes_is_written_down(dfl, here, run):
    assert dfl("fit", "--ckpt_path", run, "--trainer.max_rounds", "3", "--trainer.checkpoint_every", "1")[0] == 0
    assert written(run) == {}, "more rounds change nothing"
    clipped = ["--ckpt_path", run, "--trainer.gradient_clip_val", "0.01"]
    assert dfl("fit", *clipped, "--trainer.max_rounds", "4")[0] == 0
    history = {"changed_on_resume": [{"round": 3, "changed": {"trainer.gradient_clip_val": [None, 0.01]}}]}
    assert written(run) == history
    assert dfl("fit", *clipped, "--trainer.max_rounds", "5")[0] == 0
    assert written(run) == history
    _, out, _ = dfl("fit", "--config", run / "config.yaml", "--explain")
    assert notes(out) == [
        f"{run / 'config.yaml'} is of a run that changed after round 3: trainer.gradient_clip_val from null to 0.01; "
        "this run begins with the latter"
    ]
    assert dfl("test", run)[0] == 0


def test_a_run_from_python_says_where_it_comes_from_too(small_run):
    first = small_run(2).fit()
    policies = [cb.Gossip(k=1), cb.Uniform()]
    fork = small_run(3, policies=policies).fit(first.folder, fork=True)
    said = json.loads((fork.folder / "summary.json").read_text())["forked_from"]
    assert (said["checkpoint"], said["round"]) == (str(first.folder / "checkpoints" / "last.ckpt"), 2)
    assert said["changed"]["policies.Gossip.k"] == [None, 1]
    again = small_run(4, policies=policies).fit(fork.folder)
    assert again.module.history["forked_from"] == said
    assert small_run(1).fit().module.history == {}


def test_changes_are_named_by_their_options():
    old = {"class_path": "A", "init_args": {"k": 1, "inner": {"class_path": "B", "init_args": {}}}}
    new = {"class_path": "A", "init_args": {"k": 1, "inner": {"class_path": "C", "init_args": {"z": [1]}}}}
    trainers = [
        {"max_rounds": 1, "precision": "32", "accelerator": "cpu"},
        {"max_rounds": 2, "precision": "bf16-mixed", "accelerator": "gpu"},
    ]
    settings = [{"selection": s, "trainer": t} for s, t in zip((old, new), trainers, strict=True)]
    former, here = ({"settings": settings_text(s), "topology": "one graph"} for s in settings)
    expected = {
        "selection.inner": ["B", "C"],
        "selection.inner.z": [None, [1]],
        "trainer.precision": ["32", "bf16-mixed"],
    }
    assert changes(former, here) == expected
    assert changes(former, former | {"topology": "another"}) == {"topology": ["one graph", "another"]}
    assert changes(former, former) == {}


@pytest.mark.parametrize(
    "written", ["forked_from: runs/a", "forked_from: {round: x}", "changed_on_resume: [{round: 1, changed: [3]}]"]
)
def test_malformed_history_is_refused(dfl, here, written):
    (here / "other.yaml").write_text(f"{SMALL}{written}\n")
    key = written.partition(":")[0]
    answer = f"dfl-fit: other.yaml: {key} is a note that runs write; leave it as it was, or remove it\n"
    assert dfl("fit", "--config", "other.yaml") == (2, "", answer)
    assert not (here / "runs").exists()
