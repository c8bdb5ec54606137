"""Optimizers whose state lasts over rounds, against one object of torch for each client in an ordinary loop."""

import copy
import functools

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from turns import in_turn

from dfl_lightning.callbacks import Bernoulli, FedeRiCo, FedeRiCoStep, Gossip, SampleWeighted, Uniform
from dfl_lightning.objectives import APFL, DisPFL, Ditto, FedRep, Plain
from dfl_lightning.runs.memory_estimate import predicted_memory
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

SIZES, RATE, ROUNDS = [6, 3, 9, 2, 5], 0.05, 5

OPTIMIZERS = {
    "SGD": {"momentum": 0.9, "weight_decay": 0.01},
    "SGD, Nesterov": {"momentum": 0.9, "nesterov": True},
    "SGD, dampened": {"momentum": 0.9, "dampening": 0.5},
    "Adam": {"weight_decay": 0.01, "amsgrad": True},
    "AdamW": {"weight_decay": 0.1},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Adagrad": {"initial_accumulator_value": 0.1, "lr_decay": 0.01},
    "Adadelta": {},
    "Adamax": {},
    "NAdam": {},
    "RAdam": {},
    "Rprop": {},
    "ASGD": {},
}


def optimizer_of(name):
    kind = getattr(torch.optim, name.partition(",")[0])
    return functools.partial(kind, lr=RATE, **OPTIMIZERS[name])


@pytest.fixture
def federation(start, make_data):
    def _start(*policies, engine="stacked", sizes=SIZES, trainer=None, **settings):
        return start(
            *(policies or (Gossip(k="all"), Uniform())),
            topology=nx.cycle_graph(len(sizes)),
            data=make_data(sizes=sizes),
            rounds=1000,
            trainer={"precision": "64-true", "engine": engine, **(trainer or {})},
            **{"optimizer": optimizer_of("Adam"), "batch_size": 4, "local_epochs": 2, "keep_optimizer": True}
            | settings,
        )

    return _start


class ByHand:
    """A client's module and optimizer of torch, made once for the whole run."""

    def __init__(self, run, owner, optimizer):
        self.data, self.samples, self.owner = run.data, run.data.train[owner], owner
        self.module = copy.deepcopy(run.module.network).double()
        self.put(run.models[owner])
        self.optimizer = optimizer(self.module.parameters())

    def put(self, row):
        with torch.no_grad():
            nn.utils.vector_to_parameters(row.clone(), self.module.parameters())

    def row(self):
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()

    def train(self, number, rate, epochs=2):
        self.optimizer.param_groups[0]["lr"] = rate
        for epoch in range(epochs):
            order = drawn_order(len(self.samples), 0, "local", number, self.owner, epoch)
            for part in self.samples[order].split(4):
                x, y = self.data.batch(part, dtype=torch.float64)
                self.optimizer.zero_grad()
                cross_entropy(self.module(x), y).backward()
                self.optimizer.step()

    def remembers(self, field):
        states = [self.optimizer.state[p][field] for p in self.module.parameters() if self.optimizer.state.get(p)]
        return torch.cat([s.flatten() for s in states] or [torch.zeros_like(self.row())])


def mixed_by_hand(clients, up):
    """Average each active client's model with those of its active neighbours on the cycle."""
    trained, m = [client.row() for client in clients], len(clients)
    for i, client in enumerate(clients):
        if up[i]:
            members = [j for j in ((i - 1) % m, i, (i + 1) % m) if up[j]]
            client.put(torch.stack([trained[j] for j in members]).mean(0))


@pytest.mark.parametrize(("engine", "name"), in_turn(("stacked", "loop"), OPTIMIZERS))
def test_training_equals_one_torch_optimizer_over_all_rounds(engine, name, federation):
    """Clients with one to three batches an epoch, some of them down now and then, at a rate that falls."""
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.8)
    optimizer = optimizer_of(name)
    policies = (Gossip(k="all"), Uniform(), Bernoulli(0.3))
    run = federation(*policies, engine=engine, optimizer=optimizer, lr_scheduler=schedule)
    clients = [ByHand(run, i, optimizer) for i in range(len(SIZES))]
    tensors = [field.removeprefix("optimizer.") for field in run.module.bank.boundary.rows if "optimizer." in field]
    was_down, tolerance = 0, {"rtol": 0, "atol": 1e-11}
    for number in range(ROUNDS):
        run.go(1)
        up = run.rounds[-1].participants.tolist()
        was_down += up.count(False)
        for client in clients:
            if up[client.owner]:
                client.train(number, RATE * 0.8**number)
        mixed_by_hand(clients, up)
        torch.testing.assert_close(run.models, torch.stack([c.row() for c in clients]), **tolerance)
    assert was_down
    assert tensors
    for field in tensors:
        kept = torch.stack([client.remembers(field) for client in clients])
        torch.testing.assert_close(run.rows(f"optimizer.{field}"), kept, **tolerance)


