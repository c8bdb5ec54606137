"""Graphs that follow a schedule: the links of a round are a list, made from the number of the round."""

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
    """What links clients in a round.

    Attributes:
        links: of the m clients.
        weights: entries of the round's mixing matrix beside them, float64 [E]; None: the graph has none.
    """

    links: Links
    weights: Tensor | None = None


class GraphSequence(NamedTuple):
    """The graphs of all rounds.

    Attributes:
        step: the links of a round, by its number, or by its number within the period.
        period: rounds after which the graphs are those of the first rounds again; None: never.
        recipe: generator, arguments and seed, in words: they decide all graphs.
        arcs: whether some client may receive from another that does not receive from it.
        mixing: whether the steps have weights.
    """

    step: Callable[[int], Step]
    period: int | None
    recipe: str
    arcs: bool = False
    mixing: bool = False


@dataclass(frozen=True, eq=False)
class Listed(Topology):
    """One graph whose links are listed.

    Attributes:
        weighed: weights of the links, float64 [E]; None: they have none.
        arcs: whether it is directed.
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
    """A graph for each round by a schedule; as a `Topology` it is the first of them.

    Attributes:
        schedule: what makes the links of a round.
    """

    schedule: GraphSequence = field(kw_only=True)
    _latest: dict[int, Topology] = field(default_factory=dict, repr=False)  # one graph: the others can be made again

    @classmethod
    def of(cls, schedule: GraphSequence, clients: int, name: str, failures: LinkFailures) -> Scheduled:
        """The topology of a schedule.

        Args:
            schedule: makes the links.
            clients: m.
            name: of the topology.
            failures: which of the links are up.
        """
        graph = nx.empty_graph(clients)
        return cls(graph, list(graph), name=name, failures=failures, mixing=schedule.mixing, schedule=schedule)

    @property
    def changes(self) -> bool:
        """Whether there is more than one graph, or links fail."""
        return self.schedule.period != 1 or self.failures.fail

    @property
    def graphs(self) -> tuple[Topology, ...]:
        """The first graph."""
        return (self.at(0),)

    @property
    def graph(self) -> nx.Graph:
        """That of the first round."""
        return self.at(0).graph

    def at(self, round: int) -> Topology:
        """The graph of a round."""
        period = self.schedule.period
        number = round if period is None else round % period
        if number not in self._latest:
            step, arcs = self.schedule.step(number), self.schedule.arcs
            graph = Listed(
                self.written, self.labels, name=self.name, failures=self.failures, mixing=self.mixing,
                listed=step.links, weighed=step.weights, arcs=arcs,
            )  # fmt: skip
            self._latest.clear()
            self._latest[number] = graph
        return self._latest[number]

    def facts(self) -> list[str]:
        """The nodes, and the graphs: their number, sizes and degrees, and whether they link all nodes together."""
        period = self.schedule.period
        if period is None:
            return [*self.at(0).facts(), "drawn anew in each round"]
        several = [self.schedule.step(number).links for number in range(period)]
        sizes = [len(links) // (1 if self._of_arcs else 2) for links in several]
        least = min(int(links.count.min()) for links in several)
        most = max(int(links.count.max()) for links in several)
        receivers = torch.cat([links.receivers for links in several])
        senders = torch.cat([links.senders for links in several])
        together = Links(receivers, senders, self.num_nodes)
        connected = "strongly connected" if self._of_arcs else "connected"
        parts = [
            count(self.num_nodes, "node"),
            f"{count(period, 'graph')} in turn",
            f"{_span(sizes)} {'arc' if self._of_arcs else 'link'}{'s' * (max(sizes) != 1)} each",
            f"{'in-' * self._of_arcs}degree{'s' * (least < most)} {_span([least, most])}",
            f"together {connected}" if not components(together, "strong").any() else "together not connected",
        ]
        return [*parts, self.failures.describe()] if self.failures.fail else parts

    def graph_warnings(self, when: str = "") -> list[str]:
        """Those of a single client; others have links in some round."""
        return super().graph_warnings(when) if self.num_clients == 1 else []

    def share_warnings(self) -> list[str]:
        """Those of the first graph."""
        return self.at(0).share_warnings()

    def identity(self) -> str:
        """What makes the links."""
        links = f", {self.failures.describe()} by seed {self.failures.seed}" if self.failures.fail else ""
        return f"{count(self.num_nodes, 'node')}, {self.schedule.recipe}{links}"

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
    """From the least to the largest: `3`, or `2-5`."""
    return f"{min(numbers)}" if min(numbers) == max(numbers) else f"{min(numbers)}-{max(numbers)}"
