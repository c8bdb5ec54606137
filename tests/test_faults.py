"""Faults inside a simulation: divergence, outages, topologies that fall apart, tiny clients, numbers that are none.

Hypothesis draws whole runs of a few rounds: clients and their sizes, who can hear whom in which round, who is down
when, whose numbers break when, which policies and which engine. A run is played round by round, and after each round
the books are checked against the rows themselves. The default suite plays a few dozen, `-m slow` hundreds.
"""

import functools
import json
import math
import re
import warnings
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning.data import ClientData, FederatedData, FromDataset
from dfl_lightning.errors import UserError
from dfl_lightning.module import DFLModule
from dfl_lightning.objectives import FedProx, GradientTracking, Plain
from dfl_lightning.protocol import Protocol
from dfl_lightning.report.summary import final_table
from dfl_lightning.round import RoundCallback
from dfl_lightning.trainer import DFLTrainer

ROUNDS = 4
FEATURES, CLASSES = 5, 3
POISONS = (float("nan"), float("inf"), -float("inf"), 1e30, 3e38)


# --- what a run is made of --------------------------------------------------------------------------------------------
SELECTIONS = {
    "gossip": lambda: cb.Gossip(k=2),
    "everybody": lambda: cb.Gossip(k="all"),
    "nobody": lambda: cb.Gossip(k=0),
    "oracle": lambda: cb.Gossip(k="all", within="cluster"),
    "fixed neighbours": lambda: cb.Gossip(k=2, redraw=False),
    "afind": lambda: cb.AFIND(),
    "afind, uncentred": lambda: cb.AFIND(center=False, k=2),
    "afind, update of the round": lambda: cb.AFIND(proxy="delta"),
    "afind, first batch": lambda: cb.AFIND(proxy="grad_batch"),
    "afind by the letter": lambda: cb.AFIND(nu=0.01, rule="literal", proxy="weight", center=False),
    "dpfl": lambda: cb.DPFL(budget=2, initial_epochs=2),
    "dpfl, always among all": lambda: cb.DPFL(budget=2, initial_epochs=2, period=2, repeat_bggc=True),
    "dpfl by the letter": lambda: cb.DPFL(budget="all", initial_epochs=2, rule="literal"),
    "panm": lambda: cb.PANM(k=2, l=2, stage_one=2, tau=2),
    "panm, losses": lambda: cb.PANM(metric="loss", k=2, l=2, stage_one=2, tau=2),
    "panm by the letter": lambda: cb.PANM(k=2, l=2, stage_one=2, tau=2, candidates="all", matching="literal"),
    "federico": lambda: cb.FedeRiCo(k=2),
    "pens": lambda: cb.PENS(k=2, sampled=3, top=2, stage_one=2),
    "ifca": lambda: cb.IFCA(),
}
AGGREGATIONS = {
    "uniform": lambda: cb.Uniform(),
    "half a step": lambda: cb.Uniform(server_step=0.5),
    "by samples": lambda: cb.SampleWeighted(),
    "boltzmann": lambda: cb.Boltzmann(),
    "boltzmann of others": lambda: cb.Boltzmann(temperature=0.1, include_self=False),
    "boltzmann of own losses": lambda: cb.Boltzmann(contribution="own"),
    "metropolis": lambda: cb.Metropolis(),
    "from the topology": lambda: cb.FromTopology(),
    "by scores": lambda: cb.ScoreWeighted(),
}
DROPOUTS = {
    "coins": lambda: cb.Bernoulli(rate=0.5),
    "half of them": lambda: cb.ExactCount(rate=0.5, full_first_round=True),
    "one of a group": lambda: cb.GroupedCount(rate=0.3),
    "outages": lambda: cb.Markov(rate=0.5, outage=2.0),
}
SUBSTITUTIONS = {"nobody": lambda: None, "friends": lambda: cb.FDMS(), "stale": lambda: cb.Stale()}
SUBSTITUTIONS["candidates"] = lambda: cb.FDMS(theta_scale=0.01)
THRESHOLDS = {
    "none": lambda: None,
    "adaptive": lambda: cb.AdaptiveThreshold(),
    "literal": lambda: cb.AdaptiveThreshold(rule="literal"),
}
OBJECTIVES = {"plain": Plain, "fedprox": FedProx, "tracking": GradientTracking}


