"""Models that are mixed as they are when a client finishes: AD-PSGD, FedBuff and FedAsync against single events."""

import networkx as nx
import numpy as np
import pytest
import torch
from heap import simulate_pairs, simulate_server
from scalar_clients import fit, fit_scalars, world
from threads import threads

from dfl_lightning import UserError, data
from dfl_lightning import callbacks as cb
from dfl_lightning.functional import BufferedServer, buffered_coefficients, pair_coefficients
from dfl_lightning.models import MLP


class Partners(cb.Monitor):
    """Records the neighbour that each training of each client drew."""

    def __init__(self):
        self.drawn = {}

    def on_round_end(self, round):
        if not round.has("selected"):
            return  # no client has finished
        for i, j in zip(round.selected.receivers.tolist(), round.selected.senders.tolist(), strict=True):
            self.drawn[i, int(round.cycles[i])] = j


def some(numbers, quick):
    return [n if n < quick else pytest.param(n, marks=pytest.mark.slow) for n in range(numbers)]


# --- one event at a time ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", some(100, 3))
def test_pairs_equal_single_events_bit_for_bit(number, tmp_path):
    """Halves of numbers with few binary digits are exact, so that no order of summation hides a difference."""
    m, graph, targets, cost, latency = world(number)
    clock, partners = cb.Asynchronous(speed=[1e9 / int(c) for c in cost], latency=latency, every=1.3), Partners()
    _, module = fit_scalars(clock, tmp_path, targets, graph, 5, [cb.Gossip(k=1), cb.Pairwise(), partners])
    found, trainings = simulate_pairs(
        np.zeros(m), targets, cost, lambda i, c: partners.drawn.get((i, c)), int(6.5e9), int(latency * 1e9)
    )
    assert module.bank.boundary.rows["models"][:, 0].tolist() == found.tolist()
    assert clock.trainings.tolist() == trainings.tolist()
    assert {i for i, _ in partners.drawn} == {i for i in range(m) if graph.degree[i] and trainings[i]}
    assert all(graph.has_edge(i, j) for (i, _), j in partners.drawn.items())


