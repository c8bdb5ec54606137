import networkx as nx
import pytest
import torch

from dfl_lightning.callbacks import FromTopology, Gossip, SampleWeighted, Stale, Uniform
from dfl_lightning.utils.errors import UserError


def weighted(links, clients=4, directed=False):
    graph = nx.DiGraph() if directed else nx.Graph()
    graph.add_nodes_from(range(clients))
    graph.add_weighted_edges_from(links)
    return graph


def check(weights, rows):
    torch.testing.assert_close(weights, torch.tensor(rows, dtype=torch.float64))


def test_uniform_weights_by_hand(start):
    graph = weighted([(0, 1, 9), (0, 2, 9), (1, 2, 9)])
    weights = start(Gossip(k="all"), Uniform(), clients=4, topology=graph).go().rounds[0].weights
    third = 1 / 3
    check(weights, [[third, third, third, 0], [third, third, third, 0], [third, third, third, 0], [0, 0, 0, 1]])


def test_sample_weights_by_hand(start, make_data):
    graph = weighted([(0, 1, 9), (1, 2, 9)])
    data = make_data(sizes=[1, 3, 4, 2])
    weights = start(Gossip(k="all"), SampleWeighted(), clients=4, topology=graph, data=data).go().rounds[0].weights
    check(weights, [[1 / 4, 3 / 4, 0, 0], [1 / 8, 3 / 8, 4 / 8, 0], [0, 3 / 7, 4 / 7, 0], [0, 0, 0, 1]])


def test_validation_samples_count_on_request(start, make_data):
    graph = weighted([(0, 1, 9), (1, 2, 9)])
    data = make_data(sizes=[2, 4, 7, 3], val_fraction=0.5)  # the clients train on 1, 2, 4 and 2 of these
    for count, (a, b, c) in {"train": (1, 2, 4), "train_and_val": (2, 4, 7)}.items():
        policies = Gossip(k="all"), SampleWeighted(count=count)
        weights = start(*policies, clients=4, topology=graph, data=data).go().rounds[0].weights
        s, t, u = a + b, a + b + c, b + c
        check(weights, [[a / s, b / s, 0, 0], [a / t, b / t, c / t, 0], [0, b / u, c / u, 0], [0, 0, 0, 1]])


def test_weights_from_the_topology_by_hand(start):
    graph = weighted([(0, 1, 2.0), (1, 2, 0.5), (2, 3, 0.0)])
    weights = start(Gossip(k="all"), FromTopology(), clients=4, topology=graph).go().rounds[0].weights
    check(weights, [[1 / 3, 2 / 3, 0, 0], [2 / 3.5, 1 / 3.5, 0.5 / 3.5, 0], [0, 0.5 / 1.5, 1 / 1.5, 0], [0, 0, 0, 1]])


def test_weight_of_a_directed_link_counts_for_its_receiver(start):
    graph = weighted([(0, 1, 3.0)], clients=2, directed=True)
    weights = start(Gossip(k="all"), FromTopology(), clients=2, topology=graph).go().rounds[0].weights
    check(weights, [[1, 0], [3 / 4, 1 / 4]])


def test_stored_row_has_the_weight_of_its_clients_link(start, trace):
    policies = Gossip(k="all"), FromTopology(), Stale(), trace("1 1 1", "1 0 1")
    graph = weighted([(0, 1, 4.0), (0, 2, 1.0)], clients=3)
    weights = start(*policies, clients=3, topology=graph).go(2).rounds[1].weights  # three stored rows come after three
    check(weights, [[1 / 6, 0, 1 / 6, 0, 4 / 6, 0], [0] * 6, [1 / 2, 0, 1 / 2, 0, 0, 0]])


def test_a_negative_weight_is_refused(start):
    graph = weighted([(0, 1, 2.0), (1, 2, -0.5)], clients=3)
    with pytest.raises(UserError, match=r"no weight may be negative; the link from 2 to 1 has -0.5"):
        start(Gossip(k="all"), FromTopology(), clients=3, topology=graph)


def test_server_step_does_not_change_weights_among_clients(start):
    whole, half = (start(Gossip(k="all"), Uniform(step)).go().rounds[0].weights for step in (1.0, 0.5))
    assert torch.equal(whole, half)


def test_a_topology_without_links_needs_no_weights(start):
    round = start(Gossip(k="all"), FromTopology(), clients=3, topology=weighted([], clients=3)).go().rounds[0]
    assert torch.equal(round.after, round.trained)
