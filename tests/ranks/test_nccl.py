"""Exchanges on a GPU: rows by NCCL, small numbers by gloo, in one group of processes."""

import pytest
import torch
import torch.distributed as dist

from dfl_lightning.bank.ranks import Ranks
from dfl_lightning.strategy import BACKENDS


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that torch can use")
@pytest.mark.gpu
def test_rows_and_numbers_travel_in_a_group_of_one_process():
    dist.init_process_group(BACKENDS, store=dist.HashStore(), rank=0, world_size=1, device_id=torch.device("cuda", 0))
    try:
        ranks = Ranks(torch.zeros(5, dtype=torch.long))
        rows = torch.randn(5, 7, device="cuda")
        (piece,) = ranks.swap([rows.reshape(-1)], [35], rows)
        assert torch.equal(piece.view(5, 7), rows)
        assert torch.equal(ranks.from_rank(0, rows.clone()), rows)
        visit = ranks.visit(torch.tensor([3, 1]))
        assert torch.equal(visit.bring(rows), rows[[3, 1]])
        assert ranks._gather(torch.tensor([4, 2])).tolist() == [[4, 2]]
    finally:
        dist.destroy_process_group()
