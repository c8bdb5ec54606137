"""The number of models that a GPU evaluates side by side, for known times."""

import math

import pytest
import torch

from dfl_lightning.engines.stacked.gpu.evaluation_ways import MeasuredWays, PassTime, Way, measure, ways_of

CONV = frozenset({"conv"})


def test_narrower_ways_follow_the_widest():
    assert ways_of(100, frozenset()) == [Way(100), Way(16), Way(4), Way(1)]
    assert ways_of(4, frozenset()) == [Way(4), Way(1)]
    assert ways_of(1, CONV) == [Way(1)]


def test_patches_are_tried_for_several_models_only():
    assert ways_of(4, CONV) == [Way(4, CONV), Way(4), Way(1)]


def test_the_time_of_an_evaluation_by_hand():
    """Seven models, three at a time, passes of 10 samples: groups of 3, 3 and 1 with at most 25, 10 and 4 samples."""
    totals = torch.tensor([25, 20, 11, 10, 10, 5, 4])
    passes, samples = 3 + 1 + 1, 3 * 25 + 3 * 10 + 1 * 4
    found = PassTime(fixed=2.0, sample=0.5).seconds(totals, width=3, length=10)
    assert found == passes * 2.0 + samples * 0.5


def gpu(way, samples):
    """A GPU whose launches take 1 ms, and whose grouped convolutions take four times as long as ordinary ones."""
    return 1e-3 + 1e-6 * way.width * samples * (1 if way.width == 1 else 4)


@pytest.fixture
def measured():
    return measure(ways_of(64, frozenset()), gpu, lambda way: 100_000 // way.width)


def test_two_passes_give_the_lines_of_the_gpu(measured):
    for way, line in zip(measured.ways, measured.lines, strict=True):
        assert line.fixed == pytest.approx(1e-3)
        assert line.sample == pytest.approx(1e-6 if way.width == 1 else 4e-6)


@pytest.mark.parametrize(("models", "samples", "width"), [(64, 20_000, 1), (64, 400, 1), (64, 100, 64), (1000, 10, 64)])
def test_models_with_many_samples_go_one_by_one(measured, models, samples, width):
    """The launches and samples of each width, counted by hand."""
    seconds = {}
    for way in measured.ways:
        groups, passes = -(-models // way.width), -(-samples // (100_000 // way.width))
        each = 1e-6 if way.width == 1 else 4e-6
        seconds[way.width] = groups * passes * 1e-3 + models * samples * each
    assert min(seconds, key=seconds.get) == width
    assert measured.best(torch.full((models,), samples), lambda way: 100_000 // way.width).width == width


def test_a_small_gain_keeps_the_wider_way():
    ways = MeasuredWays([Way(8), Way(1)], [PassTime(8.0, 0.0), PassTime(0.98, 0.0)])
    assert ways.best(torch.full((8,), 5), lambda way: 5) == Way(8)
    ways = MeasuredWays([Way(8), Way(1)], [PassTime(8.0, 0.0), PassTime(0.96, 0.0)])
    assert ways.best(torch.full((8,), 5), lambda way: 5) == Way(1)


def test_ways_without_enough_memory_are_left_out():
    def seconds(way, samples):
        return math.inf if way.width > 4 else 1.0

    measured = measure(ways_of(64, frozenset()), seconds, lambda way: 50)
    assert measured.best(torch.full((64,), 10), lambda way: 50) == Way(4)
    nothing = measure(ways_of(64, frozenset()), lambda *_: math.inf, lambda way: 50)
    assert nothing.best(torch.full((64,), 10), lambda way: 50) == Way(64)


def test_passes_of_one_length_have_a_fixed_time_only():
    """Memory allows one sample for each model, so that both passes have one length."""
    measured = measure([Way(2)], lambda way, samples: 3.0, lambda way: 1)
    assert measured.lines == (PassTime(3.0, 0.0),)
