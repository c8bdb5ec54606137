"""The families of policies: the fields of a round that each may write, and defaults that keep a new policy short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from dfl_lightning.bank.layout import Layout
from dfl_lightning.bank.references import Weights
from dfl_lightning.engines.scoring.prediction_rule import LabelledOutputs, Outputs
from dfl_lightning.functional import above_threshold
from dfl_lightning.links import Links
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.round.senders import Senders, send_updates
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Policy(RoundCallback):
    """A callback that takes part in the protocol, as opposed to a monitor that watches.

    Attributes:
        method_name: name of the method in reports; empty if the policy does not make a method of its own. That of a
            threshold is appended to the name of the selection.
    """

    family = "policy"
    method_name: str = ""


class Clock(Policy):
    """The simulated time of a run: writes `due`, `cycles` and `instants` in `on_clock`.

    With a clock that `is_asynchronous` only policies and objectives work that declare `supports_clock`.
    """

    family = "clock"
    supports_clock = True

    def has_more(self, round: Round) -> bool:
        """Return True if the round has a further wave after this one; default: False."""
        return False

    def readable(self, round: Round, links: Links) -> Links:
        """Return the links over which there is a model to receive; default: all of them.

        Args:
            round: the round, with `active` and `due`.
            links: links whose receivers are active.
        """
        return links


class Dropout(Policy):
    """A process that decides which clients are active in a round: writes `active` in `on_dropout`.

    Args:
        full_first_round: whether all clients take part in round 0, without a draw.

    Attributes:
        join: the model from which a client trains for the first time: `own`, its first model, or `neighbours`, the
            mean of the models of its neighbours that are active and have trained before.
    """

    family = "dropout"
    join: Literal["own", "neighbours"] = "own"

    def __init__(self, full_first_round: bool = False) -> None:
        self.full_first_round = full_first_round

    def on_dropout(self, round: Round) -> None:
        """Set the active clients: all of them in a full first round, else those that `draw` returns."""
        if round.index == 0 and self.full_first_round:
            return
        drawn, m = self.draw(round), round.num_clients
        if drawn.dtype != torch.bool or drawn.shape != (m,):
            got = f"{str(drawn.dtype)[6:]} {list(drawn.shape)}"
            raise UserError(
                f"{nth_round(round.index)}: {type(self).__name__} drew {got}, and active must be bool [{m}]"
            )
        round.active[:m] = drawn

    def draw(self, round: Round) -> Tensor:
        """Return the clients that are active in this round, bool [m]."""
        raise NotImplementedError(f"{type(self).__name__} must implement draw(round)")


class Outgoing(Policy):
    """A change of the models that clients send: writes the row set `sent`, which equals `trained` without a policy.

    A run may have several, which are applied one after the other. A new one usually implements `send`. Other nodes
    compare, evaluate and average what a client sent; the client itself continues with the model that it trained.
    Servers send their model as it is, and clients send their buffers as they are: a running mean or variance is not
    an update, and cannot be sent in part.

    Attributes:
        sends_public_copies: whether a message updates the copy of the sender's model that all its neighbours keep.
        sends_updates: whether a message is an update, which is useful only to a receiver that has the model that the
            update starts from. Servers have it. Neighbours do not, so they receive a whole model, and `bytes_of` does
            not count for them.
    """

    family = "outgoing"
    sends_public_copies: bool = False
    sends_updates: bool = False

    def start(self, federation: Federation) -> None:
        """Check what `who` and `bytes_of` return; a subclass with a `start` of its own must call this one."""
        self._senders(federation)
        self._size(federation)
        if self.sends_updates and not federation.num_servers:
            federation.remark(
                f"{type(self).__name__} saves no bytes without a server: neighbours do not know the models that "
                "updates start from, and get whole models"
            )

    def who(self, federation: Federation) -> Tensor:
        """Return the clients whose messages the policy changes, bool [m]; default: all clients."""
        return torch.ones(federation.num_clients, dtype=torch.bool)

    def adversaries(self, federation: Federation) -> Tensor | None:
        """Return the clients whose messages the policy falsifies, bool [m]; mean scores leave them out. Default: None.

        None means that the policy is not an attack.
        """
        return None

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the updates that k clients send instead of their own.

        The protocol calls it for a block of clients at a time, from several threads at once, so it must read and write
        only its arguments.

        Args:
            updates: shared parameters that the clients would send, minus those of the model that their training started
                from, or of their own model before the round if they did not train, [k, shared width]; a copy.
            senders: ids and random numbers of these clients, and their rows of the sets that `row_sets` declares.

        Returns:
            Finite updates, [k, shared width].
        """
        raise NotImplementedError(f"{type(self).__name__} must implement send(updates, senders)")

    def bytes_of(self, width: int) -> int | None:
        """Return the bytes of a message of `width` shared parameters, a whole number; None leaves the size as it is.

        Buffers are sent whole and charged in addition. If several policies return a number, that of the last one
        counts. The protocol calls it in each round after all `on_outgoing`, also if a policy overrides `on_outgoing`.
        """
        return None

    def on_outgoing(self, round: Round) -> None:
        """Apply `send` to the clients of `senders`, and write the results to the row set `sent`."""
        send_updates(round, self.senders(round), self.send, type(self).__name__, tuple(self.row_sets))

    def senders(self, round: Round) -> Tensor:
        """Return the clients whose messages the policy changes in this round.

        These are the clients of `who` that trained, or that are active and a candidate of some receiver.

        Args:
            round: the round after its training.

        Returns:
            Ids of clients, long [k].
        """
        may_send = round.participants | (round.active & (round.candidates.num_receivers > 0))[: round.num_clients]
        return torch.nonzero(self._senders(round.federation) & may_send).squeeze(1)

    def size_messages(self, round: Round) -> None:
        """Set the size of the senders' messages in the ledger: `bytes_of` and, in addition, the buffers.

        Args:
            round: the round after `on_outgoing` of all policies.

        Raises:
            UserError: `bytes_of` does not return a whole number of bytes or None.
        """
        size = self._size(round.federation)
        if size is not None and (round.federation.num_servers or not self.sends_updates):
            round.ledger.resize(self.senders(round), size + BYTES * len(round.federation.layout.shared_buffers))

    def message_bytes(self, federation: Federation) -> Tensor | None:
        """Return the bytes of each client's message between clients, long [m], -1: the policy leaves the size as it is.

        None if it sets no size.

        Args:
            federation: the run's data, topology, network and policies.
        """
        size = self._size(federation)
        if size is None or self.sends_updates:
            return None
        whole = size + BYTES * len(federation.layout.shared_buffers)
        return torch.where(self._senders(federation), whole, -1)

    def _size(self, federation: Federation) -> int | None:
        size = self.bytes_of(len(federation.layout.shared_parameters))
        if size is None or (isinstance(size, Integral) and size >= 0):
            return size
        raise UserError(
            f"outgoing {type(self).__name__}: bytes_of() returns {size!r}; it must be a whole number of bytes, or None "
            "for a whole model"
        )

    def _senders(self, federation: Federation) -> Tensor:
        who, m = self.who(federation), federation.num_clients
        if who.dtype != torch.bool or who.shape != (m,):
            got = f"{str(who.dtype)[6:]} {list(who.shape)}"
            raise UserError(f"outgoing {type(self).__name__}: who() returns {got}; it must be bool [{m}]")
        return who


