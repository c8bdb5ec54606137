"""Noise, compression and an attack, against a federation written out in numpy."""

import functools

import networkx as nx
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning.functional import clipped, largest_entries, quantized
from dfl_lightning.links import Links
from dfl_lightning.round import senders as senders_module
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream

CLIENTS, ROUNDS, LR = 5, 3, 0.5
NOISE, TOP, FLIP = functools.partial(cb.GaussianNoise, 0.4, 0.3), functools.partial(cb.TopK, 0.3), cb.SignFlip


def flip():
    return cb.SignFlip(clients=[1, 4], scale=2.0)


def falsify():
    return cb.NoiseAttack(clients=[0, 3], sigma=0.2)


def collude():
    return cb.ALittleIsEnough(clients=[0, 2, 4], z=0.75)


def quantize():
    return cb.QSGD(bits=4, bucket=7)


POLICIES = {
    "noise": [NOISE],
    "largest": [TOP],
    "attack": [flip],
    "noise attack": [TOP, falsify],
    "a little is enough": [TOP, collude],
    "quantized": [quantize],
    "all": [TOP, NOISE, flip],
}


@pytest.fixture
def federation(start):
    def _start(policies, engine="loop", topology="complete", network=None, **more):
        torch.manual_seed(0)
        return start(
            *[make() for make in policies],
            cb.Gossip("all"),
            cb.Uniform(),
            clients=CLIENTS,
            network=network or nn.Linear(5, 3),
            topology=topology,
            lr=LR,
            batch_size=6,
            local_epochs=2,
            trainer={"precision": "64-true", "engine": engine},
            **more,
        )

    return _start


# --- the federation in numpy ------------------------------------------------------------------------------------------
def trained(row, x, y):
    """Take two steps of gradient descent of softmax regression."""
    weight, bias = row[:15].reshape(3, 5).copy(), row[15:].copy()
    for _ in range(2):
        scores = x @ weight.T + bias
        shares = np.exp(scores - scores.max(1, keepdims=True))
        error = shares / shares.sum(1, keepdims=True) - np.eye(3)[y]
        weight, bias = weight - LR * error.T @ x / len(y), bias - LR * error.mean(0)
    return np.concatenate([weight.reshape(-1), bias])


def with_noise(update, client, round, memory):
    z = torch.randn(18, generator=stream(0, "outgoing GaussianNoise", round, client, 0), dtype=torch.float64).numpy()
    return update * min(1, 0.4 / np.sqrt((update**2).sum())) + 0.3 * 0.4 * z


def largest(update, client, round, memory):
    update = update + memory.get(client, 0)
    kept = np.zeros_like(update)
    places = sorted(range(18), key=lambda place: -abs(update[place]))[:5]  # round(0.3 * 18)
    kept[places] = update[places]
    memory[client] = update - kept
    return kept


def flipped(update, client, round, memory):
    return -2 * update if client in (1, 4) else update


def noise_alone(update, client, round, memory):
    z = torch.randn(18, generator=stream(0, "outgoing NoiseAttack", round, client, 0), dtype=torch.float64).numpy()
    return 0.2 * z if client in (0, 3) else update


