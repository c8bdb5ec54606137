"""Both engines against plain modules, plain optimizers and plain loops."""

import copy
import functools
import random

import numpy as np
import pytest
import torch
import torchmetrics
from banks import own
from networks import Idle, Times
from pairs import compare_pairs
from threads import threads
from torch import nn

from dfl_lightning.bank.references import References, Term
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.objectives import Objective, Plain
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import stream
from tests.helpers.orders import drawn_order

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "adam": (torch.optim.Adam, {}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.1}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.5}),
}
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-6}


def close(found, expected):
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


# --- training ---------------------------------------------------------------------------------------------------------
KINDS = ("mlp", "batchnorm", "dropout")
IN_FLOAT32 = {("momentum", "mlp"), ("adam", "batchnorm"), ("sgd", "dropout")}
"""Every kind of network once: the arithmetic is that of float64."""


@pytest.mark.parametrize(
    ("name", "kind", "dtype"),
    [
        *[(name, kind, torch.float64) for name in OPTIMIZERS for kind in KINDS],
        *[
            pytest.param(name, kind, torch.float32, marks=[] if (name, kind) in IN_FLOAT32 else pytest.mark.slow)
            for name in OPTIMIZERS
            for kind in KINDS
        ],
    ],
)
def test_clients_train_as_separate_modules_with_separate_optimizers_would(federation, naive, name, kind, dtype):
    kind_of_optimizer, options = OPTIMIZERS[name]
    lr = 0.01
    f = federation(kind, dtype=dtype, optimizer=functools.partial(kind_of_optimizer, lr=77.0, **options))
    result = f.engine.train(own(0, 1, 2), f.training(epochs=3, lr=lr))
    plain = functools.partial(kind_of_optimizer, lr=lr, **options)
    losses = naive.check(f, plain, epochs=3, tolerance=TOLERANCE[dtype])
    assert result.losses.tolist() == pytest.approx(losses, rel=1e-5)
    assert result.samples.tolist() == [27, 12, 42]
    assert result.finite.all()


def by_size(parameters, kind, rates=(77.0, 77.0), **later):
    """Large parameters decay, the others do not; `later` is what a schedule has made of the second group."""
    large, small = [p for p in parameters if p.numel() > 5], [p for p in parameters if p.numel() <= 5]
    groups = [{"params": large, "weight_decay": 0.1, "lr": rates[0]}, {"params": small, "lr": rates[1], **later}]
    return kind(groups)


class OwnAdam(torch.optim.Adam):
    """A user's own."""


@pytest.mark.parametrize(
    ("kind", "later"),
    [
        (functools.partial(torch.optim.SGD, momentum=0.9), {}),
        (functools.partial(torch.optim.SGD, momentum=0.9), {"momentum": 0.3}),
        (torch.optim.Adam, {"betas": (0.5, 0.7)}),
        (torch.optim.RMSprop, {"momentum": 0.3}),
        (OwnAdam, {"betas": (0.5, 0.7)}),
    ],
    ids=["sgd", "sgd, momentum", "adam, betas", "rmsprop, momentum", "own, betas"],
)
@pytest.mark.parametrize("shared", [["*"], ["0.*"]], ids=["one phase", "two phases"])
def test_each_client_has_the_groups_of_its_own_plain_parameters(federation, naive, kind, later, shared):
    """By size of the plain parameters, whatever is stacked; with what the round's schedule says of each group."""
    f = federation(optimizer=functools.partial(by_size, kind=kind), shared=shared)
    before = f.bank.rows("models").clone()
    f.engine.train(own(0, 1, 2), f.training(epochs=1, groups=({"lr": 0.02}, {"lr": 0.05, **later})))
    for i in range(3):
        module = naive.module(f.network, before[i])
        parts = [module] if shared == ["*"] else [module[2], module[0]]  # personal parameters first
        samples, size = f.data.train[i], len(f.data.train[i])
        for epoch, part in enumerate(parts):
            optimizer = by_size(list(part.parameters()), kind, (0.02, 0.05), **later)
            order = drawn_order(size, naive.seed, "local", 3, i, epoch)
            for at in range(0, size, 4):
                x, y = naive.inputs(f.data, samples[order[at : at + 4]], f.dtype)
                module.zero_grad()
                nn.functional.cross_entropy(module(x), y).backward()
                optimizer.step()
        close(f.bank.rows("trained")[i], naive.row(module, f.dtype))


