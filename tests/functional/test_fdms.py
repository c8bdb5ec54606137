import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.functional import (
    cosines_from_gram,
    count_votes,
    elimination_threshold,
    friends,
    observed_share,
    remaining_candidates,
    running_mean,
    similarity_scores,
    uniform_weights,
)
from dfl_lightning.links import Links

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


def test_the_mean_of_two_rounds():
    observations = [torch.full((2, 2), 0.9, dtype=torch.float64), torch.full((2, 2), 0.3, dtype=torch.float64)]
    scores, counts = remember(observations)
    assert scores[0, 1].item() == pytest.approx(0.6, abs=1e-15)
    assert counts.tolist() == [[0, 2], [2, 0]]


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_the_running_mean_is_the_arithmetic_mean_of_what_was_observed(seed, rounds):
    observations = co_active_rounds(5, rounds, seed)
    scores, counts = remember(observations)
    for i in range(5):
        for j in range(5):
            seen = [o[i, j].item() for o in observations if i != j and not math.isnan(o[i, j])]
            assert counts[i, j] == len(seen) <= rounds
            assert scores[i, j].item() == pytest.approx(math.fsum(seen) / len(seen) if seen else 0, abs=1e-14)
    assert torch.equal(scores, scores.T)


def test_the_order_of_the_rounds_does_not_matter():
    observations = co_active_rounds(6, 10)
    scores, counts = remember(observations)
    backwards, same_counts = remember(observations[::-1])
    torch.testing.assert_close(backwards, scores, rtol=0, atol=1e-14)
    assert torch.equal(same_counts, counts)


def test_pairs_that_were_not_observed_keep_their_mean():
    scores, counts = remember(co_active_rounds(4, 5))
    same_scores, same_counts = running_mean(scores, counts, torch.full((4, 4), NAN))
    assert torch.equal(same_scores, scores)
    assert torch.equal(same_counts, counts)


def test_the_diagonal_is_never_observed():
    scores, counts = running_mean(*no_history(3), torch.ones(3, 3))
    assert scores.diagonal().tolist() == [0, 0, 0]
    assert counts.diagonal().tolist() == [0, 0, 0]


def test_the_first_score_replaces_whatever_stood_there_before():
    scores, _ = running_mean(torch.full((2, 2), NAN), torch.zeros(2, 2, dtype=torch.long), torch.full((2, 2), 0.4))
    assert scores[0, 1].item() == pytest.approx(0.4)


def test_a_new_observation_does_not_change_the_old_memory():
    scores, counts = no_history(3)
    observed = torch.ones(3, 3, dtype=torch.float64)
    running_mean(scores, counts, observed)
    assert not scores.any()
    assert not counts.any()
    assert observed.all()


def test_the_friend_is_the_most_similar_active_client():
    scores = torch.tensor([[0, 0.2, 0.9, 0.5], [0.2, 0, 0.4, 0.6], [0.9, 0.4, 0, 0.1], [0.5, 0.6, 0.1, 0]])
    active = torch.tensor([True, True, False, True])
    assert friends(scores, torch.ones(4, 4), active).tolist() == [3, 3, 0, 1]


def test_among_equal_friends_the_lowest_id_is_taken():
    assert friends(torch.full((50, 50), 0.5), torch.ones(50, 50), torch.ones(50, dtype=torch.bool)).tolist() == [
        1,
        *[0] * 49,
    ]


def test_nobody_is_its_own_friend():
    assert friends(torch.eye(3), torch.ones(3, 3), torch.tensor([True, False, True])).tolist() == [2, 0, 0]


def test_a_pair_that_was_never_active_together_cannot_be_friends():
    counts = torch.tensor([[0, 0, 1], [0, 0, 0], [1, 0, 0]])
    scores = torch.tensor([[0, 0.9, 0.1], [0.9, 0, 0.9], [0.1, 0.9, 0]])
    assert friends(scores, counts, torch.ones(3, dtype=torch.bool)).tolist() == [2, -1, 0]


def test_there_is_no_friend_when_nobody_is_active():
    assert friends(torch.ones(3, 3), torch.ones(3, 3), torch.zeros(3, dtype=torch.bool)).tolist() == [-1, -1, -1]


def test_a_score_of_zero_is_still_a_friend():
    assert friends(torch.zeros(3, 3), torch.ones(3, 3), torch.tensor([False, True, True])).tolist() == [1, 2, 1]


def test_an_unknown_score_is_no_friend():
    scores = torch.tensor([[NAN, NAN, 0.1], [NAN, NAN, NAN], [0.1, NAN, NAN]])
    assert friends(scores, torch.ones(3, 3), torch.ones(3, dtype=torch.bool)).tolist() == [2, -1, 0]


