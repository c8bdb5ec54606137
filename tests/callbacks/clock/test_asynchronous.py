"""Clients that do not wait for each other: a heap of single events, numbers by hand, and the synchronous run."""

from functools import partial

import networkx as nx
import numpy as np
import pytest
import torch
from heap import simulate
from scalar_clients import fit, fit_scalars, world

from dfl_lightning import DFLModule, DFLTrainer, UserError, data
from dfl_lightning import callbacks as cb
from dfl_lightning.models import MLP
from dfl_lightning.objectives import Ditto, FedProx


# --- one event at a time ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", [n if n < 8 else pytest.param(n, marks=pytest.mark.slow) for n in range(100)])
def test_waves_equal_single_events_bit_for_bit(number, tmp_path):
    """The median of numbers with few binary digits is exact, so that no order of summation hides a difference."""
    m, graph, targets, cost, latency = world(number)
    speeds = [1e9 / int(c) for c in cost]
    clock = cb.Asynchronous(speed=speeds, latency=latency, every=1.3)
    _, module = fit_scalars(clock, tmp_path, targets, graph, 5, [cb.Gossip(k="all"), cb.Median()])
    transfer = np.full((m, m), int(latency * 1e9))
    senders = [sorted(graph[i]) for i in range(m)]
    models, trainings, _ = simulate(
        np.zeros(m), targets, cost, senders, lambda own, others: np.median([own, *others]), int(6.5e9), transfer
    )
    assert module.bank.boundary.rows["models"][:, 0].tolist() == models.tolist()
    assert clock.trainings.tolist() == trainings.tolist()


def test_weighted_means_equal_those_of_single_events(tmp_path):
    m, graph, targets, cost, _ = world(3)
    speeds = [1e9 / int(c) for c in cost]
    _, module = fit_scalars(
        cb.Asynchronous(speed=speeds, every=1.3), tmp_path, targets, graph, 9, [cb.Gossip(k="all"), cb.Uniform()]
    )
    senders = [sorted(graph[i]) for i in range(m)]
    models, _, _ = simulate(
        np.zeros(m), targets, cost, senders, lambda own, others: np.mean([own, *others]), int(11.7e9)
    )
    np.testing.assert_allclose(module.bank.boundary.rows["models"][:, 0].numpy(), models, rtol=1e-12)


def test_trainings_bytes_and_seconds_are_those_by_hand(tmp_path):
    """Durations of 1, 2 and 4 s, rounds of 4 s: 4, 2 and 1 trainings in each; a model has 8 bytes of 2 numbers."""
    clock = cb.Asynchronous(speed=[1.0, 0.5, 0.25], every=4)
    trainer, _ = fit_scalars(clock, tmp_path, [1, 2, 3], nx.path_graph(3), 3, [cb.Gossip(k="all"), cb.Uniform()])
    found = trainer.run.metrics
    assert clock.trainings.tolist() == [12, 6, 3]
    said = clock.describe(trainer.lightning_module.federation)  # waves at 1, 2, 3 and 4 s; 7 trainings in 4 of them
    assert "a round is 4 s of simulated time, of about 4 waves; about 2 of 3 clients train together in one; " in said
    assert said.endswith("a wave of all clients took 1.3 times as long as a synchronous round")
    np.testing.assert_allclose(found["trainings"], [7 / 3, 14 / 3, 7])
    assert found["active"].tolist() == [7, 7, 7]
    assert found["simulated_seconds"].tolist() == [4, 8, 12]
    # Client 0 receives the model of 1 at 2, 3 and 4 s; 1 has 0's at 2 and 4 and 2's at 4; 2 has 1's at 4.
    first = 3 + 3 + 1
    later = 4 + 2 * 2 + 1
    np.testing.assert_allclose(found["models_received"], [first / 3, later / 3, later / 3])
    np.testing.assert_allclose(found["bytes_received"], 4 * found["models_received"])


def test_only_measured_costs_of_waves_are_claimed(tmp_path):
    clock = cb.Asynchronous(speed=1.0)
    trainer, _ = fit_scalars(clock, tmp_path, [1, 2, 3], nx.path_graph(3), 1, [cb.Gossip(k="all"), cb.Metropolis()])
    said = clock.describe(trainer.lightning_module.federation)
    assert said.endswith("of about 1 wave; about 3 of 3 clients train together in one")


