"""`--GROUP.help`: classes, and options as they are typed."""

import pytest

from dfl_lightning import UserError, callbacks
from dfl_lightning.cli import command as cli
from dfl_lightning.cli.classes.registry import GROUPS, LIBRARY_GROUPS, NESTED_GROUPS, parameters_of, shipped_classes
from dfl_lightning.cli.help.options import (
    class_page,
    descriptions,
    group_page,
    options_page,
    section_page,
    topology_page,
)
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.utils.storage.shipped_files import shipped


@pytest.mark.parametrize("group", [*GROUPS, *NESTED_GROUPS])
def test_a_group_lists_its_classes(group):
    page = options_page([f"--{group}.help"])
    assert page == group_page(group)
    lines = page.splitlines()
    for name in shipped_classes(group):
        assert any(line.startswith(f"  {name} ") and len(line.split()) > 3 for line in lines), name
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("group", LIBRARY_GROUPS)
def test_a_group_of_a_library_names_what_there_is(group):
    page = options_page(["--config", "afind", f"--{group}.help"])
    assert "or your own by its import path" in " ".join(page.split())
    assert max(map(len, page.splitlines())) <= 80


@pytest.mark.parametrize("group", [*GROUPS, *NESTED_GROUPS, *LIBRARY_GROUPS])
def test_a_class_names_its_options_as_they_are_typed(group):
    for name, cls in shipped_classes(group).items():
        page = class_page(group, name)
        typed = [line.split()[0] for line in page.splitlines() if line.startswith("  --")]
        given = {"model.optimizer": 1, "model.lr_scheduler": 1}.get(group, 0)
        assert typed == [f"--{group}.{option}" for option in list(parameters_of(cls))[given:]], name
        assert page.startswith(f"--{group} {name}: ")


@pytest.mark.parametrize("group", [*GROUPS, *NESTED_GROUPS])
def test_every_option_of_ours_is_explained(group):
    for name in shipped_classes(group):
        lines = class_page(group, name).splitlines()
        for at, line in enumerate(lines):
            if line.startswith("  --"):
                assert lines[at + 1].startswith("      "), line
                explained = " ".join(after.strip() for after in lines[at + 1 : at + 6])
                assert len(explained.split()) > 2, line
        assert max(map(len, lines)) <= 80


def test_kind_meaning_and_default_of_an_option():
    lines = class_page("data.partition", "Dirichlet").splitlines()
    at = lines.index("  --data.partition.alpha number")
    assert "(default: " in " ".join(lines[at : at + 4])
    at = class_page("dropout", "Trace").splitlines().index("  --dropout.file text")
    assert "(required)" in class_page("dropout", "Trace")
    assert "  --selection.k whole number|all" in class_page("selection", "Gossip")
    assert at > 0


def test_options_of_trainer_and_model_are_theirs():
    page = section_page("trainer", DFLTrainer)
    assert options_page(["--trainer.help"]) == page
    for option in ("max_rounds", "checkpoint_every", "default_root_dir", "devices", "callbacks"):
        assert f"  --trainer.{option}" in page
    assert "  --trainer.topology" not in page
    assert "  --trainer.engine" not in page
    assert "log_every_n_steps" in page.split("Lightning's:")[1]
    assert "accumulate_grad_batches" not in page
    assert "  --model.local_epochs whole number" in options_page(["--model.help"])
    assert max(map(len, page.splitlines())) <= 80


def test_topologies_are_named():
    page = topology_page()
    assert options_page(["--topology.help"]) == page
    assert all(name in page for name in shipped("topologies"))


@pytest.mark.parametrize(
    "words",
    [["--selection.help", "AFIND"], ["--selection.help=AFIND"], ["--selection.help", "dfl_lightning.callbacks.AFIND"]],
)
def test_a_class_is_named_in_every_form(words):
    assert "--selection.nu number" in options_page(["--config", "afind", *words, "--explain"])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--selektion.help"], "there is no page --selektion.help; did you mean 'selection'?"),
        (["--selection.help", "Gosip"], "did you mean 'Gossip'"),
        (["--selection.help", "Uniform"], "is an aggregation"),
    ],
)
def test_unknown_help_pages_are_refused(words, sentence):
    with pytest.raises(UserError) as caught:
        options_page(words)
    assert sentence in str(caught.value)


def test_arguments_of_classes_are_left_to_the_parser(capsys):
    assert options_page(["--data.dataset.help", "torchvision.datasets.FakeData"]) is None
    assert options_page(["--explain"]) is None
    assert cli.run("fit", ["--threshold.help"]) == 0
    assert "AdaptiveThreshold" in capsys.readouterr().out


def test_argument_descriptions_of_base_classes_are_found():
    assert set(parameters_of(callbacks.AFIND)) <= set(descriptions(callbacks.AFIND))
    assert descriptions(test_topologies_are_named) == {}
