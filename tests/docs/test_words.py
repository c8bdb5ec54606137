"""One word for one thing: words that readers must not have to learn, and class names that mean two things."""

import ast
import functools
import importlib
import inspect
import pkgutil
import re
from collections import Counter
from pathlib import Path
from unittest import mock

import pytest
from sentences import RULES, breaks, definitions

import dfl_lightning

PACKAGE = Path(dfl_lightning.__file__).parent
ROOT = PACKAGE.parent


@functools.cache
def texts():
    """Return the files that are read by people, and what they say."""
    return {file: file.read_text(encoding="utf-8") for file in files()}


def files():
    for folder in (PACKAGE, *(ROOT / name for name in ("docs", "scripts", "configs", "topologies"))):
        for file in sorted(folder.rglob("*")):
            if file.suffix in (".py", ".md", ".yaml", ".js"):
                yield file
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")


@pytest.mark.parametrize("pattern", RULES["banned"])
def test_banned_words_are_not_used(pattern):
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()}"
        for file, text in texts().items()
        if re.search(pattern, text, re.IGNORECASE)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(pattern, line, re.IGNORECASE)
    ]
    assert not found, f"say: {RULES['banned'][pattern]}\n" + "\n".join(found)


def test_no_two_classes_have_one_name():
    written = {file: file.read_text(encoding="utf-8") for file in PACKAGE.rglob("*.py")}
    lines = {file: re.findall(r"^ *class ([A-Za-z]\w*)", text, re.MULTILINE) for file, text in written.items()}
    counts = Counter(name for names in lines.values() for name in names)
    names = Counter(
        node.name
        for file in written
        if any(counts[name] > 1 for name in lines[file])  # perhaps in an example: only these files are parsed
        for node in definitions(ast.parse(written[file]))
        if isinstance(node, ast.ClassDef)
    )
    assert {"DFLTrainer", "Round"} <= set(counts)
    assert {name for name, count in names.items() if count > 1} == set()


def documented():
    """Yield names and docstrings of exported functions, and of the public methods of exported classes."""
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
        if text and re.split(r"[\s:;,.]", text.strip())[0] not in RULES["verbs"].split()
    }
    assert not others, "\n".join(f"{name}: {text.splitlines()[0]}" for name, text in others.items())


def test_all_files_follow_the_rules_for_sentences():
    files = [file for room in (PACKAGE, ROOT / "scripts", ROOT / "tests") for file in sorted(room.rglob("*.py"))]
    assert not (found := [text for file in files for text in breaks(file)]), "\n".join(found)


def test_the_rules_find_what_they_forbid():
    bad = f"""
class Thing:
    '''What a thing is.'''

    def of(self, rounds):
        '''The rounds.

        Args:
            rounds: of the run
        '''
        raise ValueError("round 3 is {"no"} number")  # and goes {"on"}
"""
    with mock.patch.object(Path, "read_text", return_value=bad):
        found = list(breaks(PACKAGE / "bad.py"))
    assert len(found) == 5
    assert sum("do not begin with What" in line for line in found) == 1
    assert sum("begin with a verb" in line for line in found) == 1
