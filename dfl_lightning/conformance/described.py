"""The description of a method's cases, with a function for an adapter to begin with."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from dfl_lightning.conformance.cases import FOLDER, MethodCases

__all__ = ["describe"]


def describe(cases: MethodCases) -> str:
    """Describe the inputs, outputs and readings of a method, with a function that an adapter may begin with."""
    lines = [
        f"{cases.name}: {cases.paper}; {cases.equation}",
        *_lines(cases.does),
        "",
        f"def {cases.method}({', '.join(cases.inputs)}):",
        *_comments(cases.inputs),
        '    raise NotImplementedError("not yet")',
        *_comments(cases.outputs),
        "    return {" + ", ".join(f'"{name}": ...' for name in cases.outputs) + "}",
        "",
    ]
    for reading in cases.readings:
        lines += _lines(f"- {reading['question']} {reading['chosen']}: {reading['why']}", "", "  ")
    left_out = ", ".join(name for name in cases.outputs if name not in cases.main)
    main = f"Returned must be: {', '.join(cases.main)}"
    lines += _lines(f"{main}; {left_out} may be left out" if left_out else main)
    lines += _lines(f"{len(cases.cases)} cases: {'; '.join(case.name for case in cases.cases)}")
    return "\n".join([*lines, f"numbers: {FOLDER / cases.method}.json", ""])


def _comments(described: dict[str, str]) -> Iterator[str]:
    for name, what in described.items():
        yield from _lines(f"# {name}: {what}", "    ", "    #   ")


def _lines(text: str, first: str = "", others: str = "") -> list[str]:
    return textwrap.wrap(text, 100, initial_indent=first, subsequent_indent=others, break_long_words=False)
