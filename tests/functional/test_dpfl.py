import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dfl_lightning.functional import adding_probability, bggc, candidates_in_order, ggc, marginal_gain
from dfl_lightning.links import Links

NAN = math.nan


def target(model, receiver=0):
    """The loss of all hand examples: client 0 would like a model of 1."""
    return ((model - 1) ** 2).sum(-1)


class Sums:
    """Running sums over plain tensors; models can only be used while they are kept."""

    def __init__(self, models, loss=target, dtype=torch.float64):
        self.models, self.loss = models.to(dtype), loss
        n = len(models)
        self.sums = {True: torch.zeros(n, models.shape[1], dtype=dtype), False: torch.zeros_like(self.models)}
        self.kept = torch.zeros(n, n, dtype=torch.bool)
        self.received = torch.zeros(n, n, dtype=torch.long)
        self.most, self.judged, self.calls = torch.zeros(n, dtype=torch.long), torch.zeros(n, dtype=torch.long), 0

    def receive(self, receivers, senders):
        assert not self.kept[receivers, senders].any()
        self.kept[receivers, senders] = True
        self.received[receivers, senders] += 1
        self.most = torch.maximum(self.most, self.kept.sum(1))

    def forget(self, receivers):
        self.kept[receivers] = False

    def weighted(self, receivers, members, weights):
        """The sums of members' models, which the receivers must have at hand."""
        assert ((members >= 0) | (weights == 0)).all()
        others = (members >= 0) & (members != receivers[:, None])
        assert self.kept[receivers[:, None].expand_as(members)[others], members[others]].all()
        return (weights[:, :, None].to(self.models.dtype) * self.models[members]).sum(1)

    def add(self, chosen, receivers, members, weights):
        self.sums[chosen][receivers] += self.weighted(receivers, members, weights)

    def losses(self, chosen, receivers, member, weight, totals):
        self.calls += 1
        self.judged.index_add_(0, receivers, torch.ones_like(receivers))
        sums = torch.where(chosen[:, None], self.sums[True][receivers], self.sums[False][receivers])
        models = sums + self.weighted(receivers, member[:, None], weight[:, None])
        models /= totals[:, None].to(self.models.dtype)
        return torch.stack([self.loss(model, k) for model, k in zip(models, receivers.tolist(), strict=True)])


def column(models):
    models = torch.as_tensor(models)
    return models[:, None] if models.ndim == 1 else models


def by_sets(models, order, coins=0.5, p=None, limit=99, loss=target, receiver=0, tolerance=1e-6, literal=False):
    """GGC for one receiver; its choice, and how many models it judged."""
    models, judged = column(models), []

    def losses(members, weights):
        judged.extend(members[:, 0].tolist())
        assert ((members >= 0) | (weights == 0)).all()
        averages = (weights[:, :, None].to(models.dtype) * models[members]).sum(1)
        return torch.stack([loss(model, receiver) for model in averages])

    n = len(models)
    return (
        ggc(
            torch.tensor([receiver]),
            torch.tensor([order], dtype=torch.long),
            torch.full((1, len(order)), coins) if isinstance(coins, float) else torch.tensor([coins]),
            torch.tensor([limit]),
            torch.ones(n) if p is None else torch.as_tensor(p, dtype=torch.float64),
            losses,
            tolerance,
            literal,
        ),
        judged,
    )


def by_sums(models, order, coins=0.5, p=None, limit=99, loss=target, receiver=0, tolerance=1e-6, literal=False):
    """BGGC for one receiver; its choice, and what it remembered."""
    models = column(models)
    sums = Sums(models, loss, models.dtype)
    n = len(models)
    choice = bggc(
        torch.tensor([receiver]),
        torch.tensor([order], dtype=torch.long),
        torch.full((1, len(order)), coins) if isinstance(coins, float) else torch.tensor([coins]),
        torch.tensor([limit]),
        torch.ones(n) if p is None else torch.as_tensor(p, dtype=torch.float64),
        sums,
        tolerance,
        literal,
    )
    return choice, sums


