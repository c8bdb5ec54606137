"""What a graph file may say twice without meaning one thing: found before networkx keeps the last of it in silence."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any
from xml.parsers import expat

_GML_WORD = re.compile(r'"[^"]*"|[\[\]]|[^\s\[\]"]+')
_GML_KEYS = {  # of lists by where they are; other keys may well come several times
    ("graph",): ("directed", "multigraph"),
    ("graph", "node"): ("id", "label", "cluster", "budget"),
    ("graph", "edge"): ("source", "target", "weight"),
}


class ContradictionError(ValueError):
    """A graph file has contradictory or meaningless entries; the message names the place."""


class EdgeList:
    """The links of a file that was read line by line; a link may come again, with the same weight."""

    def __init__(self) -> None:
        self._first: dict[frozenset[Hashable], tuple[int, Any]] = {}

    def add(self, line: int, a: str, b: str, weight: Any) -> None:
        """Note a link.

        Args:
            line: number in the file.
            a: one node's name.
            b: the other's.
            weight: of the link; None: it has none.

        Raises:
            ContradictionError: the file has given the link another weight, or once a weight and once none.
        """
        former, known = self._first.setdefault(frozenset((a, b)), (line, weight))
        if a != b and known != weight:
            raise ContradictionError(
                f"lines {former} and {line} give the link {a[:40]} - {b[:40]} different weights "
                f"({_weight(known)} and {_weight(weight)}); keep one"
            )


def _weight(value: Any) -> str:
    return "none" if value is None else repr(value)[:30]


def check_graphml(data: bytes) -> None:
    """Search GraphML for contradictions that networkx would not report.

    Raises:
        ContradictionError: a node, or a value of a node or link, is there twice; there are several graphs; or edges are
            neither directed nor undirected.
        ValueError: document type and entity declarations, which can blow up or read other files; GraphML needs none.
        expat.ExpatError: it is not XML.
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
    """Look through GML for keys that networkx would gather into a list, and for words in place of 0 and 1.

    Raises:
        ContradictionError: an id, an end, or an attribute that is read, is there twice in a node, an edge or the graph;
            `directed` or `multigraph` is neither 0 nor 1.
    """
    path: list[str] = []
    lines: list[dict[str, int]] = [{}]
    key = ""
    for line, word in _gml_words(data):
        if word == "]" and not path:
            return  # the reader says what is wrong
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
    """Brackets, quoted texts and plain words, with their lines; comments are left out."""
    text = re.sub(r"(?m)^[ \t]*#.*$", "", data.decode("ascii", errors="replace"))
    line, at = 1, 0
    for found in _GML_WORD.finditer(text):
        line += text.count("\n", at, found.start())
        at = found.start()
        yield line, found.group()
