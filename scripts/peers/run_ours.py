"""dfl_lightning as a library, everything that the job does not name at its default (run folder and checkpoint too)."""

from __future__ import annotations

import functools
import json
import math
from pathlib import Path
from typing import Any

import lightning as L
import torch
from peer_job import Clock, Job, main
from safetensors.torch import load_file
from torch.utils.data import TensorDataset

import dfl_lightning
from dfl_lightning import DFLModule, DFLTrainer, callbacks, data
from dfl_lightning.cli.exports.export import export


class Watch(callbacks.Monitor):
    """Laps the clock at every boundary, and turns the samples that the engine reports into steps."""

    def __init__(self, clock: Clock, batch_size: int) -> None:
        self.clock, self.batch_size, self.steps = clock, batch_size, 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the clock and count the engine's training from now on."""
        train = pl_module.engine.train

        def counted(references: Any, *args: Any, **kwargs: Any) -> Any:
            trained = train(references, *args, **kwargs)
            sizes = pl_module.federation.data.sizes("train")[references.owners]
            for size, samples in zip(sizes.tolist(), trained.samples.tolist(), strict=True):
                epochs, rest = divmod(samples, size)
                self.steps += epochs * math.ceil(size / self.batch_size) + math.ceil(rest / self.batch_size)
            return trained

        pl_module.engine.train = counted
        self.clock.start()

    def on_boundary(self, trainer: Any, module: Any) -> None:
        """Record the end of a round, which has been committed."""
        self.clock.lap()


def run(job: Job) -> dict[str, Any]:
    """Run the FedAvg config, or Gossip with one partner on a complete graph."""
    L.seed_everything(job.seed, verbose=False)
    clients = [job.client(i) for i in range(job.num_clients)]
    images, labels = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    own = torch.arange(len(labels)).tensor_split(len(clients))
    fedavg = job.work == "fedavg"
    all_take_part = job.participants == job.num_clients
    policies = (
        [callbacks.Gossip(k="all" if all_take_part else job.participants), callbacks.SampleWeighted()]
        if fedavg
        else [callbacks.Gossip(k=1), callbacks.Uniform()]
    )
    watch = Watch(Clock(), job.batch_size)
    trainer = DFLTrainer(
        max_rounds=job.rounds,
        topology="server" if fedavg else "complete",
        callbacks=[*policies, watch],
        accelerator="cpu",
        default_root_dir=job.folder,
        limit_val_batches=0,  # the accuracy is measured afterwards, as for all
    )
    module = DFLModule(
        job.new_network(),
        local_epochs=job.local_epochs,
        batch_size=job.batch_size,
        optimizer=functools.partial(torch.optim.SGD, lr=job.lr),
    )
    parts = [part.tolist() for part in own]
    source = data.FromDataset(
        TensorDataset(images, labels), TensorDataset(*job.test()), parts=parts, num_classes=job.classes
    )
    trainer.fit(module, datamodule=source)
    folder = Path(str(trainer.run.path))
    files = export(folder, clients=[0] if fedavg else None)
    engine = json.loads((folder / "summary.json").read_text())["engine"]
    alone = 1 if engine["name"] == "loop" else torch.get_num_threads()  # the loop always works with one
    return {
        **watch.clock.read(),
        "steps": watch.steps,
        "accuracy": job.mean_accuracy(load_file(file) for file in files),
        "version": f"dfl_lightning {dfl_lightning.__version__}",
        "engine": engine["name"],
        "threads": engine.get("threads", alone),
    }


if __name__ == "__main__":
    main(run)