class Planned(cb.Dropout):
    """Who is up in each round, as written down."""

    def __init__(self, up):
        super().__init__()
        self.up = torch.tensor(up)

    def draw(self, round):
        return self.up[round.index]


class Network(nn.Sequential):
    """Two layers; the second one can be personal."""

    def __init__(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES))


class Toy(FederatedData):
    """Clients with numbers of samples as asked for; nobody is refused for having few."""

    def __init__(self, train, val, test, seed=0):
        super().__init__(num_clients=len(train))
        total = sum(train) + sum(val) + sum(test)
        draws = torch.Generator().manual_seed(seed)
        images = torch.randn(total, FEATURES, generator=draws)
        labels = (images @ torch.randn(FEATURES, CLASSES, generator=draws)).argmax(1)
        parts = torch.arange(total).split([*train, *val, *test])
        m = len(train)
        self._clients = ClientData(
            images=images,
            labels=labels,
            train=parts[:m],
            val=parts[m : 2 * m],
            test=parts[2 * m :],
            global_test=torch.arange(min(total, 3)),
            clusters=None,
            num_classes=CLASSES,
            scale=torch.tensor(1.0),
            shift=torch.tensor(0.0),
        )

    def load(self):
        raise AssertionError("everything is there already")

    def setup(self, stage=None):
        pass


@dataclass
class Case:
    """One run: what hypothesis draws, and shows where it finds a fault."""

    train: list[int]
    val: list[int]
    test: list[int]
    topology: object
    selection: str = "everybody"
    aggregation: str = "uniform"
    threshold: str = "none"
    dropout: object = None  # a name, or who is up in each round
    substitution: str = "nobody"
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

    def on_trained(self, trainer, module, round):
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
        self.protocol = Protocol(self.trainer)
        self.images = self.module.data.images.clone()
        self.named = set()  # whose divergence the user was told

    @property
    def bank(self):
        return self.module.bank

    def poison(self, index):
        """Whose data break in this round."""
        data = self.module.data
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

        # nothing that is no number stays
        for name, rows in after.items():
            assert rows.isfinite().all(), f"{name} is not finite"

        # who diverged is known, counted, said, keeps its row and is mixed by nobody
        diverged = set(torch.nonzero(round.diverged).flatten().tolist())
        assert broken <= diverged <= jobs
        assert metrics.get("diverged", 0) == len(diverged)
        for sentence in said:
            ids = re.search(r"(?:training|fine-tuning) of client ([0-9, ]+) diverged; ", sentence).group(1)
            new = {int(client) for client in ids.split(", ")}
            assert not new & self.named  # once each
            self.named |= new
        assert diverged <= self.named
        for client in diverged:
            assert torch.equal(models[client], before["models"][client])
            assert not round.active[client]

        # who is down keeps its row
        down = torch.nonzero(~round.active[:m]).flatten().tolist()
        assert torch.equal(models[down], before["models"][down])
        assert not set(down) & set(torch.nonzero(round.participants).flatten().tolist())

        if len(down) == m:  # nobody is left: nothing happens, and it is counted
            assert all(torch.equal(after[name], rows) for name, rows in before.items())
            assert round.weights is None
            assert "neighbours" not in metrics
            assert metrics["active"] == len(diverged)
            return

        # weights are shares of those who may speak
        weights, receivers = round.weights, round.receivers
        assert trained is not None
        assert not weights[~receivers].any()
        assert not weights[:, down].any()
        sums = weights.sum(1)
        mixes = receivers & (weights != 0).any(1)
        torch.testing.assert_close(sums[mixes], torch.ones_like(sums[mixes]), rtol=0, atol=1e-6)
        allowed = round.reachable | torch.eye(n, dtype=torch.bool)
        if self.trainer.policy(cb.Substitution) is None:
            assert not weights[:, :n][~allowed].any()

        # whom nobody can hear, or who hears nobody, keeps its own model
        alone = receivers & ~round.reachable.any(1)
        assert torch.equal(models[alone], trained[alone])
        rest = ~mixes
        assert torch.equal(models[rest], trained[rest])

        # new models are what the weights say, and personal columns never move by mixing
        shared = self.bank.layout.shared.mask(self.bank.layout.width)
        assert torch.equal(models[:, ~shared], trained[:, ~shared])
        if not round.speakers:
            expected = weights[mixes].double() @ trained.double()
            scale = trained.abs().max().double()
            error = (models[mixes].double() - expected)[:, shared].abs()
            assert error.numel() == 0 or error.max() <= 1e-5 * scale

        # doubly stochastic weights keep the mean of all models
        full = weights[:, :n].clone()
        full[~mixes] = torch.eye(n, dtype=full.dtype)[~mixes]
        if not round.speakers and bool(((full.sum(0) - 1).abs() < 1e-9).all()):
            scale = trained.abs().max().double()
            drift = (models.double().mean(0) - trained.double().mean(0))[shared].abs().max()
            assert drift <= 1e-6 * scale
        if "correction" in after:
            corrections = after["correction"].double()
            assert corrections.sum(0).abs().max() <= 1e-5 * max(1.0, float(corrections.abs().max()))

        # what is reported exists wherever there are data
        for split in ("val", "test"):
            if f"{split}_acc" in results:
                known = self.module.data.sizes(split) > 0
                assert torch.equal(results[f"{split}_acc"].isnan(), ~known)
                assert torch.equal(results[f"{split}_loss"].isnan(), ~known)


