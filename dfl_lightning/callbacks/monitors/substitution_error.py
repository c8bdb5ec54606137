"""The error of the average that dropout and substitution cause."""

from __future__ import annotations

import torch
from torch import Tensor

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Aggregation, Monitor, Substitution, mixed_terms
from dfl_lightning.engines.jobs import Training
from dfl_lightning.functional import count_votes, uniform_weights
from dfl_lightning.round.record import Round

TRAINED_ANYWAY, ERROR = "trained anyway", "substitution error"


class SubstitutionError(Monitor):
    """The squared length of e_t, the error that dropout and substitution leave in the average update (FL-FDMS eq. 8).

    Logs `substitution_error`: ||e||^2, where e is the plain average that a receiver gets less the one it would get if
    no client had dropped out; the mean over receivers. For that the dropped clients are trained, too, on the batches
    that they would have taken: a round costs the time of a full one, and the simulated clients nothing. Without a
    substitution, all dropped clients in reach count as missing (plain Dropout). What they would have sent is what they
    train, before any Outgoing policy. Not logged in rounds in which no client is active
    or a client diverged: it has no true update.
    """

    logs = ("substitution_error",)

    def on_weigh(self, round: Round) -> None:
        """Train the dropped clients on the side and compare the two averages."""
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
        trained = ~missing[voters.senders]  # rows that are there, and so are in both averages as a rule
        heard = uniform_weights(round.votes, round.voters)
        heard -= voters.spread(truth * trained, round.voters, 0.0)
        bank, columns = round.bank, round.bank.layout.shared_parameters
        terms = mixed_terms(round, heard, where)

        def less(counted: Tensor) -> Weights:
            counted = counted & where[voters.receivers]
            place, shape = where.cumsum(0) - 1, (int(where.sum()), n)
            return Weights(place[voters.receivers[counted]], voters.senders[counted], -truth[counted], shape)

        unheard = trained & ~voters.within(round.voters)
        if unheard.any():
            terms.append((less(unheard), "trained"))
        if missing.any():
            bank.scratch(TRAINED_ANYWAY)
            memory = round.federation.local.memory  # their optimizers would go on, too
            training = Training("local", round.index, round.phases, round.hyperparameters, memory=memory)
            start = round.federation.start_of_training(missing)
            result = round.federation.engine.rehearse(start, training, into=TRAINED_ANYWAY)
            if not result.finite.all():
                return
            terms.append((less(~trained), TRAINED_ANYWAY))
        bank.scratch(ERROR, torch.float64)  # a small difference of long sums
        terms = round.received_terms(terms, torch.nonzero(where).squeeze(1))
        bank.mix(terms, into=ERROR, where=where, columns=columns)
        squares = bank.squared_lengths(ERROR, torch.nonzero(where).squeeze(1), columns)
        round.log("substitution_error", float(squares.mean()))
