import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matrices import everywhere as everybody
from matrices import told_by_matrices

from dfl_lightning import functional
from dfl_lightning.functional import centred_cosines, cosines_from_gram, normalised_entropy, smoothed_loss

COSINES = torch.tensor([[0.9, 0.5, 0.0]], dtype=torch.float64)
NAN = math.nan

selection_probabilities = told_by_matrices(functional.selection_probabilities)
participation_ratio = told_by_matrices(functional.participation_ratio)
updated_probabilities = told_by_matrices(functional.updated_probabilities, numbers=3)
entropy_sum = told_by_matrices(functional.entropy_sum, by_receiver=True)
adaptive_threshold = told_by_matrices(functional.adaptive_threshold, by_receiver=True)
literal_threshold = told_by_matrices(functional.literal_threshold, by_receiver=True)
above_threshold = told_by_matrices(functional.above_threshold, fill=False)


def boltzmann_weights(losses, votes, temperature=1.0):
    return told_by_matrices(functional.boltzmann_weights, numbers=2)(losses, votes, everybody(votes), temperature)


def uniform_weights(votes):
    return told_by_matrices(functional.uniform_weights)(votes, everybody(votes))


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
    close(selection_probabilities(COSINES, everybody(COSINES), nu), *expected)


@pytest.mark.parametrize(
    ("nu", "expected"), [(0.01, 0.6008), (0.05, 0.1678), (0.1, 0.0878), (0.2, 0.0454), (0.5, 0.0217), (1, 0.0153)]
)
def test_the_largest_of_99_probabilities_falls_with_the_temperature(nu, expected):
    cosines = torch.linspace(0, 0.9, 99, dtype=torch.float64)[None]
    close(selection_probabilities(cosines, everybody(cosines), nu).max(), expected, digits=4)


@given(st.integers(0, 2**32), st.sampled_from([1e-300, 1e-3, 0.2, 1.0, 1e6]))
def test_probabilities_sum_to_one_and_are_zero_outside_the_available_neighbours(seed, nu):
    cosines = 2 * torch.rand(6, 9, generator=generator(seed), dtype=torch.float64) - 1
    available = torch.rand(6, 9, generator=generator(seed + 1)) < 0.4
    probabilities = selection_probabilities(cosines, available, nu)
    assert (probabilities[~available] == 0).all()
    torch.testing.assert_close(probabilities.sum(1), available.any(1).double(), rtol=0, atol=1e-12)


def test_an_unknown_similarity_is_as_if_the_neighbour_were_not_there():
    unknown = row(0.9, NAN, 0.5, 0.0)
    ratio = participation_ratio(unknown, everybody(unknown), 0.1)
    assert torch.equal(ratio[:, [0, 2, 3]], participation_ratio(COSINES, everybody(COSINES), 0.1))
    assert ratio[0, 1] == 0
    assert torch.equal(
        adaptive_threshold(unknown, everybody(unknown), 0.5), adaptive_threshold(COSINES, everybody(COSINES), 0.5)
    )
    assert torch.equal(entropy_sum(unknown, everybody(unknown)), entropy_sum(COSINES, everybody(COSINES)))


@pytest.mark.parametrize("nu", [0, -1, NAN])
def test_a_temperature_must_be_positive(nu):
    with pytest.raises(ValueError, match="temperature must be positive"):
        selection_probabilities(COSINES, everybody(COSINES), nu)


def test_the_participation_ratio_is_one_for_an_average_neighbour():
    close(participation_ratio(COSINES, everybody(COSINES), 0.1), 2.945684, 0.053952, 0.000364)
    cosines = torch.rand(5, 20, generator=generator(), dtype=torch.float64)
    available = torch.rand(5, 20, generator=generator(1)) < 0.5
    mean = participation_ratio(cosines, available, 0.2).sum(1) / available.sum(1)
    torch.testing.assert_close(mean, torch.ones(5, dtype=torch.float64))