# --- how runs are drawn -----------------------------------------------------------------------------------------------
@st.composite
def graphs(draw, clients):
    """A graph with weights and clusters, maybe of arcs, in pieces or without any link."""
    directed = draw(st.booleans())
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(clients))
    pairs = [(i, j) for i in range(clients) for j in range(clients) if (i != j if directed else i < j)]
    graph.add_edges_from(draw(st.lists(st.sampled_from(pairs), max_size=3 * clients)))
    nx.set_edge_attributes(graph, 2.0, "weight")
    nx.set_node_attributes(graph, {i: i % 2 for i in range(clients)}, "cluster")
    return graph


PIECES = (
    {"generator": "complete"},
    {"generator": "empty_graph"},
    {"generator": "path_graph"},
    {"generator": "gnp_random_graph", "args": {"p": 0.4}, "every": 1},
    {"generator": "gnp_random_graph", "args": {"p": 0.4, "directed": True}},
)


@st.composite
def changing_graphs(draw):
    """A graph that falls apart and comes together, or whose links fail."""
    if draw(st.booleans()):
        return {"sequence": [{**draw(st.sampled_from(PIECES)), "rounds": 1} for _ in range(ROUNDS)]}
    word = draw(st.sampled_from(["link_up", "arc_up", "link_share"]))
    return {"generator": "complete", word: draw(st.sampled_from([0.05, 0.5, 0.9])), "seed": draw(st.integers(0, 9))}


def names(table, *without):
    return st.sampled_from([name for name in table if name not in without])


