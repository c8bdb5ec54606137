"""The phases and the step of FedProx; what they do to rows is tested with the engines."""

import torch
from torch import nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.objectives import Duration, FedProx, Plain

NETWORK = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


def test_one_phase_trains_everything_where_nothing_is_personal():
    layout, objective = Layout(NETWORK), FedProx(0.1)
    (phase,) = objective.phases(layout, Duration(3), 0)
    assert (phase.objective, phase.duration.epochs, phase.columns) == (objective, 3, layout.all)


def test_personal_parameters_are_trained_by_plain_descent():
    layout, objective = Layout(NETWORK, ["0.*"]), FedProx(0.1, personal_epochs=2)
    personal, shared = objective.phases(layout, Duration(3), 0)
    assert (type(personal.objective), personal.duration.epochs, personal.columns) == (Plain, 2, layout.personal)
    assert (shared.objective, shared.duration.epochs, shared.columns) == (objective, 3, layout.shared)


def test_a_step_adds_mu_times_the_way_from_the_start():
    class Model:
        params, start = [torch.tensor([3.0, -1.0])], [torch.tensor([1.0, 1.0])]

        def grad(self, batch):
            return [torch.tensor([0.5, 0.5])]

        def update(self, grads):
            self.grads = grads

    class Context:
        own = Model()

        def next_batch(self):
            return "batch"

        def model(self):
            return self.own

    ctx = Context()
    FedProx(0.25).step(ctx)
    assert ctx.own.grads[0].tolist() == [1.0, 0.0]
