"""Exchanges in a group of one process: on a GPU rows travel by NCCL, and small numbers by gloo."""

import pytest
import torch
import torch.distributed as dist

from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.distributed.strategy import BACKENDS


@pytest.mark.parametrize(
    ("device", "backends"),
    [("cpu", "gloo"), pytest.param("cuda", BACKENDS, marks=pytest.mark.gpu)],
    ids=["gloo", "nccl"],
)
def test_a_group_of_one_process_exchanges_rows_and_numbers(device, backends):
    more = {"device_id": torch.device("cuda", 0)} if device == "cuda" else {}
    dist.init_process_group(backends, store=dist.HashStore(), rank=0, world_size=1, **more)
    try:
        ranks = Ranks(torch.zeros(5, dtype=torch.long))
        rows = torch.randn(5, 7, device=device)
        (piece,) = ranks.swap([rows.reshape(-1)], [35], rows)
        assert torch.equal(piece.view(5, 7), rows)
        assert torch.equal(ranks.from_rank(0, rows.clone()), rows)
        exchange = ranks.row_exchange(torch.tensor([3, 1]))
        assert torch.equal(exchange.bring(rows), rows[[3, 1]])
        assert ranks._gather(torch.tensor([4, 2])).tolist() == [[4, 2]]
    finally:
        dist.destroy_process_group()
