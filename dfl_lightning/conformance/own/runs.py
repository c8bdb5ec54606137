"""Rounds of this library on numbers that are given: models, data, who is active, and what is drawn."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import networkx as nx
import numpy as np
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.callbacks.base import Dropout
from dfl_lightning.data import ClientData, FederatedData
from dfl_lightning.engines.draws import Draws
from dfl_lightning.engines.local_work import Duration, JobContext, Phase
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.module import DFLModule
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.objective import Objective
from dfl_lightning.round.record import Round
from dfl_lightning.trainer import DFLTrainer

__all__ = ["BatchRun", "GivenRun", "GivenTraining", "dense", "graph_of", "memory_of", "without_data"]


class GivenTraining(Objective):
    """Local training ends at models that are given, the row set `given`."""

    stackable = recordable = True
    row_sets = {"given": "zeros"}

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one step on everything."""
        return (Phase(self, Duration(0, steps=1), layout.all),)

    def step(self, ctx: JobContext) -> None:
        """Put the given model in the place of the client's."""
        model = ctx.model()
        model.grad(ctx.next_batch())
        model.assign(ctx.rows("given"))


class GivenRun:
    """A run that starts from given rows.

    Args:
        policies: its policies.
        x: inputs of each client, [samples, inputs] each; training data, and validation data too.
        y: their classes.
        layers: widths of the network.
        topology: a networkx graph or `server`.
        rows: of row sets by name, where the run starts: a row for all, or the first rows.
        objective: the local rule.
        active: who is active, [m].
        round: number of the first round.
        samples: numbers of training samples, where they are not those of x.
        model: options of `DFLModule`.
        rounds: number of rounds of the run.
        trainer: options of `DFLTrainer`.
    """

    def __init__(
        self,
        policies: Sequence[Callback],
        x: Sequence[np.ndarray],
        y: Sequence[np.ndarray],
        layers: Sequence[int],
        topology: Any,
        rows: Mapping[str, np.ndarray],
        objective: Objective | None = None,
        active: np.ndarray | None = None,
        round: int = 0,
        samples: np.ndarray | None = None,
        model: Mapping[str, Any] | None = None,
        rounds: int = 1,
        trainer: Mapping[str, Any] | None = None,
    ) -> None:
        up = [] if active is None else [_Planned(active)]
        self.trainer = DFLTrainer(
            max_rounds=round + rounds,
            topology=topology,
            callbacks=[*up, *policies],
            accelerator="cpu",
            precision="64-true",
            enable_progress_bar=False,
            **(trainer or {}),
        )
        options: dict[str, Any] = {
            "network": network(layers),
            "local_epochs": 1,
            "batch_size": "full",
            "optimizer": functools.partial(torch.optim.SGD, lr=0.0),
            "objective": objective or GivenTraining(),
        }
        self.module = DFLModule(**{**options, **(model or {})})
        self.trainer.prepare(self.module, _GivenData(x, y, layers[-1], samples))
        self.bank = self.module.bank
        boundary = self.bank.boundary
        kept = {name: own.clone() for name, own in boundary.rows.items()}
        for name, given in rows.items():
            if name in kept:
                first = len(given) if np.ndim(given) == 2 else len(kept[name])
                kept[name][:first] = torch.as_tensor(given, dtype=torch.float64)
        self.bank.boundary = boundary._replace(rows=kept, round=round)

    def go(self, draws: Mapping[str, Tensor] | None = None, rounds: int = 1) -> Round:
        """Play rounds one after the other; return the record of the last one.

        Args:
            draws: matrices by purpose: numbers, or bool where links are drawn, instead of random ones; several matrices
                [words, n, n] where a purpose has further words.
            rounds: how many.
        """
        protocol = RoundProtocol(self.trainer)
        for _ in range(rounds):
            begun = _GivenDraws(protocol, draws or {}).begin()
            protocol.train(begun)
            protocol.mix(begun)
            protocol.commit(begun)
            self.bank.boundary = self.bank.boundary._replace(closed=True, callbacks=protocol.capture())
        return begun

    def rows(self, name: str = "models") -> np.ndarray:
        """Return a row set after the rounds, [n, P]."""
        return self.bank.boundary.rows[name].numpy().copy()


class BatchRun(GivenRun):
    """A run that trains from given rows on batches in a given order, with plain SGD.

    Args:
        policies: its policies.
        x: inputs of each client, [batches, samples, inputs] each.
        y: their classes, [batches, samples].
        layers: widths of the network.
        topology: a networkx graph, or a topology's words.
        rows: where the run starts, see `GivenRun`.
        objective: the local rule.
        lr: learning rate.
        epochs: of a round; more than one, as more than one round, only where clients have one batch each.
        active: who is active, [m].
        rounds: of the run.
        engine: of the run.
        first_round: number of the first round.
        model: further options of `DFLModule`.
    """

    def __init__(
        self,
        policies: Sequence[Callback],
        x: Sequence[np.ndarray],
        y: Sequence[np.ndarray],
        layers: Sequence[int],
        topology: Any,
        rows: Mapping[str, np.ndarray],
        objective: Objective,
        lr: float,
        epochs: int = 1,
        active: np.ndarray | None = None,
        rounds: int = 1,
        engine: str = "stacked",
        first_round: int = 0,
        **model: Any,
    ) -> None:
        options = {
            "local_epochs": epochs,
            "batch_size": x[0].shape[1],
            "optimizer": functools.partial(torch.optim.SGD, lr=lr),
            **model,
        }
        flat = [part.reshape(-1, part.shape[-1]) for part in x]
        labels, trainer = [part.ravel() for part in y], {"engine": engine}
        places = policies, flat, labels, layers, topology, rows, objective, active, first_round
        super().__init__(*places, model=options, rounds=rounds, trainer=trainer)
        data, seed = self.module.data, self.module.federation.seed
        for client, batches in enumerate(x):
            if len(batches) > 1:  # samples lie so that the first epoch takes them in the given order
                if epochs * rounds > 1 or first_round:
                    raise NotImplementedError("several batches in several epochs, whose order is drawn anew")
                own = data.train[client]
                (order,) = Draws(seed, "local", round=0).orders_of(client, 0, 1, len(own))
                data.images[own[order]] = torch.as_tensor(flat[client]).float()
                data.labels[own[order]] = torch.as_tensor(y[client].ravel())

    def set_number(self, name: str, values: np.ndarray) -> None:
        """Set the clients' numbers where the run starts.

        Args:
            name: of the numbers.
            values: [m].
        """
        boundary = self.bank.boundary
        numbers = {**boundary.numbers, name: torch.as_tensor(values, dtype=torch.float64)}
        self.bank.boundary = boundary._replace(numbers=numbers)

    def number(self, name: str) -> np.ndarray:
        """Return the clients' numbers after the rounds, [m]."""
        return self.bank.boundary.numbers[name].numpy().copy()


