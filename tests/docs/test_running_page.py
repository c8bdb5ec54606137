"""docs/running.md: every command and every snippet on it runs."""

import importlib.util
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import yaml

from dfl_lightning.cli import command as cli
from dfl_lightning.cli.export_command import main as export

PAGE = (Path(__file__).parents[2] / "docs" / "running.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", PAGE, re.DOTALL)
COMMANDS = [
    re.sub(r"  +#.*", "", line)
    for language, block in BLOCKS
    for line in block.splitlines()
    if not language and re.match(r"dfl-\w+ ", line)
]
TINY = [*("--trainer.max_rounds", "2"), *("--data.num_clients", "6"), *("--model.local_epochs", "1")]
TINY += ["--trainer.accelerator", "cpu"]

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*number of training batches"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run folder, as the page's commands leave one."""
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PL_GLOBAL_SEED", "0")
        patch.setattr(sys, "path", list(sys.path))
        words = ["--data.val_fraction", "0.2", "--trainer.checkpoint_every", "1"]
        assert cli.run("fit", ["--config", "afind", *TINY, *words]) == 0
    (run,) = folder.glob("runs/afind/*")
    return run


@pytest.fixture
def run(finished, tmp_path, monkeypatch):
    """The run in an empty working folder, under the name that the page gives it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    monkeypatch.setattr(sys, "path", list(sys.path))
    (name,) = set(re.findall(r"runs/afind/[\d_-]+", PAGE))
    shutil.copytree(finished, tmp_path / name)
    return Path(name)


def typed(command, run):
    """Run a command of the page, made small: its exit code."""
    program, *words = shlex.split(command.replace("RUN", str(run)))
    if program == "dfl-export":
        return export(words)
    return cli.run(program.removeprefix("dfl-"), [*words[:2], *(TINY if words[0] == "--config" else []), *words[2:]])


def test_the_page_has_commands_of_all_kinds():
    assert len(COMMANDS) > 14
    assert {command.split()[0] for command in COMMANDS} == {"dfl-fit", "dfl-test", "dfl-validate", "dfl-export"}
    assert [sum(words in command for command in COMMANDS) for words in AFTER] == [1, 1, 1]


def fork_is_as_shown(run):
    (shown,) = (block for language, block in BLOCKS if language == "yaml")
    (fork,) = (folder for folder in Path("runs/afind").iterdir() if folder != run)
    config = yaml.safe_load((fork / "config.yaml").read_text())
    assert next(iter(config)) == "forked_from"
    assert {"forked_from": config["forked_from"]} == yaml.safe_load(shown)


def exported_model_loads(run):
    code = next(block for language, block in BLOCKS if language == "python" and "load_file" in block)
    scope: dict = {}
    exec(compile(code, "running.md", "exec"), scope)
    assert scope["scores"].shape == (5, 10)


def metric_has_its_columns(run):
    (folder,) = (folder for folder in Path("runs/afind").iterdir() if folder != run)
    header = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert "test_f1_score" in header
    assert "`val_f1_score` and `test_f1_score`" in PAGE


AFTER = {"--fork": fork_is_as_shown, "--to models": exported_model_loads, "F1Score": metric_has_its_columns}
"""What the page says of the commands with these words in them."""


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_runs_and_does_what_the_page_says(run, capsys, command):
    code = typed(command, run)
    out, err = capsys.readouterr()
    if "Wandb" in command and importlib.util.find_spec("wandb") is None:
        assert code == 2
        assert re.search(r"run: pip install -U 'wandb\b", err), err
        assert len(err.splitlines()) == 1
    else:
        assert (code, err) == (0, ""), out
    for words, check in AFTER.items():
        if words in command:
            check(run)


def test_the_trainer_and_the_module_take_the_same(run, capsys):
    code = next(block for language, block in BLOCKS if language == "python" and "EarlyStopping" in block)
    scope: dict = {}
    exec(compile(code, "running.md", "exec"), scope)
    assert scope["again"].run.path != scope["first"].run.path
    assert scope["again"].run.summary["forked_from"]["round"] == 2
