"""FedeRiCo's M-step: clients train the models of others on their own data, and send the updates back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Weights
from dfl_lightning.callbacks.aggregation.score_weighted import ScoreWeighted
from dfl_lightning.callbacks.base import Outgoing, Selection, Substitution
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

VISITING, UPDATES = "trained for others", "updates from others"
"""Scratch row sets: row i of the first is another client's model after training on client i's data; row j of the second
is the weighted sum of the updates that clients computed for model j."""


class FedeRiCoStep(ScoreWeighted):
    """The exchange of weighted updates in FedeRiCo (Sui et al. 2022, arXiv 2210.06597).

        w_ij = softmax_j(-L_ij)                      (E-step, by the selection `FedeRiCo`)
        phi_j = phi_j + sum_i w_ij u_ij              (M-step)

    L_ij is the averaged loss of model phi_j on the data of client i, over the models that i has fetched and its own,
    all as they were before the round. u_ij is the update of phi_j by local training on i's data. With one step of plain
    SGD on all data u_ij is -lr times the gradient of i's loss at phi_j, as in the paper. A receiver sends w_ij u_ij
    back to each sender, unless its training of phi_j diverged. `weights` are w, for the records. Personal columns are
    trained on the client's own data only.
    """

    supports_servers = False
    supports_clock = False
    against_clock = "it sends updates to clients that are still training"
    updates_senders = True

    def start(self, federation: Federation) -> None:
        """Require FedeRiCo's weights, unchanged messages, and an objective and optimizer without a state per client."""
        selection = federation.policy(Selection)
        if selection is not None and not (selection.scores_are_weights and selection.supports_updates):
            raise UserError(
                "aggregation FedeRiCoStep trains the models that FedeRiCo gives weights to, and there is "
                f"{type(selection).__name__}; use --selection FedeRiCo, or --aggregation Uniform"
            )
        for family, key in ((Outgoing, "outgoing"), (Substitution, "substitution")):
            if (policy := federation.policy(family)) is not None:
                raise UserError(
                    f"aggregation FedeRiCoStep sends updates back to clients that are active, which {key} "
                    f"{type(policy).__name__} does not support; use --{key} null, or --aggregation ScoreWeighted"
                )
        if len(federation.layout.shared_buffers):
            raise UserError(
                "aggregation FedeRiCoStep adds updates to models, which can take running statistics out of range; "
                "use a network without batch normalisation, or --aggregation ScoreWeighted"
            )
        objective = federation.objective
        if objective.row_sets:
            raise UserError(
                f"aggregation FedeRiCoStep trains models of others, and objective {type(objective).__name__} keeps "
                f"{', '.join(objective.row_sets)} for each client's own; use --objective Plain"
            )
        if federation.local.memory is not None:
            raise UserError(
                "aggregation FedeRiCoStep trains models of others, and model.keep_optimizer keeps an optimizer for "
                "each client's own; set model.keep_optimizer to false"
            )

    def on_mix(self, round: Round) -> None:
        """Train each fetched model on the receiver's data, one model per receiver at a time; then update all models."""
        bank, voters, weights = round.bank, round.voters, round.weights
        n, itself = round.num_nodes, voters.receivers == voters.senders
        own = torch.zeros(n, dtype=torch.float64)
        own[voters.receivers[itself]] = weights[itself].double()
        away = ~itself & (weights != 0)
        visits, shares = voters.keep(away), weights[away].double()
        updated = torch.zeros(n, dtype=torch.bool)
        bank.scratch(VISITING)
        bank.scratch(UPDATES)
        turns = torch.arange(len(visits)) - visits.starts[visits.receivers]
        for turn in range(int(visits.count.max())):
            some = visits.keep(turns == turn)
            finite = self._train_visiting(round, some)
            self._add_updates(round, some.keep(finite), shares[turns == turn][finite], updated)
        index = torch.nonzero(round.receivers & voters.any(weights != 0) | updated).squeeze(1)
        terms = [
            (_nonzero(Weights.of_rows(index, n, own[index])), "trained"),
            (_nonzero(Weights.of_rows(index, n, 1 - own[index])), "models"),
            (_nonzero(Weights.of_rows(index, n, updated[index].double())), UPDATES),
        ]
        round.mix(terms, into="models", where=index)

    def _train_visiting(self, round: Round, visits: Links) -> Tensor:
        """Train a sender's model on the data of each receiver, which occurs once; return which results are finite."""
        references = References.rows("models", visits.senders, visits.receivers)
        round.charge(references)  # costs nothing more: the selection has fetched them already
        training = round.local_training(own=round.own_training)
        return round.federation.engine.rehearse(references, training, VISITING).finite

    def _add_updates(self, round: Round, visits: Links, shares: Tensor, updated: Tensor) -> None:
        """Send the weighted updates back and add them to `UPDATES`; mark their models in `updated`, bool [n]."""
        if not len(visits):
            return
        n = round.num_nodes
        back = Links.of(visits.senders, visits.receivers, n)
        round.ledger.fetch_part("weighted updates of models", len(round.bank.layout.shared), back)
        shares = visits.look_up(shares, back.senders, back.receivers)
        index, position = back.receivers.unique(return_inverse=True)
        total = torch.zeros(len(index), dtype=torch.float64).index_add_(0, position, shares)
        trained = Weights(position, back.senders, shares, (len(index), n))
        former = index.where(updated[index], -1)
        terms = [
            (trained, VISITING),
            (Weights.of_rows(index, n, -total), "models"),
            (Weights.of_rows(former, n), UPDATES),
        ]
        round.mix(terms, into=UPDATES, where=index)
        updated[index] = True


def _nonzero(weights: Weights) -> Weights:
    return weights.keep(weights.shares != 0)