@pytest.mark.parametrize("number", some(100, 3))
@pytest.mark.parametrize("contribution", ["update", "model"])
def test_a_buffered_server_equals_single_events(number, contribution, tmp_path):
    m, _, targets, cost, latency = world(number)
    k = 1 + number % 4
    clock = cb.Asynchronous(speed=[1e9 / int(c) for c in cost], latency=latency, every=1.3)
    buffered = cb.Buffered(k, step=0.5, power=0.5, contribution=contribution)
    _, module = fit_scalars(clock, tmp_path, targets, "server", 5, [cb.Gossip(k="all"), buffered])
    model, begun, version = simulate_server(
        np.zeros(m), targets, cost, int(6.5e9), k, 0.5, 0.5, int(latency * 1e9), contribution == "model"
    )
    rows = module.bank.boundary.rows
    np.testing.assert_allclose(rows["models"][m, 0], model, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(rows["training_starts"][:m, 0], begun, rtol=1e-13, atol=1e-15)
    assert buffered.version == version


def test_a_server_of_exact_numbers_has_the_same_bits(tmp_path):
    for number in range(4):
        m, _, targets, cost, latency = world(number)
        clock = cb.Asynchronous(speed=[1e9 / int(c) for c in cost], latency=latency, every=1.3)
        policies = [cb.Gossip(k="all"), cb.Buffered(2, step=0.5, power=0.0)]
        _, module = fit_scalars(clock, tmp_path / str(number), targets, "server", 5, policies)
        model, _, _ = simulate_server(np.zeros(m), targets, cost, int(6.5e9), 2, 0.5, 0.0, int(latency * 1e9))
        assert module.bank.boundary.rows["models"][m, 0].item() == model


# --- numbers by hand --------------------------------------------------------------------------------------------------
def test_two_clients_of_adpsgd_by_hand(tmp_path):
    """Durations 1 and 2 s, targets 8 and 16, first models 0, rounds of 2 s.

    At 1 s, client 0: mean of 0 and 0, plus (8 - 0) / 2: x = (4, 0). At 2 s, client 0 first: mean 2, plus (8 - 4) / 2:
    x = (4, 2). Then client 1: mean 3, plus (16 - 0) / 2: x = (3, 11).
    """
    clock = cb.Asynchronous(speed=[1.0, 0.5], every=2)
    trainer, module = fit_scalars(clock, tmp_path, [8, 16], nx.path_graph(2), 1, [cb.Gossip(k=1), cb.Pairwise()])
    assert module.bank.boundary.rows["models"][:, 0].tolist() == [3, 11]
    assert module.bank.boundary.rows["training_starts"][:, 0].tolist() == [4, 11]
    # Three events of two models of 4 bytes each, two of them over the same links in one wave.
    assert trainer.run.metrics["models_received"].tolist() == [3]
    assert trainer.run.metrics["bytes_received"].tolist() == [12]
    assert trainer.run.metrics["probes_received"].tolist() == [0]


@pytest.mark.parametrize(
    ("latency", "trainings", "finish"), [(0.0, [12, 6, 3], [13, 14, 16]), (0.5, [8, 5, 2], [13, 14.5, 13])]
)
def test_pairs_of_three_speeds_are_counted_by_hand(latency, trainings, finish, tmp_path):
    """Durations of 1, 2 and 4 s, on a line, for 12 s; each event sends two models of 4 bytes.

    A client waits for its neighbour's model. With half a second for each, client 0 finishes at 1, 2.5, ..., 11.5 s,
    client 1 at 2, 4.5, ..., 12 s, and client 2 at 4 and 8.5 s.
    """
    clock = cb.Asynchronous(speed=[1.0, 0.5, 0.25], latency=latency, every=4)
    trainer, _ = fit_scalars(clock, tmp_path, [1, 2, 3], nx.path_graph(3), 3, [cb.Gossip(k=1), cb.Pairwise()])
    found = trainer.run.metrics
    assert clock.trainings.tolist() == trainings
    assert (clock.finish.double() / 1e9).tolist() == finish
    assert found["simulated_seconds"].tolist() == [4, 8, 12]
    assert found["active"].sum() == sum(trainings)
    assert found["trainings"][-1] == pytest.approx(sum(trainings) / 3)
    assert found["models_received"].sum() == pytest.approx(2 * sum(trainings) / 3)
    assert found["bytes_received"].sum() == pytest.approx(4 * 2 * sum(trainings) / 3)


@pytest.mark.parametrize(
    ("latency", "trainings", "finish"), [(0.0, [12, 6, 3], [13, 14, 16]), (0.5, [6, 4, 2], [13.5, 14.5, 14.5])]
)
def test_a_server_of_three_speeds_is_counted_by_hand(latency, trainings, finish, tmp_path):
    """Durations of 1, 2 and 4 s, for 12 s; each contribution sends a model of 4 bytes up and one down.

    With half a second for each, client 0 contributes at 1.5, 3.5, ..., 11.5 s, client 1 at 2.5, 5.5, 8.5 and 11.5 s,
    and client 2 at 4.5 and 9.5 s.
    """
    clock, buffered = cb.Asynchronous(speed=[1.0, 0.5, 0.25], latency=latency, every=4), cb.Buffered(4)
    trainer, _ = fit_scalars(clock, tmp_path, [1, 2, 3], "server", 3, [cb.Gossip(k="all"), buffered])
    found = trainer.run.metrics
    assert clock.trainings.tolist() == trainings
    assert (clock.finish.double() / 1e9).tolist() == finish
    assert (buffered.version, buffered.filled) == divmod(sum(trainings), 4)
    assert found["simulated_seconds"].tolist() == [4, 8, 12]
    assert found["active"].sum() == sum(trainings)
    assert found["models_received"].sum() == pytest.approx(2 * sum(trainings) / 3)
    assert found["bytes_received"].sum() == pytest.approx(4 * 2 * sum(trainings) / 3)


def test_pairs_keep_the_mean_of_all_models():
    clients, partners = torch.tensor([0, 3, 1, 2]), torch.tensor([1, 0, 4, 3])
    models, _ = pair_coefficients(clients, partners, nodes=5)
    torch.testing.assert_close(models.sum(0), torch.ones(9, dtype=torch.float64))


def test_only_the_client_that_has_finished_waits(tmp_path):
    """A model takes 2 s to arrive; client 1 trains for 100 s, and its neighbour's messages do not hold it up."""
    clock = cb.Asynchronous(speed=[1.0, 0.01], latency=2.0, every=7)
    fit_scalars(clock, tmp_path, [8, 16], nx.path_graph(2), 1, [cb.Gossip(k=1), cb.Pairwise()])
    assert clock.trainings.tolist() == [3, 0]  # at 1, 4 and 7 s
    assert clock.finish.tolist() == [10_000_000_000, 100_000_000_000]


def test_fedasync_by_hand(tmp_path):
    """Durations 1 and 2 s, targets 8 and 16, step 1/2, power 1, rounds of 2 s.

    At 1 s, client 0 brings 4, of version 0: x = 0 + (4 - 0) / 2 = 2. At 2 s it brings (2 + 8) / 2 = 5, of version 1:
    x = 2 + (5 - 2) / 2 = 3.5. Then client 1 brings 8, two versions behind: x = 3.5 + (8 - 3.5) / 6 = 4.25.
    """
    clock = cb.Asynchronous(speed=[1.0, 0.5], every=2)
    policies = [cb.Gossip(k="all"), cb.Buffered(1, step=0.5, power=1.0, contribution="model")]
    trainer, module = fit_scalars(clock, tmp_path, [8, 16], "server", 1, policies)
    assert module.bank.boundary.rows["models"][2, 0].item() == pytest.approx(4.25, rel=1e-15)
    assert module.bank.boundary.rows["training_starts"][:2, 0].tolist() == pytest.approx([3.5, 4.25], rel=1e-15)
    # Three uploads and three downloads; versions behind: 0 in the first wave, then 0 and 2.
    assert trainer.run.metrics["models_received"].tolist() == [3]
    assert trainer.run.metrics["versions_behind"].tolist() == [pytest.approx(2 / 3)]


def test_fedbuff_by_hand():
    """Updates of versions 2, 0 and 2 to a server of version 2 with one of factor 1/2 in its buffer, two a step."""
    events = buffered_coefficients(
        torch.tensor([2, 0, 2]), torch.tensor([True] * 3), BufferedServer(2, 1, 0.5), k=2, step=3.0, power=1.0
    )
    # x1 = x + 3/2 (b + u0), version 3. Then u1, 3 versions behind: 1/4; u2, 1 behind: 1/2: x2 = x1 + 3/2 (u1/4 + u2/2).
    assert events.model.tolist() == [1, 1.5, 1.5, 0.375, 0.75]
    assert events.buffer.tolist() == [0, 0, 0, 0, 0]
    assert events.after.tolist() == [[1, 1.5, 1.5, 0, 0], [1, 1.5, 1.5, 0, 0], [1, 1.5, 1.5, 0.375, 0.75]]
    assert (events.versions.tolist(), events.behind.tolist()) == ([3, 3, 4], [0, 3, 1])
    assert events.server == BufferedServer(4, 0, 0.0)


def test_clients_of_a_server_wait_for_upload_and_download(tmp_path):
    """Training 1 s, an upload of 4 bytes 2 s and a download 1 s: models arrive at 3 and, 4 s later, at 7 s."""
    clock = cb.Asynchronous(speed=1.0, up=2.0, down=4.0, every=7)
    fit_scalars(clock, tmp_path, [8, 16], "server", 1, [cb.Gossip(k="all"), cb.Buffered(1)])
    assert clock.trainings.tolist() == [2, 2]
    assert clock.finish.tolist() == [11_000_000_000] * 2


def test_one_step_of_equal_clients_is_fedavg(tmp_path):
    """With k = m, equal speeds and step 1, the first step is the mean of all models; all clients take it at the end."""
    models = []
    for clock, aggregation in ((None, cb.Uniform()), (cb.Asynchronous(speed=1.0), cb.Buffered(4))):
        where = tmp_path / str(len(models))
        _, module = fit_scalars(clock, where, [8, 16, -4, 2], "server", 1, [cb.Gossip(k="all"), aggregation])
        models.append(module.bank.boundary.rows["models"][4, 0].item())
    assert models[0] == models[1] == 22 / 8


# --- engines, stops and resumed runs ----------------------------------------------------------------------------------
WAYS = {
    "pairwise": ("complete", lambda: [cb.Gossip(k=1), cb.Pairwise()]),
    "buffered": ("server", lambda: [cb.Gossip(k="all"), cb.Buffered(3, step=0.7)]),
}


def uneven(way, folder, rounds=4, also=(), **options):
    graph, policies = WAYS[way]
    clock = cb.Asynchronous(speed=100.0, spread=0.8, up=1e6, latency=0.01)
    return fit(
        clock,
        folder,
        datamodule=data.Digits(num_clients=8, samples_per_client=24),
        graph=graph,
        network=MLP(hidden=[6]),
        rounds=rounds,
        also=[*policies(), cb.Bernoulli(0.2), *also],
        **options,
    )


@pytest.mark.parametrize("way", WAYS)
def test_engines_agree(way, tmp_path):
    models = [
        uneven(way, tmp_path / engine, engine=engine)[1].bank.boundary.rows["models"] for engine in ("loop", "stacked")
    ]
    torch.testing.assert_close(*models, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_threads_change_no_bit(way, tmp_path):
    rows = []
    for number in (1, 2, 4):
        with threads(number):
            rows.append(uneven(way, tmp_path / str(number))[1].bank.boundary.rows)
    for other in rows[1:]:
        assert all(torch.equal(values, other[key]) for key, values in rows[0].items())


class StopInAWave(cb.Monitor):
    def __init__(self, index):
        self.index = index

    def on_mixed(self, round):
        if round.index == self.index and round.earlier:
            raise RuntimeError("stopped inside a wave")


@pytest.mark.parametrize("way", WAYS)
def test_run_stopped_inside_a_wave_resumes_with_the_same_bits(way, tmp_path):
    _, whole = uneven(way, tmp_path / "whole", rounds=6)
    with pytest.raises(RuntimeError, match="stopped inside a wave"):
        uneven(way, tmp_path / "cut", rounds=6, also=[StopInAWave(3)], enable_checkpointing=True, checkpoint_every=1)
    (folder,) = (tmp_path / "cut").glob("*/*/metrics.csv")
    _, resumed = uneven(way, tmp_path / "cut", rounds=6, enable_checkpointing=True, ckpt_path=folder.parent)
    assert whole.bank.boundary.rows.keys() == resumed.bank.boundary.rows.keys()
    for name, rows in whole.bank.boundary.rows.items():
        assert torch.equal(resumed.bank.boundary.rows[name], rows), name


# --- what is refused --------------------------------------------------------------------------------------------------
PAIRS, SERVER = [cb.Gossip(k=1), cb.Pairwise()], [cb.Gossip(k="all"), cb.Buffered()]
REFUSED = [
    ("complete", [cb.Gossip(k=2), cb.Pairwise()], "Pairwise averages the models of two clients, the second one drawn"),
    (nx.DiGraph([(0, 1), (1, 2), (2, 0), *((i, 0) for i in range(3, 8))]), PAIRS, "so that links must go both ways"),
    ("complete", [*PAIRS, cb.GaussianNoise(sigma=0.1)], "which no Outgoing policy changes; use --outgoing null"),
    ("server", PAIRS, "aggregation Pairwise is for clients with neighbours"),
    ("complete", SERVER, "aggregation Buffered needs one server"),
    ("server", [cb.Gossip(k=3), cb.Buffered()], "use --selection Gossip --selection.k all"),
    ("server", [*SERVER, cb.QSGD(bits=4)], "which no Outgoing policy changes"),
]


@pytest.mark.parametrize(("graph", "policies", "sentence"), REFUSED)
def test_unsupported_company_is_refused_before_training(graph, policies, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        fit(
            cb.Asynchronous(speed=1.0),
            tmp_path,
            datamodule=data.Digits(num_clients=8, samples_per_client=24),
            graph=graph,
            network=MLP(hidden=[6]),
            rounds=1,
            also=policies,
        )


@pytest.mark.parametrize(("graph", "policies"), [("complete", PAIRS), ("server", SERVER)])
def test_a_run_without_a_clock_is_refused(graph, policies, tmp_path):
    with pytest.raises(UserError, match="is for clients that do not wait for each other; set clock Asynchronous"):
        fit_scalars(None, tmp_path, [1, 2], graph, 1, policies)
