"""The README and the pages of docs/, walked: what they tell a reader to type is done, in their order, and works.

What a page presumes (a reader's own files, runs of former days) is made in `BEFORE`; what cannot be done here is listed
with its reason in `LEFT_OUT`. The tutorial is walked in tests/bench/study/test_tutorial.py.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import yaml
from hospitals import write_patients
from PIL import Image
from walk import Step, Walk, compare_prints, dated_runs, is_command, needs_more, steps_of

ROOT = Path(__file__).parents[2]
TEXTS = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
    if path.name != "tutorial.md"
}
PAGES = [page for page, text in TEXTS.items() if steps_of(text)]
DATA = os.environ.get("DFL_DATA_ROOT", "")

QUICK = ("README.md", "docs/faults.md")
"""Pages that the quick suite walks, with small runs."""

NOT_SMALL = {("README.md", "dfl-report"): "drawing a page takes 5 s; tests/bench/report/ draws enough"}
"""Commands that the quick suite leaves out for their time, and where they are tested."""

LEFT_OUT = {
    ("README.md", "git clone"): "the repository has no address here; .ci/run does these steps in a checkout",
    ("README.md", ".venv/bin/pip install"): "done by .ci/run",
    ("README.md", "python -m venv"): "done by .ci/run",
    ("README.md", "--watch"): "serves until it is stopped; tests/bench/report/test_watch_server.py asks it",
    ("docs/data.md", "--data CINIC10"): "270,000 images that are not downloaded",
    ("docs/gpus.md", "--trainer.accelerator gpu"): "needs a GPU; tests marked gpu run on one",
    ("docs/reports.md", "pip install"): "installing is what .ci/run does",
    ("docs/reports.md", "--watch"): "serves until it is stopped; tests/bench/report/test_watch_server.py asks it",
    ("docs/studies.md", "pip install"): "installing is what .ci/run does",
    ("docs/studies.md", "--slurm"): "needs a SLURM; tests/bench/study/test_slurm.py has one that is made up",
    ("docs/results.md", "run dpfl_table1_small"): "a day of cells; test_results_page.py reads the study",
    ("docs/results.md", "table dpfl_table1_small"): "needs those cells",
}
"""Commands that are not run, by page and a part of them, and why."""

LONG = {
    ("README.md", "--data CIFAR10"): "half an hour on two cores, as the page says",
    ("docs/data.md", "--data CIFAR10"): "LeNet of 100 clients",
    ("docs/data.md", "--data MNIST"): "100 writers",
    ("docs/data.md", "--data FashionMNIST"): "100 clients of 600 images",
    ("docs/data.md", "--data FEMNIST"): "100 writers",
    ("docs/reports.md", "--trainer.max_rounds 400"): "400 rounds",
}
"""Runs of more than a quarter of an hour, by page and a part of them: slow ones get one round of one epoch."""

ONE_ROUND = "--trainer.max_rounds 1 --model.local_epochs 1"
NO_ROUND = "--print_config"

REFUSED = {
    ("docs/running.md", "WandbLogger"): r"run: pip install -U 'wandb\b",
    ("docs/reports.md", "--to-wandb"): "--to-wandb needs Weights & Biases: pip install wandb",
    ("docs/reports.md", "Latin Modern Roman"): "there is no such font on this machine",
}
"""Commands that need what not every machine has, and what they say without it, in one line."""

NEEDS = {"CIFAR10": "cifar-10-batches-py", "FashionMNIST": "FashionMNIST", "MNIST": "MNIST"}
"""What lies in DFL_DATA_ROOT for a data set; without it, its commands are left out."""

FILES = {
    ("README.md", "class LowestLoss"): ["mine.py"],
    ("docs/objectives.md", "class Ditto"): ["mine.py"],
    ("docs/policies.md", "class NoWorse"): ["mine.py"],
    ("docs/tasks.md", "class Quantile"): ["mine.py"],
    ("docs/conformance.md", "def fdms_dropout"): ["my_adapter.py"],
    ("docs/topologies.md", "generator: connected_watts"): ["my_network.yaml"],
    ("docs/topologies.md", "class Walkers"): ["walkers.py"],
    ("docs/topologies.md", "one of class_folders"): ["walkers.yaml"],
}
"""Files into which a page has its reader put a block, by page and a part of the block."""

SHOWN = {
    ("docs/running.md", "stopped by SIGINT"): "tests/cli/test_signals.py compares it",
    ("docs/tasks.md", "station,when"): "the first lines of sensors.csv",
    ("docs/topologies.md", " graph: "): "test_pages.py compares these lines",
    ("docs/topologies.md", "Ward A,Ward B"): "tests/topology/test_formats.py reads such lists",
}
"""Blocks that are neither commands nor code, by page and a part of them."""


def entry(table, page, text):
    """Return the entry of a table for a text of a page, or None."""
    return next((key for key in table if key[0] == page and key[1] in text), None)


# --- what a page presumes ---------------------------------------------------------------------------------------------
def a_run(walk, name, words):
    """Make an earlier run with the name that the page gives it."""
    said = walk.command(f"dfl-fit {words}")
    assert said.code == 0, said.err
    (made,) = (folder for folder in walk.folder.glob("runs/*/*") if folder not in walk.former)
    place = walk.folder / name
    place.parent.mkdir(parents=True, exist_ok=True)
    made.rename(place)
    walk.former.add(place)
    walk.run = walk.run or name


def sensors(folder):
    """Write data of nine stations over 110 hours, under the head that the page shows."""
    (head,) = re.findall(r"```\n(station,.*?)\n", TEXTS["docs/tasks.md"])
    hours = [
        f"station {s},2024-05-{1 + h // 24:02}T{h % 24:02}:00,{15 + s + 9 * np.sin(h / 4)},0.5"
        for s in range(9)
        for h in range(110)
    ]
    (folder / "sensors.csv").write_text("\n".join([head, *hours]))


def graphs(folder):
    nx.write_graphml(nx.cycle_graph(24), folder / "my_network.graphml")
    (folder / "contacts.txt").write_text("31220 1148 1644\n31240 1148 1644\n32500 1644 1590\n")


def own_data(folder):
    """Write LEAF's files of 110 writers, twelve books, sales of twelve shops, patients, and a folder of images."""
    draws = np.random.default_rng(0)
    for part, images in (("train", 24), ("test", 4)):
        place = folder / "leaf" / "data" / "femnist" / "data" / part
        place.mkdir(parents=True)
        users = [f"w{number:04}" for number in range(110)]
        data = {
            user: {
                "x": (draws.integers(0, 2, (images, 784)) / 1.0).tolist(),
                "y": draws.integers(0, 62, images).tolist(),
            }
            for user in users
        }
        content = {"users": users, "num_samples": [images] * len(users), "user_data": data}
        (place / "all_data_0.json").write_text(json.dumps(content))
    for name, x, y in (
        ("shakespeare", ["to be or no", "o be or not"], ["t", " "]),
        ("sent140", [["1", "Mon", "Good day!"], ["2", "Tue", "a bad, bad day"]], [1, 0]),
    ):
        content = {"users": users, "num_samples": [20] * len(users)}
        content["user_data"] = {user: {"x": x * 10, "y": y * 10} for user in users}
        for part in ("train", "test"):
            place = folder / "leaf" / "data" / name / "data" / part
            place.mkdir(parents=True)
            (place / "all.json").write_text(json.dumps(content))
    (folder / "data").mkdir()
    (folder / "books").mkdir()
    for number in range(12):
        words = draws.choice(["one ", "or ", "another ", "line\n"], 1500)
        (folder / "books" / f"{number}.txt").write_text("".join(words))
    lines = [
        f"s{shop},2024-{1 + day // 28:02}-{1 + day % 28:02},{shop + 5 * np.sin(day / 4)}"
        for shop in range(12)
        for day in range(200)
    ]
    (folder / "sales.csv").write_text("\n".join(["shop,day,sales", *lines]))
    write_patients(folder / "patients.csv")
    for label in ("cats", "dogs"):
        (folder / "images" / label).mkdir(parents=True)
        for number in range(20):
            pixels = draws.integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / "images" / label / f"{number}.png")


