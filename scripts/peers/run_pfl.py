"""Apple's pfl: FederatedAveraging on its SimulatedBackend, in one process."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from peer_job import Clock, Job, Steps, main
from pfl.aggregate.simulate import SimulatedBackend  # type: ignore[import-not-found]
from pfl.aggregate.weighting import WeightByDatapoints  # type: ignore[import-not-found]
from pfl.algorithm.base import NNAlgorithmParams  # type: ignore[import-not-found]
from pfl.algorithm.federated_averaging import FederatedAveraging  # type: ignore[import-not-found]
from pfl.callback.base import TrainingProcessCallback  # type: ignore[import-not-found]
from pfl.data.federated_dataset import FederatedDataset  # type: ignore[import-not-found]
from pfl.data.pytorch import PyTorchTensorDataset  # type: ignore[import-not-found]
from pfl.data.sampling import MinimizeReuseUserSampler  # type: ignore[import-not-found]
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams  # type: ignore[import-not-found]
from pfl.metrics import Metrics, Weighted  # type: ignore[import-not-found]
from pfl.model.pytorch import PyTorchModel  # type: ignore[import-not-found]
from torch import Tensor, nn


class WithLoss(nn.Module):
    """The network as pfl wants it."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Compute the mean loss of a batch."""
        self.train()
        return nn.functional.cross_entropy(self.network(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        """Compute the metrics that pfl evaluates in its first iteration."""
        self.eval()
        return {"loss": Weighted(nn.functional.cross_entropy(self.network(x), y, reduction="sum").item(), len(y))}


class Lap(TrainingProcessCallback):
    """Laps the clock after each iteration."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_train_begin(self, *, model: Any) -> Any:
        """Start the clock before the iterations."""
        self.clock.start()
        return Metrics()

    def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
        """Record the end of an iteration, which is pfl's round."""
        self.clock.lap()
        return False, Metrics()


def run(job: Job) -> dict[str, Any]:
    """Run FedAvg; the central optimizer is SGD with a rate of 1, which sets the model to the weighted mean."""
    steps, clock = Steps(), Clock()
    users = {str(i): PyTorchTensorDataset(job.client(i), user_id=str(i)) for i in range(job.num_clients)}
    sampler = MinimizeReuseUserSampler(list(users))
    train = FederatedDataset(lambda user: users[user], sampler)
    network = WithLoss(job.new_network())
    central = torch.optim.SGD(network.parameters(), lr=1.0)
    steps.ignored.add(id(central))
    model = PyTorchModel(network, local_optimizer_create=torch.optim.SGD, central_optimizer=central)
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.rounds,
            evaluation_frequency=job.rounds + 1,  # it evaluates in iteration 0, which is the warm-up, and never again
            train_cohort_size=job.participants,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(train, train, postprocessors=[WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_batch_size=job.batch_size, local_num_epochs=job.local_epochs, local_learning_rate=job.lr
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Lap(clock)],
    )
    accuracy = job.accuracy(network.network)
    return {**clock.read(), "steps": steps.count, "accuracy": accuracy, "version": f"pfl {version('pfl')}"}


if __name__ == "__main__":
    main(run)
