import pytest
import torch

from dfl_lightning.callbacks import Bernoulli, ExactCount, Gossip, GroupedCount, Markov, Uniform
from dfl_lightning.utils.errors import UserError


@pytest.mark.parametrize("rate", [0.1, 0.3, 0.7])
def test_bernoulli_drops_each_client_at_its_rate(rate, draws):
    down = ~draws(Bernoulli(rate), 500, 10)
    sigma = (rate * (1 - rate) / 500) ** 0.5
    assert (down.double().mean(0) - rate).abs().max() < 4 * sigma
    assert abs(down.double().mean() - rate) < 4 * sigma / 10**0.5


def test_bernoulli_drops_clients_and_rounds_independently(draws):
    down = (~draws(Bernoulli(0.5), 1000, 4)).double()
    correlations = torch.corrcoef(torch.cat([down[1:], down[:-1]], 1).T)
    assert (correlations - torch.eye(8)).abs().max() < 4 / 1000**0.5


def test_bernoulli_draws_do_not_depend_on_the_number_of_clients(draws):
    assert torch.equal(draws(Bernoulli(0.5), 30, 5), draws(Bernoulli(0.5), 30, 12)[:, :5])


def test_each_client_may_have_a_rate_of_its_own(draws):
    rates = [0.0, 0.2, 0.8, 1.0]
    up = draws(Bernoulli(rates), 500, 4)
    assert up[:, 0].all()
    assert not up[:, 3].any()
    assert ((~up).double().mean(0) - torch.tensor(rates)).abs().max() < 4 * (0.16 / 500) ** 0.5
    assert torch.equal(up[:, 1], draws(Bernoulli(0.2), 500, 4)[:, 1])  # the coins are the same


@pytest.mark.parametrize("dropout", [Bernoulli, Markov])
def test_a_list_of_rates_has_one_for_each_client(dropout, start):
    with pytest.raises(UserError, match=r"dropout.rate lists 2 rates, but data has 6 clients"):
        start(Gossip(k=1), Uniform(), dropout([0.1, 0.2]))


def test_rates_0_and_1_are_certain(draws):
    assert draws(Bernoulli(0.0), 20, 5).all()
    assert not draws(Bernoulli(1.0), 20, 5).any()
    assert draws(ExactCount(0.0), 20, 5).all()
    assert not draws(ExactCount(1.0), 20, 5).any()


@pytest.mark.parametrize(("rate", "clients", "down"), [(0.5, 10, 5), (0.3, 20, 6), (0.25, 10, 3), (0.33, 4, 1)])
def test_exact_count_drops_exactly_its_share(rate, clients, down, draws):
    assert ((~draws(ExactCount(rate), 30, clients)).sum(1) == down).all()


def test_exact_count_drops_all_clients_equally_often(draws):
    down = ~draws(ExactCount(0.3), 600, 10)
    assert (down.double().mean(0) - 0.3).abs().max() < 4 * (0.21 / 600) ** 0.5


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.7])
def test_grouped_count_is_exact_and_leaves_one_of_each_group(rate, draws):
    clusters = torch.tensor([0] * 2 + [1] * 3 + [2] * 5)
    up = draws(GroupedCount(rate), 100, 10, clusters.tolist())
    assert (up.sum(1) == 10 - round(rate * 10)).all()
    for cluster in range(3):
        assert up[:, clusters == cluster].any(1).all()


def test_grouped_count_keeps_all_clients_equally_often(draws):
    up = draws(GroupedCount(0.5), 500, 6, [0, 0, 0, 1, 1, 1])
    assert (up.double().mean(0) - 0.5).abs().max() < 4 * (0.25 / 500) ** 0.5
    assert {int(n) for n in up[:, :3].sum(1)} == {1, 2}


def test_grouped_count_in_a_run(start, make_clusters):
    run = start(Gossip(k=1), Uniform(), GroupedCount(0.5), topology=make_clusters(6, [0, 0, 1, 1, 2, 2])).go(4)
    for round in run.rounds:
        assert round.active.view(3, 2).sum(1).tolist() == [1, 1, 1]


def test_more_groups_than_survivors_are_refused(start, make_clusters):
    with pytest.raises(UserError, match=r"dropout.rate=0.5 leaves 3 of 6 clients active, fewer than the 4 groups"):
        start(Gossip(k=1), Uniform(), GroupedCount(0.5), topology=make_clusters(6, [0, 0, 1, 1, 2, 3]))


def test_unknown_groups_are_refused(start):
    with pytest.raises(UserError, match="GroupedCount needs groups"):
        start(Gossip(k=1), Uniform(), GroupedCount(0.5))


@pytest.mark.parametrize("dropout", [Bernoulli, ExactCount, GroupedCount, Markov])
@pytest.mark.parametrize("rate", [-0.1, 1.5, float("nan")])
def test_a_rate_is_a_share(dropout, rate):
    with pytest.raises(UserError, match=r"dropout\.rate="):
        dropout(rate)
