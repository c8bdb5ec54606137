"""FL-FDMS: friends stand in for clients that drop out (arXiv 2205.13222)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection, Substitution
from dfl_lightning.functional import (
    PairScores,
    count_pairs,
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
"""At a server: clients below which all pairs may be compared in every round; from there on candidates are needed."""

MOST_SHOWN = 1000
"""Clients up to which the scores are shown as `likeness`."""

STATE_BYTES = 8 + 8 + 1
"""Of a pair of clients at a server: its score, its count, and whether one is a candidate of the other."""

PAIR_BYTES = 80
"""Of a pair that a receiver without a server has observed: its code, score and count, 24 bytes that are kept, three
times while a round adds to them, and what a block of pairs needs; as measured with 32,000,000 pairs."""

ROUND_BYTES = 112
"""Of m^2, while all pairs are compared, as measured with 3,000 clients: lists, inner products, new and old state."""


class FDMS(Substitution):
    """A dropped client's update is replaced by that of its best friend among the active ones (FL-FDMS section 5.1).

    The server keeps, for each pair of clients, the running mean of how similar their updates were in the rounds in
    which both took part. A client without such a history is replaced by the mean of the active ones.

    Without a server each receiver keeps its own scores, from the rounds in which it received from both clients of a
    pair, and gives a dropped neighbour's vote to the best friend among the active ones (itself included). A neighbour
    therefore sends its update in addition to its model, which is charged as a proxy of the same size. Only observed
    pairs are kept: at most d (d + 1) / 2 at a receiver that ever receives from d others.

    Args:
        theta_scale: at a server: a client whose score is Theta_t times this behind the best candidate's is no candidate
            any more, and pairs that are no candidates are not compared (section 5.3). 1 and 0.5 are the paper's
            cases 1 and 2; Theta_t is conservative, and 0.25 is a practical value; null: all clients stay candidates.
        beta: of Theta_t, the least share of the rounds in which a pair is observed, above 0 and at most 1; null: as
            the run shows it, over the observed pairs that are still compared.
    """

    method_name = "FL-FDMS"
    state = ("scores", "counts", "candidates")
    logs = ("similarities", "theta", "candidates")

    def __init__(self, theta_scale: float | None = None, beta: float | None = None) -> None:
        if theta_scale is not None and not 0 < theta_scale < float("inf"):
            raise UserError(f"substitution.theta_scale={theta_scale}; it must be above 0, or null for no elimination")
        if beta is not None and not 0 < beta <= 1:
            raise UserError(f"substitution.beta={beta}; it is a share of rounds above 0 and at most 1")
        if beta is not None and theta_scale is None:
            raise UserError("substitution.beta is a part of Theta_t; set substitution.theta_scale too, or leave it out")
        self.theta_scale, self.beta = theta_scale, beta
        self.scores: Tensor  # R, float64 [m, m]; at a server
        self.counts: Tensor  # N, rounds observed together, long [m, m]; at a server
        self.candidates: Tensor  # C, bool [m, m]; at a server
        self.observed = PairScores.empty(0)  # R and N of all receivers; without a server

    def start(self, federation: Federation) -> None:
        """Require an end of the run for Theta_t, a server for candidates, and memory for what is kept of pairs."""
        m = federation.num_clients
        if self.theta_scale is not None and not federation.topology.num_servers:
            raise UserError("substitution.theta_scale saves a server's comparisons; use --topology server, or null")
        if self.theta_scale is not None and (federation.num_rounds is None):
            raise UserError("substitution.theta_scale needs the number of rounds; set trainer.max_rounds")
        if federation.topology.num_servers:
            self._refuse_too_many(m)
        else:
            _refuse_too_many_pairs(expected_pairs(federation), "in its first rounds")
            m = 0  # nothing is known of pairs in general
        self.scores, self.counts = torch.zeros(m, m, dtype=torch.float64), torch.zeros(m, m, dtype=torch.long)
        self.candidates = ~torch.eye(m, dtype=torch.bool)

    # --- a server -----------------------------------------------------------------------------------------------------
    def on_trained(self, round: Round) -> None:
        """Update, at a server, the running means with this round's pairs of updates."""
        if not round.num_servers:
            return  # which clients receive from which is known later
        m, took_part = round.num_clients, round.participants
        pairs = took_part[:, None] & took_part[None, :] & (self.candidates | self.candidates.T)
        first, second = torch.nonzero(pairs.triu_(1), as_tuple=True)  # each pair once
        cosines = round.compare("trained", Links(first, second, round.num_nodes), relative_to="start").cosines
        seen = torch.full((m, m), torch.nan, dtype=torch.float64)
        seen[first, second] = seen[second, first] = similarity_scores(cosines)
        self.scores, self.counts = running_mean(self.scores, self.counts, seen)
        round.log("similarities", len(first))

    def on_substitute(self, round: Round) -> None:
        """Put friends in the place of the dropped ones; without a server, each receiver's own."""
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
        heard = _heard(round)
        known = self.observed if self.observed.nodes else PairScores.empty(m)
        round.substitute[missing] = known.friends(heard, receivers[missing], senders[missing])
        self._overhear(round, heard, known)

    def on_round_end(self, round: Round) -> None:
        """Drop candidates that are clearly worse than the best one, from the next round on."""
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
    def _overhear(self, round: Round, heard: Links, known: PairScores) -> None:
        """Update the running means of each receiver with the pairs of updates that it got to see."""
        pairs = distinct_pairs(heard)
        cosines = round.bank.compare("sent", pairs, relative_to="start").cosines
        own = None
        if round.bank.changes_messages:  # a receiver knows what it trained itself
            own = round.bank.compare("trained", heard, relative_to="start", to="sent").cosines

        def score(receivers: Tensor, first: Tensor, second: Tensor) -> Tensor:
            found = pairs.look_up(cosines, second, first)
            if own is not None:
                itself = (first == receivers) | (second == receivers)
                other = torch.where(first == receivers, second, first)
                found[itself] = heard.look_up(own, receivers[itself], other[itself])
            return similarity_scores(found)

        self.observed = known.with_observed(heard, score)
        _refuse_too_many_pairs(len(self.observed), f"by {nth_round(round.index)}")
        round.charge_comparison("trained", heard, relative_to="start")
        round.log("similarities", count_pairs(heard.count))

    # --- state --------------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Any]:
        """Return what a server knows, and what receivers without one do."""
        observed = {"observed": dict(vars(self.observed))} if self.observed.nodes else {}
        return {**super().state_dict(), **observed}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore; of the matrices of all pairs at each receiver, which earlier versions kept, the observed ones."""
        super().load_state_dict(state_dict)
        observed = state_dict.get("observed")
        self.observed = PairScores.empty(0) if observed is None else PairScores(**observed)
        if self.scores.ndim == 3:
            self.observed = PairScores.from_matrices(self.scores, self.counts)
            self.scores, self.counts = self.scores[:0, :0, 0], self.counts[:0, :0, 0]
            self.candidates = torch.zeros(0, 0, dtype=torch.bool)

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


def expected_pairs(federation: Federation) -> int:
    """About how many pairs all receivers observe in a round, where no client drops out and no server mixes.

    Args:
        federation: of the run.
    """
    selection = federation.policy(Selection)
    most = federation.num_nodes if selection is None or selection.k == "all" else selection.k
    return count_pairs(federation.topology.linked(0).count.clamp(max=most) + 1)


def _heard(round: Round) -> Links:
    """Whose model each client gets to average, its own included."""
    own = Links.loops(round.receivers & round.participants)
    return round.selected.between(senders=round.participants).union(own)


def _refuse_too_many_pairs(pairs: int, when: str) -> None:
    """What receivers without a server cannot hold.

    Raises:
        UserError: so many pairs take more memory than the machine has.
    """
    memory = machine_memory()
    if memory is not None and PAIR_BYTES * pairs > memory:
        raise UserError(
            f"substitution FDMS without a server holds scores of {pairs:,} pairs of neighbours {when}, about "
            f"{size(PAIR_BYTES * pairs)}; this machine has {size(memory)}: use a sparser graph, fewer neighbours that "
            "stay the same (--selection.redraw false), or substitution Stale, which keeps nothing of pairs"
        )