def in_four_bits(update, client, round, memory):
    """Quantise by QSGD, eq. 4 of the paper, in buckets of 7, 7 and 4 entries, with s = 7."""
    draws = torch.rand(18, generator=stream(0, "outgoing QSGD", round, client, 0), dtype=torch.float64).numpy()
    sent = np.zeros_like(update)
    for place, entry in enumerate(update):
        bucket = update[place // 7 * 7 :][:7]
        a = 7 * abs(entry) / np.sqrt((bucket**2).sum())
        sent[place] = np.sqrt((bucket**2).sum()) * np.sign(entry) * (np.floor(a) + (draws[place] < a - np.floor(a))) / 7
    return sent


RULES = {NOISE: with_noise, TOP: largest, flip: flipped, falsify: noise_alone, quantize: in_four_bits}


def by_hand(run, policies, server=False):
    data = run.data
    samples = [[t.numpy() for t in data.batch(data.train[i], torch.float64)] for i in range(CLIENTS)]
    models, memory = run.models.numpy().copy(), {}
    for round in range(ROUNDS):
        starts = [models[CLIENTS if server else i] for i in range(CLIENTS)]
        own = [trained(start, *samples[i]) for i, start in enumerate(starts)]
        sent = own
        for make in policies:
            if make is collude:
                rows = np.stack([sent[i] for i in (0, 2, 4)])
                deviations = np.sqrt(((rows - rows.mean(0)) ** 2).mean(0))
                sent = [rows.mean(0) - 0.75 * deviations if i in (0, 2, 4) else row for i, row in enumerate(sent)]
            else:
                updates = [row - start for row, start in zip(sent, starts, strict=True)]
                sent = [starts[i] + RULES[make](updates[i], i, round, memory) for i in range(CLIENTS)]
        if server:
            models = np.stack([*own, np.mean(sent, 0)])
        else:
            models = np.stack([(own[i] + sum(sent) - sent[i]) / CLIENTS for i in range(CLIENTS)])
    return models, memory


@pytest.mark.parametrize("topology", ["complete", "server"])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("name", POLICIES)
def test_runs_equal_those_in_numpy(federation, name, engine, topology):
    run = federation(POLICIES[name], engine, topology)
    expected, memory = by_hand(run, POLICIES[name], topology == "server")
    honest, _ = by_hand(run, [], topology == "server")
    assert not np.allclose(honest, expected, atol=1e-3)
    run.go(ROUNDS)
    np.testing.assert_allclose(run.models.numpy(), expected, rtol=1e-11, atol=1e-13)
    for client, rest in memory.items():
        np.testing.assert_allclose(run.rows("residual")[client].numpy(), rest, rtol=1e-9, atol=1e-12)


@pytest.mark.cpu_bits
@pytest.mark.parametrize("name", POLICIES)
def test_blocks_of_senders_and_resuming_change_nothing(federation, monkeypatch, name):
    whole = federation(POLICIES[name]).go(ROUNDS)
    monkeypatch.setattr(senders_module, "BLOCK_BYTES", 1)
    first = federation(POLICIES[name]).go(1)
    second = federation(POLICIES[name])
    second.take_up({"bank": {k: v.clone() for k, v in first.bank.state_dict().items()}, "callbacks": {}}).go(ROUNDS - 1)
    for rows in whole.bank.boundary.rows:
        assert torch.equal(whole.bank.boundary.rows[rows], second.bank.boundary.rows[rows]), rows


def test_without_outgoing_policies_trained_models_are_sent(federation):
    class Looks(cb.Monitor):
        def on_trained(self, round):
            self.same = round.bank.rows("sent") is round.bank.rows("trained")

    looks = Looks()
    run = federation([lambda: looks]).go()
    assert looks.same
    assert list(run.bank.boundary.rows) == ["models"]


def test_dropped_client_sends_nothing_and_keeps_its_residual(federation, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "up.txt").write_text("1 1 1 1 1\n1 0 1 1 1\n")
    run = federation([TOP, lambda: cb.Trace("up.txt", repeat=True)])
    before, after = (run.go().bank.rows("residual").clone() for _ in range(2))
    assert torch.equal(before[1], after[1])
    assert not torch.equal(before[0], after[0])


# --- what is counted --------------------------------------------------------------------------------------------------
def bytes_of(run):
    return run.go().rounds[-1].metrics["bytes_received"] * CLIENTS


class Short(cb.Outgoing):
    """Numbers of one byte."""

    def send(self, updates, senders):
        return updates

    def bytes_of(self, width):
        return width


def test_sparse_updates_are_charged_if_receivers_know_the_start(federation):
    download, upload = 4 * 18, 8 * 5
    assert bytes_of(federation([], topology="server")) == CLIENTS * 2 * download
    assert bytes_of(federation([TOP], topology="server")) == CLIENTS * (download + upload)
    assert bytes_of(federation([TOP, flip], topology="server")) == CLIENTS * (download + upload)
    assert bytes_of(federation([TOP, NOISE], topology="server")) == CLIENTS * 2 * download
    assert bytes_of(federation([NOISE, TOP], topology="server")) == CLIENTS * (download + upload)


def test_sparse_messages_never_cost_more_than_whole_ones(federation):
    for share, kept in ((0.4, 7), (0.5, 9), (0.6, 11), (1.0, 18)):
        run = federation([lambda share=share: cb.TopK(share)], topology="server")
        assert bytes_of(run) == CLIENTS * (4 * 18 + min(8 * kept, 4 * 18)), share


def test_quantization_is_unbiased_and_keeps_zeros():
    rows = torch.randn(3, 11, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[1] = 0
    grid = [(number + 0.5) / 1000 for number in range(1000)]  # all draws once
    found = torch.stack([quantized(rows, torch.full_like(rows, u), 3, 4) for u in grid])
    torch.testing.assert_close(found.mean(0), rows, rtol=0, atol=2e-3)
    assert not found[:, 1].any()
    levels = found[:, 0, :4] / rows[0, :4].norm() * 3
    torch.testing.assert_close(levels, levels.round(), rtol=0, atol=1e-12)


def test_buffers_are_sent_and_charged_whole(federation):
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    parameters, buffers = 24 + 8 + 15, 8
    whole = parameters + buffers
    for policies, upload in (
        ([], 4 * whole),
        ([TOP], 8 * round(0.3 * parameters) + 4 * buffers),
        ([NOISE], 4 * whole),
        ([TOP, NOISE], 4 * whole),
        ([Short], parameters + 4 * buffers),
    ):
        run = federation(policies, topology="server", network=network)
        assert bytes_of(run) == CLIENTS * (4 * whole + upload)


def test_neighbours_that_do_not_know_the_start_get_whole_models(federation):
    run = federation([TOP])
    assert bytes_of(run) == CLIENTS * 4 * 4 * 18
    assert any("TopK saves no bytes without a server" in remark for remark in run.trainer.remarks)
    assert not any("TopK" in remark for remark in federation([TOP], topology="server").trainer.remarks)
    assert bytes_of(federation([Short])) == CLIENTS * 4 * 18


class Quarter(cb.Outgoing):
    """Writes what is sent itself, in a hook of its own that knows nothing of bytes."""

    def on_outgoing(self, round):
        who = torch.arange(round.num_clients)
        sent = round.bank.change_sent(who)
        sent[: round.num_clients] = sent[: round.num_clients].round(decimals=2)

    def bytes_of(self, width):
        return width


def test_bytes_of_declares_the_size_of_messages(federation):
    assert bytes_of(federation([Quarter])) == CLIENTS * 4 * 18
    assert bytes_of(federation([Quarter], topology="server")) == CLIENTS * (4 * 18 + 18)
    assert bytes_of(federation([Quarter, TOP], topology="server")) == CLIENTS * (4 * 18 + 8 * 5)
    assert bytes_of(federation([TOP, Quarter], topology="server")) == CLIENTS * (4 * 18 + 18)


@pytest.mark.parametrize("size", [4.5, -1, "few"])
def test_invalid_message_sizes_are_refused_before_training(federation, size):
    wrong = type("Mine", (cb.Outgoing,), {"bytes_of": lambda self, width: size})
    with pytest.raises(UserError, match=r"outgoing Mine: bytes_of\(\) returns .* whole number of bytes"):
        federation([wrong])


def test_bytes_of_links_add_up_to_those_of_the_round(federation):
    run = federation([TOP], topology="server").go()
    ledger = run.rounds[0].record.ledger
    assert int(ledger.by_link(18).bytes.sum()) == ledger.total_bytes(18) == CLIENTS * (72 + 40)
    ledger.fetch_part("something", 3, Links.of(torch.tensor([CLIENTS]), torch.tensor([0]), ledger.nodes))
    assert int(ledger.by_link(18).bytes.sum()) == ledger.total_bytes(18) == CLIENTS * (72 + 40) + 12


# --- personal parts ---------------------------------------------------------------------------------------------------
def test_only_shared_columns_are_changed(federation):
    class Wild(cb.Outgoing):
        widths = set()

        def send(self, updates, senders):
            self.widths.add(updates.shape[1])
            return updates + 1e6

    run = federation([Wild], shared=["weight"]).go()
    assert Wild.widths == {15}
    assert run.models[:, :15].abs().max() > 1e5
    assert torch.equal(run.models[:, 15:], run.rounds[0].trained[:, 15:])


# --- mistakes ---------------------------------------------------------------------------------------------------------
def sending(function):
    return lambda: type("Mine", (cb.Outgoing,), {"send": lambda self, updates, senders: function(updates, senders)})()


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda u, s: u[:, :3], r"round 1: outgoing Mine sends float64 \[\d, 3\]; it must be float \[\d, 18\]"),
        (lambda u, s: u > 0, r"outgoing Mine sends bool \[\d, 18\]"),
        (
            lambda u, s: u / (s.ids[:, None] != 2).to(u.device),
            r"round 1: outgoing Mine: what client 2 sends is not finite",
        ),
        (lambda u, s: s.normal((3, 18)), r"outgoing Mine draws numbers of shape \[3, 18\]; the first dimension"),
    ],
)
def test_policy_that_breaks_its_contract_is_named(federation, function, sentence):
    with pytest.raises(UserError, match=sentence):
        federation([sending(function)]).go()


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: cb.GaussianNoise(clip=0), "outgoing.clip=0; it is a length above 0"),
        (lambda: cb.GaussianNoise(sigma=-1), "outgoing.sigma=-1; it is a standard deviation, 0 or more"),
        (lambda: cb.TopK(0), "outgoing.share=0; it is a share above 0 and at most 1"),
        (lambda: cb.SignFlip(1.5), "outgoing.fraction=1.5; it is a share from 0 to 1"),
        (lambda: cb.SignFlip(0.5, [1]), "outgoing.fraction and outgoing.clients both name the adversaries; keep one"),
        (lambda: cb.SignFlip(scale=0), "outgoing.scale=0; it must be above 0"),
        (lambda: cb.NoiseAttack(sigma=0), "outgoing.sigma=0; it is a standard deviation above 0"),
        (lambda: cb.NoiseAttack(0.0), "outgoing NoiseAttack has no adversaries; name them by --outgoing.fraction or"),
        (lambda: cb.SignFlip(clients=[]), "outgoing SignFlip has no adversaries; .* or use --outgoing null"),
        (lambda: cb.ALittleIsEnough(0.4, z=0.0), "outgoing.z=0.0; it is a number of standard deviations above 0"),
        (lambda: cb.ALittleIsEnough(clients=[2]), "outgoing ALittleIsEnough: the models of one adversary have no"),
        (lambda: cb.ALittleIsEnough(0.6, z=None), "outgoing.z=null: with 3 adversaries of 5 clients .* is inf; set a"),
        (lambda: cb.QSGD(bits=1), "outgoing.bits=1; an entry takes from 2 to 16 bits, its sign included"),
        (lambda: cb.QSGD(bucket=0), "outgoing.bucket=0; it is a number of entries, 1 or more"),
        (cb.NoiseAttack, "outgoing NoiseAttack: the data do not name adversaries"),
        (cb.SignFlip, "outgoing SignFlip: the data do not name adversaries"),
        (lambda: cb.SignFlip(0.01), "outgoing.fraction=0.01 of 5 clients is none"),
        (lambda: cb.SignFlip(clients=[5]), "outgoing.clients names 5, but there are 5 clients, 0 to 4"),
        (lambda: type("Odd", (cb.TopK,), {"who": lambda self, f: torch.ones(2)})(), r"outgoing Odd: who\(\) returns"),
    ],
)
def test_a_mistake_is_named_before_anything_is_trained(federation, make, sentence):
    with pytest.raises(UserError, match=sentence):
        federation([make])


