"""fluke: its FedAVG with its own clients, server and FastDataLoader."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from fluke import DDict, FlukeENV  # type: ignore[import-not-found]
from fluke.algorithms.fedavg import FedAVG  # type: ignore[import-not-found]
from fluke.client import Client  # type: ignore[import-not-found]
from fluke.config import OptimizerConfigurator  # type: ignore[import-not-found]
from fluke.data import FastDataLoader  # type: ignore[import-not-found]
from fluke.server import Server  # type: ignore[import-not-found]
from fluke.utils import FederationObserver  # type: ignore[import-not-found]
from peer_job import Clock, Job, Steps, main
from torch import nn


class Lap(FederationObserver):
    """Times from the start of each round to its end."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock = clock

    def start_round(self, round: int, global_model: Any) -> None:
        """Start the clock; fluke calls this before it draws the clients of a round."""
        self.clock.start()

    def end_round(self, round: int) -> None:
        """Record the end of a round, after the aggregation."""
        self.clock.lap()


def run(job: Job) -> dict[str, Any]:
    """Run FedAvg without fluke's evaluations, saving and logging."""
    steps, clock = Steps(), Clock()
    environment = FlukeENV()
    environment.set_seed(job.seed)
    environment.set_device("cpu")
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    optimizer = OptimizerConfigurator(
        optimizer_cfg=DDict(name="SGD", lr=job.lr), scheduler_cfg=DDict(name="StepLR", step_size=1, gamma=1.0)
    )
    clients = []
    for i in range(job.num_clients):
        x, y = job.client(i)
        loader = FastDataLoader(
            x, y, num_labels=job.classes, batch_size=job.batch_size, shuffle=True, skip_singleton=False
        )
        clients.append(Client(i, loader, None, optimizer, nn.CrossEntropyLoss(), local_epochs=job.local_epochs))
    server = Server(job.new_network(), None, clients, weighted=True)
    algorithm = FedAVG(len(clients), None, {}, clients=clients, server=server)
    algorithm.set_callbacks(Lap(clock))
    share = 1 if job.participants == len(clients) else (job.participants + 0.5) / len(clients)  # it rounds down
    algorithm.run(n_rounds=job.rounds, eligible_perc=share)
    accuracy = job.accuracy(server.model)
    found = f"fluke {version('fluke-fl')}"
    return {**clock.read(), "steps": steps.count, "accuracy": accuracy, "version": found}


if __name__ == "__main__":
    main(run)
