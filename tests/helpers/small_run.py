"""A run that takes a tenth of a second, for tests of everything around the rounds."""

import os
from pathlib import Path

import lightning.pytorch as L
import torch

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning import callbacks as families
from dfl_lightning.data import Digits
from dfl_lightning.data.partitions import RotatedClusters
from dfl_lightning.models import MLP


class SmallRun:
    """Trainer, module and data of six clients on digits, AFIND+ by default."""

    def __init__(self, root, rounds=6, callbacks=(), policies=None, module=(), data=(), **options):
        L.seed_everything(0, verbose=False)
        if policies is None:
            policies = [families.AFIND(), families.AdaptiveThreshold(), families.Boltzmann(), families.Bernoulli(0.3)]
        settings = {
            "enable_progress_bar": False,
            "accelerator": "gpu" if os.environ.get("DFL_TEST_ACCELERATOR") == "gpu" else "cpu",
            "default_root_dir": root,
            "defaults": False,
            **options,
        }
        self.trainer = DFLTrainer(max_rounds=rounds, callbacks=[*policies, *callbacks], **settings)
        schedule = {"lr_scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)}
        self.module = DFLModule(
            **{
                "network": MLP(hidden=[8]),
                "local_epochs": 1,
                "batch_size": 16,
                "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
                **schedule,
                **dict(module),
            }
        )
        clients = {
            "partition": RotatedClusters([0, 90]),
            "num_clients": 6,
            "samples_per_client": 40,
            "val_fraction": 0.2,
        }
        self.data = Digits(**{**clients, **dict(data)})

    def fit(self, checkpoint=None, **options):
        self.trainer.fit(self.module, datamodule=self.data, ckpt_path=checkpoint, **options)
        return self

    @property
    def folder(self) -> Path:
        return self.trainer.run.path

    @property
    def rows(self):
        return self.module.bank.boundary.rows["models"].cpu()
