"""The script that trains the base of the study of adapters: its file is what the study's cells start with."""

import pytest
import torch
import yaml
from safetensors.torch import load_file

from dfl_lightning.bench.study.file.settings import words_of
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.checkpoints.io import read_checkpoint
from dfl_lightning.cli.command import run


@pytest.mark.slow  # reads 1,700 modules of four packages twice
def test_a_cell_of_the_study_starts_with_the_base(load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load("train_base").main(["--blocks", "64", "--rounds", "1"]) == 0
    base = load_file(tmp_path / "base" / "client_0.safetensors")
    words = words_of(read_study_file("lora_small"), "Local", "modules of four packages")
    few = "--data.num_clients 4 --data.samples_per_client 10 --trainer.max_rounds 1 --trainer.default_root_dir out"
    assert run("fit", [*words, *few.split()]) == 0
    (folder,) = tmp_path.glob("out/*/*")
    state = read_checkpoint(folder / "checkpoints" / "last.ckpt")["state_dict"]
    frozen = {name.removeprefix("bank.base."): value for name, value in state.items() if name.startswith("bank.base.")}
    shared = [name for name in base if name in frozen]
    assert len(shared) > 20
    assert all(torch.equal(base[name], frozen[name]) for name in shared)
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"]["init"] == "base/client_0.safetensors"
