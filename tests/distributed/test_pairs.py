"""Random networks, optimizers, policies, graphs and processes: what the loop engine computes, the others compute too.

Each pair of runs is drawn from its number. Where two engines differ by more than rounding, a control tells chaos from
a fault: the loop again, from first models that differ by 1e-15. What the control does as well is no fault.

    pytest -m slow tests/distributed/test_pairs.py -s      # 1,000 pairs, with the figures
"""

import contextlib
import io
import random
import tempfile
from collections import Counter
from functools import partial
from unittest import mock

import lightning.pytorch as L
import networkx as nx
import pytest
import torch
from tapes import TapeRecorder
from torch import nn

from dfl_lightning import DFLModule, DFLTrainer, UserError, objectives
from dfl_lightning import callbacks as cb
from dfl_lightning.data import Digits, partitions
from dfl_lightning.protocol import RoundProtocol

ROUNDING = 1e-9
"""The largest difference of two models, relative to the largest entry, that is taken for rounding without a control."""
CHAOS = 1e3
"""How much more than the control a pair may differ: from a difference on, a few rounds multiply it at random."""
NUDGE = 1e-15

NORMS = {
    "batch": nn.BatchNorm2d,
    "group": partial(nn.GroupNorm, 2),
    "instance": partial(nn.InstanceNorm2d, affine=True),
    "none": nn.Identity,
}
ACTIVATIONS = (nn.ReLU, nn.GELU, nn.Tanh, nn.SiLU)
OPTIMIZERS = {  # recorded steps read their learning rates in float32: these have no digits to lose
    "SGD": partial(torch.optim.SGD, lr=2**-4),
    "momentum": partial(torch.optim.SGD, lr=2**-5, momentum=0.9, weight_decay=1e-3),
    "Nesterov": partial(torch.optim.SGD, lr=2**-6, momentum=0.8, nesterov=True),
    "Adam": partial(torch.optim.Adam, lr=2**-8),
    "AdamW": partial(torch.optim.AdamW, lr=2**-8, amsgrad=True),
    "RMSprop": partial(torch.optim.RMSprop, lr=2**-9, momentum=0.5),
    "Adagrad": partial(torch.optim.Adagrad, lr=2**-6),
}
RECORDED = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW)
SELECTIONS = {
    "gossip": lambda: [cb.Gossip(k=2), cb.Uniform()],
    "all neighbours": lambda: [cb.Gossip(k="all"), cb.SampleWeighted()],
    "Metropolis": lambda: [cb.Gossip(k="all"), cb.Metropolis()],
    "AFIND+": lambda: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()],
    "PANM": lambda: [cb.PANM(k=2, l=3, stage_one=1, tau=2), cb.Uniform()],
    "DPFL": lambda: [cb.DPFL(budget=2, initial_epochs=1), cb.SampleWeighted()],
    "PENS": lambda: [cb.PENS(k=2, sampled=3, top=2, stage_one=1), cb.Uniform()],
    "FedFomo": lambda: [cb.FedFomo(k=2), cb.FirstOrder()],
    "FedeRiCo": lambda: [cb.FedeRiCo(k=2), cb.Uniform()],
    "pFedGraph": lambda: [cb.Gossip(k="all"), cb.SimilarityWeighted()],
    "push-sum": lambda: [cb.Gossip(k=2), cb.PushSum()],
    "part of an update": lambda: [cb.Gossip(k=2), cb.Uniform(), cb.TopK(share=0.5)],
}
OBJECTIVES = {
    "plain": objectives.Plain,
    "FedProx": objectives.FedProx,
    "Ditto": objectives.Ditto,
    "APFL": objectives.APFL,
    "Per-FedAvg": objectives.PerFedAvg,
}


class Drawn(nn.Module):
    """A random network: norms, activations, dropout, a residual and widths are drawn."""

    def __init__(self, draw):
        super().__init__()
        width, norm = draw.choice((2, 4, 6)), NORMS[draw.choice(sorted(NORMS))]
        act, image = draw.choice(ACTIVATIONS), draw.random() < 0.6
        if image:
            layers = [nn.Conv2d(1, width, 3, stride=2, padding=1, bias=draw.random() < 0.5), norm(width), act()]
            layers += [nn.Conv2d(width, width, 3, padding=1, groups=draw.choice((1, 2))), act()]
            layers += [draw.choice((nn.AvgPool2d, nn.MaxPool2d))(2)] * draw.choice((0, 1))
            self.first, size = nn.Sequential(*layers, nn.Flatten()), None
        else:
            self.first, size = nn.Sequential(nn.Flatten(), nn.Linear(64, 10), act()), 10
        size = self.first(torch.zeros(2, 1, 8, 8)).shape[1] if size is None else size
        self.second = nn.Sequential(nn.Linear(size, 12), draw.choice((nn.LayerNorm(12), nn.Identity())), act())
        self.drop = nn.Dropout(draw.choice((0.0, 0.0, 0.3)))
        self.third, self.last = nn.Linear(12, 12), nn.Linear(12, 10)

    def forward(self, x):
        x = self.second(self.first(x))
        return self.last(x + self.drop(torch.tanh(self.third(x))))


