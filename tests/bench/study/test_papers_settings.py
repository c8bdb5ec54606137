"""Shipped studies have the settings of their papers, or their note says which ones differ and what is published."""

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from dfl_lightning.bench.study.file.settings import words_of
from dfl_lightning.bench.study.file.study_file import KIND, read_study_file
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.cli.arguments import Settings, split, with_configs
from dfl_lightning.utils.storage.shipped_files import shipped

WRITTEN = yaml.safe_load(Path(__file__).with_name("papers_settings.yaml").read_text(encoding="utf-8"))
PAPERS = ("afind_", "panm_", "fdms_", "dpfl_")
OFFICIAL_TEST = 10_000
"""Test images of MNIST, FashionMNIST and CIFAR-10."""

NONE_HERE = object()
"""A setting that a cell cannot have, such as the candidates of a method without any."""


LIBRARIES = ("dfl_lightning.", "torch.")


def plain(value):
    """Read texts as YAML, shorten class paths, and put a class's options next to its class."""
    if isinstance(value, list):
        return list(map(plain, value))
    if not isinstance(value, dict):
        read = yaml.safe_load(value) if isinstance(value, str) else value
        return read.rpartition(".")[2] if isinstance(read, str) and read.startswith(LIBRARIES) else read
    return {key: plain(inner) for key, inner in {**value, **value.get("init_args", {})}.items() if key != "init_args"}


def config_of(study, row, column):
    return plain(Settings(with_configs(split(words_of(study, row, column)))).config)


def class_of(value):
    return value.get("class_path") if isinstance(value, dict) else value


def option(value, name, default=None):
    return value.get(name, default) if isinstance(value, dict) else default


def partition(config):
    """Describe a partition in a few words: its class, and what makes it."""
    found = config["data"].get("partition")
    if not isinstance(found, dict):
        return found
    args = {
        "Dirichlet": lambda: f"{found['alpha']}",
        "Pathological": lambda: f"{found['classes']}",
        "RotatedClusters": lambda: ", ".join(map(str, found["degrees"])),
        "SwappedLabelClusters": lambda: ", ".join(f"{a}-{b}" for ((a, b),) in found["swaps"]),
        "LabelClusters": lambda: f"{found.get('clusters')}",
        "ByWriter": lambda: "with missing classes" * bool(found.get("classes")),
        "Shards": lambda: f"{found['per_client']}, {found['shards']}",
    }.get(found["class_path"], str)
    return f"{found['class_path']} {args()}".strip()


def images(config):
    per_class = option(config["data"].get("partition"), "per_class")
    return config["data"].get("samples_per_client") if per_class is None else 10 * per_class


def test_images(config):
    """Divide the official test images among a cluster's clients, as clusters of all classes do."""
    found = config["data"]["partition"]
    clusters = len(found.get("degrees") or found["swaps"])
    return OFFICIAL_TEST * clusters // config["data"]["num_clients"]


test_images.__test__ = False


def topology(config):
    found = config["topology"]
    servers = option(option(found, "args"), "servers")
    return f"{servers} servers" if servers else found


def neighbours(config):
    chosen = class_of(config["selection"])
    if chosen == "AFIND" and config.get("threshold"):
        return "adaptive"
    return NONE_HERE if chosen == "DPFL" else option(config["selection"], "k")


def candidates(config):
    return option(config["selection"], {"PANM": "l", "PENS": "sampled"}.get(class_of(config["selection"])), NONE_HERE)


def drawn(config):
    if not option(config["selection"], "redraw", True):
        return "once"
    within = option(config["selection"], "within")
    return f"each round within the {within}" if within else "each round"


def budget(config):
    found = option(config["selection"], "budget")
    return found if found in (None, "all") else f"{round(found / config['data']['num_clients'], 3)} N"


def of_optimizer(name):
    return lambda config: config["model"]["optimizer"].get(name)


def of(section, name, default=None, classes=()):
    """Read an option of a section's class; with classes, those of the others cannot have it."""

    def read(config):
        found = config.get(section)
        return NONE_HERE if classes and class_of(found) not in classes else option(found, name, default)

    return read


ACTUAL = {
    "data set": lambda c: class_of(c["data"]),
    "clients": lambda c: c["data"].get("num_clients"),
    "rounds": lambda c: c["trainer"].get("max_rounds"),
    "local epochs": lambda c: c["model"].get("local_epochs"),
    "initial epochs": of("selection", "initial_epochs", classes=["DPFL"]),
    "batch size": lambda c: c["model"].get("batch_size"),
    "optimizer": lambda c: class_of(c["model"]["optimizer"]),
    "learning rate": of_optimizer("lr"),
    "momentum": of_optimizer("momentum"),
    "weight decay": of_optimizer("weight_decay"),
    "decay of the rate": lambda c: (c["model"].get("lr_scheduler") or {}).get("gamma"),
    "fine-tuning": lambda c: c["model"].get("finetune_epochs"),
    "validation": lambda c: c["data"].get("val_fraction"),
    "network": lambda c: class_of(c["model"]["network"]),
    "images of a client": images,
    "classes": lambda c: len(c["data"].get("classes") or ()) or None,
    "test images": test_images,
    "topology": topology,
    "neighbours": neighbours,
    "candidates": candidates,
    "drawn": drawn,
    "stage one": of("selection", "stage_one", classes=["PANM", "PENS"]),
    "metric": of("selection", "metric"),
    "tau": of("selection", "tau"),
    "alpha": lambda c: option(c.get("objective") or c["selection"], "alpha", NONE_HERE),
    "noise": of("selection", "proxy_noise"),
    "threshold": lambda c: option(c.get("threshold") or c["selection"], "tau" if c.get("threshold") else "threshold"),
    "global learning rate": of("aggregation", "server_step"),
    "dropout": of("dropout", "rate", 0),
    "substitution": lambda c: class_of(c.get("substitution")),
    "threshold scale": of("substitution", "theta_scale"),
    "mu": of("objective", "mu"),
    "lambda": of("objective", "lam"),
    "nearest": of("prediction", "k"),
    "weight": of("prediction", "weight"),
    "budget": budget,
    "period": of("selection", "period", 1, classes=["DPFL"]),
    "repeated BGGC": of("selection", "repeat_bggc", False, classes=["DPFL"]),
    "malicious choose": of("selection", "adversaries_choose"),
    "flipped": lambda c: option(c["data"]["partition"], "fraction"),
    "partition": partition,
}


