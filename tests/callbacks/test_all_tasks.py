"""Methods on every task; scores and choices as in plain loops, whatever a loss is and whichever direction is better."""

import functools

import pytest
import sklearn.metrics
import torch
import torch.nn.functional as F
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning import objectives
from dfl_lightning.data import Digits, Series, Text, Vectors
from dfl_lightning.links.draws import uniform
from dfl_lightning.models import MLP, CharTransformer
from dfl_lightning.utils.random_streams import stream_seed

CLIENTS = 6
ROWS = {"num_clients": CLIENTS, "samples_per_client": 24, "val_fraction": 0.3}
DATA = {
    "Classification": lambda: Digits(**ROWS),
    "Regression": lambda: Vectors(**ROWS),
    "MultiLabel": lambda: Vectors(table="synthetic_labels", **ROWS),
    "NextToken": lambda: Text(num_clients=CLIENTS, length=6, characters=24, most=170, val_fraction=0.3),
    "Forecast": lambda: Series(
        num_clients=CLIENTS, window=6, horizon=2, stride=5, test_fraction=0.25, val_fraction=0.3
    ),
}
NETWORKS = {
    "NextToken": lambda: CharTransformer(width=4, depth=1, heads=1, padding_idx=0),
    "Forecast": lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 2)),
}


@functools.cache
def data_of(task):
    """The data of a task, set up once for all runs: nothing writes into them."""
    found = DATA[task]()
    found.seed = 0
    found.setup()
    return found


@pytest.fixture
def on(start):
    """A run on the data of a task; clients have unequally many samples."""

    def _on(task, *policies, lr=0.2, **options):
        network = NETWORKS.get(task, lambda: MLP(hidden=[4]))()
        run = start(*policies, clients=CLIENTS, data=data_of(task), network=network, lr=lr, **options)
        assert type(run.module.task).__name__ == task
        return run

    return _on


def answers(run, row, owner, split):
    """What a row makes of a client's samples, and their targets."""
    x, y = run.module.data.batch(getattr(run.module.data, split)[owner])
    with torch.no_grad():
        outputs = torch.func.functional_call(run.module.network, run.module.layout.state_dict(row), x)
    return outputs.double(), y.double() if y.is_floating_point() else y


LOSSES = {
    "Classification": F.cross_entropy,
    "Regression": F.mse_loss,
    "MultiLabel": F.binary_cross_entropy_with_logits,
    "NextToken": lambda outputs, y: F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=-1),
    "Forecast": lambda outputs, y: F.mse_loss(outputs, y[:, 0]),
}


def loss_of(run, row, owner, split):
    """Mean loss of a row on a client's samples, or tokens."""
    return float(LOSSES[type(run.module.task).__name__](*answers(run, row, owner, split)))


def score_of(run, row, owner, split):
    """The score of a row on a client's samples, by the formula, in the original unit."""
    outputs, y = answers(run, row, owner, split)
    match type(run.module.task).__name__:
        case "Classification":
            return float((outputs.argmax(1) == y).double().mean())
        case "Regression":
            return float(((outputs - y) * run.module.data.target_scale).square().mean().sqrt())
        case "MultiLabel":
            return sklearn.metrics.f1_score(y.int(), (outputs > 0).int(), average="micro", zero_division=0)
        case "NextToken":
            return float(LOSSES["NextToken"](outputs, y).exp())
        case "Forecast":
            return float(((outputs - y[:, 0]) * y[:, 1]).square().mean().sqrt())