class _GivenDraws:
    """A round whose draws are given, by their purpose."""

    def __init__(self, protocol: RoundProtocol, draws: Mapping[str, Tensor]) -> None:
        self.protocol, self.draws = protocol, draws

    def begin(self) -> Round:
        new: Callable[[], Round] = self.protocol._new_round

        def with_draws() -> Round:
            round: Any = new()
            draw, numbers = round.draw, round.draws

            def given_draw(links: Links, k: Any, purpose: str, *words: int) -> Links:
                if purpose in self.draws:
                    return links.keep(self.draws[purpose][links.receivers, links.senders])
                return draw(links, k, purpose, *words)

            def given_numbers(links: Links, purpose: str, *words: int) -> Tensor:
                if purpose in self.draws:
                    return self.draws[purpose][words][links.receivers, links.senders]
                return numbers(links, purpose, *words)

            round.draw, round.draws = given_draw, given_numbers
            return round

        self.protocol._new_round = with_draws  # type: ignore[method-assign]
        try:
            return self.protocol.begin()
        finally:
            self.protocol._new_round = new  # type: ignore[method-assign]


class _Planned(Dropout):
    """Who is active, as given."""

    def __init__(self, active: np.ndarray) -> None:
        super().__init__()
        self.active = torch.as_tensor(active)

    def draw(self, round: Round) -> Tensor:
        """The same in every round."""
        return self.active


class _GivenData(FederatedData):
    """Inputs and classes of clients as they are given, for training and for validation."""

    def __init__(
        self, x: Sequence[np.ndarray], y: Sequence[np.ndarray], classes: int, samples: np.ndarray | None
    ) -> None:
        super().__init__(num_clients=len(x))
        sizes = [len(labels) for labels in y]
        own = torch.arange(sum(sizes)).split(sizes)
        train = (
            own
            if samples is None
            else [part[torch.arange(int(n)) % len(part)] for part, n in zip(own, samples, strict=True)]
        )
        self._clients = ClientData(
            images=torch.as_tensor(np.concatenate(list(x))).float(),
            labels=torch.as_tensor(np.concatenate(list(y))),
            train=train,  # type: ignore[arg-type]
            val=own,
            test=[part[:0] for part in own],  # type: ignore[arg-type]
            global_test=None,
            clusters=None,
            num_classes=classes,
            scale=torch.tensor(1.0),
            shift=torch.tensor(0.0),
        )

    def load(self) -> Any:
        """Everything is there already."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Everything is there already."""


def network(layers: Sequence[int]) -> nn.Sequential:
    """Linear layers with tanh between them.

    Args:
        layers: widths, inputs first.
    """
    found: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(layers):
        found += [nn.Linear(int(inputs), int(outputs)), nn.Tanh()]
    return nn.Sequential(*found[:-1])


def without_data(m: int, width: int) -> tuple[list[np.ndarray], list[np.ndarray], list[int]]:
    """Make inputs and classes that play no part, and a network of so many parameters.

    Args:
        m: number of clients.
        width: of a row, 2 or more.
    """
    return [np.zeros((1, width - 1))] * m, [np.zeros(1, np.int64)] * m, [width - 1, 1]


def graph_of(mask: np.ndarray) -> nx.DiGraph:
    """Build a directed graph with an edge from a sender to its receiver.

    Args:
        mask: bool [m, m], receiver by sender.
    """
    graph = nx.DiGraph()
    graph.add_nodes_from(range(len(mask)))
    graph.add_edges_from((int(sender), int(receiver)) for receiver, sender in np.argwhere(mask))
    return graph


def memory_of(values: np.ndarray, mask: np.ndarray) -> LinkMemory:
    """Build the numbers of links as a policy remembers them.

    Args:
        values: [m, m].
        mask: which of them are known.
    """
    memory = LinkMemory.empty(len(values))
    links = Links.from_mask(torch.as_tensor(mask))
    memory.write(links, torch.as_tensor(values, dtype=torch.float64)[links.receivers, links.senders])
    return memory


def dense(links: Links, values: Tensor | None = None, fill: float = float("nan")) -> np.ndarray:
    """Lay links, or numbers beside them, out as a matrix.

    Args:
        links: receiver by sender.
        values: [E]; None: whether there is a link.
        fill: where there is no link.
    """
    return links.mask.numpy() if values is None else links.dense(values, fill).numpy()