def test_the_refreshed_neighbours_share_what_the_others_leave():
    selected = torch.tensor([[True, True, False, False]])
    previous, cosines = row(0.25, 0.25, 0.25, 0.25), row(0.8, 0.4, 0.9, -0.9)
    updated = updated_probabilities(previous, cosines, selected, everybody(cosines), 0.5)
    close(updated, 0.344987, 0.155013, 0.25, 0.25)
    close(updated.sum(), 1.0, digits=14)


def test_a_receiver_that_selected_nobody_keeps_its_probabilities():
    previous = row(0.2, 0.3, 0.5)
    assert torch.equal(updated_probabilities(previous, COSINES, ~everybody(COSINES), everybody(COSINES), 0.5), previous)


def test_refreshing_everybody_gives_the_plain_probabilities():
    previous = row(0.2, 0.3, 0.5)
    updated = updated_probabilities(previous, COSINES, everybody(COSINES), everybody(COSINES), 0.5)
    assert torch.equal(updated, selection_probabilities(COSINES, everybody(COSINES), 0.5))


def test_a_neighbour_that_is_away_takes_nothing_from_the_others():
    previous, cosines = row(0.25, 0.25, 0.25, 0.25), row(0.8, 0.4, 0.0, 0.0)
    selected = torch.tensor([[True, True, False, False]])
    available = torch.tensor([[True, True, True, False]])
    updated = updated_probabilities(previous, cosines, selected, available, 0.5)
    assert updated[0, 2] == previous[0, 2]
    close(updated[0, :2].sum(), 0.75, digits=14)


def test_a_probability_is_never_negative_even_if_newcomers_push_the_others_beyond_one():
    previous = row(0.5, 0.7, 0.7)
    selected = torch.tensor([[True, False, False]])
    updated = updated_probabilities(previous, COSINES, selected, everybody(COSINES), 0.5)
    assert torch.equal(updated, row(0, 0.7, 0.7))


def test_an_unknown_similarity_is_not_refreshed():
    previous, cosines = row(0.25, 0.25, 0.25, 0.25), row(0.8, 0.4, NAN, 0.0)
    selected = torch.tensor([[True, True, True, False]])
    close(updated_probabilities(previous, cosines, selected, everybody(cosines), 0.5), 0.344987, 0.155013, 0.25, 0.25)


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


@pytest.mark.parametrize(
    ("cosine", "expected"),
    [
        (0, 0.346574),
        (0.2, 0.306495),
        (0.4, 0.249672),
        (0.5, 0.215762),
        (0.6, 0.178515),
        (0.8, 0.094824),
        (0.9, 0.048729),
        (0.95, 0.024685),
        (0.99, 0.004987),
        (1, 0),
        (-1, 0),
        (-0.2642, 0.367879),
    ],
)
def test_the_entropy_of_one_neighbour_is_minus_e_log_e(cosine, expected):
    close(entropy_sum(row(cosine), everybody(row(cosine))), expected)


@pytest.mark.parametrize(
    ("cosine", "expected"),
    [
        (-1, 1),
        (-0.5, 1),
        (-0.2643, 1),
        (0, 0.942085),
        (0.2, 0.833141),
        (0.4, 0.678680),
        (0.5, 0.586501),
        (0.6, 0.485254),
        (0.8, 0.257760),
        (0.9, 0.132458),
        (0.95, 0.067100),
        (1, 0),
    ],
)
def test_the_normalised_entropy_runs_from_one_to_zero(cosine, expected):
    close(normalised_entropy(row(cosine)), expected)


def test_the_normalised_entropy_never_rises_with_the_cosine():
    entropy = normalised_entropy(torch.linspace(-1, 1, 10_001, dtype=torch.float64))
    assert (entropy.diff() <= 0).all()
    assert entropy.min() == 0
    assert entropy.max() == 1


