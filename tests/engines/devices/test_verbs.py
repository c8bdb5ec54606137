"""Rows and data on another device than the rest: no operation may meet tensors of both."""

import functools
from dataclasses import replace

import pytest
import torch
from pairs import compare_pairs
from pretended import DEVICE, Elsewhere
from torch import nn

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.references import References, Term
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.gpu.autotune import StepTimer
from dfl_lightning.engines.stacked.gpu.evaluation_ways import EvaluationTimer, Way


def both(federation, engine, device, **options):
    """The same federation here and elsewhere."""
    return federation(engine=engine, **options), federation(engine=engine, device=device, **options)


def compare(here, there):
    """All verbs on both."""
    found = []
    for f in (here, there):
        bank: Bank = f.bank
        engine = f.engine
        all_clients = torch.arange(3)
        mixture = torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.0, 1.0], [0.0, 0.3, 0.0, 0.7]])
        start = References((Term("models", mixture), Term("other", all_clients.clone())), all_clients)
        gradients = engine.gradients(start, f.training(epochs=1))
        trained = engine.train(start, f.training(epochs=2))
        scores = [
            engine.evaluate(References.rows("trained", torch.tensor([0, 2, 1, 1]), torch.tensor([1, 0, 0, 1])), "val"),
            engine.evaluate(start, "test"),
        ]
        if not f.layout.has_personal_parameters:
            scores.append(engine.evaluate(References.rows("models", torch.tensor([3]), torch.tensor([-1])), "test"))
        pairs = torch.tensor([[0, 1, 1], [1, 0, 0], [0, 1, 0]]).bool()
        compared = [
            compare_pairs(bank, "trained", pairs),
            compare_pairs(bank, "trained", pairs, relative_to="start", centre=True),
            compare_pairs(bank, gradients, pairs, relative_to="other"),
        ]
        bank.mix([(torch.rand(4, 4, generator=torch.Generator().manual_seed(0)), "trained")], "other", torch.arange(4))
        bank.mix([(torch.eye(4)[[1, 2]], "trained")], "models", torch.tensor([True, False, True, False]))
        found.append(
            [gradients, trained.losses, trained.finite, *(bank.next_rows()[name] for name in ("models", "other"))]
            + [value for s in scores for value in (s.losses, *s.metrics.values())]
            + [value for c in compared for value in (c.cosines, c.distances)]
        )
    for mine, its in zip(*found, strict=True):
        torch.testing.assert_close(its.cpu(), mine, rtol=1e-6, atol=1e-8, equal_nan=True)


ENGINES = {"stacked": StackedEngine, "loop": LoopEngine}


@pytest.fixture
def engine(request):
    """Not the one of every test of this folder: it is given where a federation is made."""
    return getattr(request, "param", StackedEngine)


def test_the_pretended_device_refuses_what_cuda_refuses(count):
    rows, index = torch.zeros(4, 3).to(DEVICE), torch.tensor([0, 2])
    assert rows.device == DEVICE
    assert rows[index].device == DEVICE
    for refused in (
        lambda: rows.index_copy_(0, index, rows[:2]),
        lambda: rows.index_select(0, index),
        lambda: rows + torch.ones(3),
        lambda: rows @ torch.ones(3, 1),
        lambda: torch.cat([rows, torch.ones(1, 3)]),
        lambda: torch.ones(4)[index.to(DEVICE)],
    ):
        with pytest.raises(RuntimeError, match="two devices"):
            refused()
    (rows + 1)[0] = 5
    assert (rows + torch.tensor(1.0)).cpu().sum() == 12


CASES = {
    "mlp": {"optimizer": functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9)},
    "adam": {"optimizer": functools.partial(torch.optim.Adam, lr=1.0), "clip_norm": 0.1},
    "adagrad": {"optimizer": functools.partial(torch.optim.Adagrad, lr=1.0)},
    "batchnorm": {"kind": "batchnorm"},
    "dropout": {"kind": "dropout"},
    "personal": {"shared": ("0.*",)},
}


