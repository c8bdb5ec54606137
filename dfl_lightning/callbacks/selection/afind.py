"""AFIND+: find friendly neighbours by the similarity of their feature layers (arXiv 2407.04460)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References
from dfl_lightning.bank.similarity import Comparison
from dfl_lightning.callbacks.base import Outgoing, Selection
from dfl_lightning.engines.jobs import Training
from dfl_lightning.engines.scoring.mean_inputs import mean_inputs
from dfl_lightning.functional import nearness, participation_ratio, sampled_neighbours, updated_probabilities
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


NOISY = ("cumdelta", "weight", "grad_batch", "grad_at_receiver")
"""Proxies that noise may be added to."""


class AFIND(Selection):
    """Neighbours whose feature proxies point the same way (AFIND+ eq. 7 to 9).

    Each client sends one layer, the output layer of its featurizer, to its neighbours; a receiver turns the
    cosines into probabilities by a softmax of temperature `nu`. The default compares the layers of the trained models
    minus their mean over the neighbourhood, and scores a neighbour by n_i p_ij, so that 1 is an average neighbour; the
    documentation says why, and `rule: literal` with its companions is the paper as printed.

    Args:
        nu: temperature of the softmax over cosines, above 0.
        k: neighbours to choose if there is no threshold, and to draw with `choose: sampled`.
        rule: `ratio` scores by n_i p_ij of this round's cosines; `literal` by last round's p_ij, then compares the
            proxies of those it selected only and refreshes their p_ij (eq. 9; all in round 0).
        choose: `best`: the neighbours that reach the threshold, the k best without one; `sampled`: k neighbours, drawn
            without replacement with the probabilities p_ij, and no threshold is read.
        proxy: `cumdelta`: the layer's change since the start of the run; `delta`: since the start of the round;
            `weight`: the layer; `grad_batch`: its gradient on the round's first batch at the client's own model of
            before the round; `grad_at_receiver`: the same at the receiver's model, which it sends to each neighbour;
            `activations`: the mean input of the head, over the client's training data, of its trained model.
        similarity: `cosine` of the proxies (eq. 8); `distance`: 1 less twice their distance (eq. 7) as a share of the
            largest one in the neighbourhood, so that it is between -1 and 1 as well.
        center: subtract the mean over the neighbourhood first; it changes no distance.
        proxy_layer: another layer by name; default: the last linear or convolutional one before the head, no norm
            layer.
        proxy_noise: sigma_2 of appendix C.4: each client adds Gaussian noise of the standard deviation
            `sigma_2 C / L` to the proxy that it sends, C the clipping constant and L the batch size, and is compared
            by what it has sent (with `grad_at_receiver` its own gradient is not sent, and has none); 0 adds none.
        proxy_clip: C: with noise, a longer proxy is scaled to this length first.
    """

    supports_servers = False
    reads = frozenset({"threshold"})
    state = ("similarity", "probabilities")

    def __init__(
        self,
        nu: float = 0.2,
        k: int = 5,
        rule: Literal["ratio", "literal"] = "ratio",
        choose: Literal["best", "sampled"] = "best",
        proxy: Literal["cumdelta", "delta", "weight", "grad_batch", "grad_at_receiver", "activations"] = "cumdelta",
        similarity: Literal["cosine", "distance"] = "cosine",
        center: bool = True,
        proxy_layer: str | None = None,
        proxy_noise: float = 0.0,
        proxy_clip: float = 1.0,
    ) -> None:
        if nu <= 0:
            raise UserError(f"selection.nu={nu}; the temperature must be above 0")
        if k < 0:
            raise UserError(f"selection.k={k}; it is a number of neighbours, 0 or more")
        if not (proxy_noise >= 0 and math.isfinite(proxy_noise)):
            raise UserError(f"selection.proxy_noise={proxy_noise}; it must be 0 or more")
        if not (proxy_clip > 0 and math.isfinite(proxy_clip)):
            raise UserError(f"selection.proxy_clip={proxy_clip}; it must be above 0")
        self.nu, self.k, self.rule = nu, k, rule
        self.threshold_rule, self.choose = rule, choose
        self.features = ("head",) if proxy == "activations" else ()
        if choose == "sampled":
            self.reads = frozenset()
        self.proxy_noise, self.proxy_clip = proxy_noise, proxy_clip
        self.proxy, self.center, self.proxy_layer = proxy, center, proxy_layer
        self.by_distance = similarity == "distance"
        self.similarity: LinkMemory | None = None  # last known similarities
        self.probabilities: LinkMemory | None = None  # p as printed, of all that were ever neighbours

    def start(self, federation: Federation) -> None:
        """Require a proxy layer that exists, is shared, and is sent: gradients are not."""
        if self.proxy == "activations":
            self._require_featurizer(federation)
        else:
            self.columns(federation)
        if self.proxy.startswith("grad_") and federation.policy(Outgoing) is not None:
            raise UserError(
                f"selection.proxy={self.proxy} sends gradients, which no Outgoing policy changes; "
                "use another proxy, or --outgoing null"
            )
        if self.proxy == "grad_at_receiver" and federation.topology.directed:
            raise UserError(
                "selection.proxy=grad_at_receiver sends each client's model to those that it compares itself with, and "
                "in this topology some links lead one way only; use an undirected topology, or "
                "--selection.proxy grad_batch"
            )
        if self.proxy_noise and self.proxy not in NOISY:
            raise UserError(
                f"selection.proxy_noise is for the proxies {', '.join(NOISY)}, not for {self.proxy}; drop it, or use "
                "--selection.proxy cumdelta"
            )
        if self.proxy_noise and federation.policy(Outgoing) is not None:
            raise UserError(
                "selection.proxy_noise sends proxies that no Outgoing policy changes; drop it, or use --outgoing null"
            )
        # with one common start, centring removes it: no need to keep the first models
        starts_cancel = self.center and federation.common_start and not self.proxy_noise
        self.row_sets = {"initial": "models"} if self.proxy == "cumdelta" and not starts_cancel else {}

    def _require_featurizer(self, federation: Federation) -> None:
        """Refuse activations that are no features, and policies that would not change them."""
        if len(federation.layout.feature_layers) < 2:
            raise UserError(
                "selection.proxy=activations compares what a featurizer makes of the data, and a network with a single "
                "linear or convolutional layer has none; use a network with hidden layers, or --selection.proxy "
                "grad_batch with a layer as --selection.proxy_layer"
            )
        if self.proxy_layer is not None:
            raise UserError(
                "selection.proxy_layer names parameters, and selection.proxy=activations compares the inputs of the "
                "head; drop it, or use another proxy"
            )
        if federation.policy(Outgoing) is not None:
            raise UserError(
                "selection.proxy=activations sends features, which no Outgoing policy changes; use another proxy, or "
                "--outgoing null"
            )

    def columns(self, federation: Federation) -> Columns:
        """Return the columns of the proxy layer.

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
        """Score the candidates: from this round's proxies, or as printed from last round's."""
        if self.rule == "literal":
            round.scores = self._met(round).read(round.candidates)
        else:
            round.similarity = self._look_at(round, round.candidates)
            ratio = participation_ratio(round.similarity, round.candidates, self.nu)
            round.scores = torch.where(round.similarity.isnan(), 1.0, ratio)  # never seen: an average neighbour

    def on_select(self, round: Round) -> None:
        """Select by threshold, the k best or by a draw; as printed, compare now, for the next round, those selected."""
        if self.choose == "sampled":
            uniforms = round.draws(round.candidates, "afind sampled")
            drawn = sampled_neighbours(round.scores, uniforms, round.candidates, self.limits(round))
            round.selected = round.candidates.keep(drawn)
        else:
            super().on_select(round)
        if self.rule == "literal":
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
        new = linked.difference(self.probabilities.links)
        self.probabilities.write(new, 1 / linked.count[new.receivers].double())
        return self.probabilities

    def _look_at(self, round: Round, links: Links) -> Tensor:
        """Fetch proxies and compare, float64 [E], NaN = never seen; of absent ones, as they were seen last."""
        if self.similarity is None:
            self.similarity = LinkMemory.empty(round.num_nodes)
        up = links.between(senders=round.active)
        self.similarity.write_known(up, self._similarities(round, up))
        return self.similarity.read(links)

    def _add_noise(self, round: Round, columns: Columns, proxies: Tensor, receivers: Tensor | None = None) -> None:
        """Clip the proxies that clients send and add noise, in place.

        Args:
            round: names the draws.
            columns: of the proxies.
            proxies: [own, width].
            receivers: to whom each client sends its proxy, long [n]: -1 where to none; None: the same to all.
        """
        spread = self.proxy_noise * self.proxy_clip / round.federation.local.batch_size
        for place, client in enumerate(round.bank.ranks.own.tolist()):
            to = [] if receivers is None else [int(receivers[client])]
            length = torch.cat([proxies[place, start:stop] for start, stop in columns.ranges]).norm()
            for number, (start, stop) in enumerate(columns.ranges):
                proxy = proxies[place, start:stop]
                proxy *= self.proxy_clip / length.clamp(min=self.proxy_clip)
                if to not in ([-1], [client]):
                    draws = round.stream("afind proxy noise", client, number, *to)
                    noise = torch.randn(stop - start, generator=draws, dtype=proxy.dtype)
                    proxy += spread * noise.to(proxy.device)

    def _similarities(self, round: Round, links: Links) -> Tensor:
        """Compare the senders' proxies with the receivers' own: in [-1, 1], float64 [E]."""
        found = self._compared(round, links)
        return nearness(found.distances, links) if self.by_distance else found.cosines

    def _compared(self, round: Round, links: Links) -> Comparison:
        if self.proxy == "activations":
            own = References.rows("trained", torch.nonzero(round.participants).squeeze(1))
            features = mean_inputs(round.federation.engine, own, "head", "train")
            return round.compare(features, links, Columns([(0, features.shape[1])]), centre=self.center)
        columns = self.columns(round.federation)
        if self.proxy == "grad_at_receiver":
            return self._compared_at_receivers(round, links, columns)
        if self.proxy == "grad_batch":
            took_part = torch.nonzero(round.participants).squeeze(1)
            gradients = round.gradients(References.rows("models", took_part), batches=1)
            if self.proxy_noise:
                self._add_noise(round, columns, gradients)
            return round.compare(gradients, links, columns, centre=self.center)
        if self.proxy_noise:
            trained = round.bank.rows("trained")
            proxies = torch.zeros_like(trained)
            for start, stop in columns.ranges:
                proxies[:, start:stop] = trained[:, start:stop]
                if self.row_sets:
                    proxies[:, start:stop] -= round.bank.rows("initial")[:, start:stop]
            self._add_noise(round, columns, proxies)
            return round.compare(proxies, links, columns, centre=self.center)
        origin = {"cumdelta": "initial" if self.row_sets else None, "delta": "start", "weight": None}[self.proxy]
        return round.compare("trained", links, columns, origin, self.center)

    def _compared_at_receivers(self, round: Round, links: Links, columns: Columns) -> Comparison:
        """Compare gradients on all clients' data at one model for each receiver, its own (algorithm 1, lines 7, 11)."""
        round.charge_starts(Links.of(links.senders, links.receivers, round.num_nodes))
        training = Training("local", round.index, round.phases, round.hyperparameters, gradients=True, batches=1)
        unknown = torch.full((len(links),), torch.nan, dtype=torch.float64)
        cosines, distances = unknown.clone(), unknown.clone()
        for receivers in _with_senders_apart(links):
            at = torch.nonzero(receivers[links.receivers]).squeeze(1)
            some, own = links.keep(at), torch.nonzero(receivers).squeeze(1)
            owners, order = torch.cat([own, some.senders]).sort()
            models = torch.cat([own, some.receivers])[order]
            gradients = round.federation.engine.gradients(References.rows("models", models, owners), training)
            if self.proxy_noise:
                to = torch.full((round.num_nodes,), -1)
                to[owners] = models
                self._add_noise(round, columns, gradients, to)
            found = round.compare(gradients, some, columns, centre=self.center)
            cosines[at], distances[at] = found.cosines, found.distances
        return Comparison(cosines, distances)


def _with_senders_apart(links: Links) -> list[Tensor]:
    """Groups of receivers such that no client is in the neighbourhoods of two of a group, itself included, bool [n]."""
    groups: list[tuple[set[int], list[int]]] = []
    for receiver in links.receivers.unique().tolist():
        needed = {receiver, *links.heard_by(receiver).tolist()}
        busy, members = next((group for group in groups if group[0].isdisjoint(needed)), (set(), []))
        if not members:
            groups.append((busy, members))
        busy |= needed
        members.append(receiver)
    found = []
    for _, members in groups:
        found.append(torch.zeros(links.nodes, dtype=torch.bool))
        found[-1][members] = True
    return found
