"""FedProx in both engines, against a loop that differentiates the proximal term by itself."""

import functools

import pytest
import torch
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.objectives import FedProx, Plain
from dfl_lightning.utils.random_streams import stream

OWN = References.rows("models", torch.arange(3))


def descend(module, f, naive, owner, make_optimizer, mu, epochs, clip_norm=None, names=None, start=None):
    """Local training of a plain module on its mean loss plus the term; only the named draws are the library's."""
    named = dict(module.named_parameters())
    trained = [p for name, p in named.items() if names is None or name in names]
    start = [p.detach().clone() for p in trained] if start is None else start
    optimizer, samples = make_optimizer(trained), f.data.train[owner]
    total = seen = 0
    module.train()
    for epoch in range(epochs):
        order = torch.randperm(len(samples), generator=stream(naive.seed, "local batches", 3, owner, epoch))
        for at in range(0, len(order), 4):
            x, y = naive.inputs(f.data, samples[order[at : at + 4]], f.dtype)
            loss = nn.functional.cross_entropy(module(x), y)
            term = sum(((p - s) ** 2).sum() for p, s in zip(trained, start, strict=True))
            module.zero_grad()
            (loss + mu / 2 * term).backward()
            if clip_norm is not None:
                nn.utils.clip_grad_norm_(trained, clip_norm)
            optimizer.step()
            total, seen = total + float(loss.detach()) * len(y), seen + len(y)
    return total / seen


OPTIMIZERS = {
    "SGD": functools.partial(torch.optim.SGD, lr=0.3),
    "momentum": functools.partial(torch.optim.SGD, lr=0.3, momentum=0.9),
    "Adam": functools.partial(torch.optim.Adam, lr=0.3),
}


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_local_work_is_descent_on_the_loss_and_the_proximal_term(kind, optimizer, clip_norm, federation, naive):
    make = OPTIMIZERS[optimizer]
    sizes = (9, 4, 14) if kind == "mlp" else (10, 4, 14)
    f = federation(kind, optimizer=make, objective=FedProx(1.3), sizes=sizes, clip_norm=clip_norm)
    result = f.engine.train(OWN, f.training(epochs=3, lr=0.3))
    for i in range(3):
        module = naive.module(f.network, f.bank.rows("models")[i])
        loss = descend(module, f, naive, i, make, 1.3, 3, clip_norm)
        torch.testing.assert_close(f.bank.rows("trained")[i], naive.row(module, f.dtype), rtol=0, atol=1e-10)
        assert float(result.losses[i]) == pytest.approx(loss, abs=1e-10)


def test_without_the_term_it_is_plain_bit_for_bit(federation):
    rows = []
    for objective in (FedProx(0.0), Plain(), FedProx(0.5)):
        f = federation(objective=objective)
        f.engine.train(OWN, f.training())
        rows.append(f.bank.rows("trained"))
    assert torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[2], rows[1])


def test_a_strong_pull_keeps_a_model_near_its_start(federation):
    moved = []
    for mu in (0.0, 1.0, 10.0):
        f = federation(objective=FedProx(mu))
        f.engine.train(OWN, f.training(epochs=10))
        moved.append((f.bank.rows("trained") - f.bank.rows("models")).norm(dim=1))
    assert (moved[0] > moved[1]).all()
    assert (moved[1] > moved[2]).all()


def test_the_start_is_the_model_that_the_job_starts_from(federation, naive):
    f = federation(objective=FedProx(2.0))
    before = f.bank.rows("models").clone()
    f.engine.train(References.rows("models", torch.tensor([2, 2, 2]), owners=torch.arange(3)), f.training())
    for i in range(3):
        module = naive.module(f.network, before[2])
        descend(module, f, naive, i, functools.partial(torch.optim.SGD, lr=0.05), 2.0, 2)
        torch.testing.assert_close(f.bank.rows("trained")[i], naive.row(module, f.dtype), rtol=0, atol=1e-10)


def test_personal_parameters_are_not_held_back(federation):
    def personal_after(mu, **settings):
        f = federation(objective=FedProx(mu, **settings), shared=["0.*"])
        f.engine.train(OWN, f.training())
        mask = f.layout.personal.mask(f.layout.width)
        return f.bank.rows("trained")[:, mask], f.bank.rows("trained")[:, ~mask]

    (held, body), (free, other_body) = personal_after(5.0), personal_after(0.0)
    assert torch.equal(held, free)
    assert not torch.allclose(body, other_body)
    assert not torch.equal(personal_after(5.0, personal_epochs=0)[0], held)


@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_engines_agree(mu, federation, engine):
    from dfl_lightning.engines.loop_engine import LoopEngine
    from dfl_lightning.engines.stacked import StackedEngine

    other = LoopEngine if engine is StackedEngine else StackedEngine
    one, two = (federation(engine=e, objective=FedProx(mu), sizes=(9, 4, 14)) for e in (engine, other))
    for f in (one, two):
        f.engine.train(OWN, f.training(epochs=2))
    torch.testing.assert_close(one.bank.rows("trained"), two.bank.rows("trained"), rtol=0, atol=1e-12)
