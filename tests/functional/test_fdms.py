import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.functional import (
    distance_scores,
    elimination_threshold,
    friends,
    observed_share,
    remaining_candidates,
    running_mean,
    similarity_scores,
)

NAN = math.nan


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def no_history(m):
    return torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, m, dtype=torch.long)


def co_active_rounds(m, rounds, seed=0):
    """Scores of the pairs that were both active, NaN for the others, one [m, m] per round."""
    draws = generator(seed)
    observations = []
    for _ in range(rounds):
        score = torch.rand(m, m, generator=draws, dtype=torch.float64).triu()
        score = score + score.triu(1).T
        active = torch.rand(m, generator=draws) < 0.6
        observations.append(score.masked_fill(~(active[:, None] & active[None, :]), NAN))
    return observations


def remember(observations):
    scores, counts = no_history(len(observations[0]))
    for observed in observations:
        scores, counts = running_mean(scores, counts, observed)
    return scores, counts


def test_scores_map_cosines_to_the_unit_interval():
    cosines = torch.tensor([1, 0.5, 0, -0.5, -1])
    assert similarity_scores(cosines).tolist() == [1, 0.75, 0.5, 0.25, 0]
    assert similarity_scores(cosines).dtype == torch.float64


def test_the_score_of_an_unobserved_pair_stays_unknown():
    assert similarity_scores(torch.tensor([NAN])).isnan().all()


def test_scores_by_distance_are_negative_distances():
    updates = torch.tensor([[0.0, 0.0], [3.0, 4.0], [3.0, 16.0]])  # at distances 5, 12 and the root of 265
    scores = distance_scores(torch.cdist(updates, updates))
    assert scores.dtype == torch.float64
    assert scores.tolist() == [
        [0, -5, pytest.approx(-16.278820596)],
        [-5, 0, -12],
        [pytest.approx(-16.278820596), -12, 0],
    ]
    assert distance_scores(torch.tensor([NAN, math.inf])).isnan().all()


def test_friends_by_distance_and_by_cosine_differ():
    # To the first update the second has cosine 1 and distance 9, the third cosine 0 and distance sqrt(2).
    cosines = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    distances = torch.tensor([[0.0, 9.0, 2**0.5], [9.0, 0.0, 101**0.5], [2**0.5, 101**0.5, 0.0]])
    found = {}
    for name, observed in (("cosine", similarity_scores(cosines)), ("distance", distance_scores(distances))):
        scores, counts = running_mean(*no_history(3), observed)
        found[name] = friends(scores, counts, torch.tensor([False, True, True])).tolist()
    assert found == {"cosine": [1, 2, 1], "distance": [2, 2, 1]}


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_the_running_mean_is_the_mean_of_observed_scores(seed, rounds):
    observations = co_active_rounds(5, rounds, seed)
    scores, counts = remember(observations)
    for i in range(5):
        for j in range(5):
            seen = [o[i, j].item() for o in observations if i != j and not math.isnan(o[i, j])]
            assert counts[i, j] == len(seen) <= rounds
            assert scores[i, j].item() == pytest.approx(math.fsum(seen) / len(seen) if seen else 0, abs=1e-14)
    assert torch.equal(scores, scores.T)


def test_the_diagonal_is_never_observed():
    scores, counts = running_mean(*no_history(3), torch.ones(3, 3))
    assert scores.diagonal().tolist() == [0, 0, 0]
    assert counts.diagonal().tolist() == [0, 0, 0]


def test_the_first_score_replaces_the_initial_value():
    scores, _ = running_mean(torch.full((2, 2), NAN), torch.zeros(2, 2, dtype=torch.long), torch.full((2, 2), 0.4))
    assert scores[0, 1].item() == pytest.approx(0.4)


def test_a_new_observation_does_not_change_the_old_memory():
    scores, counts = no_history(3)
    observed = torch.ones(3, 3, dtype=torch.float64)
    running_mean(scores, counts, observed)
    assert not scores.any()
    assert not counts.any()
    assert observed.all()


SOME = [[0, 0.2, 0.9, 0.5], [0.2, 0, 0.4, 0.6], [0.9, 0.4, 0, 0.1], [0.5, 0.6, 0.1, 0]]
FRIENDS = {  # scores, how often they were observed, who is active; the friends
    "the most similar active one": (SOME, 1, [1, 1, 0, 1], [3, 3, 0, 1]),
    "among equals the lowest id": ([[0.5] * 50] * 50, 1, [1] * 50, [1, *[0] * 49]),
    "never oneself": (torch.eye(3).tolist(), 1, [1, 0, 1], [2, 0, 0]),
    "never who was not seen": (
        [[0, 0.9, 0.1], [0.9, 0, 0.9], [0.1, 0.9, 0]],
        [[0, 0, 1], [0] * 3, [1, 0, 0]],
        [1] * 3,
        [2, -1, 0],
    ),
    "no client is up": ([[1] * 3] * 3, 1, [0, 0, 0], [-1, -1, -1]),
    "a score of zero will do": ([[0.0] * 3] * 3, 1, [0, 1, 1], [1, 2, 1]),
    "an unknown one will not": ([[NAN, NAN, 0.1], [NAN] * 3, [0.1, NAN, NAN]], 1, [1] * 3, [2, -1, 0]),
}


