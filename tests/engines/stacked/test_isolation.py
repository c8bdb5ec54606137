"""Isolation of a diverged client in its cohort: the bits of the others do not change."""

import functools

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import nn

from dfl_lightning.bank.references import References

NETWORKS = {
    "perceptron": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)),
    "convolutions": lambda: nn.Sequential(
        *(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 2), nn.Tanh(), nn.Flatten()),
        nn.Linear(16, 3),
    ),
    "many channels": lambda: nn.Sequential(
        *(nn.Conv2d(1, 16, 3, bias=False), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16), nn.ReLU(), nn.Flatten()),
        nn.Linear(64, 3),
    ),
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(1, 3, 3, bias=False), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    ),
    "group norm": lambda: nn.Sequential(
        *(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()),
        *(nn.LayerNorm(16), nn.Dropout(0.3), nn.Linear(16, 3)),
    ),
    "a layer without a rule": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 4), Gate(), nn.Linear(4, 3)),
}


class Gate(nn.Module):
    """Goes through `torch.vmap`: no rule knows it."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return torch.einsum("bi,i->bi", x.softmax(1), self.scale)


OPTIMIZERS = {
    "sgd": functools.partial(torch.optim.SGD, lr=1.0, momentum=0.9, weight_decay=0.01),
    **{
        name: functools.partial(getattr(torch.optim, name), lr=1.0)
        for name in ("Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "Rprop", "ASGD")
    },
}
CLIPS = ({}, {"clip_norm": 0.5}, {"clip_value": 0.1})
LOSSES = {"plain": None, "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1)}


def give_image_0_to(client, data):
    """The image that careless padding with index 0 would show to all clients."""
    its_first = int(data.train[client][0])
    for split in ("train", "val", "test"):
        setattr(data, split, tuple(torch.where(part == 0, its_first, part) for part in getattr(data, split)))
    data.train[client][0] = 0


def numbers(federation, make_data, sick, poison, kind, optimizer, clip, loss, sizes):
    """Return the other clients' training, gradients and evaluations while the sick client shares their cohort."""
    data = make_data(sizes, (1, 6, 6))
    give_image_0_to(sick, data)
    if poison is not None:
        for split in (data.train, data.val, data.test):
            data.images[split[sick]] = poison
    torch.manual_seed(0)
    f = federation(
        network=NETWORKS[kind](),
        data=data,
        dtype=torch.float32,
        optimizer=OPTIMIZERS[optimizer],
        loss=LOSSES[loss],
        batch_size=4,
        **clip,
    )
    m, engine = f.m, f.engine
    assert len(engine.cohorts) == 1
    if poison is not None:
        f.bank.boundary.rows["models"][sick] = poison
    all_clients = torch.arange(m)
    others = all_clients != sick
    result = f.engine.train(References.rows("models", all_clients), f.training())
    gradients = f.engine.gradients(References.rows("models", all_clients), f.training())
    subjects, owners = torch.cartesian_prod(all_clients, all_clients).T
    scores = f.engine.evaluate(References.rows("trained", subjects, owners), "test")
    known = (subjects != sick) & (owners != sick)
    return result.finite, [
        f.bank.rows("trained")[others],
        gradients[others],
        result.losses[others],
        scores.losses[known],
        scores.metrics["acc"][known],
    ]


def check(federation, make_data, sick, poison, **settings):
    sick %= len(settings["sizes"])
    finite, found = numbers(federation, make_data, sick, poison, **settings)
    _, expected = numbers(federation, make_data, sick, None, **settings)
    assert finite.tolist() == [client != sick for client in range(len(settings["sizes"]))]
    for mine, its in zip(found, expected, strict=True):
        assert its.isfinite().all()
        assert torch.equal(mine, its)


CASES = {
    "sick": st.integers(0, 5),
    "poison": st.sampled_from([float("nan"), float("inf")]),
    "kind": st.sampled_from(list(NETWORKS)),
    "optimizer": st.sampled_from(list(OPTIMIZERS)),
    "clip": st.sampled_from(CLIPS),
    "loss": st.sampled_from(list(LOSSES)),
    "sizes": st.lists(st.integers(2, 10).filter(lambda size: size % 4 != 1), min_size=2, max_size=6).map(tuple),
}
RULES = {"suppress_health_check": list(HealthCheck)}


@pytest.mark.parametrize("kind", NETWORKS)
def test_a_diverged_client_does_not_change_others_in_its_cohort(federation, make_data, one_cohort, kind):
    settings = {"optimizer": "Adam", "clip": CLIPS[1], "loss": "plain", "sizes": (7, 10, 2, 6)}
    for poison in (float("nan"), float("inf")):
        check(federation, make_data, 1, poison, kind=kind, **settings)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_no_optimizer_passes_nonfinite_numbers_to_other_clients(federation, make_data, one_cohort, optimizer):
    settings = {"clip": CLIPS[2], "loss": "smoothed", "sizes": (7, 10, 2)}
    check(federation, make_data, 1, float("inf"), kind="perceptron", optimizer=optimizer, **settings)


@pytest.mark.slow
@settings(max_examples=150, **RULES)
@given(case=st.fixed_dictionaries(CASES))
def test_a_diverged_client_does_not_change_others_in_any_cohort(federation, make_data, one_cohort, case):
    check(federation, make_data, **case)
