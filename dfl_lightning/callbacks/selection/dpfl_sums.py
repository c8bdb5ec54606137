"""The running sums of batched greedy graph construction, as rows of the bank."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.round.record import Round

OF_CHOSEN, OF_POSSIBLE = "sum over X", "sum over Y"


class BankSums:
    """The memory of `bggc`'s receivers: two sums in scratch row sets of the round, with kept models in the ledger.

    Args:
        round: the round after its training.
    """

    def __init__(self, round: Round) -> None:
        self.round = round
        for name in (OF_CHOSEN, OF_POSSIBLE):
            round.bank.scratch(name)

    def receive(self, receivers: Tensor, senders: Tensor) -> None:
        """Fetch the senders' models for the receivers.

        Args:
            receivers: a receiver for each model, long [e].
            senders: senders of these models, long [e].
        """
        self.round.ledger.fetch(receivers, senders)

    def forget(self, receivers: Tensor) -> None:
        """Drop the models of the current batch at the `receivers`, long [w]."""
        self.round.ledger.forget(receivers)

    def add(self, chosen: bool, receivers: Tensor, members: Tensor, weights: Tensor) -> None:
        """Add weighted trained models to one of the receivers' two sums.

        Args:
            chosen: True for the sum over X, False for the sum over Y.
            receivers: the receivers, long [w].
            members: clients whose models each of them adds, long [w, c]; -1 pads shorter lists.
            weights: weights of these models, float64 [w, c]; 0 pads shorter lists.
        """
        name, n = OF_CHOSEN if chosen else OF_POSSIBLE, self.round.num_nodes
        terms = [(Weights.of_rows(receivers, n), name), (weights_of(members, weights, n), "trained")]
        self.round.mix(terms, into=name, where=receivers)

    def losses(self, chosen: Tensor, receivers: Tensor, member: Tensor, weight: Tensor, totals: Tensor) -> Tensor:
        """Evaluate (sum + weight * a trained model) / total on validation data, float64 [J]; see `RunningSums`.

        Args:
            chosen: True for the sum over X, False for that over Y, bool [J].
            receivers: clients with the sum and the validation data, long [J].
            member: client whose model is added, long [J]; -1: none.
            weight: weight of this model, [J].
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
    """Build the `Weights` of J sums over the rows of their members.

    Args:
        members: rows of each sum, long [J, c], in any order; -1 pads shorter lists.
        weights: weights of these rows, float64 [J, c].
        rows: number of rows of the row set.
    """
    ordered, order = members.sort(dim=1)
    shares = weights.gather(1, order)
    jobs, positions = torch.nonzero((ordered >= 0) & (shares != 0), as_tuple=True)
    return Weights(jobs, ordered[jobs, positions], shares[jobs, positions], (len(members), rows))
