import pytest
import torch

from dfl_lightning.callbacks import Gossip, Stale, Uniform


@pytest.fixture
def go(start, make_data, trace):
    def _go(*lines, eta=1.0, topology="server", k="all", stored="update", **settings):
        policies = Gossip(k=k), Uniform(server_step=eta), trace(*lines), Stale(stored)
        rounds, clients = len(lines), len(lines[0].split())
        data = make_data(clients)
        run = start(*policies, topology=topology, clients=clients, data=data, rounds=rounds, **settings)
        return run.go(rounds).rounds

    return _go


def test_the_last_update_is_added_to_the_servers_present_model(go):
    first, second, third = go("1 1 1", "1 0 1", "0 0 1")
    server = first.before[3]
    updates = first.trained[:3] - server  # of clients 0, 1, 2
    server = server + updates.mean(0)
    torch.testing.assert_close(first.after[3], server)

    newer = second.trained[[0, 2]] - server
    server = server + (newer[0] + updates[1] + newer[1]) / 3
    torch.testing.assert_close(second.after[3], server)

    newest = third.trained[2] - server
    server = server + (newer[0] + updates[1] + newest) / 3
    torch.testing.assert_close(third.after[3], server)


def test_the_servers_step_shortens_stale_updates_too(go):
    first, second = go("1 1 1", "1 0 1", eta=0.5)
    server, stale = second.before[3], first.trained[1] - first.before[3]
    fresh = second.trained[[0, 2]] - server
    torch.testing.assert_close(second.after[3], server + 0.5 * (fresh.sum(0) + stale) / 3)


def test_among_clients_the_update_is_added_to_the_receivers_model(go):
    first, second = go("1 1 1", "1 0 1", topology="complete")
    update = first.trained[1] - first.before[1]
    for i, other in ((0, 2), (2, 0)):
        expected = (second.trained[i] + second.trained[other] + second.before[i] + update) / 3
        torch.testing.assert_close(second.after[i], expected)
    assert torch.equal(second.after[1], second.before[1])


def test_stored_model_is_mixed_unchanged(go):
    first, second, third = go("1 1 1", "1 0 1", "0 0 1", stored="model")
    torch.testing.assert_close(second.after[3], (second.trained[0] + first.trained[1] + second.trained[2]) / 3)
    torch.testing.assert_close(third.after[3], (second.trained[0] + first.trained[1] + third.trained[2]) / 3)
