import threading
import time

import pytest
import torch
from threads import Watching
from threads import threads as set_threads

from dfl_lightning.utils.thread_pool import Abandoned, Workers, workers


@pytest.fixture(params=[1, 2, 3])
def threads(request):
    """Torch's number of threads."""
    with set_threads(request.param):
        yield request.param


def test_results_come_in_the_order_of_the_items(threads):
    with workers() as pool:
        assert pool.threads == threads
        assert pool.map(lambda pause: (time.sleep(pause), pause)[1], [0.03, 0.0, 0.01]) == [0.03, 0.0, 0.01]
        assert pool.map(lambda item: item, []) == []
        assert pool.map(lambda item: item, ["alone"]) == ["alone"]


def test_each_piece_is_reported_once_from_the_calling_thread(threads):
    reported, here = {}, threading.get_ident()

    def done(index, result):
        assert threading.get_ident() == here
        assert index not in reported
        reported[index] = result

    with workers() as pool:
        pool.map(lambda item: 10 * item, range(7), done)
    assert reported == {index: 10 * index for index in range(7)}


def test_torch_computes_with_one_thread_inside_and_as_before_outside(threads):
    with workers() as pool:
        assert torch.get_num_threads() == 1
        assert pool.map(lambda _: torch.get_num_threads(), range(4)) == [1] * 4
        with workers() as inner:
            assert inner.threads == 1
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_comes_back_after_an_error(threads):
    with pytest.raises(ZeroDivisionError), workers() as pool:
        pool.map(lambda item: 1 / item, [1, 0, 2])
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("where", ["work", "done", "between"])
def test_an_error_is_raised_and_stops_further_pieces(threads, where):
    begun = []

    def raising(*_):
        raise RuntimeError("broken")

    def work(item):
        begun.append(item)
        time.sleep(0.01)
        if where == "work":
            raise RuntimeError("broken")

    calls = {where: raising} if where != "work" else {}
    with workers() as pool, pytest.raises(RuntimeError, match="broken"):
        pool.map(work, range(4000), **calls)
    assert len(begun) < 2000
    count = len(begun)
    time.sleep(0.05)
    assert len(begun) == count  # no worker continues


def test_between_is_called_during_a_long_piece():
    asked, often = [], threading.Event()

    def between():
        asked.append(True)
        if len(asked) == 3:
            often.set()

    assert Workers(2).map(lambda _: often.wait(60), range(2), between=between) == [True, True]


@pytest.mark.parametrize("count", [2, 3])
def test_ctrl_c_ends_the_pieces_that_check_for_it(count):
    pool, ended = Workers(count), []

    def work(_):
        try:
            while True:
                pool.check()
                time.sleep(0.005)
        except Abandoned:
            ended.append(True)
            raise

    def between():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pool.map(work, range(10), between=between)
    assert 1 <= len(ended) <= count


class Seen(Watching):
    """The names of all operations."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def test_dispatch_modes_see_operations_of_all_workers(threads):
    ones = torch.ones(2)
    with Seen() as seen, workers() as pool:
        pool.map(lambda item: ones.add(item), range(4))
    assert seen.names == ["aten::add"] * 4
    assert torch.get_num_threads() == threads
