"""The phases and the step of plain descent; what they do to rows is tested with the engine."""

import pytest
from torch import nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.objectives import Duration, Plain
from dfl_lightning.utils.errors import UserError

NETWORK = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


def test_one_phase_trains_everything_where_nothing_is_personal():
    layout = Layout(NETWORK)
    objective = Plain(personal_epochs=7)
    (phase,) = objective.phases(layout, Duration(3), 0)
    assert (phase.objective, phase.duration.epochs, phase.columns) == (objective, 3, layout.all)


@pytest.mark.parametrize(("given", "epochs"), [(None, 3), (1, 1), (0, 0)])
def test_personal_parameters_come_first(given, epochs):
    layout = Layout(NETWORK, ["0.*"])
    personal, shared = Plain(given).phases(layout, Duration(3), 0)
    assert (personal.duration.epochs, personal.columns) == (epochs, layout.personal)
    assert (shared.duration.epochs, shared.columns) == (3, layout.shared)


def test_a_negative_number_of_epochs_is_refused():
    with pytest.raises(UserError, match="personal_epochs=-1"):
        Plain(personal_epochs=-1)


def test_a_step_is_one_batch_one_gradient_and_one_update():
    calls = []

    class Context:
        def next_batch(self):
            calls.append("next_batch")
            return "batch"

        def model(self):
            return self

        def grad(self, batch):
            calls.append(("grad", batch))
            return "grads"

        def update(self, grads):
            calls.append(("update", grads))

    Plain().step(Context())
    assert calls == ["next_batch", ("grad", "batch"), ("update", "grads")]
