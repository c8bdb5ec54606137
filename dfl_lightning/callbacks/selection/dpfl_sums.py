"""The running sums of batched greedy graph construction, as rows of the bank."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term, Weights
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
        """Receivers fetch senders' models.

        Args:
            receivers: long [e].
            senders: whose models they fetch, long [e].
        """
        self.round.ledger.fetch(receivers, senders)

    def forget(self, receivers: Tensor) -> None:
        """The `receivers`, long [w], throw the models of their batch away."""
        self.round.ledger.forget(receivers)

    def add(self, chosen: bool, receivers: Tensor, members: Tensor, weights: Tensor) -> None:
        """Add weighted trained models to one of the receivers' two sums.

        Args:
            chosen: to the sum over X; otherwise to the sum over Y.
            receivers: long [w].
            members: whose models each of them adds, long [w, c]; -1 where there are fewer.
            weights: of these models, float64 [w, c]; 0 where there are fewer.
        """
        name, n = OF_CHOSEN if chosen else OF_POSSIBLE, self.round.num_nodes
        terms = [(Weights.of_rows(receivers, n), name), (weights_of(members, weights, n), "trained")]
        self.round.mix(terms, into=name, where=receivers)

    def losses(self, chosen: Tensor, receivers: Tensor, member: Tensor, weight: Tensor, totals: Tensor) -> Tensor:
        """Validation losses of (sum + weight * a trained model) / total, float64 [J]; see `RunningSums`.

        Args:
            chosen: which sum each job takes: X (true) or Y, bool [J].
            receivers: whose sum and validation data it uses, long [J].
            member: whose model is added, long [J]; -1: none.
            weight: of this model, [J].
            totals: divisors, [J].
        """
        scale, n = 1 / totals, self.round.num_nodes
        terms = (
            Term(OF_CHOSEN, Weights.of_rows(torch.where(chosen, receivers, -1), n, scale)),
            Term(OF_POSSIBLE, Weights.of_rows(torch.where(chosen, -1, receivers), n, scale)),
            Term("trained", Weights.of_rows(member, n, weight * scale)),
        )
        return self.round.evaluate(References(terms, receivers, "trained"), "val").losses


def weights_of(members: Tensor, weights: Tensor, rows: int) -> Weights:
    """Weights of the rows of some members in each of J sums.

    Args:
        members: long [J, c], in any order; -1: none.
        weights: of their rows, float64 [J, c].
        rows: number of rows.
    """
    ordered, order = members.sort(dim=1)
    shares = weights.gather(1, order)
    jobs, places = torch.nonzero((ordered >= 0) & (shares != 0), as_tuple=True)
    return Weights(jobs, ordered[jobs, places], shares[jobs, places], (len(members), rows))
