"""DPFL (*Decentralized Personalized Federated Learning*, AISTATS 2025): collaborators chosen greedily.

The paper's algorithms 1 to 3, and the code of each step:

1. first round: longer local training, then all neighbours send their models     (`DPFL`, on_propose; `initial_epochs`)
2. BGGC: choose collaborators among all, fetched in batches of the budget B_c     (`bggc`)
3. later rounds: local training, then the collaborators of step 2 send models     (`DPFL`, on_propose)
4. GGC: choose among these again, every P rounds                                  (`ggc`; `budget`, `period`)
5. the client continues with the average over those chosen, by numbers of samples (`SampleWeighted`)
6. it is evaluated with the model that was best on its validation data            (`DPFL`, the row set `best`)

A receiver k visits its candidates in a random order with two sets: X, which begins as {k} and gains candidates that
help, and Y, which begins as k and all candidates and loses those that do not. The value of a set is minus the loss, on
k's validation data, of the weighted mean of its models. All receivers do their s-th step together: one call evaluates
two models for each. Arrays have a row for each receiver, as long as the longest list of candidates, so callers should
pass receivers with about equally many candidates together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["Choice", "RunningSums", "adding_probability", "bggc", "candidates_in_order", "ggc", "marginal_gain"]

LARGEST_GAIN = 1e300
"""Largest gain, which also replaces infinite ones, so that shares of gains are defined."""


class Choice(NamedTuple):
    """The choice of r receivers and its reasons, with a column for each step: one candidate of each receiver.

    Args:
        chosen: whether the candidate is a collaborator now, bool [r, s]: X without the receiver itself.
        adding: a of each step, the gain of X with the candidate, float64 [r, s]; NaN for steps without an evaluation.
        removing: b of each step, the gain of Y without the candidate, float64 [r, s].
        probabilities: p of each step, a / (a + b), float64 [r, s].
    """

    chosen: Tensor
    adding: Tensor
    removing: Tensor
    probabilities: Tensor


class RunningSums(Protocol):
    """The memory of BGGC's receivers: two weighted sums of models each, and the models of one batch."""

    def receive(self, receivers: Tensor, senders: Tensor) -> None:
        """Fetch the senders' models for the receivers.

        Args:
            receivers: a receiver for each model, long [e].
            senders: senders of these models, long [e].
        """

    def forget(self, receivers: Tensor) -> None:
        """Drop the models of the current batch at the `receivers`, long [w]."""

    def add(self, chosen: bool, receivers: Tensor, members: Tensor, weights: Tensor) -> None:
        """Add weighted models to one of the receivers' two sums.

        Args:
            chosen: True for the sum over X, False for the sum over Y.
            receivers: the receivers, long [w].
            members: clients whose models each of them adds, long [w, c]; -1 pads shorter lists.
            weights: weights of these models, float64 [w, c]; 0 pads shorter lists.
        """

    def losses(self, chosen: Tensor, receivers: Tensor, member: Tensor, weight: Tensor, totals: Tensor) -> Tensor:
        """Evaluate (sum + weight * the member's model) / total on validation data, float64 [J].

        Args:
            chosen: True for the sum over X, False for that over Y, bool [J].
            receivers: clients with the sum and the validation data, long [J].
            member: client whose model is added, long [J]; -1: none.
            weight: weight of this model, [J]; negative if it leaves the sum.
            totals: divisors, [J].
        """


