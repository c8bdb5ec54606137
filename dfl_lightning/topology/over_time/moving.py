"""Topologies that a class of the user's makes, a graph for each round."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import networkx as nx
import numpy as np
import torch

from dfl_lightning.topology.formats.contradictions import ContradictionError
from dfl_lightning.topology.formats.matrices import from_any_matrix
from dfl_lightning.topology.formats.read import GraphRead
from dfl_lightning.topology.over_time.scheduled import GraphSequence, Step
from dfl_lightning.topology.reading.normalise import to_topology
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments, arguments_of
from dfl_lightning.utils.code.users_code import account_of
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.randomness.global_generators import no_global_draws
from dfl_lightning.utils.randomness.random_streams import numpy_stream


class MovingTopology(RecordsArguments):
    """Base class of a user's topology that makes the graph of each round in Python.

    Attributes:
        directed: True if links are arcs, from a sender to a receiver.
    """

    directed: bool = False

    def graph(self, round: int, clients: int, random: np.random.Generator) -> Any:
        """Return the graph of a round.

        It must follow from the arguments and the constructor's alone: a run that is resumed, and each of several
        processes, asks for the rounds that it needs, some of them twice, and must get the same graphs.

        Args:
            round: index of the round, from 0.
            clients: number of clients m.
            random: generator for random draws, the same in each call for a round.

        Returns:
            A networkx graph of the clients 0, …, m-1, in which clients that are not nodes are away; a matrix [m, m]
            whose rows receive from their columns; or pairs (a, b) of clients, or (a, b, weight). If `directed`, a
            sends to b.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement graph(round, clients, random)")


def moving_of(content: Mapping[str, Any], where: str) -> MovingTopology:
    """Make the object that the keys `class_path` and `init_args` of a topology name.

    Args:
        content: keys and values of a topology.
        where: the source, for error messages.

    Raises:
        UserError: there is no such class, it is not a `MovingTopology`, or its arguments are wrong.
    """
    arguments = content.get("init_args") or {}
    if not isinstance(arguments, Mapping) or not all(isinstance(name, str) for name in arguments):
        raise UserError(f"{where}: init_args takes names and values, for example init_args: {{k: 4}}.")
    cls = class_named(content.get("class_path"), where)
    try:
        inspect.signature(cls).bind(**arguments)
    except TypeError as error:
        takes = ", ".join(inspect.signature(cls).parameters) or "none"
        raise UserError(f"{where}: {cls.__name__} has other arguments ({reason(error)}); it takes {takes}.") from error
    try:
        made = cls(**arguments)
    except Exception as error:  # the constructor is the user's
        raise UserError(f"{where}: {cls.__name__} cannot be made ({account_of(error)}).") from error
    assert isinstance(made, MovingTopology)
    return made


def class_named(path: Any, where: str) -> type:
    """Import the class of a moving topology.

    Args:
        path: the class's import path, such as `mine.Commuters`.
        where: the source, for error messages.

    Raises:
        UserError: there is no such class, or it is not a `MovingTopology`.
    """
    if not isinstance(path, str) or "." not in path:
        raise UserError(f"{where}: class_path takes the path of a class, for example mine.Commuters.")
    module, _, name = path.rpartition(".")
    try:
        cls = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(
            f"{where}: class_path {path} cannot be imported ({account_of(error)}); put its file into the working "
            "folder, or name its folder with --class_folders."
        ) from error
    if not inspect.isclass(cls) or not issubclass(cls, MovingTopology):
        raise UserError(f"{where}: class_path {path} is not a subclass of dfl_lightning.topology.MovingTopology.")
    return cls


