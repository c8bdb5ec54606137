import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matrices import everywhere, told_by_matrices

from dfl_lightning import functional
from dfl_lightning.functional import normalised_entropy, smoothed_loss
from dfl_lightning.links import Links

COSINES = torch.tensor([[0.9, 0.5, 0.0]], dtype=torch.float64)
NAN = math.nan

selection_probabilities = told_by_matrices(functional.selection_probabilities)
participation_ratio = told_by_matrices(functional.participation_ratio)
updated_probabilities = told_by_matrices(functional.updated_probabilities, numbers=3)
entropy_sum = told_by_matrices(functional.entropy_sum, by_receiver=True)
adaptive_threshold = told_by_matrices(functional.adaptive_threshold, by_receiver=True)
literal_threshold = told_by_matrices(functional.literal_threshold, by_receiver=True)
above_threshold = told_by_matrices(functional.above_threshold, fill=False)
nearness = told_by_matrices(functional.nearness)


def boltzmann_weights(losses, votes, temperature=1.0):
    return told_by_matrices(functional.boltzmann_weights, numbers=2)(losses, votes, everywhere(votes), temperature)


def uniform_weights(votes):
    return told_by_matrices(functional.uniform_weights)(votes, everywhere(votes))


def links_between(receivers, senders):
    return Links.from_mask(torch.ones(receivers, senders, dtype=torch.bool))


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def close(actual, *expected, digits=6):
    torch.testing.assert_close(
        actual.flatten(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0.5001 * 10**-digits
    )


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def two_kinds(n, friends, near, far, receivers=400, spread=0.08, seed=0):
    """Cosines of receivers whose first `friends` neighbours are near."""
    means = torch.full((n,), far, dtype=torch.float64)
    means[:friends] = near
    noise = torch.randn(receivers, n, generator=generator(seed), dtype=torch.float64)
    return (means + spread * noise).clamp(-1, 1)


# --- probabilities --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("nu", "expected"),
    [(0.1, (0.981895, 0.017984, 0.000121)), (0.5, (0.619338, 0.278286, 0.102376)), (1, (0.481489, 0.322752, 0.195759))],
)
def test_selection_probabilities_are_the_softmax_of_the_cosines(nu, expected):
    close(selection_probabilities(COSINES, everywhere(COSINES), nu), *expected)


@given(st.integers(0, 2**32), st.sampled_from([1e-300, 1e-3, 0.2, 1.0, 1e6]))
def test_probabilities_cover_the_available_neighbours_only(seed, nu):
    cosines = 2 * torch.rand(6, 9, generator=generator(seed), dtype=torch.float64) - 1
    available = torch.rand(6, 9, generator=generator(seed + 1)) < 0.4
    probabilities = selection_probabilities(cosines, available, nu)
    assert (probabilities[~available] == 0).all()
    torch.testing.assert_close(probabilities.sum(1), available.any(1).double(), rtol=0, atol=1e-12)


def test_a_neighbour_of_unknown_similarity_is_ignored():
    unknown = row(0.9, NAN, 0.5, 0.0)
    ratio = participation_ratio(unknown, everywhere(unknown), 0.1)
    assert torch.equal(ratio[:, [0, 2, 3]], participation_ratio(COSINES, everywhere(COSINES), 0.1))
    assert ratio[0, 1] == 0
    assert torch.equal(
        adaptive_threshold(unknown, everywhere(unknown), 0.5), adaptive_threshold(COSINES, everywhere(COSINES), 0.5)
    )
    assert torch.equal(entropy_sum(unknown, everywhere(unknown)), entropy_sum(COSINES, everywhere(COSINES)))


@pytest.mark.parametrize("nu", [0, -1, NAN])
def test_a_temperature_must_be_positive(nu):
    with pytest.raises(ValueError, match="temperature must be positive"):
        selection_probabilities(COSINES, everywhere(COSINES), nu)


