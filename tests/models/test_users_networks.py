"""Networks as new users bring them, from an empty folder to trained clients."""

import importlib.util
import time

import pytest
import torch
import torchvision
from forked import Forked
from torch import nn
from torch.utils.data import Dataset

from dfl_lightning import DFLModule, DFLTrainer, callbacks, models
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.data import Digits, FromDataset
from dfl_lightning.models import resnet

AUTHORS = '''
import inspect
import networkx, numpy, scipy.stats, sklearn.linear_model, torch
from torch.utils.data import Dataset


class Authors(Dataset):
    """Lines of 32 characters from the documentation that the authors of five libraries wrote."""

    def __init__(self):
        modules = [networkx, numpy, scipy.stats, sklearn.linear_model, torch]
        self.items = [item for label, module in enumerate(modules) for item in self.lines(module, label)]

    def lines(self, module, label):
        documented = [getattr(module, name) for name in sorted(dir(module)) if not name.startswith("_")]
        text = " ".join(" ".join((inspect.getdoc(thing) or "").split()) for thing in documented if callable(thing))
        codes = [min(ord(character), 127) for character in text[: 32 * 80 - label]]
        for at in range(0, len(codes), 32):
            line = codes[at : at + 32]
            missing = [0] * (32 - len(line))
            yield {"input_ids": line + missing, "attention_mask": [1] * len(line) + missing}, label

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]
'''

BERT = """
seed_everything: 0
trainer: {max_rounds: 5, accelerator: cpu, checkpoint_every: 1, default_root_dir: out}
model:
  network:
    class_path: HuggingFace
    init_args:
      config:
        {model_type: bert, vocab_size: 128, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2,
         intermediate_size: 32, max_position_embeddings: 32}
  local_epochs: 1
  optimizer: {class_path: AdamW, init_args: {lr: 0.003}}
data:
  class_path: FromDataset
  init_args: {dataset: authors.Authors, num_clients: 10, partition: {class_path: Dirichlet, init_args: {alpha: 1.0}}}
selection: {class_path: Gossip, init_args: {k: 3}}
aggregation: SampleWeighted
"""


@pytest.mark.hf
@pytest.mark.slow  # three processes that import transformers
def test_killed_bert_on_five_authors_resumes_bit_exactly(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "authors.py").write_text(AUTHORS)
    (tmp_path / "bert.yaml").write_text(BERT)

    def fit(*words):
        return Forked("dfl_lightning.cli.main:fit", ["dfl-fit", *words], tmp_path)

    killed = fit("--config", "bert.yaml")
    deadline = time.monotonic() + 600
    while killed.poll() is None and not list(tmp_path.glob("out/*/*/checkpoints/last.ckpt")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    killed.kill()
    out, err = killed.communicate(600)
    (folder,) = tmp_path.glob("out/*/*")
    assert read_checkpoint(folder / "checkpoints" / "last.ckpt")["epoch"] < 5, out + err
    resumed = fit("--ckpt_path", str(folder.relative_to(tmp_path)))
    out, err = resumed.communicate(600)
    assert resumed.returncode == 0, out + err
    whole = fit("--config", "bert.yaml", "--trainer.default_root_dir", "whole")
    out, err = whole.communicate(600)
    assert whole.returncode == 0, out + err
    (other,) = tmp_path.glob("whole/*/*")
    rows = [read_checkpoint(f / "checkpoints" / "last.ckpt")["state_dict"]["bank.rows.models"] for f in (folder, other)]
    assert rows[0].equal(rows[1])
    assert not rows[0][:1].equal(rows[0][1:2])


class Towers(nn.Module):
    """An image and a number of its brightness; the mask is optional."""

    def __init__(self):
        super().__init__()
        self.image, self.number, self.head = nn.Linear(64, 8), nn.Linear(1, 8), nn.Linear(8, 10)

    def forward(self, image, number, mask=None):
        x = self.image(image.flatten(1)) + self.number(number)
        return self.head(torch.relu(x if mask is None else x * mask))


class Brightness(Dataset):
    """Digits with their mean pixel."""

    def __init__(self):
        data = Digits(num_clients=1)
        data.setup()
        self.images, self.labels = data.clients.images.float() / 16, data.clients.labels

    def __len__(self):
        return 400

    def __getitem__(self, index):
        return (self.images[index], self.images[index].mean()[None]), int(self.labels[index])


class Rows(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self):
        super().__init__()
        self.lstm, self.head = nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.lstm(x.squeeze(1))[0][:, -1])


def timm_vit():
    from timm.models import VisionTransformer

    options = {"img_size": 8, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 1, "num_heads": 2}
    return VisionTransformer(**options, num_classes=10, proj_drop_rate=0.1, attn_drop_rate=0.1, drop_path_rate=0.1)


class Grey(torchvision.models.VisionTransformer):
    """A network for images of three colours, which gets one."""

    def __init__(self):
        super().__init__(8, 4, 1, 2, 16, 32, dropout=0.1, attention_dropout=0.1, num_classes=10)

    def forward(self, x):
        return super().forward(x.expand(-1, 3, -1, -1))


def fit(root, network, data, rounds=1, **module):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = network()
    policies = [callbacks.Gossip(k="all"), callbacks.SampleWeighted()]
    options = {"accelerator": "cpu", "default_root_dir": root, "enable_progress_bar": False, "defaults": False}
    trainer = DFLTrainer(max_rounds=rounds, callbacks=policies, **options)
    trainer.fit(DFLModule(made, local_epochs=1, **module), datamodule=data)
    return trainer


has_timm = pytest.mark.skipif(importlib.util.find_spec("timm") is None, reason="needs timm")


@pytest.mark.parametrize(
    ("network", "data", "engine", "reason"),
    [
        pytest.param(timm_vit, Digits, "stacked", "", marks=has_timm, id="timm ViT"),
        pytest.param(Grey, Digits, "stacked", "", id="torchvision ViT"),
        pytest.param(Towers, lambda **options: FromDataset(Brightness(), **options), "stacked", "", id="two inputs"),
        pytest.param(Rows, Digits, None, "LSTM", id="LSTM"),
    ],
)
def test_users_network_trains_in_the_engine_of_its_layers(tmp_path, network, data, engine, reason):
    trainer = fit(tmp_path, network, data(num_clients=4, samples_per_client=40))
    used = trainer.lightning_module.engine
    assert (engine or used.name) == used.name, used.reason
    assert used.name == "stacked" or reason in used.reason


@pytest.mark.slow  # a ResNet-18
def test_fedbn_on_resnet18_keeps_each_clients_norms(tmp_path, monkeypatch):
    monkeypatch.setattr(resnet, "_STAGES", ((64, 1), (64, 2), (64, 2), (64, 1)))  # a twentieth of its parameters
    data = Digits(num_clients=3, samples_per_client=20)
    trainer = fit(tmp_path, lambda: models.ResNet18(norm="batch"), data, personal="norms")
    bank = trainer.lightning_module.bank
    layout, rows = bank.layout, bank.boundary.rows["models"]
    spread = (rows - rows[:1]).abs().max(0).values
    differing = [e.name for e in layout.entries if float(spread[e.start : e.stop].max()) > 1e-5]
    network = models.ResNet18(norm="batch").build((1, 8, 8), 10)
    norms = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.BatchNorm2d)}
    assert len(norms) == 20
    parts = ("weight", "bias", "running_mean", "running_var")
    assert set(differing) == {f"{name}.{part}" for name in norms for part in parts}
    vectors = 2 * sum(layer.num_features for layer in norms.values())
    assert len(layout.shared) == sum(p.numel() for p in network.parameters()) - vectors