def set_up(number, engine, root, processes=1):
    """Trainer, module and data of a pair's number, in float64; everything but the engine is drawn from it."""
    draw = random.Random(number)
    L.seed_everything(number % 7, verbose=False)
    torch.manual_seed(number)
    m = draw.randint(3, 7)
    network = Drawn(draw)
    policies = SELECTIONS[draw.choice(sorted(SELECTIONS))]()
    objective = OBJECTIVES[draw.choice(sorted(OBJECTIVES))]()
    if draw.random() < 0.4:
        policies.append(draw.choice((cb.Bernoulli(0.3), cb.ExactCount(0.4), cb.Markov(0.3, 2.0))))
        if draw.random() < 0.5:
            policies.append(draw.choice((cb.FDMS(similarity=("cosine", "distance")[number % 2]), cb.Stale())))
    graph = draw.choice((nx.complete_graph(m), nx.cycle_graph(m), nx.gnp_random_graph(m, 0.6, seed=number)))
    trainer = DFLTrainer(
        max_rounds=3,
        topology=graph,
        engine=engine,
        callbacks=policies,
        precision="64-true",
        accelerator="cpu",
        devices=processes,
        cohorts=2,
        enable_progress_bar=False,
        default_root_dir=root,
    )
    module = DFLModule(
        network=network,
        local_epochs=draw.choice((1, 2)),
        batch_size=draw.choice((5, 8, 1000)),
        optimizer=OPTIMIZERS[draw.choice(sorted(OPTIMIZERS))],
        objective=objective,
        init=draw.choice(("common", "common", "independent")),
        keep_optimizer=number % 3 == 0,
    )
    partition = draw.choice((partitions.Dirichlet(alpha=0.5), partitions.RotatedClusters([0, 90])))
    sizes = {"num_clients": m, "samples_per_client": draw.choice((16, 25)), "val_fraction": 0.2}
    return trainer, module, Digits(partition=partition, **sizes)


def play(number, engine, recorded=False, nudge=0.0):
    """The models after three rounds in this process, as [clients, width]; no files are written."""
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        trainer, module, data = set_up(number, engine, root)
        trainer.prepare(module, data)
        recorder = TapeRecorder()
        if recorded:
            module.engine.all_at_once(recorder)
        if nudge:
            rows = module.bank.boundary.rows["models"]
            rows += nudge * torch.randn(rows.shape, dtype=rows.dtype, generator=torch.Generator().manual_seed(0))
        protocol = RoundProtocol(trainer)
        for _ in range(3):
            round = protocol.begin()
            protocol.train(round)
            protocol.mix(round)
            protocol.commit(round)
            module.bank.boundary = module.bank.boundary._replace(closed=True, callbacks=protocol.capture())
        must_be = recorded and module.objective.recordable and module.optimizer_factory.func in RECORDED
        must_be = must_be and module.federation.local.memory is None
        assert recorder.replayed or not must_be
        return module.bank.boundary.rows["models"]


def play_my_part(number, processes):
    """The same as a whole run in one of several processes: its clients, and their models."""
    with tempfile.TemporaryDirectory() as root, contextlib.redirect_stdout(io.StringIO()):
        trainer, module, data = set_up(number, "stacked", root, processes)
        trainer.fit(module, datamodule=data)
        return module.bank.ranks.own, module.bank.boundary.rows["models"]


def put_together(on_ranks, number):
    """The same in two processes."""
    owned, rows = (torch.cat(parts) for parts in zip(*on_ranks(2, play_my_part, number, 2), strict=True))
    return rows[owned.argsort()]


def apart(a, b):
    """The largest difference, relative to the largest entry; both NaN is no difference."""
    assert torch.equal(a.isfinite(), b.isfinite())
    return float((a - b).nan_to_num().abs().max() / a.nan_to_num().abs().max().clamp(min=1))


def compare(number, others):
    """Measure how far other engines are from the loop, and the control if one differs by more than rounding."""
    loop = play(number, "loop")
    found = {name: apart(loop, rows()) for name, rows in others.items()}
    control = apart(loop, play(number, "loop", nudge=NUDGE)) if max(found.values()) > ROUNDING else None
    return found, control


def judge(numbers, on_ranks=None):
    """Play the pairs; returns (pairs, chaos, faults) with the figures of those beyond rounding."""
    seen, chaos, faults = Counter(), [], []
    for number in numbers:
        others = {"stacked": partial(play, number, "stacked"), "recorded": partial(play, number, "stacked", True)}
        if on_ranks is not None:
            others = {"two processes": partial(put_together, on_ranks, number)}
        try:
            found, control = compare(number, others)
        except UserError as refused:
            seen[f"refused: {str(refused)[:60]}"] += 1
            continue
        for name, far in found.items():
            seen[name] += 1
            if far > ROUNDING:
                (faults if far > CHAOS * control else chaos).append((number, name, far, control))
    return seen, chaos, faults


@pytest.fixture(autouse=True)
def short_recordings():
    with mock.patch("dfl_lightning.engines.stacked.gpu.cuda_graphs.FEWEST_STEPS", 1):
        yield


@pytest.mark.parametrize("first", [0, pytest.param(6, marks=pytest.mark.slow)])
def test_engines_agree(first):
    seen, _, faults = judge(range(first, first + 6))
    assert not faults
    assert not any("cannot be stacked" in refused for refused in seen)  # as a layer with other numbers would be
    assert seen["stacked"] == seen["recorded"] >= 3


def test_one_process_and_two_agree(on_ranks):
    seen, _, faults = judge(range(4), on_ranks)
    assert not faults
    assert seen["two processes"] >= 2


@pytest.mark.slow
def test_a_thousand_pairs(on_ranks):
    for numbers, ranks in ((range(1000, 1450), None), (range(2000, 2100), on_ranks)):
        seen, chaos, faults = judge(numbers, ranks)
        print("\n", dict(seen), f"beyond rounding: {len(chaos)} chaos, {len(faults)} faults")
        for number, name, far, control in chaos + faults:
            print(f"pair {number}, {name}: {far:.1e}, control {control:.1e}")
        assert not faults