def test_permuting_clients_permutes_their_memory_and_their_friends():
    observations, order = co_active_rounds(7, 8), torch.randperm(7, generator=generator(3))
    scores, counts = remember(observations)
    permuted_scores, permuted_counts = remember([observed[order][:, order] for observed in observations])
    assert torch.equal(permuted_scores, scores[order][:, order])
    assert torch.equal(permuted_counts, counts[order][:, order])
    active = torch.rand(7, generator=generator(4)) < 0.6
    chosen, permuted = friends(scores, counts, active), friends(permuted_scores, permuted_counts, active[order])
    for place, client in enumerate(order):
        assert permuted[place] == -1 == chosen[client] or order[permuted[place]] == chosen[client]


def test_several_memories_at_once_are_as_each_by_itself():
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
def test_theta_as_theorem_2_has_it():
    # K = 20, T = 500, B_max = 3, p = 0.05
    found = [elimination_threshold(t, 20, 500, 3, 0.25) for t in (1, 10, 50, 100, 200, 300, 500)]
    assert found == pytest.approx([11.6597, 3.6871, 1.6489, 1.1660, 0.8245, 0.6732, 0.5214], abs=5e-5)


@pytest.mark.parametrize(("beta", "firsts"), [(0.25, (136, 544, 1511)), (1.0, (34, 136, 378))])
def test_the_rounds_in_which_theta_first_falls_below_a_gap(beta, firsts):
    for gap, first in zip((1, 0.5, 0.3), firsts, strict=True):
        assert (
            elimination_threshold(first, 20, 500, 3, beta) < gap <= elimination_threshold(first - 1, 20, 500, 3, beta)
        )


def test_theta_makes_the_proofs_probability_of_an_elimination_p():
    # appendix A.3: K B_max T times 2 K exp(-beta (Theta - delta)^2 t / 2) is p
    for t, gap, failure in ((1, 0.0, 0.05), (40, 0.2, 0.01), (500, 0.1, 0.5)):
        theta = elimination_threshold(t, 20, 500, 3, 0.25, failure, gap)
        q = 2 * 20 * math.exp(-0.25 * (theta - gap) ** 2 * t / 2)
        assert 20 * 3 * 500 * q == pytest.approx(failure)


def test_the_bound_on_a_wrong_friend_says_nothing_yet_after_500_rounds():
    # lemma 2 is the same bound on one client: 2 K exp(-beta d^2 t / 2) of a score gap d; here 3.28, above 1
    bound = 2 * 20 * math.exp(-0.25 * 0.2**2 * 500 / 2)
    assert bound == pytest.approx(3.28, abs=5e-3)
    assert elimination_threshold(500, 20, 1, 1, 0.25, failure=20 * bound) == pytest.approx(0.2)


def naive_candidates(scores, counts, candidates, threshold):
    remaining = []
    for k, mine in enumerate(candidates):
        known = {i: scores[k][i] for i in mine if counts[k][i] >= 1}
        best = max(known.values(), default=None)
        remaining.append({i for i in mine if i not in known or best - known[i] < threshold})
    return remaining


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("threshold", [0.05, 0.2, 0.5, 2.0])
def test_candidates_leave_as_section_5_3_says(seed, threshold):
    scores, counts = remember(co_active_rounds(8, 3, seed))
    mask = (torch.rand(8, 8, generator=generator(seed)) < 0.8) & ~torch.eye(8, dtype=torch.bool)
    sets = [set(torch.nonzero(row).squeeze(1).tolist()) for row in mask]
    found = remaining_candidates(scores, counts, mask, threshold)
    expected = naive_candidates(scores.tolist(), counts.tolist(), sets, threshold)
    assert [set(torch.nonzero(row).squeeze(1).tolist()) for row in found] == expected
    assert not (found & ~mask).any()


def test_who_is_as_far_behind_as_the_threshold_leaves():
    scores = torch.tensor([[0, 1.0, 0.5, 0.75], [1.0, 0, 0, 0], [0.5, 0, 0, 0], [0.75, 0, 0, 0]])
    everybody = ~torch.eye(4, dtype=torch.bool)
    found = remaining_candidates(scores, torch.ones(4, 4), everybody, 0.5)
    assert found[0].tolist() == [False, True, False, True]


