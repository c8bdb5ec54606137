"""Lines on a terminal: between words, with a hanging indent, without losing anything."""

import io

import pytest

from dfl_lightning.cli.help.screens import help_page, list_page
from dfl_lightning.utils.wrapping import for_terminal, wrapped


class Terminal(io.StringIO):
    """Stream that is a terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("text", [list_page(), help_page("fit")], ids=["list", "help"])
def test_screens_are_broken_between_words_only(text, width):
    shown = wrapped(text, width)
    assert shown.split() == text.split()
    longest = max(map(len, text.split()))
    assert max(map(len, shown.splitlines())) <= max(width, 23 + longest)


def test_a_line_continues_below_its_description():
    lines = wrapped(list_page(), 80).splitlines()
    at = next(at for at, line in enumerate(lines) if line.startswith("  afind "))
    assert lines[at + 1].startswith(" " * 23)
    assert lines[at + 1][23] != " "


def test_a_sentence_is_indented_and_paths_stay_whole():
    path = "/a/long/path/of/many-words/" * 4
    lines = wrapped(
        f"dfl-fit: {path}: no such folder, and some more words that make this line too long", 80
    ).splitlines()
    assert path.rstrip("/") in "".join(lines)
    assert any(path in line for line in lines)
    assert all(line.startswith("  ") for line in lines[1:])


def test_only_terminals_get_broken_lines(monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    text = "word " * 30
    assert for_terminal(text, io.StringIO()) == text
    assert max(map(len, for_terminal(text, Terminal()).splitlines())) <= 50
