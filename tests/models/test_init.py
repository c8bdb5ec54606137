"""First parameters of models."""

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from dfl_lightning.bank.layout import Layout
from dfl_lightning.models.init import fresh_parameters, load_parameters
from dfl_lightning.utils.errors import UserError


def network():
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))


def weights(module):
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def test_each_node_has_its_own_repeatable_draw():
    plain = network()
    rows = [weights(fresh_parameters(plain, seed=0, node=i)) for i in range(3)]
    assert not any(torch.equal(rows[i], rows[j]) for i in range(3) for j in range(i))
    assert not torch.equal(rows[0], weights(plain))
    torch.manual_seed(99)
    assert torch.equal(weights(fresh_parameters(plain, seed=0, node=1)), rows[1])
    assert not torch.equal(weights(fresh_parameters(plain, seed=1, node=1)), rows[1])


def test_a_draw_depends_on_the_architecture_and_resets_buffers():
    used = network()
    used(torch.ones(4, 1, 4, 4))
    nn.init.constant_(used[0].weight, 5.0)
    fresh = fresh_parameters(used, seed=0, node=2)
    assert torch.equal(weights(fresh), weights(fresh_parameters(network(), seed=0, node=2)))
    assert int(fresh[1].num_batches_tracked) == 0
    assert not fresh[1].running_mean.any()


def test_drawing_changes_neither_network_nor_global_generator():
    plain = network()
    before = weights(plain).clone()
    state = torch.get_rng_state()
    fresh_parameters(plain, seed=0, node=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(weights(plain), before)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))


def test_a_layer_without_initialisation_is_refused_by_name():
    with pytest.raises(UserError, match=r"init=independent: layer '1' has parameters but no reset_parameters\(\)"):
        fresh_parameters(nn.Sequential(nn.Linear(2, 3), Scale()), seed=0, node=0)
    with pytest.raises(UserError, match="layer 'Scale'"):
        fresh_parameters(Scale(), seed=0, node=0)


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "pth"])
def test_a_state_dict_is_loaded_from_a_file(tmp_path, suffix):
    plain, file = network(), tmp_path / f"start.{suffix}"
    if suffix == "safetensors":
        save_file(plain.state_dict(), file)
    else:
        torch.save(plain.state_dict(), file)
    state = load_parameters(str(file))
    assert state.keys() == plain.state_dict().keys()
    assert torch.equal(Layout(plain).row(state), Layout(plain).flatten(plain))


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"\x80", b"\x80\x9f.", bytes(200), b"PK\x03\x04broken", b"}"])
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, suffix, content):
    file = tmp_path / f"start.{suffix}"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"init=.*not a readable state dict"):
        load_parameters(str(file))


@pytest.mark.parametrize(
    "content", [torch.ones(3), [torch.ones(3)], {"state_dict": {"weight": torch.ones(3)}}, {"a": 1}]
)
def test_files_that_hold_something_else_are_refused(tmp_path, content):
    torch.save(content, tmp_path / "start.pt")
    with pytest.raises(UserError, match="not a state dict of tensors"):
        load_parameters(str(tmp_path / "start.pt"))


def test_a_missing_file_is_refused_with_the_choices(tmp_path):
    with pytest.raises(UserError, match="no such file; init is common, independent or a file"):
        load_parameters("comon")
    with pytest.raises(UserError, match="no such file"):
        load_parameters(str(tmp_path))


def test_another_networks_file_is_refused_by_name_and_shape(tmp_path):
    file = tmp_path / "start.pt"
    torch.save(nn.Sequential(nn.Conv2d(1, 2, 3)).state_dict(), file)
    with pytest.raises(UserError, match=r"has no '1\.weight'"):
        Layout(network()).row(load_parameters(str(file)))
    torch.save({**network().state_dict(), "3.bias": torch.zeros(4)}, file)
    with pytest.raises(UserError, match=r"'3\.bias' has shape \(4,\) in the file and \(3,\) in the network"):
        Layout(network()).row(load_parameters(str(file)))
