import networkx as nx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from matrices import everywhere, own_rows, told_by_matrices

from dfl_lightning import functional
from dfl_lightning.functional import exchange_weights
from dfl_lightning.links import Links


def count_votes(selected, substitute, active, include_self, rows):
    links, no_client = Links.from_mask(selected), torch.zeros_like(active)
    voters, votes = functional.count_votes(links, substitute[selected], active, include_self, rows, no_client)
    assert (voters.codes.diff() > 0).all()
    assert (voters.nodes, voters.rows) == (len(selected), rows)
    assert (votes > 0).all()
    return voters.dense(votes, 0)


def uniform_weights(votes):
    return told_by_matrices(functional.uniform_weights)(votes, everywhere(votes))


def metropolis_weights(votes, owners=None):
    return told_by_matrices(functional.metropolis_weights)(votes, (votes > 0) | own_rows(votes), owners)


def server_step(weights, servers, step_size):
    mask = torch.zeros(len(weights), dtype=torch.bool)
    mask[servers] = True
    return told_by_matrices(functional.server_step)(weights, everywhere(weights), mask, step_size)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def standing_in_for_themselves(n):
    return torch.arange(n).repeat(n, 1)


def all_links(n):
    return ~torch.eye(n, dtype=torch.bool)


def naive_votes(selected, substitute, active, include_self, rows):
    """One vote at a time."""
    n = len(selected)
    votes = [[0.0] * rows for _ in range(n)]
    for i in range(n):
        if include_self[i]:
            votes[i][i] += 1
        present = [j for j in range(n) if selected[i][j] and active[j]]
        for j in range(n):
            if not selected[i][j]:
                continue
            if substitute[i][j] == -1:
                for other in present:
                    votes[i][other] += 1 / len(present)
            else:
                votes[i][substitute[i][j]] += 1
    return votes


@given(st.integers(0, 2**32), st.integers(1, 8), st.integers(0, 3))
def test_votes_agree_with_a_loop(seed, n, more):
    draws = generator(seed)
    selected = torch.rand(n, n, generator=draws) < 0.6
    substitute = torch.randint(-1, n + more, (n, n), generator=draws)
    active = torch.rand(n, generator=draws) < 0.5
    include_self = torch.rand(n, generator=draws) < 0.5
    expected = naive_votes(selected.tolist(), substitute.tolist(), active.tolist(), include_self.tolist(), n + more)
    actual = count_votes(selected, substitute, active, include_self, n + more)
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-13)


def test_the_list_contains_the_receivers_own_rows():
    selected, active = Links.of(torch.tensor([0, 2]), torch.tensor([1, 2]), nodes=4), torch.ones(4, dtype=torch.bool)
    include_self, receivers = torch.tensor([True, False, False, False]), torch.tensor([True, True, True, False])
    voters, votes = functional.count_votes(selected, selected.senders, active, include_self, 6, receivers)
    assert list(zip(voters.receivers.tolist(), voters.senders.tolist(), votes.tolist(), strict=True)) == [
        (0, 0, 1),
        (0, 1, 1),
        (1, 1, 0),
        (2, 2, 1),
    ]


@pytest.mark.parametrize("row", [-2, 3, 100])
def test_a_substitute_that_does_not_exist_is_refused(row):
    up = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="one of the 3 rows"):
        count_votes(all_links(3), torch.full((3, 3), row), up, up, 3)


def test_fewer_rows_than_clients_are_refused():
    up = torch.ones(3, dtype=torch.bool)
    with pytest.raises(ValueError, match="2 rows cannot hold a row for each of 3 clients"):
        count_votes(all_links(3), standing_in_for_themselves(3), up, up, 2)


def test_uniform_weights_are_the_shares_of_the_votes():
    weights = uniform_weights(torch.tensor([[1, 2, 1], [0, 5, 0], [0, 0, 0]]))
    assert weights.tolist() == [[0.25, 0.5, 0.25], [0, 1, 0], [0, 0, 0]]
    assert weights.dtype == torch.float64


def test_averaging_only_the_own_model_returns_it_exactly():
    models = torch.randn(5, 11, generator=generator(), dtype=torch.float64)
    up = torch.ones(5, dtype=torch.bool)
    votes = count_votes(torch.zeros(5, 5, dtype=torch.bool), standing_in_for_themselves(5), up, up, 5)
    assert torch.equal(uniform_weights(votes) @ models, models)