class Selection(Policy):
    """The choice of neighbours for each receiver: writes `candidates`, `similarity`, `scores`, `selected`.

    A new selection usually writes `scores` in `on_compare`; the default `on_select` then selects the neighbours that
    reach the threshold, or the `k` best scores if there is no threshold.

    Attributes:
        k: number of neighbours to choose without a threshold, or `all`. A client's `budget` in the topology replaces
            it, and limits the choice by a threshold.
        features: names of the layers whose inputs on the clients' own samples the selection reads; `head` is the last
            linear layer of a forward pass.
        assigns_servers: whether `assign` chooses among several servers.
        neighbour_counts: arguments that are numbers of neighbours, and the attributes that hold them.
        lists_candidates: whether the selection evaluates all of its candidates, not only a few that it draws from them.
        scores_are_first_order: whether `scores` and `own_scores` are first-order gains, which `FirstOrder` then reads.
        scores_are_weights: whether `scores` and `own_scores` are weights to average with.
        supports_updates: whether the selection works with an aggregation that updates the senders' models.
        threshold_rule: unit of the scores, `ratio` or `literal`, which `AdaptiveThreshold` must share; None: any.
    """

    family = "selection"
    k: int | Literal["all"] = 5
    features: tuple[str, ...] = ()
    assigns_servers: bool = False
    lists_candidates: bool = True
    scores_are_first_order: bool = False
    scores_are_weights: bool = False
    supports_updates: bool = False
    threshold_rule: str | None = None
    neighbour_counts: Mapping[str, str] = {"k": "k"}

    @classmethod
    def drawn_anew_from(cls, arguments: Mapping[str, Any]) -> int | None:
        """Return the first round in which neighbours are drawn anew by design, counted from 0; default: None, in none.

        Reports do not count the links of these rounds as new. They ask only selections of this library, since they do
        not run a user's code.

        Args:
            arguments: all arguments of the selection, with their defaults.
        """
        return None

    def listed_links(self, federation: Federation) -> int:
        """Return about how many links a round lists: all of the graph, or 2 k for each node if a few are drawn."""
        links = len(federation.topology.linked(0))
        return links if self.lists_candidates or self.k == "all" else min(links, 2 * self.k * federation.num_nodes)

    def limits(self, round: Round) -> Tensor:
        """Return how many neighbours each node may choose, long [n]: its `budget` in the topology, else `k`."""
        return self.limits_in(round.federation)

    def limits_in(self, federation: Federation) -> Tensor:
        """Return the same as `limits`, for use outside of a round, long [n]."""
        limits = torch.full((federation.num_nodes,), federation.num_nodes if self.k == "all" else self.k)
        budgets = federation.topology.budgets
        if budgets is not None:
            limits[: federation.num_clients] = budgets
        return limits

    def collaborators(self, federation: Federation, round: int) -> tuple[Links, Tensor] | None:
        """Return the models that each client finds useful, for `Mixture`; None if the selection does not know them.

        Args:
            federation: clients, topology and policies of the run.
            round: index of the round whose links are used, counted from 0.

        Returns:
            Links from each client to these models, its own among them, and their weights, float64 [E], which sum to 1
            for each client.
        """
        return None

    def assign(self, federation: Federation, owners: Tensor) -> Tensor:
        """Return the server whose model evaluates each client, long [J], counted from 0; default: the first server.

        Args:
            federation: clients, topology and policies of the run.
            owners: the clients, long [J].
        """
        return torch.zeros_like(owners)

    def on_select(self, round: Round) -> None:
        """Select the neighbours that reach the threshold, or the `k` best scores if there is no threshold.

        A budget keeps the best of those that reach the threshold. Ties go to the lowest id.
        """
        if not round.has("scores"):
            return  # the protocol raises an error that names the missing selection
        if round.threshold is not None and "threshold" in self.reads:
            chosen = above_threshold(round.scores, round.candidates, round.threshold)
            if round.federation.topology.budgets is not None:
                best = round.candidates.top(round.scores.masked_fill(~chosen, torch.nan), self.limits(round))
                chosen = chosen & best
        else:
            chosen = round.candidates.top(round.scores, self.limits(round))
        round.selected = round.candidates.keep(chosen)


