"""DPFL: collaborators chosen greedily by validation loss, under a budget (Kharrat et al., AISTATS 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.callbacks.base import Aggregation, Selection
from dfl_lightning.callbacks.selection.dpfl_sums import BankSums, weights_of
from dfl_lightning.engines.local_work import Duration
from dfl_lightning.functional import bggc, candidates_in_order, ggc
from dfl_lightning.links import Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


PLACES_AT_ONCE = 2**22
"""Receivers choose together as long as their number times the most candidates of any of them is not above this: a few
hundred megabytes of orders, gains and weights."""


class DPFL(Selection):
    """Collaborators whose models, averaged with the client's own, lower its validation loss (DPFL algorithms 1 to 3).

    Round 0 is the paper's preprocessing: longer local training, then a choice among all neighbours (BGGC), which are
    fetched in batches of the budget. From then on a client fetches only those, and chooses among them anew (GGC). A
    client is evaluated by the model that did best on its validation data after local training.

    Args:
        budget: number of others that a client learns from, and keeps at once (B_c), or `all`; a client's `budget` in
            the topology takes precedence.
        initial_epochs: local epochs of round 0 (tau_init), in place of `model.local_epochs`.
        period: rounds between two choices (P); in between, a client learns from those it chose last.
        repeat_bggc: choose among all neighbours again, not among those of the first choice.
        rule: `bounded`: the budget is never exceeded; `literal`: the budget counts the client itself and is tested
            as the algorithms print it, and every gain counts; `random`: nothing is compared, each client draws as many
            neighbours as its budget in the place of each choice among all, and keeps them (section 4.5).
        adversaries_choose: whether clients with falsified labels choose like all others, or train alone and only
            send what they trained (section 4.3).
    """

    supports_servers = False
    row_sets = {"best": "models"}
    reports = "best"
    state = ("first", "has_first", "chosen", "best")
    logs = ("held",)

    neighbour_counts = {"budget": "k"}

    def __init__(
        self,
        budget: int | Literal["all"] = 10,
        initial_epochs: int = 10,
        period: int = 1,
        repeat_bggc: bool = False,
        rule: Literal["bounded", "literal", "random"] = "bounded",
        adversaries_choose: bool = True,
    ) -> None:
        if budget != "all" and budget < 0:
            raise UserError(f"selection.budget={budget}; it is a number of other clients, 0 or more, or all")
        if initial_epochs < 0:
            raise UserError(f"selection.initial_epochs={initial_epochs}; it is a number of epochs, 0 or more")
        if period < 1:
            raise UserError(f"selection.period={period}; it is a number of rounds, 1 or more")
        self.k = budget
        self.initial_epochs, self.period, self.repeat_bggc, self.rule = initial_epochs, period, repeat_bggc, rule
        self.adversaries_choose = adversaries_choose
        self.first: Links  # Omega
        self.has_first: Tensor  # who has made its first choice, bool [n]
        self.chosen: Links  # C of the last choice
        self.best: Tensor  # merit of the best validation score so far, float64 [m]

    def start(self, federation: Federation) -> None:
        """Require clients without servers, each with validation data, and averages that can be known beforehand."""
        without = torch.nonzero(federation.data.sizes("val") == 0).squeeze(1).tolist()
        if without:
            raise UserError(
                f"selection DPFL evaluates models on validation data, of which client {without[0]} has none; "
                "set data.val_fraction (0.2 in the paper)"
            )
        if not self.adversaries_choose and federation.data.adversaries is None:
            raise UserError(
                "selection.adversaries_choose=false, but no client has falsified labels; "
                "use data.partition FlippedLabels"
            )
        aggregation = federation.require(Aggregation)
        if aggregation.shares(federation) is None or not aggregation.include_self:
            raise UserError(
                "selection DPFL evaluates averages before they are mixed, the client's own model included, and needs "
                f"fixed weights; aggregation {type(aggregation).__name__} decides later: use SampleWeighted or Uniform"
            )
        self.first = self.chosen = Links.empty(federation.num_nodes)
        self.has_first = torch.zeros(federation.num_nodes, dtype=torch.bool)
        self.best = torch.full((federation.num_clients,), -torch.inf, dtype=torch.float64)

    def on_propose(self, round: Round) -> None:
        """Train longer in round 0; propose all neighbours, or the first choice."""
        if round.index == 0:
            federation = round.federation
            round.phases = federation.objective.phases(federation.layout, Duration(self.initial_epochs), 0)
        if not self.adversaries_choose:
            assert round.federation.data.adversaries is not None
            round.candidates = round.candidates.between(receivers=~round.federation.data.adversaries)
        within_first = self.first.intersection(round.candidates)
        round.candidates = within_first.union(round.candidates.between(receivers=self._among_all(round)))

    def describe(self, federation: Federation) -> str:
        """Return a line about the training of round 0.

        Args:
            federation: of the run.
        """
        return f"DPFL: clients train for {Duration(self.initial_epochs)} in round 0"

    def on_trained(self, round: Round) -> None:
        """Keep the trained models that are the best so far on validation data, the latest among equals."""
        owners = torch.nonzero(round.participants).squeeze(1)
        task = round.federation.task
        merits = task.merit(round.evaluate(References.rows("trained", owners), "val").metrics[task.score])
        better = merits >= self.best[owners]
        owners, merits = owners[better], merits[better]
        self.best[owners] = merits
        own = Weights.of_rows(owners, round.num_nodes)
        round.mix([(own, "trained")], into="best", where=owners, columns=round.federation.layout.all)

    def on_select(self, round: Round) -> None:
        """Choose greedily for all clients together, among those that are active."""
        up = round.candidates.between(senders=round.active)
        choosing = round.receivers & (up.count > 0)
        among_all = choosing & self._among_all(round)
        again = choosing & ~among_all & (self._is_due(round) and self.rule != "random")
        with round.bank.timed("select"):
            for who, batched in ((among_all, True), (again, False)):
                if who.any():
                    chosen = self._choice(round, up.between(receivers=who), batched)
                    self.chosen = self.chosen.between(receivers=~who).union(chosen)
                    if batched:
                        self.first = self.first.between(receivers=~who).union(chosen)
        self.has_first |= among_all
        round.selected = self.chosen.intersection(round.candidates)

    def on_round_end(self, round: Round) -> None:
        """Log how many models of others the client that needed most room kept at once."""
        round.log("held", float(round.ledger.held.max()))

    def _is_due(self, round: Round) -> bool:
        """Whether clients choose again in this round: in round 1, and so on; a first choice does not wait for it."""
        return (round.index - 1) % self.period == 0

    def _among_all(self, round: Round) -> Tensor:
        """The clients that choose among all their neighbours, bool [n]: those without a choice, or all again."""
        again = self.repeat_bggc and self._is_due(round)
        return torch.ones_like(self.has_first) if again else ~self.has_first

    def _choice(self, round: Round, candidates: Links, batched: bool) -> Links:
        """The choice of all receivers that have `candidates`: greedy, by BGGC (`batched`) or GGC, or at random."""
        if self.rule == "random":
            return round.draw(candidates, self.limits(round), "DPFL random graph")
        shares = round.federation.require(Aggregation).shares(round.federation)
        assert shares is not None  # as `start` has seen
        shares = shares / shares.sum()
        orders, coins = round.draws(candidates, "DPFL order"), round.draws(candidates, "DPFL coins")
        limits = self.limits(round)
        literal = self.rule == "literal"
        tolerance = 0.0 if literal else 1e-6
        sums = BankSums(round) if batched else None
        chosen = torch.zeros(len(candidates), dtype=torch.bool)

        def losses(members: Tensor, weights: Tensor) -> Tensor:
            averages = Term("trained", weights_of(members, weights, round.num_nodes))
            return round.evaluate(References((averages,), members[:, 0], "trained"), "val").losses

        for receivers in _together(candidates.count):
            places = candidates_in_order(orders, candidates, receivers)
            order = torch.where(places >= 0, candidates.senders[places], -1)
            settings = receivers, order, coins[places], limits[receivers], shares
            if sums is None:
                choice = ggc(*settings, losses, tolerance, literal)
            else:
                choice = bggc(*settings, sums, tolerance, literal)
            chosen[places[choice.chosen]] = True
        found = candidates.keep(chosen)
        if batched:  # the sum over X is the average, apart from its scale
            round.ledger.sum_up(torch.nonzero(candidates.count).squeeze(1), found)
        return found


def _together(count: Tensor) -> Iterator[Tensor]:
    """Receivers that choose at the same time, long each: those with most candidates first, as many as have room.

    Receivers with about as many candidates are taken together, so that a hub does not make all rows as long as its own.

    Args:
        count: candidates of each node, long [n]; who has none is left out.
    """
    by_count = count.sort(descending=True, stable=True).indices[: int((count > 0).sum())]
    while len(by_count):
        some = max(1, PLACES_AT_ONCE // int(count[by_count[0]]))
        yield by_count[:some].sort().values
        by_count = by_count[some:]
