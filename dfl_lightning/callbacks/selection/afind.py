"""AFIND+: find friendly neighbours by the similarity of their feature layers (arXiv 2407.04460)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References
from dfl_lightning.callbacks.base import Outgoing, Selection
from dfl_lightning.functional import participation_ratio, updated_probabilities
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class AFIND(Selection):
    """Neighbours whose feature proxies point the same way (AFIND+ eq. 7 to 9).

    Each client sends one layer, the output layer of its featurizer, to its neighbours; a receiver turns the
    cosines into probabilities by a softmax of temperature `nu`. The default compares the layers of the trained models
    minus their mean over the neighbourhood, and scores a neighbour by n_i p_ij, so that 1 is an average neighbour; the
    documentation says why, and `rule: literal` with its companions is the paper as printed.

    Args:
        nu: temperature of the softmax over cosines, above 0.
        k: neighbours to choose if there is no threshold.
        rule: `ratio` scores by n_i p_ij of this round's cosines; `literal` by last round's p_ij, then compares the
            proxies of those it selected only and refreshes their p_ij (eq. 9; all in round 0).
        proxy: `cumdelta`: the layer's change since the start of the run; `delta`: since the start of the round;
            `weight`: the layer; `grad_batch`: its gradient on the round's first batch.
        center: subtract the mean over the neighbourhood first.
        proxy_layer: another layer by name; default: the last linear or convolutional one before the head, no norm
            layer.
    """

    supports_servers = False
    reads = frozenset({"threshold"})
    state = ("similarity", "probabilities")

    def __init__(
        self,
        nu: float = 0.2,
        k: int = 5,
        rule: Literal["ratio", "literal"] = "ratio",
        proxy: Literal["cumdelta", "delta", "weight", "grad_batch"] = "cumdelta",
        center: bool = True,
        proxy_layer: str | None = None,
    ) -> None:
        if nu <= 0:
            raise UserError(f"selection.nu={nu}; the temperature must be above 0")
        if k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more")
        self.nu, self.k, self.rule = nu, k, rule
        self.proxy, self.center, self.proxy_layer = proxy, center, proxy_layer
        self.similarity: LinkMemory | None = None  # last known cosines
        self.probabilities: LinkMemory | None = None  # p as printed, of all that were ever neighbours

    def start(self, federation: Federation) -> None:
        """The proxy layer must exist and be shared, and be sent: gradients are not."""
        self.columns(federation)
        if self.proxy == "grad_batch" and federation.policy(Outgoing) is not None:
            raise UserError(
                "selection.proxy=grad_batch sends gradients, which no Outgoing policy changes; "
                "use another proxy, or --outgoing null"
            )
        # with one common start, centring removes it: no need to keep the first models
        starts_cancel = self.center and federation.common_start
        self.row_sets = {"initial": "models"} if self.proxy == "cumdelta" and not starts_cancel else {}

    def columns(self, federation: Federation) -> Columns:
        """Columns of the proxy layer.

        Raises:
            UserError: no such layer, or a layer that is not shared.
        """
        layout = federation.layout
        name = self.proxy_layer or layout.last_feature_layer()
        columns = layout.module_columns(name)
        if not layout.shared.mask(layout.width)[columns.mask(layout.width)].all():
            raise UserError(
                f"selection AFIND compares the layer '{name}', which model.shared keeps private; "
                "share it or name another with --selection.proxy_layer"
            )
        return columns

    def on_compare(self, round: Round) -> None:
        """Scores of the candidates: from this round's proxies, or as printed from last round's."""
        if self.rule == "literal":
            round.scores = self._met(round).read(round.candidates)
        else:
            round.similarity = self._look_at(round, round.candidates)
            ratio = participation_ratio(round.similarity, round.candidates, self.nu)
            round.scores = torch.where(round.similarity.isnan(), 1.0, ratio)  # never seen: an average neighbour

    def on_select(self, round: Round) -> None:
        """Threshold or k best; as printed, it compares the selected ones' proxies now, for the next round."""
        super().on_select(round)
        if self.rule == "literal":
            assert round.selected is not None
            cosines = self._look_at(round, round.selected)
            round.similarity = round.selected.spread(cosines, round.candidates)
            linked, former = round.federation.topology.linked(round.index), self._met(round)
            seen = round.selected.spread(cosines, linked)
            updated = updated_probabilities(former.read(linked), seen, ~seen.isnan(), linked, self.nu)
            former.write(linked, updated)

    def _met(self, round: Round) -> LinkMemory:
        """p_ij; 1/n_i over the n_i neighbours in the first round's graph, and for those that a later graph brings."""
        if self.probabilities is None:
            self.probabilities = LinkMemory.empty(round.num_nodes)
        linked = round.federation.topology.linked(round.index)
        new = linked.without(self.probabilities.links)
        self.probabilities.write(new, 1 / linked.count[new.receivers].double())
        return self.probabilities

    def _look_at(self, round: Round, links: Links) -> Tensor:
        """Fetch proxies and compare, float64 [E], NaN = never seen; who is down is remembered as it was seen last."""
        if self.similarity is None:
            self.similarity = LinkMemory.empty(round.num_nodes)
        up = links.between(senders=round.active)
        self.similarity.write_known(up, self._cosines(round, up))
        return self.similarity.read(links)

    def _cosines(self, round: Round, links: Links) -> Tensor:
        columns = self.columns(round.federation)
        if self.proxy == "grad_batch":
            took_part = torch.nonzero(round.participants).squeeze(1)
            gradients = round.gradients(References.rows("models", took_part), batches=1)
            return round.compare(gradients, links, columns, centre=self.center).cosines
        origin = {"cumdelta": "initial" if self.row_sets else None, "delta": "start", "weight": None}[self.proxy]
        return round.compare("trained", links, columns, origin, self.center).cosines
