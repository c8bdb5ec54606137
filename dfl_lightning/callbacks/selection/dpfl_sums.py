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
        """The receivers fetch the senders' models.

        Args:
            receivers: long [r].
            senders: whose models each of them fetches, bool [r, n].
        """
        rows, who = pairs_of(senders)
        self.round.ledger.fetch(receivers[rows], who)

    def forget(self, receivers: Tensor) -> None:
        """The `receivers`, long [r], throw the models of their batch away."""
        self.round.ledger.forget(receivers)

    def add(self, chosen: bool, receivers: Tensor, weights: Tensor) -> None:
        """Add weights @ trained models to one of the receivers' two sums.

        Args:
            chosen: to the sum over X; otherwise to the sum over Y.
            receivers: long [r].
            weights: of all trained models, [r, n].
        """
        name = OF_CHOSEN if chosen else OF_POSSIBLE
        self.round.mix([(self._own(receivers), name), (weights, "trained")], into=name, where=receivers)

    def losses(self, chosen: Tensor, receivers: Tensor, weights: Tensor, totals: Tensor) -> Tensor:
        """Validation losses of (sum + weights @ trained models) / total, float64 [J]; see `RunningSums`.

        Args:
            chosen: which sum each job takes: X (true) or Y, bool [J].
            receivers: whose sum and validation data it uses, long [J].
            weights: of all trained models, [J, n].
            totals: divisors, [J].
        """
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
