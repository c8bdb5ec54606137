"""Methods on every task: what they report is the score of the models, by its formula, in the original unit."""

import functools

import pytest
import sklearn.metrics
import torch
import torch.nn.functional as F
from torch import nn
from turns import in_turn

from dfl_lightning import callbacks as cb
from dfl_lightning import objectives
from dfl_lightning.data import Digits, Series, Text, Vectors
from dfl_lightning.models import MLP, CharTransformer

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
    """Set up the data of a task once for all runs, which do not write into them."""
    found = DATA[task]()
    found.seed = 0
    found.setup()
    return found


@pytest.fixture
def on(start):
    """Make a run on the data of a task; clients have unequally many samples."""

    def _on(task, *policies, lr=0.2, **options):
        network = NETWORKS.get(task, lambda: MLP(hidden=[4]))()
        run = start(*policies, clients=CLIENTS, data=data_of(task), network=network, lr=lr, batch_size=8, **options)
        assert type(run.module.federation.task).__name__ == task
        return run

    return _on


def answers(run, row, owner, split):
    """Return a row's outputs for a client's samples, and their targets."""
    x, y = run.data.batch(getattr(run.data, split)[owner])
    with torch.no_grad():
        outputs = torch.func.functional_call(run.module.network, run.module.federation.layout.state_dict(row), x)
    return outputs.double(), y.double() if y.is_floating_point() else y


LOSSES = {
    "Classification": F.cross_entropy,
    "Regression": F.mse_loss,
    "MultiLabel": F.binary_cross_entropy_with_logits,
    "NextToken": lambda outputs, y: F.cross_entropy(outputs.flatten(0, 1), y.flatten(), ignore_index=-1),
    "Forecast": lambda outputs, y: F.mse_loss(outputs, y[:, 0]),
}


def score_of(run, row, owner, split):
    """Compute the score of a row on a client's samples, by the formula, in the original unit."""
    outputs, y = answers(run, row, owner, split)
    match type(run.module.federation.task).__name__:
        case "Classification":
            return float((outputs.argmax(1) == y).double().mean())
        case "Regression":
            return float(((outputs - y) * run.data.target_scale).square().mean().sqrt())
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


@pytest.mark.parametrize(("method", "task"), in_turn(METHODS, DATA))
def test_methods_lower_the_loss_and_report_original_units(method, task, on):
    policies, options = METHODS[method]
    run = on(task, *policies, **options).go(3)
    first, *_, last = (round.metrics["train_loss"] for round in run.rounds)
    assert last < first
    if method == "FL-FDMS":
        evaluated = run.models[[CLIENTS] * CLIENTS]
    elif method in ("DPFL", "Ditto"):
        evaluated = run.rows("best" if method == "DPFL" else "personal")
    else:
        evaluated = run.models
    expected = [score_of(run, row, i, "test") for i, row in enumerate(evaluated)]
    found = run.module.evaluate()[f"test_{run.module.federation.task.score}"]
    assert found.tolist() == pytest.approx(expected, rel=1e-4)
