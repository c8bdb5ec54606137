"""The topology of a run: a graph over the clients, the servers, and their links."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from dfl_lightning.links import AllPairs, Links
from dfl_lightning.topology.over_time.link_failures import LinkFailures

# With more nodes, the eigenvalues of a dense matrix, which the spectral gap needs, would take too long.
_LARGEST_SPECTRUM = 2000


def spectral_gap(links: Links) -> float:
    """Compute the second smallest eigenvalue of the normalised Laplacian of a graph.

    It is 0 for a disconnected graph, n/(n-1) for the complete one and 1 - cos(2 pi/n) for a ring. Arcs are read as
    links, since the normalised Laplacian is symmetric; a node without links adds an eigenvalue 0. The speed at which
    models approach each other does not follow from it, as this also depends on the weights of the aggregation.

    Args:
        links: links of n >= 2 nodes, few enough for a dense matrix.

    Examples:
        >>> round(spectral_gap(AllPairs.of_nodes(24)), 2)
        1.04
    """
    reachable = links.mask
    linked = (reachable | reachable.T).double()
    degrees = linked.sum(1)
    scale = torch.where(degrees > 0, degrees, 1.0).rsqrt()
    laplacian = torch.diag((degrees > 0).double()) - scale[:, None] * linked * scale
    gap = float(torch.linalg.eigvalsh(laplacian)[1])
    return 0.0 if abs(gap) < 1e-10 else gap


def count(number: int, word: str) -> str:
    """Format a number with its noun, for example `1 link` or `2 links`.

    Args:
        number: >= 0.
        word: the noun in the singular.
    """
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _some(ids: list[int]) -> str:
    """List at most ten ids, for a message."""
    shown = ", ".join(map(str, ids[:10]))
    return shown if len(ids) <= 10 else f"{shown} and {len(ids) - 10} more"


def _without_neighbours(isolated: Tensor) -> str:
    """Name isolated clients, bool [n], in a phrase to which a caller appends ` alone`; empty if there are none."""
    ids = torch.nonzero(isolated).flatten().tolist()
    if len(ids) == 1:
        return f"client {ids[0]} has no neighbours and trains"
    return f"clients {_some(ids)} have no neighbours and train" if ids else ""


@dataclass(frozen=True, eq=False)
class Topology:
    """The links between clients, in one graph for all rounds; subclasses have graphs that change.

    Nodes are the m clients, ids 0..m-1, and after them c servers, ids m..m+c-1: n = m + c. In matrices the row is the
    receiver and the column the sender.

    Attributes:
        written: a simple networkx graph over the clients' ids, without its links if these are in `listed` or the graph
            is complete. It is directed if the source is: with an arc j -> i, i receives from j.
        labels: the label of each client in its source, by id.
        num_servers: c, the number of nodes without data that are linked to all clients in both directions.
        name: the name of the file without suffix, or of the generator.
        clusters: node attribute `cluster`, long [m], or None.
        budgets: node attribute `budget` (how many neighbours a client may choose), long [m], or None.
        failures: the random process of links that are down in a round.
        complete: True if all nodes are linked to each other.
        mixing: True if the weights of links are entries of a mixing matrix. The weight of a receiver's own model is
            1 minus the sum of its links' weights.
        listed: the links; None: those of `written`.
        members: the clients that are there, bool [m]; None: all of them. Others neither train nor send nor receive.
        remarks: sentences for the user about what was read.
        join: the model from which a client trains for the first time, `own` or `neighbours`; see `Dropout`.
    """

    written: nx.Graph
    labels: list[Hashable]
    num_servers: int = 0
    name: str = "given"
    clusters: Tensor | None = None
    budgets: Tensor | None = None
    failures: LinkFailures = field(default_factory=LinkFailures)
    complete: bool = False
    mixing: bool = False
    listed: Links | None = None
    members: Tensor | None = None
    remarks: tuple[str, ...] = ()
    join: str = "own"

    @property
    def _title(self) -> str:
        return f"{self.name.removesuffix('_graph')} graph"

    @property
    def num_clients(self) -> int:
        """The number of clients, m."""
        return len(self.written)

    @property
    def num_nodes(self) -> int:
        """Clients and servers, n = m + c."""
        return self.num_clients + self.num_servers

    @property
    def servers(self) -> Tensor:
        """A mask that is True for servers, bool [n]."""
        return torch.arange(self.num_nodes) >= self.num_clients

    @property
    def directed(self) -> bool:
        """True if in some round a client may receive from another one that does not receive from it."""
        return self._of_arcs or self.failures.one_way

    @property
    def changes(self) -> bool:
        """True if the links may differ between rounds."""
        return self.failures.fail

    @property
    def graphs(self) -> tuple[Topology, ...]:
        """The graphs that are known before the first round."""
        return (self,)

    def at(self, round: int) -> Topology:
        """Return the graph of a round as a topology that does not change."""
        return self

    def linked(self, round: int) -> Links:
        """Return all links of a round, up or down, without links from a node to itself.

        Args:
            round: the communication round.
        """
        return self.at(round)._links

    def reachable(self, round: int) -> Links:
        """Return the links that are up in a round, without links from a node to itself.

        Args:
            round: the communication round.
        """
        graph = self.at(round)
        return graph.failures.that_are_up(graph._links, round, graph._of_arcs)

    def present(self, round: int) -> Tensor:
        """Return the clients that are there in a round, bool [m].

        Args:
            round: the communication round.
        """
        members = self.at(round).members
        return torch.ones(self.num_clients, dtype=torch.bool) if members is None else members

    def weights(self, round: int = 0) -> Tensor | None:
        """Return the weights of all links of a round, float64 [len(linked)]; None if the links have no weights.

        Args:
            round: the communication round.
        """
        return self.at(round)._weights

    def describe(self) -> str:
        """Describe nodes, links, degrees, components, spectral gap and changes over the rounds in one line.

        A degree is the number of clients that a client receives from; degrees are left out for a complete graph. The
        spectral gap (`spectral_gap`) is left out for more than 2,000 nodes. All numbers include links that may be down.

        Examples:
            >>> Topology(nx.cycle_graph(8), list(range(8)), name="ring").describe()
            'ring graph: 8 nodes, 8 links, degree 2, connected, spectral gap 0.293'
        """
        return f"{self._title}: {', '.join(self.facts())}"

    def facts(self) -> list[str]:
        """Return the parts of the line of `describe`, beginning with the nodes."""
        if self.members is not None:
            return [f"{int(self.members.sum())} of {count(self.num_nodes, 'node')}", *self._part().facts()[1:]]
        links, n = self._links, self.num_nodes
        in_degrees = links.count
        low, high = int(in_degrees.min()), int(in_degrees.max())
        if self.num_servers:
            parts = [f"{count(self.num_clients, 'client')} and {count(self.num_servers, 'server')}"]
        else:
            parts = [count(n, "node")]
        parts.append(self._size())
        if low < n - 1 and not self.num_servers:
            word = "in-degree" if self._of_arcs else "degree"
            parts.append(f"{word} {low}" if low == high else f"{word}s {low}-{high}")
        parts.append(self._connection())
        if 2 <= n <= _LARGEST_SPECTRUM:
            parts.append(f"spectral gap {spectral_gap(links):.3g}")
        if self.failures.fail:
            parts.append(self.failures.describe())
        return parts

    def warnings(self) -> list[str]:
        """Return warnings for the user about clients without neighbours, several components and useless link shares."""
        return [*self.remarks, *self.graph_warnings(), *self.share_warnings()]

    def graph_warnings(self, when: str = "") -> list[str]:
        """Warn of clients without links, and of groups of clients without links between them.

        Args:
            when: words that limit the warning to a time, for example " at first"; groups are then not mentioned.
        """
        who = _without_neighbours(self._links.count == 0)
        lines = [f"{self._title}: {who} alone{when}."] if who else []
        parts = int((torch.bincount(self._components()) > 1).sum())
        if parts > 1 and not when:
            lines.append(f"{self._title}: disconnected, {parts} groups of clients never learn from each other.")
        return lines

    def share_warnings(self) -> list[str]:
        """Warn if a share of few links, rounded, is all of a client's links or none."""
        degrees, share = self._links.count, self.failures.share
        num_up = self.failures.numbers(degrees)
        if share == 1 or not degrees.any():
            return []
        if torch.equal(num_up, degrees):
            return [f"{self._title}: link_share {share:g} of so few links is all of them, in every round."]
        who = _without_neighbours((num_up == 0) & (degrees > 0))
        return [f"{self._title}: link_share {share:g} of so few links is none: {who} alone."] if who else []

    def identity(self) -> str:
        """Return a description that must be equal for a run and its continuation; names and labels are not in it."""
        codes = None if isinstance(self._links, AllPairs) else self._links.codes
        tensors = (codes, self._weights, self.clusters, self.budgets, *([] if self.members is None else [self.members]))
        content = b"/".join(b"" if tensor is None else tensor.numpy().tobytes() for tensor in tensors)
        links = f", {self.failures.describe()} by seed {self.failures.seed}" if self.failures.fail else ""
        return f"{self._size()} (graph {hashlib.blake2b(content, digest_size=4).hexdigest()}){links}"

    def _part(self) -> Topology:
        """Return the graph of the clients that are there, with ids of its own."""
        assert self.members is not None
        place = self.members.cumsum(0) - 1
        links, number = self._links, int(self.members.sum())
        nodes = nx.empty_graph(number, create_using=nx.DiGraph if self._of_arcs else nx.Graph)
        listed = Links.of(place[links.receivers], place[links.senders], number)
        return Topology(nodes, list(nodes), name=self.name, failures=self.failures, listed=listed)

    @property
    def _of_arcs(self) -> bool:
        return bool(self.written.is_directed())

    def _size(self) -> str:
        arcs = len(self._links)
        return count(arcs, "arc") if self._of_arcs else count(arcs // 2, "link")

    @cached_property
    def _links(self) -> Links:
        """All links, up or down, those of servers included."""
        n, m = self.num_nodes, self.num_clients
        if self.num_servers:
            clients, servers = torch.arange(m), torch.arange(m, n)
            up, down = servers.repeat_interleave(m), clients.repeat(len(servers))
            senders, receivers = self._ends()
            return Links.of(torch.cat([up, down, receivers]), torch.cat([down, up, senders]), n)
        if self.listed is not None:
            return self.listed
        edges = self.written.number_of_edges() * (1 if self._of_arcs else 2)
        if self.complete or edges == n * (n - 1):
            return AllPairs.of_nodes(n)
        senders, receivers = self._ends()
        return Links.of(receivers, senders, n)

    @cached_property
    def _weights(self) -> Tensor | None:
        values = [value for _, _, value in self.written.edges(data="weight")]
        if not values or values[0] is None:
            return None
        senders, receivers = self._ends()
        numbers = torch.tensor(values, dtype=torch.float64)
        weights = torch.zeros(len(self._links), dtype=torch.float64)
        weights[self._links.places(receivers, senders)] = numbers if self._of_arcs else numbers.repeat(2)
        return weights

    @cached_property
    def graph(self) -> nx.Graph:
        """The clients and all links between them as a networkx graph, without servers; made at the first access.

        It is directed if links are: with an arc j -> i, i receives from j. Edges have the attribute `weight` if links
        have weights.
        """
        if self.listed is None and not self.complete:
            return self.written
        graph = nx.DiGraph() if self._of_arcs else nx.Graph()
        graph.add_nodes_from(self.written)
        graph.add_edges_from(itertools.combinations(graph, 2) if self.complete else self.edges())
        if (weights := self._weights) is not None:
            ends = zip(self._links.senders.tolist(), self._links.receivers.tolist(), strict=True)
            nx.set_edge_attributes(graph, dict(zip(ends, weights.tolist(), strict=True)), "weight")
        return graph

    def edges(self) -> Iterator[tuple[int, int]]:
        """Yield the links of `listed`, or of `written`; undirected ones once, arcs as (sender, receiver)."""
        if self.listed is None:
            yield from self.written.edges()
            return
        for sender, receiver in zip(self.listed.senders.tolist(), self.listed.receivers.tolist(), strict=True):
            if sender < receiver or self._of_arcs:
                yield sender, receiver

    def _ends(self) -> tuple[Tensor, Tensor]:
        """Return senders and receivers of the edges of `written`, long [links] each; undirected ones in both ways."""
        ends = torch.tensor(list(self.written.edges()), dtype=torch.long).reshape(-1, 2)
        if self._of_arcs:
            return ends[:, 0], ends[:, 1]
        return ends.T.reshape(-1), ends.flip(1).T.reshape(-1)

    def _components(self, kind: str = "weak") -> Tensor:
        """Return the index of each node's component, long [n]; see `components`."""
        if self.num_servers or self.complete:
            return torch.zeros(self.num_nodes, dtype=torch.long)
        return components(self._links, kind)

    def _connection(self) -> str:
        parts = int(self._components().max()) + 1
        if parts > 1:
            return f"{parts} components"
        if self.complete or not self._of_arcs:
            return "connected"
        return "weakly connected" if self._components("strong").any() else "strongly connected"


def components(links: Links, kind: str = "weak") -> Tensor:
    """Return the index of each node's connected component, long [n].

    Args:
        links: links of n nodes.
        kind: `weak`: arcs are read as links; `strong`: each node of a component can be reached from each other one
            along arcs.

    Examples:
        >>> components(Links.from_mask(torch.tensor([[False, True, False]] + [[False] * 3] * 2))).tolist()
        [0, 0, 1]
    """
    # The import takes a part of a second, and complete graphs do not need it.
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    n, ends = links.nodes, (links.receivers.numpy(), links.senders.numpy())
    matrix = coo_array((np.ones(len(links), dtype=np.int8), ends), shape=(n, n))
    return torch.from_numpy(connected_components(matrix, directed=True, connection=kind)[1]).long()
