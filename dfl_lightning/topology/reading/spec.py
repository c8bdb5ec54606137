"""Construction of a topology from the keys of a topology file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dfl_lightning.topology.graph import Topology
from dfl_lightning.topology.over_time.sequence import sequence_of
from dfl_lightning.topology.reading.single import (
    KEYS_OF_A_GRAPH,
    KINDS,
    Context,
    graph_of,
    inside,
    join_of,
    refuse_unknown,
)
from dfl_lightning.utils.errors import UserError

KEYS = (*KEYS_OF_A_GRAPH, "sequence", "repeat", "join")


def from_keys(
    content: Mapping[str, Any], num_clients: int, seed: int, where: str, name: str | None, folder: Path
) -> Topology:
    """Build the topology that the keys of a file describe.

    Args:
        content: keys and values of the file.
        num_clients: number of clients m, which must equal each graph's number of nodes.
        seed: the run's seed, for random draws, unless the keys set one.
        where: the source, for error messages.
        name: name of the topology; None: that of its generator or graph file.
        folder: folder to which paths of graph files are relative.

    Raises:
        UserError: the keys do not describe a topology of this size.
    """
    refuse_unknown(content, KEYS, where)
    kinds = [key for key in (*KINDS, "sequence") if key in content]
    if len(kinds) != 1:
        raise UserError(f"{where}: exactly one of the keys generator, graph, class_path and sequence is needed.")
    if content.get("init_args") is not None and kinds != ["class_path"]:
        raise UserError(f"{where}: init_args goes with class_path; a generator takes args.")
    context = inside(content, Context(where, name, folder, num_clients, seed))
    if kinds == ["sequence"]:
        return sequence_of(content, context)
    if content.get("repeat") is not None:
        raise UserError(f"{where}: repeat goes with sequence; a single graph holds for ever.")
    if kinds == ["class_path"]:
        return replace(graph_of(content, context), join=join_of(content, where))
    if content.get("join") is not None:
        raise UserError(
            f"{where}: join goes with sequence, whose clients come and go; with a trace of dropouts it is dropout.join."
        )
    return graph_of(content, context)