both = pytest.mark.parametrize("construct", [by_sets, by_sums])


def chosen(choice, order, row=0):
    return {j for j, taken in zip(order, choice.chosen[row].tolist(), strict=True) if taken}


def paper(models, order, coins, p, limit, loss, receiver=0, tolerance=1e-6):
    """Algorithm 2 of the paper, with sets and numbers, one candidate after the other."""

    def reward(members):
        total = sum(p[i] for i in members)
        return -float(loss(sum(p[i] / total * models[i] for i in sorted(members))))

    def gain(before, after):
        return after - before if after - before > tolerance * max(1, abs(before)) else 0.0

    x, y = {receiver}, {receiver, *order}
    for j, coin in zip(order, coins, strict=False):
        if len(x) - 1 >= limit:
            break
        a, b = gain(reward(x), reward(x | {j})), gain(reward(y), reward(y - {j}))
        if coin < (a / (a + b) if a + b > 0 else 1):
            x |= {j}
        else:
            y -= {j}
    return x - {receiver}


# --- hand examples ----------------------------------------------------------------------------------------------------
EXAMPLES = {
    "one helps": ((0, 2, -3, 1.5), [1, 2, 3], 0.5, None, [1, 0, 0], [0, 0.737847, 0.027778], [1, 0, 0], {1}),
    "another order": ((0, 2, -3, 1.5), [2, 1, 3], 0.5, None, [0, 1, 0], [0.737847, 0, 0.027778], [0, 1, 0], {1}),
    "too much of a good thing": ((0, 1, 4), [1, 2], 0.5, None, [0.75, 0], [0, 0.194444], [1, 0], {1}),
    "weighed by data": (
        *((0, 2, -3, 1.5), [1, 2, 3], 0.5, [10, 30, 10, 50]),
        *([0.75, 0.09, 0.1575], [0, 0, 0], [1, 1, 1], {1, 2, 3}),
    ),
    "a coin that says no": (
        *((0, 3.8, 2.3, 1.2), [1, 2, 3], [0.5, 0.5, 0.5], None),
        *([0.19, 0.9775, 0], [0.652847, 0, 0.005278], [0.225426, 1, 0], {2}),
    ),
    "neither helps nor hurts": (
        *((0, 2, -1, 0.5, 4), [4, 1, 3, 2], 0.5, None),
        *([0, 0, 0.609375, 0.380625], [0, 0, 0, 0], [1, 1, 1, 1], {1, 2, 3, 4}),
    ),
}


@both
@pytest.mark.parametrize("name", EXAMPLES)
def test_hand_examples_agree(name, construct):
    models, order, coins, p, adding, removing, probabilities, expected = EXAMPLES[name]
    choice, _ = construct(torch.tensor(models, dtype=torch.float64), order, coins, p)
    assert choice.adding[0].tolist() == pytest.approx(adding, abs=5e-7)
    assert choice.removing[0].tolist() == pytest.approx(removing, abs=5e-7)
    assert choice.probabilities[0].tolist() == pytest.approx(probabilities, abs=5e-7)
    assert chosen(choice, order) == expected


@both
@pytest.mark.parametrize(("coin", "first"), [(0.5, False), (0.1, True), (0.225, True), (0.226, False)])
def test_the_coin_decides_if_adding_and_removing_both_help(coin, first, construct):
    choice, _ = construct(torch.tensor([0, 3.8, 2.3, 1.2], dtype=torch.float64), [1, 2, 3], [coin, 0.5, 0.5])
    assert (1 in chosen(choice, [1, 2, 3])) == first


def test_equal_gains_are_a_fair_coin():
    assert adding_probability(torch.tensor([0.3]), torch.tensor([0.3])).tolist() == [0.5]


@pytest.mark.parametrize(
    ("after", "tolerance", "gain"), [(1 - 1e-7, 1e-6, 0), (1 - 1e-7, 0, 1e-7), (1 - 3e-6, 1e-6, 3e-6)]
)
def test_a_gain_within_the_tolerance_is_zero(after, tolerance, gain):
    before, after = torch.tensor([1.0], dtype=torch.float64), torch.tensor([after], dtype=torch.float64)
    assert marginal_gain(before, after, tolerance).tolist() == pytest.approx([gain], rel=1e-6)