def marginal_gain(before: Tensor, after: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Compute the decrease of a loss, max(R(after) - R(before), 0) with R = -loss (DPFL section 3.2).

    Differences of float32 losses are noisy: those of at most tolerance * max(1, |before|) count as 0.

    Args:
        before: losses, any shape.
        after: losses, same shape.
        tolerance: relative size of differences that count as 0; with 0 all differences count.

    Returns:
        Gains >= 0, float64, same shape.

    Examples:
        >>> marginal_gain(torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.25, 2.0, 0.9999999]))
        tensor([0.7500, 0.0000, 0.0000], dtype=torch.float64)
    """
    before, after = before.double(), after.double()
    gain = before - after
    enough = gain > tolerance * before.abs().clamp(min=1, max=LARGEST_GAIN)
    return torch.where(enough, gain, torch.zeros_like(gain)).clamp(max=LARGEST_GAIN)


def adding_probability(adding: Tensor, removing: Tensor) -> Tensor:
    """Compute the probability of adding a candidate, a / (a + b); 1 if both are 0 (DPFL algorithm 2).

    Args:
        adding: a >= 0, the gain of adding it to X, any shape.
        removing: b >= 0, the gain of removing it from Y, same shape.

    Returns:
        float64, same shape.

    Examples:
        >>> adding_probability(torch.tensor([0.19, 0.5, 0.0, 0.0]), torch.tensor([0.652847, 0.5, 0.1, 0.0]))
        tensor([0.2254, 0.5000, 0.0000, 1.0000], dtype=torch.float64)
    """
    adding, removing = adding.double(), removing.double()
    total = adding + removing
    return torch.where(
        total > 0, adding / torch.where(total > 0, total, torch.ones_like(total)), torch.ones_like(total)
    )


def candidates_in_order(draws: Tensor, links: Links, receivers: Tensor) -> Tensor:
    """Return receivers' candidates in a random order, as indices into the list of links.

    Args:
        draws: a uniform number for each link, [E]; the lowest comes first.
        links: the candidates of all receivers.
        receivers: receivers whose candidates are returned, long [r].

    Returns:
        long [r, s], s the largest number of candidates of these receivers; -1 pads shorter lists.

    Examples:
        >>> links = Links.of(torch.tensor([0, 0, 2]), torch.tensor([1, 2, 0]), nodes=3)
        >>> places = candidates_in_order(torch.tensor([0.7, 0.2, 0.9]), links, torch.tensor([0, 2]))
        >>> places
        tensor([[ 1,  0],
                [ 2, -1]])
        >>> torch.where(places >= 0, links.senders[places], -1)
        tensor([[ 2,  1],
                [ 0, -1]])
    """
    count = links.count[receivers]
    position = torch.arange(int(count.max()) if len(count) else 0)
    inside = position < count[:, None]
    places = torch.where(inside, links.starts[receivers][:, None] + position, -1)
    order = torch.where(inside, draws[places], torch.inf).argsort(dim=1, stable=True)
    return places.gather(1, order)


def ggc(
    receivers: Tensor,
    order: Tensor,
    coins: Tensor,
    limits: Tensor,
    shares: Tensor,
    losses: Callable[[Tensor, Tensor], Tensor],
    tolerance: float = 1e-6,
    literal: bool = False,
) -> Choice:
    """Choose by greedy graph construction (DPFL algorithm 2), with all candidates' models available.

    A set X begins with the receiver alone, a set Y with the receiver and all candidates. For each candidate, a is the
    gain of the average over X with the candidate, and b the gain of the average over Y without it. With probability
    a / (a + b) the candidate is added to X, otherwise it leaves Y; in the end both are the chosen set. Two averages are
    evaluated for each candidate, and two more at the start.

    Args:
        receivers: receivers that choose, long [r].
        order: their candidates in the order of the steps, without themselves, long [r, s]; -1 pads shorter lists.
        coins: uniform draws in [0, 1), one for each position, used or not, [r, s].
        limits: the budget B_c: how many others may be chosen, long [r].
        shares: p, the factor of each client in an average, [n].
        losses: (members long [J, 1 + s], weights float64 [J, 1 + s]) -> the loss of the weighted sum of the members'
            models on the validation data of the first member, the receiver, [J]; -1 pads shorter lists of members.
        tolerance: see `marginal_gain`.
        literal: test the budget where the paper prints the test, after the last candidate, where it has no effect.

    Returns:
        The chosen candidates, bool [r, s], with a, b and the probability of each step.

    Examples:
        Models 0, 2, -3 and 1.5; client 0's optimum is a model of 1. It only adds the model 2.

        >>> models = torch.tensor([0, 2, -3, 1.5], dtype=torch.float64)
        >>> choice = ggc(
        ...     receivers=torch.tensor([0]),
        ...     order=torch.tensor([[1, 2, 3]]),
        ...     coins=torch.full((1, 3), 0.5),
        ...     limits=torch.tensor([3]),
        ...     shares=torch.ones(4),
        ...     losses=lambda members, weights: ((weights * models[members]).sum(1) - 1) ** 2,
        ... )
        >>> choice.chosen, choice.removing
        (tensor([[ True, False, False]]), tensor([[0.0000, 0.7378, 0.0278]], dtype=torch.float64))
    """
    members = torch.cat([receivers[:, None], order], dim=1)
    present = members >= 0
    counts = torch.where(present, shares.double()[members], 0)
    chosen, possible = torch.zeros_like(present), present.clone()  # X and Y
    chosen[:, 0] = True

    def judge(with_it: Tensor, without_it: Tensor, who: Tensor) -> tuple[Tensor, Tensor]:
        twice = who.repeat(2)
        weights = torch.cat([with_it, without_it]) * counts[twice]
        total = weights.sum(1, keepdim=True)
        both = losses(members[twice], weights / torch.where(total > 0, total, 1))
        return both[: len(who)], both[len(who) :]

    def begin(who: Tensor) -> tuple[Tensor, Tensor]:
        return judge(chosen[who], possible[who], who)

    def trial(step: int, who: Tensor) -> tuple[Tensor, Tensor]:
        with_it, without_it = chosen[who], possible[who]
        with_it[:, 1 + step], without_it[:, 1 + step] = True, False
        return judge(with_it, without_it, who)

    def decide(step: int, who: Tensor, added: Tensor) -> None:
        chosen[who, 1 + step], possible[who, 1 + step] = added, added

    paused = _Full(torch.full_like(limits, members.shape[1]) if literal else limits)
    return _greedy(order, coins, begin, trial, decide, tolerance, paused)


def bggc(
    receivers: Tensor,
    order: Tensor,
    coins: Tensor,
    limits: Tensor,
    shares: Tensor,
    sums: RunningSums,
    tolerance: float = 1e-6,
    literal: bool = False,
) -> Choice:
    """Choose by batched greedy graph construction (DPFL algorithm 3): like `ggc`, but with few models kept at once.

    Models are received in batches of at most the budget, twice: first to sum up Y, the receiver and all its candidates,
    then one by one as candidates of X. Between batches a receiver keeps only these two sums. A receiver whose budget
    covers all its candidates receives them once.

    Args:
        receivers: receivers that choose, long [r].
        order: their candidates in the order of the steps, without themselves, long [r, s]; -1 pads shorter lists.
        coins: uniform draws in [0, 1), one for each position, used or not, [r, s].
        limits: the budget B_c: how many others may be chosen, and how many models a batch has, long [r].
        shares: factor of each client in an average, [n].
        sums: the sums over X and Y, which begin at 0, and the batch; in the end the sum over X is that of the chosen.
        tolerance: see `ggc`.
        literal: test the budget as the paper prints it: if X, the receiver included, has exactly B_c members after a
            decision, the rest of the batch is skipped, and the next batch continues.
    """
    shares = shares.double()
    count = (order >= 0).sum(1)
    batch = limits.clamp(min=1)
    split = count > batch  # more candidates than one batch holds
    totals = {True: shares[receivers], False: shares[receivers]}

    def receive(who: Tensor, number: Tensor) -> Tensor:
        """Fetch the batch of that number, [w], for each receiver; return its members, long [w, c], padded by -1."""
        first = number * batch[who]
        last = torch.minimum(first + batch[who], count[who])
        steps = first[:, None] + torch.arange(int((last - first).max()))
        inside = steps < last[:, None]
        members = torch.where(inside, order[who].gather(1, torch.where(inside, steps, 0)), -1)
        sums.forget(receivers[who])
        sums.receive(receivers[who].repeat_interleave(inside.sum(1)), members[inside])
        return members

    def begin(who: Tensor) -> tuple[Tensor, Tensor]:
        for chosen in (True, False):
            sums.add(chosen, receivers[who], receivers[who, None], shares[receivers[who], None])
        for number in range(int((-(-count // batch))[who].max())):
            here = who[number * batch[who] < count[who]]
            members = receive(here, torch.full_like(here, number))
            weights = torch.where(members >= 0, shares[members], 0)
            sums.add(False, receivers[here], members, weights)
            totals[False][here] += weights.sum(1)
        return judge(who, torch.full_like(who, -1), torch.zeros(len(who), dtype=torch.float64))

    def judge(who: Tensor, member: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total = torch.cat([totals[True][who] + weight, totals[False][who] - weight])
        of_chosen = torch.arange(2 * len(who)) < len(who)
        both = sums.losses(of_chosen, receivers[who].repeat(2), member.repeat(2), torch.cat([weight, -weight]), total)
        return both[: len(who)], both[len(who) :]

    def trial(step: int, who: Tensor) -> tuple[Tensor, Tensor]:
        due = who[split[who] & (step % batch[who] == 0)]
        if len(due):
            receive(due, step // batch[due])
        return judge(who, order[who, step], shares[order[who, step]])

    def decide(step: int, who: Tensor, added: Tensor) -> None:
        for chosen, of, sign in ((True, added, 1), (False, ~added, -1)):
            if of.any():
                member = order[who[of], step]
                change = sign * shares[member]
                sums.add(chosen, receivers[who[of]], member[:, None], change[:, None])
                totals[chosen][who[of]] += change

    paused = _UntilTheNextBatch(limits, batch) if literal else _Full(limits)
    return _greedy(order, coins, begin, trial, decide, tolerance, paused)


class _Full:
    """The test of the budget before each candidate (DPFL eq. 3)."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits

    def before(self, step: int, chosen: Tensor) -> Tensor:
        """Return the receivers that skip a step, bool [r], given how many others each has chosen, long [r]."""
        return chosen >= self.limits

    def after(self, who: Tensor, chosen: Tensor) -> None:
        """Note the receivers that have decided, long [w], and how many others each has chosen, long [r]."""


