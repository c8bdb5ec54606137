"""Policies that compare and evaluate models on an asynchronous clock: single events in numpy, and synchronous runs."""

from functools import partial

import networkx as nx
import numpy as np
import pytest
import stale
import torch
from pushed import simulate_pushes
from scalar_clients import fit
from threads import threads
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning import UserError, data
from dfl_lightning import callbacks as cb
from dfl_lightning.models import MLP, Network
from dfl_lightning.tasks import Regression

WIDTH = 3


class Vector(Network):
    """A model of three numbers, 0 at first."""

    def build(self, shape, outputs):
        self.line = nn.Linear(WIDTH, 1, bias=False)
        nn.init.zeros_(self.line.weight)
        return self

    def forward(self, x):
        return self.line(x)


class Drawn(cb.Monitor):
    """Records the candidates, or what was selected, of each training of each client."""

    def __init__(self, of=lambda round: round.candidates):
        self.of, self.drawn = of, {}

    def on_round_end(self, round):
        if round.has("selected"):
            links = self.of(round)
            for i, j in zip(links.receivers.tolist(), links.senders.tolist(), strict=True):
                self.drawn.setdefault((i, int(round.cycles[i])), []).append(j)


def world(number):
    """Draw data, a graph in which each client has at least two neighbours, and durations, some of them equal."""
    draw = np.random.default_rng(number)
    m = int(draw.integers(4, 10))
    graph = nx.compose(nx.cycle_graph(m), nx.gnp_random_graph(m, 0.4, seed=number))
    inputs, targets = draw.normal(size=(m, 7, WIDTH)), 3 * draw.normal(size=(m, 7))
    cost = draw.choice([1_000_000_000, 1_500_000_000, 2_000_000_000, 3_700_000_000], m)
    latency = float(draw.choice([0, 0.25, 2.0]))
    return m, graph, inputs, targets, cost, latency


def run(number, folder, policies, rule, rounds=6, every=1.3, waits=True):
    """Run a world; `rule` makes the policies' rule for the simulation from the clients."""
    m, graph, inputs, targets, cost, latency = world(number)
    pairs = TensorDataset(torch.tensor(inputs).flatten(0, 1), torch.tensor(targets).flatten())
    parts = [list(range(7 * i, 7 * i + 7)) for i in range(m)]
    datamodule = data.FromDataset(pairs, parts=parts, test_fraction=0.0, val_fraction=0.3)
    datamodule.setup()
    of = datamodule.clients
    held = {
        split: [(x.numpy(), y.flatten().numpy()) for x, y in (of.batch(part, torch.float64) for part in parts_of_split)]
        for split, parts_of_split in (("train", of.train), ("val", of.val))
    }
    speeds = [len(y) * 1e9 / int(c) for (_, y), c in zip(held["train"], cost, strict=True)]
    clock = cb.Asynchronous(speed=speeds, latency=latency, every=every, waits=waits)
    _, module = fit(
        clock,
        folder,
        datamodule=datamodule,
        graph=graph,
        network=Vector(),
        rounds=rounds,
        also=policies,
        task=Regression(),
    )
    clients = stale.Regressions(held["train"], held["val"], rate=0.1)
    senders = [sorted(graph[i]) for i in range(m)]
    first, until, transfer = np.zeros((m, WIDTH)), round(rounds * every * 1e9), int(latency * 1e9)
    if waits:
        models, trainings = stale.simulate(clients, first, cost, senders, rule(clients), until, transfer)
    else:
        travel = np.full((m, m), transfer)
        models, trainings, *_ = simulate_pushes(first, cost, senders, clients.trained, rule(clients), until, travel)
    assert clock.trainings.tolist() == trainings.tolist()
    found = module.bank.boundary.rows["models"].numpy()
    np.testing.assert_allclose(found, models, rtol=1e-9, atol=1e-11)


def some(quick, numbers=50):
    return [n if n < quick else pytest.param(n, marks=pytest.mark.slow) for n in range(numbers)]


# --- one event at a time ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", some(2))
def test_afind_equals_single_events(number, tmp_path):
    policies = [cb.AFIND(nu=0.3, proxy_layer="line"), cb.AdaptiveThreshold(tau=0.9), cb.Boltzmann(temperature=2.0)]
    run(number, tmp_path, policies, lambda clients: stale.afind(clients, 0.3, 0.9, 2.0))


@pytest.mark.parametrize("number", some(2))
def test_similarity_weighted_equals_single_events(number, tmp_path):
    policies = [cb.Gossip(k="all"), cb.SimilarityWeighted(alpha=0.8)]
    run(number, tmp_path, policies, lambda c: stale.similarity_weighted(c, 0.8, np.zeros((9, WIDTH))))


