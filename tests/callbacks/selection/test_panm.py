"""PANM: its two stages on similarities without error, on rounds of a few clients, and by plain loops."""

from types import SimpleNamespace

import networkx as nx
import numpy as np
import pytest
import torch
from matrices import remembered, seen_as_matrices

from dfl_lightning.bank.comparing.similarity import Comparison
from dfl_lightning.callbacks import PANM, Aggregation, Gossip, Stale, Uniform
from dfl_lightning.functional import (
    initialisation_probabilities,
    literal_initialisation_probabilities,
    panm_models_received,
    same_cluster,
)
from dfl_lightning.links import AllPairs, LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.runs.summary import final_table
from dfl_lightning.topology import load_topology
from dfl_lightning.utils.storage.shipped_files import shipped


def short(**settings):
    """Make PANM with two rounds of stage one and matchings in rounds 3, 5, 7 ..., counted from 0."""
    return PANM(**{"k": 2, "l": 2, "stage_one": 2, "tau": 2, **settings})


@pytest.fixture
def start(start):
    """Set up a run, with plain averages where no aggregation is given."""

    def _start(*policies, **settings):
        averages = [] if any(isinstance(policy, Aggregation) for policy in policies) else [Uniform()]
        return start(*policies, *averages, **settings)

    return _start


def members(mask):
    return set(torch.nonzero(mask).squeeze(-1).tolist())


# --- on similarities without error: nothing is trained or mixed -------------------------------------------------------
class Perfect:
    """PANM with the similarity 1 within clusters and 0 between them, round by round."""

    def __init__(self, monkeypatch, clusters, reachable=None, **settings):
        self.panm, self.clusters = PANM(**settings), torch.tensor(clusters)
        self.same = self.clusters[:, None] == self.clusters
        self.links = AllPairs.of_nodes(len(clusters)) if reachable is None else Links.from_mask(reachable)
        self.reachable = self.links.mask
        self.federation = SimpleNamespace(topology=SimpleNamespace(budgets=None), clusters=None)
        self.panm.start(SimpleNamespace(num_nodes=len(clusters), planned_rounds=None, clusters=None))
        self.fetched = torch.zeros_like(self.reachable)
        self.updates = 0
        self.index = 0

        def compare(round, rows, links, columns=None, relative_to=None, centre=False):
            self.fetched |= links.mask
            self.updates += len(links) if relative_to == "start" else 0
            return Comparison(self.same[links.receivers, links.senders].double(), torch.empty(0))

        monkeypatch.setattr(Round, "compare", compare)

    def go(self, seed=0):
        n = len(self.clusters)
        active = torch.ones(n, dtype=torch.bool)
        round = Round(
            index=self.index,
            federation=SimpleNamespace(**vars(self.federation), num_clients=n, num_nodes=n, num_servers=0, seed=seed),
            reachable=self.links,
            active=active,
            available=self.links,
            receivers=active,
            jobs=None,
            candidates=self.links,
            phases=(),
            hyperparameters=({"lr": 0.0},),
        )
        self.fetched = torch.zeros_like(self.reachable)
        for hook in (self.panm.on_propose, self.panm.on_compare, self.panm.on_select):
            hook(round)
        self.fetched |= round.selected.mask
        self.index += 1
        return SimpleNamespace(**seen_as_matrices(round))

    @property
    def neighbours(self):
        return self.panm.neighbours.mask


@pytest.fixture
def perfect(monkeypatch):
    return lambda clusters, reachable=None, **settings: Perfect(monkeypatch, clusters, reachable, **settings)


