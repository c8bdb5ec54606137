"""GML files: checks for contradictions, and reading by networkx."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator

import networkx as nx

from dfl_lightning.topology.formats.contradictions import ContradictionError
from dfl_lightning.topology.formats.read import GraphRead

_WORD = re.compile(r'"[^"]*"|[\[\]]|[^\s\[\]"]+')
_KEYS = {  # keys that may occur once in a list, by the path of the list; other keys may occur several times
    ("graph",): ("directed", "multigraph"),
    ("graph", "node"): ("id", "label", "cluster", "budget"),
    ("graph", "edge"): ("source", "target", "weight"),
}


def read_gml(data: bytes) -> GraphRead:
    """Read GML, with or without labels. Links that stand twice are read as parallel ones.

    Args:
        data: content of the file, UTF-8.

    Raises:
        ContradictionError: see `checked_gml`.
    """
    text, labelled = checked_gml(data.decode("utf-8-sig"))
    # networkx reads ASCII and XML references only.
    file = io.BytesIO(text.encode("ascii", "xmlcharrefreplace"))
    return GraphRead(nx.read_gml(file, label="label" if labelled else "id"))


def checked_gml(text: str) -> tuple[str, bool]:
    """Check GML for repeated keys, which networkx would gather into a list, and for words instead of 0 and 1.

    Args:
        text: content of a file.

    Returns:
        The text of a multigraph whose parallel links have no keys, with the same lines; and True if nodes have labels.

    Raises:
        ContradictionError: an id, an end, or an attribute that we read occurs twice in a node, an edge or the graph; a
            label is of two nodes, or of some nodes only; or `directed` or `multigraph` is neither 0 nor 1.
    """
    path: list[str] = []
    lines: list[dict[str, int]] = [{}]
    labels: dict[str, int] = {}
    unlabelled: list[int] = []
    edits: list[tuple[int, int, str]] = []
    key, key_at = "", 0
    for line, word, at in _words(text):
        if word == "]" and not path:
            break  # networkx reports the bracket when it reads the file
        if word == "]":
            if path == ["graph", "node"] and "label" not in lines[-1]:
                unlabelled.append(line)
            path.pop()
            lines.pop()
            key = ""
        elif word == "[":
            path.append(key)
            lines.append({})
            key = ""
            if path == ["graph"]:
                edits.append((at + 1, at + 1, " multigraph 1"))
        elif not key:
            key, key_at = word, at
        else:
            if key in _KEYS.get(tuple(path), ()):
                if key in lines[-1]:
                    raise ContradictionError(f"the {path[-1]} has {key} in lines {lines[-1][key]} and {line}; keep one")
                if len(path) == 1 and word not in ("0", "1"):
                    raise ContradictionError(f"line {line}: {key} is {word[:40]}; it must be 0 or 1")
                lines[-1][key] = line
            if path == ["graph", "node"] and key == "label":
                _add_label(labels, word.strip('"'), line)
            if (*path, key) in (("graph", "multigraph"), ("graph", "edge", "key")):
                edits.append((key_at, at + len(word), ""))
            key = ""
    if labels and unlabelled:
        raise ContradictionError(f"the node that ends in line {unlabelled[0]} has no label; label all nodes or none")
    for start, stop, new in reversed(edits):
        text = text[:start] + new + text[stop:]
    return text, bool(labels)


def _add_label(labels: dict[str, int], label: str, line: int) -> None:
    if label in labels:
        raise ContradictionError(
            f"the label '{label[:40]}' is of two nodes, in lines {labels[label]} and {line}; give each its own"
        )
    labels[label] = line


def _words(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield brackets, quoted texts and plain words, each with its line and its place in the text; skip comments."""
    text = re.sub(r"(?m)^[ \t]*#.*$", lambda comment: " " * len(comment[0]), text)
    line, position = 1, 0
    for match in _WORD.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield line, match.group(), position
