import functools
import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from plain.fdms import fdms as reference
from plain.fdms import halved_cosine, minus_distance

from dfl_lightning.callbacks import (
    FDMS,
    Bernoulli,
    FriendAccuracy,
    GaussianNoise,
    Gossip,
    GroupedCount,
    Monitor,
    Uniform,
)
from dfl_lightning.callbacks.substitution import fdms as fdms_policy
from dfl_lightning.data import Digits, LabelClusters
from dfl_lightning.functional.systems import fdms_receivers
from dfl_lightning.models import MLP
from dfl_lightning.utils.errors import UserError


@pytest.fixture
def at_a_server(start, trace):
    """Make a run of all clients under a server; `lines` say which clients are active."""

    def _start(lines, *more, eta=1.0, rounds=50, **settings):
        policies = Gossip(k="all"), Uniform(server_step=eta), trace(*lines.split(", "))
        return start(*policies, *more, topology="server", rounds=rounds, **settings)

    return _start


LINES = "1 1 1 1 1 1, 1 0 1 1 0 1, 0 1 1 0 1 1, 1 1 0 0 0 0"


SCORES = {"cosine": halved_cosine, "distance": minus_distance}


@pytest.mark.parametrize(
    ("eta", "similarity", "engine"),
    [(1.0, "cosine", "loop"), (0.1, "cosine", "stacked"), (1.5, "cosine", "loop")]
    + [(1.0, "distance", engine) for engine in ("loop", "stacked")],
)
def test_the_server_moves_as_the_paper_says(eta, similarity, engine, at_a_server):
    fdms = FDMS(similarity=similarity)
    run = at_a_server(LINES, fdms, eta=eta, trainer={"engine": engine}).go(6)
    scores, counts = np.zeros((6, 6)), np.zeros((6, 6))
    for round in run.rounds:
        server, trained = round.before[6].double().numpy(), round.trained[:6].double().numpy()
        found = reference(server, trained - server, round.active[:6].numpy(), scores, counts, eta, SCORES[similarity])
        scores, counts = found["scores"], found["counts"]
        np.testing.assert_allclose(round.after[6].numpy(), found["model"], atol=2e-6)
        assert round.substitute[6, :6][~round.active[:6]].tolist() == found["substitute"][~round.active[:6]].tolist()
    np.testing.assert_allclose(fdms.scores.numpy(), scores, atol=1e-5)
    assert (fdms.counts.numpy() == counts).all()


def test_clients_start_from_the_server_and_do_not_mix(at_a_server):
    run = at_a_server(LINES, FDMS(), local_epochs=0).go(2)
    for round in run.rounds:
        up = torch.nonzero(round.active[:6]).squeeze(1)
        assert torch.equal(round.trained[up], round.before[6].expand(len(up), -1))
        assert torch.equal(round.after[:6], round.trained[:6])


def test_full_first_round_gives_friends_of_the_same_cluster(start):
    data = Digits(num_clients=10, samples_per_client=20, partition=LabelClusters(5))
    dropout = GroupedCount(0.5, full_first_round=True)
    policies = Gossip(k="all"), Uniform(), dropout, FDMS(), FriendAccuracy()
    optimizer = functools.partial(torch.optim.SGD, lr=0.05)
    run = start(
        *policies, topology="server", clients=10, data=data, network=MLP(hidden=[16]), batch_size=5, optimizer=optimizer
    ).go(8)
    assert "friend_accuracy" not in run.rounds[0].metrics
    assert [round.metrics["friend_accuracy"] for round in run.rounds[1:]] == [1.0] * 7


def test_friend_replaces_a_client_that_diverged(at_a_server):
    run = at_a_server("1 1 1 1 1 1", FDMS()).go(1)
    run.module.federation.data.images[run.module.federation.data.train[2]] = math.inf
    with pytest.warns(UserWarning, match="training of client 2 diverged"):
        run.go(1)
    round = run.rounds[1]
    friend = int(round.substitute[6, 2])
    assert friend not in (2, -1)
    assert round.votes[6, friend] == 2
    assert round.votes[6, 2] == 0