@pytest.mark.parametrize(
    ("policies", "sentence"),
    [
        ([TOP, TOP], "outgoing has TopK twice; keep one"),
        ([cb.Fairness, cb.Fairness], "monitors has Fairness twice; keep one"),
        ([TOP, type("Other", (cb.TopK,), {})], "outgoing TopK and Other both keep a row set 'residual'; rename one"),
    ],
)
def test_conflicting_policies_are_refused(federation, policies, sentence):
    with pytest.raises(UserError, match=sentence):
        federation(policies)


def test_noise_leaves_running_statistics_alone_and_says_so(federation):
    network = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    (remark,) = federation([NOISE], network=network).trainer.remarks
    assert remark.startswith("GaussianNoise clips and hides parameters only: buffers ('1.running_mean', …) are sent as")
    assert not federation([NOISE], network=network, shared=["0.*", "2.*"]).trainer.remarks
    assert not federation([NOISE]).trainer.remarks


# --- the adversaries --------------------------------------------------------------------------------------------------
def test_links_and_weights_of_adversaries_are_counted(federation):
    ring = nx.Graph([(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)])
    run = federation([flip, lambda: cb.NoiseAttack(clients=[4])], topology=ring)
    metrics = run.go().rounds[-1].metrics
    assert metrics["adversary_links"] == pytest.approx(4 / 6)  # 0 and 2 receive from 1 or 4, and 3 from 4
    assert metrics["adversary_weight"] == pytest.approx(4 / 9)