class Scaled(nn.Module):
    """A convolution, and a parameter without dimensions."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.5))
        self.body = nn.Sequential(
            nn.Unflatten(1, (1, 1, 5)), nn.Conv2d(1, 2, (1, 2)), nn.Tanh(), nn.Flatten(), nn.Linear(8, 3)
        )

    def forward(self, x):
        return self.body(x * self.scale)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_chunks_of_clients_work_with_parameters_of_any_shape(engine, federation):
    network, optimizer = Scaled(), optimizer_of("Adam")
    policies = (Gossip(k="all"), Uniform(), Bernoulli(0.3))
    run = federation(*policies, engine=engine, network=network, optimizer=optimizer, trainer={"cohorts": 3})
    assert len(run.module.engine.cohorts) >= 3
    clients = [ByHand(run, i, optimizer) for i in range(len(SIZES))]
    for number in range(ROUNDS):
        up = run.go(1).rounds[-1].participants.tolist()
        for client in clients:
            if up[client.owner]:
                client.train(number, RATE)
        mixed_by_hand(clients, up)
    torch.testing.assert_close(run.models, torch.stack([c.row() for c in clients]), rtol=0, atol=1e-11)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_personal_and_shared_parameters_count_their_steps_apart(engine, federation):
    """First two epochs on the head, then two on the rest: a part of one optimizer's parameters has gradients."""
    optimizer = optimizer_of("Adam")
    run = federation(Gossip(k=0), Uniform(), engine=engine, optimizer=optimizer, shared=["features.*"], local_epochs=1)
    client = ByHand(run, 2, optimizer)
    body = [p for name, p in client.module.named_parameters() if name.startswith("features.")]
    head = [p for name, p in client.module.named_parameters() if not name.startswith("features.")]
    for number in range(3):
        run.go(1)
        for epoch, (trained, frozen) in enumerate([(head, body), (body, head)]):
            for p in [*trained, *frozen]:
                p.requires_grad_(any(p is t for t in trained))
            order = drawn_order(len(client.samples), 0, "local", number, 2, epoch)
            for part in client.samples[order].split(4):
                x, y = client.data.batch(part, dtype=torch.float64)
                client.optimizer.zero_grad()
                cross_entropy(client.module(x), y).backward()
                client.optimizer.step()
    torch.testing.assert_close(run.models[2], client.row(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_each_model_of_an_objective_has_its_own_optimizer(engine, federation):
    """Ditto without neighbours: the exchanged model descends, the personal one is pulled to where the round began."""
    optimizer = optimizer_of("Adam")
    run = federation(Gossip(k=0), Uniform(), engine=engine, optimizer=optimizer, objective=Ditto(lam=0.5))
    exchanged, personal = ByHand(run, 4, optimizer), ByHand(run, 4, optimizer)
    for number in range(3):
        run.go(1)
        start = exchanged.row()
        exchanged.train(number, RATE)
        for epoch in range(2):
            order = drawn_order(len(personal.samples), 0, "local", number, 4, epoch)
            for part in personal.samples[order].split(4):
                x, y = personal.data.batch(part, dtype=torch.float64)
                personal.optimizer.zero_grad()
                pull = nn.utils.parameters_to_vector(personal.module.parameters()) - start
                (cross_entropy(personal.module(x), y) + 0.25 * pull.square().sum()).backward()
                personal.optimizer.step()
    torch.testing.assert_close(run.models[4], exchanged.row(), rtol=0, atol=1e-11)
    torch.testing.assert_close(run.rows("personal")[4], personal.row(), rtol=0, atol=1e-11)
    kept = personal.remembers("exp_avg")
    torch.testing.assert_close(run.rows("optimizer.personal.exp_avg")[4], kept, rtol=0, atol=1e-11)


def test_kept_optimizers_differ_from_new_ones_after_round_0(federation):
    kept, new = federation(), federation(keep_optimizer=False)
    assert torch.equal(kept.go(1).models, new.go(1).models)
    assert (kept.go(1).models - new.go(1).models).abs().max() > 1e-3


def test_dropped_client_keeps_its_optimizer_state(federation):
    run = federation(Gossip(k="all"), Uniform(), Bernoulli(0.5)).go(1)
    before = {name: rows.clone() for name, rows in run.bank.boundary.rows.items()}
    numbers = dict(run.bank.boundary.numbers)
    down = ~run.go(1).rounds[-1].participants
    assert down.any()
    assert not down.all()
    for name in ("optimizer.exp_avg", "optimizer.exp_avg_sq"):
        moved = (run.rows(name) != before[name]).any(1)
        assert torch.equal(moved, ~down)
    step = "_optimizer.models.step.0"
    batches = torch.tensor([4.0, 2.0, 6.0, 2.0, 4.0])
    assert torch.equal(run.bank.boundary.numbers[step] - numbers[step], (batches * ~down).double())


def test_a_client_that_diverges_keeps_its_former_state(federation):
    run = federation(Gossip(k=0), Uniform()).go(1)
    before = run.rows("optimizer.exp_avg").clone()
    run.module.federation.data.images[run.module.federation.data.train[3]] = torch.inf
    with pytest.warns(UserWarning, match="training of client 3 diverged"):
        run.go(1)
    moved = (run.rows("optimizer.exp_avg") != before).any(1)
    assert moved.tolist() == [True, True, True, False, True]


def test_kept_optimizers_resume_from_a_file(federation, through_a_file):
    whole, first, second = (federation(Gossip(k="all"), Uniform(), Bernoulli(0.3)) for _ in range(3))
    second.take_up(through_a_file(first.go(2).state())).go(2)
    whole.go(4)
    assert whole.bank.boundary.rows.keys() == second.bank.boundary.rows.keys()
    for name, rows in whole.bank.boundary.rows.items():
        assert torch.equal(rows, second.rows(name)), name
    for name, values in whole.bank.boundary.numbers.items():
        assert torch.equal(values, second.bank.boundary.numbers[name]), name


def test_fine_tuning_has_a_new_optimizer_and_keeps_nothing(federation):
    run = federation(finetune_epochs=1).go(2)
    before = {name: rows.clone() for name, rows in run.bank.boundary.rows.items()}
    owner = 2
    tuned = run.module.evaluated_models()
    row = run.bank.materialise(tuned)[owner]
    client = ByHand(run, owner, optimizer_of("Adam"))
    order = drawn_order(len(client.samples), 0, "finetune", 2, owner, 0)
    for part in client.samples[order].split(4):
        x, y = client.data.batch(part, dtype=torch.float64)
        client.optimizer.zero_grad()
        cross_entropy(client.module(x), y).backward()
        client.optimizer.step()
    torch.testing.assert_close(row, client.row(), rtol=0, atol=1e-11)
    run.bank.abandon()
    for name, rows in before.items():
        assert torch.equal(run.rows(name), rows)


def test_under_a_server_clients_keep_their_states(start, make_data):
    run = start(
        *(Gossip(k="all"), SampleWeighted()),
        topology="server",
        data=make_data(sizes=SIZES),
        optimizer=optimizer_of("SGD"),
        keep_optimizer=True,
    ).go(2)
    rows = run.rows("optimizer.momentum_buffer")
    assert rows[: len(SIZES)].abs().amax(1).min() > 0
    assert not rows[len(SIZES) :].any()


class Counting(torch.optim.SGD):
    """Has a count of its own, which belongs to no parameter."""

    taken = 0

    def step(self, closure=None):
        self.taken += 1
        return super().step(closure)


class Pulling(Plain):
    """Updates a row set for which it asks no optimizer."""

    row_sets = {"other": "models"}

    def step(self, ctx):
        batch, other = ctx.next_batch(), ctx.model("other")
        ctx.model().update(ctx.model().grad(batch))
        other.update(other.grad(batch))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"optimizer": torch.optim.LBFGS}, "LBFGS cannot take a step from the gradients of a batch alone"),
        ({"optimizer": torch.optim.Adafactor}, "Adafactor remembers 'row_var', which is neither"),
        ({"optimizer": functools.partial(Counting, lr=0.1)}, "Counting changes 'taken' from step to step"),
        ({"objective": DisPFL()}, "objective DisPFL: a momentum from before the masks changed"),
    ],
)
def test_unsupported_optimizers_and_objectives_are_refused(settings, sentence, federation):
    with pytest.raises(UserError, match=sentence):
        federation(**settings)


