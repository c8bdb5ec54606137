"""Checks of GraphML and GEXF for contradictions, which networkx would not report: it would keep the last entry."""

from __future__ import annotations

from xml.parsers import expat

from dfl_lightning.topology.formats.contradictions import ContradictionError

_DIRECTIONS = {"edgedefault": ("directed", "undirected"), "defaultedgetype": ("directed", "undirected", "mutual")}
"""Attributes of `graph` that say whether its edges are directed, in GraphML and GEXF, and their values."""

_VALUES = {"data": "key", "attvalue": "for"}
"""Elements with an attribute of a node or edge, in GraphML and GEXF, and what names the attribute."""


def check_xml(data: bytes) -> None:
    """Check GraphML or GEXF for contradictions that networkx would not report.

    Raises:
        ContradictionError: a node, the id of an edge, or a value of a node or edge occurs twice; there are several
            graphs; or edges are neither directed nor undirected.
        ValueError: the file declares a document type or entities, which these formats do not need; they could expand
            to gigabytes or read other files.
        expat.ExpatError: the file is not XML.
    """
    parser = expat.ParserCreate()
    seen: dict[tuple[str, str], int] = {}
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
            for key, allowed in _DIRECTIONS.items():
                if attributes.get(key, allowed[0]) not in allowed:
                    words = " or ".join(allowed)
                    raise ContradictionError(f"line {line}: {key} is '{attributes[key][:40]}'; it must be {words}")
        if name in ("node", "edge") and (label := attributes.get("id")) is not None:
            if (former := seen.get((name, label))) is not None:
                what = f"node '{label[:40]}'" if name == "node" else f"edge id '{label[:40]}'"
                raise ContradictionError(f"the {what} is there twice, in lines {former} and {line}; keep one")
            seen[name, label] = line
        if name in ("graph", "node", "edge", "port"):
            values.clear()
            owner = name if name in ("node", "edge") else ""
        what_for = attributes.get(_VALUES.get(name, "")) if owner else None
        if what_for is not None and "start" not in attributes:  # values with a start are of different times
            if what_for in values:
                raise ContradictionError(f"line {line} gives the {owner} a second value of '{what_for[:40]}'; keep one")
            values.add(what_for)

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.StartElementHandler = start
    parser.Parse(data, True)
