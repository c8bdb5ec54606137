"""Lists of links and lists of neighbours as text files, with or without a header."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import networkx as nx

from dfl_lightning.topology.formats.contradictions import ContradictionError, EdgeList
from dfl_lightning.topology.formats.lines import Lines, Row, check_lone_names
from dfl_lightning.topology.formats.read import GraphRead

# The attributes of an edge list are read by Python's own parser, which is only safe for short texts.
_LONGEST_LITERAL = 2000

_SENDERS = ("source", "src", "from", "fromnode", "fromnodeid", "sender", "node1", "id1", "start", "tail")
_RECEIVERS = ("target", "dst", "destination", "to", "tonode", "tonodeid", "receiver", "node2", "id2", "end", "head")
_WEIGHTS = ("weight", "weights", "w")
_FORMS = "a line is: a b, or a b 0.5 with a weight; other columns need a header line such as source target weight time"


@dataclass(frozen=True)
class LinkColumns:
    """The places of the columns that are read.

    Attributes:
        sender: place of the first name.
        receiver: place of the second name.
        weight: place of the weight; None: there is none.
        kind: place of a column that says `Directed` or `Undirected`; None: there is none.
        others: names of the columns that are not read.
        count: number of columns; None: without a header, two or three.
    """

    sender: int = 0
    receiver: int = 1
    weight: int | None = 2
    kind: int | None = None
    others: tuple[str, ...] = ()
    count: int | None = None


def read_edge_list(lines: Lines, num_clients: int, directed: bool | None) -> GraphRead:
    """Read a list of links: a line for each, or a name alone for a client without links.

    A header line names the columns. A first line with a single number is the number of nodes 0, 1, ….

    Args:
        lines: the lines of the file.
        num_clients: number of clients m.
        directed: True if the first name of each line sends and the second receives; None: as the file says, otherwise
            undirected.

    Raises:
        ContradictionError: a line has another form, or lines contradict each other.
    """
    rows, nodes = lines.rows, []
    columns = _header(rows)
    if columns is not None:
        rows = rows[1:]
    elif (count := _count(rows, num_clients)) is not None:
        rows, nodes = rows[1:], [str(node) for node in range(count)]
    columns = columns or LinkColumns()
    if columns.kind is not None and directed is None:
        directed = _direction(rows, columns.kind)
    graph = nx.DiGraph() if (lines.directed if directed is None else directed) else nx.Graph()
    graph.add_nodes_from(nodes)
    links = EdgeList(graph.is_directed())
    for row in rows:
        ends, weight = _ends(row, columns), _weight(row, columns, lines)
        graph.add_nodes_from(ends)
        if len(ends) == 2:
            attributes = _attributes(row) if row.attributes else {} if weight is None else {"weight": weight}
            links.add(row.line, *ends, attributes.get("weight"))
            graph.add_edge(*ends)
            graph.edges[ends].update(attributes)
    check_lone_names(lines, {name for row in rows if len(row.cells) > 1 for name in _ends(row, columns)})
    remark = f"columns that are not read: {', '.join(columns.others)}" if columns.others else ""
    return GraphRead(graph, remark=remark, lists_links=True)


def read_adjacency_list(lines: Lines) -> GraphRead:
    """Read lines such as `a b c d`, which link a to the others; `a` alone is a client without links.

    Args:
        lines: the lines of the file.

    Raises:
        ContradictionError: two lines begin with the same client.
    """
    graph = nx.Graph()
    first: dict[str, int] = {}
    for row in lines.rows:
        a, *others = row.cells
        if a in first:
            raise ContradictionError(
                f"lines {first[a]} and {row.line} both begin with {a[:40]}; keep one line a client"
            )
        if "" in row.cells:
            raise ContradictionError(f"line {row.line} has an empty name; fill it in")
        first[a] = row.line
        graph.add_node(a)
        graph.add_edges_from((a, b) for b in others)
    check_lone_names(lines, {name for row in lines.rows if len(row.cells) > 1 for name in row.cells})
    return GraphRead(graph, lists_links=True)


# --- the first line ---------------------------------------------------------------------------------------------------
def _header(rows: Sequence[Row]) -> LinkColumns | None:
    """Return the columns that the first line names; None if it is not a header."""
    if not rows or len(rows[0].cells) < 2 or rows[0].attributes:
        return None
    names = [re.sub(r"[^a-z0-9]", "", cell.lower()) for cell in rows[0].cells]
    sender = next((place for place, name in enumerate(names) if name in _SENDERS), None)
    receiver = next((place for place, name in enumerate(names) if name in _RECEIVERS), None)
    if sender is not None and receiver is not None:
        words = {rows[0].cells[sender], rows[0].cells[receiver]}
        if any(words & set(row.cells) for row in rows[1:]):
            return None  # they are clients
    elif len(rows) > 1 and _words_over_numbers(rows):
        sender, receiver = 0, 1
    else:
        return None
    read = {sender, receiver}
    weight = next((place for place, name in enumerate(names) if name in _WEIGHTS and place not in read), None)
    kind = next((place for place, name in enumerate(names) if name == "type" and place not in read), None)
    if kind is not None and any(_cell(row, kind).lower() not in ("directed", "undirected") for row in rows[1:]):
        kind = None  # a type of another kind, such as a friendship
    others = tuple(c for place, c in enumerate(rows[0].cells) if c and place not in {*read, weight, kind})
    return LinkColumns(sender, receiver, weight, kind, others, len(names))


def _words_over_numbers(rows: Sequence[Row]) -> bool:
    """Return True if the first line has no number, and the names in all others are whole numbers."""
    return not any(map(_is_number, rows[0].cells)) and all(
        cell.isdecimal() for row in rows[1:] for cell in row.cells[:2]
    )


def _count(rows: Sequence[Row], num_clients: int) -> int | None:
    """Return the number of nodes that the first line gives; None if it gives none.

    The names below are then whole numbers less than it. If only the number of clients that follows from it as a name
    is that of the data, it is a name.
    """
    if len(rows) < 2 or len(rows[0].cells) != 1 or rows[0].attributes or not rows[0].cells[0].isdecimal():
        return None
    first = rows[0].cells[0]
    if len(first) > 9:
        return None
    names = {cell for row in rows[1:] for cell in row.cells[:2]}
    if not all(name.isdecimal() and len(name) < 10 and int(name) < int(first) for name in names):
        return None
    return None if len(names) + 1 == num_clients != int(first) else int(first)


def _direction(rows: Sequence[Row], kind: int) -> bool:
    """Return True if all links are directed, and raise if only some are."""
    kinds = {_cell(row, kind).lower(): row.line for row in rows}
    if len(kinds) > 1:
        raise ContradictionError(
            f"lines {kinds['directed']} and {kinds['undirected']} are of a directed and of an undirected link; give "
            "undirected links as two directed ones"
        )
    return "directed" in kinds


# --- the other lines --------------------------------------------------------------------------------------------------
def _cell(row: Row, place: int) -> str:
    return row.cells[place] if place < len(row.cells) else ""


def _ends(row: Row, columns: LinkColumns) -> tuple[str, ...]:
    """Return the two names of a line, or the only one."""
    if len(row.cells) > (columns.count or 3):
        what = f"{len(row.cells)} columns"
        if columns.count is not None:
            raise ContradictionError(f"line {row.line} has {what}, and the header {columns.count}; give as many")
        names = " (a name with blanks is put in quotation marks)" if not row.quoted else ""
        raise ContradictionError(f"line {row.line} has {what}: {_FORMS}{names}")
    sender, receiver = _cell(row, columns.sender), _cell(row, columns.receiver)
    if sender and sum(map(bool, row.cells)) == 1:
        return (sender,)
    if not sender or not receiver:
        raise ContradictionError(f"line {row.line} has an empty name; fill it in")
    return sender, receiver


def _weight(row: Row, columns: LinkColumns, lines: Lines) -> float | None:
    """Return the weight of a line; None if it has none."""
    text = "" if columns.weight is None else _cell(row, columns.weight)
    if not text:
        return None
    if row.attributes:
        raise ContradictionError(f"line {row.line} has a weight and attributes in braces; keep one")
    try:
        return lines.number(text)
    except ValueError:
        raise ContradictionError(f"line {row.line}: {ascii(text)[:40]} is no weight; {_FORMS}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _attributes(row: Row) -> dict[Any, Any]:
    """Read the attributes of a link from a Python dictionary."""
    if len(row.attributes) > _LONGEST_LITERAL:
        raise ContradictionError(f"line {row.line} has more than {_LONGEST_LITERAL} characters in braces; shorten it")
    try:
        literal = ast.parse(row.attributes.strip(), mode="eval").body
        value = ast.literal_eval(literal)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        value = None
    if not isinstance(value, dict) or not isinstance(literal, ast.Dict):
        raise ContradictionError(f"line {row.line} has no attributes in its braces; write {{'weight': 0.5}}")
    if len(literal.keys) > len(value):
        raise ContradictionError(f"line {row.line} has an attribute twice; keep one")
    return value