@pytest.mark.parametrize("candidates", ["new", "all"])
@pytest.mark.parametrize(
    ("n", "a", "l", "k", "repeats"),
    [
        (100, 25, 10, 5, 20),
        pytest.param(100, 50, 10, 5, 8, marks=pytest.mark.slow),
        (20, 5, 4, 2, 50),
        pytest.param(6, 3, 2, 2, 60, marks=pytest.mark.slow),
    ],
)
def test_confident_initialisation_follows_its_exact_law(n, a, l, k, repeats, candidates, perfect):
    rounds, number = 5, n * repeats
    done = np.zeros(rounds)
    for seed in range(repeats):
        run = perfect([i // a for i in range(n)], l=l, k=k, candidates=candidates)
        for t in range(rounds):
            selected = run.go(seed).selected
            assert (selected.sum(1) == k).all()
            done[t] += (selected <= run.same).all(1).sum().item()
    law = np.array(initialisation_probabilities(n, a, l, k, rounds, candidates))
    sigma = np.sqrt(law * (1 - law) / number)
    assert (np.abs(done / number - law) <= 3 * sigma + 1 / number).all()
    if (n, a) == (100, 25):  # the printed theorem is not what happens
        printed = literal_initialisation_probabilities(n, a, l, k, rounds)
        assert abs(done[1] / number - printed[1]) > 1.5 * sigma[1]


@pytest.mark.parametrize(
    ("l", "k", "formula", "models", "updates"),
    [
        (4, 2, 1118, 1140, 758),
        pytest.param(4, 3, 1397, 1435, 857, marks=pytest.mark.slow),
        pytest.param(10, 5, 2795, 2848, 1895, marks=pytest.mark.slow),
    ],
)
def test_a_run_costs_more_than_the_papers_formula(l, k, formula, models, updates, perfect):
    run = perfect([i % 2 for i in range(100)], l=l, k=k, stage_one=100, tau=10)
    total = 0
    for _ in range(300):
        run.go()
        total += int(run.fetched.sum())
    print(f"l={l} k={k}: {total / 100:.1f} models and {run.updates / 100} updates, {formula} models by the formula")
    assert panm_models_received(l, k, 100, 200, 10) == formula
    assert total / 100 == pytest.approx(models, rel=0.002)
    assert updates == l + 99 * (l + k) + 200 // 10 * 2 * l  # of all compared clients
    assert updates * 0.995 < run.updates / 100 <= updates  # in a first matching lists are shorter than l


@pytest.mark.parametrize("name", sorted(set(shipped("topologies")) - {"server", "two_clusters"}))
def test_clients_find_reachable_friends_in_any_topology(name, perfect):
    reachable = load_topology(name, 24).reachable(0).mask
    run = perfect([i % 3 for i in range(24)], reachable, l=2, k=2, stage_one=60, tau=2)
    friends = reachable & run.same
    for _ in range(60):
        round = run.go()
        assert not (round.selected & ~reachable).any()
    assert torch.equal((round.selected & friends).sum(1), friends.sum(1).clamp(max=2))
    found = (run.neighbours & friends).sum()
    for _ in range(40):
        assert not (run.go().selected & ~reachable).any()
    assert (run.neighbours & friends).sum() >= found


def test_matchings_find_the_rest_of_the_cluster(perfect):
    run = perfect([i % 4 for i in range(40)], l=6, k=3, stage_one=20, tau=1)
    for _ in range(20):
        run.go()
    assert (run.neighbours.sum(1) == 3).all()
    for _ in range(60):
        run.go()
    assert torch.equal(run.neighbours, run.same & run.reachable)


# --- the rounds -------------------------------------------------------------------------------------------------------
def test_stage_one_precedes_gossip_with_matchings_every_tau_rounds(start):
    run = start(short(stage_one=3, tau=4, l=1)).go(9)
    # rounds 0 to 2 are stage one, rounds 3 and 7 the fourth and the eighth
    assert [round.similarity is not None for round in run.rounds] == [True, True, True, True] + [False] * 3 + [
        True,
        False,
    ]
    assert [round.metrics["models_by_formula"] for round in run.rounds] == [1, 3, 3, 2, 2, 2, 2, 2, 2]


def test_stage_one_keeps_the_k_best_of_candidates_and_neighbours(start):
    run = start(short(k=2, l=2, stage_one=9)).go(4)
    former = torch.zeros(6, 6, dtype=torch.bool)
    for round in run.rounds:
        for i in range(6):
            pool, before = members(round.candidates[i]), members(former[i])
            assert before <= pool
            assert len(pool - before) == 2
            similarity = round.similarity[i]
            assert members(~similarity.isnan()) == pool
            best = set(sorted(pool, key=lambda j: -similarity[j])[:2])
            assert members(round.selected[i]) == best
            torch.testing.assert_close(round.after[i], round.trained[[i, *best]].mean(0))
        former = round.selected


def test_candidates_may_be_drawn_from_all_clients(start):
    run = start(short(k=3, l=3, stage_one=30, candidates="all")).go(12)
    pools = torch.stack([round.candidates.sum(1) for round in run.rounds[1:]])
    assert (pools >= 3).all()
    assert (pools <= 5).all()
    assert (pools < 5).any()  # a neighbour was drawn
    assert (torch.stack([r.candidates.sum(1) for r in start(short(k=3, l=3)).go(2).rounds[1:]]) == 5).all()


@pytest.mark.parametrize("matching", ["oriented", "unoriented", "literal"])
@pytest.mark.parametrize("metric", ["grad", "loss"])
def test_matching_compares_l_neighbours_and_l_strangers(metric, matching, start):
    # whom stage one draws from makes no difference to a matching
    policy = short(metric=metric, matching=matching, candidates="all", stage_one=1, tau=1, k=3, l=2)
    run = start(policy, clients=9)
    changed = 0
    run.go()
    for _ in range(5):
        former = policy.neighbours.mask
        round = run.go().rounds[-1]
        for i in range(9):
            seen = members(~round.similarity[i].isnan())
            sampled, strangers = seen & members(former[i]), seen - members(former[i])
            assert len(sampled) == min(2, int(former[i].sum()))
            assert len(strangers) == min(2, 8 - int(former[i].sum()))
            seen = torch.tensor(sorted(sampled | strangers))
            compared, first = Links.of(torch.full_like(seen, i), seen, nodes=9), [j in sampled for j in seen.tolist()]
            alike = same_cluster(round.similarity[i, seen], compared, torch.tensor(first), matching)
            matched = set(seen[alike].tolist())
            expected = (members(former[i]) - sampled) | matched or members(former[i])
            assert set(policy.neighbours.heard_by(i).tolist()) == expected
            chosen = members(round.selected[i])
            assert chosen <= expected
            assert len(chosen) == min(3, len(expected))
            torch.testing.assert_close(round.after[i], round.trained[[i, *chosen]].mean(0))
        changed += not torch.equal(policy.neighbours.mask, former)
    assert changed


def test_between_matchings_lists_stay_and_only_mixed_models_are_fetched(start):
    policy = short(stage_one=1, tau=10, k=2, l=4)
    run = start(policy).go()
    longer = policy.neighbours.mask | torch.eye(6, dtype=torch.bool).roll(1, 1)  # lists longer than k
    policy.neighbours = Links.from_mask(longer)
    drawn = [round.selected for round in run.go(6).rounds[1:]]
    assert torch.equal(policy.neighbours.mask, longer)
    assert all(not (selected & ~longer).any() for selected in drawn)
    assert not all(torch.equal(selected, drawn[0]) for selected in drawn)
    for round in run.rounds[1:]:
        assert round.metrics["models_received"] == pytest.approx(round.selected.sum().item() / 6)
        assert round.metrics["probes_received"] == 0


# --- similarities -----------------------------------------------------------------------------------------------------
def naive_cosine(a, b):
    a, b = a.double().numpy(), b.double().numpy()
    norms = np.linalg.norm(a) * np.linalg.norm(b)
    return a @ b / norms if norms else 0.0


@pytest.mark.parametrize(
    ("alpha", "init", "shared"),
    [
        *((0.0, "common", None), (0.0, "independent", ["features.*"]), (0.3, "independent", None)),
        *((0.3, "common", ["features.*"]), (1.0, "independent", ["features.*"])),
    ],
)
def test_gradient_similarity_uses_changes_of_round_and_since_start(alpha, init, shared, start):
    run = start(short(alpha=alpha, stage_one=9, l=5), init=init, shared=shared).go(3)
    initial = run.rounds[0].before
    columns = run.module.federation.layout.shared_parameters.mask(run.module.federation.layout.width)
    assert ("initial" in run.bank.boundary.rows) == (alpha < 1)
    for round in run.rounds:
        updates, accumulated = (round.trained - round.before)[:, columns], (round.trained - initial)[:, columns]
        for i, j in np.argwhere(round.reachable.numpy()):
            expected = alpha * naive_cosine(updates[i], updates[j])
            expected += (1 - alpha) * naive_cosine(accumulated[i], accumulated[j])
            assert round.similarity[i, j].item() == pytest.approx(expected, abs=2e-5)
        others = round.similarity.nan_to_num()
        assert torch.equal(others, others.T)


@pytest.mark.parametrize(
    ("settings", "init", "models", "updates"),
    [  # `models`: a compared client sends its model; `updates`: number of updates that it sends in addition
        ({"metric": "loss"}, "common", True, 0),
        ({"alpha": 0.5}, "common", True, 1),  # this round's update: where it began only the sender knows
        ({"alpha": 0.0}, "common", True, 0),  # the change since a start that all clients know
        ({"alpha": 1.0}, "common", False, 1),
        ({"alpha": 0.5}, "independent", False, 2),  # both changes, and models only to be mixed
        ({"alpha": 0.0}, "independent", False, 1),
    ],
)
def test_ledger_counts_distinct_models_and_updates(settings, init, models, updates, start):
    run = start(short(**settings, stage_one=3, tau=2), clients=12, topology="partial_half", init=init).go(9)
    size = 5 * 4 + 4 + 4 * 3 + 3
    for round in run.rounds:
        mixed = {(i, j) for i, j in torch.nonzero(round.selected).tolist()}
        compared = set()
        if round.similarity is not None:
            compared = {(i, j) for i, j in torch.nonzero(~round.similarity.isnan()).tolist()}
        fetched = mixed | compared if models else mixed
        assert round.metrics["models_received"] == pytest.approx(len(fetched) / 12)
        assert round.metrics["probes_received"] == pytest.approx(len(fetched - mixed) / 12)
        assert round.metrics["proxies_received"] == pytest.approx(updates * len(compared) / 12)
        numbers = size * (len(fetched) + updates * len(compared))
        assert round.metrics["bytes_received"] == pytest.approx(4 * numbers / 12)
    counted = [round.metrics["models_by_formula"] for round in run.rounds]
    assert counted == [2, 4, 4, 4, 2, 4, 2, 4, 2]


def test_the_formula_is_in_the_summary_and_in_the_terminal(small_run):
    run = small_run(6, policies=[short(), Uniform()]).fit()
    received = run.trainer.run.summary["received_per_client"]
    assert received["models_by_formula"] == 2 + 4 + 2 + 4 + 2 + 4
    assert received["models"] == pytest.approx(run.trainer.run.metrics["models_received"].sum())
    sent = f"({received['models']:,.0f} models, by the paper's formula 18, {received['proxies']:,.0f} proxies)"
    assert received["proxies"] > 0  # the updates
    assert sent in final_table(run.trainer.run.summary)[1]


def test_lists_are_judged_against_known_clusters(start, make_clusters):
    policy = short(stage_one=1, tau=1)
    run = start(policy, topology=make_clusters(6, [0, 0, 0, 1, 1, 1])).go(3)
    sizes = policy.neighbours.count.tolist()
    right = [len({j for j in members(row) if j // 3 == i // 3}) for i, row in enumerate(policy.neighbours.mask)]
    found = run.rounds[-1].metrics
    assert found["matched"] == pytest.approx(np.mean(sizes))
    assert found["matched_precision"] == pytest.approx(np.mean(np.array(right) / sizes))
    assert found["matched_recall"] == pytest.approx(np.mean(right) / 2)
    assert "matched_precision" not in start(short()).go().rounds[0].metrics


# --- ends of the scale ------------------------------------------------------------------------------------------------
def test_k_0_equals_local_training_without_comparisons(start):
    ours, theirs = start(short(k=0)).go(5), start(Gossip(k=0), Uniform()).go(5)
    assert torch.equal(ours.models, theirs.models)
    assert [round.metrics["models_received"] for round in ours.rounds] == [0] * 5


def test_k_and_l_of_all_clients_equal_full_gossip(start):
    ours, theirs = start(short(k=9, l=9)).go(5), start(Gossip(k="all"), Uniform()).go(5)
    assert torch.equal(ours.models, theirs.models)


def test_identical_clients_are_one_cluster(start, make_data):
    policy = short(stage_one=1, tau=1)
    start(policy, Uniform(), data=make_data(6, same=True)).go(6)
    assert torch.equal(policy.neighbours.mask, ~torch.eye(6, dtype=torch.bool))


def test_the_budget_of_a_client_comes_before_k(start):
    graph = nx.complete_graph(6)
    nx.set_node_attributes(graph, dict(enumerate([0, 1, 2, 3, 4, 5])), "budget")
    run = start(short(l=5, tau=50), topology=graph).go(4)
    for round in run.rounds:
        assert round.selected.sum(1).tolist() == [0, 1, 2, 3, 4, 5]
    assert run.rounds[0].similarity[0].isnan().all()  # a client with budget 0 compares no client


# --- dropout and graphs that change -----------------------------------------------------------------------------------
def test_dropped_neighbour_is_skipped_and_stays_on_the_list(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 0 1 1 1", "1 1 1 1 1 1")
    policy = short(stage_one=1, tau=50, k=5, l=5)
    run = start(policy, up, rounds=3).go(3)
    assert not run.rounds[1].selected[:, 2].any()
    assert torch.equal(run.rounds[2].selected, run.rounds[0].selected)


def test_dropped_neighbour_keeps_its_last_similarity_in_stage_one(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 0 1 1 1")
    policy = short(stage_one=5, k=5, l=5)
    run = start(policy, up, rounds=2).go(2)
    assert not run.rounds[1].selected[:, 2].any()
    neighbours, similarity = policy.neighbours.mask, remembered(policy.similarity)
    assert neighbours[[0, 1, 3, 4, 5], 2].all()
    assert torch.equal(similarity[:, 2].nan_to_num(), run.rounds[0].similarity[:, 2].nan_to_num())
    assert torch.equal(neighbours[2], run.rounds[0].selected[2])  # it was not there to change its list


def test_substitution_lets_clients_learn_from_dropped_neighbours(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 0 1 1 1")
    run = start(short(stage_one=5, k=5, l=5), up, Stale(), rounds=2).go(2)
    assert run.rounds[1].selected[[0, 1, 3, 4, 5], 2].all()
    assert run.rounds[1].similarity[:, 2].isnan().all()


def test_client_without_present_neighbours_gets_the_most_similar_strangers(start, trace):
    up = trace("1 1 1 1 1 1", "1 1 1 1 1 1", "1 0 0 1 1 1")
    policy = short(stage_one=1, tau=3, k=2, l=3)
    run = start(policy, up, rounds=3).go(2)
    neighbours = policy.neighbours.mask
    neighbours[0] = torch.tensor([False, True, True, False, False, False])
    policy.neighbours = Links.from_mask(neighbours)
    round = run.go().rounds[-1]
    best = set(sorted([3, 4, 5], key=lambda j: -round.similarity[0, j])[:2])
    assert set(policy.neighbours.heard_by(0).tolist()) == {1, 2} | best
    assert members(round.selected[0]) == best


# --- refusals and remarks ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rounds", "remarks"), [(9, 1), (10, 0), (30, 0)])
def test_run_that_ends_before_its_first_matching_gets_a_remark(rounds, remarks, start):
    run = start(PANM(stage_one=6, tau=5), rounds=rounds)
    assert len(run.trainer.remarks) == remarks
    if remarks:
        assert run.trainer.remarks[0].startswith(
            "PANM matches no neighbours in 9 rounds (the first time would be after 10)"
        )


@pytest.mark.parametrize("index", [0, 1])  # in stage one, and in a matching
def test_large_complete_graph_is_not_stored_as_a_list(index):
    n = 50_000
    policy, all_pairs = PANM(k=2, l=4, stage_one=1, tau=1), AllPairs.of_nodes(n)
    policy.neighbours, policy.similarity = all_pairs.draw(3, seed=5), LinkMemory.empty(n)
    up = torch.ones(n, dtype=torch.bool)
    topology = SimpleNamespace(budgets=None)
    federation = SimpleNamespace(topology=topology, num_clients=n, num_nodes=n, num_servers=0, seed=0)
    fields = {"reachable": all_pairs, "active": up, "receivers": up, "jobs": None, "phases": (), "hyperparameters": ()}
    round = Round(index=index, federation=federation, available=all_pairs, candidates=all_pairs, **fields)
    policy.on_propose(round)
    assert (round.candidates.count == 3 + 4).all()
    assert policy.neighbours.within(round.candidates).all()
    assert "_ends" not in vars(all_pairs)