@pytest.mark.parametrize("number", some(2))
@pytest.mark.parametrize(("policy", "kept"), [(cb.Krum, 1), (partial(cb.MultiKrum, kept=2), 2)])
def test_krum_equals_single_events(number, policy, kept, tmp_path):
    run(number, tmp_path, [cb.Gossip(k="all"), policy(adversaries=0)], lambda clients: stale.krum(kept))


@pytest.mark.parametrize("number", some(2))
def test_pens_equals_single_events(number, tmp_path):
    """Stage one takes three rounds of 1.3 s; the lists of peers then are those by the counts of each client."""
    in_stage_two = Drawn(lambda round: round.candidates if round.index < 3 else round.selected)
    policies = [cb.PENS(k=2, sampled=3, top=1, stage_one=3), cb.Uniform(), in_stage_two]
    run(number, tmp_path, policies, lambda c: stale.PENS(c, in_stage_two.drawn, 3, 1, 2, ends=3_900_000_000))


@pytest.mark.parametrize("number", some(2))
def test_fedfomo_equals_single_events(number, tmp_path):
    candidates = Drawn()
    policies = [cb.FedFomo(k=2, epsilon=0.0), cb.FirstOrder(), candidates]
    run(number, tmp_path, policies, lambda clients: stale.FedFomo(clients, candidates.drawn, 2))


PUSHED = {
    "AFIND+": (
        lambda: [cb.AFIND(nu=0.3, proxy_layer="line"), cb.AdaptiveThreshold(tau=0.9), cb.Boltzmann(temperature=2.0)],
        lambda clients: stale.afind(clients, 0.3, 0.9, 2.0),
    ),
    "pFedGraph": (
        lambda: [cb.Gossip(k="all"), cb.SimilarityWeighted(alpha=0.8)],
        lambda clients: stale.similarity_weighted(clients, 0.8, np.zeros((9, WIDTH))),
    ),
    "Krum": (lambda: [cb.Gossip(k="all"), cb.MultiKrum(kept=2, adversaries=0)], lambda clients: stale.krum(2)),
}


@pytest.mark.parametrize("number", some(2, 20))
@pytest.mark.parametrize("name", PUSHED)
def test_policies_on_pushed_models_equal_single_events(name, number, tmp_path):
    """Messages take up to 2 s and trainings 1 s and more, so that receivers compare up to three models of a client."""
    policies, rule = PUSHED[name]
    run(number, tmp_path, policies(), rule, waits=False)


# --- the synchronous run ----------------------------------------------------------------------------------------------
ALL = {
    "AFIND+": lambda: [cb.AFIND(), cb.AdaptiveThreshold(tau=0.9), cb.Boltzmann()],
    "AFIND, sampled": lambda: [cb.AFIND(choose="sampled", k=2, proxy="weight", similarity="distance"), cb.Metropolis()],
    "PENS": lambda: [cb.PENS(k=2, sampled=3, top=2, stage_one=2), cb.Uniform()],
    "FedFomo": lambda: [cb.FedFomo(k=2), cb.FirstOrder()],
    "FedeRiCo": lambda: [cb.FedeRiCo(k=2), cb.ScoreWeighted()],
    "SimilarityWeighted": lambda: [cb.Gossip(k="all"), cb.SimilarityWeighted()],
    "Krum": lambda: [cb.Gossip(k="all"), cb.Krum()],
    "BALANCE": lambda: [cb.Gossip(k="all"), cb.BALANCE()],
    "AFIND, literal": lambda: [cb.AFIND(rule="literal"), cb.AdaptiveThreshold(rule="literal"), cb.Uniform()],
    "FirstOrder": lambda: [cb.Gossip(k=2), cb.FirstOrder()],
    "MultiKrum": lambda: [cb.Gossip(k="all"), cb.MultiKrum()],
    "GeometricMedian": lambda: [cb.Gossip(k="all"), cb.GeometricMedian()],
    "ClippedGossip": lambda: [cb.Gossip(k="all"), cb.ClippedGossip()],
}


def all_but(*quick):
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in ALL]


def digits():
    return data.Digits(num_clients=8, samples_per_client=24, val_fraction=0.2)


@pytest.mark.parametrize("name", all_but("AFIND+", "PENS", "FedFomo", "SimilarityWeighted", "Krum"))
def test_equal_speeds_and_free_messages_are_the_synchronous_run(name, tmp_path):
    found = []
    for clock in (None, cb.Asynchronous(speed=50.0)):
        trainer, module = fit(
            clock,
            tmp_path / str(len(found)),
            datamodule=digits(),
            graph=nx.random_regular_graph(4, 8, seed=1),
            network=MLP(hidden=[6]),
            rounds=4,
            also=[*ALL[name](), cb.GaussianNoise(sigma=0.01)],
        )
        found.append((module.bank.boundary.rows, trainer.run.metrics))
    (rows, metrics), (waves, others) = found
    assert all(torch.equal(values, waves[name]) for name, values in rows.items())
    for column in ("bytes_received", "models_received", "neighbours"):
        assert metrics[column].tolist() == others[column].tolist()


