"""Pajek files (`.net`), with sections of edges, arcs, lists of them, or a matrix."""

from __future__ import annotations

import csv
from collections.abc import Iterator

import networkx as nx

from dfl_lightning.topology.formats.contradictions import ContradictionError
from dfl_lightning.topology.formats.read import GraphRead

_SECTIONS = ("*edges", "*arcs", "*edgeslist", "*arcslist", "*matrix")


def read_pajek(data: bytes) -> GraphRead:
    """Read a Pajek file, which is directed if it has arcs; edges then go both ways.

    A link without a weight has the weight 1 if others have one. The reader of networkx is not used, as it takes edges
    that follow arcs for arcs, and neighbours in a list for weights.

    Args:
        data: content of the file, UTF-8.

    Raises:
        ContradictionError: a vertex is there twice, or a line is not of its section.
    """
    labels: dict[str, str] = {}
    links: list[tuple[str, str, float | None, bool]] = []  # sender, receiver, weight, whether it is an arc
    section, row = "", 0
    for line, words in _lines(data):
        if words[0].startswith("*"):
            section, row = words[0].lower(), 0
            if section == "*vertices":
                labels = {str(number): str(number) for number in range(1, _count(words, line) + 1)}
            elif section not in (*_SECTIONS, "*network"):
                raise ContradictionError(f"line {line} begins the unknown section {words[0][:40]}; leave it out")
        elif section == "*vertices":
            if words[0] not in labels:
                raise ContradictionError(f"line {line} has the vertex {words[0][:40]}, and {len(labels)} are announced")
            labels[words[0]] = words[1] if len(words) > 1 else words[0]
        elif section in _SECTIONS:
            row += 1
            links += _links(section, row, words, labels, line)
    if not labels:
        raise ContradictionError("there is no section *Vertices; give one with the number of nodes")
    _refuse_twice(list(labels.values()))
    graph = nx.MultiDiGraph() if any(is_arc for *_, is_arc in links) else nx.MultiGraph()
    graph.add_nodes_from(labels.values())
    weighted = any(weight is not None for _, _, weight, _ in links)
    for sender, receiver, weight, is_arc in links:
        attributes = {"weight": 1.0 if weight is None else weight} if weighted else {}
        ends = [(sender, receiver)]
        if graph.is_directed() and not is_arc:
            ends.append((receiver, sender))
        for a, b in ends:
            graph.add_edge(labels[a], labels[b], **attributes)
    return GraphRead(graph)


def _links(
    section: str, row: int, words: list[str], labels: dict[str, str], line: int
) -> list[tuple[str, str, float | None, bool]]:
    """Return the links of a line, as (sender, receiver, weight, whether it is an arc)."""
    if section == "*matrix":
        if len(words) != len(labels) or row > len(labels):
            raise ContradictionError(
                f"line {line} of the matrix has {len(words)} entries, and {len(labels)} are needed"
            )
        values = [_number(word, line) for word in words]
        return [(str(row), str(column), value, True) for column, value in enumerate(values, start=1) if value]
    is_list, is_arc = section.endswith("list"), section.startswith("*arcs")
    ends = words if is_list else words[:2]
    for end in ends:
        if end not in labels:
            raise ContradictionError(
                f"line {line} names the unknown vertex {end[:40]}; vertices are 1 to {len(labels)}"
            )
    if is_list:
        return [(ends[0], other, None, is_arc) for other in ends[1:]]
    if len(words) < 2:
        raise ContradictionError(f"line {line} has one vertex; a link has two")
    return [(*ends, _number(words[2], line) if len(words) > 2 else None, is_arc)]  # type: ignore[list-item]


def _lines(data: bytes) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of each line with the line's number, without comments."""
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        line = line.strip().replace("\t", " ")
        if not line or line.startswith(("%", "/*")):
            continue
        words = [word for word in next(csv.reader([line], delimiter=" ", skipinitialspace=True)) if word]
        if words:
            yield number, words


def _count(words: list[str], line: int) -> int:
    if len(words) < 2 or not words[1].isdecimal() or len(words[1]) > 7:
        raise ContradictionError(f"line {line}: *Vertices is followed by the number of nodes")
    return int(words[1])


def _number(word: str, line: int) -> float:
    try:
        return float(word)
    except ValueError:
        raise ContradictionError(f"line {line}: {ascii(word)[:40]} is no weight; give a number") from None


def _refuse_twice(labels: list[str]) -> None:
    if len(set(labels)) < len(labels):
        twice = next(label for index, label in enumerate(labels) if label in labels[:index])
        raise ContradictionError(f"the label '{twice[:40]}' is of two vertices; give each its own")
