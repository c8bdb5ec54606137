"""Clients as plain modules and loops, for the references of predictions, and data with all splits."""

import copy
import math

import torch
from torch import nn
from torch.utils.data import TensorDataset

from dfl_lightning.data import FromDataset

LR, MOMENTUM, EPOCHS = 0.2, 0.9, 2
UP = ["11111", "10111", "11010", "01101", "11111"]
"""Who is active in each round."""


def network():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))


def samples(sizes=(16, 8, 12, 20, 8), test_fraction=0.25, val_fraction=0.25, kind=FromDataset):
    """Clients with different labels for the same inputs, so that they differ."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(sum(sizes), 5, generator=g)
    y = (x @ torch.randn(5, 3, generator=g)).argmax(1)
    parts, begin = [], 0
    for client, size in enumerate(sizes):
        y[begin : begin + size] = (y[begin : begin + size] + client % 2) % 3
        parts.append(list(range(begin, begin + size)))
        begin += size
    return kind(TensorDataset(x, y), parts=parts, num_classes=3, test_fraction=test_fraction, val_fraction=val_fraction)


class Plain:
    """Inputs and targets of each client, and its training by full batches of an ordinary optimizer.

    Args:
        run: whose data and first model they are.
        mean: the loss, of outputs and targets.
    """

    def __init__(self, run, mean=nn.functional.cross_entropy):
        data = run.data
        self.mean = mean
        self.first = copy.deepcopy(run.module.network).double()
        self.parts = {
            split: [
                (data.images[own].double() * data.scale + data.shift, data.labels[own]) for own in getattr(data, split)
            ]
            for split in ("train", "val", "test")
        }

    def trained(self, model, client, epochs=EPOCHS, lam=0.0, anchor=None):
        """A copy of the model, trained; its gradient has lam times what it is away from an anchor in it."""
        model = copy.deepcopy(model)
        x, y = self.parts["train"][client]
        optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM)
        for _ in range(epochs):
            optimizer.zero_grad()
            self.mean(model(x), y).backward()
            if anchor is not None:
                for own, other in zip(model.parameters(), anchor.parameters(), strict=True):
                    own.grad += lam * (own - other).detach()
            optimizer.step()
        return model

    def loss(self, model, client, split="train"):
        x, y = self.parts[split][client]
        with torch.no_grad():
            return self.mean(model(x), y).item()


def combined(models, shares):
    """A model whose parameters are sums of the others', times shares."""
    found = copy.deepcopy(models[0])
    with torch.no_grad():
        for place, parameter in enumerate(found.parameters()):
            others = [list(model.parameters())[place] for model in models]
            parameter.copy_(sum(share * other for share, other in zip(shares, others, strict=True)))
    return found


def judged(probabilities, labels):
    """Mean negative log-likelihood and accuracy of lists of probabilities."""
    losses = [-math.log(row[y]) for row, y in zip(probabilities, labels.tolist(), strict=True)]
    answers = [max(range(len(row)), key=row.__getitem__) for row in probabilities]
    return sum(losses) / len(losses), sum(map(int.__eq__, answers, labels.tolist())) / len(answers)
