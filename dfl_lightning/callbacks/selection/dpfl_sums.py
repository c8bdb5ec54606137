"""The running sums of batched greedy graph construction, as rows of the bank."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term, pairs_of
from dfl_lightning.round.record import Round

OF_CHOSEN, OF_POSSIBLE = "sum over X", "sum over Y"


class BankSums:
    """What the receivers of `bggc` remember: two row sets that end with the round; the ledger knows whom they keep.

    Args:
        round: the round, after its training.
    """

    def __init__(self, round: Round) -> None:
        self.round = round
        for name in (OF_CHOSEN, OF_POSSIBLE):
            round.bank.scratch(name)

    def receive(self, receivers: Tensor, senders: Tensor) -> None:
        """The models of the `senders`, bool [r, n], are fetched by the `receivers`, long [r]."""
        rows, who = pairs_of(senders)
        self.round.ledger.fetch(receivers[rows], who)

    def forget(self, receivers: Tensor) -> None:
        """The `receivers`, long [r], throw the models of their batch away."""
        self.round.ledger.forget(receivers)

    def add(self, chosen: bool, receivers: Tensor, weights: Tensor) -> None:
        """The sum over X (`chosen`) or Y of the `receivers`, long [r], grows by weights [r, n] @ trained models."""
        name = OF_CHOSEN if chosen else OF_POSSIBLE
        self.round.mix([(self._own(receivers), name), (weights, "trained")], into=name, where=receivers)

    def losses(self, chosen: Tensor, receivers: Tensor, weights: Tensor, totals: Tensor) -> Tensor:
        """Validation losses, float64 [J], of (sum + weights @ trained models) / total; see `RunningSums`."""
        scale = (1 / totals)[:, None]
        own = self._own(receivers) * scale
        terms = (
            Term(OF_CHOSEN, own * chosen[:, None]),
            Term(OF_POSSIBLE, own * ~chosen[:, None]),
            Term("trained", weights * scale),
        )
        return self.round.evaluate(References(terms, receivers, "trained"), "val").losses

    def _own(self, receivers: Tensor) -> Tensor:
        """Each receiver's own row, as weights, float64 [r, n]."""
        return torch.nn.functional.one_hot(receivers, self.round.num_nodes).double()