def adapter(folder):
    (folder / "my_package").mkdir()
    text = f"import sys\nsys.path.insert(0, {str(ROOT / 'scripts')!r})\nfrom conformance.own import *\n"
    (folder / "my_package" / "adapter.py").write_text(text)


def tuned_study(folder):
    """Write the page's two blocks of a study file as one, with two trials of two rounds instead of 120 of 30."""
    study, tune = (yaml.safe_load(step.text) for step in steps_of(TEXTS["docs/studies.md"]) if step.kind == "yaml")
    few = {**tune["tune"], "trials": 2, "rounds": 2}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**study, **tune, "tune": few}))


INPUTS = {
    "docs/studies.md": tuned_study,
    "docs/conformance.md": adapter,
    "docs/tasks.md": sensors,
    "docs/topologies.md": graphs,
    "docs/data.md": own_data,
}
"""What a reader of a page has: made in its folder."""

FORMER = {
    "README.md": {"runs/gossip/2026-01-01_00-00-00": "--config gossip"},
    "docs/running.md": {},
    "docs/reports.md": {"runs/gossip/2026-01-01_00-00-00": "--config gossip"},
}
"""Runs that a page presumes, by their folders; those that it names with a date are added."""

OPTIONS = {"docs/running.md": "--trainer.max_rounds 2 --data.val_fraction 0.2 --trainer.checkpoint_every 1"}
"""Of the runs that a page names with a date."""


