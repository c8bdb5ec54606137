"""Several processes whose models and data are on a GPU, which is pretended, against one on the CPU."""

import contextlib

import pytest
import torch


def fit(folder, words):
    """`dfl-fit` with everything of this process on the pretended device; small numbers and rows travel by gloo."""
    from pretended import DEVICE, Elsewhere, everything_on
    from pretended.device import inner_of, mapped

    from dfl_lightning.bank.bank import Bank
    from dfl_lightning.cli import command as cli
    from dfl_lightning.distributed.communicator import Ranks
    from dfl_lightning.distributed.strategy import ClientStrategy
    from dfl_lightning.engines.stacked import engine

    exchange, mix, devices = Ranks._exchange, Bank.mix, set()

    def exchange_inner(self, collective, tensor, *args, **kwargs):
        exchange(self, collective, inner_of(tensor), *mapped(inner_of, args), **kwargs)
        return tensor

    def watched(self, *args, **kwargs):
        devices.add(type(self.boundary.rows["models"]) is Elsewhere)
        mix(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch, everything_on(DEVICE), contextlib.chdir(folder):
        patch.setattr(ClientStrategy, "root_device", property(lambda strategy: DEVICE))
        patch.setattr(Ranks, "_exchange", exchange_inner)
        patch.setattr(Bank, "mix", watched)
        patch.setattr(engine, "EvaluationTimer", lambda *_: lambda way, samples: 1.0)  # CUDA's events are not there
        code = cli.run("fit", [*words, "--trainer.accelerator", "cpu", "--trainer.devices", "2"])
    return code, devices


def test_two_processes_on_a_device_equal_one_cpu_process(on_ranks, runs, tmp_path):
    words = ["--config", "afind", "--data.num_clients", "8", "--data.samples_per_client", "16"]
    words += ["--trainer.max_rounds", "2", "--trainer.cohorts", "2", "--trainer.precision", "64-true"]
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    runs.fit(1, here, words)
    assert on_ranks(2, fit, str(there), words) == [(0, {True})] * 2
    one, two = (runs.contents(folder)[2] for folder in (here, there))
    for name, values in one["state_dict"].items():
        torch.testing.assert_close(two["state_dict"][name], values, rtol=1e-10, atol=1e-12, equal_nan=True, msg=name)
