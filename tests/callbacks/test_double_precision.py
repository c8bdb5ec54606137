"""In `64-true` no step of a round is computed in float32: integers divided or scaled by a float become just that."""

import functools
from pathlib import Path
from traceback import extract_stack

import pytest
import torch
from tester import scenes
from tester.shipped import where_they_work
from threads import Watching
from turns import in_turn

import dfl_lightning
from dfl_lightning import callbacks as cb
from dfl_lightning.objectives import FedProx, GradientTracking, QGDSGDm

PACKAGE = Path(dfl_lightning.__file__).parent
ARITHMETIC = {
    *("add", "sub", "rsub", "mul", "div", "pow", "sqrt", "log", "exp", "lerp", "addcmul", "addcdiv"),
    *("sum", "mean", "cumsum", "linalg_vector_norm", "softmax", "mm", "bmm", "addmm"),
    *("where", "maximum", "minimum", "clamp", "full", "fill", "scalar_tensor", "linspace"),
}
"""Names of operations whose float32 result in a `64-true` run has lost digits, or may have."""


class Watch(Watching):
    """Notes the lines of the package whose arithmetic has a float32 result."""

    def __init__(self):
        super().__init__()
        self.found = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__.strip("_")
        if isinstance(result, torch.Tensor) and result.dtype == torch.float32 and name in ARITHMETIC:
            frames = [frame for frame in extract_stack() if Path(frame.filename).is_relative_to(PACKAGE)]
            self.found.add(f"{name} in {frames[-1].line}" if frames else name)
        return result


def test_a_float32_result_is_noticed():
    with Watch() as watch:
        assert (torch.tensor([3]) / 2.0).dtype == torch.float32
        assert (torch.tensor([3.0], dtype=torch.float64) / torch.tensor([2])).dtype == torch.float64
        assert torch.where(torch.tensor([True]), 0.1, 1.0).dtype == torch.float32
    assert {"div", "where"} <= watch.found


POLICIES = {
    "AFIND+": [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()],
    "AFIND as printed": [
        cb.AFIND(rule="literal", proxy="grad_at_receiver", center=False),
        cb.AdaptiveThreshold(rule="literal"),
        cb.Boltzmann(contribution="printed", gamma=0.9, include_self=False),
    ],
    "PANMGrad": [cb.PANM(k=2, l=2, stage_one=1, tau=1), cb.Uniform()],
    "PANMLoss": [cb.PANM(metric="loss", k=2, l=2, stage_one=1, tau=1), cb.SampleWeighted()],
    "DPFL": [cb.DPFL(budget=3, initial_epochs=1), cb.SampleWeighted()],
    "PENS": [cb.PENS(k=2, sampled=3, top=2, stage_one=1), cb.Uniform()],
    "FedeRiCo": [cb.FedeRiCo(k=2), cb.ScoreWeighted()],
    "FedeRiCo whole": [cb.FedeRiCo(k=2), cb.FedeRiCoStep(), cb.Mixture()],
    "D-SGD": [cb.Gossip(k="all"), cb.Metropolis()],
    "FDMS and Markov": [cb.Gossip(k="all"), cb.Uniform(), cb.FDMS(), cb.Markov(rate=0.3, outage=2)],
    "BALANCE": [cb.Gossip(k="all"), cb.BALANCE(gamma=1.2)],
    "PACFL": [cb.PACFL(60.0), cb.SampleWeighted()],
    "Stale": [cb.Gossip(k=3), cb.SampleWeighted(), cb.Stale(), cb.Bernoulli(rate=0.3)],
}


@pytest.mark.parametrize("name", in_turn(POLICIES))
def test_policies_compute_in_float64(name, start, make_data):
    run = start(
        *POLICIES[name],
        data=make_data(6, sizes=[3, 6, 9, 3, 6, 9], val_fraction=1 / 3),
        trainer={"precision": "64-true"},
    )
    with Watch() as watch:
        run.go(4)
    assert not watch.found


@pytest.mark.slow
@pytest.mark.parametrize(("listed", "place"), where_they_work())
def test_every_shipped_policy_computes_in_float64(listed, place):
    run = scenes.start(listed, place)
    with Watch() as watch:
        run.go(scenes.ROUNDS)
    assert not watch.found


@pytest.mark.parametrize("engine", ["loop", "stacked"])
@pytest.mark.parametrize("objective", [GradientTracking, FedProx, QGDSGDm])
def test_objectives_and_engines_compute_in_float64(objective, engine, start, make_data):
    run = start(
        cb.Gossip(k="all"),
        cb.Metropolis(),
        data=make_data(6, sizes=[3, 6, 9, 3, 6, 9]),
        objective=objective(),
        optimizer=functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.01),
        trainer={"precision": "64-true", "engine": engine},
    )
    with Watch() as watch:
        run.go(2)
    assert not watch.found
