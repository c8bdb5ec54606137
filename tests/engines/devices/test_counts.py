"""Launches and waits of a GPU do not grow with the number of clients."""

import functools

import pytest
import torch
from pairs import compare_pairs
from pretended import DEVICE, Count
from torch import nn
from torchmetrics import Metric
from turns import in_turn

from dfl_lightning.bank.references import References
from dfl_lightning.data.augment import CropFlip
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.layers.activation import Activation
from dfl_lightning.engines.stacked.layers.passes import Pass
from dfl_lightning.engines.stacked.layers.rules import MODULES


@pytest.fixture
def engine():
    """Only the stacked one is made for GPUs."""
    return StackedEngine


@pytest.fixture
def counted(federation):
    """Count (launches, waits) of a verb in a federation of the given number of clients."""

    def run(clients, verb, engine=StackedEngine, **options):
        options = {"sizes": (6,) * clients, "batch_size": 6, **options}
        there = federation(engine=engine, device=DEVICE, **options)
        with Count() as count:
            verb(there)
        return count.launches.total(), count.waits.total()

    return run


def step(f):
    f.engine.train(References.rows("models", torch.arange(f.m)), f.training(epochs=1))


def all_pairs(f):
    senders = torch.arange(f.m).repeat(f.m)
    f.engine.evaluate(References.rows("models", senders, torch.arange(f.m).repeat_interleave(f.m)), "val")


def comparison(f, share=1.0, centre=False):
    pairs = torch.zeros(f.m, f.m, dtype=torch.bool)
    pairs[:, : max(1, int(share * f.m))] = True
    compare_pairs(f.bank, "models", pairs, centre=centre)


def mix(f):
    step(f)
    f.bank.mix([(torch.full((f.m, f.m), 1 / f.m), "trained")], "models", torch.arange(f.m))


def ring(f, centre=False):
    pairs = torch.zeros(f.m, f.m, dtype=torch.bool)
    pairs[torch.arange(f.m), (torch.arange(f.m) + 1) % f.m] = True
    compare_pairs(f.bank, "models", pairs, centre=centre)


VERBS = {
    "step": step,
    "evaluation of all pairs": all_pairs,
    "comparison": comparison,
    "centred comparison": functools.partial(comparison, centre=True),
    "comparison of few pairs": ring,
    "centred comparison of few pairs": functools.partial(ring, centre=True),
    "mix": mix,
}


@pytest.mark.parametrize("verb", VERBS)
def test_counts_do_not_grow_with_the_number_of_clients(counted, verb):
    few, many = (counted(clients, VERBS[verb]) for clients in ((20, 40) if "all pairs" in verb else (120, 240)))
    assert few == many


def test_unequal_clients_of_batch_norms_go_through_the_network_together(counted):
    sizes = (7, 8, 9, 10, 11, 12)  # a last batch of 1, 2, ... 6 samples
    few, many = (counted(6 * n, step, kind="batchnorm", sizes=sizes * n) for n in (1, 5))
    assert few == many
    alike, _ = counted(6, step, kind="batchnorm", sizes=(12,) * 6)
    assert few[0] <= 1.5 * alike  # six passes for the last batches would be three and a half times as many


def test_augmenting_is_one_operation_for_all_clients(counted, make_data):
    few, many = (counted(clients, step, kind="batchnorm", data=augmented(make_data, clients)) for clients in (10, 30))
    assert few == many


def augmented(make_data, clients):
    data = make_data((6,) * clients, shape=(1, 6, 6))
    data.augment = CropFlip(padding=1)
    return data


# --- what has launches of its own for each client still waits once ----------------------------------------------------
class Margin(Metric):
    """A metric of one's own that asks for no number: the mean score of the right class."""

    def __init__(self):
        super().__init__()
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, scores, labels):
        self.total += scores.gather(1, labels.unsqueeze(1)).sum().float()
        self.count += len(labels)

    def compute(self):
        return self.total / self.count


def own_evaluation(f):
    f.engine.evaluate(References.rows("models", torch.arange(f.m)), "val")


def lengths(f):
    f.bank.squared_lengths("models", torch.arange(f.m))


def diverging(f):
    """Every second client is lost."""
    f.bank.boundary.rows["models"][::2] *= torch.nan
    step(f)


WAITING = {
    "training with a loss of one's own": (step, {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}),
    "evaluation with it": (own_evaluation, {"loss": nn.CrossEntropyLoss(label_smoothing=0.1)}),
    "weights of classes": (own_evaluation, {"loss": nn.CrossEntropyLoss(weight=torch.ones(3))}),
    "metrics": (own_evaluation, {"metrics": {"margin": Margin()}}),
    "lengths of rows": (lengths, {}),
    "clients that diverge": (diverging, {}),
    "steps of the loop engine": (step, {"engine": LoopEngine}),
    "evaluation by the loop engine": (own_evaluation, {"engine": LoopEngine}),
    "metrics by the loop engine": (own_evaluation, {"engine": LoopEngine, "metrics": {"margin": Margin()}}),
    "all pairs by the loop engine": (all_pairs, {"engine": LoopEngine}),
}


@pytest.mark.parametrize("name", in_turn(WAITING))
def test_waits_do_not_grow_with_the_number_of_clients(counted, name):
    verb, options = WAITING[name]
    (_, few), (_, many) = (counted(clients, verb, **options) for clients in (12, 24))
    assert few == many


def test_embedding_lookups_do_not_wait_for_the_device(federation, count):
    """A check that no word is another client's is part of the step."""
    table = nn.Embedding(5, 3)
    rule = MODULES[nn.Embedding]
    weights = torch.randn(2, 5, 3).to(DEVICE)
    words = torch.tensor([[[1, 4]], [[0, 2]]]).to(DEVICE)
    before = count.waits.total()
    found = rule(table, "words", Pass({"words.weight": weights}, False), Activation(words, 2)).leading()
    assert count.waits.total() == before
    expected = torch.stack([weights.cpu()[0][[1, 4]], weights.cpu()[1][[0, 2]]]).unsqueeze(1)
    assert torch.equal(found.cpu(), expected)
    for wrong in (5, -1):
        words[0, 0, 0] = wrong
        with pytest.raises(RuntimeError, match="index out of range"):
            rule(table, "words", Pass({"words.weight": weights}, False), Activation(words, 2))