class Threshold(Policy):
    """The least score that a selected neighbour must have: writes `threshold`, float64 [n], in `on_threshold`."""

    family = "threshold"


class Substitution(Policy):
    """The replacement of clients that dropped out: writes `substitute` (and `substitute_rows`) in `on_substitute`."""

    family = "substitution"


class Aggregation(Policy):
    """The average of models: writes `weights` from the votes in `on_weigh`, and mixes the models with them in `on_mix`.

        x_i = sum_j W_ij x_j

    x_i is the new model of receiver i, x_j is a trained model or the row of a substitute, and W_ij are the `weights`.

    Attributes:
        against_adversaries: whether the aggregation defends against falsified models; reports then add its name to that
            of any method.
        include_self: whether a receiver's own trained model has a vote.
        mixes_public_copies: whether it mixes the public copies that the outgoing policy `CHOCO` keeps.
        updates_senders: whether receivers train the senders' models of before the round and send updates back, instead
            of averaging trained models; links must then go both ways.
        column_stochastic: whether the weights sum to 1 for each sender instead of each receiver.
        reads_topology_weights: whether the weights are those of the topology's links.
        mixes_current_models: whether it mixes models as they are when a client finishes, on an asynchronous clock,
            instead of those that clients have published last.
    """

    family = "aggregation"
    against_adversaries: bool = False
    include_self: bool = True
    mixes_public_copies: bool = False
    updates_senders: bool = False
    column_stochastic: bool = False
    reads_topology_weights: bool = False
    mixes_current_models: bool = False

    def awaited(self, round: Round) -> Links | None:
        """Return the links over which clients wait for a model, on an asynchronous clock; None: all that they use.

        Args:
            round: the round after its mixing.
        """
        return None

    def shares(self, federation: Federation) -> Tensor | None:
        """Return a fixed factor of each node in all averages, float64 [n]; None if the factors depend on the round."""
        return None

    def on_mix(self, round: Round) -> None:
        """Write the weighted sums of trained models and substitutes' rows as the receivers' new models.

        A receiver whose weights are all 0 keeps its model. A substitute that is an update is added to the receiver's
        own model from before the round, which therefore gets the sum of the weights of such updates.
        """
        where = round.receivers & round.voters.any(round.weights != 0)
        round.mix(mixed_terms(round, round.weights, where), into="models", where=where)


