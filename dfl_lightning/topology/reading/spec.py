"""From the keys of a topology file to a topology."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dfl_lightning.topology.graph import Topology
from dfl_lightning.topology.over_time.sequence import sequence_of
from dfl_lightning.topology.reading.single import KEYS_OF_A_GRAPH, Context, graph_of, inside, refuse_unknown
from dfl_lightning.utils.errors import UserError

KEYS = (*KEYS_OF_A_GRAPH, "sequence", "repeat")


def from_keys(
    content: Mapping[str, Any], num_clients: int, seed: int, where: str, name: str | None, folder: Path
) -> Topology:
    """The topology that the keys of a file describe.

    Args:
        content: keys and values.
        num_clients: m, which every graph must have as nodes.
        seed: the run's seed, for draws where the keys have none.
        where: the source, for error messages.
        name: what the topology is called; None: after its generator or graph file.
        folder: that paths of graph files start from.

    Raises:
        UserError: anything that is not a topology of this size, in one sentence.
    """
    refuse_unknown(content, KEYS, where)
    kinds = [key for key in ("generator", "graph", "sequence") if key in content]
    if len(kinds) != 1:
        raise UserError(f"{where}: exactly one of the keys generator, graph and sequence is needed.")
    place = inside(content, Context(where, name, folder, num_clients, seed))
    if kinds == ["sequence"]:
        return sequence_of(content, place)
    if content.get("repeat") is not None:
        raise UserError(f"{where}: repeat goes with sequence; a single graph holds for ever.")
    return graph_of(content, place)