# --- layout, stops and resumed runs -----------------------------------------------------------------------------------
def uneven(name, folder, rounds=4, also=(), **options):
    return fit(
        cb.Asynchronous(speed=100.0, spread=0.8, up=1e6, latency=0.01),
        folder,
        datamodule=digits(),
        graph="complete",
        network=MLP(hidden=[6]),
        rounds=rounds,
        also=[*ALL[name](), *also],
        **options,
    )


@pytest.mark.parametrize("name", all_but("AFIND+", "Krum"))
def test_engines_agree(name, tmp_path):
    models = [
        uneven(name, tmp_path / engine, engine=engine)[1].bank.boundary.rows["models"] for engine in ("loop", "stacked")
    ]
    torch.testing.assert_close(*models, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("name", all_but("AFIND+"))
def test_threads_change_no_bit(name, tmp_path):
    rows = []
    for number in (1, 2, 4):
        with threads(number):
            rows.append(uneven(name, tmp_path / str(number), rounds=3)[1].bank.boundary.rows)
    for other in rows[1:]:
        assert all(torch.equal(values, other[key]) for key, values in rows[0].items())


class StopInAWave(cb.Monitor):
    def on_mixed(self, round):
        if round.index > 0 and round.earlier:
            raise RuntimeError("stopped inside a wave")


@pytest.mark.parametrize("name", all_but("AFIND+"))
def test_run_stopped_inside_a_wave_resumes_with_the_same_bits(name, tmp_path):
    _, whole = uneven(name, tmp_path / "whole")
    with pytest.raises(RuntimeError, match="stopped inside a wave"):
        uneven(name, tmp_path / "cut", also=[StopInAWave()], enable_checkpointing=True, checkpoint_every=1)
    (folder,) = (tmp_path / "cut").glob("*/*/metrics.csv")
    _, resumed = uneven(name, tmp_path / "cut", enable_checkpointing=True, ckpt_path=folder.parent)
    for name, rows in whole.bank.boundary.rows.items():
        assert torch.equal(resumed.bank.boundary.rows[name], rows), name


# --- what is refused --------------------------------------------------------------------------------------------------
class ByFormerModels(cb.Gossip):
    """Reads models that clients have not published."""

    k = 2

    def __init__(self, read):
        super().__init__(k=2)
        self.read = read

    def on_compare(self, round):
        self.read(round)


REFUSED = [
    ([cb.AFIND(proxy="grad_batch"), cb.Uniform()], "selection.proxy=grad_batch compares what clients compute in the"),
    ([cb.AFIND(proxy="delta"), cb.Uniform()], "selection.proxy=delta compares what clients compute in the same round"),
    ([cb.AFIND(proxy_noise=0.1), cb.Uniform()], "selection.proxy_noise compares what clients compute in the same"),
    ([cb.PENS(rule="panm"), cb.Uniform()], "selection.rule=panm compares with numbers of rounds that are the same for"),
    (
        [cb.AFIND(rule="literal"), cb.AdaptiveThreshold(rule="literal", normalise=True), cb.Uniform()],
        "threshold.normalise=true compares entropies that all neighbours send in the same round",
    ),
    ([cb.FedeRiCo(), cb.FedeRiCoStep()], "aggregation FedeRiCoStep does not support clients that do not wait"),
    (
        [ByFormerModels(lambda round: round.loss_of(round.candidates, "models")), cb.Uniform()],
        "reads client .*'s model from before .* do not publish; read the row set 'trained' or 'sent', or run with",
    ),
    (
        [ByFormerModels(lambda round: round.compare("models", round.candidates)), cb.Uniform()],
        "compares clients by models from before the round's training, which clients that do not wait",
    ),
    (
        [ByFormerModels(lambda round: round.compare("trained", round.candidates, relative_to="start")), cb.Uniform()],
        "compares clients by updates, which clients that do not wait for each other do not publish",
    ),
]


@pytest.mark.parametrize(("policies", "sentence"), REFUSED)
def test_what_was_never_published_is_refused(policies, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        fit(
            cb.Asynchronous(speed=1.0, spread=0.5),
            tmp_path,
            datamodule=digits(),
            graph="complete",
            network=MLP(hidden=[6]),
            rounds=3,
            also=policies,
        )