def test_the_printed_rule_in_numbers():
    h = entropy_sum(COSINES, everybody(COSINES))
    close(h, 0.611063774, digits=9)
    close(torch.sigmoid(h), 0.648183425, digits=9)
    close(literal_threshold(COSINES, everybody(COSINES), 1), 0.351816575, digits=9)
    close(literal_threshold(COSINES, everybody(COSINES), 0.5), 0.175908287, digits=9)


@pytest.mark.parametrize(("nu", "expected"), [(0.1, [0]), (0.5, [0, 1]), (1, [0, 1, 2])])
def test_whom_the_printed_rule_selects(nu, expected):
    probabilities = selection_probabilities(COSINES, everybody(COSINES), nu)
    threshold = literal_threshold(COSINES, everybody(COSINES), 0.5)
    assert above_threshold(probabilities, everybody(COSINES), threshold)[0].nonzero().flatten().tolist() == expected


def test_whom_the_ratio_rule_selects():
    threshold = adaptive_threshold(COSINES, everybody(COSINES), 0.5)
    close(threshold, 0.276840592, digits=9)
    ratio = participation_ratio(COSINES, everybody(COSINES), 0.1)
    assert above_threshold(ratio, everybody(COSINES), threshold).tolist() == [[True, False, False]]


def test_the_threshold_is_zero_where_nobody_is_available():
    assert adaptive_threshold(COSINES, ~everybody(COSINES), 0.5).tolist() == [0]


def test_the_printed_threshold_is_half_of_tau_where_nobody_is_selected():
    assert literal_threshold(COSINES, ~everybody(COSINES), 0.5).tolist() == [0.25]


def test_only_selected_neighbours_enter_the_entropy_sum():
    only = entropy_sum(COSINES, torch.tensor([[True, False, False]]))
    close(only, 0.048729)


def test_the_threshold_averages_over_the_available_neighbours_only():
    available = torch.tensor([[True, True, False]])
    close(adaptive_threshold(COSINES, available, 1), (0.132458 + 0.586501) / 2)


def test_centring_the_proxies_changes_whom_the_ratio_rule_selects():
    proxies = torch.tensor([[7, 1, 0], [7, 0, 1], [6, -1, 0], [5, -1, 1]], dtype=torch.float64)
    gram = proxies @ proxies.T
    neighbours = ~torch.eye(4, dtype=torch.bool)
    expected = {
        cosines_from_gram: ((1.138228, 0.995636, 0.866136), 0.031565, [1, 2, 3]),
        lambda gram: centred_cosines(gram, neighbours): ((2.979717, 0.016394, 0.003889), 0.441466, [1]),
    }
    for compare, (ratios, theta, chosen) in expected.items():
        cosines = compare(gram)
        ratio = participation_ratio(cosines, neighbours, 0.2)
        threshold = adaptive_threshold(cosines, neighbours, 0.5)
        close(ratio[0, 1:], *ratios)
        close(threshold[0], theta)
        assert above_threshold(ratio, neighbours, threshold)[0].nonzero().flatten().tolist() == chosen


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
    available = everybody(cosines)
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
def test_how_many_neighbours_the_printed_rule_keeps(cosines, temperatures, sizes, first, last):
    for nu in temperatures:
        kept, thresholds = printed_rule(cosines, nu)
        assert kept == sizes
        assert thresholds[0] == pytest.approx(first, rel=0.03, abs=0)
        assert thresholds[-1] == pytest.approx(last, rel=0.03, abs=0)


def test_nobody_is_absorbing_for_the_printed_rule():
    sizes, thresholds = printed_rule(LINEAR, 0.1, theta=0.25)
    assert sizes == [0] * 8
    assert thresholds == [0.25] * 8


