"""Momentum that stays with its client, against plain modules whose optimizers are never made anew."""

import copy
import functools

import networkx as nx
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from dfl_lightning.callbacks import Bernoulli, Gossip, SampleWeighted, Uniform
from dfl_lightning.objectives import LocalMomentum, Plain
from dfl_lightning.utils.errors import UserError
from tests.helpers.orders import drawn_order

SIZES, RATE, ROUNDS = [6, 3, 9, 2, 5], 0.2, 5


@pytest.fixture
def federation(start, make_data):
    def _start(*policies, objective=None, **settings):
        return start(
            *(policies or (Gossip(k="all"), Uniform())),
            topology=nx.cycle_graph(len(SIZES)),
            data=make_data(sizes=SIZES),
            objective=objective or LocalMomentum(0.9),
            rounds=1000,
            trainer={"precision": "64-true", "engine": settings.pop("engine", "stacked")},
            **{
                "optimizer": functools.partial(torch.optim.SGD, lr=RATE),
                "batch_size": 4,
                "local_epochs": 2,
                **settings,
            },
        )

    return _start


class ByHand:
    """A client's module and optimizer of torch, made once for the whole run."""

    def __init__(self, run, owner):
        self.data, self.samples, self.owner = run.data, run.data.train[owner], owner
        self.module = copy.deepcopy(run.module.network).double()
        self.put(run.models[owner])
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=RATE, momentum=0.9)

    def put(self, row):
        with torch.no_grad():
            nn.utils.vector_to_parameters(row.clone(), self.module.parameters())

    def row(self):
        return nn.utils.parameters_to_vector(self.module.parameters()).detach().clone()

    def train(self, number, rate):
        self.optimizer.param_groups[0]["lr"] = rate
        for epoch in range(2):
            order = drawn_order(len(self.samples), 0, "local", number, self.owner, epoch)
            for part in self.samples[order].split(4):
                x, y = self.data.batch(part, dtype=torch.float64)
                self.optimizer.zero_grad()
                cross_entropy(self.module(x), y).backward()
                self.optimizer.step()

    def momentum(self):
        states = self.optimizer.state.values()
        return torch.cat([s["momentum_buffer"].flatten() for s in states] or [torch.zeros_like(self.row())])


@pytest.mark.parametrize("decay", [1.0, 0.5])
@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_it_is_torchs_optimizer_kept_over_all_rounds(engine, decay, federation):
    """Clients with one to three batches an epoch, some of them down now and then."""
    schedule = functools.partial(torch.optim.lr_scheduler.ExponentialLR, gamma=decay)
    run = federation(Gossip(k="all"), Uniform(), Bernoulli(0.3), engine=engine, lr_scheduler=schedule)
    clients = [ByHand(run, i) for i in range(len(SIZES))]
    was_down = 0
    for number in range(ROUNDS):
        run.go(1)
        up = run.rounds[-1].participants.tolist()
        was_down += up.count(False)
        for client in clients:
            if up[client.owner]:
                client.train(number, RATE * decay**number)
        trained = [client.row() for client in clients]
        for i, client in enumerate(clients):
            heard = [j for j in ((i - 1) % len(SIZES), i, (i + 1) % len(SIZES)) if up[j]]
            if up[i]:
                client.put(torch.stack([trained[j] for j in heard]).mean(0))
        torch.testing.assert_close(run.models, torch.stack([c.row() for c in clients]), rtol=0, atol=1e-12)
        kept = torch.stack([c.momentum() for c in clients])
        torch.testing.assert_close(run.rows("momentum"), kept, rtol=0, atol=1e-12)
    assert was_down


def test_in_one_round_it_is_the_optimizers_own(federation):
    own = functools.partial(torch.optim.SGD, lr=RATE, momentum=0.9)
    of_torch = federation(objective=Plain(), optimizer=own)
    ours = federation()
    torch.testing.assert_close(ours.go(1).models, of_torch.go(1).models, rtol=0, atol=1e-12)
    assert (ours.go(1).models - of_torch.go(1).models).abs().max() > 1e-3  # from the second round on it is not


def test_it_works_under_a_server(start, make_data):
    run = start(
        Gossip(k="all"),
        SampleWeighted(),
        topology="server",
        data=make_data(sizes=SIZES),
        objective=LocalMomentum(),
        optimizer=functools.partial(torch.optim.SGD, lr=RATE),
    ).go(2)
    rows = run.rows("momentum")
    assert rows[: len(SIZES)].abs().amax(1).min() > 0
    assert not rows[len(SIZES) :].any()


def test_personal_parameters_have_momentum_too(federation):
    run = federation(shared=["features.*"]).go(2)
    rows, personal = run.rows("momentum"), run.module.layout.personal.mask(run.module.layout.width)
    assert rows[:, personal].any()
    assert rows[:, ~personal].any()


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"optimizer": functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9)}, "SGD without momentum"),
        ({"optimizer": torch.optim.Adam}, "SGD without momentum"),
        ({"optimizer": functools.partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)}, "weight_decay to 0"),
        ({"trainer": {"gradient_clip_val": 1.0}}, "drop trainer.gradient_clip_val"),
    ],
)
def test_what_would_bypass_the_momentum_is_refused(settings, sentence, start, make_data):
    with pytest.raises(UserError, match=sentence):
        start(
            *(Gossip(k="all"), Uniform()),
            topology=nx.cycle_graph(len(SIZES)),
            data=make_data(sizes=SIZES),
            objective=LocalMomentum(),
            **{"optimizer": functools.partial(torch.optim.SGD, lr=0.1), **settings},
        )