@st.composite
def cases(draw, **fixed):
    """Runs; most of them are allowed."""
    clients = draw(st.integers(2, 5))
    kind = draw(st.sampled_from(["given", "given", "changing", "server", "servers"]))
    alone, clustered = kind in ("given", "changing"), kind == "given"
    if not alone:
        topology = {"generator": "server", "args": {"servers": 1 if kind == "server" else 2}}
    else:
        topology = draw(graphs(clients) if kind == "given" else changing_graphs())

    of_servers = {"server": ["gossip", "everybody", "nobody", "fixed neighbours", "ifca"], "servers": ["ifca"]}
    chosen = (
        names(SELECTIONS, "ifca", *([] if clustered else ["oracle"])) if alone else st.sampled_from(of_servers[kind])
    )
    selection = draw(chosen)
    dpfl = selection.startswith("dpfl")
    if dpfl:
        aggregation = st.sampled_from(["uniform", "by samples"])
    elif selection == "federico":
        aggregation = names(AGGREGATIONS, *([] if clustered else ["from the topology"]))
    elif alone:
        aggregation = names(AGGREGATIONS, "by scores", *([] if clustered else ["from the topology"]))
    else:
        aggregation = st.sampled_from(["uniform", "half a step", "by samples", "boltzmann of own losses"])
    up = st.lists(st.lists(st.booleans(), min_size=clients, max_size=clients), min_size=ROUNDS, max_size=ROUNDS)
    dropout = names(DROPOUTS, *([] if clustered else ["one of a group"]))
    substitution = names(SUBSTITUTIONS, "candidates") if alone else names(SUBSTITUTIONS)
    poisons = st.dictionaries(st.integers(0, clients - 1), st.sampled_from(POISONS), max_size=clients)
    others = st.lists(st.integers(1 if dpfl else 0, 2), min_size=clients, max_size=clients)
    drawn = {
        "train": st.lists(st.integers(1, 7), min_size=clients, max_size=clients),
        "val": others,
        "test": others,
        "topology": st.just(topology),
        "selection": st.just(selection),
        "aggregation": aggregation,
        "threshold": st.sampled_from(["none", "literal" if "letter" in selection else "adaptive"]),
        "dropout": st.one_of(st.none(), dropout, up, up),
        "substitution": st.just("nobody") if selection == "ifca" else substitution,
        "objective": st.sampled_from(["plain", "plain", "fedprox", *(["tracking"] * alone)]),
        "engine": st.sampled_from(["stacked", "loop"]),
        "personal": st.booleans(),
        "watched": st.booleans(),
        "poisoned": st.dictionaries(st.integers(0, ROUNDS - 1), poisons),
    }
    return Case(**{name: draw(strategy) for name, strategy in (drawn | fixed).items()})


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


RULES = {"deadline": None, "derandomize": True, "suppress_health_check": list(HealthCheck), "database": None}


