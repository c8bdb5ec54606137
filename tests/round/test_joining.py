"""Clients that come later and start from the mean of their neighbours: numbers by hand, costs, and resumed runs."""

import networkx as nx
import pytest
import torch
from small_run import SmallRun

from dfl_lightning.callbacks import Bernoulli, Gossip, Monitor, NoiseAttack, Trace, Uniform
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.errors import UserError

STILL = {
    "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "init": "independent",
    "lr_scheduler": None,
}
"""Training that changes nothing, from different first models, so that means can be computed by hand."""

STAR = nx.Graph([(3, 0), (3, 1), (3, 2), (2, 1)])
STAR.add_nodes_from([4, 5])


class Bytes(Monitor):
    """The bytes that clients received in each round, by link."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, round):
        got = round.ledger.by_link(len(round.bank.layout.shared))
        pairs = zip(got.links.receivers.tolist(), got.links.senders.tolist(), got.bytes.tolist(), strict=True)
        self.rounds.append({(i, j): size for i, j, size in pairs})


def trace(folder, *lines, **options):
    (folder / "trace.csv").write_text("\n".join(" ".join(line) for line in lines))
    return Trace(str(folder / "trace.csv"), **options)


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Return the first models by the same seed, from a run of no round."""
    folder = tmp_path_factory.mktemp("first")
    return SmallRun(folder, rounds=0, policies=[Gossip(k=0), Uniform()], topology=STAR, module=STILL).fit().rows


def test_a_client_that_joins_starts_from_a_mean(tmp_path, first):
    """Client 3 joins in round 2; of its neighbours 0, 1 and 2, client 2 joins in the same round."""
    policies = [trace(tmp_path, "110011", "110011", "111111", join="neighbours"), Gossip(k=0), Uniform()]
    costs = Bytes()
    run = SmallRun(tmp_path, rounds=3, policies=policies, callbacks=[costs], topology=STAR, module=STILL).fit()
    width = run.rows.shape[1]
    expected = first.clone()
    expected[3] = (first[0] + first[1]) / 2
    expected[2] = first[1]  # its other neighbour, client 3, joins in the same round
    assert torch.allclose(run.rows, expected, atol=1e-7)
    assert not torch.allclose(run.rows[3], first[3], atol=1e-3)
    assert costs.rounds == [{}, {}, {(2, 1): 4 * width, (3, 0): 4 * width, (3, 1): 4 * width}]
    table = run.trainer.run.metrics
    assert table["bytes_received"].tolist() == [0, 0, 3 * 4 * width / 6]


def test_without_a_word_it_starts_from_its_own_model(tmp_path, first):
    policies = [trace(tmp_path, "110011", "110011", "111111"), Gossip(k=0), Uniform()]
    costs = Bytes()
    run = SmallRun(tmp_path, rounds=3, policies=policies, callbacks=[costs], topology=STAR, module=STILL).fit()
    assert torch.equal(run.rows, first)
    assert costs.rounds == [{}, {}, {}]


def test_only_neighbours_that_are_active_are_in_the_mean(tmp_path, first):
    """Client 1 has joined, and is absent in the round in which client 3 joins."""
    policies = [trace(tmp_path, "111011", "101111", "111111", join="neighbours"), Gossip(k=0), Uniform()]
    rows = SmallRun(tmp_path, rounds=3, policies=policies, topology=STAR, module=STILL).fit().rows
    assert torch.allclose(rows[3], (first[0] + first[2]) / 2, atol=1e-7)
    assert torch.equal(rows[:3], first[:3])


