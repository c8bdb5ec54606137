"""The phases of plain descent and of FedProx; what they do to rows is tested with the engines."""

import pytest
from torch import nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.objectives import Duration, FedProx, Plain

NETWORK = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))


@pytest.mark.parametrize("objective", [Plain(personal_epochs=7), FedProx(0.1)])
def test_one_phase_trains_everything_where_nothing_is_personal(objective):
    layout = Layout(NETWORK)
    (phase,) = objective.phases(layout, Duration(3), 0)
    assert (phase.objective, phase.duration.epochs, phase.columns) == (objective, 3, layout.all)


@pytest.mark.parametrize(
    ("objective", "epochs"), [(Plain(), 3), (Plain(1), 1), (Plain(0), 0), (FedProx(0.1, personal_epochs=2), 2)]
)
def test_personal_parameters_come_first_and_by_plain_descent(objective, epochs):
    layout = Layout(NETWORK, ["0.*"])
    personal, shared = objective.phases(layout, Duration(3), 0)
    assert (type(personal.objective), personal.duration.epochs, personal.columns) == (Plain, epochs, layout.personal)
    assert (shared.objective, shared.duration.epochs, shared.columns) == (objective, 3, layout.shared)
