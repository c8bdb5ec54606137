"""Readers of graph formats with attributes: GraphML, GEXF, DOT, and node-link data in JSON."""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Hashable, Mapping
from typing import Any

import networkx as nx

from dfl_lightning.topology.formats.contradictions import ContradictionError
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.topology.formats.xml_checks import check_xml
from dfl_lightning.utils.storage.files import unique_pairs


def read_graphml(data: bytes) -> GraphRead:
    """Read GraphML, with the defaults of its attributes."""
    check_xml(data)
    return GraphRead(_with_defaults(nx.read_graphml(io.BytesIO(data))))


def read_gexf(data: bytes) -> GraphRead:
    """Read GEXF, in which a link without a weight has the weight 1 if others have one."""
    check_xml(data)
    graph = _with_defaults(nx.read_gexf(io.BytesIO(data)))
    links = list(graph.edges(data=True))
    if any("weight" in attributes for *_, attributes in links):
        for *_, attributes in links:
            attributes.setdefault("weight", 1.0)
    return GraphRead(graph)


def _with_defaults(graph: nx.Graph) -> nx.Graph:
    """Apply the defaults of attributes, which networkx stores in the graph."""
    node_default = graph.graph.get("node_default", {})
    edge_default = graph.graph.get("edge_default", {})
    for _, attributes in graph.nodes(data=True):
        attributes.update({**node_default, **attributes})
    for _, _, attributes in graph.edges(data=True):
        attributes.update({**edge_default, **attributes})
    return graph


def read_dot(data: bytes) -> GraphRead:
    """Read DOT, the format of Graphviz, by the package pydot.

    Raises:
        ContradictionError: pydot is not installed, or the file is not in this format.
    """
    if importlib.util.find_spec("pydot") is None:
        raise ContradictionError(".dot files are read by the package pydot; install it, or save the graph as .gexf")
    import pydot

    graphs = pydot.graph_from_dot_data(data.decode("utf-8-sig"))
    if not graphs:
        raise ContradictionError("this is not a DOT graph; save the graph as .gexf")
    if len(graphs) > 1 or graphs[0].get_subgraph_list():
        raise ContradictionError("there are several graphs or subgraphs; give one graph")
    graph = nx.nx_pydot.from_pydot(graphs[0])
    of_line_ends = [node for node in graph if not str(node).replace("\\n", "").strip()]  # a fault of pydot
    graph.remove_nodes_from(of_line_ends)
    for attributes in (*(each for _, each in graph.nodes(data=True)), *(each for *_, each in graph.edges(data=True))):
        attributes.update({key: _plain(value) for key, value in attributes.items()})
    return GraphRead(graph)


def _plain(value: Any) -> Any:
    """Convert a quoted text of pydot; whole numbers become integers."""
    text = str(value).strip('"')
    return int(text) if text.removeprefix("-").isdecimal() else text


def read_node_link(data: bytes) -> GraphRead:
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
        label = _label(_entry(node, "id", f"node {number}"))
        if (former := numbers.get(label, names.get(str(label)))) is not None:
            raise ContradictionError(f"nodes {former} and {number} have the same id {str(label)[:40]!r}; keep one")
        numbers[label] = names[str(label)] = number
        graph.add_node(label)
        # Attributes are not passed as keywords, here and below, as a file could name an argument of networkx's methods.
        graph.nodes[label].update({key: attribute for key, attribute in node.items() if key != "id"})
    for number, link in enumerate(links, start=1):
        source, target = (_label(_entry(link, end, f"link {number}")) for end in ("source", "target"))
        if source not in graph or target not in graph:
            raise ValueError(f"a link names the unknown node {str(source if source not in graph else target)[:40]!r}")
        key = graph.add_edge(source, target)
        attributes = {name: value for name, value in link.items() if name not in ("source", "target", "key")}
        graph.edges[source, target, key].update(attributes)
    return GraphRead(graph)


def _entry(value: Any, key: str, what: str) -> Any:
    """Return an entry of a node or link, and raise if it is missing."""
    if not isinstance(value, Mapping):
        raise ContradictionError(f"{what} is {ascii(value)[:40]}; it must have '{key}', as in {{\"{key}\": 0}}")
    if key not in value:
        have = f"it has {', '.join(map(str, value))}"[:80] if value else "it is empty"
        raise ContradictionError(f"{what} has no '{key}' ({have}); give each one")
    return value[key]


def _label(value: Any) -> Hashable:
    """Convert lists to tuples, since JSON has no tuples and networkx writes such labels as lists."""
    return tuple(_label(part) for part in value) if isinstance(value, list) else value
