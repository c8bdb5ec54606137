"""Topologies that follow a schedule, which makes a list of links from the index of a round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import networkx as nx
import torch
from torch import Tensor

from dfl_lightning.links import Links
from dfl_lightning.topology.graph import Topology, components, count
from dfl_lightning.topology.over_time.link_failures import LinkFailures


class Step(NamedTuple):
    """The graph of a round.

    Attributes:
        links: links of the m clients.
        weights: entries of the round's mixing matrix for these links, float64 [E]; None: links have no weights.
        members: the clients that are there, bool [m]; None: all of them.
        mixing: True if the weights are entries of a mixing matrix.
    """

    links: Links
    weights: Tensor | None = None
    members: Tensor | None = None
    mixing: bool = False


class GraphSequence(NamedTuple):
    """The graphs of all rounds.

    Attributes:
        step: function that makes the graph of a round from the round's index, within the period if there is one.
        period: number of rounds after which the graphs repeat; None: they never do.
        recipe: generator, arguments and seed in words, which determine all graphs.
        arcs: True if links are arcs: a client may receive from another one that does not receive from it.
        mixing: True if the steps have weights that are entries of a mixing matrix.
        again: how the graphs follow each other if they never repeat, in words.
    """

    step: Callable[[int], Step]
    period: int | None
    recipe: str
    arcs: bool = False
    mixing: bool = False
    again: str = "drawn anew in each round"


@dataclass(frozen=True, eq=False)
class Listed(Topology):
    """A topology of one graph with a list of links and their weights.

    Attributes:
        weighed: weights of the links, float64 [E]; None: links have no weights.
        arcs: True if the graph is directed.
    """

    weighed: Tensor | None = None
    arcs: bool = False

    @property
    def _of_arcs(self) -> bool:
        return self.arcs

    @cached_property
    def _weights(self) -> Tensor | None:
        return self.weighed


@dataclass(frozen=True, eq=False)
class Scheduled(Topology):
    """A topology with a graph for each round by a schedule; its attributes as a `Topology` are of the first graph.

    Attributes:
        schedule: the schedule that makes the graphs.
    """

    schedule: GraphSequence = field(kw_only=True)
    _latest: dict[int, Topology] = field(default_factory=dict, repr=False)  # only one graph; others can be made again

    @classmethod
    def of(cls, schedule: GraphSequence, clients: int, name: str, failures: LinkFailures) -> Scheduled:
        """Create the topology of a schedule.

        Args:
            schedule: the schedule that makes the graphs.
            clients: number of clients m.
            name: name of the topology.
            failures: the random process of links that are down in a round.
        """
        graph = nx.empty_graph(clients)
        return cls(graph, list(graph), name=name, failures=failures, mixing=schedule.mixing, schedule=schedule)

    @property
    def changes(self) -> bool:
        """True if there is more than one graph, or links may fail."""
        return self.schedule.period != 1 or self.failures.fail

    @property
    def graphs(self) -> tuple[Topology, ...]:
        """The graph of the first round, as the only one that is made before a run."""
        return (self.at(0),)

    @property
    def graph(self) -> nx.Graph:
        """The networkx graph of the first round."""
        return self.at(0).graph

    def at(self, round: int) -> Topology:
        """Make the graph of a round; see `Topology.at`."""
        period = self.schedule.period
        number = round if period is None else round % period
        if number not in self._latest:
            step, arcs = self.schedule.step(number), self.schedule.arcs
            graph = Listed(
                self.written, self.labels, name=self.name, failures=self.failures, mixing=self.mixing,
                listed=step.links, members=step.members, weighed=step.weights, arcs=arcs,
            )  # fmt: skip
            self._latest.clear()
            self._latest[number] = graph
        return self._latest[number]

    def facts(self) -> list[str]:
        """Describe the nodes, the graphs' number, sizes and degrees, and the connection of all graphs together.

        If the graphs never repeat, the first graph is described.
        """
        period = self.schedule.period
        if period is None:
            return [*self.at(0).facts(), self.schedule.again]
        several = [self.schedule.step(number).links for number in range(period)]
        sizes = [len(links) // (1 if self._of_arcs else 2) for links in several]
        least = min(int(links.count.min()) for links in several)
        most = max(int(links.count.max()) for links in several)
        receivers = torch.cat([links.receivers for links in several])
        senders = torch.cat([links.senders for links in several])
        all_links = Links(receivers, senders, self.num_nodes)
        connected = "strongly connected" if self._of_arcs else "connected"
        parts = [
            count(self.num_nodes, "node"),
            f"{count(period, 'graph')} in turn",
            f"{_span(sizes)} {'arc' if self._of_arcs else 'link'}{'s' * (max(sizes) != 1)} each",
            f"{'in-' * self._of_arcs}degree{'s' * (least < most)} {_span([least, most])}",
            f"together {connected}" if not components(all_links, "strong").any() else "together not connected",
        ]
        return [*parts, self.failures.describe()] if self.failures.fail else parts

    def graph_warnings(self, when: str = "") -> list[str]:
        """Warn of a single client; with several clients, each has links in some round."""
        return super().graph_warnings(when) if self.num_clients == 1 else []

    def share_warnings(self) -> list[str]:
        """Return the warnings about link shares in the first graph."""
        return self.at(0).share_warnings()

    def identity(self) -> str:
        """Return the number of nodes, the recipe of the graphs and the failures; see `Topology.identity`."""
        links = f", {self.failures.describe()} by seed {self.failures.seed}" if self.failures.fail else ""
        join = ", new clients start from their neighbours" if self.join == "neighbours" else ""
        return f"{count(self.num_nodes, 'node')}, {self.schedule.recipe}{links}{join}"

    @property
    def _of_arcs(self) -> bool:
        return self.schedule.arcs

    @cached_property
    def _links(self) -> Links:
        return self.at(0)._links

    @cached_property
    def _weights(self) -> Tensor | None:
        return self.at(0)._weights


def _span(numbers: list[int]) -> str:
    """Format the range of some numbers, for example `2-5`, or `3` if all are equal."""
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)}-{max(numbers)}"
