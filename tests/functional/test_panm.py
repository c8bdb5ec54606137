import math

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from plain import panm as reference

from dfl_lightning import functional
from dfl_lightning.functional import cosines_from_gram, gradient_similarity, loss_similarity
from dfl_lightning.links import Links


def same_cluster(similarity, sampled, candidates, *settings, **named):
    """As matrices, receiver by sender."""
    seen = sampled | candidates
    links = Links.from_mask(seen)
    return links.dense(functional.same_cluster(similarity[seen], links, sampled[seen], *settings, **named), False)


def rematched_neighbours(*masks):
    return functional.rematched_neighbours(*map(Links.from_mask, masks)).mask


# --- similarities ---------------------------------------------------------------------------------------------------


def cosines(rows):
    gram = rows @ rows.T
    return cosines_from_gram((gram + gram.T) / 2)


def test_the_similarity_of_gradients_has_the_golden_values():
    start, first = torch.tensor([[1.0, 0, 0], [0, 1, 0]]), torch.zeros(2, 3)
    trained = torch.tensor([[2.0, 1, 0], [1, 1, 1]])
    updates, accumulated = (cosines(trained - x) for x in (start, first))
    assert updates[0, 1].item() == pytest.approx(0.5, abs=1e-7)
    assert accumulated[0, 1].item() == pytest.approx(0.774597, abs=5e-7)
    assert gradient_similarity(updates, accumulated)[0, 1].item() == pytest.approx(0.637298, abs=5e-7)