def test_a_parameter_that_the_optimizer_leaves_out_stays(federation, naive):
    def without_biases(parameters, lr=77.0):
        return torch.optim.SGD([p for p in parameters if p.ndim > 1], lr=lr, momentum=0.9)

    f = federation(optimizer=without_biases)
    f.engine.train(own(0, 1, 2), f.training(lr=0.1))
    naive.check(f, functools.partial(without_biases, lr=0.1))
    assert torch.equal(f.bank.rows("trained")[:, 30:35], f.bank.rows("models")[:, 30:35])


@pytest.mark.parametrize(
    "clipping", [{"clip_norm": 0.3}, {"clip_value": 0.05}, {"clip_norm": 0.3, "clip_value": 0.05}], ids=str
)
def test_each_client_is_clipped_by_itself(federation, naive, make_network, clipping):
    federation = functools.partial(federation, network=nn.Sequential(*make_network("mlp"), Times()))
    f = federation(**clipping)
    f.engine.train(own(0, 1, 2), f.training(lr=0.5))
    free = federation()
    free.engine.train(own(0, 1, 2), free.training(lr=0.5))
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.5), **clipping)
    for one, other in zip(f.bank.rows("trained"), free.bank.rows("trained"), strict=True):
        assert not torch.allclose(one, other)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
def test_the_order_of_jobs_changes_no_bit(federation, kind):
    f = federation(kind, sizes=tuple(range(5, 25)), dtype=torch.float32)  # 20 clients in several cohorts
    f.engine.train(own(*range(20)), f.training(epochs=1))
    in_order = f.bank.rows("trained").clone()
    f.engine.train(own(*reversed(range(20))), f.training(epochs=1))
    assert torch.equal(f.bank.rows("trained"), in_order)


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
def test_other_jobs_change_rounding_at_most(federation, kind, engine):
    f = federation(kind, sizes=tuple(range(5, 25)))
    f.engine.train(own(*range(20)), f.training(epochs=1))
    together = f.bank.rows("trained").clone()
    f.engine.train(own(17, 3, 4, 0), f.training(epochs=1))
    some = f.bank.rows("trained")
    for i in range(20):
        if i not in (17, 3, 4, 0):
            assert torch.equal(some[i], f.bank.rows("models")[i])
        elif engine is LoopEngine:
            assert torch.equal(some[i], together[i])
        else:
            close(some[i], together[i])


def test_a_rehearsal_gives_trained_rows_without_changing_the_bank(federation):
    f, other = federation(), federation()
    f.engine.train(own(0), f.training())
    models, trained = f.bank.rows("models").clone(), f.bank.rows("trained").clone()
    f.bank.scratch("aside")
    result = f.engine.rehearse(own(1, 2), f.training(), into="aside")
    assert torch.equal(f.bank.rows("models"), models)
    assert torch.equal(f.bank.rows("trained"), trained)
    expected = other.engine.train(own(1, 2), other.training())
    assert torch.equal(f.bank.rows("aside"), other.bank.rows("trained"))
    assert torch.equal(result.losses, expected.losses)


def test_losses_come_in_the_order_of_the_jobs(federation):
    f = federation(sizes=tuple(range(5, 25)))
    owners = [17, 3, 4, 0]
    result = f.engine.train(own(*owners), f.training(epochs=1))
    assert result.samples.tolist() == [5 + i for i in owners]
    alone = [float(f.engine.train(own(i), f.training(epochs=1)).losses) for i in owners]
    assert result.losses.tolist() == pytest.approx(alone, rel=1e-10)


