"""The section Reproduction: what its buttons copy runs anywhere, and gives the same scores."""

import os
import subprocess

import numpy as np
import pytest
import yaml

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.contents.repeating import StudyFile, repeats, split_fingerprint, texts
from dfl_lightning.bench.report.writing import write_report
from dfl_lightning.cli.command import run as command

RECORD = """#!/bin/sh
for word in "$@"; do printf '%s\\n' "$word"; done >> typed
echo >> typed
"""


def commands_of(text, folder):
    """Let a shell read a text, with a `dfl-fit` that keeps its words, and return these."""
    (folder / "bin").mkdir(exist_ok=True)
    for name in ("dfl-fit", "dfl-study"):
        (folder / "bin" / name).write_text(RECORD)
        (folder / "bin" / name).chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-eu"], input=text, text=True, cwd=folder, env={"PATH": path}, check=True)
    return [block.splitlines() for block in (folder / "typed").read_text().split("\n\n") if block]


def test_the_copied_commands_give_the_same_scores(tmp_path, monkeypatch):
    first, second = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (first, second):
        folder.mkdir()
    monkeypatch.chdir(first)
    small = ["--data.num_clients", "4", "--trainer.max_rounds=2", "--model.local_epochs=1"]
    for seed in (3, 4):
        assert command("fit", ["--config", "gossip", *small, "--selection.k=2", f"--seed_everything={seed}"]) == 0
    runs = [read_run(path.parent) for path in sorted(first.glob("runs/*/*/metrics.csv"))]
    (found,) = repeats(find_methods(runs))
    assert found.seeds == "3, 4"
    assert str(tmp_path) not in found.text
    monkeypatch.chdir(second)
    for words in commands_of(found.text, second):
        assert command("fit", words) == 0
    again = [read_run(path.parent) for path in sorted(second.glob("runs/*/*/metrics.csv"))]
    assert len(again) == 2
    for before, now in zip(runs, again, strict=True):
        np.testing.assert_array_equal(before.clients["test_acc"], now.clients["test_acc"])
        assert before.summary["test_accuracy"] == now.summary["test_accuracy"]
        assert split_fingerprint(before.split) == split_fingerprint(now.split)
    assert len({split_fingerprint(run.split) for run in runs}) == 2
    assert repeats(find_methods(again)) == [found]


def test_files_that_a_machine_has_are_left_out_or_named(tmp_path, make_run):
    config = {
        "trainer": {"max_rounds": 2, "default_root_dir": "/home/me/runs"},
        "data": {"class_path": "x.CSV", "init_args": {"root": "/home/me/data", "path": "/home/me/a.csv", "seed": None}},
        "class_folders": ["/home/me/configs"],
        "code": {"mine": "0" * 64},
        "topology": "C:\\\\graphs\\\\a.graphml",
    }
    run = read_run(make_run(tmp_path / "1", [[0.5]], config=config, seed=8))
    (found,) = repeats(find_methods([run]))
    *_, words = commands_of(found.text, tmp_path)
    assert words[:2] + words[-2:] == ["--config", words[1], "--seed_everything", "8"]
    assert yaml.safe_load((tmp_path / words[1]).read_text()) == {
        "trainer": {"max_rounds": 2},
        "data": {"class_path": "x.CSV", "init_args": {"path": "/home/me/a.csv", "seed": None}},
        "topology": config["topology"],
    }
    assert found.needs == [
        "the module mine",
        "the file /home/me/a.csv (change data.path)",
        f"the file {config['topology']} (change topology)",
    ]


def test_seeds_with_other_settings_have_files_of_their_own(tmp_path, make_run):
    runs = [
        make_run(
            tmp_path / str(seed), [[0.5]], seed=seed, config={"trainer": {"max_rounds": 1 + seed}, "model": {"a": 1}}
        )
        for seed in (0, 1)
    ]
    (found,) = repeats(find_methods([read_run(run) for run in runs]))
    typed = commands_of(found.text, tmp_path)
    rounds = [yaml.safe_load((tmp_path / words[1]).read_text())["trainer"]["max_rounds"] for words in typed]
    assert rounds == [1, 2]


