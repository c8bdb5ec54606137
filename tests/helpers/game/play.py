"""A run that is played round by round; after each round the books are checked against the rows themselves."""

import functools
import math
import re
import warnings
from dataclasses import dataclass, field

import torch

from dfl_lightning import callbacks as cb
from dfl_lightning.module import DFLModule
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.utils.errors import UserError
from game.parts import AGGREGATIONS, DROPOUTS, OBJECTIVES, SELECTIONS, SUBSTITUTIONS, THRESHOLDS, Network, Planned, Toy

ROUNDS = 4


@dataclass
class Case:
    """One run: what hypothesis draws, and shows where it finds a fault."""

    train: list[int]
    val: list[int]
    test: list[int]
    topology: object
    selection: str = "all neighbours"
    aggregation: str = "uniform"
    threshold: str = "none"
    dropout: object = None  # a name, or who is active in each round
    substitution: str = "none"
    objective: str = "plain"
    engine: str = "stacked"
    personal: bool = False
    poisoned: dict[int, dict[int, float]] = field(default_factory=dict)  # by round, what a client's data hold
    lr: float = 0.1
    watched: bool = False

    @property
    def clients(self):
        return len(self.train)

    def policies(self):
        dropout = None
        if self.dropout is not None:
            dropout = DROPOUTS[self.dropout]() if isinstance(self.dropout, str) else Planned(self.dropout)
        found = [
            dropout,
            SELECTIONS[self.selection](),
            THRESHOLDS[self.threshold](),
            SUBSTITUTIONS[self.substitution](),
            AGGREGATIONS[self.aggregation](),
        ]
        if self.watched:
            found += [cb.NeighbourAccuracy(), cb.FriendAccuracy(), cb.SubstitutionError()]
        return [policy for policy in found if policy is not None]


class Witness(RoundCallback):
    """Copies of the rows after the local training."""

    trained = None

    def on_trained(self, round):
        self.trained = round.bank.rows("trained").clone()


