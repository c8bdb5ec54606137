"""Networks that `torch.compile` has wrapped: used as they were, with a note."""

import pytest
import torch
from torch import nn

from dfl_lightning.utils.code.module_copies import uncompiled
from dfl_lightning.utils.errors import UserError


def network():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU(), nn.Linear(6, 10))


@pytest.mark.slow  # torch imports its compiler in seconds
def test_a_compiled_network_trains_as_the_network_it_was(small_run, tmp_path):
    plain = small_run(1, root=tmp_path / "plain", module={"network": network()}).fit()
    assert not plain.trainer.remarks
    in_place = network()
    in_place.compile()
    for name, compiled in (("wrapped", torch.compile(network())), ("in place", in_place)):
        run = small_run(1, root=tmp_path / name, module={"network": compiled}).fit()
        assert torch.equal(run.rows, plain.rows)
        assert run.module.bank.layout.entries[0].name == "1.weight"
        assert [remark for remark in run.trainer.remarks if "is compiled (torch.compile), which is not used" in remark]


@pytest.mark.slow
def test_a_compiled_layer_is_refused():
    with_one = nn.Sequential(torch.compile(nn.Linear(2, 2)))
    with pytest.raises(UserError, match=r"Sequential: layer '0' is compiled \(torch.compile\); give the layer as"):
        uncompiled(with_one)
    plain = nn.Linear(2, 2)
    assert uncompiled(plain) == (plain, False)