def published_settings(name, row, column):
    """Merge the settings that the paper has for a cell of its table."""
    about = WRITTEN["studies"][name]
    paper = about["paper"]
    layers = [
        *(WRITTEN["papers"][paper], about.get("settings"), about.get("columns", {}).get(column)),
        *(WRITTEN["rows"][paper].get(row), about.get("rows", {}).get(row)),
        about.get("cells", {}).get(row, {}).get(column),
    ]
    merged = {}
    for layer in layers:
        merged |= layer or {}
    return {setting: said for setting, said in merged.items() if said is not None}


def differences(study):
    """Find each (setting, published value) in which some cell of the study differs from its paper."""
    found = {}
    for row, column in study.pairs():
        config = config_of(study, row, column)
        for setting, (value, place) in published_settings(study.name, row, column).items():
            assert place, setting
            here = len(study.seeds) if setting == "repetitions" else ACTUAL[setting](config)
            if here is not NONE_HERE and here != value:
                found[setting, str(value)] = f"{here} ({row}, {column})"
    return found


def test_every_study_of_a_paper_is_compared():
    assert set(WRITTEN["studies"]) == {name for name in shipped(KIND) if name.startswith(PAPERS)}


@pytest.mark.parametrize("name", WRITTEN["studies"])
def test_note_names_each_difference_with_the_published_value(name):
    study = read_study_file(name)
    named = study.note.partition("published: ")[2].partition(";")[0]
    assert sorted(filter(None, named.split(" / "))) == sorted(map(" ".join, differences(study))), differences(study)


def test_written_rows_and_columns_are_those_of_a_study():
    of_paper = {paper: set() for paper in WRITTEN["papers"]}
    for name, about in WRITTEN["studies"].items():
        study = read_study_file(name)
        of_paper[about["paper"]] |= set(study.rows)
        assert set(about.get("rows", {})) <= set(study.rows), name
        assert set(about.get("cells", {})) <= set(study.rows), name
    for paper, rows in WRITTEN["rows"].items():
        assert set(rows) <= of_paper[paper], paper


def with_row(study, row, **options):
    return replace(study, rows={**study.rows, row: {**study.rows[row], **options}})


@pytest.mark.parametrize(
    ("name", "row", "options", "found"),
    [
        ("dpfl_table2", "DPFL", {"model.batch_size": 32}, ("batch size", "16")),
        ("panm_table2", "Random", {"data.num_clients": 150}, ("clients", "200")),
        ("panm_table2", "PENS", {"selection.stage_one": 50}, ("stage one", "100")),
        ("panm_table2", "PANMLoss", {"selection": {"class_path": "PANM", "init_args": {"l": 5}}}, ("candidates", "10")),
        ("panm_table6", "PANMGrad k = 2", {"selection.k": 3}, ("neighbours", "2")),
        ("panm_table6", "PANMGrad k = 2", {"selection.tau": 5}, ("tau", "10")),
        ("dpfl_table4", "P = 5", {"selection.period": 6}, ("period", "5")),
        ("dpfl_table1", "FedProx", {"objective": {"class_path": "FedProx", "init_args": {"mu": 1.0}}}, ("mu", "0.1")),
        ("dpfl_table3", "5 epochs", {"selection.budget": 30}, ("budget", "0.05 N")),
        ("fdms_figure4", "case 2", {"substitution.theta_scale": 0.1}, ("threshold scale", "0.5")),
        ("fdms_figure1", "FL-FDMS", {"dropout.rate": 0.4}, ("dropout", "0.7")),
        ("afind_figure8", "tau = 0.8", {"threshold.tau": 0.7}, ("threshold", "0.8")),
    ],
)
def test_a_changed_setting_of_a_row_is_found(name, row, options, found):
    study = read_study_file(name)
    assert found not in differences(study)
    assert found in differences(with_row(study, row, **options))


def test_a_changed_cell_is_found():
    study = read_study_file("dpfl_table1")
    row = {**study.cells["DPFL 0.1 N"], "CINIC10 Dir(0.1)": {"trainer.max_rounds": 49, "selection.budget": 30}}
    changed = replace(study, cells={**study.cells, "DPFL 0.1 N": row})
    assert set(differences(changed)) - set(differences(study)) == {("budget", "0.1 N")}


def test_a_note_is_no_part_of_a_cell(tmp_path):
    study = read_study_file("afind_figure2")
    plans = [make_plan(replace(study, note=note), tmp_path).cells for note in (study.note, "another")]
    assert [cell.folder for cell in plans[0].values()] == [cell.folder for cell in plans[1].values()]
    assert [cell.config for cell in plans[0].values()] == [cell.config for cell in plans[1].values()]
