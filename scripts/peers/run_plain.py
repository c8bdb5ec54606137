"""The loop that people write first: an nn.Module, a DataLoader and a torch.optim optimizer for each client."""

from __future__ import annotations

import random
from typing import Any

import torch
from peer_job import Clock, Job, Steps, main
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

State = dict[str, Tensor]


def train(network: nn.Module, loader: DataLoader, job: Job) -> None:
    """Train a client's network in a round."""
    optimizer = torch.optim.SGD(network.parameters(), lr=job.lr)
    loss_of = nn.CrossEntropyLoss()
    network.train()
    for _ in range(job.local_epochs):
        for x, y in loader:
            optimizer.zero_grad()
            loss_of(network(x), y).backward()
            optimizer.step()


def average(states: list[State]) -> State:
    """Average the states; all clients have equally many images."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def run(job: Job) -> dict[str, Any]:
    """Run FedAvg with a server, or synchronous gossip: train, then average with one random other."""
    steps, clock, draw = Steps(), Clock(), random.Random(job.seed)
    all_clients = range(job.num_clients)
    networks = [job.new_network() for _ in all_clients]
    loaders = [DataLoader(TensorDataset(*job.client(i)), job.batch_size, shuffle=True) for i in all_clients]
    server = job.new_network().state_dict()
    clock.start()
    for _ in range(job.rounds):
        chosen = sorted(draw.sample(all_clients, job.participants)) if job.work == "fedavg" else list(all_clients)
        for i in chosen:
            if job.work == "fedavg":
                networks[i].load_state_dict(server)
            train(networks[i], loaders[i], job)
        if job.work == "fedavg":
            server = average([networks[i].state_dict() for i in chosen])
        else:
            others = [draw.choice([j for j in all_clients if j != i]) for i in all_clients]
            mixed = [average([networks[i].state_dict(), networks[j].state_dict()]) for i, j in enumerate(others)]
            for network, state in zip(networks, mixed, strict=True):
                network.load_state_dict(state)
        clock.lap()
    final = [server] if job.work == "fedavg" else [network.state_dict() for network in networks]
    version = f"torch {torch.__version__}"
    return {**clock.read(), "steps": steps.count, "accuracy": job.mean_accuracy(final), "version": version}


if __name__ == "__main__":
    main(run)