def test_the_start_and_the_mixed_model_are_two_messages(tmp_path, first):
    """With all neighbours mixed, client 3 receives two models of clients 0 and 1, and ends with their mean again."""
    policies = [trace(tmp_path, "110011", "110111", join="neighbours"), Gossip(k="all"), Uniform()]
    costs = Bytes()
    run = SmallRun(tmp_path, rounds=2, policies=policies, callbacks=[costs], topology=STAR, module=STILL).fit()
    width = run.rows.shape[1]
    start = (first[0] + first[1]) / 2
    assert torch.allclose(run.rows[3], (start + first[0] + first[1]) / 3, atol=1e-7)
    assert torch.allclose(run.rows[0], (first[0] + start) / 2, atol=1e-7)
    assert costs.rounds[1] == {(3, 0): 8 * width, (3, 1): 8 * width, (0, 3): 4 * width, (1, 3): 4 * width}


def test_clients_of_a_sequence_join_with_their_first_graph(tmp_path, monkeypatch, first):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "early.txt").write_text("0 1\n4 5\n")
    (tmp_path / "late.txt").write_text("3 0\n3 1\n3 2\n2 1\n4\n5\n")
    keys = {"sequence": [{"graph": "early.txt", "rounds": 1}, {"graph": "late.txt"}], "join": "neighbours"}
    rows = SmallRun(tmp_path, rounds=3, policies=[Gossip(k=0), Uniform()], topology=keys, module=STILL).fit().rows
    assert torch.allclose(rows[3], (first[0] + first[1]) / 2, atol=1e-7)
    assert torch.equal(rows[2], first[1])
    assert torch.equal(rows[[0, 1, 4, 5]], first[[0, 1, 4, 5]])


def test_joining_survives_a_resume(tmp_path):
    """The run is stopped before a client joins, and after it: with the same bits as without a stop."""
    lines = ["110011", "110011", "111011", "111111", "101111"]

    def run(rounds, checkpoint=None, **options):
        policies = [trace(tmp_path, *lines, join="neighbours"), Gossip(k=1), Uniform()]
        module = {"lr_scheduler": None}
        return SmallRun(tmp_path, rounds=rounds, policies=policies, topology="complete", module=module).fit(checkpoint)

    whole = run(5)
    for stop in (2,):
        half = run(stop)
        assert torch.equal(run(5, half.folder).rows, whole.rows)


def test_a_fork_may_begin_to_let_clients_join(tmp_path):
    lines = ["110011", "110011", "111111"]
    policies = [trace(tmp_path, *lines), Gossip(k=0), Uniform()]
    before = SmallRun(tmp_path, rounds=2, policies=policies, topology=STAR, module=STILL).fit()
    policies = [trace(tmp_path, *lines, join="neighbours"), Gossip(k=0), Uniform()]
    fork = SmallRun(tmp_path, rounds=3, policies=policies, topology=STAR, module=STILL)
    fork.fit(before.folder, fork=True)
    assert fork.module.bank.boundary.numbers["_joined"].tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("options", "more", "sentence"),
    [
        ({"topology": "server"}, [], "join: neighbours is for clients with neighbours, and with a server they "),
        ({"topology": STAR}, [NoiseAttack(0.2)], "join: neighbours sends models from before a round's training, which "
         "NoiseAttack does not change; use join: own, or run without --outgoing"),
    ],
)  # fmt: skip
def test_where_no_client_can_join_it_is_said(tmp_path, options, more, sentence):
    policies = [trace(tmp_path, "111111", join="neighbours"), *more, Gossip(k=1), Uniform()]
    with pytest.raises(UserError) as error:
        SmallRun(tmp_path, rounds=1, policies=policies, **options).fit()
    assert str(error.value).startswith(sentence)


def test_a_wrong_way_to_join_is_named(tmp_path):
    keys = {"sequence": [{"generator": "complete"}]}
    with pytest.raises(UserError, match=r"topology: join is own or neighbours, not 'mean'\."):
        load_topology({**keys, "join": "mean"}, 3)
    with pytest.raises(UserError, match=r"topology: join goes with sequence, .* it is dropout\.join"):
        load_topology({"generator": "complete", "join": "neighbours"}, 3)
    assert load_topology({**keys, "join": "neighbours"}, 3).identity() != load_topology(keys, 3).identity()
    assert Bernoulli(0.5).join == "own"
