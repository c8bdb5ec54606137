"""AFIND+: find friendly neighbours by the similarity of their feature layers (arXiv 2407.04460)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.similarity import Comparison
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.references import References
from dfl_lightning.callbacks.base import Outgoing, Selection
from dfl_lightning.engines.scoring.mean_inputs import mean_inputs
from dfl_lightning.functional import nearness, participation_ratio, sampled_neighbours, updated_probabilities
from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


NOISY = ("cumdelta", "weight", "grad_batch", "grad_at_receiver")
"""Proxies that can be sent with noise."""

OF_MODELS = ("cumdelta", "weight")
"""Proxies that receivers read from a published model."""


class AFIND(Selection):
    """The choice of neighbours with similar feature proxies (AFIND+, arXiv 2407.04460, eq. 7 to 9).

        p_ij = exp(cos(a_i, a_j) / nu) / sum_k exp(cos(a_i, a_k) / nu)
        selected: j with n_i p_ij >= theta_i, or the k largest without a threshold

    a_j is the proxy of client j: one layer, the output layer of its featurizer, which it sends to its neighbours. The
    default compares the layers of the trained models minus their mean over the neighbourhood. The score n_i p_ij, with
    n_i the number of neighbours, is 1 for an average neighbour. docs/afind.md gives the reasons; `rule: literal` with
    the options that belong to it is the paper as printed.

    Args:
        nu: temperature of the softmax over cosines, above 0.
        k: number of neighbours to choose without a threshold, or to draw with `choose: sampled`.
        rule: `ratio`: scores are n_i p_ij of this round's cosines; `literal`: scores are the last round's p_ij; then
            only the proxies of the selected neighbours are compared, and their p_ij updated (eq. 9; all in round 0).
        choose: `best`: the neighbours that reach the threshold, the k best without one; `sampled`: k neighbours, drawn
            without replacement with the probabilities p_ij, without a threshold.
        proxy: `cumdelta`: the layer's change since the start of the run; `delta`: since the start of the round;
            `weight`: the layer; `grad_batch`: its gradient on the round's first batch at the client's own model from
            before the round; `grad_at_receiver`: the same at the receiver's model, which it sends to each neighbour;
            `activations`: the mean input of the head over the client's training data, by its trained model.
        similarity: `cosine` of the proxies (eq. 8); `distance`: 1 - 2 d / d_max, d the distance of the proxies (eq. 7)
            and d_max the largest one in the neighbourhood, which is also between -1 and 1.
        center: subtract the mean over the neighbourhood first; it does not change distances.
        proxy_layer: name of another layer; default: the last linear or convolutional layer before the head.
        proxy_noise: sigma_2 of appendix C.4: each client adds Gaussian noise of the standard deviation
            `sigma_2 C / L` to the proxy that it sends, with C the clipping constant and L the batch size, and receivers
            compare what they and others sent (with `grad_at_receiver` a client's own gradient is not sent, and has no
            noise); 0 adds none.
        proxy_clip: C: with noise, a longer proxy is first scaled to this length.
    """

    supports_servers = False
    supports_clock = True
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
        self.probabilities: LinkMemory | None = None  # p_ij with `literal`, of all links so far

    def start(self, federation: Federation) -> None:
        """Check the proxy: its layer must exist and be shared, and policies must be able to change what is sent."""
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
        if federation.is_asynchronous and (self.proxy not in OF_MODELS or self.proxy_noise):
            what = "selection.proxy_noise" if self.proxy_noise else f"selection.proxy={self.proxy}"
            raise UserError(
                f"{what} compares what clients compute in the same round, and those that do not wait for each other "
                "publish models only; use --selection.proxy cumdelta without noise, or --clock null"
            )
        # centring removes a common start, so that the first models need not be kept
        starts_cancel = self.center and federation.common_start and not self.proxy_noise
        self.row_sets = {"initial": "models"} if self.proxy == "cumdelta" and not starts_cancel else {}

    def _require_featurizer(self, federation: Federation) -> None:
        """Require a network with hidden layers for activations, and no policy that changes messages."""
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
            UserError: the layer does not exist, or is not shared.
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
        """Score the candidates by this round's proxies, or with `literal` by the probabilities of the last round."""
        if self.rule == "literal":
            round.scores = self._known_probabilities(round).read(round.candidates)
        else:
            round.similarity = self._compare_proxies(round, round.candidates)
            ratio = participation_ratio(round.similarity, round.candidates, self.nu)
            # a neighbour that was never compared counts as an average one
            round.scores = torch.where(round.similarity.isnan(), 1.0, ratio)

    def on_select(self, round: Round) -> None:
        """Select by threshold, the k best or by a draw; with `literal`, compare those selected for the next round."""
        if self.choose == "sampled":
            uniforms = round.draw_uniform(round.candidates, "afind sampled")
            drawn = sampled_neighbours(round.scores, uniforms, round.candidates, self.limits(round))
            round.selected = round.candidates.keep(drawn)
        else:
            super().on_select(round)
        if self.rule == "literal":
            cosines = self._compare_proxies(round, round.selected)
            round.similarity = round.selected.spread(cosines, round.candidates)
            linked, former = round.federation.topology.linked(round.index), self._known_probabilities(round)
            seen = round.selected.spread(cosines, linked)
            updated = updated_probabilities(former.read(linked), seen, ~seen.isnan(), linked, self.nu)
            former.write(linked, updated)

    def _known_probabilities(self, round: Round) -> LinkMemory:
        """Return p_ij of all links so far; new links begin with 1 / n_i, n_i the neighbours in the round's graph."""
        if self.probabilities is None:
            self.probabilities = LinkMemory.empty(round.num_nodes)
        linked = round.federation.topology.linked(round.index)
        new = linked.difference(self.probabilities.links)
        self.probabilities.write(new, 1 / linked.count[new.receivers].double())
        return self.probabilities

    def _compare_proxies(self, round: Round, links: Links) -> Tensor:
        """Fetch and compare the proxies that can be received; return the last known similarities, float64 [E].

        NaN stands for senders that were never compared.
        """
        if self.similarity is None:
            self.similarity = LinkMemory.empty(round.num_nodes)
        up = round.receivable(links)
        self.similarity.write_known(up, self._similarities(round, up))
        return self.similarity.read(links)

    def _add_noise(self, round: Round, columns: Columns, proxies: Tensor, receivers: Tensor | None = None) -> None:
        """Clip the proxies that clients send and add noise, in place.

        Args:
            round: the round, which names the random numbers.
            columns: columns of the proxies.
            proxies: the rows of this process's nodes, [own, width].
            receivers: the receiver of each client's proxy, long [n], -1 for none; None: all receivers get the same.
        """
        spread = self.proxy_noise * self.proxy_clip / round.batch_size
        for row, client in enumerate(round.bank.ranks.own.tolist()):
            to = [] if receivers is None else [int(receivers[client])]
            length = torch.cat([proxies[row, start:stop] for start, stop in columns.ranges]).norm()
            for number, (start, stop) in enumerate(columns.ranges):
                proxy = proxies[row, start:stop]
                proxy *= self.proxy_clip / length.clamp(min=self.proxy_clip)
                if to not in ([-1], [client]):
                    draws = round.generator("afind proxy noise", client, number, *to)
                    noise = torch.randn(stop - start, generator=draws, dtype=proxy.dtype)
                    proxy += spread * noise.to(proxy.device)

    def _similarities(self, round: Round, links: Links) -> Tensor:
        """Return the similarity of the senders' proxies to the receivers' own, in [-1, 1], float64 [E]."""
        comparison = self._comparison(round, links)
        return nearness(comparison.distances, links) if self.by_distance else comparison.cosines

    def _comparison(self, round: Round, links: Links) -> Comparison:
        if self.proxy == "activations":
            own = References.rows("trained", torch.nonzero(round.participants).squeeze(1))
            features = mean_inputs(round.federation.engine, own, "head", "train")
            return round.compare(features, links, Columns([(0, features.shape[1])]), centre=self.center)
        columns = self.columns(round.federation)
        if self.proxy == "grad_at_receiver":
            return self._comparison_at_receivers(round, links, columns)
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

    def _comparison_at_receivers(self, round: Round, links: Links, columns: Columns) -> Comparison:
        """Compare gradients on the senders' data at the receiver's model (AFIND+ algorithm 1, lines 7 and 11)."""
        round.charge_starts(Links.of(links.senders, links.receivers, round.num_nodes))
        training = round.local_training(gradients=True, batches=1)
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
            comparison = round.compare(gradients, some, columns, centre=self.center)
            cosines[at], distances[at] = comparison.cosines, comparison.distances
        return Comparison(cosines, distances)


def _with_senders_apart(links: Links) -> list[Tensor]:
    """Divide receivers into groups, bool [n] each, in which neighbourhoods do not share a client.

    A neighbourhood is a receiver and its senders. A client thus computes a gradient at one model only for each group.
    """
    groups: list[tuple[set[int], list[int]]] = []
    for receiver in links.receivers.unique().tolist():
        needed = {receiver, *links.heard_by(receiver).tolist()}
        busy, members = next((group for group in groups if group[0].isdisjoint(needed)), (set(), []))
        if not members:
            groups.append((busy, members))
        busy |= needed
        members.append(receiver)
    masks = []
    for _, members in groups:
        masks.append(torch.zeros(links.nodes, dtype=torch.bool))
        masks[-1][members] = True
    return masks