def test_purpose_and_round_determine_the_draws(federation):
    f = federation("dropout")
    rows = {}
    for purpose, round_ in (("local", 3), ("local", 4), ("finetune", 3)):
        f.engine.train(own(0), f.training(purpose=purpose, round=round_))
        rows[purpose, round_] = f.bank.rows("trained")[0].clone()
    f.engine.train(own(0), f.training())
    assert torch.equal(f.bank.rows("trained")[0], rows["local", 3])
    assert not torch.equal(rows["local", 3], rows["local", 4])
    assert not torch.equal(rows["local", 3], rows["finetune", 3])


class Random:
    """An augmentation: images and a number drawn for each."""

    def __init__(self, operation):
        self.apply = operation

    def draw(self, size, generator):
        return torch.rand(size, 1, generator=generator, dtype=torch.float64)


def test_augmentation_draws_from_the_jobs_own_stream(federation, naive, make_data):
    data = make_data(shape=(6,))
    data.augment = Random(torch.add)
    f = federation(data=data)
    before = f.bank.rows("models")[1]
    f.engine.train(own(1), f.training(epochs=1, lr=0.3))
    module = naive.module(f.network, before)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.3)
    x, y = data.images[data.train[1]], data.labels[data.train[1]]  # its 4 samples are one batch
    order = drawn_order(4, naive.seed, "local", 3, 1, 0)
    added = torch.rand(4, 1, generator=stream(naive.seed, "local augment", 3, 1, 0, 0), dtype=torch.float64)
    nn.functional.cross_entropy(module((x[order] + added) * 0.5 + 0.25), y[order]).backward()
    optimizer.step()
    close(f.bank.rows("trained")[1], naive.row(module, f.dtype))


@pytest.mark.parametrize("kind", ["batchnorm", "dropout"])
def test_results_do_not_depend_on_threads_or_global_generators(federation, kind):
    found = []
    for count, seed in ((1, 0), (2, 1)):
        with threads(count):
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
            f = federation(kind, dtype=torch.float32)
            states = torch.get_rng_state(), np.random.get_state()[1].tolist(), random.getstate()
            f.engine.train(own(0, 1, 2), f.training())
            gradients = f.engine.gradients(own(0, 1, 2), f.training())
            scores = f.engine.evaluate(References.rows("trained", torch.arange(3)), "val")
            found.append((f.bank.rows("trained").clone(), gradients, scores.losses))
            assert torch.get_num_threads() == count
            assert torch.equal(torch.get_rng_state(), states[0])
            assert np.random.get_state()[1].tolist() == states[1]
            assert random.getstate() == states[2]
    for one, two in zip(*found, strict=True):
        assert torch.equal(one, two)


def test_training_can_start_from_the_servers_model_with_personal_heads(federation, naive):
    f = federation(servers=1, shared=["0.*"])
    server_with_my_head = f.bank.rows("models")[1].clone()
    server_with_my_head[:35] = f.bank.rows("models")[3, :35]  # layer 0: 6 * 5 weights and 5 biases
    f.engine.train(References((Term("models", torch.tensor([3])),), torch.tensor([1])), f.training(epochs=0))
    assert torch.equal(f.bank.rows("trained")[1], server_with_my_head)


def test_progress_and_interruptions_come_after_every_cohort(federation, monkeypatch):
    f = federation(sizes=(4,) * 10)
    monkeypatch.setattr(type(f.engine), "threads", 1)  # several report when they are done
    cohorts = len(f.engine.cohorts)
    calls = []
    f.engine.between_cohorts = lambda: calls.append("between")
    f.engine.train(own(*range(10)), f.training(), progress=lambda done, total: calls.append((done, total)))
    assert cohorts > 1
    assert calls == [call for done in range(1, cohorts + 1) for call in ((done, cohorts), "between")]

    def stop():
        raise InterruptedError

    f.engine.between_cohorts = stop
    before = f.bank.rows("models").clone()
    with pytest.raises(InterruptedError):
        f.engine.train(own(*range(10)), f.training())
    assert torch.equal(f.bank.rows("models"), before)
    with pytest.raises(KeyError):
        f.bank.rows("trained")


