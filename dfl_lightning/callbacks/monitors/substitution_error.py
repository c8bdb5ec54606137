"""The error that dropout and substitution cause in the average."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Aggregation, Monitor, Substitution, mixed_terms
from dfl_lightning.functional import count_votes, uniform_weights
from dfl_lightning.round.record import Round

TRAINED_ANYWAY, ERROR = "trained anyway", "substitution error"


class SubstitutionError(Monitor):
    """The squared error that dropout and substitution leave in the average update (FL-FDMS, arXiv 2205.13222, eq. 8).

        substitution_error = mean over receivers i of ||e_i||^2
        e_i = average that i gets - average that i would get if no client had dropped out

    Both averages are plain ones. The monitor also trains the clients that dropped out, on the batches that they would
    have taken, so a round takes the time of a full one; the simulated clients are not charged. Without a substitution,
    all clients in reach that dropped out count as missing (plain Dropout). Their true message is the model that they
    train, before any Outgoing policy. The error is not logged in rounds in which no client is active or a client
    diverged, since a diverged client has no true update.
    """

    logs = ("substitution_error",)

    def on_weigh(self, round: Round) -> None:
        """Train the clients that dropped out, in rows of the monitor, and log the difference of the two averages."""
        n, m = round.num_nodes, round.num_clients
        aggregation = round.federation.require(Aggregation)
        if round.diverged.any():
            return
        down = torch.zeros(n, dtype=torch.bool)
        down[:m] = round.dropped
        wanted = round.selected
        if round.federation.policy(Substitution) is None:
            wanted = wanted.union(round.reachable.between(round.receivers, down))
        missing = (wanted.num_receivers > 0) & down
        include_self = round.receivers & torch.tensor(aggregation.include_self)
        include_self[m:] = False
        all_nodes = torch.ones(n, dtype=torch.bool)
        voters, votes = count_votes(wanted, wanted.senders, all_nodes, include_self, round.voters.rows, round.receivers)
        where = round.voters.any(round.votes != 0) & voters.any(votes != 0)
        if not where.any():
            return
        truth = uniform_weights(votes, voters)
        trained = ~missing[voters.senders]  # these rows exist, and most of them are in both averages
        excess = uniform_weights(round.votes, round.voters)
        excess -= voters.spread(truth * trained, round.voters, 0.0)
        bank, columns = round.bank, round.bank.layout.shared_parameters
        terms = mixed_terms(round, excess, where)

        def less(counted: Tensor) -> Weights:
            counted = counted & where[voters.receivers]
            position, shape = where.cumsum(0) - 1, (int(where.sum()), n)
            return Weights(position[voters.receivers[counted]], voters.senders[counted], -truth[counted], shape)

        only_in_truth = trained & ~voters.within(round.voters)
        if only_in_truth.any():
            terms.append((less(only_in_truth), "trained"))
        if missing.any():
            bank.scratch(TRAINED_ANYWAY)
            memory = round.federation.local.memory  # kept optimizers would continue, too
            training = round.local_training(memory=memory, own=round.own_training)
            start = round.federation.start_of_training(missing)
            result = round.federation.engine.rehearse(start, training, into=TRAINED_ANYWAY)
            if not result.finite.all():
                return
            terms.append((less(~trained), TRAINED_ANYWAY))
        bank.scratch(ERROR, torch.float64)  # float64, since the error is a small difference of long sums
        terms = round.received_terms(terms, torch.nonzero(where).squeeze(1))
        bank.mix(terms, into=ERROR, where=where, columns=columns)
        squares = bank.squared_lengths(ERROR, torch.nonzero(where).squeeze(1), columns)
        round.log("substitution_error", float(squares.mean()))