@pytest.mark.parametrize("name", FRIENDS)
def test_each_client_has_the_expected_friend(name):
    scores, counts, up, expected = FRIENDS[name]
    counts = torch.as_tensor(counts).expand(len(scores), len(scores))
    assert friends(torch.tensor(scores), counts, torch.tensor(up).bool()).tolist() == expected


def test_several_memories_together_equal_each_by_itself():
    histories = [co_active_rounds(5, 6, seed) for seed in range(3)]
    scores, counts = (torch.stack(part) for part in zip(*map(remember, histories), strict=True))
    together = torch.zeros(3, 5, 5), torch.zeros(3, 5, 5, dtype=torch.long)
    for observed in zip(*histories, strict=True):
        together = running_mean(*together, torch.stack(observed))
    assert torch.equal(together[0], scores)
    assert torch.equal(together[1], counts)
    active = torch.rand(3, 5, generator=generator(1)) < 0.6
    alone = [friends(scores[i], counts[i], active[i]) for i in range(3)]
    assert torch.equal(friends(scores, counts, active), torch.stack(alone))


# --- candidates -------------------------------------------------------------------------------------------------------
def test_theta_is_that_of_theorem_2():
    # K = 20, T = 500, B_max = 3, p = 0.05
    found = [elimination_threshold(t, 20, 500, 3, 0.25) for t in (1, 10, 50, 100, 200, 300, 500)]
    assert found == pytest.approx([11.6597, 3.6871, 1.6489, 1.1660, 0.8245, 0.6732, 0.5214], abs=5e-5)


def test_theta_gives_the_proofs_probability_of_elimination():
    # appendix A.3: K B_max T times 2 K exp(-beta (Theta - delta)^2 t / 2) is p
    for t, gap, failure in ((1, 0.0, 0.05), (40, 0.2, 0.01), (500, 0.1, 0.5)):
        theta = elimination_threshold(t, 20, 500, 3, 0.25, failure, gap)
        q = 2 * 20 * math.exp(-0.25 * (theta - gap) ** 2 * t / 2)
        assert 20 * 3 * 500 * q == pytest.approx(failure)


def naive_candidates(scores, counts, candidates, threshold):
    remaining = []
    for k, mine in enumerate(candidates):
        known = {i: scores[k][i] for i in mine if counts[k][i] >= 1}
        best = max(known.values(), default=None)
        remaining.append({i for i in mine if i not in known or best - known[i] < threshold})
    return remaining


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.5, 2.0])
def test_candidates_are_removed_as_in_section_5_3(seed, threshold):
    scores, counts = remember(co_active_rounds(8, 3, seed))
    mask = (torch.rand(8, 8, generator=generator(seed)) < 0.8) & ~torch.eye(8, dtype=torch.bool)
    sets = [set(torch.nonzero(row).squeeze(1).tolist()) for row in mask]
    found = remaining_candidates(scores, counts, mask, threshold)
    expected = naive_candidates(scores.tolist(), counts.tolist(), sets, threshold)
    assert [set(torch.nonzero(row).squeeze(1).tolist()) for row in found] == expected
    assert not (found & ~mask).any()


def test_a_candidate_at_the_threshold_is_removed():
    scores = torch.tensor([[0, 1.0, 0.5, 0.75], [1.0, 0, 0, 0], [0.5, 0, 0, 0], [0.75, 0, 0, 0]])
    all_others = ~torch.eye(4, dtype=torch.bool)
    found = remaining_candidates(scores, torch.ones(4, 4), all_others, 0.5)
    assert found[0].tolist() == [False, True, False, True]


def test_best_and_unobserved_candidates_are_never_removed():
    scores, counts = remember(co_active_rounds(9, 2))
    all_others = ~torch.eye(9, dtype=torch.bool)
    found = remaining_candidates(scores, counts, all_others, 1e-9)
    assert (found | (counts > 0) | ~all_others).all()
    seen = counts > 0
    assert ((found & seen).any(1) == seen.any(1)).all()


def test_friends_are_candidates_if_one_is_available():
    scores = torch.tensor([[0, 0.9, 0.5, 0.4], [0.9, 0, 0, 0], [0.5, 0, 0, 0], [0.4, 0, 0, 0]])
    candidates = torch.tensor([[False, False, True, True], *[[False] * 4] * 3])
    ones = torch.ones(4, 4)
    assert friends(scores, ones, torch.tensor([False, True, True, True]), candidates)[0] == 2
    assert friends(scores, ones, torch.tensor([False, True, False, True]), candidates)[0] == 3
    assert friends(scores, ones, torch.tensor([False, True, False, False]), candidates)[0] == 1
    unseen = torch.tensor([[0, 1, 0, 0], *[[1] * 4] * 3])
    assert friends(scores, unseen, torch.tensor([False, True, True, True]), candidates)[0] == 1


def test_the_observed_share_is_that_of_the_rarest_pair():
    counts = torch.tensor([[0, 4, 2], [4, 0, 3], [2, 3, 0]])
    assert observed_share(counts, ~torch.eye(3, dtype=torch.bool), 8) == 0.25
    compared = torch.tensor([[False, True, False], [True, False, True], [False, True, False]])
    assert observed_share(counts, compared, 8) == 3 / 8
    assert observed_share(torch.zeros(3, 3), compared, 8) == 0