def test_zero_epochs_train_nothing_and_have_no_loss(federation):
    f = federation()
    result = f.engine.train(own(0, 2), f.training(epochs=0))
    assert torch.equal(f.bank.rows("trained"), f.bank.rows("models"))
    assert result.losses.isnan().all()
    assert result.samples.tolist() == [0, 0]
    assert result.finite.all()


def test_training_without_jobs_changes_nothing(federation):
    f = federation()
    result = f.engine.train(References.rows("models", torch.zeros(0, dtype=torch.long)), f.training())
    assert len(result.losses) == 0
    assert torch.equal(f.bank.rows("trained"), f.bank.rows("models"))


def test_batchnorm_on_a_single_sample_is_refused_before_training(federation):
    network = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    with pytest.raises(UserError, match=r"client 1 has 5 training samples.*batch_size=4.*BatchNorm"):
        federation(network=network, sizes=(8, 5, 9))
    federation(network=network, sizes=(8, 6, 11))


def test_layers_may_compute_in_bfloat16_while_models_stay_in_float32(federation, naive):
    f = federation(dtype=torch.float32, reduced=torch.bfloat16)
    exact = federation(dtype=torch.float32)
    before = f.bank.rows("models").clone()
    for g in (f, exact):
        g.engine.train(own(0, 1, 2), g.training(epochs=1, lr=0.3))
    assert f.bank.rows("trained").dtype == torch.float32
    for i in range(3):
        module = naive.module(f.network, before[i])
        with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):  # a cache would keep the first step's weights
            naive.train(module, f.data, i, functools.partial(torch.optim.SGD, lr=0.3), epochs=1, dtype=f.dtype)
        moved = (naive.row(module, f.dtype) - before[i]).norm()
        assert (f.bank.rows("trained")[i] - naive.row(module, f.dtype)).norm() < 0.02 * moved
        assert not torch.equal(f.bank.rows("trained")[i], exact.bank.rows("trained")[i])
    scores, exactly = (g.engine.evaluate(own(0, 1, 2), "test").losses for g in (f, exact))
    torch.testing.assert_close(scores, exactly, rtol=0.02, atol=0.0)
    assert not torch.equal(scores, exactly)


# --- personal and frozen parameters -----------------------------------------------------------------------------------
SHAPES = [(5, 6), (5,), (3, 5), (3,)]  # of the `mlp`


