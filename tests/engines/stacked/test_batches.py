"""The batches of a cohort against the same draws one by one."""

import pytest
import torch

from dfl_lightning.engines.dropout_layers import mask_key
from dfl_lightning.engines.stacked import StackedEngine
from dfl_lightning.engines.stacked.batches import Feed, sent
from dfl_lightning.objectives import Duration
from dfl_lightning.utils.randomness.random_streams import stream_seed
from tests.helpers.orders import drawn_order


def batches_of(f, owner, epochs, size, round=3):
    """A client's batches, one epoch after the other."""
    samples = f.data.train[owner]
    for epoch in range(epochs):
        if len(samples):
            yield from samples[drawn_order(len(samples), 5, "local", round, owner, epoch)].split(size)


@pytest.mark.parametrize("sizes", [(9, 8, 3, 1), (4, 4, 4), (13, 2, 0)], ids=str)
def test_batches_follow_the_drawn_order_of_samples(federation, sizes):
    f = federation(sizes=sizes, batch_size=4)
    feed = Feed(f.engine._context, list(range(f.m)), f.training())
    feed.draw(Duration(2))
    steps = 2 * -(-max(sizes) // 4)
    assert feed.steps == steps
    expected = [list(batches_of(f, owner, 2, 4)) for owner in range(f.m)]
    for step in range(steps):
        working = feed.waiting()
        assert working == sum(len(own) > step for own in expected)
        indices, counts, real = feed.take(working)
        for client, own in enumerate(expected[:working]):
            batch = own[step]
            assert real[client] == int(counts[client]) == len(batch)
            assert indices[client].tolist() == [*batch.tolist(), *[int(batch[0])] * (4 - len(batch))]
    assert feed.waiting() == 0


def test_a_client_with_fewer_batches_draws_more_epochs(federation):
    f = federation(sizes=(9, 3), batch_size=4)
    feed = Feed(f.engine._context, [0, 1], f.training())
    feed.draw(Duration(1))
    expected = [list(batches_of(f, owner, 6, 4)) for owner in range(2)]
    for step in range(6):
        indices, counts, _ = feed.take(2)
        for client in range(2):
            batch = expected[client][step]
            assert indices[client, : counts[client]].tolist() == batch.tolist()


def test_the_masks_of_a_step_are_each_clients_own(federation):
    f = federation(kind="dropout", sizes=(9, 8), batch_size=4)
    feed = Feed(f.engine._context, [0, 1], f.training())
    feed.draw(Duration(2))
    for _ in range(4):
        feed.take(2)
    names = [(0, 1, 0), (1, 1, 1)]  # the fourth batch: of the second epoch, the first one, and the second one
    keys = [mask_key(stream_seed(5, "local dropout layers", 3, *name)) for name in names]
    assert torch.equal(feed.masks, torch.stack(keys))


def test_memory_is_pinned_for_cuda_alone(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "pin_memory", None, raising=False)
    assert sent(torch.arange(3), torch.device("cpu")).tolist() == [0, 1, 2]


@pytest.mark.gpu
def test_a_gpu_gets_the_same_numbers():
    assert sent(torch.arange(3), torch.device("cuda")).tolist() == [0, 1, 2]


@pytest.fixture
def engine():
    """Only the stacked one has feeds."""
    return StackedEngine
