"""The topology of a run: a graph over the clients, the servers beside them, and the masks made of both."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import networkx as nx
import torch
from torch import Tensor

# Above this many nodes the dense eigenvalues behind the spectral gap cost more than the line is worth.
_LARGEST_SPECTRUM = 2000


def spectral_gap(reachable: Tensor) -> float:
    """Second smallest eigenvalue of the normalised Laplacian: how fast gossip spreads.

    It is 0 for a disconnected graph, n/(n-1) for the complete one and 1 - cos(2 pi/n) for a ring. Arcs are read as
    links, since the normalised Laplacian is symmetric; a node without links adds an eigenvalue 0.

    Args:
        reachable: who hears whom, bool [n, n], n >= 2.

    Example:
        >>> round(spectral_gap(~torch.eye(24, dtype=torch.bool)), 2)
        1.04
    """
    links = (reachable | reachable.T).double()
    degrees = links.sum(1)
    scale = torch.where(degrees > 0, degrees, 1.0).rsqrt()
    laplacian = torch.diag((degrees > 0).double()) - scale[:, None] * links * scale
    gap = float(torch.linalg.eigvalsh(laplacian)[1])
    return 0.0 if abs(gap) < 1e-10 else gap


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _some(ids: list[int]) -> str:
    shown = ", ".join(map(str, ids[:10]))
    return shown if len(ids) <= 10 else f"{shown} and {len(ids) - 10} more"


@dataclass(frozen=True, eq=False)
class Topology:
    """Who can talk to whom.

    Nodes are the m clients, ids 0..m-1, and after them c servers, ids m..m+c-1: n = m + c. In every matrix the row
    is the receiver and the column the sender.

    Attributes:
        graph: a simple networkx graph over the clients' ids; directed where the source is: an arc j -> i lets i hear j.
        labels: the label of each client in its source, by id.
        num_servers: c, nodes without data that hear every client and are heard by every client.
        name: the name of the file without suffix, or of the generator.
        clusters: node attribute `cluster`, long [m], or None.
        budgets: node attribute `budget` (how many neighbours a client may choose), long [m], or None.
    """

    graph: nx.Graph
    labels: list[Hashable]
    num_servers: int = 0
    name: str = "given"
    clusters: Tensor | None = None
    budgets: Tensor | None = None

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return len(self.graph)

    @property
    def num_nodes(self) -> int:
        """Clients and servers, n = m + c."""
        return self.num_clients + self.num_servers

    @property
    def servers(self) -> Tensor:
        """Which nodes are servers, bool [n]."""
        return torch.arange(self.num_nodes) >= self.num_clients

    @property
    def directed(self) -> bool:
        """Whether some client may hear another without being heard."""
        return bool(self.graph.is_directed())

    def reachable(self, round: int) -> Tensor:
        """Whom each node hears in a round, bool [n, n], a fresh tensor without self loops.

        Args:
            round: the communication round; graphs do not change over time yet.
        """
        mask = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.bool)
        senders, receivers = self._ends()
        mask[receivers, senders] = True
        if not self.directed:
            mask[senders, receivers] = True
        servers = self.servers
        return mask | (servers[:, None] ^ servers[None, :])

    def weights(self) -> Tensor | None:
        """Edge attribute `weight`, float64 [n, n] with 0 where there is no link, or None where links carry none."""
        values = [value for _, _, value in self.graph.edges(data="weight")]
        if not values or values[0] is None:
            return None
        matrix = torch.zeros(self.num_nodes, self.num_nodes, dtype=torch.float64)
        senders, receivers = self._ends()
        matrix[receivers, senders] = torch.tensor(values, dtype=torch.float64)
        if not self.directed:
            matrix[senders, receivers] = torch.tensor(values, dtype=torch.float64)
        return matrix

    def describe(self) -> str:
        """Nodes, links, degrees, components and spectral gap in one line.

        Degrees count whom a client hears; they are left out where everybody hears everybody. The spectral gap
        (`spectral_gap`) is left out above 2,000 nodes.

        Example:
            >>> Topology(nx.cycle_graph(8), list(range(8)), name="ring").describe()
            'ring graph: 8 nodes, 8 links, degree 2, connected, spectral gap 0.293'
        """
        mask = self.reachable(0)
        n = self.num_nodes
        arcs = int(mask.sum())
        heard = mask.sum(1)
        low, high = int(heard.min()), int(heard.max())
        if self.num_servers:
            parts = [f"{_count(self.num_clients, 'client')} and {_count(self.num_servers, 'server')}"]
        else:
            parts = [_count(n, "node")]
        parts.append(_count(arcs, "arc") if self.directed else _count(arcs // 2, "link"))
        if low < n - 1 and not self.num_servers:
            word = "in-degree" if self.directed else "degree"
            parts.append(f"{word} {low}" if low == high else f"{word}s {low}-{high}")
        parts.append(self._connection())
        if 2 <= n <= _LARGEST_SPECTRUM:
            parts.append(f"spectral gap {spectral_gap(mask):.3g}")
        return f"{self.name} graph: {', '.join(parts)}"

    def warnings(self) -> list[str]:
        """What a person should know before training: clients that hear nobody, and a graph in several parts."""
        if self.num_servers:
            return []
        found = []
        alone = torch.nonzero(~self.reachable(0).any(1)).flatten().tolist()
        if alone:
            who = (
                f"client {alone[0]} hears nobody and trains"
                if len(alone) == 1
                else f"clients {_some(alone)} hear nobody and train"
            )
            found.append(f"{self.name} graph: {who} alone.")
        parts = [part for part in self._components() if len(part) > 1]
        if len(parts) > 1:
            found.append(
                f"{self.name} graph: disconnected, {len(parts)} groups of clients never learn from each other."
            )
        return found

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Senders and receivers of the graph's edges (an undirected one is listed once), long [links] each."""
        ends = torch.tensor(list(self.graph.edges()), dtype=torch.long).reshape(-1, 2)
        return ends[:, 0], ends[:, 1]

    def _components(self) -> list[set[int]]:
        search = nx.weakly_connected_components if self.directed else nx.connected_components
        return list(search(self.graph))

    def _connection(self) -> str:
        parts = 1 if self.num_servers else len(self._components())
        if parts > 1:
            return f"{parts} components"
        if not self.directed:
            return "connected"
        return "strongly connected" if nx.is_strongly_connected(self.graph) else "weakly connected"