class Recorder(Plain):
    """Plain, remembering the parameters after every step; a single client's, with or without others' dimension."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def step(self, ctx):
        super().step(ctx)
        params = ctx.model().params
        self.seen.append([p.reshape(shape).clone() for p, shape in zip(params, SHAPES, strict=True)])


def test_personal_parameters_are_trained_first_and_then_the_shared_ones(federation, naive):
    objective = Recorder()
    f = federation(shared=["0.*"], objective=objective)
    start = list(naive.module(f.network, f.bank.rows("models")[0]).parameters())
    f.engine.train(own(0), f.training(epochs=2))
    steps = 2 * 3  # 9 samples in batches of 4
    assert len(objective.seen) == 2 * steps
    end_of_personal = objective.seen[steps - 1]
    for seen in objective.seen[:steps]:
        assert torch.equal(seen[0], start[0])
        assert torch.equal(seen[1], start[1])
    for seen in objective.seen[steps:]:
        assert torch.equal(seen[2], end_of_personal[2])
        assert torch.equal(seen[3], end_of_personal[3])
    assert not torch.equal(end_of_personal[2], start[2])
    assert not torch.equal(objective.seen[-1][0], start[0])


def test_without_personal_epochs_only_the_shared_parameters_move(federation):
    f = federation(shared=["0.*"], objective=Plain(personal_epochs=0))
    before = f.bank.rows("models")[0]
    result = f.engine.train(own(0), f.training(epochs=1))
    after = f.bank.rows("trained")[0]
    assert torch.equal(after[35:], before[35:])
    assert (after[:35] != before[:35]).any()
    assert result.samples.tolist() == [9]


def test_without_shared_epochs_the_personal_loss_is_returned(federation):
    f = federation(shared=["0.*"], objective=Plain(personal_epochs=3))
    before = f.bank.rows("models")[0]
    result = f.engine.train(own(0), f.training(epochs=0))
    assert result.samples.tolist() == [27]
    assert result.losses.isfinite().all()
    assert torch.equal(f.bank.rows("trained")[0][:35], before[:35])


def test_buffers_of_a_phase_that_is_not_trained_stay(federation):
    f = federation("batchnorm", shared=["0.*", "1.*"], objective=Plain(personal_epochs=2))
    before = f.bank.rows("models")[0]
    f.engine.train(own(0), f.training(epochs=0))  # the personal phase alone: the head
    after = f.bank.rows("trained")[0]
    for entry in f.layout.entries:
        moved = not torch.equal(after[entry.start : entry.stop], before[entry.start : entry.stop])
        assert moved == entry.name.startswith(("5.", "1.num_batches"))  # integer buffers are always personal


@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_frozen_parameters_never_move_not_even_by_weight_decay(federation, make_network, naive, name):
    network = make_network("mlp")
    network[0].weight.requires_grad_(False)
    kind, options = OPTIMIZERS[name]
    f = federation(network=network, optimizer=functools.partial(kind, lr=1.0, **options))
    before = network[0].weight.detach().clone()
    f.engine.train(own(0, 1, 2), f.training(lr=0.1))
    assert f.layout.width == 5 + 15 + 3
    assert torch.equal(network[0].weight, before)
    assert torch.equal(f.layout.base["0.weight"], before)
    naive.check(f, functools.partial(kind, lr=0.1, **options))


@pytest.mark.parametrize("kind", ["mlp", "batchnorm"])
@pytest.mark.parametrize("name", ["momentum", "adamw"])
def test_unused_parameters_stay_as_with_torchs_optimizers(federation, make_network, naive, name, kind):
    """Also with clipping, and where clients with batches of different lengths go one after the other."""
    network = nn.Sequential(*make_network(kind), Idle())
    optimizer, options = OPTIMIZERS[name]
    f = federation(kind, network=network, optimizer=functools.partial(optimizer, lr=77.0, **options), clip_norm=0.3)
    f.engine.cohorts = [torch.arange(3)]
    f.engine.train(own(0, 1, 2), f.training(lr=0.01))
    naive.check(f, functools.partial(optimizer, lr=0.01, **options), clip_norm=0.3)
    idle = next(entry for entry in f.layout.entries if entry.shape == (2, 3))
    assert torch.equal(*(f.bank.rows(rows)[:, idle.start : idle.stop] for rows in ("trained", "models")))


def test_zero_gradients_that_an_objective_changes_are_applied(federation, make_network, naive):
    class Drawn(Objective):
        """Adds to every gradient what pulls parameters to 1."""

        stackable = True

        def step(self, ctx):
            model = ctx.model()
            grads = model.grad(ctx.next_batch())
            for gradient, parameter in zip(grads, model.params, strict=True):
                gradient += parameter - 1
            model.update(grads)

    f = federation(network=nn.Sequential(*make_network("mlp"), Idle()), objective=Drawn())
    f.engine.train(own(0), f.training(epochs=1, lr=0.1))
    before, after = (f.bank.rows(rows)[0, -8:] for rows in ("models", "trained"))
    close(after - 1, 0.9**3 * (before - 1))


def test_a_frozen_parameter_outside_the_shared_ones_makes_nothing_personal(federation, make_network):
    network = make_network("mlp")
    network[0].requires_grad_(False)
    f = federation(network=network, shared=["2.*"])
    assert not f.layout.has_personal_parameters
    f.engine.train(own(0), f.training(lr=0.1))
    assert f.layout.width == 18
    assert not torch.equal(f.bank.rows("trained")[0], f.bank.rows("models")[0])


# --- objectives of users ----------------------------------------------------------------------------------------------
class LookAhead(Objective):
    """The gradient at a point between the start and where the job is."""

    stackable = True

    def step(self, ctx):
        model = ctx.model()
        between = [(p + s) / 2 for p, s in zip(model.params, model.start, strict=True)]
        model.update(model.grad(ctx.next_batch(), at=between))


def test_an_objective_may_take_gradients_elsewhere(federation, naive):
    f = federation(objective=LookAhead())
    module = naive.module(f.network, f.bank.rows("models")[1])
    f.engine.train(own(1), f.training(epochs=3, lr=0.3))
    start = copy.deepcopy(module)
    x, y = naive.inputs(f.data, f.data.train[1], f.dtype)
    for _ in range(3):
        between = copy.deepcopy(module)
        for b, s in zip(between.parameters(), start.parameters(), strict=True):
            b.data = (b.data + s.data) / 2
        grads = torch.autograd.grad(nn.functional.cross_entropy(between(x), y), list(between.parameters()))
        for p, g in zip(module.parameters(), grads, strict=True):
            p.data -= 0.3 * g
    close(f.bank.rows("trained")[1], naive.row(module, f.dtype))


# --- tied weights -----------------------------------------------------------------------------------------------------
class Tied(nn.Module):
    """Scores of words by the embedding that reads them."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 5)
        self.output.weight = self.embedding.weight

    def forward(self, x):
        return self.output(torch.tanh(self.hidden(self.embedding(x.long()).mean(1))))