def test_a_server_moves_partly_towards_the_average():
    models = torch.randn(4, 6, generator=generator(), dtype=torch.float64)
    weights = torch.eye(4, dtype=torch.float64)
    weights[3] = torch.tensor([0.5, 0.25, 0.25, 0])
    moved = server_step(weights, slice(3, 4), 0.1) @ models
    expected = models.clone()
    expected[3] += 0.1 * (weights[3] @ models - models[3])
    torch.testing.assert_close(moved, expected)


def test_a_server_without_senders_keeps_a_zero_row():
    assert not server_step(torch.zeros(3, 3), slice(0, 3), 0.1).any()


def some_graph(seed, n):
    return nx.gnp_random_graph(n, 0.5, seed=seed)


def votes_of(graph):
    """All neighbours and oneself."""
    return torch.tensor(nx.to_numpy_array(graph)) + torch.eye(len(graph), dtype=torch.float64)


@given(st.integers(0, 2**20), st.integers(1, 12))
def test_metropolis_weights_are_doubly_stochastic_and_match_a_loop(seed, n):
    graph = some_graph(seed, n)
    weights = metropolis_weights(votes_of(graph))
    expected = torch.zeros(n, n, dtype=torch.float64)
    for i, j in graph.edges:
        expected[i, j] = expected[j, i] = 1 / (1 + max(graph.degree[i], graph.degree[j]))
    for i in graph:
        expected[i, i] = 1 - sum(expected[i, j] for j in graph[i])
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-14)
    ones = torch.ones(n, dtype=torch.float64)
    torch.testing.assert_close(weights.sum(0), ones, rtol=0, atol=1e-13)
    torch.testing.assert_close(weights.sum(1), ones, rtol=0, atol=1e-13)
    assert torch.equal(weights, weights.T)
    assert (weights >= 0).all()


def test_metropolis_weights_do_not_depend_on_a_vote_for_oneself():
    votes = votes_of(nx.path_graph(4))
    assert torch.equal(metropolis_weights(votes), metropolis_weights(votes - torch.eye(4)))


def test_isolated_receivers_weigh_themselves_and_absent_ones_nothing():
    votes = torch.tensor([[1.0, 0, 0], [0, 0, 0], [1, 0, 1]])
    assert metropolis_weights(votes).tolist() == [[1, 0, 0], [0, 0, 0], [0.5, 0, 0.5]]


def test_a_substitute_counts_the_neighbours_of_its_owner():
    votes = torch.tensor([[1.0, 0, 0, 0, 1, 0], [1, 1, 1, 0, 0, 0], [0, 1, 1, 0, 0, 0]])
    weights = metropolis_weights(votes, owners=torch.tensor([0, 1, 2, 0, 1, 2]))
    third = pytest.approx(1 / 3)
    assert weights[0].tolist() == [pytest.approx(2 / 3), 0, 0, 0, third, 0]


def some_weights(seed, n, rows):
    """Draw row-stochastic weights [n, rows], most of them 0, with larger ones on the diagonal."""
    draws = generator(seed)
    kept = (torch.rand(n, rows, generator=draws) < 0.4) | own_rows(torch.empty(n, rows))
    weights = torch.rand(n, rows, generator=draws, dtype=torch.float64) * kept
    return weights / weights.sum(1, keepdim=True)


@given(st.integers(0, 2**32), st.integers(1, 9), st.integers(0, 3))
def test_pairs_exchange_their_smaller_weight_and_keep_sums(seed, n, more):
    weights = some_weights(seed, n, n + more)
    smaller = torch.minimum(weights[:, :n], weights[:, :n].T)
    smaller.fill_diagonal_(0)
    expected = torch.zeros(n, n + more, dtype=torch.float64)
    expected[:, :n] = smaller - torch.diag(smaller.sum(1))
    exchanged = told_by_matrices(exchange_weights)(weights, weights > 0)
    torch.testing.assert_close(exchanged, expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(exchanged.sum(0), torch.zeros(n + more, dtype=torch.float64), rtol=0, atol=1e-14)


NO_OWN_ROW = Links.of(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 0]), nodes=2)


@pytest.mark.parametrize(
    "function",
    [
        functional.metropolis_weights,
        functional.exchange_weights,
        lambda weights, voters: functional.server_step(weights, voters, torch.tensor([False, True]), 0.5),
    ],
)
def test_lists_without_own_rows_are_refused(function):
    with pytest.raises(ValueError, match="lacks its own row"):
        function(torch.ones(3), NO_OWN_ROW)
    function(torch.tensor([1.0, 1.0, 0.0]), NO_OWN_ROW)  # receiver 1 has neither votes nor weights
