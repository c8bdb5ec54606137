"""Few samples, and numbers that are none: said before anything is trained."""

import math

import pytest
import torch
from game.parts import CLASSES, FEATURES, Network
from game.play import Case, Game
from torch import nn

from dfl_lightning.data import FromDataset
from dfl_lightning.utils.errors import UserError


class Normalised(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(FEATURES, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, CLASSES))


@pytest.mark.parametrize("engine", ["loop", "stacked"])
def test_a_batch_norm_with_a_single_sample_names_a_remedy(engine):
    def start(*sizes):
        return Game(Case(list(sizes), [0, 0], [0, 0], "complete", engine=engine), network=Normalised())

    with pytest.raises(
        UserError, match=r"^client 1 has 1 training sample, .* a single one, .*BatchNorm.*; give it more"
    ):
        start(4, 1)  # client 0 has a single one too, which another batch size would help
    with pytest.raises(
        UserError, match=r"^client 0 has 4 training samples, .*batch_size=3 .*; choose another batch size"
    ):
        start(4, 3)
    start(3, 2).play(rounds=1)


def with_parts(parts, **options):
    pairs = torch.utils.data.TensorDataset(torch.rand(12, FEATURES), torch.arange(12) % CLASSES)
    return FromDataset(pairs, parts=parts, **options)


def test_a_client_with_one_sample_is_named():
    parts = [[0, 1, 2, 3], [4]]
    with pytest.raises(UserError, match=r"client 1 has no test sample .*; lower num_clients or change test_fraction$"):
        with_parts(parts).setup()
    with pytest.raises(UserError, match=r"client 1 has no validation sample .* or set val_fraction: 0$"):
        with_parts(parts, test_fraction=0.0, val_fraction=0.5).setup()
    data = with_parts(parts, test_fraction=0.0)
    data.setup()
    assert data.clients.sizes("train").tolist() == [4, 1]


@pytest.mark.parametrize("init", ["common", "independent"])
def test_nan_in_first_parameters_is_refused_by_name(init):
    class Forgotten(nn.Linear):
        def reset_parameters(self):
            super().reset_parameters()
            nn.init.constant_(self.bias, math.nan)

    network = nn.Sequential(nn.Linear(FEATURES, 4), Forgotten(4, CLASSES))
    with pytest.raises(
        UserError, match=r"^model\.network Sequential: '1\.bias' holds NaN or infinity before the first round"
    ):
        Game(Case([3, 3], [0, 0], [0, 0], "complete"), network=network, init=init)


def test_nonfinite_pretrained_parameters_are_refused_by_file(tmp_path):
    state = Network().state_dict()
    state["2.weight"][1, 1] = math.inf
    torch.save(state, tmp_path / "start.pt")
    with pytest.raises(
        UserError, match=r"^model\.init=.*start\.pt: '2\.weight' holds NaN or infinity .*; use another file"
    ):
        Game(Case([3, 3], [0, 0], [0, 0], "complete"), init=str(tmp_path / "start.pt"))


def test_pretrained_parameters_of_another_kind_are_refused_by_file(tmp_path):
    state = Network().state_dict()
    state["2.weight"] = state["2.weight"] + 1j
    torch.save(state, tmp_path / "start.pt")
    with pytest.raises(
        UserError, match=r"^model\.init=.*start\.pt: '2\.weight' in the file is complex; save it as float"
    ):
        Game(Case([3, 3], [0, 0], [0, 0], "complete"), init=str(tmp_path / "start.pt"))


def test_a_network_on_the_meta_device_is_refused():
    network = nn.Sequential(nn.Linear(FEATURES, CLASSES, device="meta"))
    with pytest.raises(UserError, match=r"^model\.network Sequential: parameter '0\.weight' is without numbers"):
        Game(Case([3, 3], [0, 0], [0, 0], "complete"), network=network)
