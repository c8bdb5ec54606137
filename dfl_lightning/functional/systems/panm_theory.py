"""Theory of PANM (arXiv 2203.12285): the probability of right neighbours after each round, and the models received."""

from __future__ import annotations

from itertools import accumulate, repeat
from math import comb
from typing import Literal

__all__ = [
    "initialisation_probabilities",
    "literal_initialisation_probabilities",
    "panm_models_in_round",
    "panm_models_received",
]


def initialisation_probabilities(
    n: int, a: int, l: int, k: int, rounds: int, candidates: Literal["new", "all"] = "new"
) -> list[float]:
    """Compute the probability that all k neighbours are in the own cluster, after each round of PANM's stage one.

    The similarity is assumed to have no error. A client holds s of its friends, the clients of its cluster. Each round
    draws l clients, and the number of friends among them that it does not hold is hypergeometric. It is done when it
    holds k. (PANM's theorem 1 counts friends that are drawn twice as two: see `literal_initialisation_probabilities`.)

    Args:
        n: number of clients, the receiver included.
        a: number of clients in the receiver's cluster, itself included.
        l: number of candidates drawn in a round, at least k; all if there are fewer.
        k: number of neighbours.
        rounds: number of rounds.
        candidates: draw from clients that are not neighbours (`new`), or from all others (`all`).

    Returns:
        A probability for each round.

    Raises:
        ValueError: l is below k, or fewer than k others exist, so that the list is not full after the first round.

    Examples:
        >>> [round(p, 4) for p in initialisation_probabilities(n=100, a=25, l=10, k=5, rounds=3)]
        [0.0592, 0.5383, 0.8807]
    """
    if not k <= min(l, n - 1):
        raise ValueError(f"k={k} neighbours need l >= k candidates in a round and k others, not l={l}, n={n}")
    held = [1.0] + [0.0] * k  # probabilities of holding 0, 1, ..., k friends
    complete = [held[k]]
    for number in range(rounds):
        pool = n - 1 - k if candidates == "new" and number > 0 else n - 1
        after = [0.0] * k + [held[k]]
        for s, probability in enumerate(held[:k]):
            for x in range(a - s if probability else 0):
                after[min(s + x, k)] += probability * _hypergeometric(x, pool, a - 1 - s, min(l, pool))
        held = after
        complete.append(held[k])
    return complete[1:]


def literal_initialisation_probabilities(n: int, a: int, l: int, k: int, rounds: int) -> list[float]:
    """Compute the same probabilities as printed: P^t(k) of PANM's theorem 1 (eq. 10), with G(x) as in the main text.

    The theorem treats the candidates of different rounds as different clients: a friend that is drawn twice counts
    twice. From the second round on it is therefore above the probability of the algorithm (with `candidates: all`), and
    it is above 0 even if there are fewer than k friends.

    Args:
        n: number of clients, the receiver included.
        a: number of clients in the receiver's cluster, itself included.
        l: number of candidates drawn in a round, at most n - 1.
        k: number of neighbours.
        rounds: number of rounds.

    Returns:
        P^1(k), P^2(k), ..., one for each round. For PENS the first one holds in all rounds (eq. 11).

    Examples:
        >>> [round(p, 4) for p in literal_initialisation_probabilities(n=100, a=25, l=10, k=5, rounds=3)]
        [0.0592, 0.5605, 0.8969]
    """
    exactly = [_hypergeometric(x, n - 1, a - 1, l) for x in range(max(k, l) + 1)]  # G
    at_least = [sum(exactly[x:]) for x in range(k + 1)]  # R

    def next_round(before: list[float], _: None) -> list[float]:
        return [sum(exactly[m] * before[x - m] for m in range(x)) + at_least[x] for x in range(k + 1)]

    return [p[k] for p in accumulate(repeat(None, rounds - 1), next_round, initial=at_least)]


def panm_models_received(l: int, k: int, stage_one: int, stage_two: int, tau: int) -> float:
    """Count the models that a client receives in a run of PANM (the communication costs of PANM's table 6).

    The count assumes that the neighbours mixed after a matching are among the 2 l clients that were compared for it. A
    run also counts other ones, and counts fewer models if there are fewer than l neighbours or strangers.

    Args:
        l: number of candidates in a round.
        k: number of neighbours that are mixed.
        stage_one: rounds of confident neighbour initialisation, T1, at least 1.
        stage_two: rounds after it, T2.
        tau: rounds between two matchings.

    Returns:
        l + (T1 - 1)(l + k) + (T2 - T2 / tau) k + (T2 / tau) 2 l.

    Examples:
        >>> panm_models_received(l=4, k=2, stage_one=100, stage_two=200, tau=10)
        1118.0
    """
    matchings = stage_two / tau
    return l + (stage_one - 1) * (l + k) + (stage_two - matchings) * k + matchings * 2 * l


def panm_models_in_round(number: int, l: int, k: int, stage_one: int, tau: int) -> int:
    """Count the models of one round in `panm_models_received`; the sums agree if tau divides T1 and T2.

    Args:
        number: the round, counted from 1 as in algorithm 1.
        l: number of candidates in a round.
        k: number of neighbours that are mixed.
        stage_one: rounds of confident neighbour initialisation, T1.
        tau: rounds between two matchings.

    Examples:
        >>> [panm_models_in_round(t, l=4, k=2, stage_one=3, tau=2) for t in (1, 2, 3, 4, 5, 6)]
        [4, 6, 6, 8, 2, 8]
    """
    if number <= stage_one:
        return l + k if number > 1 else l
    return 2 * l if number % tau == 0 else k


def _hypergeometric(x: int, population: int, successes: int, draws: int) -> float:
    """Compute the probability of x successes in `draws` draws without replacement."""
    if not 0 <= x <= draws or draws - x > population - successes:
        return 0.0
    return comb(successes, x) * comb(population - successes, draws - x) / comb(population, draws)