def test_the_tolerance_grows_with_the_loss():
    assert marginal_gain(torch.tensor([100.0]), torch.tensor([99.99995])).tolist() == [0]
    assert marginal_gain(torch.tensor([100.0]), torch.tensor([99.999])).item() == pytest.approx(1e-3, rel=0.01)


# --- budget -----------------------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize(("n", "limit"), [(8, 3), (8, 1), (8, 7), (8, 99), (4, 1), (100, 10)])
def test_a_budget_limits_the_others_and_is_never_exceeded(n, limit, construct):
    # each mean is nearer to 1 the more ones are in it
    models = torch.ones(n, dtype=torch.float64)
    models[0] = 0
    choice, _ = construct(models, list(range(1, n)), limit=limit)
    assert chosen(choice, list(range(1, n))) == set(range(1, min(n - 1, limit) + 1))


@both
def test_a_budget_of_zero_is_local_training_without_cost(construct):
    choice, cost = construct(torch.ones(5, dtype=torch.float64), [1, 2, 3, 4], limit=0)
    assert not choice.chosen.any()
    assert cost == [] if construct is by_sets else not cost.received.any()


@pytest.mark.parametrize(
    ("n", "limit", "construct", "others"),
    [
        (8, 3, by_sums, 6),  # leaves the first batch after two, and continues in the next
        (100, 10, by_sums, 98),
        (4, 1, by_sums, 3),  # never exactly one member after a decision: nothing stops it
        (4, 1, by_sets, 3),
        (8, 3, by_sets, 7),
        (8, 0, by_sums, 0),
    ],
)
def test_the_literal_algorithm_exceeds_its_budget(n, limit, construct, others):
    models = torch.ones(n, dtype=torch.float64)
    models[0] = 0
    choice, _ = construct(models, list(range(1, n)), limit=limit, literal=True)
    assert int(choice.chosen.sum()) == others


def test_the_literal_algorithm_counts_the_receiver_and_continues():
    models = torch.ones(8, dtype=torch.float64)
    models[0] = 0
    choice, sums = by_sums(models, list(range(1, 8)), limit=3, literal=True)
    assert chosen(choice, list(range(1, 8))) == {1, 2, 4, 5, 6, 7}
    assert choice.probabilities[0].isnan().tolist() == [False, False, True, False, False, False, False]
    assert int(sums.received.sum()) == 14


@both
@pytest.mark.parametrize("n", [2, 5, 12])
def test_two_models_are_judged_for_each_candidate(n, construct):
    models = torch.randn(n, generator=torch.Generator().manual_seed(n), dtype=torch.float64)
    _, cost = construct(models, list(range(1, n)))
    assert (len(cost) if construct is by_sets else int(cost.judged[0])) == 2 * (n - 1) + 2


@pytest.mark.parametrize(
    ("n", "limit", "received"), [(9, 3, 8 + 3), (9, 8, 8), (9, 20, 8), (10, 4, 9 + 4), (100, 10, 99 + 10)]
)
def test_models_are_fetched_in_batches_and_perhaps_twice(n, limit, received):
    """All clients help, so the second pass ends with its first batch."""
    models = torch.ones(n, dtype=torch.float64)
    models[0] = 0
    _, sums = by_sums(models, list(range(1, n)), limit=limit)
    assert int(sums.received.sum()) == received
    assert int(sums.most.max()) == min(limit, n - 1)


@pytest.mark.parametrize(("n", "limit"), [(9, 3), (9, 1), (40, 7)])
def test_trying_all_candidates_fetches_each_model_twice(n, limit):
    models = torch.full((n,), 9.0, dtype=torch.float64)
    models[0] = 1  # the receiver's model is optimal: no client helps
    choice, sums = by_sums(models, list(range(1, n)), limit=limit)
    assert not choice.chosen.any()
    assert int(sums.received.sum()) == 2 * (n - 1)
    assert (sums.received[0, 1:] == 2).all()
    assert int(sums.most.max()) == limit