def test_neighbours_are_drawn_in_turn_by_their_probabilities():
    """The first two of a draw without replacement: p_j + sum over i of p_i p_j / (1 - p_i)."""
    shares, draws = [0.5, 0.3, 0.2, 0.0], 40_000
    links = links_between(draws, 4)
    uniforms = torch.rand(4 * draws, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    every = torch.tensor(shares).repeat(draws)
    for k, expected in ((1, shares), (2, [p + sum(q * p / (1 - q) for q in shares if q != p) for p in shares])):
        found = functional.sampled_neighbours(7 * every, uniforms, links, k).view(draws, 4)
        assert (found.sum(1) == k).all()
        for share, probability in zip(found.double().mean(0).tolist(), expected, strict=True):
            assert abs(share - probability) <= 4 * math.sqrt(probability * (1 - probability) / draws)
    assert functional.sampled_neighbours(every, uniforms, links, 9).view(draws, 4).sum(1).unique().tolist() == [3]
    limits = torch.arange(draws) % 3
    assert torch.equal(functional.sampled_neighbours(every, uniforms, links, limits).view(draws, 4).sum(1), limits)


def test_values_are_standardised_among_neighbours_and_equal_ones_are_0():
    """The values 1, 2, 6 have mean 3 and variance 14/3; of a pair, one is above its mean and one below."""
    values = torch.tensor([1.0, 2.0, 6.0])
    close(functional.standardised(values, Links.complete(3)), -0.925820, -0.462910, 1.388730)
    path = Links.from_mask(torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).bool())
    close(functional.standardised(values, path), -1.0, -0.462910, 1.0)
    assert functional.standardised(torch.full((3,), 0.1), Links.complete(3)).tolist() == [0.0, 0.0, 0.0]
    cosines = torch.tensor([0.9, 0.0], dtype=torch.float64)
    pair = Links.complete(2)
    close(functional.literal_threshold(cosines, pair, 0.5, pair), 0.365529, 0.134471)  # h = .0487 and .3466: z = -1, 1


def test_nearness_is_1_for_copies_and_lowest_for_the_farthest():
    distances = torch.tensor([[0.5, 2.0, 0.0], [3.0, 3.0, 3.0], [0.0, 0.0, 0.0], [NAN, 4.0, 1.0]], dtype=torch.float64)
    found = nearness(distances, everywhere(distances))
    close(found[:3], 0.5, -1.0, 1.0, -1.0, -1.0, -1.0, 1.0, 1.0, 1.0)
    assert found[3, 0].isnan()
    close(found[3, 1:], -1.0, 0.5)


def test_the_participation_ratio_is_one_for_an_average_neighbour():
    close(participation_ratio(COSINES, everywhere(COSINES), 0.1), 2.945684, 0.053952, 0.000364)
    cosines = torch.rand(5, 20, generator=generator(), dtype=torch.float64)
    available = torch.rand(5, 20, generator=generator(1)) < 0.5
    mean = participation_ratio(cosines, available, 0.2).sum(1) / available.sum(1)
    torch.testing.assert_close(mean, torch.ones(5, dtype=torch.float64))


def test_refreshed_neighbours_share_the_remaining_probability():
    selected = torch.tensor([[True, True, False, False]])
    previous, cosines = row(0.25, 0.25, 0.25, 0.25), row(0.8, 0.4, 0.9, -0.9)
    updated = updated_probabilities(previous, cosines, selected, everywhere(cosines), 0.5)
    close(updated, 0.344987, 0.155013, 0.25, 0.25)
    close(updated.sum(), 1.0, digits=14)


def test_a_receiver_without_selected_neighbours_keeps_its_probabilities():
    previous = row(0.2, 0.3, 0.5)
    assert torch.equal(
        updated_probabilities(previous, COSINES, ~everywhere(COSINES), everywhere(COSINES), 0.5), previous
    )


def test_refreshing_all_neighbours_gives_the_plain_probabilities():
    previous = row(0.2, 0.3, 0.5)
    updated = updated_probabilities(previous, COSINES, everywhere(COSINES), everywhere(COSINES), 0.5)
    assert torch.equal(updated, selection_probabilities(COSINES, everywhere(COSINES), 0.5))