class _UntilTheNextBatch(_Full):
    """The inner `break` of algorithm 3: a receiver with exactly B_c - 1 others skips the rest of its batch."""

    def __init__(self, limits: Tensor, batch: Tensor) -> None:
        super().__init__(limits)
        self.batch, self.paused = batch, torch.zeros_like(limits, dtype=torch.bool)

    def before(self, step: int, chosen: Tensor) -> Tensor:
        """See `_Full`; with a budget of 0 no model is received or evaluated."""
        self.paused &= step % self.batch != 0
        return self.paused | (self.limits == 0)

    def after(self, who: Tensor, chosen: Tensor) -> None:
        """See `_Full`."""
        self.paused[who] = chosen[who] + 1 == self.limits[who]


def _greedy(
    order: Tensor,
    coins: Tensor,
    begin: Callable[[Tensor], tuple[Tensor, Tensor]],
    trial: Callable[[int, Tensor], tuple[Tensor, Tensor]],
    decide: Callable[[int, Tensor, Tensor], None],
    tolerance: float,
    paused: _Full,
) -> Choice:
    """Decide about each candidate in turn, as both algorithms do; they differ in how losses of sets are computed.

    Args:
        order: see `ggc`.
        coins: see `ggc`.
        begin: (receivers) -> losses of their X and Y at the start.
        trial: (step, receivers) -> losses of X with the step's candidate, and of Y without it.
        decide: (step, receivers, mask of those that add their candidate); stores the decisions.
        tolerance: see `marginal_gain`.
        paused: test of the budget.
    """
    r, steps = order.shape
    chosen, number = torch.zeros(r, steps, dtype=torch.bool), torch.zeros(r, dtype=torch.long)
    adding, removing, probabilities = torch.full((3, r, steps), float("nan"), dtype=torch.float64)
    at_x, at_y = torch.full((2, r), float("nan"), dtype=torch.float64)
    for step in range(steps):
        who = torch.nonzero((order[:, step] >= 0) & ~paused.before(step, number)).squeeze(1)
        if not len(who):
            continue
        if step == 0:
            at_x[who], at_y[who] = _comparable(begin(who))
        with_it, without_it = _comparable(trial(step, who))
        a, b = marginal_gain(at_x[who], with_it, tolerance), marginal_gain(at_y[who], without_it, tolerance)
        p = torch.where(with_it.isinf(), 0.0, adding_probability(a, b))  # never add a model that breaks the average
        added = coins[who, step] < p
        adding[who, step], removing[who, step], probabilities[who, step] = a, b, p
        at_x[who[added]], at_y[who[~added]] = with_it[added], without_it[~added]
        chosen[who, step] = added
        number[who] += added
        decide(step, who, added)
        paused.after(who, number)
    return Choice(chosen, adding, removing, probabilities)


def _comparable(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Convert losses to float64, and NaN to infinity."""
    first, second = (losses.double().nan_to_num(nan=torch.inf, posinf=torch.inf) for losses in pair)
    return first, second