# --- both algorithms are one (theorem 1) ------------------------------------------------------------------------------
def problem(seed, n, integers=False, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    if integers:  # every sum is exact; totals that divide make means exact enough to decide alike
        models = torch.randint(-8, 9, (n, 3), generator=g).to(dtype)
        p = torch.randint(1, 9, (n,), generator=g).double()
    else:
        models = torch.randn(n, 3, generator=g).to(dtype)
        p = torch.rand(n, generator=g, dtype=torch.float64) + 0.1
    order = (torch.randperm(n - 1, generator=g) + 1).tolist()
    return models, order, torch.rand(n - 1, generator=g).tolist(), p


@given(st.integers(0, 2**32), st.integers(2, 14), st.integers(1, 14), st.booleans())
def test_both_versions_choose_as_the_paper(seed, n, limit, integers):
    models, order, coins, p = problem(seed, n, integers)
    one, other = by_sets(models, order, coins, p, limit)[0], by_sums(models, order, coins, p, limit)[0]
    assert chosen(one, order) == chosen(other, order) == paper(models, order, coins, p.tolist(), limit, target)


@given(st.integers(0, 2**32), st.integers(2, 20), st.integers(1, 20))
def test_both_versions_agree_in_single_precision(seed, n, limit):
    models, order, coins, p = problem(seed, n, dtype=torch.float32)
    one, other = by_sets(models, order, coins, p, limit)[0], by_sums(models, order, coins, p, limit)[0]
    assert torch.equal(one.chosen, other.chosen)


@given(st.integers(0, 2**32), st.integers(2, 20), st.booleans())
def test_identical_models_are_all_kept(seed, n, batched):
    g = torch.Generator().manual_seed(seed)
    models = torch.randn(1, 50, generator=g).repeat(n, 1)
    _, order, coins, p = problem(seed, n)
    construct = by_sums if batched else by_sets
    choice, _ = construct(models, order, coins, p, loss=lambda model, k: (model**2).mean())
    assert int(choice.chosen.sum()) == n - 1


@given(st.integers(0, 2**32), st.integers(2, 14))
def test_chosen_clients_are_candidates_and_both_sums_agree(seed, n):
    models, order, coins, p = problem(seed, n)
    few = order[: max(1, n // 2)]
    choice, sums = by_sums(models, few, coins[: len(few)], p)
    assert choice.chosen.shape == (1, len(few))
    torch.testing.assert_close(sums.sums[True][0], sums.sums[False][0])
    members = torch.tensor([0, *chosen(choice, few)])
    torch.testing.assert_close(sums.sums[True][0], (p[members, None] * models[members]).sum(0))


# --- many receivers at once -------------------------------------------------------------------------------------------
def crowd(seed, m=9):
    """Receivers with orders of different lengths, budgets and wishes."""
    g = torch.Generator().manual_seed(seed)
    models, wishes = torch.randn(m, 3, generator=g, dtype=torch.float64), torch.randn(m, 3, generator=g)
    links = Links.from_mask((torch.rand(m, m, generator=g) < 0.7) & ~torch.eye(m, dtype=torch.bool))
    places = candidates_in_order(torch.rand(len(links), generator=g), links, torch.arange(m))
    order = torch.where(places >= 0, links.senders[places], -1) if len(links) else places
    coins, limits = torch.rand(order.shape, generator=g), torch.randint(0, m, (m,), generator=g)
    return models, wishes, order, coins, limits, torch.rand(m, generator=g, dtype=torch.float64) + 0.1


@given(st.integers(0, 2**32))
def test_receivers_choose_together_as_they_would_alone(seed):
    models, wishes, order, coins, limits, p = crowd(seed)
    calls = []

    def losses(members, weights):
        calls.append(members[:, 0])
        return (((weights[:, :, None] * models[members]).sum(1) - wishes[members[:, 0]]) ** 2).sum(1)

    together = ggc(torch.arange(9), order, coins, limits, p, losses)
    steps = int((order >= 0).sum(1).max())
    assert len(calls) <= steps + 1  # one call a step, and one before the first
    batched = Sums(models, lambda model, k: ((model - wishes[k]) ** 2).sum())
    in_batches = bggc(torch.arange(9), order, coins, limits, p, batched)
    assert torch.equal(together.chosen, in_batches.chosen)
    assert (batched.most <= limits).all()
    for k in range(9):
        own = [j for j in order[k].tolist() if j >= 0]
        wish = wishes[k]
        alone = paper(
            models, own, coins[k].tolist(), p.tolist(), int(limits[k]), lambda w, t=wish: ((w - t) ** 2).sum(), k
        )
        assert chosen(together, order[k].tolist(), k) == alone


@pytest.mark.parametrize("wider", [1, 4])
@pytest.mark.parametrize("batched", [True, False])
def test_padding_after_the_last_candidate_changes_nothing(batched, wider):
    """A receiver that is taken together with others of more candidates."""
    models, order, coins, p = problem(3, 8)
    construct = by_sums if batched else by_sets
    alone, _ = construct(models, order, coins, p, 3)
    padded, _ = construct(models, order + [-1] * wider, coins + [0.0] * wider, p, 3)
    assert torch.equal(padded.chosen[:, : len(order)], alone.chosen)
    assert not padded.chosen[:, len(order) :].any()
    assert padded.probabilities[:, len(order) :].isnan().all()


# --- orders -----------------------------------------------------------------------------------------------------------
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_candidates_come_in_the_order_of_their_draws(seed, n):
    g = torch.Generator().manual_seed(seed)
    links = Links.from_mask((torch.rand(n, n, generator=g) < 0.5) & ~torch.eye(n, dtype=torch.bool))
    draws = torch.randint(0, 20, (len(links),), generator=g) / 20  # with equals, which keep the order of the list
    receivers = torch.randperm(n, generator=g)[: (n + 1) // 2].sort().values
    places = candidates_in_order(draws, links, receivers)
    pairs = list(zip(links.receivers.tolist(), draws.tolist(), strict=True))
    for k, found in zip(receivers.tolist(), places.tolist(), strict=True):
        expected = sorted((at for at, (who, _) in enumerate(pairs) if who == k), key=lambda at: pairs[at][1])
        assert found == expected + [-1] * (places.shape[1] - len(expected))
    assert places.shape[1] == max(int(links.count[k]) for k in receivers)


def test_another_candidate_does_not_reorder_the_others():
    draws = torch.rand(6, generator=torch.Generator().manual_seed(0))
    more = Links.of(torch.zeros(6, dtype=torch.long), torch.arange(1, 7), nodes=7)
    fewer, kept = more.keep(more.senders != 4), more.senders != 4
    (long,), (short,) = (
        links.senders[candidates_in_order(numbers, links, torch.tensor([0]))].tolist()
        for links, numbers in ((more, draws), (fewer, draws[kept]))
    )
    assert [j for j in long if j != 4] == short


def test_without_candidates_no_client_is_chosen():
    nothing = torch.zeros(0, dtype=torch.long)
    for receivers in (nothing, torch.arange(3)):
        order = candidates_in_order(torch.rand(0), Links.empty(3), receivers)
        choice = ggc(receivers, order, torch.rand(order.shape), torch.full((len(receivers),), 3), torch.ones(3), None)
        assert choice.chosen.shape == (len(receivers), 0)


# --- nonfinite losses -------------------------------------------------------------------------------------------------
@both
@pytest.mark.parametrize("broken", [NAN, math.inf])
def test_a_model_that_breaks_the_average_is_left_out(broken, construct):
    def loss(model, receiver):
        return target(model) if model.abs().max() < 100 else torch.tensor(broken, dtype=torch.float64)

    order = [2, 1, 3, 4]
    choice, _ = construct(torch.tensor([0, 2, 1e9, 1e9, 1.0], dtype=torch.float64), order, loss=loss)
    assert chosen(choice, order) == {1, 4}
    assert not choice.probabilities.isnan().any()
