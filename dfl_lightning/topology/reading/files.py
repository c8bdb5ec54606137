"""Readers of graph files, which run no code of a file and refuse a bad file with one sentence."""

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

# The attributes of an edge list are read by Python's own parser, which is only safe for short texts.
_LONGEST_LITERAL = 2000

# Limits on the size of a graph file in bytes: editors of GraphML write about a thousand bytes for a link.
_LEAST_BOUND = 8 * 10**6
_A_PAIR = 1024


def read_bytes(path: Path, most: int) -> bytes:
    """Read a file of limited size.

    Args:
        path: the file.
        most: largest number of bytes.

    Raises:
        UserError: the file cannot be read, or is larger.
    """
    try:
        return read_bounded(path, most)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise UserError(f"{path}: {error}; give a smaller file.") from error


def read_graph(path: Path, num_clients: int) -> nx.Graph:
    """Read a graph file in the format that its suffix names, one of `FORMATS`.

    Args:
        path: the file.
        num_clients: number of clients m, which determines the largest accepted size of the file.

    Raises:
        UserError: the suffix is unknown, the file cannot be read, or its content is not a graph of that format.
    """
    parse = FORMATS.get(path.suffix.lower())
    if parse is None:
        raise UserError(f"{path}: unknown graph format '{path.suffix}'; known are: {', '.join(FORMATS)}.")
    data = read_bytes(path, _LEAST_BOUND + _A_PAIR * num_clients**2)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # readers warn of optional parts of a format
            return parse(data)
    except ContradictionError as error:
        raise UserError(f"{path}: {error}.") from error
    except Exception as error:  # the readers raise many types of errors on files of another format
        raise UserError(f"{path}: not a {path.suffix.lower()} graph ({reason(error)}).") from error


def _graphml(data: bytes) -> nx.Graph:
    check_graphml(data)
    graph = nx.read_graphml(io.BytesIO(data))
    # networkx stores the defaults of attributes in the graph and does not apply them to nodes and edges
    node_default = graph.graph.get("node_default", {})
    edge_default = graph.graph.get("edge_default", {})
    for _, attributes in graph.nodes(data=True):
        attributes.update({**node_default, **attributes})
    for _, _, attributes in graph.edges(data=True):
        attributes.update({**edge_default, **attributes})
    return graph


def _gml(data: bytes) -> nx.Graph:
    check_gml(data)
    data = data.decode("utf-8-sig").encode("ascii", "xmlcharrefreplace")  # networkx reads ASCII and XML references only
    try:
        return nx.read_gml(io.BytesIO(data))
    except nx.NetworkXError as error:
        if "label" not in str(error):
            raise
        return nx.read_gml(io.BytesIO(data), label="id")  # labels are optional in GML


def _node_link(data: bytes) -> nx.Graph:
    """Read JSON in networkx's node-link format.

    The reader of networkx is not used, as the name of its key `links` differs between versions.
    """
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
    # The graph always accepts parallel links; contradictory ones are refused by `to_topology`.
    graph = nx.MultiDiGraph() if content.get("directed") else nx.MultiGraph()
    numbers: dict[Hashable, int] = {}
    names: dict[str, int] = {}  # 1 and "1" would be two clients with the same name
    for number, node in enumerate(content["nodes"], start=1):
        label = _label(node["id"])
        if (former := numbers.get(label, names.get(str(label)))) is not None:
            raise ContradictionError(f"nodes {former} and {number} have the same id {str(label)[:40]!r}; keep one")
        numbers[label] = names[str(label)] = number
        graph.add_node(label)
        # Attributes are not passed as keywords, here and below, as a file could name an argument of networkx's methods.
        graph.nodes[label].update({key: attribute for key, attribute in node.items() if key != "id"})
    for link in links:
        source, target = _label(link["source"]), _label(link["target"])
        if source not in graph or target not in graph:
            raise ValueError(f"a link names the unknown node {str(source if source not in graph else target)[:40]!r}")
        key = graph.add_edge(source, target)
        attributes = {name: value for name, value in link.items() if name not in ("source", "target", "key")}
        graph.edges[source, target, key].update(attributes)
    return graph


def _label(value: Any) -> Hashable:
    """Convert lists to tuples, since JSON has no tuples and networkx writes such labels as lists."""
    return tuple(_label(part) for part in value) if isinstance(value, list) else value


def _lines(data: bytes, most: int = -1) -> Iterator[tuple[int, list[str]]]:
    """Yield the words of each line with the line's number, without comments and empty lines.

    Args:
        data: content of the file.
        most: number of words after which the rest of a line is one more word; -1: no limit.
    """
    for number, line in enumerate(data.decode("utf-8-sig").splitlines(), start=1):
        if words := line.partition("#")[0].split(maxsplit=most):
            yield number, words


def _edgelist(data: bytes) -> nx.Graph:
    """Read lines such as `a b`, `a b 0.5` (a weight) or `a b {'weight': 0.5}`; `a` alone is a client without links."""
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
    """Read the attributes of a link from a Python literal; a literal that is not a dictionary is the weight."""
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
    """Read lines such as `a b c d`, which link a to the others; `a` alone is a client without links."""
    graph = nx.Graph()
    first: dict[str, int] = {}
    for number, (a, *others) in _lines(data):
        if a in first:
            raise ContradictionError(f"lines {first[a]} and {number} both begin with {a[:40]}; keep one line a client")
        if len(set(others)) < len(others):
            twice = next(b for index, b in enumerate(others) if b in others[:index])
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
