"""Lists of links against plain loops and matrices, in random federations."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from torch import Tensor

from dfl_lightning.links import AllPairs, LinkMemory, Links
from dfl_lightning.links.draws import uniform

FEDERATIONS = range(60)


def drawn(number: int) -> tuple[Tensor, Links, torch.Generator]:
    """A random graph of 1 to 12 nodes; in some of them the first node receives from all others."""
    generator = torch.Generator().manual_seed(number)
    n, share = int(torch.randint(1, 13, (), generator=generator)), torch.rand((), generator=generator)
    mask = (torch.rand(n, n, generator=generator) < share).fill_diagonal_(False)
    if number % 5 == 0 and n > 1:
        mask[0, 1:] = True
    return mask, Links.from_mask(mask), generator


def numbers(links: Links, generator: torch.Generator) -> Tensor:
    """A few different numbers, so that there are equals, and some that are not known."""
    values = torch.randint(-2, 3, (len(links),), generator=generator).double()
    values[torch.rand(len(links), generator=generator) < 0.2] = torch.nan
    return values


@pytest.mark.parametrize("number", FEDERATIONS)
def test_each_receivers_best_links_agree_with_a_loop(number: int) -> None:
    """Equals go to the lowest id, NaN is never chosen; every receiver may choose another number."""
    _, links, generator = drawn(number)
    values, k = numbers(links, generator), torch.randint(0, 4, (links.nodes,), generator=generator)
    if len(values):
        values[0] = -torch.inf
    chosen = links.top(values, k)
    for receiver in range(links.nodes):
        own = [e for e in range(len(links)) if links.receivers[e] == receiver]
        known = [e for e in own if not math.isnan(values[e])]
        best = sorted(known, key=lambda e: (-float(values[e]), int(links.senders[e])))[: int(k[receiver])]
        assert [e for e in own if chosen[e]] == sorted(best)


@pytest.mark.parametrize("number", FEDERATIONS)
def test_sums_and_softmax_agree_with_matrices(number: int) -> None:
    mask, links, generator = drawn(number)
    values = torch.randn(len(links), generator=generator, dtype=torch.float64)
    times = torch.randint(0, 3, (len(links),), generator=generator)
    matrix = links.dense(values, 0.0)
    assert torch.equal(links.mask, mask)
    assert torch.allclose(links.sum(values), matrix.sum(1))
    assert torch.equal(links.count, mask.sum(1))
    assert torch.equal(links.num_receivers, mask.sum(0))
    shares = links.dense(links.softmax(values, 0.3, times), 0.0)
    weights = links.dense(times, 0) * (matrix / 0.3).exp()
    expected = weights / weights.sum(1, keepdim=True).where(weights.sum(1, keepdim=True) > 0, 1.0)
    assert torch.allclose(shares, expected)
    assert links.softmax(torch.full((len(links),), 1e300, dtype=torch.float64), 1e-3).isfinite().all()


@pytest.mark.parametrize("number", FEDERATIONS)
def test_sets_agree_with_matrices(number: int) -> None:
    mask, links, generator = drawn(number)
    other = torch.rand(mask.shape, generator=generator) < 0.5
    others = Links.from_mask(other)
    assert torch.equal(links.union(others).mask, mask | other)
    assert torch.equal(links.intersection(others).mask, mask & other)
    assert torch.equal(links.difference(others).mask, mask & ~other)
    some, few = torch.rand(2, links.nodes, generator=generator) < 0.6
    assert torch.equal(links.between(some, few).mask, mask & some[:, None] & few[None, :])
    shuffled = torch.randperm(len(links), generator=generator).repeat(2)
    again = Links.of(links.receivers[shuffled], links.senders[shuffled], links.nodes)
    assert torch.equal(again.codes, links.codes)
    values = torch.arange(len(links)).double()
    assert torch.equal(
        others.dense(links.spread(values, others, -1.0), -2.0),
        torch.where(other, torch.where(mask, links.dense(values), -1.0), -2.0),
    )


def test_one_receiver_of_many_links_needs_no_padding() -> None:
    """One node receives from 50,000, all others from one: a matrix of them would have 2.5 billion entries."""
    n = 50_001
    star = Links.of(
        torch.cat([torch.zeros(n - 1, dtype=torch.long), torch.arange(1, n)]),
        torch.cat([torch.arange(1, n), torch.zeros(n - 1, dtype=torch.long)]),
        n,
    )
    values = uniform(star.receivers, star.senders, 3)
    best = star.keep(star.top(values, 2))
    hub = values[: n - 1]
    assert best.heard_by(0).tolist() == sorted((hub.topk(2).indices + 1).tolist())
    assert bool((best.count[1:] == 1).all())


# --- draws ------------------------------------------------------------------------------------------------------------
def splitmix64(receiver: int, other: int, seed: int) -> float:
    """Steele, Lea and Flood (2014), as it is printed, with Python's integers."""
    whole = 2**64 - 1
    x = (seed + ((receiver << 32) + other) * 0x9E3779B97F4A7C15) & whole
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & whole
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & whole
    return ((x ^ (x >> 31)) >> 11) * 2.0**-53


