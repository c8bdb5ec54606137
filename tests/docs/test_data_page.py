"""The page on data: its commands name things that exist, and its Python runs."""

import re
from pathlib import Path

import pytest

from dfl_lightning.cli.classes.registry import shipped_classes
from dfl_lightning.cli.command import run

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^dfl-fit (.*)$", PAGE, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_resolved_config_of_each_command_resolves_to_itself(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert run("fit", [*command.split(), "--print_config"]) == 0
    resolved = capsys.readouterr().out
    (tmp_path / "again.yaml").write_text(resolved)
    assert run("fit", ["--config", "again.yaml", "--print_config"]) == 0
    assert capsys.readouterr().out == resolved


def test_commands_cover_files_partitions_and_attacks():
    text = " ".join(COMMANDS)
    for name in ("FEMNIST", "CINIC10", "MNIST --data.partition ByWriter", "FlippedLabels", "Shards"):
        assert name in text


@pytest.mark.parametrize("group", ["data", "data.partition"])
def test_every_data_set_and_every_partition_is_on_the_page(group):
    for name in shipped_classes(group):
        assert f"`{name}" in PAGE, name