@pytest.mark.parametrize("name", ["$(touch broken)", "`touch broken`", "a'b\"c", "../../up", "-rf", "é ü", "x\nEND"])
def test_hostile_names_and_settings_reach_no_shell(tmp_path, make_run, name):
    text = f"END_OF_FILE\n$(touch broken)\nEND_OF_FILE\ntouch broken\n{name}"
    run = make_run(tmp_path / "run", [[0.5]], config={"model": {"note": text}, "END_OF_FILE": None})
    study = StudyFile("study.yaml", f"a: 1\nEND_OF_FILE\ntouch broken\n{name}", " --scale 0.1")
    found = repeats(find_methods([read_run(run)], [name]))
    *_, words = commands_of(found[0].text + texts(found, study)["study"], tmp_path)
    assert words == ["run", "study.yaml", "--scale", "0.1"]
    made = {path.name for path in tmp_path.iterdir()} - {"run", "bin", "typed", "study.yaml"}
    assert len(made) == 1
    (file,) = made
    assert yaml.safe_load((tmp_path / file).read_text())["model"]["note"] == text
    assert (tmp_path / "study.yaml").read_text() == study.text + "\n"
    assert not list(tmp_path.parent.glob("up*"))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (None, "started from Python, without a config"),
        ({"unknown": {"model": "x"}}, "started from Python, with objects that no config makes"),
        ({"forked_from": {"checkpoint": "a", "round": 1}}, "forked from a checkpoint, which is needed too"),
        ({"changed_on_resume": [{"round": 1}]}, "settings were changed when a run was resumed"),
    ],
)
def test_runs_that_no_config_repeats_say_why(tmp_path, make_run, config, reason):
    (found,) = repeats(find_methods([read_run(make_run(tmp_path / "1", [[0.5]], config=config))]))
    assert (found.text, found.needs) == ("", [reason])


def test_the_fingerprint_changes_with_each_array():
    split = {"train_indices": np.arange(6), "clusters": np.zeros(2)}
    found = {
        split_fingerprint(changed)
        for changed in (
            split,
            {**split, "train_indices": np.arange(6)[::-1]},
            {**split, "clusters": np.ones(2)},
            {**split, "rotation": np.ones(2)},
        )
    }
    assert len(found) == 4
    assert split_fingerprint(dict(reversed(split.items()))) in found
    assert split_fingerprint({}) == ""


def test_the_buttons_copy(tmp_path, make_run, open_page, until):
    runs = [
        make_run(tmp_path / name, [[0.5, 0.6]] * 2, config={"selection": {"class_path": name}})
        for name in ("One", "Two")
    ]
    alone = make_run(tmp_path / "alone", [[0.5, 0.7]] * 2, config=None)
    page = write_report([*map(str, runs), f"Python={alone}"], tmp_path / "page.html")
    seen = open_page(page, bypass_csp=True, everything=False)
    seen.page.evaluate("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    rows = seen.page.locator(".repeating tbody tr")
    assert rows.count() == 3
    assert seen.page.locator("[data-copy]").count() == 3  # each method with a config, and all
    expected = {row.name: row.text for row in repeats(find_methods([read_run(run) for run in runs]))}
    seen.page.get_by_label("Copy: commands of Two").click()
    until(seen, "window.copied")
    assert seen.page.evaluate("window.copied") == expected["Two"]
    seen.page.locator("[data-copy=all]").click()
    copied = seen.page.evaluate("window.copied")
    assert all(text in copied for text in expected.values())
    assert len(copied.splitlines()) == sum(len(text.splitlines()) for text in expected.values()) + 1
    assert seen.page.locator("#copied").inner_text().endswith(" lines copied")
