"""A graph as it was read, before its nodes become clients."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx


@dataclass(frozen=True)
class GraphRead:
    """A graph as it was read from a file or a matrix.

    Attributes:
        graph: a networkx graph.
        mixing: True if the weights of its links are entries of a mixing matrix.
        remark: a sentence for the user about what was read; empty if there is none.
        lists_links: True if it was read from lines, in which a client without links has a line of its own.
    """

    graph: nx.Graph
    mixing: bool = False
    remark: str = ""
    lists_links: bool = False