def mixed_terms(round: Round, weights: Tensor, where: Tensor) -> list[tuple[Weights, str]]:
    """Split weighted sums of rows into summands (weights, row set), one for each row set that is mixed.

    Args:
        round: the round after its substitution.
        weights: a weight for each of `round.voters`, float64 [E].
        where: the receivers whose sums are wanted, bool [n].
    """
    n, m = round.num_nodes, round.num_clients
    counted = (weights != 0) & where[round.voters.receivers]
    position, shape = where.cumsum(0) - 1, (int(where.sum()), n)
    jobs, rows = position[round.voters.receivers[counted]], round.voters.senders[counted]
    every = Weights(jobs, rows, weights[counted], shape)
    terms = [(every.keep(rows < n), "trained")]
    for block, substitutes in enumerate(round.substitute_rows):
        first = n + block * m
        of_block = every.keep((rows >= first) & (rows < first + m))
        terms.append((replace(of_block, rows=of_block.rows - first), substitutes.rows))
        if substitutes.relative:
            moved = torch.zeros(shape[0], dtype=torch.float64).index_add_(0, of_block.jobs, of_block.shares)
            former = Weights.of_rows(torch.nonzero(where).squeeze(1), n, moved)
            terms.append((former.keep(former.shares != 0), "models"))
    return terms


def refuse_stored_rows(federation: Federation, aggregation: Aggregation, what: str) -> None:
    """Refuse a substitution that mixes stored rows, which are not models that clients trained in the round.

    Args:
        federation: the run's policies, among them the substitution.
        aggregation: the aggregation that cannot use stored rows, for the message.
        what: verb of the message: what the aggregation does with trained models, for example `compares`.

    Raises:
        UserError: the run has such a substitution.
    """
    substitution = federation.policy(Substitution)
    if substitution is not None and substitution.row_sets:
        raise UserError(
            f"aggregation {type(aggregation).__name__} {what} the models that clients have trained in the round, and "
            f"substitution {type(substitution).__name__} mixes stored ones; use --substitution FDMS or --substitution "
            "null"
        )


class Prediction(Policy):
    """The clients' rule of prediction in reported evaluations: probabilities of classes from the outputs of models.

    Without one, the class scores of the client's model decide. Rounds do not use it: where a policy evaluates a model,
    it evaluates the network alone. The run's loss must be the plain cross-entropy. Reports have the mean negative
    log-likelihood of the probabilities, their accuracy, and `model.metrics` of them.

    Attributes:
        features: names of the layers whose inputs `predict` needs; `head` is the last linear layer of a forward pass.
        memory: the client's own samples that `predict` needs: `train`, `val`.
    """

    family = "prediction"
    supports_clock = True
    needs_classes = True
    features: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()

    def rows(self, layout: Layout) -> Mapping[str, tuple[int, int]]:
        """Return the columns of the client's row sets that `predict` needs, (first, end) by row set; default: none."""
        return {}

    def members(self, federation: Federation) -> tuple[Links, Tensor] | None:
        """Return the models that each client predicts with after the last round; default None: its own model.

        Returns:
            Links from each client to the clients whose models it uses, for example itself, and weights, float64 [E],
            which sum to 1 for each client. Its probabilities are the weighted sum of `predict` over these models.
        """
        return None

    def predict(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        """Return class probabilities from the outputs of one model, or of k stacked models; default: softmax of scores.

        Several threads call it at once, for any groups of clients: it must not write anything, and must treat leading
        dimensions as a batch.

        Args:
            query: outputs on the samples to classify: `scores` float64 [..., B, C], `features["head"]` [..., B, D], and
                `rows["prototypes"]` [..., columns] if `rows` asks for it.
            memory: outputs of the same model on the client's own samples, by split, with `labels` int64 [..., n]; n may
                be 0.

        Returns:
            [..., B, C], 0 or more; they sum to 1 for each sample.
        """
        return query.scores.softmax(-1)


class Monitor(RoundCallback):
    """A callback that measures rounds and logs numbers, without changes to the round or costs for the clients.

    It receives copies of the bank's rows, and what it evaluates is not charged. A monitor that writes anything but row
    sets of its own (`bank.scratch`) ends the run with an error message.
    """

    family = "monitor"
    only_watches = True
    supports_clock = True


def honest_clients(federation: Federation) -> Tensor | None:
    """Return the clients that falsify neither messages nor labels, bool [m]; mean scores are over these clients.

    Returns:
        The mask; None if all clients are honest or no client is, so that means are over all clients.
    """
    attacks = [policy.adversaries(federation) for policy in federation.policies if isinstance(policy, Outgoing)]
    falsify = [adversaries for adversaries in (*attacks, federation.data.adversaries) if adversaries is not None]
    if not falsify:
        return None
    honest = ~torch.stack([adversaries.bool().cpu() for adversaries in falsify]).any(0)
    return None if bool(honest.all()) or not bool(honest.any()) else honest