METHODS = {
    "AFIND+": ([cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()], {}),
    "PANM": ([cb.PANM(metric="grad", k=2, l=2, stage_one=1, tau=1), cb.Uniform()], {}),
    "PANM, losses": ([cb.PANM(metric="loss", k=2, l=2, stage_one=1, tau=1), cb.Uniform()], {}),
    "DPFL": ([cb.DPFL(budget=3, initial_epochs=1), cb.Uniform()], {}),
    "PENS": ([cb.PENS(k=2, sampled=4, top=2, stage_one=1), cb.Uniform()], {}),
    "FL-FDMS": (
        [cb.ExactCount(rate=1 / 3, full_first_round=True), cb.Gossip(k="all"), cb.FDMS(), cb.Uniform()],
        {"topology": "server"},
    ),
    "Ditto": ([cb.Gossip(k=2), cb.Uniform()], {"objective": objectives.Ditto(lam=0.5)}),
}


@pytest.mark.parametrize("task", DATA)
@pytest.mark.parametrize("method", METHODS)
def test_methods_lower_the_loss_and_report_the_score_in_the_original_unit(method, task, on):
    policies, options = METHODS[method]
    run = on(task, *policies, **options).go(4)
    first, *_, last = (round.metrics["train_loss"] for round in run.rounds)
    assert last < first
    if method == "FL-FDMS":
        evaluated = run.models[[CLIENTS] * CLIENTS]
    elif method in ("DPFL", "Ditto"):
        evaluated = run.bank.boundary.rows["best" if method == "DPFL" else "personal"]
    else:
        evaluated = run.models
    expected = [score_of(run, row, i, "test") for i, row in enumerate(evaluated)]
    found = run.module.evaluate()[f"test_{run.module.task.score}"]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)


LOWER_IS_BETTER = pytest.mark.parametrize("task", ["Forecast", "NextToken"])


@LOWER_IS_BETTER
def test_pens_learns_from_those_with_the_lowest_losses(task, on):
    run = on(task, cb.PENS(k=2, sampled=4, top=2, stage_one=9), cb.Uniform()).go(3)
    for round in run.rounds:
        for i in range(CLIENTS):
            drawn = torch.nonzero(round.candidates[i]).squeeze(1).tolist()
            ranked = sorted(drawn, key=lambda j: loss_of(run, round.trained[j], i, "train"))
            assert set(torch.nonzero(round.selected[i]).squeeze(1).tolist()) == set(ranked[:2])


def greedy(run, round, k, candidates, limit, shares):
    """DPFL's algorithm 2, one candidate after the other, with sets of models and their losses."""

    def drawn(j, what):
        return float(uniform(torch.tensor(k), torch.tensor(j), stream_seed(0, f"DPFL {what}", round.index)))

    def error(members):
        row = sum(shares[i] * round.trained[i].double() for i in members) / sum(shares[i] for i in members)
        return loss_of(run, row.float(), k, "val")

    def gain(before, after):
        return before - after if before - after > 1e-6 * max(1, before) else 0.0

    order = sorted(candidates, key=lambda j: drawn(j, "order"))
    x, y = {k}, {k, *order}
    for j in order:
        if len(x) - 1 >= limit:
            break
        a, b = gain(error(x), error(x | {j})), gain(error(y), error(y - {j}))
        if drawn(j, "coins") < (a / (a + b) if a + b > 0 else 1):
            x |= {j}
        else:
            y -= {j}
    return x - {k}


@LOWER_IS_BETTER
def test_dpfl_chooses_by_losses_and_keeps_the_model_with_the_lowest_score(task, on):
    """The learning rate is high, so that some models are worse after a round than before."""
    run = on(task, cb.DPFL(budget=3, initial_epochs=1), cb.Uniform(), lr=0.7).go(5)
    for i in range(CLIENTS):
        chosen = greedy(run, run.rounds[0], i, set(range(CLIENTS)) - {i}, 3, [1.0] * CLIENTS)
        assert set(torch.nonzero(run.rounds[0].selected[i]).squeeze(1).tolist()) == chosen
    kept = set()
    for i in range(CLIENTS):
        scores = [score_of(run, round.trained[i], i, "val") for round in run.rounds]
        lowest = scores.index(min(scores))
        kept.add(lowest)
        assert torch.equal(run.bank.boundary.rows["best"][i], run.rounds[lowest].trained[i])
    assert len(kept) > 1
