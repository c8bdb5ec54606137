"""First parameters of models."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from safetensors.torch import save_file
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning.bank.layout import Layout
from dfl_lightning.data import Digits
from dfl_lightning.models import MLP
from dfl_lightning.models.init import fresh_parameters
from dfl_lightning.models.start_file import load_parameters, read_start
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
    "content", [torch.ones(3), [torch.ones(3)], {"state_dict": {"weight": 3}}, {"a": 1}, {1: torch.ones(3)}]
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


# --- files of other libraries -----------------------------------------------------------------------------------------
def own(module):
    return module.state_dict()


def equal(values, module):
    state = module.state_dict()
    return values.keys() == state.keys() and all(torch.equal(values[name], state[name]) for name in state)


class Lit(LightningModule):
    """A user's module, whose network is one of its attributes, next to another layer."""

    def __init__(self, hidden=3):
        super().__init__()
        self.save_hyperparameters()
        self.model, self.teacher = network(), nn.Linear(hidden, 2)

    def training_step(self, batch, index):
        return self.model(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


def test_a_checkpoint_of_lightning_is_a_trained_start(tmp_path):
    lit, batches = Lit(), DataLoader(TensorDataset(torch.ones(4, 1, 4, 4)), batch_size=2)
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False, "accelerator": "cpu"}
    Trainer(max_epochs=1, default_root_dir=tmp_path, callbacks=[ModelCheckpoint(tmp_path)], **quiet).fit(lit, batches)
    (file,) = tmp_path.glob("*.ckpt")
    values, remarks = read_start(str(file), own(network()))
    assert equal(values, lit.model)
    assert remarks == [f"model.init={file}: read from its 'state_dict', with 'model.' taken off its names"]


@pytest.mark.parametrize(
    ("prefix", "key"),
    [
        ("", "model_state_dict"),
        ("module.", ""),
        ("_orig_mod.", ""),
        ("_orig_mod.module.", "state_dict"),
        ("model._orig_mod.", "state_dict"),
        ("backbone.", "model"),
        ("lit.net.", "state_dict"),
    ],
)
def test_a_prefix_is_taken_off_and_named(prefix, key, tmp_path):
    trained, file = network(), tmp_path / "start.ckpt"
    state = {prefix + name: value for name, value in trained.state_dict().items()}
    torch.save({"epoch": 3, key: state} if key else state, file)
    values, remarks = read_start(str(file), own(network()))
    assert equal(values, trained)
    assert len(remarks) == 1
    assert f"'{prefix}' taken off" in remarks[0] or not prefix
    assert f"read from its '{key}'" in remarks[0] or not key


def test_a_network_that_torch_made_parallel_is_a_trained_start(tmp_path):
    trained = network()
    torch.save(nn.DataParallel(trained).state_dict(), tmp_path / "start.pt")
    values, _ = read_start(str(tmp_path / "start.pt"), own(network()))
    assert equal(values, trained)


def test_a_network_whose_own_names_have_the_prefix_keeps_it(tmp_path):
    outer = nn.Module()
    outer.module = network()
    torch.save(outer.state_dict(), tmp_path / "start.pt")
    values, remarks = read_start(str(tmp_path / "start.pt"), own(outer))
    assert equal(values, outer)
    assert remarks == []


def test_layers_that_are_skipped_keep_their_own_values(tmp_path):
    trained, mine = network(), nn.Sequential(*network()[:3], nn.Linear(8, 5))
    torch.save({f"model.{name}": value for name, value in own(trained).items()}, tmp_path / "start.pt")
    with pytest.raises(
        UserError, match=r"'3.weight' has shape \(3, 8\) in the file and \(5, 8\) .* (\[.*\])"
    ) as caught:
        read_start(str(tmp_path / "start.pt"), own(mine))
    advice = str(caught.value).partition("model.init_skip: ")[2]
    assert advice == "['3.*']"
    values, remarks = read_start(str(tmp_path / "start.pt"), own(mine), ["3.*"])
    assert torch.equal(values["3.weight"], mine[3].weight)
    assert torch.equal(values["0.weight"], trained[0].weight)
    assert remarks[1] == "model.init_skip: not from the file, but drawn anew: 3.weight, 3.bias"


def test_starts_of_other_networks_are_refused_in_one_sentence(tmp_path):
    file, state = tmp_path / "start.pt", own(network())
    torch.save({"a": nn.Linear(2, 2)}, tmp_path / "objects.pt")
    for content, skip, sentence in (
        (
            own(nn.Linear(3, 2)),
            [],
            r"the file has no '0.weight'; it holds another network's parameters; give a file of",
        ),
        ({k: v for k, v in state.items() if k != "3.bias"}, [], r"has no '3.bias'; for layers .*init_skip: .'3\.\*'."),
        (
            {f"{p}.{k}": v for p in "ab" for k, v in state.items()},
            [],
            "are there as a.0.weight and as b.0.weight; save",
        ),
        (state, ["head.*"], "model.init_skip: no parameter matches 'head.*'"),
        (state, ["*"], "model.init_skip leaves nothing to read"),
    ):
        torch.save(content, file)
        with pytest.raises(UserError, match=sentence):
            read_start(str(file), own(network()), skip)
    with pytest.raises(UserError, match=r"holds Python objects besides the parameters.*\['state_dict'\], 'start.pt'\)"):
        load_parameters(str(tmp_path / "objects.pt"))


def test_a_run_starts_from_a_checkpoint_and_skips_its_head(tmp_path):
    trained = MLP([4])
    trained.draw((1, 8, 8), 7, seed=3)
    torch.save({"state_dict": {f"model.{k}": v for k, v in own(trained).items()}}, tmp_path / "start.ckpt")
    module = DFLModule(MLP([4]), init=str(tmp_path / "start.ckpt"), init_skip=["head.*"])
    trainer = DFLTrainer(max_rounds=1, default_root_dir=tmp_path, enable_progress_bar=False, accelerator="cpu")
    trainer.prepare(module, Digits(num_clients=2))
    first = module.federation.layout.state_dict(module.bank.rows("models")[1])
    drawn = MLP([4])
    drawn.draw((1, 8, 8), 10, seed=0)
    for name, value in first.items():
        assert torch.equal(value, (drawn if name.startswith("head") else trained).state_dict()[name])
    assert any("model.init_skip: not from the file, but drawn anew: head.weight" in r for r in trainer.remarks)
    with pytest.raises(UserError, match=r"model.init_skip is for a file in model.init, which is common"):
        DFLModule(MLP([4]), init_skip=["head.*"])
