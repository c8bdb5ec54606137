"""FL-FDMS: friends stand in for clients that drop out (arXiv 2205.13222)."""

from __future__ import annotations

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
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

MOST_CLIENTS = 256
"""Without a server each client keeps scores of all pairs, 16 m^3 bytes in all: 268 MB, held a few times."""


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
        cosines = round.compare("trained", round.between_clients(pairs, False), relative_to="start").cosines[:m, :m]
        self.scores, self.counts = running_mean(self.scores, self.counts, similarity_scores(cosines))
        round.log("similarities", int(pairs.sum()) // 2)

    def on_substitute(self, round: Round) -> None:
        """Friends speak for the dropped ones; without a server, each receiver's own."""
        m = round.num_clients
        self._begin(round)
        assert self.scores is not None
        assert self.counts is not None
        assert round.stand_in is not None
        if round.num_servers:
            found = friends(self.scores, self.counts, round.participants, self.candidates)
            round.stand_in[:, :m] = torch.where(round.dropped, found, torch.arange(m))
            round.likeness = round.between_clients(self.scores.masked_fill(self.counts == 0, torch.nan))
            return
        heard = self._heard(round)
        found = friends(self.scores, self.counts, heard)
        round.stand_in[:m, :m] = torch.where(round.dropped, found, torch.arange(m))
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
        m = round.num_clients
        assert round.selected is not None
        heard = round.selected[:m, :m] & round.participants
        return heard | torch.diag(round.receivers[:m] & round.participants)

    def _overhear(self, round: Round, heard: Tensor) -> None:
        """Update the running means of each receiver with the pairs of updates that it got to see."""
        assert self.scores is not None
        assert self.counts is not None
        both = heard[:, :, None] & heard[:, None, :]
        cosines = round.bank.compare("sent", both.any(0), relative_to="start").cosines
        seen = similarity_scores(cosines).masked_fill(~both, torch.nan)
        if round.bank.sends_something_else:  # a receiver knows what it trained itself
            own = round.bank.compare("trained", heard, relative_to="start", to="sent").cosines
            itself = torch.eye(len(heard), dtype=torch.bool)
            mine = similarity_scores(own).masked_fill(~heard, torch.nan)  # [receiver, other]
            seen = torch.where(itself[:, :, None], mine[:, None, :], seen)
            seen = torch.where(itself[:, None, :], mine[:, :, None], seen)
            seen = seen.masked_fill(~both, torch.nan)
        self.scores, self.counts = running_mean(self.scores, self.counts, seen)
        round.charge_comparison("trained", heard, relative_to="start")
        several = heard.sum(1)
        round.log("similarities", int((several * (several - 1)).sum()) // 2)

    # --- state --------------------------------------------------------------------------------------------------------
    def _begin(self, round: Round) -> None:
        """Nothing is known before the first round."""
        if self.scores is None:
            m = round.num_clients
            shape = (m, m) if round.num_servers else (m, m, m)
            self.scores = torch.zeros(shape, dtype=torch.float64)
            self.counts = torch.zeros(shape, dtype=torch.long)
            self.candidates = ~torch.eye(m, dtype=torch.bool)