def test_the_similarity_of_gradients_is_symmetric():
    rows = torch.randn(2, 9, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    similarity = gradient_similarity(*(cosines(r) for r in rows), alpha=0.3)
    assert torch.equal(similarity, similarity.T)


@pytest.mark.parametrize(("alpha", "expected"), [(0.0, 0.2), (1.0, 0.8), (0.25, 0.35)])
def test_alpha_is_the_share_of_this_rounds_cosine(alpha, expected):
    one = gradient_similarity(torch.tensor(0.8, dtype=torch.float64), torch.tensor(0.2, dtype=torch.float64), alpha)
    assert one.item() == pytest.approx(expected, abs=1e-15)


def test_zero_loss_is_most_similar_and_infinite_loss_not():
    similarity = loss_similarity(torch.tensor([0.0, 1e-13, 0.25, math.inf, math.nan]))
    assert similarity[:4].tolist() == pytest.approx([1e12, 1e12, 4, 0])
    assert similarity[4].isnan()


# --- who is of one's own cluster --------------------------------------------------------------------------------------
CASES = {
    "A": ([0.80, 0.75, 0.82, 0.78, 0.20], [0.79, 0.15, 0.10, 0.25, 0.77]),
    "B": ([0.8, 0.7, 0.9, 0.85], [0.1]),
    "C": ([0.8], [0.1, 0.2, 0.75, 0.15, 0.05]),
    "D": ([0.5] * 5, [0.5] * 5),
    "E": ([0.8, 0.78, 0.81, 0.79, 0.8], [0.8, 0.79, 0.81, 0.78, 0.8]),
    "F": ([0.1, 0.12, 0.09, 0.11, 0.8], [0.82, 0.1, 0.79, 0.08, 0.81]),
    "G": ([0.75], [0.7, 0.0, 0.65]),  # the least variance of a component of one client decides
}
ALL = set(range(10))


def looked_at(friends, strangers):
    similarity = torch.tensor([[*friends, *strangers]], dtype=torch.float64)
    sampled = (torch.arange(similarity.shape[1]) < len(friends))[None]
    return similarity, sampled, ~sampled


def members(mask):
    return set(torch.nonzero(mask).squeeze(1).tolist())


@pytest.mark.parametrize(
    ("case", "matching", "expected"),
    [
        ("A", "oriented", {0, 1, 2, 3, 5, 9}),
        ("B", "oriented", {0, 1, 2, 3}),
        ("C", "oriented", {0, 3}),
        ("D", "oriented", ALL),
        ("E", "oriented", ALL),
        ("F", "oriented", {4, 5, 7, 9}),
        ("G", "oriented", {0, 1}),
        ("A", "unoriented", {0, 1, 2, 3, 5, 9}),
        ("F", "unoriented", {0, 1, 2, 3, 6, 8}),
        ("A", "literal", {4, 6, 7, 8}),
    ],
)
def test_matchings_are_the_golden_ones(case, matching, expected):
    assert members(same_cluster(*looked_at(*CASES[case]), matching)[0]) == expected


def test_receivers_are_clustered_independently():
    width = max(len(s) + len(c) for s, c in CASES.values())
    similarity = torch.full((len(CASES), width), math.nan, dtype=torch.float64)
    sampled = torch.zeros(len(CASES), width, dtype=torch.bool)
    candidates = sampled.clone()
    for row, (friends, strangers) in enumerate(CASES.values()):
        y, s, c = looked_at(friends, strangers)
        similarity[row, : y.shape[1]], sampled[row, : y.shape[1]], candidates[row, : y.shape[1]] = y[0], s[0], c[0]
    together = same_cluster(similarity, sampled, candidates)
    alone = [same_cluster(*looked_at(*case))[0] for case in CASES.values()]
    assert [members(row) for row in together] == [members(row) for row in alone]


NUMBERS = st.lists(st.integers(-1000, 1000), min_size=2, max_size=20)


@given(NUMBERS, st.data(), st.sampled_from(["oriented", "unoriented", "literal"]))
def test_a_matching_agrees_with_a_loop(numbers, data, matching):
    y = [number / 1024 for number in numbers]
    first = data.draw(st.lists(st.booleans(), min_size=len(y), max_size=len(y)))
    expected = reference.same_cluster(dict(enumerate(y)), {j for j, label in enumerate(first) if label}, matching)
    assume(expected is not None)  # where the floor makes the labels run in a circle, rounding decides where they stop
    sampled = torch.tensor([first])
    found = same_cluster(torch.tensor([y], dtype=torch.float64), sampled, ~sampled, matching)
    assert members(found[0]) == expected


@given(NUMBERS, st.data(), st.sampled_from([0.5, 4.0, 1024.0]), st.sampled_from([-8.0, 0.0, 2.0]))
def test_scaling_and_shifting_similarities_does_not_change_clusters(numbers, data, unit, origin):
    y = torch.tensor([numbers], dtype=torch.float64) / 1024
    sampled = torch.tensor([data.draw(st.lists(st.booleans(), min_size=len(numbers), max_size=len(numbers)))])
    usual = same_cluster(y, sampled, ~sampled, iterations=3)
    assert torch.equal(same_cluster(unit * y + origin, sampled, ~sampled, iterations=3), usual)


def test_rounding_does_not_make_a_second_cluster():
    y = torch.full((1, 6), 0.9, dtype=torch.float64)
    y[0, ::2] += 1e-15
    sampled = torch.tensor([[True, False, True, False, True, False]])
    assert same_cluster(y, sampled, ~sampled).all()


def test_with_neighbours_only_or_strangers_only_there_is_one_cluster():
    y = torch.tensor([[0.9, 0.8, 0.1, 0.2]], dtype=torch.float64)
    some, no_client = torch.tensor([[True, True, True, False]]), torch.zeros(1, 4, dtype=torch.bool)
    assert torch.equal(same_cluster(y, some, no_client), some)
    assert torch.equal(same_cluster(y, no_client, some), some)
    assert not same_cluster(y, no_client, no_client).any()


def test_ties_go_to_the_neighbours_component():
    # the components are (1, 0) and (-1, 0): both zeros lie in the middle
    y = torch.tensor([[1.0, 0.0, -1.0, 0.0]], dtype=torch.float64)
    sampled = torch.tensor([[True, True, False, False]])
    assert members(same_cluster(y, sampled, ~sampled)[0]) == {0, 1, 3}


def many_matchings(clusters, gap, spread, matching="oriented", right=1.0, held=5, clients=100, l=10, times=20, seed=0):
    """Precision and recall of lists after many matchings on similarities that are drawn anew each time."""
    draws = torch.Generator().manual_seed(seed)
    members = torch.arange(clients) % clusters
    others = ~torch.eye(clients, dtype=torch.bool)
    same = (members[:, None] == members) & others

    def some(of, number):
        ranks = torch.rand(clients, clients, generator=draws).masked_fill(~of, torch.inf).argsort(1).argsort(1)
        return of & (ranks < number)

    friends = round(right * held)
    neighbours = some(same, friends) | some(others & ~same, held - friends)
    for _ in range(times):
        noise = torch.randn(clients, clients, generator=draws, dtype=torch.float64)
        sampled, strangers = some(neighbours, l), some(others & ~neighbours, l)
        matched = same_cluster(gap * same + spread * noise, sampled, strangers, matching)
        neighbours = rematched_neighbours(neighbours, sampled, matched)
    found, reachable = Links.from_mask(neighbours), Links.complete(clients)
    return functional.neighbour_precision_recall(found, members, reachable)


@pytest.mark.parametrize(
    ("clusters", "precision", "recall"), [(2, 0.999, 0.919), (4, 0.999, 0.866), (10, 0.997, 0.872), (1, 1.0, 0.21)]
)
def test_matchings_find_most_of_the_cluster(clusters, precision, recall):
    found = many_matchings(clusters, gap=0.4, spread=0.08)
    assert found[0] == pytest.approx(precision, abs=0.005)
    assert found[1] == pytest.approx(recall, abs=0.04)


def test_orientation_corrects_lists_that_start_mostly_wrong():
    runs = {m: many_matchings(4, 0.25, 0.1, m, right=0.4, held=10) for m in ("oriented", "unoriented")}
    assert runs["oriented"][0] > 0.87
    assert runs["unoriented"][0] < 0.72


# --- lists ------------------------------------------------------------------------------------------------------------
def test_a_list_keeps_unsampled_and_adds_matched_clients():
    neighbours = torch.tensor([[True, True, True, False, False]])
    sampled = torch.tensor([[False, True, True, False, False]])
    matched = torch.tensor([[False, True, False, True, False]])
    assert members(rematched_neighbours(neighbours, sampled, matched)[0]) == {0, 1, 3}
    assert members(rematched_neighbours(neighbours, sampled, torch.zeros_like(matched))[0]) == {0}


def test_a_list_never_empties():
    neighbours = torch.tensor([[True, True, False]])
    assert torch.equal(rematched_neighbours(neighbours, neighbours, torch.zeros_like(neighbours)), neighbours)