@pytest.mark.parametrize("engine", [pytest.param("loop", marks=pytest.mark.slow), "stacked"])
@pytest.mark.parametrize("case", CASES)
def test_the_four_verbs_work_on_another_device(federation, count, case, engine):
    here, there = both(federation, ENGINES[engine], DEVICE, servers=1, sets=("other",), **CASES[case])
    assert isinstance(there.bank.rows("models"), Elsewhere)
    assert len(there.engine.cohorts) == 1 or engine == "loop"
    compare(here, there)


@pytest.mark.gpu
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", CASES)
def test_the_four_verbs_work_on_a_gpu(federation, case, engine):
    compare(*both(federation, ENGINES[engine], "cuda", servers=1, sets=("other",), **CASES[case]))


class Event:
    """A CUDA event on a machine without CUDA: passes take 5, 4, 3, 2, 1, 2 and 3 milliseconds."""

    waits = 0

    def __init__(self, enable_timing):
        assert enable_timing

    def record(self):
        pass

    def synchronize(self):
        Event.waits += 1

    def elapsed_time(self, end):
        return abs(Event.waits - 5) + 1.0


def test_the_step_timer_takes_the_fastest_pass_after_two(federation, count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "waits", 0)
    _, there = both(federation, StackedEngine, DEVICE)
    before = there.bank.rows("models").cpu().clone()
    assert StepTimer(there.engine._context, 3)() == 0.001
    assert Event.waits == 7
    assert torch.equal(there.bank.rows("models").cpu(), before)


def test_evaluation_passes_are_timed_without_touching_rows(federation, count, monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "waits", 0)
    _, there = both(federation, StackedEngine, DEVICE)
    before = there.bank.rows("models").cpu().clone()
    for width in (1, 3):
        Event.waits = 0
        assert EvaluationTimer(there.engine._context)(Way(width), 50) == 0.001
        assert Event.waits == 7
    assert torch.equal(there.bank.rows("models").cpu(), before)


def test_no_reduced_precision_can_reach_a_row(federation, count):
    """TensorFloat32 would take part in float32 products; rows are mixed and compared in float64 ones or by sums."""
    _, there = both(federation, StackedEngine, DEVICE, dtype=torch.float32, sizes=(5,) * 6)
    count.products.clear()
    all_clients, weights = torch.arange(6), torch.full((6, 6), 1 / 6)
    there.bank.materialise(References((Term("models", weights),), all_clients))
    there.engine.train(References.rows("models", all_clients), replace(there.training(), phases=()))
    compare_pairs(there.bank, "trained", torch.ones(6, 6).bool(), centre=True)
    there.bank.mix([(torch.eye(6), "trained")], "models", all_clients)
    there.bank.abandon()
    there.engine.train(References.rows("models", all_clients), replace(there.training(), phases=()))
    there.bank.mix([(weights, "trained")], "models", all_clients)
    assert count.products == {torch.float64}


def test_a_step_never_makes_the_host_wait(federation, count):
    """Steps are launched ahead of the GPU while no operation reads a number."""
    waits = []
    for epochs in (1, 3):
        _, there = both(federation, StackedEngine, DEVICE, clip_norm=0.1)
        before = count.waits.total()
        there.engine.train(References.rows("models", torch.arange(3)), there.training(epochs=epochs))
        waits.append(count.waits.total() - before)
    assert waits[0] == waits[1]


def test_norms_with_plain_averages_are_stacked_on_a_device(federation, count):
    """On a CPU such a network takes the loop engine; the numbers are the same."""
    layers = [nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3, momentum=None), nn.ReLU(), nn.Flatten()]
    options = {"network": nn.Sequential(*layers, nn.Linear(48, 3)), "kind": "batchnorm", "sizes": (9, 4, 14)}
    here, there = (
        both(federation, engine, DEVICE, sets=("other",), servers=1, **options)[place]
        for place, engine in enumerate((LoopEngine, there_only(StackedEngine)))
    )
    compare(here, there)


def there_only(engine):
    """An engine for another device, and none for the CPU."""

    def make(config, layout, data):
        return engine(config, layout, data) if data.images.is_cuda else LoopEngine(config, layout, data)

    return make
