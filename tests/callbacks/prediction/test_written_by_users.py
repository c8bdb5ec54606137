"""Predictions of users: what is wrong with them is said before anything is trained; what they remember is saved."""

import pytest
import torch
from turns import in_turn

from dfl_lightning import DFLTrainer
from dfl_lightning.callbacks import FedeRiCo, FedeRiCoStep, Gossip, Mixture, Prediction, Uniform
from dfl_lightning.links import Links
from dfl_lightning.utils.errors import UserError


class Logits(Prediction):
    def predict(self, query, memory):
        return query.scores


class OneNumber(Prediction):
    def predict(self, query, memory):
        return query.scores.sum()


class Drawing(Prediction):
    def predict(self, query, memory):
        return torch.rand_like(query.scores).softmax(-1)


class Doubled(Prediction):
    """Counts each client twice."""

    def members(self, federation):
        links = Links.loops(torch.ones(federation.num_nodes, dtype=torch.bool))
        return links, torch.full((len(links),), 2.0)


class WrongLayer(Prediction):
    features = ("fc",)


WRONG = {
    Logits: r"prediction Logits returns numbers that are not probabilities: .* query\.scores\.softmax",
    OneNumber: r"prediction OneNumber returns \[\]; predict must return probabilities \[1, \d+, 10\], the shape of",
    Drawing: r"an evaluation draws from .* \(prediction .*Drawing",
    Doubled: r"prediction Doubled returns as members weights that do not sum to 1 for each client",
    WrongLayer: r"prediction WrongLayer wants the input of the layer 'fc'",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_mistakes_are_named_before_training(small_run, wrong):
    run = small_run(2, policies=[Gossip(k=2), Uniform(), wrong()])
    with pytest.raises(UserError, match=WRONG[wrong]):
        run.fit()
    assert not run.module.is_set_up or run.module.bank.boundary.round == 0


def test_members_under_a_server_are_refused(small_run):
    run = small_run(2, policies=[Gossip(k="all"), Uniform(), Doubled()], topology="server")
    with pytest.raises(UserError, match=r"clients under a server, whose models are not trained; set supports_servers"):
        run.fit()


def federico(small_run, rounds=4, **options):
    return small_run(rounds, policies=[FedeRiCo(k=2), FedeRiCoStep(), Mixture()], checkpoint_every=1, **options)


def test_an_evaluation_of_a_checkpoint_predicts_as_the_run_did(small_run):
    """The losses that weigh the models are state of the selection, which a checkpoint holds."""
    run = federico(small_run).fit()
    again = federico(small_run)
    again.trainer.test(again.module, datamodule=again.data, ckpt_path=str(run.folder), verbose=False)
    for name in ("test_loss", "test_acc"):
        assert again.trainer.callback_metrics[name].item() == run.trainer.callback_metrics[name].item()
    plain = small_run(4, policies=[FedeRiCo(k=2), FedeRiCoStep()])
    plain.trainer.test(plain.module, datamodule=plain.data, ckpt_path=str(run.folder), verbose=False)
    assert plain.trainer.callback_metrics["test_loss"] != run.trainer.callback_metrics["test_loss"]


@pytest.mark.parametrize("rounds", in_turn([1, 2, 3], every=3))
def test_a_resumed_run_predicts_the_same_bits(small_run, rounds):
    whole = federico(small_run).fit()
    first = federico(small_run, rounds).fit()
    resumed = federico(small_run).fit(first.folder)
    assert torch.equal(resumed.rows, whole.rows)
    for name, values in whole.trainer.run.clients.items():
        assert (resumed.trainer.run.clients[name] == values).all()


def test_there_is_one_prediction_at_most():
    with pytest.raises(UserError, match=r"2 policies of the family prediction \(Mixture, Logits\); keep one"):
        DFLTrainer(callbacks=[FedeRiCo(), Mixture(), Logits()], accelerator="cpu").settle_policies()
