"""Common parts of the runners of `bench_peers.py`: the job, the network, the clock, the count of steps, the accuracy.

Imports torch and numpy only: a runner lives in the environment of its simulator, where dfl_lightning is not.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

EVALUATION_BATCH = 500


@dataclass(frozen=True)
class Job:
    """The work that every runner is asked for, as the driver wrote it.

    Args:
        data: npz file with `images` uint8 [N, C, H, W], `labels` [N], `parts` [clients, samples] (indices of each
            client's images), `test_images`, `test_labels`, and the initial weights as `initial:<name>`.
        scale: factor from uint8 to the network's input, before `shift`.
        shift: added after `scale`.
        network: a name that `build_network` knows.
        classes: number of classes.
        work: `fedavg` or `gossip`.
        participants: clients that train in a round.
        local_epochs: passes over a client's images in a round.
        batch_size: images in a batch; the last one of an epoch may be smaller.
        lr: learning rate of plain SGD.
        rounds: communication rounds, the warm-up included.
        seed: of everything that a runner draws.
        folder: where a runner may write.
    """

    data: str
    scale: float
    shift: float
    network: str
    classes: int
    work: str
    participants: int
    local_epochs: int
    batch_size: int
    lr: float
    rounds: int
    seed: int
    folder: str

    @property
    def num_clients(self) -> int:
        """Clients."""
        return len(arrays(self.data)["parts"])

    def client(self, index: int) -> tuple[Tensor, Tensor]:
        """Return images, float32 [samples, C, H, W], and labels [samples] of a client."""
        held = arrays(self.data)
        part = held["parts"][index]
        return torch.from_numpy(held["images"][part]).float() * self.scale + self.shift, torch.from_numpy(
            held["labels"][part]
        )

    def test(self) -> tuple[Tensor, Tensor]:
        """Return the test set, common to all."""
        held = arrays(self.data)
        return torch.from_numpy(held["test_images"]).float() * self.scale + self.shift, torch.from_numpy(
            held["test_labels"]
        )

    def new_network(self) -> nn.Module:
        """Make the network with the weights that every runner and every client starts from."""
        held = arrays(self.data)
        network = build_network(self.network, held["images"].shape[1:], self.classes)
        names = network.state_dict()
        network.load_state_dict({name: torch.from_numpy(held[f"initial:{name}"]) for name in names})
        return network

    @torch.no_grad()
    def accuracy(self, network: nn.Module) -> float:
        """Share of the test set that a network gets right."""
        images, labels = self.test()
        network.eval()
        parts = zip(images.split(EVALUATION_BATCH), labels.split(EVALUATION_BATCH), strict=True)
        return sum(int((network(x).argmax(1) == y).sum()) for x, y in parts) / len(labels)

    def mean_accuracy(self, states: Iterable[Mapping[str, Tensor]]) -> float:
        """Compute the mean accuracy over models, each given by its state dict."""
        network, found = self.new_network(), []
        for state in states:
            network.load_state_dict(state)
            found.append(self.accuracy(network))
        return float(np.mean(found))


@functools.cache
def arrays(path: str) -> dict[str, np.ndarray]:
    """Read the arrays of the data file, once in a process."""
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def build_network(name: str, shape: tuple[int, ...], classes: int) -> nn.Module:
    """Build a network by name: `lenet` (conv5x5 6 and 16, 120, 84) or `mlp` (one hidden layer of 64).

    Examples:
        >>> sum(p.numel() for p in build_network("lenet", (1, 28, 28), 10).parameters())
        44426
    """
    if name == "mlp":
        size = int(np.prod(shape))
        return nn.Sequential(nn.Flatten(), nn.Linear(size, 64), nn.ReLU(), nn.Linear(64, classes))
    convolutions = [nn.Conv2d(shape[0], 6, 5), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    width = nn.Sequential(*convolutions)(torch.zeros(1, *shape)).shape[1]
    connected = [nn.Linear(width, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)]
    return nn.Sequential(*convolutions, *connected)


class Steps:
    """Counter of all optimizer steps of this process, except those of `ignored` optimizers, which are not clients'."""

    def __init__(self) -> None:
        self.count = 0
        self.ignored: set[int] = set()
        register_optimizer_step_post_hook(self._on_step)

    def _on_step(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self.count += id(optimizer) not in self.ignored


class Clock:
    """Seconds of each round: `start` before the first one, `lap` after each.

    Attributes:
        seconds: wall clock, by round.
        cpu_seconds: of all threads of this process, by round: what a busy machine changes little.
    """

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []
        self._last = (0.0, 0.0)

    def start(self) -> None:
        """Start the clock."""
        self._last = (time.perf_counter(), time.process_time())

    def lap(self) -> None:
        """Record the time of a round that has ended."""
        before = self._last
        self.start()
        self.seconds.append(self._last[0] - before[0])
        self.cpu_seconds.append(self._last[1] - before[1])

    def read(self) -> dict[str, list[float]]:
        """Return wall and CPU seconds, as a runner reports them."""
        return {"seconds": self.seconds, "cpu_seconds": self.cpu_seconds}


def main(run: Callable[[Job], dict[str, Any]]) -> None:
    """Read the job that the command line names, run it, print the result as one line of JSON.

    Whatever a simulator prints meanwhile goes to stderr.
    """
    answer = os.dup(1)
    os.dup2(2, 1)
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    torch.manual_seed(job.seed)
    np.random.seed(job.seed)
    result = {"threads": torch.get_num_threads(), "processes": 1, "torch": torch.__version__, **run(job)}
    with os.fdopen(answer, "w") as out:
        out.write(json.dumps(result) + "\n")
