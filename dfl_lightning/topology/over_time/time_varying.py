"""Graphs that change from round to round: one that is drawn anew, and several in turn."""

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
    """A random graph that is drawn anew every few rounds; as a `Topology` it is the first of its graphs.

    Attributes:
        draw: makes the graph of a seed.
        seed: of the first graph; the later ones draw theirs from the stream (seed, "topology", number of the graph).
        every: rounds that a graph holds.
        recipe: what else decides the graphs, in words.
    """

    draw: Callable[[int], Topology] = field(kw_only=True)
    seed: int = 0
    every: int = 1
    recipe: str = ""
    _latest: dict[int, Topology] = field(default_factory=dict, repr=False)  # one graph: the others can be drawn again

    @property
    def changes(self) -> bool:
        """True."""
        return True

    def at(self, round: int) -> Topology:
        """The graph of a round; the clock of a graph in a sequence is its own.

        Raises:
            UserError: the generator gave up, or made graphs of another size, ten times.
        """
        number = round // self.every
        if number == 0:
            return self
        if number not in self._latest:
            graph = self._drawn(number)
            self._latest.clear()
            self._latest[number] = graph
        return self._latest[number]

    def _drawn(self, number: int) -> Topology:
        """A generator that may give up (no connected graph in so many tries) gets other seeds."""
        for attempt in range(_ATTEMPTS):
            words = (number, attempt) if attempt else (number,)
            try:
                return self.draw(stream_seed(self.seed, "topology", *words) % 2**32)  # networkx takes 32 bits
            except UserError as error:
                last = error
        raise UserError(f"{str(last).removesuffix('.')}; so it was {_ATTEMPTS} times for redrawn graph {number + 1}.")

    def facts(self) -> list[str]:
        """What is known of the first graph, and how long it holds."""
        often = "in each round" if self.every == 1 else f"every {self.every} rounds"
        return [*super().facts(), f"drawn anew {often}"]

    def graph_warnings(self, when: str = " at first") -> list[str]:
        """Clients without neighbours at first; later graphs are not known yet."""
        return super().graph_warnings(when)

    def identity(self) -> str:
        """The first graph and the recipe of the others."""
        return f"{super().identity()}, {self.recipe} from seed {self.seed} anew every {self.every}"


@dataclass(frozen=True, eq=False)
class Sequence(Topology):
    """Several graphs of the same nodes in turn; as a `Topology` it is their union.

    Attributes:
        stages: the graphs.
        rounds: how many rounds each of them holds.
        repeat: start again after the last one; otherwise the last one holds for ever.
    """

    stages: tuple[Topology, ...] = ()
    rounds: tuple[int, ...] = ()
    repeat: bool = False

    @property
    def changes(self) -> bool:
        """True."""
        return True

    @property
    def graphs(self) -> tuple[Topology, ...]:
        """The graphs."""
        return self.stages

    def at(self, round: int) -> Topology:
        """The graph of a round, which has counted only the rounds that were its own."""
        again, left = divmod(round, sum(self.rounds)) if self.repeat else (0, round)
        last = len(self.stages) - 1
        for place, (stage, held) in enumerate(zip(self.stages, self.rounds, strict=True)):
            if left < held or (place == last and not self.repeat):
                return stage.at(again * held + left)
            left -= held
        raise AssertionError("rounds are counted from 0")

    def facts(self) -> list[str]:
        """The nodes, then the graphs with their rounds."""
        told = []
        for place, (stage, held) in enumerate(zip(self.stages, self.rounds, strict=True)):
            rest = place == len(self.stages) - 1 and not self.repeat
            how_long = "the rest" if rest else count(held, "round")
            told.append(f"{stage.name} for {how_long} ({', '.join(stage.facts()[1:])})")
        if len(told) > 4:
            told[3:] = [f"{len(told) - 3} more"]
        turns = f"{', then '.join(told)}{', then again' if self.repeat else ''}"
        return [self.stages[0].facts()[0], turns]

    @property
    def directed(self) -> bool:
        """Whether some client may receive from another that does not receive from it, in some round."""
        return any(stage.directed for stage in self.stages)

    def graph_warnings(self, when: str = "") -> list[str]:
        """As of one graph with the links of all; nothing where one changes by itself, whose links are not listed."""
        unknown = any(isinstance(stage, (Redrawn, Scheduled)) for stage in self.stages)
        return [] if unknown else super().graph_warnings(when)

    def share_warnings(self) -> list[str]:
        """Those of the graphs, each once."""
        return list(dict.fromkeys(line for stage in self.stages for line in stage.share_warnings()))

    def identity(self) -> str:
        """All graphs with their rounds."""
        held = (*self.rounds[:-1], self.rounds[-1] if self.repeat else "the rest")
        turns = ", then ".join(
            f"{stage.identity()} for {rounds}" for stage, rounds in zip(self.stages, held, strict=True)
        )
        return turns + (", then again" if self.repeat else "")


def union(stages: tuple[Topology, ...]) -> nx.Graph:
    """The links of all graphs, up or down; directed where one of them is."""
    graph = nx.DiGraph() if any(stage._of_arcs for stage in stages) else nx.Graph()
    for stage in stages:
        graph.add_nodes_from(stage.written)
        graph.add_edges_from(stage.edges())
        if graph.is_directed() and not stage._of_arcs:
            graph.add_edges_from((v, u) for u, v in stage.edges())
    return graph