def test_the_best_candidate_never_leaves_and_nobody_does_without_being_seen():
    scores, counts = remember(co_active_rounds(9, 2))
    everybody = ~torch.eye(9, dtype=torch.bool)
    found = remaining_candidates(scores, counts, everybody, 1e-9)
    assert (found | (counts > 0) | ~everybody).all()
    seen = counts > 0
    assert ((found & seen).any(1) == seen.any(1)).all()


def test_friends_are_candidates_unless_none_is_there():
    scores = torch.tensor([[0, 0.9, 0.5, 0.4], [0.9, 0, 0, 0], [0.5, 0, 0, 0], [0.4, 0, 0, 0]])
    candidates = torch.tensor([[False, False, True, True], *[[False] * 4] * 3])
    ones = torch.ones(4, 4)
    assert friends(scores, ones, torch.tensor([False, True, True, True]), candidates)[0] == 2
    assert friends(scores, ones, torch.tensor([False, True, False, True]), candidates)[0] == 3
    assert friends(scores, ones, torch.tensor([False, True, False, False]), candidates)[0] == 1
    unseen = torch.tensor([[0, 1, 0, 0], *[[1] * 4] * 3])
    assert friends(scores, unseen, torch.tensor([False, True, True, True]), candidates)[0] == 1


def test_the_observed_share_is_that_of_the_pair_seen_least_of_those_compared():
    counts = torch.tensor([[0, 4, 2], [4, 0, 3], [2, 3, 0]])
    assert observed_share(counts, ~torch.eye(3, dtype=torch.bool), 8) == 0.25
    compared = torch.tensor([[False, True, False], [True, False, True], [False, True, False]])
    assert observed_share(counts, compared, 8) == 3 / 8
    assert observed_share(torch.zeros(3, 3), compared, 8) == 0


def test_under_independent_dropout_the_observed_share_nears_the_chance_of_meeting():
    counts, draws = torch.zeros(6, 6, dtype=torch.long), generator()
    for _ in range(5000):
        up = torch.rand(6, generator=draws) >= 0.5
        counts += up[:, None] & up[None, :]
    assert observed_share(counts, ~torch.eye(6, dtype=torch.bool), 5000) == pytest.approx(0.25, abs=0.02)


# --- a server (the last node) that hears all clients ----------------------------------------------------------------


def server_average(updates, active, substitute):
    """The mean update of a server, with dropped clients replaced."""
    m = len(updates)
    selected = torch.zeros(m + 1, m + 1, dtype=torch.bool)
    selected[m, :m] = True
    rows = torch.zeros(m + 1, m + 1, dtype=torch.long)
    rows[m, :m] = substitute
    up = torch.cat([active, torch.tensor([True])])
    nobody, links = torch.zeros(m + 1, dtype=torch.bool), Links.from_mask(selected)
    voters, votes = count_votes(links, rows[selected], up, nobody, m + 1, ~nobody)
    return voters.dense(uniform_weights(votes, voters), 0.0)[m, :m] @ updates


def or_own(active, substitute):
    return torch.where(active, torch.arange(len(active)), substitute)


def test_a_friend_counts_twice_in_the_mean_update():
    updates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [NAN, NAN]], dtype=torch.float64).nan_to_num(99)
    scores = torch.tensor([[0, 0, 0.9], [0, 0, 0.4], [0.9, 0.4, 0]])
    active = torch.tensor([True, True, False])
    with_friend = server_average(updates, active, or_own(active, friends(scores, torch.ones(3, 3), active)))
    torch.testing.assert_close(with_friend, torch.tensor([2 / 3, 1 / 3], dtype=torch.float64))
    plain = server_average(updates, active, or_own(active, torch.full((3,), -1)))
    torch.testing.assert_close(plain, torch.tensor([0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("seed", range(10))
def test_without_history_the_mean_update_is_that_of_plain_dropout(seed):
    updates = torch.randn(8, 3, generator=generator(seed), dtype=torch.float64)
    active = torch.rand(8, generator=generator(seed)) < 0.5
    active[seed % 8] = True
    nobody = friends(*no_history(8), active)
    assert (nobody == -1).all()
    expected = updates[active].mean(0)
    torch.testing.assert_close(server_average(updates, active, or_own(active, nobody)), expected, rtol=0, atol=1e-14)


def test_with_everybody_active_nothing_is_replaced():
    updates = torch.randn(6, 3, generator=generator(), dtype=torch.float64)
    cosines = cosines_from_gram(updates @ updates.T)
    scores, counts = running_mean(*no_history(6), similarity_scores(cosines))
    active = torch.ones(6, dtype=torch.bool)
    average = server_average(updates, active, or_own(active, friends(scores, counts, active)))
    torch.testing.assert_close(average, updates.mean(0), rtol=0, atol=1e-14)