def schedule_of_moving(moving: MovingTopology, clients: int, seed: int) -> GraphSequence:
    """Return the schedule of a moving topology, after its first graph was made twice and compared.

    Args:
        moving: the user's object.
        clients: number of clients m.
        seed: seed of its random draws.

    Raises:
        UserError: it does not return a graph of the clients, or not the same one twice.
    """
    first, again = (_step(moving, clients, seed, None, 0) for _ in range(2))
    weights, others = (
        step.links.count.new_empty(0) if step.weights is None else step.weights for step in (first, again)
    )
    if not (torch.equal(first.links.codes, again.links.codes) and torch.equal(weights, others)):
        raise UserError(
            f"{type(moving).__name__}.graph(0) returns another graph when it is called again; let it follow from "
            "round, clients and random alone, since a resumed run asks for each round anew."
        )
    kind = type(moving)
    recipe = f"{kind.__module__}.{kind.__qualname__} {sorted((arguments_of(moving) or {}).items())} from seed {seed}"
    return GraphSequence(
        partial(_step, moving, clients, seed, first),
        None,
        recipe,
        moving.directed,
        first.mixing,
        "another in each round",
    )


def _step(moving: MovingTopology, clients: int, seed: int, first: Step | None, number: int) -> Step:
    """Let the user's object make the graph of a round, and check it."""
    name = f"{type(moving).__name__}.graph({number})"

    def draws(generators: str) -> str:
        return f"{name} draws from {generators}, so that a resumed run would differ; draw from its argument random."

    with no_global_draws(draws):
        try:
            made = moving.graph(number, clients, numpy_stream(seed, "topology", number))
        except Exception as error:  # the method is the user's
            raise UserError(f"{name} fails ({account_of(error)}).") from error
    read = _read(made, clients, moving.directed, name)
    if read.graph.is_directed() and not moving.directed:
        raise UserError(f"{name} returns a directed graph; set directed = True in the class.")
    there = torch.tensor([client in read.graph for client in range(clients)])
    graph = read.graph.to_directed() if moving.directed else read.graph.copy()
    graph.add_nodes_from(range(clients))
    topology = to_topology(GraphRead(graph, read.mixing), clients, name, "moving")
    links, weights = topology.linked(0), topology.weights()
    step = Step(links, weights, None if bool(there.all()) else there, topology.mixing)
    if first is not None and len(links) and len(first.links) and _weighed(step) != _weighed(first):
        raise UserError(
            f"{name} has {_weighed(step)}, and graph(0) has {_weighed(first)}; let all rounds have the same."
        )
    return step


def _weighed(step: Step) -> str:
    return "a mixing matrix" if step.mixing else "no weights" if step.weights is None else "weights"


def _read(made: Any, clients: int, directed: bool, name: str) -> GraphRead:
    """Convert what a user's class returns to a graph of the clients' ids."""
    if isinstance(made, nx.Graph):
        for node in made:
            _check_id(node, clients, name)
        return GraphRead(made)
    try:
        read = from_any_matrix(made)
    except ContradictionError as error:
        raise UserError(f"{name}: {error}.") from error
    if read is not None:
        if len(read.graph) != clients:
            raise UserError(f"{name} returns a matrix of {len(read.graph)} rows; give {clients}, one for each client.")
        return read
    if isinstance(made, str | bytes | Mapping) or not isinstance(made, Iterable):
        raise UserError(f"{name} returns {_what(made)}; give a networkx graph, a matrix, or pairs of clients.")
    graph = nx.MultiDiGraph() if directed else nx.MultiGraph()
    graph.add_nodes_from(range(clients))
    for pair in made:
        if not isinstance(pair, tuple | list) or len(pair) not in (2, 3):
            raise UserError(f"{name} has the entry {ascii(pair)[:40]}; give pairs of clients, (0, 1) for example.")
        ends = [_check_id(end, clients, name) for end in pair[:2]]
        graph.add_edge(*ends, **({"weight": pair[2]} if len(pair) == 3 else {}))
    return GraphRead(graph)


def _check_id(node: Any, clients: int, name: str) -> int:
    if isinstance(node, bool) or not isinstance(node, int | np.integer) or not 0 <= node < clients:
        raise UserError(f"{name} has the node {ascii(node)[:40]}; nodes are the ids of clients, 0 to {clients - 1}.")
    return int(node)


def _what(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"
