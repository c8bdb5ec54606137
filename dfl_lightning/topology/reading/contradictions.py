"""Contradictory entries of graph files, which networkx would not report: it would silently keep the last entry."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any
from xml.parsers import expat

_GML_WORD = re.compile(r'"[^"]*"|[\[\]]|[^\s\[\]"]+')
_GML_KEYS = {  # keys that may occur once in a list, by the path of the list; other keys may occur several times
    ("graph",): ("directed", "multigraph"),
    ("graph", "node"): ("id", "label", "cluster", "budget"),
    ("graph", "edge"): ("source", "target", "weight"),
}


class ContradictionError(ValueError):
    """A graph file has contradictory or meaningless entries; the message names their lines."""


class EdgeList:
    """The links of a file that is read line by line, in which a link may be repeated with the same weight only."""

    def __init__(self) -> None:
        self._first: dict[frozenset[Hashable], tuple[int, Any]] = {}

    def add(self, line: int, a: str, b: str, weight: Any) -> None:
        """Add a link.

        Args:
            line: number of the line in the file.
            a: name of a node.
            b: name of the other node.
            weight: weight of the link; None: it has none.

        Raises:
            ContradictionError: an earlier line gives the link another weight, or only one of the lines gives a weight.
        """
        former, former_weight = self._first.setdefault(frozenset((a, b)), (line, weight))
        if a != b and former_weight != weight:
            raise ContradictionError(
                f"lines {former} and {line} give the link {a[:40]} - {b[:40]} different weights "
                f"({_weight(former_weight)} and {_weight(weight)}); keep one"
            )


def _weight(value: Any) -> str:
    return "none" if value is None else repr(value)[:30]


def check_graphml(data: bytes) -> None:
    """Check GraphML for contradictions that networkx would not report.

    Raises:
        ContradictionError: a node, or a value of a node or link, occurs twice; there are several graphs; or edges are
            neither directed nor undirected.
        ValueError: the file declares a document type or entities, which GraphML does not need; they could expand to
            gigabytes or read other files.
        expat.ExpatError: the file is not XML.
    """
    parser = expat.ParserCreate()
    nodes: dict[str, int] = {}
    values: set[str] = set()
    owner = ""
    graphs = 0

    def refuse(*_: object) -> None:
        raise ValueError("document type and entity declarations are not allowed")

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal graphs, owner
        name, line = tag.rpartition(":")[2], parser.CurrentLineNumber
        if name == "graph":
            graphs += 1
            if graphs > 1:
                raise ContradictionError(f"line {line} begins a second graph; give a file for each graph")
            if (default := attributes.get("edgedefault", "undirected")) not in ("directed", "undirected"):
                raise ContradictionError(
                    f"line {line}: edgedefault is '{default[:40]}'; it must be directed or undirected"
                )
        if name == "node" and (label := attributes.get("id")) is not None:
            if label in nodes:
                raise ContradictionError(
                    f"the node '{label[:40]}' is there twice, in lines {nodes[label]} and {line}; keep one"
                )
            nodes[label] = line
        if name in ("graph", "node", "edge", "port"):
            values.clear()
            owner = name if name in ("node", "edge") else ""
        if name == "data" and owner and (key := attributes.get("key")) is not None:
            if key in values:
                raise ContradictionError(f"line {line} gives the {owner} a second value of '{key[:40]}'; keep one")
            values.add(key)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.Parse(data, True)


def check_gml(data: bytes) -> None:
    """Check GML for repeated keys, which networkx would gather into a list, and for words instead of 0 and 1.

    Raises:
        ContradictionError: an id, an end, or an attribute that we read occurs twice in a node, an edge or the graph;
            or `directed` or `multigraph` is neither 0 nor 1.
    """
    path: list[str] = []
    lines: list[dict[str, int]] = [{}]
    key = ""
    for line, word in _gml_words(data):
        if word == "]" and not path:
            return  # networkx reports the bracket when it reads the file
        if word == "]":
            path.pop()
            lines.pop()
            key = ""
        elif word == "[":
            path.append(key)
            lines.append({})
            key = ""
        elif not key:
            key = word
        else:
            if key in _GML_KEYS.get(tuple(path), ()):
                if key in lines[-1]:
                    raise ContradictionError(f"the {path[-1]} has {key} in lines {lines[-1][key]} and {line}; keep one")
                if len(path) == 1 and word not in ("0", "1"):
                    raise ContradictionError(f"line {line}: {key} is {word[:40]}; it must be 0 or 1")
                lines[-1][key] = line
            key = ""


def _gml_words(data: bytes) -> Iterator[tuple[int, str]]:
    """Yield brackets, quoted texts and plain words, each with its line; skip comments."""
    text = re.sub(r"(?m)^[ \t]*#.*$", "", data.decode("ascii", errors="replace"))
    line, position = 1, 0
    for match in _GML_WORD.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        yield line, match.group()
