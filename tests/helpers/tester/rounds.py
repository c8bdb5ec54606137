"""Whole rounds on a handful of numbers, recorded step by step; no files are written."""

import io
import os
from types import SimpleNamespace

import networkx as nx
import torch
from matrices import LedgerMatrices, seen_as_matrices
from torch.utils.data import TensorDataset

from dfl_lightning.data import FromDataset
from dfl_lightning.module import DFLModule
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.runs.columns import expected_columns
from dfl_lightning.trainer import DFLTrainer


class Witness(RoundCallback):
    """Copies of the rows at each step of each round, and the round records."""

    def __init__(self):
        self.rounds = []

    def on_trained(self, round):
        self.before = round.bank.rows("models").cpu().clone()
        self.trained = round.bank.rows("trained").cpu().clone()

    def on_mix(self, round):
        self.sets = {name: round.bank.rows(name).cpu().clone() for name in round.bank.boundary.rows if name != "models"}


def through_a_file(state):
    """A state as a checkpoint gives it back: saved, and read without running code."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


class Run:
    """A set-up run that computes further rounds on request.

    Its `rounds` have matrices where a round has lists of links, which read well for a handful of clients; `record` is
    the round as it was.
    """

    def __init__(self, policies, clients, rounds, topology, data, model, trainer):
        self.clients = clients
        self.witness = Witness()
        self.trainer = DFLTrainer(
            max_rounds=rounds,
            topology=topology,
            callbacks=[*policies, self.witness],
            accelerator="gpu" if os.environ.get("DFL_TEST_ACCELERATOR") == "gpu" else "cpu",
            enable_progress_bar=False,
            **trainer,
        )
        self.module = DFLModule(**model)
        self.trainer.prepare(self.module, data)
        self.bank.join_device()
        self.rounds = []

    @property
    def bank(self):
        return self.module.bank

    @property
    def models(self):
        return self.rows("models")

    def rows(self, name):
        """A row set, on the CPU."""
        return self.bank.boundary.rows[name].cpu()

    def write(self, models):
        """Give the nodes other models, [n, w]."""
        self.bank.boundary.rows["models"].copy_(models)

    @property
    def data(self):
        """The clients' data, on the CPU."""
        return self.module.federation.data.to("cpu")

    def go(self, rounds=1):
        protocol = RoundProtocol(self.trainer)
        for _ in range(rounds):
            round = protocol.begin()
            protocol.train(round)
            self.witness.before = self.witness.trained = None
            protocol.mix(round)
            protocol.commit(round)
            boundary = self.bank.boundary
            self.bank.boundary = boundary._replace(closed=True, callbacks=protocol.capture())
            matrices = {**seen_as_matrices(round), "ledger": LedgerMatrices(round.ledger)}
            record = SimpleNamespace(**{**vars(self.witness), **vars(round), **matrices})
            undeclared = set(boundary.metrics) - set(expected_columns(self.module))
            assert not undeclared, f"logged without a declaration in `logs`: {', '.join(sorted(undeclared))}"
            record.after, record.metrics = boundary.rows["models"].cpu().clone(), boundary.metrics
            for name in ("num_clients", "num_nodes", "num_servers", "clusters", "dropped", "participants"):
                setattr(record, name, getattr(round, name))
            record.record = round
            self.rounds.append(record)
        return self

    def state(self):
        """Return the state that a checkpoint saves of this run."""
        return {"bank": self.bank.state_dict(), "callbacks": RoundProtocol(self.trainer).capture()}

    def take_up(self, state):
        """Continue from the state of another run."""
        self.bank.load_state_dict(state["bank"], {})
        for callback in self.trainer.callbacks:
            if callback.state_key in state["callbacks"]:
                callback.load_state_dict(state["callbacks"][callback.state_key])
        return self

    def loss(self, row, owner, split="train"):
        """Mean loss of a row on a client's data, by plain torch."""
        state = self.module.federation.layout.state_dict(row)
        x, y = (t.cpu() for t in self.module.federation.data.batch(getattr(self.module.federation.data, split)[owner]))
        with torch.no_grad():
            scores = torch.func.functional_call(self.module.network, state, x)
        return float(torch.nn.functional.cross_entropy(scores, y))


def toy_data(clients=6, samples=6, order=None, seed=0, same=False, sizes=None, val_fraction=0.0, kind=FromDataset):
    """Five features, three classes, learnable; `order` relabels clients, `same` gives all the same single sample."""
    g = torch.Generator().manual_seed(seed)
    sizes = sizes or [samples] * clients
    x = torch.randn(sum(sizes), 5, generator=g)
    y = (x @ torch.randn(5, 3, generator=g)).argmax(1)
    if same:
        x, y = x[:1].repeat(len(x), 1), y[:1].repeat(len(y))
    parts = [part.tolist() for part in torch.arange(sum(sizes)).split(sizes)]
    parts = [parts[i] for i in (order if order is not None else range(len(sizes)))]
    dataset = TensorDataset(x, y)
    return kind(dataset, parts=parts, num_classes=3, test_fraction=0.0, val_fraction=val_fraction)


def clustered(clients, clusters, graph=None):
    """A graph whose nodes know their clusters."""
    graph = nx.complete_graph(clients) if graph is None else graph
    nx.set_node_attributes(graph, dict(enumerate(clusters)), "cluster")
    return graph