def test_numbers_are_those_of_splitmix64() -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (99_999, 3), (2**31 - 1, 2**32 - 1)]
    receivers, senders = torch.tensor(pairs).T
    for seed in (0, 7, 2**62 + 12345, 2**63 - 1):
        assert uniform(receivers, senders, seed).tolist() == [splitmix64(*pair, seed) for pair in pairs]


@pytest.mark.parametrize("number", FEDERATIONS)
def test_another_link_does_not_change_other_draws(number: int) -> None:
    mask, links, generator = drawn(number)
    more = Links.from_mask(mask | (torch.rand(mask.shape, generator=generator) < 0.3))
    assert torch.equal(more.uniform(5)[more.find(links)], links.uniform(5))
    drawn_ = links.draw(2, 5)
    assert torch.equal(drawn_.count, links.count.clamp(max=2))
    assert drawn_.within(links).all()


def test_every_set_of_two_is_equally_likely() -> None:
    """Each of 6 receivers draws 2 of 5, 500 times: each of the 10 sets 50 times, give or take 6.7."""
    links = Links.complete(6)
    for complete in (links, AllPairs.of_nodes(6)):
        counts: Counter[tuple[int, int, int]] = Counter()
        for seed in range(500):
            chosen = complete.draw(2, seed * 7919)
            assert chosen.count.tolist() == [2] * 6
            places = chosen.senders - (chosen.senders > chosen.receivers).long()  # among the 5 others
            counts.update(zip(range(6), places[::2].tolist(), places[1::2].tolist(), strict=True))
        assert len(counts) == 6 * 10
        assert all(abs(count - 50) < 5 * 6.7 for count in counts.values())
        together: Counter[tuple[int, int]] = Counter()
        for (_, first, second), count in counts.items():
            together[first, second] += count
        assert all(abs(count - 300) < 5 * 16.5 for count in together.values())


# --- all pairs without a list ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", FEDERATIONS)
def test_all_pairs_agree_with_the_full_list(number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    n = int(torch.randint(1, 15, (), generator=generator))
    receives, sends = torch.rand(2, n, generator=generator) < 0.7
    known = AllPairs(receives, sends)
    listed = Links.from_mask((receives[:, None] & sends[None, :]).fill_diagonal_(False))
    others = Links.from_mask(torch.rand(n, n, generator=generator) < 0.5)
    assert len(known) == len(listed)
    assert torch.equal(known.count, listed.count)
    assert torch.equal(known.num_receivers, listed.num_receivers)
    assert torch.equal(known.find(others), listed.find(others))
    assert torch.equal(others.within(known), others.within(listed))
    assert torch.equal(known.between(receives, receives).mask, listed.between(receives, receives).mask)
    k = torch.randint(0, n + 1, (n,), generator=generator)
    chosen = known.draw(k, number)
    assert torch.equal(chosen.count, torch.minimum(k, listed.count))
    assert chosen.within(listed).all()
    assert bool((chosen.codes.diff() > 0).all())
    assert torch.equal(known.codes, listed.codes)


def test_a_complete_graph_of_100_000_draws_without_a_list() -> None:
    complete = AllPairs.of_nodes(100_000)
    chosen = complete.draw(3, seed=1)
    assert len(complete) == 100_000 * 99_999
    assert bool((chosen.count == 3).all())
    assert "_ends" not in vars(complete)


# --- memory -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("number", FEDERATIONS)
def test_memory_agrees_with_a_matrix(number: int) -> None:
    mask, links, generator = drawn(number)
    memory, matrix = LinkMemory.empty(links.nodes), torch.full(mask.shape, torch.nan, dtype=torch.float64)
    for _ in range(3):
        written = Links.from_mask(torch.rand(mask.shape, generator=generator) < 0.3)
        values = torch.randn(len(written), generator=generator, dtype=torch.float64)
        memory.write(written, values)
        matrix[written.receivers, written.senders] = values
        read = memory.read(links)
        assert torch.equal(read.isnan(), matrix[links.receivers, links.senders].isnan())
        assert torch.equal(read.nan_to_num(), matrix[links.receivers, links.senders].nan_to_num())
    memory.add(links, torch.ones(len(links)))
    assert torch.allclose(memory.read(links), matrix[links.receivers, links.senders].nan_to_num() + 1)
