"""Sums over rows are done in float64 a block of columns at a time: a second copy of all rows may not fit on a GPU."""

import pytest
import torch
from pairs import compare_row_pairs
from pretended import DEVICE, Elsewhere, everything_on
from threads import Watching
from torch.utils._pytree import tree_leaves

from dfl_lightning.bank import matmul, mixing
from dfl_lightning.bank.comparing import similarity, sparse_similarity
from dfl_lightning.bank.layout import Columns
from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, read
from dfl_lightning.links import Links
from dfl_lightning.utils.storage.shipped_files import shipped


class Largest(Watching):
    """The largest float64 tensors on the device that operations make, views aside: numbers by operation."""

    def __init__(self):
        super().__init__()
        self.sizes = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for made in tree_leaves(result):
            if isinstance(made, Elsewhere) and made.dtype == torch.float64 and not func.is_view:
                name = func._schema.name
                self.sizes[name] = max(self.sizes.get(name, 0), made.numel())
        return result


@pytest.fixture
def narrow_blocks(monkeypatch):
    """Blocks of 256 columns, the narrowest."""
    monkeypatch.setattr(matmul, "GPU_BYTES", 1)
    for module in (mixing, similarity):
        monkeypatch.setattr(module, "GPU_BLOCK_BYTES", 1)
    monkeypatch.setattr(sparse_similarity, "GPU_STRIP_BYTES", 1)
    monkeypatch.setattr(sparse_similarity, "GPU_PIECE", 2**14)


OFTEN = ("afind", "dpfl", "gradient_tracking")


@pytest.mark.usefixtures("narrow_blocks")
@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in shipped("configs")]
)
def test_no_run_makes_a_float64_copy_of_all_rows(name, tmp_path):
    words = {
        "config": shipped("configs")[name],
        "trainer.accelerator": "cpu",
        "trainer.default_root_dir": tmp_path,
        "trainer.enable_progress_bar": "false",
        "trainer.max_rounds": 2,
        "model.local_epochs": 1,
        "model.batch_size": 8,
        "data.samples_per_client": 16,
    }
    settings = read(split([f"--{key}={value}" for key, value in words.items()]))
    with everything_on(DEVICE), Largest() as largest:
        cli = DFLCLI("fit", settings)
    rows = cli.model.bank.boundary.rows["models"]
    assert rows.dtype == torch.float32
    assert max(largest.sizes.values()) < rows.numel() / 4, largest.sizes


def test_few_columns_are_compared_in_little_memory():
    """Not in that of the widest block."""
    rows = torch.randn(24, 500).to(DEVICE)
    with Largest() as largest:
        compare_row_pairs(
            lambda start, stop: rows[:, start:stop], 24, torch.ones(24, 24).bool(), Columns(((0, 500),)), True
        )
    assert largest.sizes
    assert max(largest.sizes.values()) <= rows.numel()


@pytest.mark.parametrize("centre", [False, True])
def test_a_round_without_links_compares_nothing(centre):
    rows = torch.randn(5, 7).to(DEVICE)
    found = similarity.compare_rows(
        lambda start, stop: rows[:, start:stop], 5, Links.empty(5), Columns(((0, 7),)), centre
    )
    assert len(found.cosines) == len(found.distances) == 0