@pytest.fixture(autouse=True)
def seed_zero(monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")


# --- whole runs -------------------------------------------------------------------------------------------------------
@settings(max_examples=50, **RULES)
@given(case=cases())
def test_any_run_keeps_its_promises_or_is_refused(case):
    play(case)


@pytest.mark.slow
@settings(max_examples=500, **RULES)
@given(case=cases())
def test_any_run_keeps_its_promises_or_is_refused_in_many_cases(case):
    play(case)


@settings(max_examples=60, **RULES)
@given(data=st.data())
def test_any_mixture_of_policies_is_set_up_or_refused_in_one_sentence(data):
    """Whatever goes together; nothing is trained."""
    choice = {
        "selection": data.draw(names(SELECTIONS)),
        "aggregation": data.draw(names(AGGREGATIONS)),
        "threshold": data.draw(names(THRESHOLDS)),
        "dropout": data.draw(st.none() | names(DROPOUTS)),
        "substitution": data.draw(names(SUBSTITUTIONS)),
        "objective": data.draw(names(OBJECTIVES)),
        "topology": data.draw(st.one_of(graphs(3), changing_graphs())),
    }
    if data.draw(st.booleans()):
        choice["topology"] = {"generator": "server", "args": {"servers": data.draw(st.integers(1, 2))}}
    set_up(Case([3, 1, 5], [1, 0, 2], [1, 1, 1], engine="loop", **choice))


@settings(max_examples=8, **RULES)
@given(case=cases(poisoned=st.just({1: {0: float("nan")}})))
def test_both_engines_agree_about_faults(case):
    case.watched = False
    games = []
    for engine in ("loop", "stacked"):
        case.engine = engine
        games.append(Game(case).play(rounds=2))
    loop, stacked = games
    assert loop.named == stacked.named
    torch.testing.assert_close(loop.models, stacked.models, rtol=1e-4, atol=1e-5)


# --- outages ----------------------------------------------------------------------------------------------------------
def outage(up, **settings):
    return Game(Case([4, 6, 1], [1, 1, 1], [1, 1, 1], dropout=up, **{"topology": "complete", **settings}))


every_selection = pytest.mark.parametrize("selection", [name for name in SELECTIONS if name not in ("ifca", "oracle")])


@every_selection
def test_rounds_without_anybody_change_nothing_and_the_run_goes_on(selection):
    up, down = [True] * 3, [False] * 3
    game = outage([down, up, down, down][:ROUNDS], selection=selection).play(rounds=1)
    first = game.models.clone()
    game.play(rounds=1)
    moved = game.models.clone()
    assert not torch.equal(moved, first)
    game.play(rounds=2)
    assert torch.equal(game.models, moved)
    assert game.bank.boundary.round == ROUNDS


def test_who_is_down_all_the_time_keeps_its_first_model_and_is_judged_by_it():
    game = outage([[True, True, False]] * ROUNDS)
    first = game.models[2].clone()
    game.play()
    assert torch.equal(game.models[2], first)
    assert not torch.equal(game.models[0], first)
    assert game.module.evaluate()["test_acc"].isfinite().all()


def test_who_comes_back_alone_trains_alone():
    game = outage([[True] * 3, [False] * 3, [True, False, False], [True] * 3])
    game.play()  # checked after every round: who hears nobody has what it trained
    assert game.bank.boundary.metrics["active"] == 3


def test_clients_whose_graph_falls_apart_keep_what_they_train():
    sequence = [{"generator": "complete", "rounds": 2}, {"generator": "empty_graph", "rounds": 2}]
    game = outage(None, topology={"sequence": sequence}).play(rounds=2)
    together = game.models.clone()
    torch.testing.assert_close(together[0], together[1], rtol=1e-6, atol=1e-7)
    game.play(rounds=2)
    assert not torch.equal(game.models[0], game.models[1])
    assert torch.equal(game.models, game.witness.trained)


# --- divergence -------------------------------------------------------------------------------------------------------
class Huge(RoundCallback):
    """After the training, client 1's model is so large that its scores overflow; it is made of numbers all the same."""

    def on_trained(self, trainer, module, round):
        round.bank.rows("trained")[1] = 1e30


BY_LOSS = {
    "pens": ["uniform"],
    "panm, losses": ["uniform"],
    "dpfl": ["uniform"],
    "dpfl, always among all": ["by samples"],
    "dpfl by the letter": ["uniform"],
    "federico": ["by scores"],
    "everybody": ["boltzmann", "boltzmann of own losses"],
    "afind": ["boltzmann"],
}


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize(("selection", "aggregation"), [(s, a) for s, found in BY_LOSS.items() for a in found])
def test_nobody_who_looks_at_losses_mixes_a_model_whose_loss_is_no_number(selection, aggregation, engine):
    sizes = [5, 4, 6, 3, 2, 4]
    case = Case(sizes, [2] * 6, [1] * 6, "complete", selection=selection, aggregation=aggregation, engine=engine)
    game = Game(case, extra=[Huge()])
    for _ in range(2):  # PENS and PANM: of stage one
        round = game.protocol.begin()
        game.protocol.train(round)
        game.protocol.mix(round)
        game.protocol.commit(round)
        game.bank.boundary = game.bank.boundary._replace(closed=True)
        others = torch.arange(6) != 1
        assert (round.weights[others, 1] == 0).all()
        assert (round.weights[others].sum(1) - 1).abs().max() < 1e-6
        assert game.models[others].abs().max() < 1e3
        game.models[1] = game.models[0]  # who trains from such a model diverges, and would be looked at by nobody


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_loss_that_is_no_number_is_infinite_and_such_an_answer_wrong(engine, number):
    game = Game(Case([3, 3], [1, 1], [2, 0], "complete", engine=engine))
    game.models[0] = number
    game.module.data.labels.zero_()  # the first NaN is what argmax takes for the largest number
    game.module.finetune_epochs = 0
    results = game.module.evaluate()
    assert results["test_loss"].tolist()[0] == math.inf
    assert math.isnan(results["test_loss"][1])  # no data
    assert results["test_acc"][0] == 0
    assert math.isnan(results["test_acc"][1])


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_who_diverges_in_fine_tuning_is_judged_by_the_model_that_it_reports(engine):
    topology = {"generator": "server"}
    game = Game(Case([4, 4, 4], [0] * 3, [3] * 3, topology, engine=engine, poisoned={3: {1: float("nan")}}))
    game.play(rounds=1)
    game.module.finetune_epochs = 0
    plain = game.module.evaluate()["test_loss"]
    game.module.finetune_epochs = 1
    game.module.data.images[game.module.data.train[1]] = float("nan")
    with pytest.warns(UserWarning, match=r"^after round 0: fine-tuning of client 1 diverged; it is judged without$"):
        tuned = game.module.evaluate()["test_loss"]
    assert tuned[1] == plain[1]
    assert (tuned != plain).tolist() == [True, False, True]
    game.module.on_divergence = "stop"
    with pytest.raises(
        UserError, match=r"^after round 0: fine-tuning of client 1 diverged .*; lower model\.optimizer\.lr"
    ):
        game.module.evaluate()


def fit(folder, data, rounds=3, checkpoint=None, **module):
    """A run with all its files."""
    trainer = DFLTrainer(
        max_rounds=rounds,
        callbacks=[cb.Gossip(k="all"), cb.Uniform()],
        accelerator="cpu",
        enable_progress_bar=False,
        checkpoint_every=1,
        default_root_dir=folder,
    )
    optimizer = functools.partial(torch.optim.SGD, lr=0.1)
    model = DFLModule(Network(), local_epochs=1, batch_size=3, optimizer=optimizer, **module)
    data.save_split = lambda path: None  # nothing was split
    data.describe = lambda: "toy data"
    trainer.fit(model, datamodule=data, ckpt_path=checkpoint)
    return trainer


class BreaksIn(RoundCallback):
    """From one round on, a client's data are no numbers."""

    def __init__(self, first, client):
        self.first, self.client = first, client

    def on_dropout(self, trainer, module, round):
        if round.index >= self.first:
            module.data.images[module.data.train[self.client]] = math.nan


def breaking(monkeypatch, first, client):
    real = DFLTrainer._complete
    monkeypatch.setattr(
        DFLTrainer, "_complete", lambda self, own, *a, **k: real(self, [*own, BreaksIn(first, client)], *a, **k)
    )


def test_the_run_folder_knows_who_diverged_when(tmp_path, monkeypatch, capsys):
    breaking(monkeypatch, 1, 2)
    with pytest.warns(UserWarning, match=r"^round 1: training of client 2 diverged; nobody mixes it ") as said:
        trainer = fit(tmp_path, Toy([4, 4, 4], [1] * 3, [2] * 3))
    assert len(said) == 1
    run = trainer.run
    assert run.metrics["diverged"].tolist()[1:] == [1, 1]
    with np.load(run.path / "diverged.npz", allow_pickle=False) as arrays:
        assert {name: arrays[name].tolist() for name in arrays.files} == {"round": [1, 2], "client": [2, 2]}
    assert run.summary["diverged"] == {"2": 2}
    assert "training diverged: client 2 in 2 of 3 rounds" in final_table(run.summary)


def test_a_run_in_which_nobody_diverges_says_nothing_of_it(tmp_path):
    trainer = fit(tmp_path, Toy([4, 4], [1] * 2, [2] * 2), rounds=1)
    assert trainer.run.summary["diverged"] == {}
    assert not (trainer.run.path / "diverged.npz").exists()
    assert not any("diverged" in line for line in final_table(trainer.run.summary))


def test_a_resumed_run_forgets_what_diverged_after_its_checkpoint(tmp_path, monkeypatch):
    breaking(monkeypatch, 0, 2)
    with pytest.warns(UserWarning, match="^round 0: training of client 2"):
        former = fit(tmp_path, Toy([4, 4, 4], [1] * 3, [2] * 3))
    previous = former.run.path / "checkpoints" / "previous.ckpt"
    with pytest.warns(UserWarning, match="^round 2: training of client 2"):
        later = fit(tmp_path, Toy([4, 4, 4], [1] * 3, [2] * 3), checkpoint=previous)
    assert later.run.path == former.run.path
    assert later.run.diverged["round"].tolist() == [0, 1, 2]
    (aside,) = (later.run.path / "superseded").iterdir()
    assert (aside / "diverged.npz").is_file()


def test_stopping_on_divergence_keeps_the_rounds_before(tmp_path, monkeypatch):
    breaking(monkeypatch, 2, 1)
    with pytest.raises(UserError, match=r"^round 2: training of client 1 diverged .*lower model\.optimizer\.lr"):
        fit(tmp_path, Toy([4, 4], [1] * 2, [2] * 2), on_divergence="stop")
    (folder,) = (tmp_path / "run").iterdir()
    assert json.loads((folder / "summary.json").read_text())["status"] == "stopped"
    monkeypatch.undo()
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    healthy = Toy([4, 4], [1] * 2, [2] * 2)
    trainer = fit(tmp_path, healthy, checkpoint=folder / "checkpoints" / "last.ckpt", on_divergence="stop")
    assert trainer.run.path == folder
    assert trainer.run.metrics["round"].tolist() == [0, 1, 2]
    assert trainer.run.summary["status"] == "finished"


# --- few samples, and numbers that are none, before training ----------------------------------------------------------
class Normalised(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_batch_norm_that_meets_a_single_sample_says_what_helps(engine):
    def start(*sizes):
        return Game(Case(list(sizes), [0, 0], [0, 0], "complete", engine=engine), network=Normalised())

    with pytest.raises(
        UserError, match=r"^client 1 has 1 training sample, .* a single one, .*BatchNorm.*; give it more"
    ):
        start(4, 1)  # client 0 has a single one too, which another batch size would help
    with pytest.raises(
        UserError, match=r"^client 0 has 4 training samples, .*batch_size=3 .*; choose another batch size"
    ):
        start(4, 3)
    start(3, 2).play(rounds=1)


def with_parts(parts, **options):
    pairs = torch.utils.data.TensorDataset(torch.rand(12, FEATURES), torch.arange(12) % CLASSES)
    return FromDataset(pairs, parts=parts, **options)


def test_one_sample_cannot_be_split_and_the_client_is_named():
    parts = [[0, 1, 2, 3], [4]]
    with pytest.raises(UserError, match=r"client 1 has no test image .*; lower num_clients or change test_fraction$"):
        with_parts(parts).setup()
    with pytest.raises(UserError, match=r"client 1 has no validation image .* or set val_fraction: 0$"):
        with_parts(parts, test_fraction=0.0, val_fraction=0.5).setup()
    data = with_parts(parts, test_fraction=0.0)
    data.setup()
    assert data.clients.sizes("train").tolist() == [4, 1]


@pytest.mark.parametrize("init", ["common", "independent"])
def test_a_network_that_starts_with_nan_is_refused_by_the_name_of_the_parameter(init):
    class Forgotten(nn.Linear):
        def reset_parameters(self):
            super().reset_parameters()
            nn.init.constant_(self.bias, math.nan)

    network = nn.Sequential(nn.Linear(FEATURES, 4), Forgotten(4, CLASSES))
    with pytest.raises(
        UserError, match=r"^model\.network Sequential: '1\.bias' holds NaN or infinity before the first round"
    ):
        Game(Case([3, 3], [0, 0], [0, 0], "complete"), network=network, init=init)


def test_pretrained_parameters_that_are_no_numbers_are_refused_by_their_file(tmp_path):
    state = Network().state_dict()
    state["2.weight"][1, 1] = math.inf
    torch.save(state, tmp_path / "start.pt")
    with pytest.raises(
        UserError, match=r"^model\.init=.*start\.pt: '2\.weight' holds NaN or infinity .*; use another file"
    ):
        Game(Case([3, 3], [0, 0], [0, 0], "complete"), init=str(tmp_path / "start.pt"))
