"""The shipped configs and topologies read like the method section of a paper, and say what they are."""

import pytest
import yaml

from dfl_lightning.cli.keys import KEYS
from dfl_lightning.utils.storage.shipped_files import shipped

CONFIGS = shipped("configs")


@pytest.mark.parametrize("name", CONFIGS)
def test_keys_are_in_the_order_of_a_method_section(name):
    keys = list(yaml.safe_load(CONFIGS[name].read_text()))
    assert keys == [key for key in KEYS if key in keys]
    assert {"seed_everything", "trainer", "model", "data", "topology", "selection", "aggregation"} <= set(keys)


@pytest.mark.parametrize("name", CONFIGS)
def test_first_line_describes_the_config_in_one_sentence(name):
    first = CONFIGS[name].read_text().splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert len(first) <= 140
    data = yaml.safe_load(CONFIGS[name].read_text())["data"]
    table = data["init_args"].get("table", "diabetes")
    of_tables = {"diabetes": "diabetes", "synthetic_labels": "synthetic", "flights": "flights"}
    named = {"Digits": "digits", "Vectors": of_tables[table], "Text": "Python's own library", "Series": "synthetic"}
    assert named[data["class_path"]] in first


@pytest.mark.parametrize("name", CONFIGS)
def test_classes_go_by_their_short_names(name):
    def class_names(value):
        if isinstance(value, dict):
            yield from ([value["class_path"]] if "class_path" in value else [])
            for inner in value.values():
                yield from class_names(inner)

    assert [word for word in class_names(yaml.safe_load(CONFIGS[name].read_text())) if "." in word] == []


def test_gossip_is_afind_with_other_policies():
    afind, gossip = (yaml.safe_load(CONFIGS[name].read_text()) for name in ("afind", "gossip"))
    for key in ("seed_everything", "trainer", "model", "data", "topology"):
        assert afind[key] == gossip[key]


@pytest.mark.parametrize("name", shipped("topologies"))
def test_topologies_carry_no_number_of_clients(name):
    file = shipped("topologies")[name]
    if file.suffix == ".yaml":
        assert "n" not in (yaml.safe_load(file.read_text()).get("args") or {})
        assert file.read_text().startswith("# ")


OF_ALL = {
    "local_epochs": 5,
    "batch_size": 16,
    "optimizer": {"class_path": "SGD", "init_args": {"lr": 0.05, "momentum": 0.9}},
    "finetune_epochs": 1,
}


@pytest.mark.parametrize("name", CONFIGS)
def test_training_is_the_common_one_or_the_head_explains(name):
    text = CONFIGS[name].read_text()
    model = yaml.safe_load(text)["model"]
    training = {key: value for key, value in model.items() if key in OF_ALL or key in ("local_steps", "lr_scheduler")}
    head = text.split("seed_everything")[0].splitlines()
    reasons = [line for line in head if line.startswith("# Training: ")]
    assert (training == OF_ALL) != bool(reasons)
    assert all(line.endswith(".") and len(line) <= 140 for line in reasons)
