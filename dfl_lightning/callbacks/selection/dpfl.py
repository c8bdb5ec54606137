"""DPFL: collaborators chosen greedily by validation loss, under a budget (Kharrat et al., AISTATS 2025)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.references import References, Term
from dfl_lightning.callbacks.base import Aggregation, Selection
from dfl_lightning.callbacks.selection.dpfl_sums import BankSums
from dfl_lightning.engines.local_work import Duration
from dfl_lightning.functional import bggc, candidates_in_order, ggc
from dfl_lightning.functional.dpfl import Choice
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


PAIRS_AT_ONCE = 2**24
"""Receivers choose as many at a time as make so many pairs with all nodes, a few hundred megabytes of weights."""


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
            as the algorithms print it, and every gain counts.
        adversaries_choose: whether clients with falsified labels choose like all others, or train alone and only
            send what they trained (section 4.3).
    """

    supports_servers = False
    row_sets = {"best": "models"}
    reports = "best"
    state = ("first", "has_first", "chosen", "best")

    neighbour_counts = {"budget": "k"}

    def __init__(
        self,
        budget: int | Literal["all"] = 10,
        initial_epochs: int = 10,
        period: int = 1,
        repeat_bggc: bool = False,
        rule: Literal["bounded", "literal"] = "bounded",
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
        self.first: Tensor | None = None  # Omega, bool [n, n]
        self.has_first: Tensor | None = None  # who has made its first choice, bool [n]
        self.chosen: Tensor | None = None  # C of the last choice, bool [n, n]
        self.best: Tensor | None = None  # highest validation accuracy so far, float64 [m]

    def start(self, federation: Federation) -> None:
        """Clients without servers, each with validation data, and averages that can be known beforehand."""
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
        aggregation = federation.policy(Aggregation)
        assert aggregation is not None
        if aggregation.shares(federation) is None or not aggregation.include_self:
            raise UserError(
                "selection DPFL evaluates averages before they are mixed, the client's own model included, and needs "
                f"fixed weights; aggregation {type(aggregation).__name__} decides later: use SampleWeighted or Uniform"
            )

    def on_propose(self, round: Round) -> None:
        """Longer training in round 0; candidates are all neighbours, or the first choice."""
        n = round.num_nodes
        if self.first is None or self.has_first is None or self.chosen is None:
            self.first, self.chosen = torch.zeros(2, n, n, dtype=torch.bool)
            self.has_first = torch.zeros(n, dtype=torch.bool)
        if round.index == 0:
            federation = round.federation
            round.phases = federation.objective.phases(federation.layout, Duration(self.initial_epochs), 0)
        round.candidates &= self.first | self._among_all(round)[:, None]
        if not self.adversaries_choose:
            assert round.federation.data.adversaries is not None
            round.candidates[: round.num_clients][round.federation.data.adversaries] = False

    def on_trained(self, round: Round) -> None:
        """Keep the trained models that are the best so far on validation data, the latest among equals."""
        if self.best is None:
            self.best = torch.full((round.num_clients,), -torch.inf, dtype=torch.float64)
        owners = torch.nonzero(round.participants).squeeze(1)
        accuracies = round.evaluate(References.rows("trained", owners), "val").metrics["acc"]
        better = accuracies >= self.best[owners]
        owners, accuracies = owners[better], accuracies[better]
        self.best[owners] = accuracies
        for some in owners.split(_at_once(round)):
            own = torch.nn.functional.one_hot(some, round.num_nodes).double()
            round.mix([(own, "trained")], into="best", where=some, columns=round.federation.layout.all)

    def on_select(self, round: Round) -> None:
        """The greedy choice of all clients together, among those that are up."""
        assert self.first is not None
        assert self.has_first is not None
        assert self.chosen is not None
        up = round.candidates & round.active[None, :]
        choosing = round.receivers & up.any(1)
        among_all = choosing & self._among_all(round)
        with round.bank.timed("select"):
            for who, batched in ((among_all, True), (choosing & ~among_all & self._is_due(round), False)):
                sums = BankSums(round) if batched and who.any() else None
                for receivers in torch.nonzero(who).squeeze(1).split(_at_once(round)):
                    if len(receivers):
                        choice = self._choose(round, receivers, up[receivers], sums)
                        self.chosen[receivers] = choice.chosen
        self.first[among_all] = self.chosen[among_all]
        self.has_first |= among_all
        round.selected = self.chosen & round.candidates

    def on_round_end(self, round: Round) -> None:
        """How many models of others the client that needed most room kept at once."""
        round.log("held", float(round.ledger.held.max()))

    def _is_due(self, round: Round) -> bool:
        """Whether clients choose again in this round: in round 1, and so on; a first choice does not wait for it."""
        return (round.index - 1) % self.period == 0

    def _among_all(self, round: Round) -> Tensor:
        """The clients that choose among all their neighbours, bool [n]: those without a choice, or all again."""
        assert self.has_first is not None
        again = self.repeat_bggc and self._is_due(round)
        return torch.ones_like(self.has_first) if again else ~self.has_first

    def _choose(
        self,
        round: Round,
        receivers: Tensor,
        allowed: Tensor,
        sums: BankSums | None,
    ) -> Choice:
        """BGGC (with `sums`) or GGC of the receivers, long [r], among the `allowed`, bool [r, n]."""
        aggregation = round.federation.policy(Aggregation)
        assert aggregation is not None
        shares = aggregation.shares(round.federation)
        assert shares is not None
        shares = shares / shares.sum()
        order, coins = self._draws(round, receivers, allowed)
        limits = self.limits(round)[receivers]
        literal = self.rule == "literal"
        tolerance = 0.0 if literal else 1e-6

        def losses(weights: Tensor, owners: Tensor) -> Tensor:
            return round.evaluate(References((Term("trained", weights),), owners, "trained"), "val").losses

        if sums is None:
            return ggc(receivers, order, coins, limits, shares, losses, tolerance, literal)
        choice = bggc(receivers, order, coins, limits, shares, sums, tolerance, literal)
        round.ledger.summed[receivers] = choice.chosen  # the sum over X is the average, apart from its scale
        return choice

    def _draws(self, round: Round, receivers: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor]:
        """Each receiver's candidates in its own order, long [r, s], and a coin for each position, float64 [r, s]."""
        n, who = round.num_nodes, receivers.tolist()
        permutations = torch.zeros(len(who), n, dtype=torch.long)
        coins = torch.zeros(len(who), n, dtype=torch.float64)
        for row, client in enumerate(who):
            permutations[row] = torch.randperm(n, generator=round.stream("DPFL order", client))
            coins[row] = torch.rand(n, dtype=torch.float64, generator=round.stream("DPFL coins", client))
        order = candidates_in_order(permutations, allowed)
        return order, coins[:, : order.shape[1]]


def _at_once(round: Round) -> int:
    return max(1, PAIRS_AT_ONCE // round.num_nodes)
