"""FedLab: FedAvg by its serial client trainer and its standalone pipeline."""

from __future__ import annotations

import random
from importlib.metadata import version
from typing import Any

from fedlab.contrib.algorithm.fedavg import (  # type: ignore[import-not-found]
    FedAvgSerialClientTrainer,
    FedAvgServerHandler,
)
from fedlab.core.standalone import StandalonePipeline  # type: ignore[import-not-found]
from peer_job import Clock, Job, Steps, main
from torch.utils.data import DataLoader, TensorDataset


class Clients:
    """The clients' data as FedLab's own data sets offer them: a DataLoader on request."""

    def __init__(self, job: Job) -> None:
        self.parts = [TensorDataset(*job.client(i)) for i in range(job.num_clients)]

    def get_dataloader(self, client: int, batch_size: int) -> DataLoader:
        """Make a loader of a client."""
        return DataLoader(self.parts[client], batch_size=batch_size, shuffle=True)


class Timed(StandalonePipeline):
    """The pipeline with a clock instead of its evaluation."""

    def __init__(self, handler: Any, trainer: Any, clock: Clock) -> None:
        super().__init__(handler, trainer)
        self.clock = clock

    def evaluate(self) -> None:
        """Record the end of a round, at which the pipeline calls this."""
        self.clock.lap()


def run(job: Job) -> dict[str, Any]:
    """Run FedAvg; its mean is unweighted, which is the same here, since all clients have equally many images."""
    random.seed(job.seed)
    steps, clock = Steps(), Clock()
    share = (job.participants + 0.5) / job.num_clients  # it rounds the product down
    handler = FedAvgServerHandler(job.new_network(), global_round=job.rounds, sample_ratio=min(1.0, share))
    trainer = FedAvgSerialClientTrainer(job.new_network(), num_clients=job.num_clients)
    trainer.setup_dataset(Clients(job))
    trainer.setup_optim(job.local_epochs, job.batch_size, job.lr)
    pipeline = Timed(handler, trainer, clock)
    clock.start()
    pipeline.main()
    accuracy = job.accuracy(handler.model)
    found = f"fedlab {version('fedlab')}"
    return {**clock.read(), "steps": steps.count, "accuracy": accuracy, "version": found}


if __name__ == "__main__":
    main(run)
