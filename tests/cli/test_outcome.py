"""Exit codes and sentences of the commands that train nothing."""

import pytest

from dfl_lightning.bench.report import command as report
from dfl_lightning.bench.study import command as study
from dfl_lightning.cli.exports import export_command
from dfl_lightning.cli.outcome import end
from dfl_lightning.utils.errors import UserError

COMMANDS = {"dfl-export": export_command.main, "dfl-report": report.main, "dfl-study": study.main}


def raising(error):
    def work():
        raise error

    return work


OUTCOMES = {
    "a mistake": (UserError("no such thing"), 2, "dfl-x: no such thing"),
    "a file": (PermissionError(13, "Permission denied", "a.txt"), 2, "dfl-x: a.txt: Permission denied"),
    "Ctrl-C": (KeyboardInterrupt(), 130, "dfl-x: stopped at once"),
    "a bug": (ZeroDivisionError("by\nzero"), 1, "dfl-x: a bug of dfl_lightning: ZeroDivisionError: by zero"),
}


@pytest.mark.parametrize("name", OUTCOMES)
def test_errors_end_in_one_sentence_and_an_exit_code(name, capsys, monkeypatch):
    monkeypatch.delenv("DFL_DEBUG", raising=False)
    error, code, sentence = OUTCOMES[name]
    assert end("dfl-x", raising(error)) == code
    said = capsys.readouterr()
    assert said.err.startswith(sentence)
    assert said.err.count("\n") == 1
    assert said.out == ""


def test_exit_code_of_the_command_is_kept():
    assert end("dfl-x", lambda: 7) == 7


@pytest.mark.parametrize("error", [UserError("no such thing"), ZeroDivisionError("by zero")])
def test_debug_mode_raises_the_error(error, monkeypatch):
    monkeypatch.setenv("DFL_DEBUG", "1")
    with pytest.raises(type(error)):
        end("dfl-x", raising(error))


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_options_are_refused_in_one_sentence(command, capsys, monkeypatch):
    monkeypatch.delenv("DFL_DEBUG", raising=False)
    assert COMMANDS[command](["--no-such-option"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"{command}: ")
    assert said.rstrip().endswith(f"{command} --help shows what it takes")
    assert said.count("\n") == 1


def test_a_misspelt_command_gets_a_suggestion(capsys, monkeypatch):
    monkeypatch.delenv("DFL_DEBUG", raising=False)
    assert study.main(["tabel", "x"]) == 2
    said = capsys.readouterr().err
    assert "invalid choice: 'tabel'; did you mean 'table'? (choose from" in said
