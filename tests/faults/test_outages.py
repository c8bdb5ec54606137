import torch
from game.play import ROUNDS, Case, Game


def outage(up, **settings):
    return Game(Case([4, 6, 1], [1, 1, 1], [1, 1, 1], dropout=up, **{"topology": "complete", **settings}))


def test_a_client_that_is_always_down_keeps_its_first_model():
    game = outage([[True, True, False]] * ROUNDS)
    first = game.models[2].clone()
    game.play()
    assert torch.equal(game.models[2], first)
    assert not torch.equal(game.models[0], first)
    assert game.module.evaluate()["test_acc"].isfinite().all()


def test_a_client_that_returns_alone_only_trains_locally():
    game = outage([[True] * 3, [False] * 3, [True, False, False], [True] * 3])
    game.play()  # checked after every round: a receiver without senders keeps what it trained
    assert game.bank.boundary.metrics["active"] == 3


def test_clients_whose_graph_falls_apart_keep_what_they_train():
    sequence = [{"generator": "complete", "rounds": 2}, {"generator": "empty_graph", "rounds": 2}]
    game = outage(None, topology={"sequence": sequence}).play(rounds=2)
    together = game.models.clone()
    torch.testing.assert_close(together[0], together[1], rtol=1e-6, atol=1e-7)
    game.play(rounds=2)
    assert not torch.equal(game.models[0], game.models[1])
    assert torch.equal(game.models, game.witness.trained)
