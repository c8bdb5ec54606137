"""The table of docs/methods.md against runs: its formulas are evaluated, and met by what the ledger counts."""

from __future__ import annotations

import csv
import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import yaml
from documented import OF_OTHER_PAGES, check_documented
from sklearn.datasets import load_digits
from turns import in_turn

from dfl_lightning.cli.classes.registry import class_of, shipped_classes
from dfl_lightning.cli.command import run
from dfl_lightning.cli.keys import FAMILIES, LISTS
from dfl_lightning.functional import erk_densities
from dfl_lightning.objectives import DisPFL
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.storage.shipped_files import shipped

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "methods.md").read_text(encoding="utf-8")
COLUMNS = set(re.findall(r"`([a-z_0-9]+)`", (DOCS / "run_folder.md").read_text(encoding="utf-8")))
CELLS, MESSAGES = (
    [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")]
    for part in PAGE.split("## What a message costs")
)
ROWS = {row[1].strip("`").removeprefix("--config "): row for row in CELLS[1:]}

CLIENTS, HIDDEN = 10, 8
MODEL = 64 * HIDDEN + HIDDEN + HIDDEN * 10 + 10  # parameters of an MLP on 8 x 8 images
BODY = 64 * HIDDEN + HIDDEN
SIZES = {"layers": BODY, "updates": MODEL, "features": HIDDEN}
SMALL = (
    f"--data.num_clients {CLIENTS} --data.samples_per_client 40 --model.network.hidden [{HIDDEN}] "
    "--model.local_epochs 1 --trainer.accelerator cpu --trainer.enable_progress_bar false"
)
ADAPTERS = {"lora_gossip": "AB", "ffa_lora": "B", "fedsa_lora": "A", "adf_lora": "AB"}
"""The factors that a message has."""
RANK = 4
FACTORS = {"A": RANK * 64, "B": HIDDEN * RANK}
ADAPTED = (
    f"--data Digits --model.network.base MLP --model.network.base.hidden [{HIDDEN}] --model.network.rank {RANK} "
    "--model.network.targets [features.*]"
)
STAGES = {  # options under which rounds 0, 1, 2 … are of different kinds, and which of the cell's formulas is theirs
    "panm_grad": ("--selection.stage_one 2 --selection.tau 3", [0, 1, 2, 3]),
    "panm_loss": ("--selection.stage_one 2 --selection.tau 3", [0, 1, 2, 3]),
    "panm_literal": ("--selection.stage_one 2 --selection.tau 3", [0, 1, 2, 3]),
    "pens": ("--selection.stage_one 2", [0, 0, 1]),
    "dpfl": ("--selection.budget 3 --selection.initial_epochs 1", [0, 1, 1]),
}


def formulas(cell):
    """Find the formulas in backticks: (is it only a bound, the formula, what it counts)."""
    return re.findall(r"(at most )?`([^`]+)`(?: (layers|updates|features|former models))?", cell)


def test_every_shipped_config_is_in_the_table():
    assert {command.partition(" ")[0] for command in ROWS} == set(shipped("configs")) - OF_OTHER_PAGES
    assert len(ROWS) == len(CELLS) - 1


WITH_OPTIONS = [command for command in ROWS if " " in command]


@pytest.mark.parametrize(
    "command", [*(name for name in ROWS if name not in WITH_OPTIONS), *in_turn(WITH_OPTIONS, every=3)]
)
def test_a_run_receives_what_the_table_says(command, tmp_path, monkeypatch, capsys):
    """It also writes the documented files."""
    monkeypatch.chdir(tmp_path)
    name = command.partition(" ")[0]
    more, kinds = STAGES.get(name, ("", [0, 0]))
    small = SMALL.replace(f"--model.network.hidden [{HIDDEN}]", ADAPTED) if name in ADAPTERS else SMALL
    words = f"--config {command} {small} {more} --trainer.max_rounds {len(kinds)}"
    code, said = run("fit", [*words.split(), "--trainer.check_val_every_n_epoch", str(len(kinds))]), capsys.readouterr()
    assert (code, said.err) == (0, "")
    (folder,) = tmp_path.glob(f"runs/{name}/*")
    check_documented(folder, rounds=len(kinds), evaluations=1, clients=CLIENTS)
    config = yaml.safe_load((folder / "config.yaml").read_text())
    with (folder / "metrics.csv").open() as file:
        metrics = [{key: float(value) for key, value in row.items() if value} for row in csv.DictReader(file)]
    assert {re.sub(r"server_\d", "server_0", column) for row in metrics for column in row} <= COLUMNS
    *_, models_cell, parts_cell, kept_cell = ROWS[command]
    exchanged = numbers_of_a_model(config)
    if name in ADAPTERS:
        exchanged = sum(FACTORS[factor] for factor in ADAPTERS[name]) + HIDDEN * 10 + 10
    assert len(kept_row_sets(config)) == sum(map(int, re.findall(r"(\d+) model", kept_cell)))
    for index, (row, kind) in enumerate(zip(metrics, kinds, strict=True)):
        values = symbols(config, folder, metrics, index)
        bound, formula, _ = formulas(models_cell)[kind]
        models = eval(formula, {"min": min}, values)
        assert row["models_received"] == (pytest.approx(models) if not bound else at_most(models)), (index, formula)
        parts, size = 0.0, 0
        if "former models" in parts_cell:
            sizes = {**SIZES, "former models": exchanged}
            several = [(eval(number, {"min": min}, values), sizes[what]) for _, number, what in formulas(parts_cell)]
            parts = sum(number for number, _ in several)
            size = sum(number * numbers for number, numbers in several) / parts if parts else 0
        elif parts_cell != "–":
            stages = formulas(parts_cell)
            bound, formula, _ = stages[kind if len(stages) > 1 else 0]
            (what,) = {what for *_, what in stages if what}
            parts, size = eval(formula, {"min": min}, values), SIZES[what]
            if bound:
                assert row["proxies_received"] == at_most(parts)
                parts = row["proxies_received"]
        assert row["proxies_received"] == pytest.approx(parts)
        expected = 4 * (row["models_received"] * exchanged + parts * size)
        assert row["bytes_received"] == pytest.approx(expected + bytes_of_messages(config, folder, row, index))


def numbers_of_a_model(config):
    """Count the numbers of a message that is called a model, in units of 4 bytes."""
    if config["model"]["shared"] == ["features.*"]:
        return BODY
    if config["aggregation"]["class_path"].endswith(".MaskedAverage"):
        weights = [64 * HIDDEN, HIDDEN * 10]
        objective = DisPFL(**config["objective"]["init_args"])
        densities = erk_densities([(HIDDEN, 64), (10, HIDDEN)], objective.density)
        kept = sum(round(d * n) for d, n in zip(densities, weights, strict=True))
        return kept + HIDDEN + 10 + -(-sum(weights) // 8) / 4
    if config["outgoing"] is not None:
        (choco,) = (spec["init_args"] for spec in outgoing_of(config))
        return 2 * round(choco["share"] * MODEL)
    return MODEL


def outgoing_of(config):
    """List the outgoing policies of a config, which may name one without a list."""
    outgoing = config["outgoing"] or []
    return [outgoing] if isinstance(outgoing, dict) else outgoing


def bytes_of_messages(config, folder, row, index):
    """Count the bytes of other messages than models and their parts: signatures, push-sum's numbers, prototypes."""
    if config["selection"]["class_path"].endswith(".PACFL"):
        assert ("messages_received" in row) is (index == 0)
        if index:
            return 0
        assert row["messages_received"] == CLIENTS - 1
        split, data = np.load(folder / "split.npz"), load_digits()
        vectors = config["selection"]["init_args"]["vectors"]
        ends, numbers = split["train_offsets"], 0
        for first, stop in itertools.pairwise(ends):
            labels = data.target[split["train_indices"][first:stop]]
            numbers += 64 * np.minimum(np.bincount(labels), vectors).sum()
        return 4 * numbers * (CLIENTS - 1) / CLIENTS
    if config["aggregation"]["class_path"].endswith(".PushSum"):
        assert row["messages_received"] == row["models_received"]
        return 4 * row["messages_received"]
    if config["aggregation"]["class_path"].endswith(".PrototypeAverage"):
        split, data = np.load(folder / "split.npz"), load_digits()
        held = [
            len(set(data.target[split["train_indices"][first:stop]]))
            for first, stop in itertools.pairwise(split["train_offsets"])
        ]
        upload = 4 * (HIDDEN + 1) * sum(held) / CLIENTS
        if config["topology"] == "complete":
            assert row["messages_received"] == CLIENTS - 1
            return (CLIENTS - 1) * upload
        assert row["messages_received"] == (2 if index else 1)
        return upload + (4 * HIDDEN * len(set(data.target)) if index else 0)
    if config["aggregation"].get("init_args", {}).get("contribution") == "printed":
        normalised = config["threshold"]["init_args"].get("normalise", False)
        assert row["messages_received"] == row["neighbours"] + (CLIENTS - 1) * normalised
        return 4 * row["messages_received"]
    assert "messages_received" not in row
    return 0


def symbols(config, folder, metrics, index):
    """Return the values of the letters under the table in a round, as means over clients."""
    topology = load_topology(config["topology"], CLIENTS, config["seed_everything"])
    up = metrics[index]["active"]
    linked = float(topology.linked(index).mask[:CLIENTS, :CLIENTS].double().sum()) / CLIENTS
    assert up == CLIENTS or topology.num_servers or linked == CLIENTS - 1 or config["clock"]
    clusters = np.load(folder / "split.npz")["clusters"]
    return {
        **config["selection"].get("init_args", {}),
        "steps": config["aggregation"].get("init_args", {}).get("steps"),
        "m": CLIENTS,
        "c": topology.num_servers,
        "up": up,
        "n": linked if up == CLIENTS else up * (up - 1) / CLIENTS,  # dropped clients neither receive nor send
        "chosen": metrics[index]["neighbours"],
        "first": metrics[0]["neighbours"],
        "found": metrics[index]["neighbours"],
        "listed": metrics[max(index - 1, 0)].get("matched"),
        "mates": sum(int((clusters == c).sum()) - 1 for c in clusters) / CLIENTS if len(clusters) else None,
    }


def kept_row_sets(config):
    """Return the row sets that the policies and the objective keep in the bank from round to round."""
    kept = set()
    for spec in outgoing_of(config):
        kept |= set(class_of("outgoing", spec["class_path"]).row_sets)
    for group in {*FAMILIES, "objective"} - set(LISTS):
        spec = config.get(group)
        if spec is None or (group == "substitution" and config.get("dropout") is None):
            continue  # without dropouts there are no substitutes
        kept |= set(class_of(group, spec["class_path"])(**spec.get("init_args") or {}).row_sets)
    return kept


class at_most:
    """Equal to whatever is not above a bound, nor 0."""

    def __init__(self, bound):
        self.bound = bound

    def __eq__(self, other):
        return 0 < other <= self.bound + 1e-9


NORMED = """
from torch import nn


class Normed(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
"""
ROW_OF = {name: place for place, row in enumerate(MESSAGES[1:]) for name in re.findall(r"`(\w+)`", row[0])}
ATTACK = ["--outgoing.fraction 0.3"]
OPTIONS = {
    **dict.fromkeys(("SignFlip", "NoiseAttack", "ALittleIsEnough"), ATTACK),
    "QSGD": ["", "--outgoing.bits 3 --outgoing.bucket 100"],
    "CHOCO": ["--outgoing.share 0.3", "--outgoing.share null --outgoing.bits 5"],
    "TopK": ["--outgoing.share 0.1", "--outgoing.share 0.7"],
}
"""Of outgoing policies that are tried with other options than their own defaults."""

SENT = [("", 0)] + [
    (f"{name} {options}".strip(), ROW_OF[name])
    for name in shipped_classes("outgoing")
    for options in OPTIONS.get(name, [""])
]


def test_every_outgoing_policy_has_a_row_of_message_costs():
    named = re.findall(r"`([A-Z]\w*)`", " ".join(row[0] for row in MESSAGES[1:]))
    assert sorted(named) == sorted(shipped_classes("outgoing"))


@pytest.mark.parametrize(("sent", "place"), in_turn(SENT, [1, 2]), ids=str)
def test_a_message_costs_what_the_table_says(sent, place, tmp_path, monkeypatch, capsys):
    """Sent to neighbours (1), and to and by a server (2)."""
    outgoing, row = sent
    monkeypatch.chdir(tmp_path)
    (tmp_path / "normed_network.py").write_text(NORMED)
    small = SMALL.replace(f"--model.network.hidden [{HIDDEN}]", "--model.network normed_network.Normed")
    config = ["gossip --selection.k 3", "fedavg"][place - 1]
    if outgoing.startswith("CHOCO"):
        if place == 2:
            assert MESSAGES[1:][row][place] == "–"
            return
        config = 'choco --topology {"generator":"random_regular_graph","args":{"d":3}}'
    words = f"--config {config} {small} --trainer.max_rounds 1 {outgoing and '--outgoing'} {outgoing}"
    assert run("fit", words.split()) == 0, capsys.readouterr()
    (folder,) = tmp_path.glob("runs/*/*")
    with (folder / "metrics.csv").open() as file:
        (metrics,) = csv.DictReader(file)
    given = {key: float(value) for key, value in re.findall(r"--outgoing\.(\w+) ([\d.]+)", outgoing)}
    usual = {"share": 1.0, "bits": 8, "bucket": 512}
    values = {**usual, **given, "p": MODEL + 2 * HIDDEN, "b": 2 * HIDDEN, "min": min, "max": max, "round": round}
    variant = int(outgoing.startswith("CHOCO") and "bits" in given)
    message = eval(re.findall(r"`([^`]+)`", MESSAGES[1:][row][place])[2 * variant], {}, values)
    whole = eval(MESSAGES[1:][0][1].strip("`"), {}, values)
    expected = 3 * message if place == 1 else whole + message
    assert float(metrics["bytes_received"]) == pytest.approx(expected)


def test_readme_names_every_config_and_links_the_cost_table():
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    section = readme.partition("## Methods")[2].partition("\n## ")[0]
    named = set(re.findall(r"[a-z_0-9]+", " ".join(re.findall(r"`([^`]*)`", section))))
    assert set(shipped("configs")) <= named
    assert "docs/methods.md" in section
