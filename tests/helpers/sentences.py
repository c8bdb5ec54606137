"""Break-finder for the rules of tests/docs/words.yaml: docstrings, messages, argument lists and names of tests.

python tests/helpers/sentences.py PATH ...      # list what breaks the rules
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "tests" / "docs" / "words.yaml").read_text(encoding="utf-8"))
MOST_WORDS = 10
"""Words of a test's name."""

_VERBS = frozenset(RULES["verbs"].split())
_OPENERS = frozenset(RULES["openers"])
_PLAIN = {re.compile(pattern, re.IGNORECASE): say for pattern, say in RULES["plain"].items()}
_ANY_PLAIN = re.compile("|".join(pattern.removeprefix(r"\b").lower() for pattern in RULES["plain"]))
"""Finds in lower-case text what any of the patterns finds, and more: twice as fast."""
_FILLER = re.compile(RULES["filler"], re.IGNORECASE)
_WITH_DOCSTRINGS = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module
_PROPERTIES = ("property", "cached_property")


def breaks(file: Path) -> Iterator[str]:
    """List the sentences of a Python file that break a rule, each as `FILE:LINE: sentence (remedy)`."""
    where, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
    tree = ast.parse(text)
    of_tests = where.startswith("tests/")
    for node in definitions(tree):
        if isinstance(node, _WITH_DOCSTRINGS):
            docstring = ast.get_docstring(node)
            if docstring:
                line = getattr(node, "lineno", 1)
                yield from (f"{where}:{line}: {found}" for found in _of_docstring(node, docstring, of_tests))
        if isinstance(node, ast.FunctionDef) and of_tests and node.name.startswith("test_"):
            words = node.name.removeprefix("test_").split("_")
            if len(words) > MOST_WORDS:
                yield f"{where}:{node.lineno}: {node.name} (a name of at most {MOST_WORDS} words)"
    for pattern, say in _PLAIN.items() if _ANY_PLAIN.search(text.lower()) else ():
        for match in pattern.finditer(text):
            start, stop = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
            line = text[start:stop].strip()
            yield f"{where}:{text.count(chr(10), 0, start) + 1}: {line} (say: {say})"


def definitions(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield a module and all statements in it, without searching through their expressions."""
    left: list[ast.AST] = [tree]
    while left:
        node = left.pop()
        yield node
        for block in ("finalbody", "orelse", "handlers", "cases", "body"):
            left += reversed(getattr(node, block, ()))


def _of_docstring(node: ast.AST, docstring: str, of_tests: bool) -> Iterator[str]:
    first_line = docstring.partition("\n")[0]
    first = re.split(r"[\s:;,.'’(]", first_line)[0]
    if first in _OPENERS:
        yield f"{first_line} (do not begin with {first})"
    elif not of_tests and _is_function(node) and first not in _VERBS:
        yield f"{first_line} (begin with a verb in the imperative)"
    if not of_tests:
        for name, meaning in re.findall(r"^ +(\*{0,2}\w+): (.+)$", docstring.partition("Args:")[2], re.MULTILINE):
            if _FILLER.match(meaning.strip()):
                yield f"{name}: {meaning} (leave it out, or say what the name does not)"


def _is_function(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        return False
    names = [ast.unparse(one).rpartition(".")[2] for one in node.decorator_list]
    return not any(name in _PROPERTIES for name in names)


def main() -> None:
    """Print the breaks of all Python files below the paths, and their number."""
    count = 0
    for path in map(Path, sys.argv[1:]):
        for file in sorted(path.resolve().rglob("*.py") if path.is_dir() else [path.resolve()]):
            for found in breaks(file):
                print(found)
                count += 1
    print(count)


if __name__ == "__main__":
    main()
