"""DPFL (*Decentralized Personalized Federated Learning*, AISTATS 2025): collaborators chosen greedily.

The paper's algorithms 1 to 3, and what does them here:

1. first round: longer local training, then all neighbours send their models     (`DPFL`, on_propose; `initial_epochs`)
2. BGGC: choose collaborators among all, fetched in batches of the budget B_c     (`bggc`)
3. later rounds: local training, then the collaborators of step 2 send models     (`DPFL`, on_propose)
4. GGC: choose among these anew, every P rounds                                   (`ggc`; `budget`, `period`)
5. the client goes on with the average over those chosen, by numbers of samples   (`SampleWeighted`)
6. it is judged by the model that was best on its validation data                 (`DPFL`, the row set `best`)

A receiver k goes through its candidates in a random order with two sets: X, which begins as {k} and gains candidates
that help, and Y, which begins as all of them and loses those that do not. The value of a set is minus the loss, on k's
validation data, of the weighted mean of its models. All receivers do their s-th step together: one call judges two
models each. What belongs to a receiver is a row as long as the longest list of candidates: callers take receivers with
about as many candidates together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from dfl_lightning.links import Links

__all__ = ["Choice", "RunningSums", "adding_probability", "bggc", "candidates_in_order", "ggc", "marginal_gain"]

LARGEST_GAIN = 1e300
"""Stands for a gain without bound, so that shares of gains stay defined."""


class Choice(NamedTuple):
    """What r receivers chose, and why; a column for each step, in which a receiver looks at one candidate.

    Args:
        chosen: whether the candidate is a collaborator now, bool [r, s]: X without the receiver itself.
        adding: a of each step, what the candidate adds to X, float64 [r, s]; NaN where no candidate was evaluated.
        removing: b of each step, what Y gains without the candidate, float64 [r, s].
        probabilities: p of each step, float64 [r, s].
    """

    chosen: Tensor
    adding: Tensor
    removing: Tensor
    probabilities: Tensor


class RunningSums(Protocol):
    """What a receiver of BGGC remembers: two weighted sums of models, and the models of one batch."""

    def receive(self, receivers: Tensor, senders: Tensor) -> None:
        """Let receivers fetch senders' models.

        Args:
            receivers: long [e].
            senders: whose models they fetch, long [e].
        """

    def forget(self, receivers: Tensor) -> None:
        """Let the `receivers`, long [w], throw the models of their batch away."""

    def add(self, chosen: bool, receivers: Tensor, members: Tensor, weights: Tensor) -> None:
        """Add weighted models to one of the receivers' two sums.

        Args:
            chosen: to the sum over X; otherwise to the sum over Y.
            receivers: long [w].
            members: whose models each of them adds, long [w, c]; -1 where there are fewer.
            weights: of these models, float64 [w, c]; 0 where there are fewer.
        """

    def losses(self, chosen: Tensor, receivers: Tensor, member: Tensor, weight: Tensor, totals: Tensor) -> Tensor:
        """Evaluate (sum + weight * the member's model) / total on validation data, float64 [J].

        Args:
            chosen: whether the sum is the one over X or over Y, bool [J].
            receivers: whose sum and whose data, long [J].
            member: whose model is added, long [J]; -1: none.
            weight: of this model, [J]; negative where it leaves the sum.
            totals: [J].
        """


def marginal_gain(before: Tensor, after: Tensor, tolerance: float = 1e-6) -> Tensor:
    """Compute how much lower a loss has become, max(R(after) - R(before), 0) with R = -loss (DPFL section 3.2).

    Differences of float32 losses are noisy: what is at most tolerance * max(1, |before|) counts as nothing.

    Args:
        before: losses, any shape.
        after: losses, same shape.
        tolerance: 0 takes every difference as it is.

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
    """Compute the probability with which a candidate is added, a / (a + b); 1 where both are 0 (DPFL algorithm 2).

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
    """Return receivers' candidates in a random order, as their places in the list of links.

    Args:
        draws: a uniform number for each link, [E]; the lowest comes first.
        links: the candidates.
        receivers: of whom, long [r].

    Returns:
        long [r, s], s the largest number of candidates of any of them; -1 after a receiver's last one.

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

    A set X begins with the receiver alone, a set Y with the receiver and all candidates. Candidates come one after the
    other: a is how much the average over X gains with the candidate, b how much the one over Y gains without it. With
    probability a / (a + b) the candidate is added to X, otherwise it leaves Y; in the end both are the chosen set.
    Two averages are evaluated for each candidate, and two more at the start.

    Args:
        receivers: who chooses, long [r].
        order: their candidates one after the other, long [r, s], -1 after the last one; never the receiver itself.
        coins: uniform draws in [0, 1), one for each position, used or not, [r, s].
        limits: the budget B_c: how many others may be chosen, long [r].
        shares: p, how much each client counts in an average, [n].
        losses: (members long [J, 1 + s], weights float64 [J, 1 + s]) -> the loss of the weighted sum of the members'
            models on the validation data of the first member, the receiver, [J]; a member of -1 is none.
        tolerance: see `marginal_gain`.
        literal: the test of the budget is where the paper prints it, after the last candidate: it stops nothing.

    Returns:
        Which candidates are chosen, bool [r, s], with a, b and the probability of each step.

    Examples:
        Models 0, 2, -3 and 1.5; client 0's optimum is a model of 1. It adds the 2 and no other.

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
        found = losses(members[twice], weights / torch.where(total > 0, total, 1))
        return found[: len(who)], found[len(who) :]

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
    """Choose by batched greedy graph construction (DPFL algorithm 3): as `ggc`, without ever keeping many models.

    Models come in batches of at most the budget, twice: first to sum up Y, the receiver and all its candidates, then
    one by one as candidates of X, the chosen ones. Between batches a receiver keeps only these two sums. A receiver
    whose budget covers all its candidates receives them once.

    Args:
        receivers: who chooses, long [r].
        order: their candidates one after the other, long [r, s], -1 after the last one; never the receiver itself.
        coins: uniform draws in [0, 1), one for each position, used or not, [r, s].
        limits: the budget B_c: how many others may be chosen, and how many models a batch has, long [r].
        shares: how much each client counts in an average, [n].
        sums: the sums over X and Y, which begin at 0, and the batch; afterwards the sum over X is that of the chosen.
        tolerance: see `ggc`.
        literal: the test of the budget as the paper prints it: whether X, the receiver included, has exactly B_c
            members after a decision; if so, the rest of the batch is skipped, and the next one continues.
    """
    shares = shares.double()
    count = (order >= 0).sum(1)
    batch = limits.clamp(min=1)
    split = count > batch  # more candidates than one batch holds
    totals = {True: shares[receivers], False: shares[receivers]}

    def receive(who: Tensor, number: Tensor) -> Tensor:
        """Fetch the members of a batch, whose number each receiver has, [w]: long [w, c], -1 where there are fewer."""
        first = number * batch[who]
        last = torch.minimum(first + batch[who], count[who])
        places = first[:, None] + torch.arange(int((last - first).max()))
        inside = places < last[:, None]
        members = torch.where(inside, order[who].gather(1, torch.where(inside, places, 0)), -1)
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
        found = sums.losses(of_chosen, receivers[who].repeat(2), member.repeat(2), torch.cat([weight, -weight]), total)
        return found[: len(who)], found[len(who) :]

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
    """Receivers whose budget is exhausted, tested before each candidate (DPFL eq. 3)."""

    def __init__(self, limits: Tensor) -> None:
        self.limits = limits

    def before(self, step: int, chosen: Tensor) -> Tensor:
        """Receivers that evaluate no candidate at a step, bool [r], given how many others each has chosen, long [r]."""
        return chosen >= self.limits

    def after(self, who: Tensor, chosen: Tensor) -> None:
        """Note that receivers have decided, long [w], and how many others each has chosen, long [r]."""


class _UntilTheNextBatch(_Full):
    """The inner `break` of algorithm 3: who has exactly B_c - 1 others passes over the rest of its batch."""

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
    """The decisions that both algorithms take; they differ in where the losses of the sets come from.

    Args:
        order: see `ggc`.
        coins: see `ggc`.
        begin: which receivers choose -> losses of their X and Y.
        trial: (step, receivers that go on) -> losses of X with the step's candidate, and of Y without it.
        decide: (step, these receivers, who of them adds its candidate).
        tolerance: see `marginal_gain`.
        paused: receivers whose budget is exhausted.
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
            at_x[who], at_y[who] = _known(begin(who))
        with_it, without_it = _known(trial(step, who))
        a, b = marginal_gain(at_x[who], with_it, tolerance), marginal_gain(at_y[who], without_it, tolerance)
        p = torch.where(with_it.isinf(), 0.0, adding_probability(a, b))  # never a model that breaks the average
        added = coins[who, step] < p
        adding[who, step], removing[who, step], probabilities[who, step] = a, b, p
        at_x[who[added]], at_y[who[~added]] = with_it[added], without_it[~added]
        chosen[who, step] = added
        number[who] += added
        decide(step, who, added)
        paused.after(who, number)
    return Choice(chosen, adding, removing, probabilities)


def _known(pair: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Losses in float64; one that is not a number is as bad as can be."""
    first, second = (losses.double().nan_to_num(nan=torch.inf, posinf=torch.inf) for losses in pair)
    return first, second