def test_the_entropy_sum_saturates_the_sigmoid_with_99_neighbours():
    h = entropy_sum(LINEAR[None], everybody(LINEAR[None]))
    close(h, 21.894105)
    assert literal_threshold(LINEAR[None], everybody(LINEAR[None]), 0.5).item() == pytest.approx(
        1.5505e-10, rel=1e-4, abs=0
    )
    for tau in (0.1, 0.2, 0.5, 0.8, 1, 1.5):
        assert printed_rule(LINEAR, 0.1, tau)[0] == [99] * 8


@pytest.mark.parametrize(
    ("n", "tau", "flip"),
    [
        (99, 0.1, 0.9553),
        (99, 0.5, 0.9200),
        (99, 1.0, 0.9051),
        (49, 0.1, 0.9436),
        (49, 0.5, 0.8666),
        (49, 1.0, 0.8350),
        (19, 0.1, None),
        (19, 0.5, 0.7597),
        (19, 1.0, 0.6662),
        (9, 0.1, None),
        (9, 0.5, 0.6975),
        (9, 1.0, 0.4562),
        (5, 0.1, None),
        (5, 0.5, 0.8304),
        (5, 1.0, 0.3096),
    ],
)
def test_the_printed_rule_drops_everybody_once_all_are_too_similar(n, tau, flip):
    def stays(cosine):
        sizes, _ = printed_rule(torch.full((n,), cosine, dtype=torch.float64), 0.2, tau, rounds=2)
        return sizes == [n, n]

    if flip is None:
        assert stays(1.0)
    else:
        assert stays(flip - 1e-4)
        assert not stays(flip + 1e-4)


def ratio_rule(cosines, tau=0.5, nu=0.1):
    threshold = adaptive_threshold(cosines, everybody(cosines), tau)
    return above_threshold(participation_ratio(cosines, everybody(cosines), nu), everybody(cosines), threshold)


@given(st.integers(0, 2**32), st.floats(-0.5, 0.9), st.floats(0.05, 1.0))
def test_a_higher_tau_never_adds_a_neighbour_and_never_exceeds_itself(seed, level, nu):
    cosines = two_kinds(30, 10, 0.9, level, receivers=5, seed=seed)
    taus = (0, 0.1, 0.2, 0.5, 0.8, 1, 1.5, 10)
    chosen = [ratio_rule(cosines, tau, nu) for tau in taus]
    for tau, fewer, more in zip(taus[1:], chosen[1:], chosen[:-1], strict=True):
        assert (adaptive_threshold(cosines, everybody(cosines), tau) <= tau).all()
        assert not (fewer & ~more).any()


def test_tau_zero_takes_everybody_and_a_huge_tau_nobody():
    cosines = two_kinds(30, 10, 0.8, -0.9)
    assert ratio_rule(cosines, tau=0, nu=1e-3).all()
    assert not ratio_rule(cosines, tau=1e6).any()


@pytest.mark.parametrize("n", [1, 2, 3, 49, 99])
@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_identical_clients_all_select_each_other(n, tau):
    vectors = torch.ones(n + 1, 3, dtype=torch.float64) / 3
    neighbours = ~torch.eye(n + 1, dtype=torch.bool)
    cosines = centred_cosines(vectors @ vectors.T, neighbours)
    threshold = adaptive_threshold(cosines, neighbours, tau)
    assert torch.equal(
        above_threshold(participation_ratio(cosines, neighbours, 0.2), neighbours, threshold), neighbours
    )


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
def test_the_threshold_falls_as_more_neighbours_are_friends_and_the_friends_are_found(share, theta, size):
    friends = round(99 * share)
    cosines = two_kinds(99, friends, 0.8, 0.1, receivers=2000)
    selected = ratio_rule(cosines)
    assert adaptive_threshold(cosines, everybody(cosines), 0.5).mean().item() == pytest.approx(theta, abs=0.003)
    assert selected.sum(1).double().mean().item() == pytest.approx(size, abs=0.7)
    assert (selected[:, :friends].sum() / selected.sum()).item() >= 0.998
    assert selected[:, :friends].double().mean().item() >= 0.97