def test_friends_and_dropped_clients_cost_no_messages(at_a_server):
    for round in at_a_server(LINES, FDMS()).go(4).rounds:
        up = int(round.active[:6].sum())
        assert round.metrics["models_received"] == pytest.approx(2 * up / 6)  # downloads and uploads
        assert round.metrics["proxies_received"] == round.metrics["probes_received"] == 0


# --- candidates -------------------------------------------------------------------------------------------------------
def naive_candidate_server(run, lines, theta_scale, beta, rounds):
    """Perform FL-FDMS section 5.3 with sets: return each round's comparisons, friends and remaining candidates."""
    m, w = run.clients, run.clients
    R, N = np.zeros((m, m)), np.zeros((m, m), dtype=int)
    C = [set(range(m)) - {k} for k in range(m)]
    found = []
    for t, round in enumerate(run.rounds, 1):
        before, trained = round.before.double().numpy(), round.trained.double().numpy()
        active = [k for k in range(m) if round.active[k]]
        compared = [(i, j) for i in active for j in active if i < j and (j in C[i] or i in C[j])]
        for i, j in compared:
            a, b = trained[i] - before[w], trained[j] - before[w]
            r = 0.5 * (a @ b / np.linalg.norm(a) / np.linalg.norm(b) + 1)
            R[i, j] = R[j, i] = (N[i, j] * R[i, j] + r) / (N[i, j] + 1)
            N[i, j] = N[j, i] = N[i, j] + 1
        friend = {}
        for k in set(range(m)) - set(active):
            among = [i for i in active if i in C[k] and N[k, i]] or [i for i in active if N[k, i]]
            friend[k] = max(among, key=lambda i: (R[k, i], -i)) if among else -1
        seen = [N[i, j] for i in range(m) for j in range(i) if N[i, j] and (j in C[i] or i in C[j])]
        share = beta or min(seen) / t
        bmax, p = m - 1, 0.05
        theta = theta_scale * math.sqrt((2 * math.log(2 * m * m * rounds * bmax) - 2 * math.log(p)) / (share * t))
        for k in range(m):
            known = [i for i in C[k] if N[k, i]]
            best = max((R[k, i] for i in known), default=0)
            C[k] -= {i for i in known if best - R[k, i] >= theta}
        found.append((len(compared), friend, [set(c) for c in C], theta))
    return found


@pytest.mark.parametrize(("theta_scale", "beta"), [(0.08, None), (0.08, 0.25), (0.15, 1.0), (0.02, None)])
def test_candidates_follow_the_papers_rules(theta_scale, beta, at_a_server):
    fdms = FDMS(theta_scale, beta)
    lines = f"{LINES}, 0 0 1 1 1 0, 1 0 0 1 0 1"
    run, sets = at_a_server(lines, fdms, rounds=18, trainer={"precision": "64-true"}), []
    for _ in range(18):
        run.go(1)
        sets.append([set(torch.nonzero(row).squeeze(1).tolist()) for row in fdms.candidates])
    expected = naive_candidate_server(run, lines, theta_scale, beta, 18)
    assert sum(map(len, sets[-1])) < 30  # some candidates were eliminated
    for round, mine, (compared, friend, left, theta) in zip(run.rounds, sets, expected, strict=True):
        assert round.metrics["similarities"] == compared
        assert round.metrics["theta"] == pytest.approx(theta)
        assert round.metrics["candidates"] == pytest.approx(sum(map(len, left)) / 6)
        assert {k: int(round.substitute[6, k]) for k in friend} == friend
        assert mine == left
    for earlier, later in itertools.pairwise(sets):
        assert all(after <= before for before, after in zip(earlier, later, strict=True))


def test_eliminated_pairs_are_no_longer_compared(at_a_server):
    bare, fewer = FDMS(), FDMS(0.02)
    full, reduced = (at_a_server("1 1 1 1 1 1", fdms, rounds=8).go(8) for fdms in (bare, fewer))
    assert [round.metrics["similarities"] for round in full.rounds] == [15] * 8
    counted = [round.metrics["similarities"] for round in reduced.rounds]
    assert counted[0] == 15
    assert counted == sorted(counted, reverse=True)
    assert counted[-1] < 15
    assert (fewer.counts <= bare.counts).all()
    assert "theta" not in full.rounds[0].metrics
    for one, other in zip(full.rounds, reduced.rounds, strict=True):
        assert torch.equal(one.after, other.after)  # all clients are active: no update is replaced