def test_an_absent_neighbour_keeps_its_probability():
    previous, cosines = row(0.25, 0.25, 0.25, 0.25), row(0.8, 0.4, 0.0, 0.0)
    selected = torch.tensor([[True, True, False, False]])
    available = torch.tensor([[True, True, True, False]])
    updated = updated_probabilities(previous, cosines, selected, available, 0.5)
    assert updated[0, 2] == previous[0, 2]
    close(updated[0, :2].sum(), 0.75, digits=14)


def test_probabilities_stay_nonnegative_when_others_sum_above_one():
    previous = row(0.5, 0.7, 0.7)
    selected = torch.tensor([[True, False, False]])
    updated = updated_probabilities(previous, COSINES, selected, everywhere(COSINES), 0.5)
    assert torch.equal(updated, row(0, 0.7, 0.7))


def test_an_unknown_similarity_is_not_refreshed():
    previous, cosines = row(0.25, 0.25, 0.25, 0.25), row(0.8, 0.4, NAN, 0.0)
    selected = torch.tensor([[True, True, True, False]])
    close(updated_probabilities(previous, cosines, selected, everywhere(cosines), 0.5), 0.344987, 0.155013, 0.25, 0.25)


@given(st.integers(0, 2**32))
def test_probabilities_sum_to_one_every_round(seed):
    draws = generator(seed)
    available = torch.ones(4, 7, dtype=torch.bool)
    probabilities = torch.full((4, 7), 1 / 7, dtype=torch.float64)
    for _ in range(6):
        cosines = 2 * torch.rand(4, 7, generator=draws, dtype=torch.float64) - 1
        selected = torch.rand(4, 7, generator=draws) < 0.5
        probabilities = updated_probabilities(probabilities, cosines, selected, available, 0.3)
        assert (probabilities >= 0).all()
        torch.testing.assert_close(probabilities.sum(1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)


# --- entropies and thresholds ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("cosine", [-1, -0.5, -0.2642, 0, 0.2, 0.5, 0.9, 0.99, 1])
def test_entropies_are_minus_e_log_e_of_the_refined_cosine(cosine):
    """The normalised one is 1 up to e = 1/exp(1), that is, a cosine of -0.2642."""
    e = (cosine + 1) / 2
    entropy = -e * math.log(e) if e > 0 else 0.0
    close(entropy_sum(row(cosine), everywhere(row(cosine))), entropy, digits=12)
    close(normalised_entropy(row(cosine)), 1.0 if e < 1 / math.e else math.e * entropy, digits=12)


def test_the_normalised_entropy_never_rises_with_the_cosine():
    entropy = normalised_entropy(torch.linspace(-1, 1, 10_001, dtype=torch.float64))
    assert (entropy.diff() <= 0).all()
    assert entropy.min() == 0
    assert entropy.max() == 1


def test_the_printed_rule_gives_the_golden_numbers():
    h = entropy_sum(COSINES, everywhere(COSINES))
    close(h, 0.611063774, digits=9)
    close(torch.sigmoid(h), 0.648183425, digits=9)
    close(literal_threshold(COSINES, everywhere(COSINES), 1), 0.351816575, digits=9)
    close(literal_threshold(COSINES, everywhere(COSINES), 0.5), 0.175908287, digits=9)


def test_the_threshold_is_zero_without_available_neighbours():
    assert adaptive_threshold(COSINES, ~everywhere(COSINES), 0.5).tolist() == [0]


def test_the_printed_threshold_without_selection_is_half_of_tau():
    assert literal_threshold(COSINES, ~everywhere(COSINES), 0.5).tolist() == [0.25]


def test_only_selected_neighbours_enter_the_entropy_sum():
    only = entropy_sum(COSINES, torch.tensor([[True, False, False]]))
    close(only, 0.048729)


def test_the_threshold_averages_over_the_available_neighbours_only():
    available = torch.tensor([[True, True, False]])
    close(adaptive_threshold(COSINES, available, 1), (0.132458 + 0.586501) / 2)


# --- the two rules as processes -------------------------------------------------------------------------------------

LINEAR = torch.linspace(0, 0.9, 99, dtype=torch.float64)
HALF = torch.tensor([0.9] * 50 + [0.0] * 49, dtype=torch.float64)
TEN = torch.tensor([0.9] * 10 + [0.0] * 89, dtype=torch.float64)


def same(cosine):
    return torch.full((99,), cosine, dtype=torch.float64)


def printed_rule(cosines, nu, tau=0.5, theta=0.0, rounds=8):
    """Sizes of C_i and thresholds, round after round, of one receiver whose neighbours' similarities stay as they are.

    Selection reads the probabilities and the threshold of the round before; only selected proxies are looked at.
    """
    cosines = cosines[None]
    available = everywhere(cosines)
    probabilities = torch.full_like(cosines, 1 / cosines.shape[1])
    threshold = torch.tensor([theta], dtype=torch.float64)
    sizes, thresholds = [], []
    for _ in range(rounds):
        selected = above_threshold(probabilities, available, threshold)
        looked_at = torch.where(selected, cosines, torch.full_like(cosines, NAN))
        probabilities = updated_probabilities(probabilities, looked_at, selected, available, nu)
        threshold = literal_threshold(looked_at, selected, tau)
        sizes.append(int(selected.sum()))
        thresholds.append(threshold.item())
    return sizes, thresholds


@pytest.mark.parametrize(
    ("cosines", "temperatures", "sizes", "first", "last"),
    [
        (LINEAR, [0.01], [99, 25, 3, 2, 2, 2, 2, 2], 1.55e-10, 0.2373),
        (LINEAR, [0.05, 0.1, 0.5, 1], [99] * 8, 1.55e-10, 1.55e-10),
        (HALF, [0.01, 0.05], [99, 50, 0, 0, 0, 0, 0, 0], 1.8e-9, 0.25),
        (HALF, [0.1, 0.5, 1], [99] * 8, 1.8e-9, 1.8e-9),
        (TEN, [0.01], [99, 10, 0, 0, 0, 0, 0, 0], 1.2e-14, 0.25),
        (TEN, [0.05, 0.1, 0.5, 1], [99] * 8, 1.2e-14, 1.2e-14),
        (same(0.9), [0.01, 0.2, 1], [99] * 8, 0.00398, 0.00398),
        (same(0.99), [0.01, 0.2, 1], [99, 0, 0, 0, 0, 0, 0, 0], 0.190, 0.25),
        (same(1.0), [0.01, 0.2, 1], [99, 0, 0, 0, 0, 0, 0, 0], 0.25, 0.25),
        (same(0.0), [0.01, 0.2, 1], [99] * 8, 6.28e-16, 6.28e-16),
    ],
)
def test_the_printed_rule_keeps_the_documented_number_of_neighbours(cosines, temperatures, sizes, first, last):
    for nu in temperatures:
        kept, thresholds = printed_rule(cosines, nu)
        assert kept == sizes
        assert thresholds[0] == pytest.approx(first, rel=0.03, abs=0)
        assert thresholds[-1] == pytest.approx(last, rel=0.03, abs=0)


def ratio_rule(cosines, tau=0.5, nu=0.1):
    threshold = adaptive_threshold(cosines, everywhere(cosines), tau)
    return above_threshold(participation_ratio(cosines, everywhere(cosines), nu), everywhere(cosines), threshold)


@given(st.integers(0, 2**32), st.floats(-0.5, 0.9), st.floats(0.05, 1.0))
def test_a_higher_tau_never_adds_a_neighbour(seed, level, nu):
    cosines = two_kinds(30, 10, 0.9, level, receivers=5, seed=seed)
    taus = (0, 0.1, 0.2, 0.5, 0.8, 1, 1.5, 10)
    chosen = [ratio_rule(cosines, tau, nu) for tau in taus]
    for tau, fewer, more in zip(taus[1:], chosen[1:], chosen[:-1], strict=True):
        assert (adaptive_threshold(cosines, everywhere(cosines), tau) <= tau).all()
        assert not (fewer & ~more).any()


@pytest.mark.parametrize(
    ("share", "theta", "size"),
    [
        (0.05, 0.429, 5.0),
        (0.1, 0.413, 10.0),
        (0.25, 0.365, 24.9),
        (0.5, 0.285, 49.1),
        (0.75, 0.207, 72.1),
        (1, 0.128, 97.6),
    ],
)
def test_the_threshold_falls_with_more_friends_and_selects_them(share, theta, size):
    friends = round(99 * share)
    cosines = two_kinds(99, friends, 0.8, 0.1, receivers=2000)
    selected = ratio_rule(cosines)
    assert adaptive_threshold(cosines, everywhere(cosines), 0.5).mean().item() == pytest.approx(theta, abs=0.003)
    assert selected.sum(1).double().mean().item() == pytest.approx(size, abs=0.7)
    assert (selected[:, :friends].sum() / selected.sum()).item() >= 0.998
    assert selected[:, :friends].double().mean().item() >= 0.97


# --- contributions --------------------------------------------------------------------------------------------------


def test_the_smoothed_loss_mixes_before_and_after():
    close(smoothed_loss(row(2.0), row(1.0), 0.9), 1.9, digits=14)


def naive_boltzmann(losses, votes, temperature):
    """One receiver at a time, with Python's own numbers."""
    result = []
    for loss_row, vote_row in zip(losses, votes, strict=True):
        usable = [p for p, v in enumerate(vote_row) if v > 0 and math.isfinite(loss_row[p])]
        if usable:
            lowest = min(loss_row[p] for p in usable)
            raw = [0.0] * len(loss_row)
            for p in usable:
                raw[p] = vote_row[p] * math.exp(-(loss_row[p] - lowest) / temperature)
        else:
            raw = list(vote_row)
        total = math.fsum(raw)
        result.append([value / total if total else 0.0 for value in raw])
    return torch.tensor(result, dtype=torch.float64)


LOSSES = st.one_of(st.floats(-1e4, 1e4), st.sampled_from([NAN, math.inf, -math.inf, 0.0]))
VOTES = st.one_of(st.just(0.0), st.sampled_from([1.0, 2.0, 0.5, 1 / 3]))


@given(
    st.integers(1, 6).flatmap(
        lambda width: st.lists(
            st.lists(st.tuples(LOSSES, VOTES), min_size=width, max_size=width), min_size=1, max_size=4
        )
    ),
    st.sampled_from([1e-6, 0.5, 1.0, 100.0]),
)
def test_boltzmann_weights_agree_with_a_loop(rows, temperature):
    losses = [[loss for loss, _ in receiver] for receiver in rows]
    votes = [[vote for _, vote in receiver] for receiver in rows]
    actual = boltzmann_weights(
        torch.tensor(losses, dtype=torch.float64), torch.tensor(votes, dtype=torch.float64), temperature
    )
    torch.testing.assert_close(actual, naive_boltzmann(losses, votes, temperature), rtol=1e-9, atol=1e-12)
    assert (actual[torch.tensor(votes) == 0] == 0).all()


def test_a_hot_temperature_gives_the_plain_shares_of_the_votes():
    losses, votes = row(0.5, 1, 2), row(1, 2, 1)
    torch.testing.assert_close(boltzmann_weights(losses, votes, 1e12), uniform_weights(votes), rtol=0, atol=1e-11)
    assert torch.equal(boltzmann_weights(losses, votes, math.inf), uniform_weights(votes))


def test_votes_may_be_bool():
    votes = torch.tensor([[True, False, True]])
    assert torch.equal(boltzmann_weights(row(0.5, NAN, 2), votes), boltzmann_weights(row(0.5, 1, 2), votes.double()))
