"""Loading of topologies from a file, a shipped name, a mapping or a graph."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import torch
import yaml

from dfl_lightning.topology.formats.contradictions import ContradictionError
from dfl_lightning.topology.formats.files import FORMATS, read_bytes, read_graph
from dfl_lightning.topology.formats.matrices import from_any_matrix
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.topology.graph import Topology
from dfl_lightning.topology.over_time.link_failures import LinkFailures
from dfl_lightning.topology.over_time.moving import MovingTopology, class_named, schedule_of_moving
from dfl_lightning.topology.over_time.scheduled import Scheduled
from dfl_lightning.topology.over_time.schedules import SCHEDULES, method_name
from dfl_lightning.topology.reading.normalise import to_topology
from dfl_lightning.topology.reading.spec import KEYS, from_keys
from dfl_lightning.utils.errors import UserError, reason, shortened
from dfl_lightning.utils.storage import shipped_files
from dfl_lightning.utils.storage.yaml_files import MOST_BYTES, DoubledKeyError, UniqueKeyLoader

Matrix = np.ndarray | torch.Tensor | list
"""A matrix of links, [m, m]; a sparse one of scipy is taken too."""


def load_topology(
    source: str | os.PathLike[str] | Mapping[str, Any] | nx.Graph | Matrix | MovingTopology,
    num_clients: int,
    seed: int = 0,
) -> Topology:
    """Load the topology of a run.

    Args:
        source: the path of a topology file (.yaml) or of a graph file (.graphml, .gexf, .edgelist, .csv, …), the name
            of a shipped topology, the content of a topology file as a mapping, a networkx graph, a matrix [m, m] of
            numpy, torch or scipy whose entry (i, j) lets client i receive from client j, or a `MovingTopology`.
        num_clients: number of clients m, which must equal the graph's number of nodes.
        seed: the run's seed, for random generators and failing links if the file does not set one.

    Raises:
        UserError: the source is missing, malformed or of another size; the message names it.

    Examples:
        >>> load_topology({"generator": "complete"}, num_clients=24).describe()
        'complete graph: 24 nodes, 276 links, connected, spectral gap 1.04'
        >>> load_topology(np.array([[0.5, 0.5], [0.5, 0.5]]), num_clients=2).weights().tolist()
        [0.5, 0.5]
    """
    if (read := _from_matrix(source)) is not None:
        return to_topology(read, num_clients, "topology matrix", "given")
    if isinstance(source, MovingTopology):
        schedule = schedule_of_moving(source, num_clients, seed)
        return Scheduled.of(schedule, num_clients, type(source).__name__, LinkFailures())
    if isinstance(source, nx.Graph):
        return to_topology(source, num_clients, "topology graph", str(source.name or "given"))
    if isinstance(source, Mapping):
        return from_keys(_with_numbers(source), num_clients, seed, "topology", None, Path())
    if not isinstance(source, str | os.PathLike):
        raise UserError(
            f"topology={shortened(repr(source), 60)}: a path, a name, a mapping, a networkx graph or a matrix is "
            "needed; leave it out for complete."
        )
    path = _find(source)
    if path.suffix.lower() in FORMATS:
        return to_topology(read_graph(path, num_clients), num_clients, str(path), path.stem)
    if path.suffix.lower() not in (".yaml", ".yml"):
        known = ", ".join((".yaml", ".yml", *FORMATS))
        raise UserError(f"{path}: unknown topology format '{path.suffix}'; known are: {known}.")
    return from_keys(_read_yaml(path), num_clients, seed, str(path), path.stem, path.parent)


def _from_matrix(source: Any) -> GraphRead | None:
    """Return the graph of a matrix; None if the source is no matrix."""
    try:
        return from_any_matrix(source)
    except ContradictionError as error:
        raise UserError(f"topology matrix: {error}.") from error


def own_class(source: Any) -> type | None:
    """Return the user's class that a topology is made by; None if there is none.

    Args:
        source: the topology of a run, as `load_topology` takes it.
    """
    if isinstance(source, MovingTopology):
        return type(source)
    if isinstance(source, str | os.PathLike):
        path = _find(source)
        source = _read_yaml(path) if path.suffix.lower() in (".yaml", ".yml") else None
    items = source.get("sequence") if isinstance(source, Mapping) else None
    for keys in (source, *(items if isinstance(items, list) else ())):
        if isinstance(keys, Mapping) and "class_path" in keys:
            return class_named(keys["class_path"], "topology")
    return None


def method_of(source: Any) -> str:
    """Return the name, for reports, of a method that is named after its topology; empty if there is none.

    Args:
        source: the topology of a config: a name, a mapping or a path. A path gives no name, as its file may have
            changed since the run.

    Examples:
        >>> method_of("el_local"), method_of({"generator": "base_graph"}), method_of("ring")
        ('EL-Local', 'Base-2 graph', '')
    """
    keys = _keys_of(source)
    return method_name(str(keys.get("generator")), keys.get("args") or {})


def moves(source: Any) -> bool:
    """Return True if the topology of a config is another graph in later rounds by plan, not only where links fail.

    Args:
        source: the topology of a config: a name, a mapping or a path. What a path holds is not known, as its file may
            have changed since the run.

    Examples:
        >>> moves("el_local"), moves({"generator": "erdos_renyi", "every": 5}), moves("failing_links")
        (True, True, False)
    """
    keys = _keys_of(source)
    return str(keys.get("generator")) in SCHEDULES or any(keys.get(key) for key in ("every", "sequence", "class_path"))


def _keys_of(source: Any) -> Mapping[str, Any]:
    """Return the keys of a topology in a config, of a shipped one by its name; none of a path."""
    if isinstance(source, str) and source in (files := shipped_files.shipped("topologies")):
        path = files[source]
        source = _read_yaml(path) if path.suffix == ".yaml" else None
    return source if isinstance(source, Mapping) else {}


def _with_numbers(value: Any) -> Any:
    """Convert texts that are numbers, since `--topology.args.servers 2` of a command line arrives as a text.

    Examples:
        >>> _with_numbers({"args": {"k": "4", "p": "0.1"}, "generator": "small"})
        {'args': {'k': 4, 'p': 0.1}, 'generator': 'small'}
    """
    if isinstance(value, Mapping):
        return {key: _with_numbers(inner) for key, inner in value.items()}
    if isinstance(value, str):
        for number in (int, float):
            try:
                return number(value)
            except ValueError:
                continue
    return value


def _find(source: str | os.PathLike[str]) -> Path:
    try:
        return shipped_files.find("topologies", os.fspath(source))
    except (OSError, ValueError) as error:  # the name is not valid on this file system
        raise UserError(f"topology: {ascii(os.fspath(source))[:80]} is not a path ({reason(error)}).") from error


class _Loader(UniqueKeyLoader):
    """A loader of YAML that refuses aliases, as topology files need none and nested ones could expand to gigabytes."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not allowed")
        return super().compose_node(parent, index)


def _read_yaml(path: Path) -> Mapping[str, Any]:
    data = read_bytes(path, MOST_BYTES)
    try:
        content = yaml.load(data, Loader=_Loader)
    except DoubledKeyError as error:
        raise UserError(f"{path}, {error}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UserError(f"{path}: not YAML ({line}{error.problem or reason(error)}).") from error
    except Exception as error:  # the constructors of numbers and dates raise many types of errors
        raise UserError(f"{path}: not YAML ({reason(error)}).") from error
    if not isinstance(content, Mapping):
        raise UserError(f"{path}: keys are needed ({', '.join(KEYS)}), not a {type(content).__name__}.")
    return content
