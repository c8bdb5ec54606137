"""FedAvg in FL-FDMS's setting on MNIST with plain PyTorch, without this library: does a local training explode?

python scripts/plain_fedavg.py DATA_ROOT [--seeds 1003] [--lr 0.1] [--step 1] prints a line a seed: accuracy of the
server's model (mean over the rounds and last, in percent) and the first local trainings after which the norm of the
weights is above 10,000.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision.datasets import MNIST

CLIENTS, IMAGES, EPOCHS, BATCH, ROUNDS = 20, 200, 2, 5, 100
LIMIT = 1e4
"""Norm of the weights above which a training has exploded; it is below 100 otherwise."""


class Network(nn.Module):
    """The paper's CNN with the dropout layers of the code that its authors adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Compute scores [k, 10] of images [k, 1, 28, 28]."""
        x = F.relu(F.max_pool2d(self.conv1(x), 2))
        x = F.relu(F.max_pool2d(F.dropout2d(self.conv2(x), 0.5, self.training), 2))
        x = F.relu(self.fc1(x.flatten(1)))
        scores: Tensor = self.fc2(F.dropout(x, 0.5, self.training))
        return scores


def local_training(network: Network, images: Tensor, labels: Tensor, lr: float) -> None:
    """Train by plain SGD over shuffled batches."""
    network.train()
    weights = list(network.parameters())
    for _ in range(EPOCHS):
        for batch in torch.randperm(IMAGES).split(BATCH):
            gradients = torch.autograd.grad(F.cross_entropy(network(images[batch]), labels[batch]), weights)
            with torch.no_grad():
                for weight, gradient in zip(weights, gradients, strict=True):
                    weight.sub_(lr * gradient)


def federation(images: Tensor, labels: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Draw clients in five clusters with two labels each."""
    pairs, clients = torch.randperm(10).view(5, 2), []
    for client in range(CLIENTS):
        own = torch.nonzero(torch.isin(labels, pairs[client // 4])).squeeze(1)
        own = own[torch.randperm(len(own))[:IMAGES]]
        clients.append((images[own], labels[own]))
    return clients


def run(seed: int, lr: float, step: float, train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor]) -> str:
    """Run FedAvg with all clients in each round; return a line of text."""
    torch.manual_seed(seed)
    clients, server, network = federation(*train), Network(), Network()
    accuracies, exploded = [], []
    for round_ in range(ROUNDS):
        start = {name: value.clone() for name, value in server.state_dict().items()}
        mean = {name: torch.zeros_like(value) for name, value in start.items()}
        for client, (images, labels) in enumerate(clients):
            network.load_state_dict(start)
            local_training(network, images, labels, lr)
            if not nn.utils.parameters_to_vector(network.parameters()).norm() < LIMIT:
                exploded.append(f"round {round_}, client {client}")
            for name, value in network.state_dict().items():
                mean[name] += value / CLIENTS
        server.load_state_dict({name: value + step * (mean[name] - value) for name, value in start.items()})
        server.eval()
        with torch.no_grad():
            accuracies.append(100 * float((server(test[0]).argmax(1) == test[1]).float().mean()))
    first = "; ".join(exploded[:3]) or "none"
    return f"seed {seed}: mean {sum(accuracies) / ROUNDS:.1f}, last {accuracies[-1]:.1f}; exploded: {first}"


def main() -> None:
    """Run all seeds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("root", help="the folder with MNIST/raw")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1000, 1001, 1002, 1003])
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--step", type=float, default=1.0, help="of the server")
    said = parser.parse_args()
    both = [MNIST(said.root, train=train) for train in (True, False)]
    train, test = [(part.data[:, None].float() / 255, part.targets) for part in both]
    for seed in said.seeds:
        print(run(seed, said.lr, said.step, train, test), flush=True)


if __name__ == "__main__":
    main()
