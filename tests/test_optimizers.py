"""Which optimizers are taken."""

import functools

import pytest
import torch

from dfl_lightning.errors import UserError
from dfl_lightning.optimizers import ELEMENTWISE, check_elementwise


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_optimizers_that_act_on_every_number_by_itself_are_taken(name):
    kind = getattr(torch.optim, name)
    check_elementwise(functools.partial(kind, lr=0.1))
    check_elementwise(type("Mine", (kind,), {}))


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_they_do_update_numbers_side_by_side_as_they_would_alone(name):
    kind = functools.partial(getattr(torch.optim, name), lr=0.1)
    start, grads = torch.tensor([[0.5, -2.0], [3.0, 0.1]]), torch.tensor([[1.0, -1e3], [1e-3, 2.0]])

    def run(values, gradients):
        p = torch.nn.Parameter(values.clone())
        optimizer = kind([p])
        for step in range(4):
            p.grad = gradients * (1 - 0.4 * step)
            optimizer.step()
        return p.detach()

    together = run(start, grads)
    for i in range(2):
        for j in range(2):
            torch.testing.assert_close(together[i, j], run(start[i, j], grads[i, j]), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["LBFGS", "Muon", "Adafactor", "SparseAdam"])
def test_others_are_refused_by_name(name):
    kind = getattr(torch.optim, name, None)
    if kind is None:
        pytest.skip(f"this torch has no {name}")
    with pytest.raises(UserError, match=rf"model\.optimizer {name} .*choose one of SGD, Adam"):
        check_elementwise(kind)