class Twins(nn.Module):
    """Two layers with one parameter."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 5)
        self.second.weight = self.first.weight

    def forward(self, x):
        return self.head(self.second(torch.tanh(self.first(x))))


@pytest.mark.parametrize("kind", [Tied, Twins])
def test_tied_weights_train_as_in_the_plain_module(federation, naive, make_data, kind):
    torch.manual_seed(0)
    data = make_data(classes=5)
    if kind is Tied:
        data.images = (torch.arange(data.images.numel()) * 7 % 5 * 2).view(-1, 6) - 0.5  # 0.5 x + 0.25 is 0.. 4
    f = federation(network=kind(), data=data, optimizer=functools.partial(torch.optim.Adam, lr=1.0))
    f.engine.train(own(0, 1), f.training(lr=0.02))
    naive.check(f, functools.partial(torch.optim.Adam, lr=0.02), (0, 1))


# --- gradients --------------------------------------------------------------------------------------------------------
def test_gradients_are_those_of_the_mean_loss_over_all_data(federation, naive):
    f = federation()
    before = f.bank.rows("models").clone()
    found = f.engine.gradients(own(2, 0), f.training(gradients=True))
    for i in (0, 2):
        module = naive.module(f.network, before[i])
        x, y = naive.inputs(f.data, f.data.train[i], f.dtype)
        nn.functional.cross_entropy(module(x), y).backward()
        close(found[i], torch.cat([p.grad.reshape(-1) for p in module.parameters()]))
    assert not found[1].any()
    assert torch.equal(f.bank.rows("models"), before)
    with pytest.raises(KeyError):
        f.bank.rows("trained")


def test_single_batch_gradients_are_those_of_the_first_batch(federation, naive):
    f = federation()
    before = f.bank.rows("models")[2].clone()
    found = f.engine.gradients(own(2), f.training(gradients=True, batches=1))[2]
    f.engine.train(own(2), Training("local", 3, f.training(epochs=1).phases, ({"lr": 1.0},)))
    module = naive.module(f.network, before)
    order = drawn_order(14, naive.seed, "local", 3, 2, 0)
    x, y = naive.inputs(f.data, f.data.train[2][order[:4]], f.dtype)
    nn.functional.cross_entropy(module(x), y).backward()
    close(found, torch.cat([p.grad.reshape(-1) for p in module.parameters()]))


def test_gradients_update_nothing_even_when_the_flag_is_forgotten(federation):
    f = federation("batchnorm")
    before = f.bank.rows("models").clone()
    f.engine.train(own(0, 1), f.training())
    trained = f.bank.rows("trained").clone()
    forgotten = f.engine.gradients(References.rows("trained", torch.tensor([0, 1])), f.training())
    asked = f.engine.gradients(References.rows("trained", torch.tensor([0, 1])), f.training(gradients=True))
    assert torch.equal(forgotten, asked)
    assert torch.equal(f.bank.rows("models"), before)
    assert torch.equal(f.bank.rows("trained"), trained)
    buffers = ~f.layout.parameters.mask(f.layout.width)
    assert not asked[:, buffers].any()


# --- evaluation -------------------------------------------------------------------------------------------------------
def naive_scores(module, x, y):
    module.eval()
    with torch.no_grad():
        outputs = module(x)
    losses = [-float(torch.log_softmax(o, 0)[c]) for o, c in zip(outputs, y, strict=True)]
    return sum(losses) / len(y), float((outputs.argmax(1) == y).double().mean()), outputs


@pytest.mark.parametrize("kind", ["mlp", "batchnorm", "dropout"])
@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_evaluation_equals_a_plain_module_in_evaluation_mode(federation, naive, kind, split):
    f = federation(kind)
    found = f.engine.evaluate(own(2, 0, 1), split)
    for r, i in enumerate((2, 0, 1)):
        x, y = naive.inputs(f.data, getattr(f.data, split)[i], f.dtype)
        loss, accuracy, _ = naive_scores(naive.module(f.network, f.bank.rows("models")[i]), x, y)
        assert float(found.losses[r]) == pytest.approx(loss, rel=1e-10)
        assert float(found.metrics["acc"][r]) == accuracy
    assert found.losses.dtype == torch.float64


def test_evaluation_in_several_passes_weighs_them_by_size(federation, naive, monkeypatch):
    monkeypatch.setattr("dfl_lightning.engines.loop.scratch.EVALUATION_BATCH", 5)
    monkeypatch.setattr("dfl_lightning.engines.stacked.evaluation.EVALUATION_BATCH", 5)
    f = federation()
    found = f.engine.evaluate(own(2), "train")  # 14 samples: 5, 5, 4
    x, y = naive.inputs(f.data, f.data.train[2], f.dtype)
    loss, accuracy, _ = naive_scores(naive.module(f.network, f.bank.rows("models")[2]), x, y)
    assert float(found.losses) == pytest.approx(loss, rel=1e-10)
    assert float(found.metrics["acc"]) == pytest.approx(accuracy, rel=1e-12)


def test_another_clients_model_is_completed_by_the_owners_head(federation, naive):
    f = federation(shared=["0.*"])
    f.engine.train(own(0, 1, 2), f.training())
    trained = f.bank.rows("trained")
    found = f.engine.evaluate(References.rows("trained", torch.tensor([1, 2]), owners=torch.tensor([0, 0])), "val")
    x, y = naive.inputs(f.data, f.data.val[0], f.dtype)
    for r, j in enumerate((1, 2)):
        module = naive.module(f.network, trained[j])
        module[2] = naive.module(f.network, trained[0])[2]
        assert float(found.losses[r]) == pytest.approx(naive_scores(module, x, y)[0], rel=1e-10)


def test_personal_parameters_may_come_from_before_the_training(federation, naive):
    f = federation(shared=["0.*"])
    f.engine.train(own(0, 1, 2), f.training())
    references = References.rows("trained", torch.tensor([1]), owners=torch.tensor([0]), personal="models")
    module = naive.module(f.network, f.bank.rows("trained")[1])
    module[2] = naive.module(f.network, f.bank.rows("models")[0])[2]
    x, y = naive.inputs(f.data, f.data.val[0], f.dtype)
    expected = naive_scores(module, x, y)[0]
    assert float(f.engine.evaluate(references, "val").losses) == pytest.approx(expected, rel=1e-10)


def test_a_weighted_combination_is_the_averaged_module(federation, naive):
    f = federation("batchnorm", sets=["initial"])
    weights = torch.tensor([[0.5, 0.25, 0.25], [0.0, 0.9, 0.1]], dtype=torch.float64)
    references = References((Term("models", 0.9 * weights), Term("initial", 0.1 * weights)), torch.tensor([2, 0]))
    found = f.engine.evaluate(references, "test")
    for r, i in enumerate((2, 0)):
        sums = [0.9 * f.bank.rows("models")[j] + 0.1 * f.bank.rows("initial")[j] for j in range(3)]
        row = sum(float(weights[r, j]) * sums[j] for j in range(3))
        row[-1] = 0  # num_batches_tracked is one's own
        x, y = naive.inputs(f.data, f.data.test[i], f.dtype)
        assert float(found.losses[r]) == pytest.approx(naive_scores(naive.module(f.network, row), x, y)[0], rel=1e-9)


def test_owner_minus_one_means_the_global_test_set(federation, naive):
    f = federation(servers=1)
    references = References.rows("models", torch.tensor([3, 0]), owners=torch.tensor([-1, 0]))
    found = f.engine.evaluate(references, "test")
    x, y = naive.inputs(f.data, f.data.global_test, f.dtype)
    loss, accuracy, _ = naive_scores(naive.module(f.network, f.bank.rows("models")[3]), x, y)
    assert float(found.losses[0]) == pytest.approx(loss, rel=1e-10)
    assert float(found.metrics["acc"][0]) == pytest.approx(accuracy)
    assert float(found.losses[1]) == float(f.engine.evaluate(own(0), "test").losses)


def test_the_global_test_set_refuses_models_with_personal_parameters(federation):
    f = federation(shared=["0.*"])
    with pytest.raises(ValueError, match="needs an owner"):
        f.engine.evaluate(References.rows("models", torch.tensor([0]), owners=torch.tensor([-1])), "test")


def test_an_empty_split_has_no_scores(federation, make_data):
    data = make_data()
    data.val = (data.val[0], data.val[1][:0], data.val[2])
    f = federation(data=data, metrics={"f1": torchmetrics.F1Score("multiclass", num_classes=3)})
    found = f.engine.evaluate(own(0, 1, 2), "val")
    for values in (found.losses, found.metrics["acc"], found.metrics["f1"]):
        assert values.isnan().tolist() == [False, True, False]


def test_torchmetrics_are_computed_for_each_client(federation, naive):
    chosen = {
        "f1": torchmetrics.F1Score("multiclass", num_classes=3, average="macro"),
        "calibration": torchmetrics.CalibrationError("multiclass", num_classes=3),
    }
    f = federation("batchnorm", metrics=chosen)
    found = f.engine.evaluate(own(1, 2, 0), "train")
    for r, i in enumerate((1, 2, 0)):
        x, y = naive.inputs(f.data, f.data.train[i], f.dtype)
        outputs = naive_scores(naive.module(f.network, f.bank.rows("models")[i]), x, y)[2]
        for name, metric in chosen.items():
            assert float(found.metrics[name][r]) == pytest.approx(float(metric.clone()(outputs, y)), abs=1e-6)


def test_the_configured_network_itself_is_never_touched(federation, make_network):
    network = make_network("batchnorm")
    state = copy.deepcopy(network.state_dict())
    f = federation(network=network, data=None, kind="batchnorm")
    f.engine.train(own(0, 1, 2), f.training())
    f.engine.evaluate(own(0), "test")
    assert all(torch.equal(value, state[name]) for name, value in network.state_dict().items())
    assert all(p.grad is None for p in network.parameters())


# --- quarantine -------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_a_diverged_job_keeps_the_former_row(federation, make_data, poison):
    data = make_data()
    data.images[data.train[1][0]] = poison
    f = federation(data=data)
    clean = federation()
    before = f.bank.rows("models").clone()
    result = f.engine.train(own(2, 1, 0), f.training())
    assert result.finite.tolist() == [True, False, True]
    assert torch.equal(f.bank.rows("trained")[1], before[1])
    clean.engine.train(own(0, 1, 2), clean.training())
    assert torch.equal(f.bank.rows("trained")[[0, 2]], clean.bank.rows("trained")[[0, 2]])


def test_a_diverged_job_from_the_servers_model_has_no_update(federation, make_data):
    data = make_data()
    data.images[data.train[1][0]] = float("nan")
    f = federation(data=data, servers=1)
    f.engine.train(References((Term("models", torch.full((3,), 3)),), torch.arange(3)), f.training())
    found = compare_pairs(f.bank, "trained", torch.ones(3, 3, dtype=torch.bool), relative_to="start")
    assert not found.cosines[1].any()
