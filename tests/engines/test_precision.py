"""Rows keep every bit, whatever precision torch's own products are allowed to have."""

import pytest
import torch
from pairs import compare_pairs

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import References, Term

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(params=["high", "medium"])
def reduced(request):
    """TensorFloat32 or bfloat16, where the machine has them."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(request.param)
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("device", DEVICES)
def test_mixing_comparing_and_mixtures_are_immune(reduced, device):
    g = torch.Generator().manual_seed(0)
    network = torch.nn.Linear(128, 64)
    layout = Layout(network)
    exact = torch.randn(96, layout.width, generator=g, dtype=torch.float64)
    weights = torch.softmax(torch.randn(96, 96, generator=g, dtype=torch.float64), 1)
    bank = Bank(layout, exact.float().to(device), 96, {"other": exact.float().to(device)})
    all_clients = torch.arange(96)
    mixed = bank.materialise(References((Term("models", weights.float()),), all_clients)).cpu()
    bank.mix([(weights.float(), "models")], "other", all_clients)
    cosines = compare_pairs(bank, "models", torch.ones(96, 96).bool()).cosines
    expected = weights @ exact
    torch.testing.assert_close(mixed.double(), expected, rtol=0, atol=2e-6)
    torch.testing.assert_close(bank.rows("other").cpu().double(), expected, rtol=0, atol=2e-6)
    unit = torch.nn.functional.normalize(exact.float().double())
    torch.testing.assert_close(cosines, unit @ unit.T, rtol=0, atol=1e-12)