def test_impossible_elimination_changes_nothing(at_a_server):
    usual, cautious = (at_a_server(LINES, fdms, rounds=6).go(6) for fdms in (FDMS(), FDMS(1.0)))
    assert torch.equal(usual.models, cautious.models)
    assert [round.metrics["candidates"] for round in cautious.rounds] == [5.0] * 6


def test_eliminated_client_is_chosen_only_without_active_candidates(at_a_server):
    fdms = FDMS(10.0)
    run = at_a_server("1 1 1 1 1 1, 0 1 1 1 1 1", fdms).go(1)
    best, second = fdms.scores[0].argsort(descending=True)[:2].tolist()
    fdms.candidates[0, best] = False
    assert run.go(1).rounds[1].substitute[6, 0] == second
    fdms.candidates[0] = False
    run.go(1)
    assert run.go(1).rounds[3].substitute[6, 0] == fdms.scores[0].argmax()


def test_theta_needs_an_end_of_the_run_and_a_server(at_a_server, start):
    with pytest.raises(UserError, match=r"theta_scale needs the number of rounds; set trainer.max_rounds"):
        at_a_server(LINES, FDMS(0.25), rounds=-1)
    with pytest.raises(UserError, match="theta_scale saves a server's comparisons; use --topology server"):
        start(Gossip(k=2), Uniform(), Bernoulli(0.5), FDMS(0.25))


def many(clients):
    """Make the fields of a federation of many clients under a server that `start` reads."""
    return SimpleNamespace(num_clients=clients, num_rounds=9, topology=SimpleNamespace(num_servers=1))


NO_MEMORY = torch.device("meta")
"""Device of tensors with sizes and no numbers, since those of 10,000 clients would take 1.7 GB."""


def test_server_refuses_to_compare_all_pairs_of_many_clients(monkeypatch):
    monkeypatch.setattr(fdms_policy, "machine_memory", lambda: 10**12)
    with pytest.raises(
        UserError,
        match=r"all 49,995,000 pairs of clients, 1\.7 GB of scores, counts and candidates, in every round; "
        r"set substitution\.theta_scale .* or use fewer than 10,000 clients",
    ):
        FDMS().start(many(10_000))
    with pytest.raises(UserError, match=r"theta_scale \(0\.25, say\) with --substitution\.similarity cosine"):
        FDMS(similarity="distance").start(many(10_000))
    with NO_MEMORY:
        FDMS(0.25).start(many(10_000))
        FDMS().start(many(9_999))


@pytest.mark.parametrize("theta_scale", [None, 0.25])
def test_pairs_that_do_not_fit_into_memory_are_refused(theta_scale, monkeypatch):
    monkeypatch.setattr(fdms_policy, "machine_memory", lambda: fdms_policy.ROUND_BYTES * 5000**2)
    with NO_MEMORY:
        FDMS(theta_scale).start(many(5000))
    with pytest.raises(
        UserError,
        match=r"holds 12,502,500 pairs of clients, 425\.2 MB of .* this machine has .*: use at most 5,000 clients, or "
        r"substitution Stale",
    ):
        FDMS(theta_scale).start(many(5001))
    monkeypatch.setattr(fdms_policy, "machine_memory", lambda: None)  # a system that does not say
    with NO_MEMORY:
        FDMS(theta_scale).start(many(9999))


def test_scores_of_observed_pairs_are_shown_of_few_clients(at_a_server, monkeypatch):
    fdms = FDMS()
    round = at_a_server("1 1 1 0 0 0, 1 0 1 1 0 0", fdms).go(2).rounds[1]
    expected = torch.full((7, 7), torch.nan, dtype=torch.float64)
    for i, j in itertools.permutations(range(3), 2):
        expected[i, j] = fdms.scores[i, j]
    for i, j in itertools.permutations((0, 2, 3), 2):
        expected[i, j] = fdms.scores[i, j]
    torch.testing.assert_close(round.likeness, expected, rtol=0, atol=0, equal_nan=True)
    monkeypatch.setattr(fdms_policy, "MOST_SHOWN", 5)
    assert at_a_server(LINES, FDMS()).go(1).rounds[0].likeness is None


