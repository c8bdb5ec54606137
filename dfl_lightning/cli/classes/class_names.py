"""The names of the shipped classes, read from their source, since importing them takes seconds."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]


def class_names(base: str) -> dict[str, str]:
    """Return the first line of documentation of each exported class that derives from a base, by name.

    Args:
        base: the package and the base class, such as `callbacks.Selection`.

    Examples:
        >>> list(class_names("callbacks.Dropout"))
        ['Bernoulli', 'ExactCount', 'GroupedCount', 'Markov', 'Trace']
    """
    package, _, root = base.partition(".")
    classes = _classes(package)

    def derives(name: str) -> bool:
        return name in classes and any(
            above == root or derives(above) for above in map(ast.unparse, classes[name].bases)
        )

    return {name: _first_line(classes[name]) for name in sorted(_exported(package)) if derives(name)}


@cache
def _classes(package: str) -> dict[str, ast.ClassDef]:
    """Parse all modules of a package, and return their classes by name."""
    trees = (ast.parse(file.read_text(encoding="utf-8")) for file in (_PACKAGE / package).rglob("*.py"))
    return {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}


def _exported(package: str) -> list[str]:
    """Return the names in a package's `__all__`."""
    tree = ast.parse((_PACKAGE / package / "__init__.py").read_text(encoding="utf-8"))
    assigned = {ast.unparse(node.targets[0]): node.value for node in tree.body if isinstance(node, ast.Assign)}
    names: list[str] = ast.literal_eval(assigned["__all__"])
    return names


def _first_line(node: ast.ClassDef) -> str:
    return (ast.get_docstring(node) or "").partition("\n")[0]
