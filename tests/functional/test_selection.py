import math
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.functional import above_threshold, random_k, top_k

NAN = math.nan


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def naive_top_k(scores, allowed, k):
    """One receiver at a time."""
    result = []
    for i, score_row in enumerate(scores):
        candidates = [j for j, score in enumerate(score_row) if allowed[i][j] and not math.isnan(score)]
        candidates.sort(key=lambda j: (-score_row[j], j))
        chosen = set(candidates[: k[i]])
        result.append([j in chosen for j in range(len(score_row))])
    return result


SCORES = st.sampled_from([NAN, -math.inf, math.inf, -1.0, 0.0, -0.0, 0.25, 0.5, 1e300])


@given(st.data(), st.integers(1, 7))
def test_top_k_agrees_with_a_loop(data, n):
    def matrix(entry):
        return data.draw(st.lists(st.lists(entry, min_size=n, max_size=n), min_size=n, max_size=n))

    scores, allowed = matrix(SCORES), matrix(st.booleans())
    k = data.draw(st.lists(st.integers(0, n + 1), min_size=n, max_size=n))
    score_tensor, allowed_tensor = torch.tensor(scores, dtype=torch.float64), torch.tensor(allowed)
    assert top_k(score_tensor, allowed_tensor, torch.tensor(k)).tolist() == naive_top_k(scores, allowed, k)
    assert top_k(score_tensor, allowed_tensor, k[0]).tolist() == naive_top_k(scores, allowed, [k[0]] * n)


def test_among_equal_scores_the_lowest_ids_are_chosen():
    chosen = top_k(torch.zeros(3, 200), torch.ones(3, 200, dtype=torch.bool), 70)
    assert chosen[:, :70].all()
    assert not chosen[:, 70:].any()


def test_fewer_are_chosen_where_fewer_are_allowed():
    allowed = torch.tensor([[True, True, False], [False, False, False]])
    assert torch.equal(top_k(torch.rand(2, 3, generator=generator()), allowed, 5), allowed)


def test_an_unknown_score_is_never_chosen():
    assert top_k(torch.tensor([[NAN, 0.1]]), torch.ones(1, 2, dtype=torch.bool), 2).tolist() == [[False, True]]


def test_an_infinitely_bad_score_is_chosen_before_what_is_not_allowed():
    allowed = torch.tensor([[False, False, True, True]])
    assert top_k(torch.tensor([[1.0, -math.inf, -math.inf, 0.0]]), allowed, 2).tolist() == [[False, False, True, True]]


def test_each_receiver_may_have_its_own_number():
    scores = torch.tensor([[0.1, 0.2, 0.3]]).repeat(4, 1)
    chosen = top_k(scores, torch.ones(4, 3, dtype=torch.bool), torch.tensor([0, 1, 2, 3]))
    assert chosen.sum(1).tolist() == [0, 1, 2, 3]
    assert chosen[1].tolist() == [False, False, True]


def test_choosing_does_not_change_the_scores():
    scores = torch.rand(4, 4, generator=generator(), dtype=torch.float64)
    before = scores.clone()
    top_k(scores, ~torch.eye(4, dtype=torch.bool), 2)
    assert torch.equal(scores, before)


def test_a_score_equal_to_the_threshold_is_good_enough():
    scores = torch.tensor([[0.5, 0.499, 0.501], [0.5, 0.499, 0.501]], dtype=torch.float64)
    chosen = above_threshold(
        scores, torch.ones(2, 3, dtype=torch.bool), torch.tensor([0.5, 0.501], dtype=torch.float64)
    )
    assert chosen.tolist() == [[True, False, True], [False, False, True]]


def test_a_threshold_of_zero_takes_every_allowed_sender_with_a_known_score():
    allowed = torch.tensor([[True, False, True]])
    assert above_threshold(torch.tensor([[0.0, 1.0, NAN]]), allowed, torch.zeros(1)).tolist() == [[True, False, False]]


@given(st.integers(0, 2**32), st.integers(0, 8))
def test_random_k_takes_the_smallest_allowed_draws(seed, k):
    draws = torch.rand(6, 7, generator=generator(seed), dtype=torch.float64)
    allowed = torch.rand(6, 7, generator=generator(seed + 1)) < 0.6
    chosen = random_k(allowed, k, draws)
    for i in range(6):
        candidates = sorted(allowed[i].nonzero().flatten().tolist(), key=lambda j: draws[i, j].item())
        assert sorted(candidates[:k]) == chosen[i].nonzero().flatten().tolist()


def test_random_k_may_take_another_number_for_each_receiver():
    draws = torch.rand(3, 5, generator=generator())
    assert random_k(torch.ones(3, 5, dtype=torch.bool), torch.tensor([0, 2, 9]), draws).sum(1).tolist() == [0, 2, 5]


def test_every_set_of_k_senders_is_equally_likely():
    draws = torch.rand(30_000, 5, generator=generator(), dtype=torch.float64)
    allowed = torch.tensor([True, True, False, True, True]).expand(30_000, 5)
    chosen = random_k(allowed, 2, draws)
    for a, b in combinations([0, 1, 3, 4], 2):
        assert (chosen[:, a] & chosen[:, b]).double().mean().item() == pytest.approx(1 / 6, abs=0.01)
