"""Lines for terminals: broken between words at the terminal's width, with a hanging indent."""

from __future__ import annotations

import re
import shutil
import textwrap
from typing import TextIO

LEAST_WIDTH = 40
"""Narrower terminals get lines of this width."""

_NAMED = re.compile(r"^ *\S(?:.*?\S)? {2,}(?=\S)")
"""A name at the beginning of a line, with the spaces before its description."""


def for_terminal(text: str, stream: TextIO) -> str:
    """Break the lines of a text between words if it is for a terminal; a file or a pipe gets it as it is.

    Args:
        text: one or more lines; a line that begins with a name and two spaces is continued below its description.
        stream: where the text is printed.
    """
    if not stream.isatty():
        return text
    return wrapped(text, shutil.get_terminal_size().columns)


def wrapped(text: str, width: int) -> str:
    """Break lines between words, and indent what continues them.

    Words that are longer than a line, such as paths, stay whole, so that they can be copied.

    Args:
        text: one or more lines.
        width: number of letters of a line.

    Examples:
        >>> print(wrapped("  gossip   each client averages with five others, which are drawn anew", 44))
          gossip   each client averages with five
                   others, which are drawn anew
    """
    width = max(width, LEAST_WIDTH)
    return "\n".join(_broken(line, width) for line in text.split("\n"))


def _broken(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    named = _NAMED.match(line)
    plain = len(line) - len(line.lstrip(" ")) + 2
    indent = named.end() if named and named.end() <= width // 2 else plain
    start = line[:indent] if named and named.end() == indent else line[: plain - 2]
    parts = textwrap.wrap(
        line[len(start) :],
        width,
        initial_indent=start,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
    )
    return "\n".join(parts)
