"""The same federation under other ids: only a client's data, draws and links may matter, not its id.

Draws come from streams that are named by client (`dfl_lightning.utils.randomness.random_streams`), or belong to a link.
A renamed client takes its former streams and links along, and numbers that were drawn for each node go with their
nodes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dfl_lightning.engines.draws import Draws
from dfl_lightning.links.draws import uniform
from dfl_lightning.utils.randomness import random_streams


class Names:
    """A permutation of the clients' ids; servers, which come after them, keep theirs.

    Args:
        former: long [m], the former id of each client.
        nodes: n, clients and servers.
    """

    def __init__(self, former: list[int], nodes: int) -> None:
        m = len(former)
        self.clients = torch.tensor(former)
        self.nodes = torch.cat([self.clients, torch.arange(m, nodes)])
        self.rows = torch.cat([self.nodes, nodes + self.clients])  # of votes and weights, with one block of substitutes
        self.new_rows = torch.cat([self.rows.argsort(), torch.tensor([-1])])  # -1, no node, indexes the last one

    def carry(self, value: Tensor) -> Tensor:
        """A tensor of the former federation as the renamed one has it.

        A dimension of m, n or n + m entries has one for each client, node, or row that may be mixed.
        """
        kinds = {len(index): index for index in (self.rows, self.nodes, self.clients)}
        for dimension, length in enumerate(value.shape):
            if length in kinds:
                value = value.index_select(dimension, kinds[length])
        return value


Rule = Callable[[Tensor, Names], Tensor]


def by_node(values: Tensor, names: Names) -> Tensor:
    """A number for each node, or for each client."""
    return names.carry(values)


def coin_first(values: Tensor, names: Names) -> Tensor:
    """One number for the whole draw, then one for each node."""
    return torch.cat([values[:1], names.carry(values[1:])])


def by_place(values: Tensor, names: Names) -> Tensor:
    """Numbers for the first, the second, the third … of an order that is drawn elsewhere."""
    return values


def order_of_nodes(values: Tensor, names: Names) -> Tensor:
    """A random order of the nodes, or of the clients."""
    return names.new_rows[values]


DEFAULTS: dict[Callable, Rule] = {torch.rand: by_node, torch.randn: by_node, torch.randperm: order_of_nodes}
OF_SAMPLES = (" dropout layers", " augment")
"""Last words of the engines' purposes, whose draws are about one client's samples."""


class RenamedDraws(TorchFunctionMode):
    """Renaming of policies' draws by the rules, for the streams whose seeds are in `purposes`."""

    def __init__(self, names: Names, rules: Mapping[str, Rule], purposes: dict[int, str]) -> None:
        super().__init__()
        self.names, self.rules, self.purposes = names, rules, purposes

    def __torch_function__(self, func, types, args=(), kwargs=None):
        values = func(*args, **(kwargs or {}))
        generator = (kwargs or {}).get("generator")
        purpose = self.purposes.get(generator.initial_seed()) if generator is not None else None
        if purpose is None or purpose.endswith(OF_SAMPLES) or not values.ndim:
            return values
        rule = self.rules.get(purpose) or DEFAULTS.get(func)
        assert rule is not None, f"list what {func.__name__} draws for {purpose!r}: draws={{{purpose!r}: a rule}}"
        return rule(values, self.names)


@contextmanager
def renamed_draws(names: Names, rules: Mapping[str, Rule]) -> Iterator[None]:
    """Inside, every stream of a client is that of its former id, and draws follow the rules."""
    purposes: dict[int, str] = {}

    def seed_of(seed: int, purpose: str, *words: int) -> int:
        place = 0 if purpose == "initial parameters" else 1  # by convention: round, client, step
        if len(words) > place:
            words = (*words[:place], int(names.nodes[words[place]]), *words[place + 1 :])
        found = former(seed, purpose, *words)
        purposes[found] = purpose
        return found

    def orders(draws: Draws, owners: np.ndarray, *words: np.ndarray) -> np.ndarray:
        return of_owners(draws, names.clients.numpy()[owners], *words)

    former, of_owners = random_streams.stream_seed, Draws.orders
    with (
        patch("dfl_lightning.utils.randomness.random_streams.stream_seed", seed_of),
        patch("dfl_lightning.models.init.stream_seed", seed_of),
        patch("dfl_lightning.links.links.uniform", lambda i, j, seed: uniform(names.rows[i], names.rows[j], seed)),
        patch.object(Draws, "orders", orders),
        RenamedDraws(names, rules, purposes),
    ):
        yield
