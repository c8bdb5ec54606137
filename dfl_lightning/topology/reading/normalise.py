"""Conversion of any graph to a topology of clients, with ids in a fixed order, simple links and checked attributes."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable
from numbers import Integral
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.topology.graph import Topology
from dfl_lightning.utils.errors import UserError, reason


class WrongSize(UserError):
    """The number of nodes of a graph is not the number of clients.

    Args:
        sentence: the reason and the remedy.
        nodes: number of nodes of the graph.
    """

    def __init__(self, sentence: str, nodes: int) -> None:
        super().__init__(sentence)
        self.nodes = nodes


def wrong_size(where: str, nodes: int, num_clients: int, hint: str = "") -> WrongSize:
    """Return the error for a graph whose number of nodes is not the number of clients.

    Args:
        where: name of the graph, for the message.
        nodes: number of nodes of the graph.
        num_clients: number of clients of the data.
        hint: more words for the message, about the nodes.
    """
    count = "1 node" if nodes == 1 else f"{nodes} nodes" if nodes < 10**9 else "more than a billion nodes"
    needed = "1 node" if num_clients == 1 else f"{num_clients} nodes"
    return WrongSize(f"{where}: {count}, but data has {num_clients} clients; give a graph with {needed}{hint}.", nodes)


def natural(label: Hashable) -> tuple[tuple[int, str], ...]:
    """Return a sorting key of a label that orders numbers in labels by their values.

    Examples:
        >>> sorted(["c10", "c2", "b"], key=natural)
        ['b', 'c2', 'c10']
    """
    words = re.split(r"([0-9]+)", str(label))
    # Digits are compared by length, then as text, so that integers of any size need no conversion.
    return tuple(_digits(word) if odd % 2 else (0, word) for odd, word in enumerate(words))


def _digits(word: str) -> tuple[int, str]:
    word = word.lstrip("0")
    return len(word), word


def to_topology(graph: nx.Graph | GraphRead, num_clients: int, where: str, name: str, num_servers: int = 0) -> Topology:
    """Give a graph's nodes the ids of clients and read its attributes.

    Args:
        graph: any networkx graph, or one that was read.
        num_clients: number of clients m, which must equal the number of nodes.
        where: the source, for error messages.
        name: the topology's name.
        num_servers: number of servers in addition to the clients.

    Raises:
        UserError: the number of nodes differs, or an attribute is missing for some nodes or links, or is not a number.
    """
    read = graph if isinstance(graph, GraphRead) else GraphRead(graph)
    graph = read.graph
    labels = sorted(graph, key=natural)  # by this order, labels 0..m-1 become the equal ids
    if len(graph) != num_clients:
        raise wrong_size(where, len(graph), num_clients, _about_nodes(read, labels, num_clients))
    simple = _simple(graph, labels, where)
    clusters = _attribute(graph, labels, "cluster", where)
    budgets = _attribute(graph, labels, "budget", where)
    return Topology(
        written=simple,
        labels=labels,
        num_servers=num_servers,
        name=name,
        clusters=None if clusters is None else _codes(clusters, labels, where),
        budgets=None if budgets is None else _counts(budgets, labels, where),
        mixing=read.mixing,
        remarks=(f"{name} graph: {read.remark}.",) if read.remark else (),
    )


def _about_nodes(read: GraphRead, labels: list[Hashable], num_clients: int) -> str:
    """Return words for the error about the number of nodes of a graph that was read from lines."""
    if not read.lists_links or not labels:
        return ""
    shown = ", ".join(_show(label) for label in labels[:3])
    names = f" (its nodes are {shown}{', …' if len(labels) > 3 else ''})"
    alone = "; a client without links has a line of its own" if len(labels) < num_clients else ""
    return names + alone


def _simple(graph: nx.Graph, labels: list[Hashable], where: str) -> nx.Graph:
    """Return a graph over ids with at most one link between two clients and no loops; of attributes keep `weight`."""
    ids = {label: i for i, label in enumerate(labels)}
    simple = nx.DiGraph() if graph.is_directed() else nx.Graph()
    simple.add_nodes_from(range(len(labels)))
    weighted = 0
    for u, v, weight in graph.edges(data="weight"):
        a, b = ids[u], ids[v]
        if a == b:
            continue
        value = None if weight is None else _weight(weight, u, v, where)
        if simple.has_edge(a, b):
            if simple.edges[a, b].get("weight") != value:
                raise UserError(f"{where}: parallel links {_show(u)} - {_show(v)} carry different weights; keep one.")
            continue
        if value is None:
            simple.add_edge(a, b)
        else:
            simple.add_edge(a, b, weight=value)
            weighted += 1
    links = simple.number_of_edges()
    if weighted not in (0, links):
        raise UserError(f"{where}: {weighted} of {links} links have a 'weight'; give it to all or to none.")
    return simple


def _weight(value: Any, u: Hashable, v: Hashable, where: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise UserError(
            f"{where}: link {_show(u)} - {_show(v)} has the weight {_show(value)}; a finite number is needed."
        )
    return number


def _attribute(graph: nx.Graph, labels: list[Hashable], key: str, where: str) -> list[Any] | None:
    values = [graph.nodes[label].get(key) for label in labels]
    missing = [label for label, value in zip(labels, values, strict=True) if value is None]
    if len(missing) == len(values):
        return None
    if missing:
        have = len(values) - len(missing)
        raise UserError(
            f"{where}: {have} of {len(values)} nodes have a '{key}' ({_show(missing[0])} has none); "
            "give it to all or to none."
        )
    return values


def _codes(values: list[Any], labels: list[Hashable], where: str) -> Tensor:
    """Convert names of clusters to integers: integers stay as they are, other names are numbered in natural order."""
    for label, value in zip(labels, values, strict=True):
        if isinstance(value, list | dict) or value != value:
            raise UserError(
                f"{where}: node {_show(label)} has the cluster {_show(value)}; a number or a name is needed."
            )
    if all(_whole(value) for value in values):
        return torch.tensor([int(value) for value in values])
    order = {
        name: code for code, name in enumerate(sorted({str(value) for value in values}, key=lambda s: (natural(s), s)))
    }
    return torch.tensor([order[str(value)] for value in values])


def _counts(values: list[Any], labels: list[Hashable], where: str) -> Tensor:
    for label, value in zip(labels, values, strict=True):
        if not _whole(value) or value < 0:
            raise UserError(
                f"{where}: node {_show(label)} has the budget {_show(value)}; a whole number >= 0 is needed."
            )
    return torch.tensor([int(value) for value in values])


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def _show(value: Any) -> str:
    """Format a value for a message, with at most 60 characters."""
    try:
        text = repr(value)
    except Exception as error:  # the label is of a user's own class, or an integer that is too long to print
        text = reason(error)
    return text if len(text) <= 60 else f"{text[:57]}..."