def test_clients_wait_for_their_messages(tmp_path):
    """A model of 4 bytes takes 2 s over a link of 2 bytes a second, and half a second of latency."""
    clock = cb.Asynchronous(speed=1.0, up=2.0, latency=0.5, every=7)
    fit_scalars(clock, tmp_path, [1, 2], nx.path_graph(2), 1, [cb.Gossip(k="all"), cb.Uniform()])
    assert clock.trainings.tolist() == [2, 2]  # at 1 s and at 1 + 2.5 + 1 = 4.5 s
    assert clock.finish.tolist() == [8_000_000_000] * 2


def test_staleness_is_the_age_of_what_is_mixed(tmp_path):
    clock = cb.Asynchronous(speed=[1.0, 0.5], every=4)
    trainer, _ = fit_scalars(clock, tmp_path, [1, 2], nx.path_graph(2), 1, [cb.Gossip(k="all"), cb.Uniform()])
    # Waves: client 0 at 1 s, with nothing to receive; both at 2 s, fresh; 0 at 3 s, with a model of 2 s; both at 4 s.
    assert trainer.run.metrics["staleness"].tolist() == [(2 * 0 + 1 * 1 + 2 * 0) / 5]


def test_old_models_count_less_by_the_polynomial_of_their_age(tmp_path):
    """Client 0 takes 1 s and client 1 takes 2 s; at 3 s, client 0 mixes a model of 2 s, whose age is 1 s."""
    models = {}
    for power in (0.0, 2.0):
        _, module = fit_scalars(
            cb.Asynchronous(speed=[1.0, 0.5], every=3),
            tmp_path / str(power),
            [8, 24],
            nx.path_graph(2),
            1,
            [cb.Gossip(k="all"), cb.StalenessWeighted(power=power)],
        )
        models[power] = module.bank.boundary.rows["models"][:, 0].tolist()
    # 0: 4 at 1 s, trains to 6 at 2 s; 1 trains to 12 at 2 s; both become 9. At 3 s client 0 has 8.5 and mixes 12.
    assert models[0.0] == [(8.5 + 12) / 2, 9]
    assert models[2.0] == pytest.approx([(8.5 + 12 / 4) / (1 + 1 / 4), 9], rel=1e-15)


# --- the synchronous run ----------------------------------------------------------------------------------------------
AGGREGATIONS = [
    cb.Uniform,
    cb.SampleWeighted,
    cb.Metropolis,
    cb.FromTopology,
    cb.Median,
    partial(cb.TrimmedMean, 0.3),
    cb.Boltzmann,
]


def weighted():
    graph = nx.random_regular_graph(4, 8, seed=1)
    for i, j in graph.edges:
        graph.edges[i, j]["weight"] = 1 + i + j
    return graph


def digits():
    return data.Digits(num_clients=8, samples_per_client=24)


@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_equal_speeds_and_free_messages_are_the_synchronous_run(aggregation, tmp_path):
    rows = []
    for clock in (None, cb.Asynchronous(speed=50.0)):
        also = [cb.Gossip(k=3), aggregation(), cb.GaussianNoise(sigma=0.01)]
        where = tmp_path / str(len(rows))
        _, module = fit(
            clock, where, datamodule=digits(), graph=weighted(), network=MLP(hidden=[6]), rounds=3, also=also
        )
        rows.append(module.bank.boundary.rows["models"])
    assert torch.equal(*rows)


@pytest.mark.parametrize("objective", [lambda: FedProx(mu=0.1), lambda: Ditto(lam=0.5)])
def test_local_rules_are_those_of_the_synchronous_run(objective, tmp_path):
    rows = []
    for clock in (None, cb.Asynchronous(speed=50.0)):
        trainer = DFLTrainer(
            max_rounds=2,
            topology="ring",
            callbacks=[*([clock] if clock else []), cb.Gossip(k=1), cb.Uniform()],
            accelerator="cpu",
            enable_progress_bar=False,
            enable_checkpointing=False,
            default_root_dir=tmp_path / str(len(rows)),
        )
        module = DFLModule(MLP(hidden=[6]), local_epochs=1, batch_size=8, objective=objective())
        trainer.fit(module, datamodule=digits())
        found = module.bank.boundary.rows
        rows.append(torch.cat([found[name] for name in sorted({*found} - {"published"})]))
    assert torch.equal(*rows)