# --- without a server -------------------------------------------------------------------------------------------------
@pytest.fixture
def among_clients(start, trace):
    """Make a run of clients that learn from their neighbours; `lines` say which clients are active."""

    def _start(lines, *more, selection=None, **settings):
        return start(selection or Gossip(k="all"), Uniform(), trace(*lines.split(", ")), *more, **settings)

    return _start


class Sent(Monitor):
    """Remembers the sent rows of each round with active clients."""

    def __init__(self):
        self.rows = []

    def on_trained(self, round):
        self.rows.append(round.bank.rows("sent").cpu().double().numpy().copy())


def naive_receivers(run, sent, score):
    """Compute each receiver by itself: the scores that it has seen so far, and the mean of the models that it mixes."""
    m = run.clients
    models, seen = run.rounds[0].before, [{} for _ in range(m)]  # seen: receiver -> pair -> scores
    for round in run.rounds:
        if round.trained is None:
            assert torch.equal(round.after, torch.as_tensor(models))  # all clients had dropped out
            continue
        before, trained, others_rows = round.before.numpy(), round.trained.numpy(), next(sent)
        models = trained.copy()
        friends, compared = {}, 0
        for i in range(m):
            if not round.active[i]:
                continue
            neighbours = [j for j in range(m) if round.selected[i, j]]
            present = [j for j in neighbours if round.active[j]] + [i]
            rows = others_rows.copy()  # as this receiver has them: its own as it was trained
            rows[i] = trained[i]
            mixed = [trained[i]]
            for j in neighbours:
                known = [f for f in sorted(present) if frozenset((j, f)) in seen[i]]
                if round.active[j]:
                    mixed.append(rows[j])
                elif known:
                    friends[i, j] = max(known, key=lambda f: np.mean(seen[i][frozenset((j, f))]))
                    mixed.append(rows[friends[i, j]])
                else:
                    friends[i, j] = -1
                    others = [rows[k] for k in present if k != i]
                    mixed += [np.mean(others, axis=0)] if others else []
            models[i] = np.mean(mixed, axis=0)
            for a, b in itertools.combinations(present, 2):
                u, v = rows[a] - before[a], rows[b] - before[b]
                r = score(u, v)
                seen[i].setdefault(frozenset((a, b)), []).append(r)
                compared += 1
        yield round, models, friends, compared
        models = round.after
    yield seen


@pytest.mark.parametrize("outgoing", [False, True], ids=["as trained", "noisy"])
@pytest.mark.parametrize(
    ("k", "block", "similarity"), [("all", 1, "cosine"), (3, 7, "cosine"), (3, 2**20, "cosine"), (3, 7, "distance")]
)
def test_receivers_give_dropped_neighbours_votes_to_known_friends(
    k, block, similarity, outgoing, among_clients, monkeypatch
):
    monkeypatch.setattr(fdms_receivers, "BLOCK", block)
    fdms, sent = FDMS(similarity=similarity), Sent()
    lines = f"{LINES}, 0 0 1 1 1 0, 0 0 0 0 0 0, 1 0 0 1 0 1"
    more = [GaussianNoise(clip=0.5, sigma=0.1)] * outgoing
    settings = {"selection": Gossip(k=k), "init": "independent", "trainer": {"precision": "64-true"}}
    run = among_clients(lines, fdms, sent, *more, **settings)
    *rounds, seen = naive_receivers(run.go(12), iter(sent.rows), SCORES[similarity])
    assert len(rounds) == 11  # one round has no active client
    found = 0
    for round, models, friend_of, compared in rounds:
        np.testing.assert_allclose(round.after.numpy(), models, atol=1e-10)
        assert {(i, j): int(round.substitute[i, j]) for i, j in friend_of} == friend_of
        assert round.metrics["similarities"] == compared
        found += sum(f >= 0 for f in friend_of.values())
    assert found > 10
    means, counts = fdms.observed.matrices()
    for i, pairs in enumerate(seen):
        assert int(counts[i].sum()) == 2 * sum(map(len, pairs.values()))
        for (a, b), scores in ((tuple(pair), scores) for pair, scores in pairs.items()):
            assert float(means[i, a, b]) == pytest.approx(np.mean(scores), abs=1e-9)
            assert float(means[i, b, a]) == float(means[i, a, b])


