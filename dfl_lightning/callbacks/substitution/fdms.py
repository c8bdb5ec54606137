"""FL-FDMS: friends stand in for clients that drop out (arXiv 2205.13222)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Substitution
from dfl_lightning.functional import (
    elimination_threshold,
    friends,
    observed_share,
    remaining_candidates,
    running_mean,
    similarity_scores,
)
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.memory import machine_memory, size

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

MOST_CLIENTS = 256
"""Without a server each client keeps scores of all pairs, 16 m^3 bytes in all: 268 MB, held a few times."""

MOST_COMPARED = 10_000
"""At a server: clients below which all pairs may be compared in every round; from there on candidates are needed."""

MOST_SHOWN = 1000
"""Clients up to which the scores are shown as `likeness`."""

STATE_BYTES = 8 + 8 + 1
"""Of a pair of clients at a server: its score, its count, and whether one is a candidate of the other."""

ROUND_BYTES = 112
"""Of m^2, while all pairs are compared, as measured with 3,000 clients: lists, inner products, new and old state."""


class FDMS(Substitution):
    """A dropped client's update is replaced by that of its best friend among the active ones (FL-FDMS section 5.1).

    The server keeps, for each pair of clients, the running mean of how similar their updates were in the rounds in
    which both took part. A client without such a history is replaced by the mean of the active ones.

    Without a server each receiver keeps its own scores, from the rounds in which it received from both clients of a
    pair, and gives a dropped neighbour's vote to the best friend among the active ones (itself included). A neighbour
    therefore sends its update in addition to its model, which is charged as a proxy of the same size.

    Args:
        theta_scale: at a server: a client whose score is Theta_t times this behind the best candidate's is no candidate
            any more, and pairs that are no candidates are not compared (section 5.3). 1 and 0.5 are the paper's
            cases 1 and 2; Theta_t is conservative, and 0.25 is a practical value; null: all clients stay candidates.
        beta: of Theta_t, the least share of the rounds in which a pair is observed, above 0 and at most 1; null: as
            the run shows it, over the observed pairs that are still compared.
    """

    state = ("scores", "counts", "candidates")

    def __init__(self, theta_scale: float | None = None, beta: float | None = None) -> None:
        if theta_scale is not None and not 0 < theta_scale < float("inf"):
            raise UserError(f"substitution.theta_scale={theta_scale}; it must be above 0, or null for no elimination")
        if beta is not None and not 0 < beta <= 1:
            raise UserError(f"substitution.beta={beta}; it is a share of rounds above 0 and at most 1")
        if beta is not None and theta_scale is None:
            raise UserError("substitution.beta is a part of Theta_t; set substitution.theta_scale too, or leave it out")
        self.theta_scale, self.beta = theta_scale, beta
        self.scores: Tensor | None = None  # R, float64 [m, m]; without a server [m, m, m], a matrix for each receiver
        self.counts: Tensor | None = None  # rounds observed together, long, as many
        self.candidates: Tensor | None = None  # C, bool [m, m]; at a server

    def start(self, federation: Federation) -> None:
        """Theta_t counts the rounds of the run; candidates are a server's; scores of all receivers must fit."""
        m = federation.num_clients
        if self.theta_scale is not None and not federation.topology.num_servers:
            raise UserError("substitution.theta_scale saves a server's comparisons; use --topology server, or null")
        if self.theta_scale is not None and (federation.num_rounds is None):
            raise UserError("substitution.theta_scale needs the number of rounds; set trainer.max_rounds")
        if not federation.topology.num_servers and m > MOST_CLIENTS:
            raise UserError(
                f"substitution FDMS without a server keeps scores of all pairs at each of {m} clients; "
                f"use --topology server, or at most {MOST_CLIENTS} clients"
            )
        self._refuse_too_many(m)

    # --- a server -----------------------------------------------------------------------------------------------------
    def on_trained(self, round: Round) -> None:
        """At a server: update the running means with this round's pairs of updates."""
        if not round.num_servers:
            return  # who hears whom is known later
        self._begin(round)
        assert self.scores is not None
        assert self.counts is not None
        assert self.candidates is not None
        m, took_part = round.num_clients, round.participants
        pairs = took_part[:, None] & took_part[None, :] & (self.candidates | self.candidates.T)
        first, second = torch.nonzero(pairs.triu_(1), as_tuple=True)  # each pair once
        cosines = round.compare("trained", Links(first, second, round.num_nodes), relative_to="start").cosines
        seen = torch.full((m, m), torch.nan, dtype=torch.float64)
        seen[first, second] = seen[second, first] = similarity_scores(cosines)
        self.scores, self.counts = running_mean(self.scores, self.counts, seen)
        round.log("similarities", len(first))

    def on_substitute(self, round: Round) -> None:
        """Friends stand in for the dropped ones; without a server, each receiver's own."""
        m = round.num_clients
        self._begin(round)
        assert self.scores is not None
        assert self.counts is not None
        assert round.selected is not None
        assert round.stand_in is not None
        receivers, senders = round.selected.receivers, round.selected.senders
        missing = torch.nonzero(senders < m).squeeze(1)
        missing = missing[round.dropped[senders[missing]]]
        if round.num_servers:
            found = friends(self.scores, self.counts, round.participants, self.candidates)
            round.stand_in[missing] = found[senders[missing]]
            if m <= MOST_SHOWN:
                clients, others = torch.nonzero(self.counts, as_tuple=True)
                known = Links(clients, others, round.num_nodes)
                round.likeness = LinkMemory(known, self.scores[clients, others])
            return
        heard = self._heard(round)
        found = friends(self.scores, self.counts, heard)
        round.stand_in[missing] = found[receivers[missing], senders[missing]]
        self._overhear(round, heard)

    def on_round_end(self, round: Round) -> None:
        """Clients clearly worse than the best candidate stop being candidates from the next round on."""
        if self.theta_scale is None or self.scores is None:
            return
        assert self.counts is not None
        assert self.candidates is not None
        assert round.federation.num_rounds is not None
        t, m = round.index + 1, round.num_clients
        beta = self.beta or observed_share(self.counts, self.candidates | self.candidates.T, t)
        if beta > 0 and m > 1:
            theta = self.theta_scale * elimination_threshold(t, m, round.federation.num_rounds, m - 1, beta)
            self.candidates = remaining_candidates(self.scores, self.counts, self.candidates, theta)
            round.log("theta", theta)
        round.log("candidates", float(self.candidates.sum(1).double().mean()))

    # --- without a server ---------------------------------------------------------------------------------------------
    def _heard(self, round: Round) -> Tensor:
        """Whose model each client gets to average, its own included, bool [m, m]."""
        assert round.selected is not None
        return round.selected.mask & round.participants | torch.diag(round.receivers & round.participants)

    def _overhear(self, round: Round, heard: Tensor) -> None:
        """Update the running means of each receiver with the pairs of updates that it got to see."""
        assert self.scores is not None
        assert self.counts is not None
        both = heard[:, :, None] & heard[:, None, :]
        links = Links.from_mask(both.any(0))
        cosines = links.dense(round.bank.compare("sent", links, relative_to="start").cosines)
        seen = similarity_scores(cosines).masked_fill(~both, torch.nan)
        links = Links.from_mask(heard)
        if round.bank.sends_something_else:  # a receiver knows what it trained itself
            own = round.bank.compare("trained", links, relative_to="start", to="sent").cosines
            itself = torch.eye(len(heard), dtype=torch.bool)
            mine = links.dense(similarity_scores(own))  # [receiver, other]
            seen = torch.where(itself[:, :, None], mine[:, None, :], seen)
            seen = torch.where(itself[:, None, :], mine[:, :, None], seen)
            seen = seen.masked_fill(~both, torch.nan)
        self.scores, self.counts = running_mean(self.scores, self.counts, seen)
        round.charge_comparison("trained", links, relative_to="start")
        several = heard.sum(1)
        round.log("similarities", int((several * (several - 1)).sum()) // 2)

    # --- state --------------------------------------------------------------------------------------------------------
    def _refuse_too_many(self, m: int) -> None:
        """What a server cannot hold of all pairs of m clients, or would take too long to compare."""
        pairs = m * (m - 1) // 2
        held = f"{pairs:,} pairs of clients, {size(STATE_BYTES * m * m)} of scores, counts and candidates"
        if m >= MOST_COMPARED and self.theta_scale is None:
            raise UserError(
                f"substitution FDMS compares all {held}, in every round; set substitution.theta_scale (0.25, say), "
                f"which leaves pairs out, or use fewer than {MOST_COMPARED:,} clients"
            )
        memory = machine_memory()
        if memory is not None and ROUND_BYTES * m * m > memory:
            raise UserError(
                f"substitution FDMS holds {held}, and about {size(ROUND_BYTES * m * m)} while it compares "
                f"them; this machine has {size(memory)}: use at most {math.isqrt(memory // ROUND_BYTES):,} "
                "clients, or substitution Stale, which keeps nothing of pairs"
            )

    def _begin(self, round: Round) -> None:
        """Nothing is known before the first round."""
        if self.scores is None:
            m = round.num_clients
            shape = (m, m) if round.num_servers else (m, m, m)
            self.scores = torch.zeros(shape, dtype=torch.float64)
            self.counts = torch.zeros(shape, dtype=torch.long)
            self.candidates = ~torch.eye(m, dtype=torch.bool)
