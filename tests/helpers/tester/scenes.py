"""Runs with many events: clients drop out and return, in one round all are down, and one has no neighbours."""

import contextlib
import copy
import functools
import math
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import torch
from torch import Tensor

from dfl_lightning import callbacks as cb
from dfl_lightning.data import FromDataset
from dfl_lightning.evaluation import reported_models
from dfl_lightning.functional import PairScores
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.models import MLP
from tester.renaming import Names
from tester.rounds import Run, toy_data
from tester.shipped import Listed, Scoring, trace

PLACES = {"clients": 0, "all clients": 0, "server": 1, "three servers": 3}
"""Where runs take place, with the number of servers; clients alone are linked in a ring that the last one is not in,
unless it is that of all clients."""

UP = ["1101111", "1011011", "0000000", "0110110", "1111111"]
"""Active clients of each round, unless there is another dropout; none in round 2."""

ROUNDS = len(UP)
ALL_DOWN, ISOLATED = 2, 6
CLUSTERS = [0, 0, 0, 1, 1, 1, 0]
SIZES = [6, 4, 5, 3, 4, 6, 5]
FEDERATION = list(range(len(SIZES)))


class Federation(FromDataset):
    """Data of clients that know their clusters, under any ids.

    Args:
        former: the former id of each client.
        **kwargs: of `FromDataset`, for the former ids.
    """

    def __init__(self, *args: Any, former: list[int], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.former = former

    @property
    def clients(self):
        data = super().clients
        parts = {split: tuple(getattr(data, split)[i] for i in self.former) for split in ("train", "val", "test")}
        return replace(data, clusters=torch.tensor([CLUSTERS[i] for i in self.former]), **parts)


def topology(place: str, former: list[int]) -> nx.Graph | dict[str, Any]:
    if PLACES[place]:
        return {"generator": "server", "args": {"servers": min(PLACES[place], len(former))}}
    graph = nx.Graph()
    graph.add_nodes_from(range(len(former)))
    if len(former) > 1:
        linked = len(former) if place == "all clients" else ISOLATED
        graph.add_edges_from(nx.circulant_graph(linked, [1, 2]).edges)
    for i, j in graph.edges:
        graph.edges[i, j]["weight"] = 1.0 + i + j / 10
    return nx.relabel_nodes(graph, {old: new for new, old in enumerate(former)})


@contextlib.contextmanager
def folder_of_traces(former: list[int]) -> Iterator[None]:
    """A working folder with the files that a dropout may read."""
    lines = {"trace": UP, "all_up": ["1" * len(SIZES)], "all_down": ["0" * len(SIZES)]}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name, rounds in lines.items():
            Path(f"{name}.txt").write_text("\n".join(" ".join(up[i] for i in former) for up in rounds))
        yield


def start(
    listed: Listed,
    place: str,
    make: Callable[[], cb.Policy] | None = None,
    also: tuple[Callable[[], cb.Policy], ...] = (),
    former: list[int] | None = None,
    engine: str = "loop",
    precision: str = "64-true",
    rounds: int = ROUNDS,
    **settings: Any,
) -> Run:
    """A run with the policy and its company, ready for its first round.

    Args:
        listed: the policy.
        place: of `PLACES`.
        make: makes the policy in another way than usual.
        also: makers of further policies.
        former: the former ids of the clients; default: their own; a shorter list is a smaller federation.
        engine: see `DFLTrainer`.
        precision: likewise.
        rounds: that the run is planned with.
        **settings: further options of the model.
    """
    former = FEDERATION if former is None else former
    with folder_of_traces(former):
        policies = [maker() for maker in (make or listed.make, *listed.company, *also)]
        for family, usual in ((cb.Selection, lambda: Scoring(k=3)), (cb.Aggregation, cb.Uniform), (cb.Dropout, trace)):
            absent = listed.all_present and family is cb.Dropout
            if not absent and not any(isinstance(policy, family) for policy in policies):
                policies.append(usual())
    model = {
        "network": MLP(hidden=[4]),
        "local_epochs": 1,
        "batch_size": max(SIZES),
        "optimizer": functools.partial(torch.optim.SGD, lr=0.3),
        **listed.settings,
        **settings,
    }
    sizes = SIZES if len(former) > 1 else SIZES[: len(former)]
    data = toy_data(sizes=sizes, val_fraction=1 / 3, kind=functools.partial(Federation, former=former))
    trainer = {"precision": precision, "engine": engine}
    return Run(policies, len(former), rounds, topology(place, former), data, model, trainer)


def pictures(run: Run, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Compute further rounds; return everything about each of them, see `picture`."""
    return [picture(run.go()) for _ in range(rounds)]


def picture(run: Run) -> dict[str, Any]:
    """All that the last round was, and left: tensors and plain values by name."""
    record = run.rounds[-1]
    rows = {**run.bank.boundary.rows, "reported": run.bank.materialise(reported_models(run.module))}
    found = {
        "index": record.record.index,
        "round": {name: value for name in vars(record.record) if isinstance(value := getattr(record, name), Tensor)},
        "trained": record.trained,
        "participants": record.participants,
        "substitute_rows": [some.rows for some in record.substitute_rows],
        "ledger": vars(record.ledger),
        "metrics": record.metrics,
        "rows": rows,
        "state": {type(policy).__name__: attributes(policy) for policy in run.trainer.policies()},
    }
    if run.trainer.policy(cb.Prediction) is not None:
        found["evaluation"] = run.module.evaluate()
    return dict(leaves("", found))


def attributes(policy: cb.Policy) -> dict[str, Any]:
    """Return what a policy knows, without the record of how it was made."""
    return {
        name: value
        for name, value in vars(policy).items()
        if name not in ("_constructor_arguments", "_attributes_of_fits")
    }


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The tensors and plain values inside of dicts and lists, with their paths."""
    if isinstance(value, (dict, list, tuple)):
        inner = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in inner:
            yield from leaves(f"{name}.{key}".removeprefix("."), item)
    elif isinstance(value, Links):
        yield name, value.mask
    elif isinstance(value, LinkMemory):
        yield name, value.links.dense(value.values.double())
    elif isinstance(value, PairScores):
        yield from leaves(name, value.matrices())
    else:
        yield name, value.cpu().clone() if isinstance(value, Tensor) else copy.deepcopy(value)


def renamed(one: list[dict[str, Any]], names: Names) -> list[dict[str, Any]]:
    """Rename the clients in the pictures of a run."""

    def carried(name: str, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        value = names.carry(value)
        return names.new_rows[value] if name == "round.substitute" else value

    return [{name: carried(name, value) for name, value in one_round.items()} for one_round in one]


def agree(one: list[dict[str, Any]], other: list[dict[str, Any]], tolerance: float = 0.0) -> None:
    """Both runs were the same in every round, tensors up to a tolerance.

    Raises:
        AssertionError: names the first thing that differs.
    """
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name, value in a.items():
            where = f"round {a['index']}, {name}"
            if isinstance(value, Tensor) and isinstance(b[name], Tensor):
                torch.testing.assert_close(
                    b[name], value, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, at=where: f"{at}: {m}"
                )
            elif isinstance(value, float):
                known = not math.isnan(value) or not math.isnan(b[name])
                assert not known or math.isclose(value, b[name], rel_tol=tolerance, abs_tol=tolerance), where
            else:
                assert type(value) is type(b[name]), where
                assert value == b[name], where