def test_receiver_scores_only_itself_and_its_neighbours(among_clients):
    fdms = FDMS()
    among_clients("1 1 1 1 1 1", fdms, topology="ring").go(3)
    for i in range(6):
        around = {i, (i - 1) % 6, (i + 1) % 6}
        known = torch.nonzero(fdms.observed.matrices()[1][i]).tolist()
        assert {frozenset(pair) for pair in known} == {frozenset(p) for p in itertools.combinations(around, 2)}


def test_every_friend_among_clients_is_of_the_same_cluster(start):
    data = Digits(num_clients=10, samples_per_client=20, partition=LabelClusters(5))
    policies = Gossip(k="all"), Uniform(), GroupedCount(0.5, full_first_round=True), FDMS(), FriendAccuracy()
    optimizer = functools.partial(torch.optim.SGD, lr=0.05)
    run = start(*policies, clients=10, data=data, network=MLP(hidden=[16]), batch_size=5, optimizer=optimizer).go(6)
    assert "friend_accuracy" not in run.rounds[0].metrics
    assert [round.metrics["friend_accuracy"] for round in run.rounds[1:]] == [1.0] * 5


def test_update_is_charged_with_each_received_model(among_clients):
    run = among_clients(LINES, FDMS(), topology="ring").go(4)
    for round in run.rounds:
        received = sum(int(round.active[i] and round.active[(i + s) % 6]) for i in range(6) for s in (-1, 1))
        parameters = len(run.bank.layout.shared_parameters)
        assert round.metrics["models_received"] == pytest.approx(received / 6)
        assert round.metrics["proxies_received"] == pytest.approx(received / 6)
        assert round.metrics["bytes_received"] == pytest.approx(4 * 2 * received * parameters / 6)


def test_a_neighbour_that_diverged_is_replaced(among_clients):
    run = among_clients("1 1 1 1 1 1", FDMS()).go(1)
    run.module.federation.data.images[run.module.federation.data.train[2]] = math.inf
    with pytest.warns(UserWarning, match="training of client 2 diverged"):
        round = run.go(1).rounds[1]
    others = [0, 1, 3, 4, 5]
    assert not round.votes[others, 2].any()
    assert (round.votes[others].sum(1) == 6).all()
    assert torch.isfinite(round.after).all()


def test_many_clients_store_only_pairs_of_neighbours(start):
    fdms, ring = FDMS(), {"generator": "circulant_graph", "args": {"offsets": [1, 2]}}
    start(Gossip(k="all"), Uniform(), Bernoulli(0.3), fdms, clients=300, topology=ring).go(2)
    assert 300 < len(fdms.observed) <= 300 * 10  # pairs of four neighbours and the receiver


def test_pairs_of_neighbours_that_exceed_memory_are_refused(among_clients, monkeypatch):
    monkeypatch.setattr(fdms_policy, "machine_memory", lambda: fdms_policy.PAIR_BYTES * 6 * 15)
    run = among_clients("1 1 1 1 1 1", FDMS())  # 6 receivers of 15 pairs
    monkeypatch.setattr(fdms_policy, "machine_memory", lambda: fdms_policy.PAIR_BYTES * 6 * 15 - 1)
    sentence = r"holds scores of 90 pairs of neighbours {}, about 7\.2 kB; this machine has 7\.2 kB: use a sparser"
    with pytest.raises(UserError, match=sentence.format("in its first rounds")):
        among_clients("1 1 1 1 1 1", FDMS())
    with pytest.raises(UserError, match=sentence.format("by round 1")):
        run.go(1)
    among_clients("1 1 1 1 1 1", FDMS(), selection=Gossip(k=2))