class Game:
    """A run that is played round by round, and checked after each of them."""

    def __init__(self, case, extra=(), **module):
        self.case = case
        self.witness = Witness()
        self.trainer = DFLTrainer(
            max_rounds=ROUNDS,
            topology=case.topology,
            engine=case.engine,
            callbacks=[*extra, *case.policies(), self.witness],
            accelerator="cpu",
            enable_progress_bar=False,
        )
        options = {
            "network": Network(),
            "local_epochs": 1,
            "batch_size": 3,
            "optimizer": functools.partial(torch.optim.SGD, lr=case.lr),
            "shared": ["0.*"] if case.personal else None,
            "init": "independent" if case.selection == "ifca" else "common",
            "objective": OBJECTIVES[case.objective](),
            "finetune_epochs": 1,
        }
        self.module = DFLModule(**{**options, **module})
        self.trainer.prepare(self.module, Toy(case.train, case.val, case.test))
        self.protocol = RoundProtocol(self.trainer)
        self.images = self.module.federation.data.images.clone()
        self.named = set()  # clients whose divergence was reported

    @property
    def bank(self):
        return self.module.bank

    def poison(self, index):
        """Write the round's wrong values into the data; return the clients whose data are not finite."""
        data = self.module.federation.data
        data.images.copy_(self.images)
        wanted = self.case.poisoned.get(index, {})
        for client, value in wanted.items():
            if client < self.case.clients:
                data.images[data.train[client][-1]] = value
        return {client for client, value in wanted.items() if client < self.case.clients and not math.isfinite(value)}

    @property
    def models(self):
        return self.bank.boundary.rows["models"]

    def play(self, rounds=ROUNDS, check=True):
        first = self.bank.boundary.round
        for index in range(first, first + rounds):
            broken = self.poison(index)
            before = {name: rows.clone() for name, rows in self.bank.boundary.rows.items()}
            self.witness.trained = None
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                round = self.protocol.begin()
                jobs = set(round.jobs.owners.tolist())
                self.protocol.train(round)
                self.protocol.mix(round)
                self.protocol.commit(round)
                results = self.module.evaluate() if index % 2 else {}
            self.bank.boundary = self.bank.boundary._replace(closed=True)
            if check:
                self.check(round, before, broken & jobs, jobs, [str(w.message) for w in said], results)
        return self

    def check(self, round, before, broken, jobs, said, results):
        m, n = round.num_clients, round.num_nodes
        after = self.bank.boundary.rows
        models, trained = after["models"], self.witness.trained
        metrics = self.bank.boundary.metrics

        # no nonfinite number is kept
        for name, rows in after.items():
            assert rows.isfinite().all(), f"{name} is not finite"

        # a diverged client is recorded, counted and reported, keeps its row, and is mixed by no client
        diverged = set(torch.nonzero(round.diverged).flatten().tolist())
        assert broken <= diverged <= jobs
        assert metrics.get("diverged", 0) == len(diverged)
        for sentence in said:
            if "is not finite on the" in sentence:
                continue  # an evaluation says that
            ids = re.search(r"(?:training|fine-tuning) of client ([0-9, ]+) diverged; ", sentence).group(1)
            new = {int(client) for client in ids.split(", ")}
            assert not new & self.named  # once each
            self.named |= new
        assert diverged <= self.named
        for client in diverged:
            assert torch.equal(models[client], before["models"][client])
            assert not round.active[client]

        # who has dropped out keeps its row
        down = torch.nonzero(~round.active[:m]).flatten().tolist()
        assert torch.equal(models[down], before["models"][down])
        assert not set(down) & set(torch.nonzero(round.participants).flatten().tolist())

        if len(down) == m:  # no client is left: the round is only counted
            assert all(torch.equal(after[name], rows) for name, rows in before.items())
            assert not round.has("weights")
            assert "neighbours" not in metrics
            assert metrics["active"] == len(diverged)
            return

        # weights are shares of those who may be mixed
        weights, receivers = round.voters.dense(round.weights, 0.0), round.receivers
        assert trained is not None
        assert not weights[~receivers].any()
        assert not weights[:, down].any()
        sums = weights.sum(1)
        mixes = receivers & (weights != 0).any(1)
        torch.testing.assert_close(sums[mixes], torch.ones_like(sums[mixes]), rtol=0, atol=1e-6)
        allowed = round.reachable.mask | torch.eye(n, dtype=torch.bool)
        if self.trainer.policy(cb.Substitution) is None:
            assert not weights[:, :n][~allowed].any()

        # a receiver without in-neighbours or weights keeps its own model
        alone = receivers & (round.reachable.count == 0)
        assert torch.equal(models[alone], trained[alone])
        rest = ~mixes
        assert torch.equal(models[rest], trained[rest])

        # new models are what the weights say, and personal columns never move by mixing
        shared = self.bank.layout.shared.mask(self.bank.layout.width)
        assert torch.equal(models[:, ~shared], trained[:, ~shared])
        if not round.substitute_rows:
            expected = weights[mixes].double() @ trained.double()
            scale = trained.abs().max().double()
            error = (models[mixes].double() - expected)[:, shared].abs()
            assert error.numel() == 0 or error.max() <= 1e-5 * scale

        # doubly stochastic weights keep the mean of all models
        full = weights[:, :n].clone()
        full[~mixes] = torch.eye(n, dtype=full.dtype)[~mixes]
        if not round.substitute_rows and bool(((full.sum(0) - 1).abs() < 1e-9).all()):
            scale = trained.abs().max().double()
            drift = (models.double().mean(0) - trained.double().mean(0))[shared].abs().max()
            assert drift <= 1e-6 * scale
        if "correction" in after:
            corrections = after["correction"].double()
            steps = max(models.abs().max(), trained.abs().max()) / round.lr  # differences of models, a step of lr each
            assert corrections.sum(0).abs().max() <= 1e-5 * max(1.0, float(corrections.abs().max()), float(steps))

        # what is reported exists wherever there are data, an accuracy where the loss is finite
        for split in ("val", "test"):
            if f"{split}_acc" in results:
                known = self.module.federation.data.sizes(split) > 0
                broken = results[f"{split}_loss"].isinf() & results[f"{split}_acc"].isnan()
                assert torch.equal(results[f"{split}_acc"].isnan() & ~broken, ~known)
                assert torch.equal(results[f"{split}_loss"].isnan(), ~known)


def one_sentence(text):
    return text.strip() == text and "\n" not in text and len(text) < 400


def set_up(case):
    """A run, or nothing where one sentence refuses it before anything is trained."""
    try:
        return Game(case)
    except UserError as refusal:
        sentence = str(refusal)
    assert one_sentence(sentence)
    return None


def play(case):
    game = set_up(case)
    return game and game.play()