def test_adversaries_are_drawn_by_seed_or_given_by_data(federation):
    run = federation([lambda: cb.SignFlip(0.4)])
    policy = run.trainer.policy(cb.Outgoing)
    drawn = policy.who(run.module.federation)
    assert int(drawn.sum()) == 2
    order = torch.randperm(CLIENTS, generator=stream(0, "SignFlip adversaries"))
    assert torch.nonzero(drawn).flatten().tolist() == sorted(order[:2].tolist())
    run.module.federation.data.adversaries = torch.tensor([True, False, False, True, False])
    assert torch.equal(cb.NoiseAttack(0.4).who(run.module.federation), drawn)
    assert cb.ALittleIsEnough(0.4, z=None).deviations(run.module.federation) == pytest.approx(stats.norm.ppf(2 / 3))
    assert torch.equal(cb.SignFlip().who(run.module.federation), run.module.federation.data.adversaries)


# --- the mathematics --------------------------------------------------------------------------------------------------
def test_the_largest_entries_are_those_of_a_sort():
    draws = torch.Generator().manual_seed(3)
    rows = torch.randint(-4, 5, (40, 9), generator=draws).double()  # many are equal
    for count in range(10):
        found = largest_entries(rows, count)
        for row, kept in zip(rows.tolist(), found.tolist(), strict=True):
            places = sorted(range(9), key=lambda place, row=row: (-abs(row[place]), place))[:count]
            assert kept == [value if place in places else 0 for place, value in enumerate(row)]


def test_a_clipped_update_is_no_longer_than_it_may_be():
    rows = torch.randn(20, 30, generator=torch.Generator().manual_seed(4)) * torch.logspace(-3, 20, 20)[:, None]
    found = clipped(rows, 2.0).double().numpy()
    lengths = np.linalg.norm(rows.double().numpy(), axis=1, keepdims=True)
    np.testing.assert_allclose(found, rows.double().numpy() * np.minimum(1, 2 / lengths), rtol=1e-6)


def test_adversary_harms_exactly_the_clients_in_its_reach(federation):
    ring = nx.cycle_graph(CLIENTS)
    usual, attacked = (federation(p, topology=ring).go() for p in ([], [lambda: cb.SignFlip(clients=[0], scale=5.0)]))
    differ = (usual.models - attacked.models).abs().amax(1) > 1e-9
    assert differ.tolist() == [False, True, False, False, True]
