"""The time of a step on a GPU, for decisions that depend on the card."""

from __future__ import annotations

import torch

from dfl_lightning.bank.stacked.layers import Pass
from dfl_lightning.bank.stacked.workshop import Workshop

PASSES = 5
"""Of how many passes the fastest counts, after two that count for nothing."""


class Stopwatch:
    """Times forward and backward passes of k clients with full batches, at models of random small numbers.

    Args:
        shop: what the jobs of an engine have in common.
        clients: k.
    """

    def __init__(self, shop: Workshop, clients: int) -> None:
        self._shop, self._clients = shop, clients

    def __call__(self) -> float:
        """Seconds of one pass, with the convolutions unfolded that the network's `unfolded` names now."""
        shop, device = self._shop, self._shop.data.images.device
        plain = [*shop.network.network.named_parameters(), *shop.network.network.named_buffers()]
        everybody = {name: t.detach().expand(self._clients, *t.shape).clone() for name, t in plain}
        wanted = [everybody[name].requires_grad_() for name, p in plain if p.requires_grad]
        samples = torch.cat(shop.data.train)
        batch = samples.repeat(-(-self._clients * shop.config.batch_size // len(samples)))
        batch = batch[: self._clients * shop.config.batch_size].view(self._clients, -1)
        inputs, labels = shop.data.batch(batch, dtype=shop.config.dtype)
        weights = torch.full_like(labels, 1 / shop.config.batch_size, dtype=shop.config.dtype)
        sizes = [shop.config.batch_size] * self._clients
        masks = torch.zeros(self._clients, 2, dtype=torch.int32, device=device)

        def run() -> float:
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            with shop.config.arithmetic(device):
                scores = shop.network(Pass(dict(everybody), True, masks), inputs)
                losses = shop.loss(scores, labels, sizes, weights)
            torch.autograd.grad(losses.sum(), wanted, allow_unused=True)
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1000

        with torch.enable_grad():
            return min([run() for _ in range(2 + PASSES)][2:])
