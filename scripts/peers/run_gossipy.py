"""gossipy: its vanilla gossip simulator, in which every node pushes its model to one random other in each round."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import torch
from gossipy import set_seed  # type: ignore[import-not-found]
from gossipy.core import (  # type: ignore[import-not-found]
    AntiEntropyProtocol,
    ConstantDelay,
    CreateModelMode,
    StaticP2PNetwork,
)
from gossipy.data import DataDispatcher  # type: ignore[import-not-found]
from gossipy.data.handler import ClassificationDataHandler  # type: ignore[import-not-found]
from gossipy.model import TorchModel  # type: ignore[import-not-found]
from gossipy.model.handler import TorchModelHandler  # type: ignore[import-not-found]
from gossipy.node import GossipNode  # type: ignore[import-not-found]
from gossipy.simul import GossipSimulator, SimulationEventReceiver  # type: ignore[import-not-found]
from peer_job import Clock, Job, Steps, main
from torch import Tensor, nn

TICKS = 100
"""Time steps of a round; nodes act at random ones, as in gossipy's examples."""


class Net(TorchModel):
    """The network as gossipy wants it; it already has its initial weights."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """Compute class scores."""
        return self.network(x)

    def init_weights(self, *args: Any, **kwargs: Any) -> None:
        """Keep the weights: all nodes start alike."""


class Lap(SimulationEventReceiver):
    """Laps the clock at the end of each round."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def update_timestep(self, t: int) -> None:
        """Record the end of a round, which has `TICKS` time steps."""
        if (t + 1) % TICKS == 0:
            self.clock.lap()

    def update_message(self, failed: bool, msg: Any = None) -> None:
        """Ignore messages, which are not counted."""

    def update_end(self) -> None:
        """Do nothing at the end: there is nothing to write."""


def run(job: Job) -> dict[str, Any]:
    """Run a message, a merge and an update (a local epoch at the receiver) per node and round, in random order."""
    set_seed(job.seed)
    steps, clock = Steps(), Clock()
    clients = [job.client(i) for i in range(job.num_clients)]
    images, labels = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    own = torch.arange(len(labels)).tensor_split(len(clients))
    dispatcher = DataDispatcher(
        ClassificationDataHandler(images, labels, test_size=0), n=len(clients), eval_on_user=False, auto_assign=False
    )
    dispatcher.set_assignments([part.tolist() for part in own], None)
    handler = TorchModelHandler(
        net=Net(job.new_network()),
        optimizer=torch.optim.SGD,
        optimizer_params={"lr": job.lr},
        criterion=nn.CrossEntropyLoss(),
        local_epochs=job.local_epochs,
        batch_size=job.batch_size,
        create_model_mode=CreateModelMode.MERGE_UPDATE,
    )
    nodes = GossipNode.generate(
        data_dispatcher=dispatcher,
        p2p_net=StaticP2PNetwork(len(clients), None),
        model_proto=handler,
        round_len=TICKS,
        sync=True,
    )
    for node in nodes.values():
        node.init_model(local_train=False)  # its default would train an epoch more than the others
    simulator = GossipSimulator(
        nodes=nodes,
        data_dispatcher=dispatcher,
        delta=TICKS,
        protocol=AntiEntropyProtocol.PUSH,
        delay=ConstantDelay(0),
    )
    simulator.initialized = True
    simulator.add_receiver(Lap(clock))
    clock.start()
    simulator.start(n_rounds=job.rounds)
    final = [node.model_handler.model.network.state_dict() for node in nodes.values()]
    found = f"gossipy-dfl {version('gossipy-dfl')}"
    return {**clock.read(), "steps": steps.count, "accuracy": job.mean_accuracy(final), "version": found}


if __name__ == "__main__":
    main(run)
