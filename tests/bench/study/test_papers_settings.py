"""Shipped studies have the settings of their papers, or their note says which ones differ and what is published."""

from pathlib import Path

import pytest
import yaml

from dfl_lightning.bench.study.file.study_file import KIND
from dfl_lightning.utils.storage.shipped_files import shipped

WRITTEN = yaml.safe_load(Path(__file__).with_name("papers_settings.yaml").read_text(encoding="utf-8"))
PAPERS = ("afind_", "panm_", "fdms_", "dpfl_")


def merged(config, changes):
    """Merge settings as a study's words change a config; options of a class are found without `init_args`."""
    for key, value in changes.items():
        *path, last = key.split(".")
        inside = config
        for name in path:
            inside = inside.setdefault(name, {})
        inside[last] = with_class(inside.get(last), value)
    return config


def with_class(before, value):
    if isinstance(value, str) and last_is_class(before):
        value = {"class_path": value}
    if not isinstance(value, dict):
        return value
    arguments = value.get("init_args") or {}
    plain = {key: inner for key, inner in value.items() if key != "init_args"}
    kept = before if isinstance(before, dict) else {}
    return merged(dict(kept), {**plain, **arguments})


def last_is_class(before):
    return isinstance(before, dict) and "class_path" in before


def class_of(value):
    return value.get("class_path") if isinstance(value, dict) else value


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
        "Shards": lambda: f"{found['per_client']}, {found['shards']}",
    }.get(found["class_path"], str)
    return f"{found['class_path']} {args()}".strip()


def images(config):
    per_class = (config["data"].get("partition") or {}).get("per_class")
    return config["data"].get("samples_per_client") if per_class is None else 10 * per_class


def of_optimizer(name):
    return lambda config: config["model"]["optimizer"].get(name)


ACTUAL = {
    "data set": lambda c: class_of(c["data"]),
    "clients": lambda c: c["data"].get("num_clients"),
    "rounds": lambda c: c["trainer"].get("max_rounds"),
    "local epochs": lambda c: c["model"].get("local_epochs"),
    "initial epochs": lambda c: c["selection"].get("initial_epochs"),
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
    "neighbours": lambda c: c["selection"].get("k"),
    "global learning rate": lambda c: c["aggregation"].get("server_step"),
    "partition": partition,
}


def differences(content, name):
    """Find each (setting, published value) in which some column of the study differs from its paper."""
    about = WRITTEN["studies"][name]
    config = content["base"].get("config")
    base = {} if config is None else yaml.safe_load(Path(shipped("configs")[config]).read_text(encoding="utf-8"))
    found = {}
    for column, changes in content["columns"].items():
        settings = {**WRITTEN["papers"][about["paper"]], **(about.get("settings") or {})}
        settings |= (about.get("columns") or {}).get(column, {})
        actual = merged(
            merged(merged({}, base), {k: v for k, v in content["base"].items() if k != "config"}), changes or {}
        )
        for setting, said in settings.items():
            if said is None:
                continue
            value, place = said
            assert place, setting
            here = len(content["seeds"]) if setting == "repetitions" else ACTUAL[setting](actual)
            if here != value:
                found[setting, str(value)] = here
    return found


def study(name):
    return yaml.safe_load(Path(shipped(KIND)[name]).read_text(encoding="utf-8"))


def test_every_study_of_a_paper_is_compared():
    assert set(WRITTEN["studies"]) == {name for name in shipped(KIND) if name.startswith(PAPERS)}


@pytest.mark.parametrize("name", WRITTEN["studies"])
def test_note_names_each_difference_with_the_published_value(name):
    content = study(name)
    published = content.get("note", "").partition("published: ")[2]
    for (setting, value), here in differences(content, name).items():
        assert f"{setting} {value}" in published, (
            f"here {here}; add to the note, after 'published: ', {setting} {value}"
        )


def test_note_does_not_name_settings_as_published():
    for name in WRITTEN["studies"]:
        content = study(name)
        named = content.get("note", "").partition("published: ")[2].partition(";")[0]
        entries = {f"{setting} {value}" for setting, value in differences(content, name)}
        assert set(filter(None, named.split(" / "))) == entries, name


def test_a_changed_setting_is_found():
    content = study("dpfl_table2")
    assert ("batch size", "16") not in differences(content, "dpfl_table2")
    content["base"]["model"]["batch_size"] = 32
    assert differences(content, "dpfl_table2")["batch size", "16"] == 32
    content = study("panm_table2")
    content["columns"]["MNIST"]["data"]["init_args"]["num_clients"] = 100
    assert differences(content, "panm_table2")["clients", "200"] == 100
