"""Networks and data for as many clients as a benchmark asks for."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from dfl_lightning.data import FEMNIST, ByWriter, FederatedData, Source
from dfl_lightning.models import MLP, LeNet

SHARES: dict[str, Any] = {"val_fraction": 0.25, "seed": 0}


def make_pool(words: dict[str, Any]) -> tuple[nn.Module, FederatedData]:
    """Make the network and the data of a job.

    Args:
        words: `clients`; `femnist`, a data root, for LeNet and the writers of FEMNIST; otherwise `hidden` units and
            `samples` a client, for digits.
    """
    clients = words["clients"]
    if words.get("femnist"):
        return LeNet(), DrawnWriters(
            root=words["femnist"], partition=ByWriter(min_samples=2), num_clients=clients, **SHARES
        )
    return MLP([words["hidden"]]), DrawnDigits(words["samples"], num_clients=clients, test_fraction=0.25, **SHARES)


class DrawnDigits(FederatedData):
    """Scikit-learn's digits drawn with replacement, as many as the clients ask for.

    Args:
        images_per_client: training, validation and test images of each client.
        **kwargs: everything else of `FederatedData`.
    """

    def __init__(self, images_per_client: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.images_per_client = images_per_client

    def load(self) -> Source:
        """Draw them, always the same."""
        digits = load_digits()
        count = self.num_clients * self.images_per_client
        chosen = torch.randint(0, len(digits.target), (count,), generator=torch.Generator().manual_seed(0))
        images = torch.from_numpy(digits.images).to(torch.uint8).unsqueeze(1)
        return Source("DrawnDigits", images[chosen], torch.from_numpy(digits.target).long()[chosen], 10, scale=1 / 16)


class DrawnWriters(FEMNIST):
    """The writers of FEMNIST one after the other, again from the first one on until each client has one."""

    def load(self) -> Source:
        """Load the images of each client's writer, which other clients may have too."""
        source = super().load()
        assert source.writers is not None
        assert source.test_writers is not None
        assert source.test_images is not None
        assert source.test_labels is not None
        chosen, writers = self._drawn(source.writers, len(source.writer_names))
        chosen_tests, test_writers = self._drawn(source.test_writers, len(source.writer_names))
        return Source(
            "DrawnWriters",
            source.images[chosen],
            source.labels[chosen],
            source.num_classes,
            source.test_images[chosen_tests],
            source.test_labels[chosen_tests],
            source.scale,
            writers,
            test_writers,
            tuple(f"{source.writer_names[c % len(source.writer_names)]} {c}" for c in range(self.num_clients)),
        )

    def _drawn(self, writers: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions of the images of all clients, and the client of each."""
        places, clients = [], []
        for first in range(0, self.num_clients, count):
            kept = torch.nonzero(writers < self.num_clients - first).squeeze(1)
            places.append(kept)
            clients.append(writers[kept] + first)
        return torch.cat(places), torch.cat(clients)
