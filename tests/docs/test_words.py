"""One word for one thing: words that readers must not have to learn, and class names that mean two things."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from pathlib import Path

import pytest

import dfl_lightning

PACKAGE = Path(dfl_lightning.__file__).parent
ROOT = PACKAGE.parent
BANNED = {
    r"\b(hears?|hear|overhears?) (?!of\b)": "receives from; in-neighbours",
    r"\bwho hears whom\b": "the communication graph",
    r"\b(nobody|somebody|everybody)\b": "no client, another process, all clients",
    r"\bthe door\b|has_a_door|through the door": "messages; what clients send",
    r"\bguests?\b": "remote rows",
    r"\bteams?\b": "mixing groups",
    r"take_up|taken_up|\btake up (callbacks|the rows|decisions|a run)": "restore, read, resume",
    r"\bstand-ins?\b": "substitutes",
    r"\bnot at hand\b": "missing data",
    r"\bhidden clusters?\b": "ground-truth clusters",
    r"_promise": "_check",
    r"\bsamples[_ ]meet\b": "samples interact",
}
"""Patterns, in any case, and what to say instead; `docs/glossary.md` has the words that we use."""


def texts():
    for folder in (PACKAGE, ROOT / "docs", ROOT / "scripts", ROOT / "configs", ROOT / "topologies"):
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".py", ".md", ".yaml", ".js"):
                yield file
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


@pytest.mark.parametrize("pattern", BANNED)
def test_words_that_a_reader_must_not_have_to_learn(pattern):
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file in texts()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE)
    ]
    assert not found, f"say: {BANNED[pattern]}\n" + "\n".join(found)


def test_no_two_classes_have_one_name():
    names = Counter(
        node.name
        for file in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()


VERBS = (
    "Add Ask Augment Average Begin Bring Build Call Change Charge Check Choose Compare Compute Count Crop Cut "
    "Describe Divide Do Download Draw Drop Evaluate Exchange Fetch Find Follow Give Go Join Judge Keep Lay Let Link "
    "Load Log Look Make Measure Mix Multiply Play Prepare Project Propose Put Read Refer Refuse Remark Remember "
    "Replace Require Restore Return Rotate Run Save Say Scale Score See Select Send Set Shorten Store Sum Take Tell "
    "Time Train Turn Update Warn Weigh Write"
)
"""First words of docstrings; a verb that is missing is added here."""


def documented():
    """Names and docstrings of exported functions, and of the public methods of exported classes."""
    names = [package.name for package in pkgutil.walk_packages(dfl_lightning.__path__, "dfl_lightning.")]
    for room in map(importlib.import_module, ["dfl_lightning", *names]):
        for name in getattr(room, "__all__", ()):
            value = getattr(room, name)
            own = getattr(value, "__module__", None) or ""
            if own.startswith("dfl_lightning") and inspect.isfunction(value):
                yield f"{own}.{name}", value.__doc__
            elif own.startswith("dfl_lightning") and inspect.isclass(value):
                for place, method in vars(value).items():
                    function = getattr(method, "__func__", method)
                    if not place.startswith("_") and inspect.isfunction(function):
                        yield f"{own}.{name}.{place}", function.__doc__


def test_docstrings_of_exported_functions_begin_with_a_verb():
    others = {
        name: text
        for name, text in documented()
        if text and re.split(r"[\s:;,.]", text.strip())[0] not in VERBS.split()
    }
    assert not others, "\n".join(f"{name}: {text.splitlines()[0]}" for name, text in others.items())
