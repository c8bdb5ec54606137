import math
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.functional import (
    accuracy_summary,
    friend_accuracy,
    neighbour_precision_recall,
    over_clients,
    worst_decile_mean,
)
from dfl_lightning.links import AllPairs, Links

NAN = math.nan
CLUSTERS = torch.tensor([0, 0, 1, 1, 1])


complete = Links.complete


# --- neighbours -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.integers(1, 12))
def test_precision_and_recall_agree_with_a_loop(seed, n):
    draws = torch.Generator().manual_seed(seed)
    clusters = torch.randint(0, 3, (n,), generator=draws)
    selected, reachable = torch.rand(2, n, n, generator=draws) < 0.4
    precisions, recalls = [], []
    for i in range(n):
        chosen = [j for j in range(n) if selected[i, j] and j != i]
        fellows = [j for j in range(n) if reachable[i, j] and j != i and clusters[j] == clusters[i]]
        if chosen:
            precisions.append(sum(int(clusters[j] == clusters[i]) for j in chosen) / len(chosen))
        if fellows:
            recalls.append(len(set(chosen) & set(fellows)) / len(fellows))
    found = neighbour_precision_recall(Links.from_mask(selected), clusters, Links.from_mask(reachable))
    expected = [sum(values) / len(values) if values else NAN for values in (precisions, recalls)]
    assert found == pytest.approx(expected, nan_ok=True)


def test_a_complete_graph_needs_no_list_to_measure_recall():
    n = 50_000
    clusters = torch.arange(n) % 10
    reachable = AllPairs.of_nodes(n)
    found = neighbour_precision_recall(reachable.draw(5, seed=0), clusters, reachable)
    assert found == (pytest.approx(0.1, abs=0.01), pytest.approx(5e-4 / 5, rel=0.02))


# --- friends and the worst off --------------------------------------------------------------------------------------


def test_friend_accuracy_is_the_share_of_correct_friends():
    friends, dropped = torch.tensor([0, 3, 0]), torch.tensor([1, 2, 3])
    assert friend_accuracy(friends, CLUSTERS, dropped) == pytest.approx(2 / 3)


def test_a_missing_friend_counts_as_wrong():
    assert friend_accuracy(torch.full((5,), -1), torch.zeros(5, dtype=torch.long), torch.arange(5)) == 0


def test_friend_accuracy_without_dropouts_is_nan():
    none = torch.zeros(0, dtype=torch.long)
    assert math.isnan(friend_accuracy(none, CLUSTERS, none))


@given(st.lists(st.floats(0, 1), min_size=1, max_size=45))
def test_the_worst_decile_averages_the_lowest_tenth_rounded_up(values):
    count = math.ceil(len(values) / 10)
    expected = math.fsum(sorted(values)[:count]) / count
    assert worst_decile_mean(torch.tensor(values, dtype=torch.float64)) == pytest.approx(expected, abs=1e-12)


def test_a_client_without_an_accuracy_is_not_among_the_worst():
    assert worst_decile_mean(torch.tensor([NAN, 0.25, *[0.5] * 9])) == 0.25
    assert math.isnan(worst_decile_mean(torch.tensor([NAN])))


@given(st.lists(st.one_of(st.floats(0, 1, width=32), st.just(NAN)), max_size=45))
def test_statistics_over_clients_ignore_nan(values):
    known = sorted(value for value in values if value == value)
    found = over_clients(torch.tensor(values, dtype=torch.float32))
    if not known:
        expected = (NAN, NAN, NAN)
    else:
        worst = known[: math.ceil(len(known) / 10)]
        expected = (statistics.fmean(known), statistics.pstdev(known), statistics.fmean(worst))
    assert (found.mean, found.std, found.worst10) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert all(map(math.isnan, vars(over_clients(torch.tensor(values), broken=True)).values()))


# --- the four accuracies --------------------------------------------------------------------------------------------

HISTORY = torch.tensor([[0.5, 0.1, 0.3], [0.9, 0.2, 0.7], [0.1, 0.6, 0.2]], dtype=torch.float64)


def test_the_four_accuracies_of_a_run():
    validation = torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.7, 0.2], [0.6, 0.3, 0.1]])
    summary = accuracy_summary(HISTORY, validation)
    assert summary == {
        "acc_last": pytest.approx((0.1 + 0.6 + 0.2) / 3),
        "acc_best_round": pytest.approx((0.9 + 0.2 + 0.7) / 3),
        "acc_best_per_client": pytest.approx((0.9 + 0.6 + 0.7) / 3),
        "acc_best_val": pytest.approx((0.5 + 0.2 + 0.7) / 3),
    }
    assert all(type(value) is float for value in summary.values())


def test_one_missing_accuracy_makes_the_mean_nan():
    history, validation = HISTORY.clone(), torch.tensor([[0.9, 0.1, 0.2], [0.5, 0.7, 0.2], [0.6, 0.3, NAN]])
    broken = torch.zeros_like(history, dtype=torch.bool)
    history[2, 2], broken[2, 2] = NAN, True
    found = accuracy_summary(history, validation, broken)
    assert math.isnan(found.pop("acc_last"))
    assert found == {
        "acc_best_round": pytest.approx((0.9 + 0.2 + 0.7) / 3),
        "acc_best_per_client": pytest.approx((0.9 + 0.6 + 0.7) / 3),
        "acc_best_val": pytest.approx((0.5 + 0.2 + 0.7) / 3),
    }
    history[:, 2], broken[:, 2] = NAN, True
    validation[2, 2] = 0.9
    assert all(math.isnan(value) for value in accuracy_summary(history, validation, broken).values())
    without_data = accuracy_summary(history, validation)
    assert without_data["acc_last"] == pytest.approx((0.1 + 0.6) / 2)


def test_among_equal_validations_the_latest_counts():
    assert accuracy_summary(HISTORY, torch.full((3, 3), 0.5))["acc_best_val"] == accuracy_summary(HISTORY)["acc_last"]
    validation = torch.tensor([[0.5, 0.5, 0.5], [0.5, 0.5, 0.5], [0.4, 0.4, 0.4]])
    assert accuracy_summary(HISTORY, validation)["acc_best_val"] == pytest.approx((0.9 + 0.2 + 0.7) / 3)


def test_without_validation_there_is_no_best_on_validation():
    assert accuracy_summary(HISTORY)["acc_best_val"] is None


def test_a_client_without_test_images_is_left_out():
    missing = torch.full((3, 1), NAN, dtype=torch.float64)
    validation = torch.rand(3, 4, generator=torch.Generator().manual_seed(0))
    summary = accuracy_summary(torch.cat([HISTORY, missing], dim=1), validation)
    assert summary == accuracy_summary(HISTORY, validation[:, :3])


def test_clients_without_validation_are_left_out_of_best_validation():
    validation = torch.tensor([[0.9, 0.1, NAN], [0.5, 0.7, NAN], [0.6, 0.3, NAN]])
    assert accuracy_summary(HISTORY, validation)["acc_best_val"] == pytest.approx((0.5 + 0.2) / 2)


def test_a_history_without_evaluations_is_refused():
    with pytest.raises(ValueError, match="no evaluation"):
        accuracy_summary(torch.zeros(0, 3))
