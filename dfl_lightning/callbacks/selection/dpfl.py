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
"""Limit of the receivers that choose together times the most candidates of any of them, so that orders, gains and
weights take at most a few hundred megabytes."""


class DPFL(Selection):
    """The greedy choice of collaborators that lower the validation loss (DPFL, Kharrat et al., AISTATS 2025).

        a = max(0, L(X) - L(X + {j})),    b = max(0, L(Y) - L(Y - {j}))
        candidate j joins X with probability a / (a + b), and leaves Y otherwise          (algorithms 2 and 3)

    L(S) is the client's validation loss of the average over the models in S. X begins with the client itself, Y with
    the client and all candidates; in the end both are the chosen set.

    Round 0 is the paper's preprocessing: longer local training, then a choice among all neighbours (BGGC), which are
    fetched in batches of the budget. In later rounds a client fetches only the collaborators of this choice, and
    chooses among them again (GGC). A client is evaluated with the model that was best on its validation data after
    local training.

    Args:
        budget: number of others that a client learns from, and keeps at once (B_c), or `all`; a client's `budget` in
            the topology takes precedence.
        initial_epochs: local epochs of round 0 (tau_init), instead of `model.local_epochs`.
        period: rounds between two choices (P); in between, a client learns from its last choice.
        repeat_bggc: choose among all neighbours again, not only among those of the first choice.
        rule: `bounded`: the budget is never exceeded; `literal`: the budget counts the client itself and is tested
            where the algorithms are printed, and gains of any size count; `random`: each client draws as many
            neighbours as its budget instead of each choice among all, and keeps them, without comparisons
            (section 4.5).
        adversaries_choose: whether clients with falsified labels choose like all others, or train alone and only
            send what they trained (section 4.3).
    """

    supports_servers = False
    row_sets = {"best": "models"}
    reports = "best"
    state = ("first", "has_first", "chosen", "best")
    logs = ("held",)
    against_clock = "it chooses for all clients of a round together"

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
        self.has_first: Tensor  # clients that have made their first choice, bool [n]
        self.chosen: Links  # C of the last choice
        self.best: Tensor  # best validation score so far, with the sign that makes higher better, float64 [m]

    def start(self, federation: Federation) -> None:
        """Require validation data of each client, and an aggregation whose averages are known before it mixes."""
        without = torch.nonzero(federation.data.sizes("val") == 0).squeeze(1).tolist()
        if without:
            raise UserError(
                f"selection DPFL evaluates models on validation data, and client {without[0]} has none; "
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
        """Set longer training in round 0; propose all neighbours, or those of the first choice."""
        if round.index == 0:
            federation = round.federation
            round.phases = federation.objective.phases(federation.layout, Duration(self.initial_epochs), 0)
        if not self.adversaries_choose:
            assert round.federation.data.adversaries is not None
            round.candidates = round.candidates.between(receivers=~round.federation.data.adversaries)
        within_first = self.first.intersection(round.candidates)
        round.candidates = within_first.union(round.candidates.between(receivers=self._among_all(round)))

    def describe(self, federation: Federation) -> str:
        """Return a line of the banner about the training of round 0."""
        return f"DPFL: clients train for {Duration(self.initial_epochs)} in round 0"

    def on_trained(self, round: Round) -> None:
        """Copy trained models that are the best so far on validation data, the latest among equals, to `best`."""
        owners = torch.nonzero(round.participants).squeeze(1)
        task = round.federation.task
        merits = task.merit(round.evaluate(References.rows("trained", owners), "val").metrics[task.score])
        merits = merits.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)  # undefined scores never win
        better = merits >= self.best[owners]
        owners, merits = owners[better], merits[better]
        self.best[owners] = merits
        own = Weights.of_rows(owners, round.num_nodes)
        round.mix([(own, "trained")], into="best", where=owners, columns=round.federation.layout.all)

    def on_select(self, round: Round) -> None:
        """Choose for all clients together among their active candidates, and select the chosen ones."""
        up = round.candidates.between(senders=round.active)
        choosing = round.receivers & (up.count > 0)
        among_all = choosing & self._among_all(round)
        again = choosing & ~among_all & (self._is_due(round) and self.rule != "random")
        with round.bank.timed("select"):
            for receivers, batched in ((among_all, True), (again, False)):
                if receivers.any():
                    chosen = self._choose(round, up.between(receivers=receivers), batched)
                    self.chosen = self.chosen.between(receivers=~receivers).union(chosen)
                    if batched:
                        self.first = self.first.between(receivers=~receivers).union(chosen)
        self.has_first |= among_all
        round.selected = self.chosen.intersection(round.candidates)

    def on_round_end(self, round: Round) -> None:
        """Log the largest number of others' models that a client kept at once."""
        round.log("held", float(round.ledger.held.max()))

    def _is_due(self, round: Round) -> bool:
        """Return True in rounds 1, 1 + P, ..., in which clients choose again; a first choice is made in any round."""
        return (round.index - 1) % self.period == 0

    def _among_all(self, round: Round) -> Tensor:
        """Return the clients that choose among all neighbours, bool [n]: those without a choice, or all once more."""
        again = self.repeat_bggc and self._is_due(round)
        return torch.ones_like(self.has_first) if again else ~self.has_first

    def _choose(self, round: Round, candidates: Links, batched: bool) -> Links:
        """Choose among `candidates` for each of their receivers: by BGGC (`batched`) or GGC, or at random."""
        if self.rule == "random":
            return round.draw_links(candidates, self.limits(round), "DPFL random graph")
        shares = round.federation.require(Aggregation).shares(round.federation)
        assert shares is not None  # `start` has checked it
        shares = shares / shares.sum()
        orders, coins = round.draw_uniform(candidates, "DPFL order"), round.draw_uniform(candidates, "DPFL coins")
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
        collaborators = candidates.keep(chosen)
        if batched:  # the sum over X is the average up to its scale, so mixing costs nothing more
            round.ledger.sum_up(torch.nonzero(candidates.count).squeeze(1), collaborators)
        return collaborators


def _together(count: Tensor) -> Iterator[Tensor]:
    """Yield groups of receivers that choose together, long each, those with most candidates first.

    Receivers with about equally many candidates are together, so that a hub does not make all rows as long as its own.
    A group is as large as `PLACES_AT_ONCE` allows.

    Args:
        count: number of candidates of each node, long [n]; nodes with 0 are left out.
    """
    by_count = count.sort(descending=True, stable=True).indices[: int((count > 0).sum())]
    while len(by_count):
        some = max(1, PLACES_AT_ONCE // int(count[by_count[0]]))
        yield by_count[:some].sort().values
        by_count = by_count[some:]
