"""PENS: evaluate a few others' models on the client's own data, then gossip with those chosen most often."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Selection
from dfl_lightning.callbacks.selection.known_clusters import log_matched, matched_names
from dfl_lightning.functional import more_often_than_expected
from dfl_lightning.functional.baselines.pens import Rule
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


OF_OWN_CHOICES = ("expected", "one_less")
"""Rules whose limit follows from how often a client itself has chosen, however fast it is."""


class PENS(Selection):
    """Performance-based neighbour selection in two stages (PENS, arXiv 2107.08517).

        peers of i = {j : c_ij > T1 m / (n - 1)}          (`expected`, all n clients in reach)

    c_ij is the number of rounds of stage one in which i chose j. In stage one, T1 rounds, a client evaluates n_s random
    others in each round, and learns from the m whose models have the lowest loss on its own training data. In stage two
    it learns from `k` random peers, or from random clients in reach if it has no peers.

    Args:
        k: number of peers to learn from in a round of stage two.
        sampled: n_s, number of others whose models are evaluated in a round of stage one.
        top: m, how many of these to learn from.
        stage_one: T1, rounds of stage one; later rounds are stage two.
        rule: the limit that c_ij must exceed. `expected`: the expected number of choices at random; `all_clients`: with
            n in the denominator; `one_less`: one less than expected; `sent`: in proportion to how often the peer
            evaluated this client; `panm`: ceil(T1 (sampled + top) / n).
    """

    k: int  # a number only: `all` would be another method
    supports_servers = False
    supports_clock = True
    state = ("counts", "looks", "expected")
    logs: tuple[str, ...] = ("peers",)
    neighbour_counts = {"k": "k", "sampled": "sampled"}

    def __init__(
        self,
        k: int = 3,
        sampled: int = 6,
        top: int = 3,
        stage_one: int = 100,
        rule: Literal["expected", "all_clients", "one_less", "sent", "panm"] = "expected",
    ) -> None:
        if rule not in get_args(Rule):
            raise UserError(f"selection.rule={rule}; choose one of {', '.join(get_args(Rule))}")
        for name, number, least, what in (
            ("k", k, 0, "a number of peers"),
            ("top", top, 1, "a number of peers"),
            ("stage_one", stage_one, 1, "a number of rounds"),
        ):
            if number < least:
                raise UserError(f"selection.{name}={number}; it is {what}, {least} or more")
        if sampled < top:
            raise UserError(f"selection.sampled={sampled}; the top={top} are chosen of them, so it is {top} or more")
        self.k, self.sampled, self.top, self.stage_one, self.rule = k, sampled, top, stage_one, rule
        self.lists_candidates = rule in ("expected", "one_less")  # these rules count the clients in reach
        self.counts: LinkMemory  # rounds in which i chose j
        self.looks: LinkMemory  # rounds in which i evaluated j
        self.expected: LinkMemory  # expected number of choices of j at random

    @classmethod
    def drawn_anew_from(cls, arguments: Mapping[str, Any]) -> int | None:
        """Return the first round of stage two, whose neighbours are random peers."""
        return int(arguments["stage_one"])

    def start(self, federation: Federation) -> None:
        """Begin with empty counts; remark on a run without a second stage.

        Raises:
            UserError: clients do not wait for each other, and the limit is not that of each client's own choices.
        """
        n = federation.num_nodes
        self.logs = ("peers", *matched_names(federation))
        if federation.is_asynchronous and self.rule not in OF_OWN_CHOICES:
            raise UserError(
                f"selection.rule={self.rule} compares with numbers of rounds that are the same for all clients, and "
                "with clock Asynchronous each one trains at its own speed; use --selection.rule expected"
            )
        self.counts, self.looks = LinkMemory.empty(n, torch.long), LinkMemory.empty(n, torch.long)
        self.expected = LinkMemory.empty(n)
        if federation.planned_rounds is not None and 0 < federation.planned_rounds <= self.stage_one:
            remark = f"PENS stays in stage one for all {federation.planned_rounds} rounds: lower selection.stage_one"
            federation.remark(remark)

    def listed_links(self, federation: Federation) -> int:
        """Return about how many links a round lists: all if the rule counts clients in reach, else a few per node."""
        drawn = min(super().listed_links(federation), 2 * self.sampled * federation.num_nodes)
        return super().listed_links(federation) if self.lists_candidates else drawn

    def on_propose(self, round: Round) -> None:
        """Propose random active clients in stage one; in stage two the peers, or all in reach without peers."""
        if round.index < self.stage_one:
            number = torch.where(self._limits(round, self.top) > 0, self.sampled, 0)
            round.candidates = round.draw_links(round.receivable(round.available), number, "pens sampled")
        else:
            peers = self._peers(round)
            without = round.available.between(receivers=peers.count == 0)
            round.candidates = peers.intersection(round.available).union(without)

    def on_compare(self, round: Round) -> None:
        """Score the drawn models by minus the loss on the client's training data; infinite losses become NaN."""
        if round.index < self.stage_one:
            losses = round.loss_of(round.candidates)
            round.scores = -losses.masked_fill(~losses.isfinite(), torch.nan)

    def on_select(self, round: Round) -> None:
        """Select and count the `top` lowest losses in stage one; select `k` random peers in stage two."""
        if round.index >= self.stage_one:
            round.selected = round.draw_links(round.candidates, self._limits(round, self.k), "pens gossip")
            return
        limits = self._limits(round, self.top)
        round.selected = round.candidates.keep(round.candidates.top(round.scores, limits))
        self.counts.add(round.selected, torch.ones(len(round.selected), dtype=torch.long))
        self.looks.add(round.candidates, torch.ones(len(round.candidates), dtype=torch.long))
        if self.lists_candidates:
            up = round.receivable(round.available)
            chance = torch.minimum(limits, round.candidates.count).double() / up.count
            self.expected.add(up, chance[up.receivers])

    def on_round_end(self, round: Round) -> None:
        """Log the mean number of peers by the counts so far, and their precision and recall against known clusters."""
        peers = self._peers(round)
        round.log("peers", len(peers) / round.num_nodes)
        log_matched(round, peers)

    def _peers(self, round: Round) -> Links:
        """Return the peers: the clients chosen more often than the limit of a whole stage one."""
        links = self.counts.links
        if self.rule == "one_less":  # a limit below 0 also accepts clients that were rarely in reach and never chosen
            links = links.union(self.expected.links).union(round.available)
        often = more_often_than_expected(
            self.counts.read(links, 0),
            self.expected.read(links, 0),
            self.looks.read_back(links, 0),
            self.rule,
            nodes=round.num_nodes,
            sampled=self.sampled,
            top=self.top,
            rounds=self.stage_one,
        )
        return links.keep(often)

    def _limits(self, round: Round, k: int) -> Tensor:
        """Return how many clients each node may learn from, long [n]: its `budget` in the topology, else `k`."""
        return (
            self.limits(round) if round.federation.topology.budgets is not None else torch.full((round.num_nodes,), k)
        )
