"""Topologies with a random graph that is drawn again every few rounds, or with several graphs in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import networkx as nx

from dfl_lightning.topology.graph import Topology, count
from dfl_lightning.topology.over_time.scheduled import Scheduled
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream_seed

_ATTEMPTS = 10


@dataclass(frozen=True, eq=False)
class Redrawn(Topology):
    """A random graph that is drawn again every few rounds; its attributes as a `Topology` are of the first graph.

    Attributes:
        draw: function that draws the graph of a seed.
        seed: seed of the first graph; the seeds of later ones are from the stream (seed, "topology", index of the
            graph).
        every: number of rounds for each graph.
        recipe: generator and arguments in words, which together with the seed determine all graphs.
    """

    draw: Callable[[int], Topology] = field(kw_only=True)
    seed: int = 0
    every: int = 1
    recipe: str = ""
    _latest: dict[int, Topology] = field(default_factory=dict, repr=False)  # only one graph; others can be drawn again

    @property
    def changes(self) -> bool:
        """Always True."""
        return True

    def at(self, round: int) -> Topology:
        """Return the graph of a round; in a sequence, only the rounds of this topology count.

        Raises:
            UserError: the generator failed, or made graphs of another size, ten times.
        """
        number = round // self.every
        if number == 0:
            return self
        if number not in self._latest:
            graph = self._draw_graph(number)
            self._latest.clear()
            self._latest[number] = graph
        return self._latest[number]

    def _draw_graph(self, number: int) -> Topology:
        """Draw a graph; if the generator fails (for example to make a connected graph), try other seeds."""
        for attempt in range(_ATTEMPTS):
            name = (number, attempt) if attempt else (number,)
            try:
                return self.draw(stream_seed(self.seed, "topology", *name) % 2**32)  # networkx takes 32 bits
            except UserError as error:
                last = error
        raise UserError(f"{str(last).removesuffix('.')}; so it was {_ATTEMPTS} times for redrawn graph {number + 1}.")

    def facts(self) -> list[str]:
        """Describe the first graph, and the number of rounds after which another one is drawn."""
        often = "in each round" if self.every == 1 else f"every {self.every} rounds"
        return [*super().facts(), f"drawn anew {often}"]

    def graph_warnings(self, when: str = " at first") -> list[str]:
        """Warn of clients without neighbours in the first graph; later graphs are not known yet."""
        return super().graph_warnings(when)

    def identity(self) -> str:
        """Return the identity of the first graph and the recipe of the others; see `Topology.identity`."""
        return f"{super().identity()}, {self.recipe} from seed {self.seed} anew every {self.every}"


@dataclass(frozen=True, eq=False)
class Sequence(Topology):
    """Several graphs of the same nodes in turn; its attributes as a `Topology` are of their union.

    Attributes:
        stages: the graphs.
        rounds: number of rounds for each graph.
        repeat: True to begin again after the last graph; otherwise the last one stays.
    """

    stages: tuple[Topology, ...] = ()
    rounds: tuple[int, ...] = ()
    repeat: bool = False

    @property
    def changes(self) -> bool:
        """Always True."""
        return True

    @property
    def graphs(self) -> tuple[Topology, ...]:
        """The graphs."""
        return self.stages

    def at(self, round: int) -> Topology:
        """Return the graph of a round; a stage that changes counts its own rounds only."""
        cycle, left = divmod(round, sum(self.rounds)) if self.repeat else (0, round)
        last = len(self.stages) - 1
        for index, (stage, duration) in enumerate(zip(self.stages, self.rounds, strict=True)):
            if left < duration or (index == last and not self.repeat):
                return stage.at(cycle * duration + left)
            left -= duration
        raise AssertionError("rounds are counted from 0")

    def facts(self) -> list[str]:
        """Describe the nodes, then the graphs with their numbers of rounds."""
        parts = []
        for index, (stage, rounds) in enumerate(zip(self.stages, self.rounds, strict=True)):
            is_rest = index == len(self.stages) - 1 and not self.repeat
            duration = "the rest" if is_rest else count(rounds, "round")
            facts = stage.facts()[1:] if stage.members is None else stage.facts()
            parts.append(f"{stage.name} for {duration} ({', '.join(facts)})")
        if len(parts) > 4:
            parts[3:] = [f"{len(parts) - 3} more"]
        turns = f"{', then '.join(parts)}{', then again' if self.repeat else ''}"
        clients = count(self.num_clients, "client" if self.num_servers else "node")
        servers = f" and {count(self.num_servers, 'server')}" if self.num_servers else ""
        return [clients + servers, turns]

    @property
    def directed(self) -> bool:
        """True if in some round a client may receive from another one that does not receive from it."""
        return any(stage.directed for stage in self.stages)

    def graph_warnings(self, when: str = "") -> list[str]:
        """Return the warnings of the union of all graphs; none if a stage changes, as its links are not known."""
        unknown = any(isinstance(stage, (Redrawn, Scheduled)) for stage in self.stages)
        return [] if unknown else super().graph_warnings(when)

    def warnings(self) -> list[str]:
        """Return the remarks on all graphs, and the warnings of their union."""
        remarks = [line for stage in self.stages for line in stage.remarks]
        return list(dict.fromkeys([*remarks, *super().warnings()]))

    def share_warnings(self) -> list[str]:
        """Return the different warnings of all graphs about link shares."""
        return list(dict.fromkeys(line for stage in self.stages for line in stage.share_warnings()))

    def identity(self) -> str:
        """Return the identities of all graphs with their numbers of rounds; see `Topology.identity`."""
        durations = (*self.rounds[:-1], self.rounds[-1] if self.repeat else "the rest")
        turns = ", then ".join(
            f"{stage.identity()} for {rounds}" for stage, rounds in zip(self.stages, durations, strict=True)
        )
        join = ", new clients start from their neighbours" if self.join == "neighbours" else ""
        return turns + (", then again" if self.repeat else "") + join


def union(stages: tuple[Topology, ...]) -> nx.Graph:
    """Return a graph with the links of all graphs, up or down, which is directed if one of them is."""
    graph = nx.DiGraph() if any(stage._of_arcs for stage in stages) else nx.Graph()
    for stage in stages:
        graph.add_nodes_from(stage.written)
        graph.add_edges_from(stage.edges())
        if graph.is_directed() and not stage._of_arcs:
            graph.add_edges_from((v, u) for u, v in stage.edges())
    return graph