# --- the walk ---------------------------------------------------------------------------------------------------------
def walk_page(page, folder, small):
    """Take all steps of a page.

    Raises:
        AssertionError: a step fails, or is not as the page says.
    """
    walk = Walk(folder, small)
    try:
        walk_in(walk, page, folder)
    finally:
        walk.close()


def walk_in(walk, page, folder):
    text = TEXTS[page]
    if page in INPUTS:
        INPUTS[page](folder)
    if page in FORMER:
        dated = {name: f"--config {config} {OPTIONS.get(page, '')}" for name, config in dated_runs(text).items()}
        for name, words in {**dated, **FORMER[page]}.items():
            a_run(walk, name, words)
    for step in steps_of(text):  # a page may name a file before it shows what is in it
        for file in FILES.get(entry(FILES, page, step.text), ()):
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_text(step.text, encoding="utf-8")
    for step in steps_of(text):
        where = f"{page}:{step.line}: {step.text.splitlines()[0]}"
        if step.kind == "text":
            assert entry(SHOWN, page, step.text), f"{where}: neither a command nor in SHOWN"
        elif step.kind == "yaml":
            if step.text.startswith("forked_from:"):
                newest = max(folder.glob("runs/*/*"), key=os.path.getmtime)
                found = yaml.safe_load((newest / "config.yaml").read_text())
                shown = yaml.safe_load(step.text)
                shown["forked_from"]["round"] = walk.rounds(shown["forked_from"]["round"])
                assert {"forked_from": found["forked_from"]} == shown, where
        elif walk.small and entry(NOT_SMALL, page, step.text):
            continue
        elif not entry(LEFT_OUT, page, step.text) and has_data(step.text):
            take(walk, page, step, where)


def has_data(text):
    name = re.search(r"--data (\w+)", text)
    return name is None or name[1] not in NEEDS or bool(DATA and (Path(DATA) / NEEDS[name[1]]).is_dir())


def take(walk, page, step, where):
    """Run a command or a script; it must succeed without a word on standard error."""
    if step.kind == "python":
        said = walk.python(step.text)
    else:
        said = walk.command(step.text, (NO_ROUND if walk.small else ONE_ROUND) if entry(LONG, page, step.text) else "")
        refused = entry(REFUSED, page, step.text)
        if refused and said.code == 2 and re.search(REFUSED[refused], said.err) and said.err.count("\n") == 1:
            return
    assert (said.code, said.err) == (0, ""), f"{where}\n{said.err}\n{said.out[-2000:]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page in QUICK])
def test_page_works_as_written_with_small_runs(page, tmp_path):
    walk_page(page, tmp_path, small=True)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_page_works_as_written(page, tmp_path):
    walk_page(page, tmp_path, small=False)


def test_exceptions_name_texts_that_are_on_their_page():
    for table in (LEFT_OUT, NOT_SMALL, LONG, REFUSED, FILES, SHOWN):
        for page, part in table:
            assert any(part in step.text for step in steps_of(TEXTS[page])), (page, part)
    assert {*QUICK, *INPUTS, *FORMER, *OPTIONS} <= {*PAGES}


def test_the_steps_of_a_page_are_found():
    page = "# A\n\n```\ndfl-fit --config a   # why\n\ndfl-test RUN\n```\nor `dfl-fit\n--config b` and\n"
    page += "```python\nx = 1\n```\n`dfl-fit --config …`\n```\nout: 3\n```\n"
    assert steps_of(page) == [
        Step("command", "dfl-fit --config a", 4),
        Step("command", "dfl-test RUN", 6),
        Step("command", "dfl-fit --config b", 8),
        Step("python", "x = 1\n", 11),
        Step("text", "out: 3\n", 15),
    ]
    assert not is_command("dfl_lightning: this is no command")


def test_a_line_that_needs_a_missing_package_is_left_out():
    assert needs_more("run.frame()  # as a table; needs no_such_package\n")
    assert not needs_more("run.frame()  # as a table; needs torch\n")


def test_a_printed_number_is_compared_to_its_last_digit():
    code = "x = 3.0849\nprint(x)  # 3.08; should be 0\nprint(x)  # no number\nprint(-x)  # -3.1\n"
    compare_prints(code, "3.0849\n3.0849\n-3.0849\n")
    with pytest.raises(AssertionError, match=r"the page says -3\.1"):
        compare_prints(code, "3.0849\n3.0849\n-3.0349\n")
    with pytest.raises(AssertionError, match="prints less"):
        compare_prints(code, "3.0849\n")
