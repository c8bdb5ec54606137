import copy
from types import SimpleNamespace

import pytest
import torch

from dfl_lightning.callbacks import Gossip, Uniform


@pytest.fixture
def draws(start):
    """Draw the active clients of many rounds without training, bool [rounds, clients]."""
    round = start(Gossip(k=0), Uniform()).go().rounds[0].record

    def _draws(dropout, rounds, clients, clusters=None, first=0):
        clusters = None if clusters is None else torch.tensor(clusters)
        federation = SimpleNamespace(
            num_clients=clients, num_nodes=clients, clusters=clusters, seed=round.federation.seed
        )

        def at(index):
            other = copy.copy(round)
            other.index, other.federation = index, federation
            return other

        return torch.stack([dropout.draw(at(index)) for index in range(first, rounds)])

    return _draws
