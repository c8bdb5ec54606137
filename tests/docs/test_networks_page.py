"""The table of docs/networks.md against the classes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dfl_lightning import models
from dfl_lightning.cli.classes.registry import shipped_classes

PAGE = (Path(__file__).parents[2] / "docs" / "networks.md").read_text(encoding="utf-8")
CELLS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("| ")]
CELLS = [row for row in CELLS if len(row) == 5]


def rows() -> list[tuple[str, tuple[int, ...], int, int]]:
    """Name (that of the row above where it is left out), input shape, classes, parameters."""
    found: list[tuple[str, tuple[int, ...], int, int]] = []
    for name, _, _, numbers, parameters in CELLS[1:]:
        shape, classes = numbers.split(", ")
        name = name.strip("`") or found[-1][0]
        found.append((name, tuple(map(int, shape.split("x"))), int(classes), int(parameters.replace(",", ""))))
    return found


def test_every_shipped_network_is_on_the_page():
    with_sections = {name for name in ("HuggingFace", "LoRA") if f"models.{name}" in PAGE}  # of the user's sizes
    assert {name for name, *_ in rows()} | with_sections == set(shipped_classes("model.network"))


@pytest.mark.parametrize(("name", "shape", "classes", "parameters"), rows())
def test_the_page_counts_the_parameters_right(name, shape, classes, parameters):
    network = getattr(models, name)(input_shape=shape, num_classes=classes)
    assert sum(p.numel() for p in network.parameters()) == parameters


def test_the_options_of_the_page_are_the_defaults():
    (hidden,) = re.findall(r"`hidden: (\[.*?\])`", PAGE)
    assert str(models.MLP().hidden) == hidden
    (groups,) = re.findall(r"`groups: (\d+)`", PAGE)
    assert (models.ResNet18().norm, models.ResNet18().groups) == ("group", int(groups))
