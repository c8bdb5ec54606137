import torch
from sklearn.datasets import load_digits

from dfl_lightning.data import Digits
from dfl_lightning.data.sets import digits


def test_the_digits_are_scikit_learns_scaled_to_one():
    data = Digits(num_clients=3)
    data.setup()
    x, y = data.clients.batch(torch.arange(1797))
    original = load_digits()
    assert torch.equal(x, torch.from_numpy(original.images).float().unsqueeze(1) / 16)
    assert torch.equal(y, torch.from_numpy(original.target))
    assert x.max() == 1
    assert data.clients.input_shape == (1, 8, 8)
    assert data.clients.num_classes == 10


def test_changing_loaded_digits_does_not_change_later_loads():
    mine, yours = (Digits(num_clients=3) for _ in range(2))
    for tensor in (mine.load().images, mine.load().labels):
        tensor.zero_()
    yours.setup()
    assert torch.equal(yours.source.labels, torch.from_numpy(load_digits().target))
    assert yours.source.images.max() == 16


def test_test_fraction_null_holds_out_a_quarter_too():
    for fraction in (0.25, None):
        data = Digits(num_clients=3, test_fraction=fraction)
        data.setup()
        assert data.clients.sizes("test").tolist() == [149, 149, 149]


def test_digits_are_equal_with_and_without_scikit_learns_file(monkeypatch):
    with_file = digits._digits.__wrapped__()
    monkeypatch.setattr(digits, "_table", lambda: None)
    for mine, theirs in zip(with_file, digits._digits.__wrapped__(), strict=True):
        assert mine.dtype == theirs.dtype
        assert (mine == theirs).all()
