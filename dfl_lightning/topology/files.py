"""Graph files of any origin: read without running code, and refused in one sentence."""

from __future__ import annotations

import ast
import io
import json
import warnings
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any
from xml.parsers import expat

import networkx as nx

from dfl_lightning.errors import UserError, reason

# Python's own parser, which reads the attributes of an edge list, is safe on short lines only.
_LONGEST_LINE = 2000


def read_bytes(path: Path) -> bytes:
    """The content of a file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error


def read_graph(path: Path) -> nx.Graph:
    """The graph in a file, as its suffix says: `FORMATS`.

    Raises:
        UserError: unknown suffix, unreadable file, or content that is not a graph of that format.
    """
    parse = FORMATS.get(path.suffix.lower())
    if parse is None:
        raise UserError(f"{path}: unknown graph format '{path.suffix}'; known are: {', '.join(FORMATS)}.")
    data = read_bytes(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # readers' advice about optional parts of a format
            return parse(data)
    except Exception as error:  # the readers fail in many ways on files that are not theirs
        raise UserError(f"{path}: not a {path.suffix.lower()} graph ({reason(error)}).") from error


def _graphml(data: bytes) -> nx.Graph:
    _refuse_declarations(data)
    graph = nx.read_graphml(io.BytesIO(data))
    # networkx keeps the defaults of attributes beside the graph
    node_default = graph.graph.get("node_default", {})
    edge_default = graph.graph.get("edge_default", {})
    for _, attributes in graph.nodes(data=True):
        attributes.update({**node_default, **attributes})
    for _, _, attributes in graph.edges(data=True):
        attributes.update({**edge_default, **attributes})
    return graph


def _refuse_declarations(data: bytes) -> None:
    """Entities can blow up or read other files; GraphML needs none. Asking the parser covers every encoding."""

    def refuse(*_: object) -> None:
        raise ValueError("document type and entity declarations are not allowed")

    parser = expat.ParserCreate()
    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.Parse(data, True)


def _gml(data: bytes) -> nx.Graph:
    try:
        return nx.read_gml(io.BytesIO(data))
    except nx.NetworkXError as error:
        if "label" not in str(error):
            raise
        return nx.read_gml(io.BytesIO(data), label="id")  # labels are optional in GML


def _node_link(data: bytes) -> nx.Graph:
    """Written out here because networkx's own reader changed the name of its key `links` between versions."""
    content = json.loads(data)
    if not isinstance(content, dict) or "nodes" not in content:
        raise ValueError("no key 'nodes'")
    links = content.get("links", content.get("edges"))
    if links is None:
        raise ValueError("no key 'links'")
    classes: tuple[Callable[[], nx.Graph], ...] = (nx.Graph, nx.MultiGraph, nx.DiGraph, nx.MultiDiGraph)
    graph = classes[2 * bool(content.get("directed")) + bool(content.get("multigraph"))]()
    for node in content["nodes"]:
        label = _label(node["id"])
        graph.add_node(label)
        # not as keywords: networkx's methods have arguments that a file could name, here and below
        graph.nodes[label].update({word: value for word, value in node.items() if word != "id"})
    for link in links:
        source, target = _label(link["source"]), _label(link["target"])
        if source not in graph or target not in graph:
            raise ValueError(f"a link names the unknown node {str(source if source not in graph else target)[:40]!r}")
        key = graph.add_edge(source, target)
        attributes = graph.edges[source, target, key] if graph.is_multigraph() else graph.edges[source, target]
        attributes.update({word: value for word, value in link.items() if word not in ("source", "target", "key")})
    return graph


def _label(value: Any) -> Hashable:
    """JSON has no tuples: networkx writes those labels as lists."""
    return tuple(_label(word) for word in value) if isinstance(value, list) else value


def _lines(data: bytes) -> Iterator[list[str]]:
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        if len(line) > _LONGEST_LINE:
            raise ValueError(f"line {number} has more than {_LONGEST_LINE} characters")
        if words := line.partition("#")[0].split(maxsplit=2):
            yield words


def _edgelist(data: bytes) -> nx.Graph:
    """`a b`, `a b 0.5` (a weight) or `a b {'weight': 0.5}`; a label alone is a client without links."""
    graph = nx.Graph()
    for a, *rest in _lines(data):
        graph.add_node(a)
        if rest:
            value = ast.literal_eval(rest[1]) if len(rest) == 2 else {}
            attributes = value if isinstance(value, dict) else {"weight": value}
            graph.add_edge(a, rest[0])
            graph.edges[a, rest[0]].update(attributes)
    return graph


def _adjlist(data: bytes) -> nx.Graph:
    return nx.parse_adjlist(data.decode("utf-8-sig").splitlines())


FORMATS: dict[str, Callable[[bytes], nx.Graph]] = {
    ".graphml": _graphml,
    ".gml": _gml,
    ".json": _node_link,
    ".edgelist": _edgelist,
    ".adjlist": _adjlist,
}