def test_kept_optimizers_refuse_to_train_others_models(federation):
    with pytest.raises(UserError, match=r"FedeRiCoStep trains models of others, and model\.keep_optimizer keeps"):
        federation(FedeRiCo(), FedeRiCoStep())


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_undeclared_row_set_is_refused(engine, federation):
    run = federation(objective=Pulling(), engine=engine)
    with pytest.raises(UserError, match=r"add the class attribute optimized = \('models', 'other'\)"):
        run.go(1)


def test_stateless_optimizer_gets_a_remark(federation):
    run = federation(optimizer=functools.partial(torch.optim.SGD, lr=0.1)).go(1)
    assert list(run.bank.boundary.rows) == ["models"]
    assert any("SGD with these options remembers nothing" in remark for remark in run.trainer.remarks)
    assert not run.bank.boundary.numbers


@pytest.mark.parametrize(("objective", "models"), [(Plain, 1), (APFL, 2), (FedRep, 1)])
def test_the_predicted_memory_counts_what_is_kept(objective, models, federation):
    shared = {"shared": ["features.*"]} if objective is FedRep else {}
    more = {keep: federation(objective=objective(), keep_optimizer=keep, **shared) for keep in (False, True)}
    rows = more[True].models.numel() * 8
    kept = predicted_memory(more[True].module)["rows"] - predicted_memory(more[False].module)["rows"]
    assert kept == 3 * 2 * rows * models  # Adam with amsgrad remembers three tensors, in two buffers each
