"""Rounds of this library on given numbers: models, data, active clients and random draws."""

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

__all__ = ["BatchRun", "GivenRun", "GivenTraining", "dense", "graph_of", "memory_of", "weights_of", "without_data"]


class GivenTraining(Objective):
    """Local training that ends at given models, the row set `given`."""

    stackable = recordable = True
    row_sets = {"given": "zeros"}

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one step on all parameters."""
        return (Phase(self, Duration(0, steps=1), layout.all),)

    def step(self, ctx: JobContext) -> None:
        """Replace the client's model by the given one."""
        model = ctx.model()
        model.grad(ctx.next_batch())
        model.assign(ctx.rows("given"))


class GivenRun:
    """A run that starts from given rows.

    Args:
        policies: policies of the run.
        x: inputs of each client, [samples, inputs] each; they are training and validation data.
        y: classes of these samples, [samples] for each client.
        layers: widths of the network, inputs first.
        topology: a networkx graph, `server`, or a topology's settings.
        rows: row sets by name at the start of the run: one row for all, or the first rows, [n, P].
        objective: local rule; None: `GivenTraining`.
        active: bool [m], which clients are active; None: all.
        round: number of the first round.
        samples: number of training samples of each client, [m]; None: as many as in x.
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
        dropout = [] if active is None else [_GivenActivity(active)]
        self.trainer = DFLTrainer(
            max_rounds=round + rounds,
            topology=topology,
            callbacks=[*dropout, *policies],
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
        start = {name: rows.clone() for name, rows in boundary.rows.items()}
        for name, given in rows.items():
            if name in start:
                first = len(given) if np.ndim(given) == 2 else len(start[name])
                start[name][:first] = torch.as_tensor(given, dtype=torch.float64)
        self.bank.boundary = boundary._replace(rows=start, round=round)

    def go(self, draws: Mapping[str, Tensor] | None = None, rounds: int = 1) -> Round:
        """Run rounds one after the other, and return the record of the last one.

        Args:
            draws: matrices by purpose instead of random ones: numbers [n, n], or bool [n, n] if links are drawn; with
                further axes in front if a purpose has further words.
            rounds: number of rounds.
        """
        protocol = RoundProtocol(self.trainer)
        for _ in range(rounds):
            begun = _GivenDraws(protocol, draws or {}).begin()
            protocol.train(begun)
            protocol.mix(begun)
            while (following := protocol.next_wave(begun)) is not None:
                begun = following
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
        policies: policies of the run.
        x: inputs of each client, [batches, samples, inputs] each.
        y: classes of these samples, [batches, samples] for each client.
        layers: widths of the network, inputs first.
        topology: a networkx graph, or a topology's settings.
        rows: row sets at the start of the run, see `GivenRun`.
        objective: local rule.
        lr: learning rate.
        epochs: epochs of a round; more than one, or several rounds, only if each client has one batch.
        active: bool [m], which clients are active; None: all.
        rounds: number of rounds of the run.
        engine: name of the engine, `stacked` or `loop`.
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
        arguments = policies, flat, labels, layers, topology, rows, objective, active, first_round
        super().__init__(*arguments, model=options, rounds=rounds, trainer=trainer)
        data, seed = self.module.federation.data, self.module.federation.seed
        for client, batches in enumerate(x):
            if len(batches) > 1:  # order the samples so that the first epoch takes the batches as given
                if epochs * rounds > 1 or first_round:
                    raise NotImplementedError("several batches allow one epoch only: later ones draw a new order")
                indices = data.train[client]
                (order,) = Draws(seed, "local", round=0).orders_of(client, 0, 1, len(indices))
                data.images[indices[order]] = torch.as_tensor(flat[client]).float()
                data.labels[indices[order]] = torch.as_tensor(y[client].ravel())

    def set_number(self, name: str, values: np.ndarray) -> None:
        """Set numbers of the clients for the start of the run.

        Args:
            name: name of the numbers, such as `alpha`.
            values: number of each client, [m].
        """
        boundary = self.bank.boundary
        numbers = {**boundary.numbers, name: torch.as_tensor(values, dtype=torch.float64)}
        self.bank.boundary = boundary._replace(numbers=numbers)

    def number(self, name: str) -> np.ndarray:
        """Return numbers of the clients after the rounds, [m]."""
        return self.bank.boundary.numbers[name].numpy().copy()


class _GivenDraws:
    """Start of rounds with given draws, by their purpose."""

    def __init__(self, protocol: RoundProtocol, draws: Mapping[str, Tensor]) -> None:
        self.protocol, self.draws = protocol, draws

    def begin(self) -> Round:
        new: Callable[[], Round] = self.protocol._new_round

        def with_draws() -> Round:
            round: Any = new()
            draw, numbers = round.draw_links, round.draw_uniform

            def given_draw(links: Links, k: Any, purpose: str, *words: int) -> Links:
                if purpose in self.draws:
                    return links.keep(self.draws[purpose][links.receivers, links.senders])
                return draw(links, k, purpose, *words)

            def given_numbers(links: Links, purpose: str, *words: int) -> Tensor:
                if purpose in self.draws:
                    return self.draws[purpose][words][links.receivers, links.senders]
                return numbers(links, purpose, *words)

            round.draw_links, round.draw_uniform = given_draw, given_numbers
            return round

        self.protocol._new_round = with_draws  # type: ignore[method-assign]
        try:
            return self.protocol.begin()
        finally:
            self.protocol._new_round = new  # type: ignore[method-assign]


class _GivenActivity(Dropout):
    """Dropout that leaves the given clients active."""

    def __init__(self, active: np.ndarray) -> None:
        super().__init__()
        self.active = torch.as_tensor(active)

    def draw(self, round: Round) -> Tensor:
        """Return the given clients in every round."""
        return self.active


class _GivenData(FederatedData):
    """Given inputs and classes of clients, for training and for validation."""

    def __init__(
        self, x: Sequence[np.ndarray], y: Sequence[np.ndarray], classes: int, samples: np.ndarray | None
    ) -> None:
        super().__init__(num_clients=len(x))
        sizes = [len(labels) for labels in y]
        indices = torch.arange(sum(sizes)).split(sizes)
        train = (
            indices
            if samples is None
            else [part[torch.arange(int(n)) % len(part)] for part, n in zip(indices, samples, strict=True)]
        )
        self._clients = ClientData(
            images=torch.as_tensor(np.concatenate(list(x))).float(),
            labels=torch.as_tensor(np.concatenate(list(y))),
            train=train,  # type: ignore[arg-type]
            val=indices,
            test=[part[:0] for part in indices],  # type: ignore[arg-type]
            global_test=None,
            clusters=None,
            num_classes=classes,
            scale=torch.tensor(1.0),
            shift=torch.tensor(0.0),
        )

    def load(self) -> Any:
        """Raise, since the data are given and never loaded."""
        raise NotImplementedError

    def setup(self, stage: str | None = None) -> None:
        """Skip the setup, since the data are given."""


def network(layers: Sequence[int]) -> nn.Sequential:
    """Build a network of linear layers with tanh between them.

    Args:
        layers: widths, inputs first.
    """
    modules: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(layers):
        modules += [nn.Linear(int(inputs), int(outputs)), nn.Tanh()]
    return nn.Sequential(*modules[:-1])


def without_data(m: int, width: int) -> tuple[list[np.ndarray], list[np.ndarray], list[int]]:
    """Return inputs and classes that have no effect, and the layers of a network with `width` parameters.

    Args:
        m: number of clients.
        width: number of parameters, 2 or more.
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
    """Store numbers of links as a policy remembers them.

    Args:
        values: numbers, [m, m], receiver by sender.
        mask: bool [m, m], which of them are known.
    """
    memory = LinkMemory.empty(len(values))
    links = Links.from_mask(torch.as_tensor(mask))
    memory.write(links, torch.as_tensor(values, dtype=torch.float64)[links.receivers, links.senders])
    return memory


def dense(links: Links, values: Tensor | None = None, fill: float = float("nan")) -> np.ndarray:
    """Convert links, or numbers of links, to a matrix, receiver by sender.

    Args:
        links: E links.
        values: numbers of the links, [E]; None: return bool, True for a link.
        fill: entry without a link.
    """
    return links.mask.numpy() if values is None else links.dense(values, fill).numpy()


def weights_of(round: Round, m: int) -> np.ndarray:
    """Return the mixing weights of a round, [m, m]; zeros if models were not mixed."""
    return dense(round.voters, round.weights, 0.0)[:m, :m] if round.has("weights") else np.zeros((m, m))