def test_draws_follow_a_clients_own_trainings(tmp_path):
    """Alone, a client has after its c-th training the model of the synchronous run after c rounds."""
    alone = {"datamodule": digits(), "graph": "complete", "network": MLP(hidden=[6])}
    alone["also"] = [cb.Gossip(k=0), cb.Uniform()]
    rows = {}
    for rounds in (2, 4):
        _, module = fit(None, tmp_path / str(rounds), rounds=rounds, **alone)
        rows[rounds] = module.bank.boundary.rows["models"].clone()
    sizes = module.federation.data.sizes("train")
    speeds = [float(size) / (1 + i % 2) for i, size in enumerate(sizes.tolist())]  # trainings of 1 and of 2 s
    clock = cb.Asynchronous(speed=speeds, every=1)
    _, module = fit(clock, tmp_path / "own", rounds=4, **alone)
    assert clock.trainings.tolist() == [4, 2] * 4
    models = module.bank.boundary.rows["models"]
    torch.testing.assert_close(models[::2], rows[4][::2], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(models[1::2], rows[2][1::2], rtol=1e-10, atol=1e-12)


# --- layout, stops and resumed runs -----------------------------------------------------------------------------------
def uneven(folder, rounds=4, **options):
    also = [cb.Gossip(k=2), cb.Uniform(), *options.pop("also", ())]
    clock = cb.Asynchronous(speed=100.0, spread=0.8, up=1e6, latency=0.01)
    return fit(
        clock,
        folder,
        datamodule=digits(),
        graph="complete",
        network=MLP(hidden=[6]),
        rounds=rounds,
        also=also,
        **options,
    )


def test_engines_agree(tmp_path):
    models = [
        uneven(tmp_path / engine, engine=engine)[1].bank.boundary.rows["models"] for engine in ("loop", "stacked")
    ]
    torch.testing.assert_close(*models, rtol=1e-9, atol=1e-12)


class StopInAWave(cb.Monitor):
    """Raises in the second wave of a round."""

    def __init__(self, index):
        self.index = index

    def on_mixed(self, round):
        if round.index == self.index and round.earlier:
            raise RuntimeError("stopped inside a wave")


def test_run_stopped_inside_a_wave_resumes_with_the_same_bits(tmp_path):
    _, whole = uneven(tmp_path / "whole", rounds=6)
    with pytest.raises(RuntimeError, match="stopped inside a wave"):
        uneven(tmp_path / "cut", rounds=6, also=[StopInAWave(3)], enable_checkpointing=True, checkpoint_every=1)
    (folder,) = (tmp_path / "cut").glob("*/*/metrics.csv")
    _, resumed = uneven(tmp_path / "cut", rounds=6, enable_checkpointing=True, ckpt_path=folder.parent)
    assert whole.bank.boundary.rows.keys() == resumed.bank.boundary.rows.keys()
    for name, rows in whole.bank.boundary.rows.items():
        assert torch.equal(resumed.bank.boundary.rows[name], rows), name


class Width(cb.Monitor):
    def __init__(self):
        self.widths = []

    def on_round_end(self, round):
        self.widths.append((round.index, int(round.due.sum())))


def test_links_of_all_waves_are_kept(tmp_path):
    width = Width()
    trainer, _ = uneven(tmp_path, also=[width], check_val_every_n_epoch=1)
    assert max(sum(r == index for r, _ in width.widths) for index in range(4)) > 1  # several waves in a round
    assert sum(count for _, count in width.widths) == int(trainer.policy(cb.Clock).cycle.sum())
    graphs = trainer.run.graphs
    mixed = (graphs["weight"] > 0) & (graphs["sender"] != graphs["receiver"])
    received = trainer.run.metrics["models_received"] * 8
    assert [int((mixed & (graphs["round"] == r)).sum()) for r in range(4)] == [round(n) for n in received]
    assert graphs["selected"].sum() == mixed.sum()
    assert graphs["sender"].max() < 8


# --- what is refused --------------------------------------------------------------------------------------------------
REFUSED = [
    ([cb.Gossip(k=2), cb.PushSum()], "aggregation PushSum does not support clients that do not wait for each other"),
    ([cb.PANM(k=2), cb.Uniform()], "selection PANM does not support"),
    ([cb.Gossip(k=2), cb.Boltzmann(contribution="own")], "aggregation Boltzmann does not support"),
    ([cb.Gossip(k=2), cb.Uniform(), cb.ExactCount(0.5)], "dropout ExactCount does not support"),
    ([cb.Gossip(k=2), cb.Uniform(), cb.SimulatedTime(1.0, 1.0, 1.0)], "SimulatedTime is a second clock"),
    ([cb.Gossip(k=2), cb.Uniform(), cb.Bernoulli(0.5), cb.Stale()], "does not support|--substitution null"),
    ([cb.Gossip(k=2), cb.Uniform(), cb.Synchronous(1.0)], "2 policies of the family clock"),
]


@pytest.mark.parametrize(("policies", "sentence"), REFUSED)
def test_unsupported_company_is_refused_before_training(policies, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        fit(
            cb.Asynchronous(speed=1.0),
            tmp_path,
            datamodule=digits(),
            graph="complete",
            network=MLP(hidden=[6]),
            rounds=1,
            also=policies,
        )


def test_each_policy_that_does_not_support_it_has_a_reason():
    names = [name for name in cb.__all__ if isinstance(getattr(cb, name), type)]
    policies = {name: getattr(cb, name) for name in names if issubclass(getattr(cb, name), cb.Policy)}
    bases = ("Policy", "Selection", "Aggregation", "Threshold", "Dropout", "Outgoing", "Substitution", "Attack")
    without = {n for n, one in policies.items() if not (one.supports_clock or one.against_clock or n in bases)}
    assert {n for n in without if not issubclass(policies[n], cb.Substitution)} == {"Boltzmann"}  # by its options


def test_ages_without_an_asynchronous_clock_are_refused(tmp_path):
    with pytest.raises(UserError, match="weighs models by their ages, which only clock Asynchronous gives them"):
        fit(
            None,
            tmp_path,
            datamodule=digits(),
            graph="complete",
            network=MLP(hidden=[6]),
            rounds=1,
            also=[cb.Gossip(k=2), cb.StalenessWeighted()],
        )


def test_servers_are_refused(tmp_path):
    with pytest.raises(UserError, match="clock Asynchronous: aggregation Uniform averages what all clients"):
        fit(
            cb.Asynchronous(speed=1.0),
            tmp_path,
            datamodule=digits(),
            graph="server",
            network=MLP(hidden=[6]),
            rounds=1,
            also=[cb.Gossip(k=2), cb.Uniform()],
        )


ENDLESS = [
    ({"speed": 1e-12}, "a training takes client 0 1e.12 s, and times of more than 36 years are not counted; raise its"),
    ({"speed": 1e-300}, "a training takes client 0 1e.300 s"),
    ({"speed": [1.0, 1.0, 1e-12]}, "a training takes client 2"),
    ({"speed": 1.0, "latency": 1e12}, "receiving takes client 0 2e.12 s, .* raise up and down, or lower latency"),
    ({"speed": 1.0, "up": 1e-12}, "receiving takes client 0 8e.12 s"),
    (
        {"speed": 1e6, "every": 1.0},
        "client 0 could train 1,000,000 times in a round, and at most 10,000",
    ),
    ({"speed": 1e-6, "every": 1e9}, "3 rounds of 1e.09 s are more than 73 years"),
]


@pytest.mark.parametrize(("numbers", "sentence"), ENDLESS)
def test_times_that_cannot_be_counted_are_refused(numbers, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        fit_scalars(
            cb.Asynchronous(**numbers), tmp_path, [1, 2, 3], nx.complete_graph(3), 3, [cb.Gossip(k="all"), cb.Uniform()]
        )


def test_a_server_refuses_messages_that_cannot_be_counted(tmp_path):
    with pytest.raises(UserError, match=r"sending takes client 0 1e.12 s"):
        fit_scalars(
            cb.Asynchronous(speed=1.0, latency=1e12),
            tmp_path,
            [1, 2, 3],
            "server",
            3,
            [cb.Gossip(k="all"), cb.Buffered()],
        )