def test_without_any_friend_the_ratio_rule_keeps_most_neighbours():
    selected = ratio_rule(two_kinds(99, 0, 0.8, 0.1, receivers=2000))
    assert selected.sum(1).double().mean().item() == pytest.approx(72, abs=1)


@pytest.mark.parametrize(("tau", "size"), [(0.1, 52.1), (0.2, 50.2), (0.5, 48.3), (0.8, 44.7), (1, 41.6), (1.5, 33.6)])
def test_how_many_neighbours_the_ratio_rule_keeps_as_tau_rises(tau, size):
    selected = ratio_rule(two_kinds(99, 50, 0.6, 0.15, receivers=2000), tau)
    assert selected.sum(1).double().mean().item() == pytest.approx(size, abs=0.5)


# --- contributions --------------------------------------------------------------------------------------------------


def test_the_smoothed_loss_mixes_before_and_after():
    close(smoothed_loss(row(2.0), row(1.0), 0.9), 1.9, digits=14)


@pytest.mark.parametrize(
    ("losses", "temperature", "expected"),
    [
        ((0.5, 1, 2), 1, (0.546549, 0.331499, 0.121952)),
        ((0.5, 1, 2), 0.5, (0.705385, 0.259496, 0.035119)),
        ((0.2, 0.5, 1, 2), 1, (0.424548, 0.314513, 0.190762, 0.070177)),
        ((0.2, 0.5, 1, 2), 0.5, (0.562420, 0.308662, 0.113551, 0.015367)),
    ],
)
def test_boltzmann_weights_in_numbers(losses, temperature, expected):
    close(boltzmann_weights(row(*losses), everybody(row(*losses)), temperature), *expected)


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


def test_only_differences_of_losses_matter():
    losses, votes = row(0.5, 1, 2), row(1, 2, 1)
    expected = boltzmann_weights(losses, votes)
    for shift in (-1e6, 5.0, 1e6):
        torch.testing.assert_close(boltzmann_weights(losses + shift, votes), expected, rtol=0, atol=1e-9)


def test_a_hot_temperature_gives_the_plain_shares_of_the_votes():
    losses, votes = row(0.5, 1, 2), row(1, 2, 1)
    torch.testing.assert_close(boltzmann_weights(losses, votes, 1e12), uniform_weights(votes), rtol=0, atol=1e-11)
    assert torch.equal(boltzmann_weights(losses, votes, math.inf), uniform_weights(votes))


def test_a_row_with_two_votes_counts_twice():
    twice = boltzmann_weights(row(0.5, 1), row(2, 1))
    apart = boltzmann_weights(row(0.5, 0.5, 1), row(1, 1, 1))
    torch.testing.assert_close(twice[0, 0], apart[0, :2].sum())


def test_votes_may_be_bool():
    votes = torch.tensor([[True, False, True]])
    assert torch.equal(boltzmann_weights(row(0.5, NAN, 2), votes), boltzmann_weights(row(0.5, 1, 2), votes.double()))


def test_a_loss_without_votes_is_never_read():
    weights = boltzmann_weights(row(0.5, NAN, -math.inf, 2), row(1, 0, 0, 1))
    assert torch.equal(weights[:, [0, 3]], boltzmann_weights(row(0.5, 2), row(1, 1)))


def test_a_diverged_model_gets_no_weight_unless_all_have_diverged():
    close(boltzmann_weights(row(NAN, 1.0, math.inf, -math.inf), row(1, 1, 1, 1)), 0, 1, 0, 0)
    close(boltzmann_weights(row(NAN, math.inf, 0.1), row(1, 3, 0)), 0.25, 0.75, 0)


def test_a_receiver_without_votes_has_a_zero_row():
    assert torch.equal(boltzmann_weights(row(0.5, NAN), row(0, 0)), row(0, 0))
