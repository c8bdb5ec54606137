"""FL-FDMS: updates of similar clients, friends, replace those of clients that drop out (arXiv 2205.13222)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.similarity import Comparison
from dfl_lightning.callbacks.base import Selection, Substitution
from dfl_lightning.functional import (
    PairScores,
    count_pairs,
    distance_scores,
    distinct_pairs,
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
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

MOST_COMPARED = 10_000
"""Number of clients from which on a server may not compare all pairs in each round, and must restrict candidates."""

MOST_SHOWN = 1000
"""Largest number of clients whose scores are shown as `likeness`."""

STATE_BYTES = 8 + 8 + 1
"""Bytes that a server keeps for a pair of clients: a score, a count, and whether one is a candidate of the other."""

PAIR_BYTES = 80
"""Bytes for a pair that a receiver without a server has observed: code, score and count take 24, three times as many
while a round updates them, and the rest is the work on a block of pairs; measured with 32,000,000 pairs."""

ROUND_BYTES = 112
"""Bytes for each of m^2 pairs while all are compared: lists, inner products, new and old state; measured with 3,000
clients."""


class FDMS(Substitution):
    """The replacement of a dropped client's update by that of its friend (FL-FDMS, arXiv 2205.13222, section 5.1).

        R_kj = mean of (cos(u_k, u_j) + 1) / 2 over the rounds in which k and j took part          (eq. 14 and 15)
        phi(k) = argmax over active j of R_kj

    u_j is the update of client j, and phi(k) the friend that replaces k. A client without observed scores is replaced
    by the mean of the active ones.

    With a server, the server keeps R. Without one each receiver keeps its own scores, from the rounds in which it
    received from both clients of a pair, and gives the vote of a dropped neighbour to its friend among the active ones,
    itself included. A neighbour therefore sends its update in addition to its model, which is charged as a proxy of the
    same size. Only observed pairs are kept: at most d (d + 1) / 2 at a receiver that ever receives from d others.

    Args:
        theta_scale: with a server: a client whose score is at least `theta_scale` Theta_t below that of the best
            candidate stops being a candidate, and pairs without a candidate are not compared (section 5.3). 1 and 0.5
            are the paper's cases 1 and 2. Theta_t is conservative, and 0.25 is a practical value; null: all clients
            stay candidates.
        beta: the least share of the rounds in which a pair is observed, in Theta_t, above 0 and at most 1; null: the
            share in the run so far, over the observed pairs that are still compared.
        similarity: `cosine` of the updates, as above; `distance`: -|u_k - u_j|, which section 5.1 offers instead, for
            R_kj. It has no lower bound, and Theta_t is for scores between 0 and 1, so that it cannot be combined with
            `theta_scale`.
    """

    method_name = "FL-FDMS"
    state = ("scores", "counts", "candidates")
    logs = ("similarities", "theta", "candidates")

    def __init__(
        self,
        theta_scale: float | None = None,
        beta: float | None = None,
        similarity: Literal["cosine", "distance"] = "cosine",
    ) -> None:
        if theta_scale is not None and not 0 < theta_scale < float("inf"):
            raise UserError(f"substitution.theta_scale={theta_scale}; it must be above 0, or null for no elimination")
        if beta is not None and not 0 < beta <= 1:
            raise UserError(f"substitution.beta={beta}; it is a share of rounds above 0 and at most 1")
        if beta is not None and theta_scale is None:
            raise UserError("substitution.beta is a part of Theta_t; set substitution.theta_scale too, or leave it out")
        if similarity == "distance" and theta_scale is not None:
            raise UserError(
                "substitution.theta_scale compares scores with Theta_t, which is for scores between 0 and 1, and those "
                "of --substitution.similarity distance have no bounds; drop one of the two"
            )
        self.theta_scale, self.beta, self.similarity = theta_scale, beta, similarity
        self.scores: Tensor  # R, float64 [m, m]; at a server
        self.counts: Tensor  # N, rounds observed together, long [m, m]; at a server
        self.candidates: Tensor  # C, bool [m, m]; at a server
        self.observed = PairScores.empty(0)  # R and N of all receivers; without a server

    def start(self, federation: Federation) -> None:
        """Require a number of rounds and a server for candidates, and enough memory for the scores of pairs."""
        m = federation.num_clients
        if self.theta_scale is not None and not federation.topology.num_servers:
            raise UserError("substitution.theta_scale saves a server's comparisons; use --topology server, or null")
        if self.theta_scale is not None and (federation.num_rounds is None):
            raise UserError("substitution.theta_scale needs the number of rounds; set trainer.max_rounds")
        if federation.topology.num_servers:
            self._refuse_too_many(m)
        else:
            _refuse_too_many_pairs(expected_pairs(federation), "in its first rounds")
            m = 0  # without a server there are no common scores
        self.scores, self.counts = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, m, dtype=torch.long)
        self.candidates = ~torch.eye(m, dtype=torch.bool)

    # --- a server -----------------------------------------------------------------------------------------------------
    def on_trained(self, round: Round) -> None:
        """Update a server's running means with this round's pairs of updates."""
        if not round.num_servers:
            return  # `on_substitute` does this for receivers without a server, since it needs the selected links
        m, took_part = round.num_clients, round.participants
        pairs = took_part[:, None] & took_part[None, :] & (self.candidates | self.candidates.T)
        first, second = torch.nonzero(pairs.triu_(1), as_tuple=True)  # each pair once
        compared = round.compare("trained", Links(first, second, round.num_nodes), relative_to="start")
        seen = torch.full((m, m), torch.nan, dtype=torch.float64)
        seen[first, second] = seen[second, first] = self._scores(compared)
        self.scores, self.counts = running_mean(self.scores, self.counts, seen)
        round.log("similarities", len(first))

    def on_substitute(self, round: Round) -> None:
        """Write friends as substitutes of dropped clients; without a server, then update each receiver's scores."""
        m = round.num_clients
        receivers, senders = round.selected.receivers, round.selected.senders
        missing = torch.nonzero(senders < m).squeeze(1)
        missing = missing[round.dropped[senders[missing]]]
        if round.num_servers:
            friend = friends(self.scores, self.counts, round.participants, self.candidates)
            round.substitute[missing] = friend[senders[missing]]
            if m <= MOST_SHOWN:
                clients, others = torch.nonzero(self.counts, as_tuple=True)
                observed = Links(clients, others, round.num_nodes)
                round.likeness = LinkMemory(observed, self.scores[clients, others])
            return
        received = _received(round)
        former = self.observed if self.observed.nodes else PairScores.empty(m)
        round.substitute[missing] = former.friends(received, receivers[missing], senders[missing])
        self._observe(round, received, former)

    def on_round_end(self, round: Round) -> None:
        """Remove candidates that are clearly worse than the best one, for the next rounds."""
        if self.theta_scale is None:
            return
        assert round.federation.num_rounds is not None
        t, m = round.index + 1, round.num_clients
        beta = self.beta or observed_share(self.counts, self.candidates | self.candidates.T, t)
        if beta > 0 and m > 1:
            theta = self.theta_scale * elimination_threshold(t, m, round.federation.num_rounds, m - 1, beta)
            self.candidates = remaining_candidates(self.scores, self.counts, self.candidates, theta)
            round.log("theta", theta)
        round.log("candidates", float(self.candidates.sum(1).double().mean()))

    # --- without a server ---------------------------------------------------------------------------------------------
    def _observe(self, round: Round, received: Links, former: PairScores) -> None:
        """Add the scores of the pairs of updates that each receiver received to its running means."""
        pairs = distinct_pairs(received)
        scores = self._scores(round.bank.compare("sent", pairs, relative_to="start"))
        to_own = None
        if round.bank.changes_messages:  # a receiver compares with the update that it trained, not the one that it sent
            to_own = self._scores(round.bank.compare("trained", received, relative_to="start", to="sent"))

        def score(receivers: Tensor, first: Tensor, second: Tensor) -> Tensor:
            of_pairs = pairs.look_up(scores, second, first)
            if to_own is not None:
                itself = (first == receivers) | (second == receivers)
                other = torch.where(first == receivers, second, first)
                of_pairs[itself] = received.look_up(to_own, receivers[itself], other[itself])
            return of_pairs

        self.observed = former.with_observed(received, score)
        _refuse_too_many_pairs(len(self.observed), f"by {nth_round(round.index)}")
        round.charge_comparison("trained", received, relative_to="start")
        round.log("similarities", count_pairs(received.count))

    def _scores(self, comparison: Comparison) -> Tensor:
        """Return the scores r of compared pairs of updates, float64 [E]."""
        if self.similarity == "distance":
            return distance_scores(comparison.distances)
        return similarity_scores(comparison.cosines)

    # --- state --------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return the scores of a server, and those of receivers without a server."""
        observed = {"observed": dict(vars(self.observed))} if self.observed.nodes else {}
        return {**super().state_dict(), **observed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the scores of the server or of the receivers."""
        super().load_state_dict(state_dict)
        observed = state_dict.get("observed")
        self.observed = PairScores.empty(0) if observed is None else PairScores(**observed)

    def _refuse_too_many(self, m: int) -> None:
        """Refuse numbers of clients whose pairs a server cannot hold, or would take too long to compare."""
        pairs = m * (m - 1) // 2
        held = f"{pairs:,} pairs of clients, {size(STATE_BYTES * m * m)} of scores, counts and candidates"
        if m >= MOST_COMPARED and self.theta_scale is None:
            cosines = " with --substitution.similarity cosine" if self.similarity == "distance" else ""
            raise UserError(
                f"substitution FDMS compares all {held}, in every round; set substitution.theta_scale (0.25, say)"
                f"{cosines}, which leaves pairs out, or use fewer than {MOST_COMPARED:,} clients"
            )
        memory = machine_memory()
        if memory is not None and ROUND_BYTES * m * m > memory:
            raise UserError(
                f"substitution FDMS holds {held}, and about {size(ROUND_BYTES * m * m)} while it compares "
                f"them; this machine has {size(memory)}: use at most {math.isqrt(memory // ROUND_BYTES):,} "
                "clients, or substitution Stale, which keeps nothing of pairs"
            )


def expected_pairs(federation: Federation) -> int:
    """Estimate how many pairs all receivers observe in a round in which no client drops out, without a server."""
    selection = federation.policy(Selection)
    most = federation.num_nodes if selection is None or selection.k == "all" else selection.k
    return count_pairs(federation.topology.linked(0).count.clamp(max=most) + 1)


def _received(round: Round) -> Links:
    """Return the links over which receivers get trained models in this round, with a link of each to itself."""
    own = Links.loops(round.receivers & round.participants)
    return round.selected.between(senders=round.participants).union(own)


def _refuse_too_many_pairs(pairs: int, when: str) -> None:
    """Refuse numbers of pairs whose scores receivers without a server cannot hold.

    Raises:
        UserError: the pairs take more memory than the machine has.
    """
    memory = machine_memory()
    if memory is not None and PAIR_BYTES * pairs > memory:
        raise UserError(
            f"substitution FDMS without a server holds scores of {pairs:,} pairs of neighbours {when}, about "
            f"{size(PAIR_BYTES * pairs)}; this machine has {size(memory)}: use a sparser graph, fewer neighbours that "
            "stay the same (--selection.redraw false), or substitution Stale, which keeps nothing of pairs"
        )
