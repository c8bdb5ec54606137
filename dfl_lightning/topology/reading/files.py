"""Graph files of any origin: read without running code, and refused in one sentence."""

from __future__ import annotations

import ast
import io
import json
import warnings
from collections.abc import Callable, Hashable, Iterator
from pathlib import Path
from typing import Any

import networkx as nx

from dfl_lightning.topology.reading.contradictions import ContradictionError, EdgeList, check_gml, check_graphml
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.storage.files import read_bounded, unique_pairs

# Python's own parser, which reads the attributes of an edge list, is safe on short texts only.
_LONGEST_LITERAL = 2000

# Bytes that are read of a graph file: editors of GraphML write about a thousand for a link.
_LEAST_BOUND = 8 * 10**6
_A_PAIR = 1024


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file of limited size.

    Args:
        path: the file.
        most: bytes that it may have.

    Raises:
        UserError: it cannot be read, or is larger.
    """
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}; give a smaller file.") from error


def read_graph(path: Path, num_clients: int) -> nx.Graph:
    """The graph in a file, as its suffix says: `FORMATS`.

    Args:
        path: the file.
        num_clients: m, by which the size of the file is bounded.

    Raises:
        UserError: unknown suffix, unreadable file, or content that is not a graph of that format.
    """
    parse = FORMATS.get(path.suffix.lower())
    if parse is None:
        raise UserError(f"{path}: unknown graph format '{path.suffix}'; known are: {', '.join(FORMATS)}.")
    data = read_bytes(path, _LEAST_BOUND + _A_PAIR * num_clients**2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # readers' advice about optional parts of a format
            return parse(data)
    except ContradictionError as error:
        raise UserError(f"{path}: {error}.") from error
    except Exception as error:  # the readers fail in many ways on files that are not theirs
        raise UserError(f"{path}: not a {path.suffix.lower()} graph ({reason(error)}).") from error


def _graphml(data: bytes) -> nx.Graph:
    check_graphml(data)
    graph = nx.read_graphml(io.BytesIO(data))
    # networkx keeps the defaults of attributes beside the graph
    node_default = graph.graph.get("node_default", {})
    edge_default = graph.graph.get("edge_default", {})
    for _, attributes in graph.nodes(data=True):
        attributes.update({**node_default, **attributes})
    for _, _, attributes in graph.edges(data=True):
        attributes.update({**edge_default, **attributes})
    return graph


def _gml(data: bytes) -> nx.Graph:
    check_gml(data)
    data = data.decode("utf-8-sig").encode("ascii", "xmlcharrefreplace")  # networkx reads ASCII and such references
    try:
        return nx.read_gml(io.BytesIO(data))
    except nx.NetworkXError as error:
        if "label" not in str(error):
            raise
        return nx.read_gml(io.BytesIO(data), label="id")  # labels are optional in GML


def _node_link(data: bytes) -> nx.Graph:
    """Written out here because networkx's own reader changed the name of its key `links` between versions."""
    content = json.loads(data, object_pairs_hook=unique_pairs)
    if not isinstance(content, dict) or "nodes" not in content:
        raise ValueError("no key 'nodes'")
    links = content.get("links", content.get("edges"))
    if links is None:
        raise ValueError("no key 'links'")
    if content.get("links") is not None and content.get("edges") is not None:
        raise ContradictionError("both of the keys 'links' and 'edges' are there; keep one")
    for key in ("directed", "multigraph"):
        if not isinstance(content.get(key), bool | None):
            raise ContradictionError(f"'{key}' is {str(content[key])[:40]!r}; it must be true or false")
    # with parallel links in any case: those that contradict each other are refused later on
    graph = nx.MultiDiGraph() if content.get("directed") else nx.MultiGraph()
    places: dict[Hashable, int] = {}
    names: dict[str, int] = {}  # 1 and "1" would be two clients of one name
    for number, node in enumerate(content["nodes"], start=1):
        label = _label(node["id"])
        if (former := places.get(label, names.get(str(label)))) is not None:
            raise ContradictionError(f"nodes {former} and {number} have the same id {str(label)[:40]!r}; keep one")
        places[label] = names[str(label)] = number
        graph.add_node(label)
        # not as keywords: networkx's methods have arguments that a file could name, here and below
        graph.nodes[label].update({word: value for word, value in node.items() if word != "id"})
    for link in links:
        source, target = _label(link["source"]), _label(link["target"])
        if source not in graph or target not in graph:
            raise ValueError(f"a link names the unknown node {str(source if source not in graph else target)[:40]!r}")
        key = graph.add_edge(source, target)
        attributes = {word: value for word, value in link.items() if word not in ("source", "target", "key")}
        graph.edges[source, target, key].update(attributes)
    return graph


def _label(value: Any) -> Hashable:
    """JSON has no tuples: networkx writes those labels as lists."""
    return tuple(_label(word) for word in value) if isinstance(value, list) else value


def _lines(data: bytes, most: int = -1) -> Iterator[tuple[int, list[str]]]:
    """The words of each line, at most so many (and the rest of the line as one more), with the line's number."""
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        if words := line.partition("#")[0].split(maxsplit=most):
            yield number, words


def _edgelist(data: bytes) -> nx.Graph:
    """`a b`, `a b 0.5` (a weight) or `a b {'weight': 0.5}`; a label alone is a client without links."""
    graph, links = nx.Graph(), EdgeList()
    for number, (a, *rest) in _lines(data, most=2):
        graph.add_node(a)
        if rest:
            attributes = _attributes(rest[1], number) if len(rest) == 2 else {}
            links.add(number, a, rest[0], attributes.get("weight"))
            graph.add_edge(a, rest[0])
            graph.edges[a, rest[0]].update(attributes)
    return graph


def _attributes(text: str, number: int) -> dict[Any, Any]:
    """The attributes of a link: a literal of Python, which is a weight unless it is a mapping."""
    if len(text) > _LONGEST_LITERAL:
        raise ValueError(f"line {number} has more than {_LONGEST_LITERAL} characters")
    literal = ast.parse(text.strip(), mode="eval")
    value = ast.literal_eval(literal)
    if not isinstance(value, dict):
        return {"weight": value}
    if isinstance(literal.body, ast.Dict) and len(literal.body.keys) > len(value):
        raise ContradictionError(f"line {number} has an attribute twice; keep one")
    return value


def _adjlist(data: bytes) -> nx.Graph:
    """`a b c d`: whom a is linked to; a label alone is a client without links."""
    graph = nx.Graph()
    first: dict[str, int] = {}
    for number, (a, *others) in _lines(data):
        if a in first:
            raise ContradictionError(f"lines {first[a]} and {number} both begin with {a[:40]}; keep one line a client")
        if len(set(others)) < len(others):
            twice = next(b for at, b in enumerate(others) if b in others[:at])
            raise ContradictionError(f"line {number} names {twice[:40]} twice; keep one")
        first[a] = number
        graph.add_node(a)
        graph.add_edges_from((a, b) for b in others)
    return graph


FORMATS: dict[str, Callable[[bytes], nx.Graph]] = {
    ".graphml": _graphml,
    ".gml": _gml,
    ".json": _node_link,
    ".edgelist": _edgelist,
    ".adjlist": _adjlist,
}
