"""Write the list of all fields and verbs of a round into docs/policies.md, from the class and its docstrings.

python scripts/list_round.py
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dfl_lightning.round.fields import RoundFields
from dfl_lightning.round.messages import RoundMessages
from dfl_lightning.round.record import Round

PAGE = Path(__file__).parent.parent / "docs" / "policies.md"
START, END = "<!-- scripts/list_round.py makes this list -->\n", "<!-- end of the list -->\n"


def main() -> int:
    """Replace the list in the page; returns the exit code."""
    PAGE.write_text(with_list(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(
        f"{PAGE.relative_to(PAGE.parent.parent)}: {len(fields())} fields, {len(values())} values, {len(verbs())} verbs"
    )
    return 0


def with_list(page: str) -> str:
    """Replace the list of the page by the current one."""
    before, rest = page.split(START)
    _, after = rest.split(END)
    return f"{before}{START}\n{listed()}\n\n{END}{after}"


def listed() -> str:
    """Format three tables: fields that hooks read and set, values that follow from them, and verbs of a round."""
    return "\n".join(
        [
            *_table("field, in the order of the steps", fields()),
            "",
            *_table("value that follows from them", values()),
            "",
            *_table("verb", verbs()),
        ]
    )


def fields() -> dict[str, str]:
    """Read the description of each field from the docstring of the class."""
    told = _told(inspect.getdoc(RoundFields) or "")
    return {f"`{field.name}`": told[field.name] for field in dataclasses.fields(Round)}


def values() -> dict[str, str]:
    """Read the first line of each property."""
    return {f"`{name}`": _first(made.fget) for name, made in _members() if _is_public(name, made, property)}


def verbs() -> dict[str, str]:
    """Read the call and the first line of each method."""
    found = {name: made for name, made in _members() if _is_public(name, made, type(main))}
    return {f"`{name}{_arguments(made)}`": _first(made) for name, made in found.items()}


def _members() -> list[tuple[str, Any]]:
    """List what the classes of a round define, in the order of the page."""
    return [member for one in (RoundFields, Round, RoundMessages) for member in vars(one).items()]


def _is_public(name: str, made: object, kind: type) -> bool:
    return isinstance(made, kind) and not name.startswith("_")


def _arguments(method: Callable[..., object]) -> str:
    """Format a method's arguments in brackets, without their types."""
    signature = inspect.signature(method)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in signature.parameters.values()]
    told = str(signature.replace(parameters=plain[1:], return_annotation=inspect.Signature.empty))
    return told.replace("'", '"')


def _told(docstring: str) -> dict[str, str]:
    """Read the text of each name under `Args` and `Attributes`, on one line."""
    told: dict[str, str] = {}
    for line in docstring.splitlines():
        entry = re.match(r"    (\w+): (.*)", line)
        if entry:
            name, told[entry[1]] = entry[1], entry[2]
        elif line.startswith("        ") and told:
            told[name] += f" {line.strip()}"
    return told


def _first(thing: object) -> str:
    return (inspect.getdoc(thing) or "").splitlines()[0]


def _table(title: str, rows: dict[str, str]) -> list[str]:
    lines = [f"| {title} | meaning |", "|---|---|"]
    return lines + [f"| {name} | {_sentence(text)} |" for name, text in rows.items()]


def _sentence(text: str) -> str:
    text = text.rstrip(".").replace("|", r"\|")
    return text[:1].upper() + text[1:]


if __name__ == "__main__":
    raise SystemExit(main())
