"""The families of policies: what each may write, and the defaults that make a new one short."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from numbers import Integral
from typing import TYPE_CHECKING, Literal

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
        method_name: what reports call a method with it; empty where it makes none of its own. A threshold's follows the
            name of the selection.
    """

    method_name: str = ""


class Dropout(Policy):
    """Which clients are active in a round: writes `active` in `on_dropout`.

    Args:
        full_first_round: all clients take part in round 0, whatever the process says.
    """

    def __init__(self, full_first_round: bool = False) -> None:
        self.full_first_round = full_first_round

    def on_dropout(self, round: Round) -> None:
        """Set the active clients: all in a full first round, else those that `draw` says."""
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
        """Return who is active this round, bool [m]."""
        raise NotImplementedError(f"{type(self).__name__} must implement draw(round)")


class Outgoing(Policy):
    """What leaves a client: writes the row set `sent`, which is `trained` otherwise; several may follow each other.

    A new one usually implements `send`. What others learn of a client, in comparisons, evaluations and averages, is
    what it sent; it goes on itself with the model that it trained. Servers send their model as it is, and all clients
    their buffers: a running mean or variance is no update, and part of one would be none.

    Attributes:
        sends_public_copies: whether a message brings the copy of the sender up to date that all its neighbours have.
        sends_updates: a message is an update, of use only to who knows the model that it starts from. Servers do; of
            what neighbours get, `bytes_of` says nothing then, for they are sent a whole model.
    """

    sends_public_copies: bool = False
    sends_updates: bool = False

    def start(self, federation: Federation) -> None:
        """Require senders that are clients, and whole numbers of bytes; a class with its own `start` calls this one."""
        self._senders(federation)
        self._size(federation)
        if self.sends_updates and not federation.num_servers:
            federation.remark(
                f"{type(self).__name__} saves no bytes without a server: neighbours do not know the models that "
                "updates start from, and get whole models"
            )

    def who(self, federation: Federation) -> Tensor:
        """Return whose messages it changes, bool [m]; default: all clients'."""
        return torch.ones(federation.num_clients, dtype=torch.bool)

    def adversaries(self, federation: Federation) -> Tensor | None:
        """Return whose messages it falsifies in an attack, bool [m]: mean scores leave them out. Default: None."""
        return None

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return what some clients send in the place of their updates.

        Called for a block of clients at a time, by several threads at once: it reads and writes nothing but its
        arguments.

        Args:
            updates: shared parameters of what they would send, less the model that their training started from (less
                their own model of before the round, where they did not train), [k, shared width]; a copy.
            senders: who they are, what they draw, and their rows of the sets that `row_sets` declares.

        Returns:
            [k, shared width]; finite.
        """
        raise NotImplementedError(f"{type(self).__name__} must implement send(updates, senders)")

    def bytes_of(self, width: int) -> int | None:
        """Return the bytes of a message of `width` shared parameters, a whole number; None: as before.

        Buffers are sent whole and charged in addition. Of several policies the last one that gives a number counts. The
        protocol reads it in each round, after all `on_outgoing`, also where a policy has one of its own.
        """
        return None

    def on_outgoing(self, round: Round) -> None:
        """Send the updates of those that are active and have trained, or may be looked at."""
        send_updates(round, self.senders(round), self.send, type(self).__name__, tuple(self.row_sets))

    def senders(self, round: Round) -> Tensor:
        """Return whose messages it changes in a round: of `who`, the active ones that have trained or may be looked at.

        Args:
            round: after its training.

        Returns:
            Ids of clients, long [k].
        """
        may_send = round.participants | (round.active & (round.candidates.num_receivers > 0))[: round.num_clients]
        return torch.nonzero(self._senders(round.federation) & may_send).squeeze(1)

    def size_messages(self, round: Round) -> None:
        """Tell the ledger what `bytes_of` says of the senders' messages, and the buffers beside them.

        Args:
            round: after all policies' `on_outgoing`.

        Raises:
            UserError: that is no number of bytes.
        """
        size = self._size(round.federation)
        if size is not None and (round.federation.num_servers or not self.sends_updates):
            round.ledger.resize(self.senders(round), size + BYTES * len(round.federation.layout.shared_buffers))

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
    """Whom each receiver learns from: writes `candidates`, `similarity`, `scores`, `selected`.

    A new selection usually writes `scores` in `on_compare`; `on_select` then takes who reaches the threshold, or the
    `k` best scores without one.

    Attributes:
        k: neighbours to choose where no threshold decides, or `all`; a client's `budget` in the topology comes first,
            and is the most that it chooses by a threshold.
        features: layers whose inputs on clients' own samples it looks at, by name; `head` is the last linear layer of a
            forward pass.
        assigns_servers: whether `assign` chooses among several servers.
        neighbour_counts: arguments that are numbers of neighbours, and the attributes that hold them.
        lists_candidates: whether it looks at each of its candidates, and not at a few that it draws from them.
        scores_are_first_order: whether `scores` and `own_scores` are first-order gains, which `FirstOrder` then reads.
        scores_are_weights: whether `scores` and `own_scores` are weights to average with.
        supports_updates: whether it works with an aggregation that updates the senders' models.
        threshold_rule: the unit of its scores, `ratio` or `literal`, which `AdaptiveThreshold` must share; None: any.
    """

    k: int | Literal["all"] = 5
    features: tuple[str, ...] = ()
    assigns_servers: bool = False
    lists_candidates: bool = True
    scores_are_first_order: bool = False
    scores_are_weights: bool = False
    supports_updates: bool = False
    threshold_rule: str | None = None
    neighbour_counts: Mapping[str, str] = {"k": "k"}

    def listed_links(self, federation: Federation) -> int:
        """Return the links of the graph where all candidates are looked at or chosen, else twice `k` for each node."""
        links = len(federation.topology.linked(0))
        return links if self.lists_candidates or self.k == "all" else min(links, 2 * self.k * federation.num_nodes)

    def limits(self, round: Round) -> Tensor:
        """Return how many neighbours each node may choose, long [n]: its `budget` in the topology, else `k`."""
        return self.limits_in(round.federation)

    def limits_in(self, federation: Federation) -> Tensor:
        """Return the same outside of a round, long [n]."""
        limits = torch.full((federation.num_nodes,), federation.num_nodes if self.k == "all" else self.k)
        budgets = federation.topology.budgets
        if budgets is not None:
            limits[: federation.num_clients] = budgets
        return limits

    def collaborators(self, federation: Federation, round: int) -> tuple[Links, Tensor] | None:
        """Return whose models each client finds useful, for `Mixture`; None: the selection does not say.

        Args:
            federation: of the run.
            round: the round whose links count, 0-based.

        Returns:
            Links of every client, itself among the senders, and weights, float64 [E], those of a client with the sum 1.
        """
        return None

    def assign(self, federation: Federation, owners: Tensor) -> Tensor:
        """Return the server, counted from 0, by whose model each client is evaluated, long [J]; default: the first.

        Args:
            federation: of the run.
            owners: the clients, long [J].
        """
        return torch.zeros_like(owners)

    def on_select(self, round: Round) -> None:
        """Select who reaches the threshold, the best of them under a budget; without one, the `k` best scores.

        Ties go to the lowest id.
        """
        if not round.has("scores"):
            return  # the protocol says that nothing was selected
        if round.threshold is not None and "threshold" in self.reads:
            chosen = above_threshold(round.scores, round.candidates, round.threshold)
            if round.federation.topology.budgets is not None:
                best = round.candidates.top(round.scores.masked_fill(~chosen, torch.nan), self.limits(round))
                chosen = chosen & best
        else:
            chosen = round.candidates.top(round.scores, self.limits(round))
        round.selected = round.candidates.keep(chosen)


class Threshold(Policy):
    """What score is enough: writes `threshold`, float64 [n], in `on_threshold`."""


class Substitution(Policy):
    """What replaces clients that dropped out: writes `substitute` (and `substitute_rows`) in `on_substitute`."""


class Aggregation(Policy):
    """How votes become weights: writes `weights` in `on_weigh`; mixes them in `on_mix`.

    Attributes:
        against_adversaries: whether it is meant against false models: reports add its name to that of any method.
        include_self: whether a receiver's own trained model has a vote.
        mixes_public_copies: whether it mixes the public copies that the outgoing policy `CHOCO` keeps.
        updates_senders: whether receivers train the senders' models, as they were before the round, and send updates
            back, in the place of averaging trained models; then links must go both ways.
        column_stochastic: that what a sender gives away sums to 1, in the place of what a receiver takes.
        reads_topology_weights: whether weights are those of the topology's links.
    """

    against_adversaries: bool = False
    include_self: bool = True
    mixes_public_copies: bool = False
    updates_senders: bool = False
    column_stochastic: bool = False
    reads_topology_weights: bool = False

    def shares(self, federation: Federation) -> Tensor | None:
        """Return how much each node counts in every average, float64 [n]; None where that depends on the round."""
        return None

    def on_mix(self, round: Round) -> None:
        """Mix the models of receivers that have weights: weights @ trained rows, and the other substitutes' rows.

        A substitute's update is added to the receiver's own model, which therefore gets the weight of all such updates.
        """
        where = round.receivers & round.voters.any(round.weights != 0)
        round.mix(mixed_terms(round, round.weights, where), into="models", where=where)


def mixed_terms(round: Round, weights: Tensor, where: Tensor) -> list[tuple[Weights, str]]:
    """Weights of all rows that are mixed, as summands (weights, row set) of receivers' new models.

    Args:
        round: after the substitution.
        weights: float64 [len(voters)], beside `round.voters`.
        where: the receivers that are written, bool [n].
    """
    n, m = round.num_nodes, round.num_clients
    counted = (weights != 0) & where[round.voters.receivers]
    place, shape = where.cumsum(0) - 1, (int(where.sum()), n)
    jobs, rows = place[round.voters.receivers[counted]], round.voters.senders[counted]
    every = Weights(jobs, rows, weights[counted], shape)
    terms = [(every.keep(rows < n), "trained")]
    for block, substitutes in enumerate(round.substitute_rows):
        first = n + block * m
        of_block = every.keep((rows >= first) & (rows < first + m))
        terms.append((replace(of_block, rows=of_block.rows - first), substitutes.rows))
        if substitutes.relative:
            moved = torch.zeros(shape[0], dtype=torch.float64).index_add_(0, of_block.jobs, of_block.shares)
            own = Weights.of_rows(torch.nonzero(where).squeeze(1), n, moved)
            terms.append((own.keep(own.shares != 0), "models"))
    return terms


def refuse_stored_rows(federation: Federation, aggregation: Aggregation, what: str) -> None:
    """Refuse substitutions whose rows are no client's model of the round.

    Args:
        federation: of the run.
        aggregation: that cannot use them.
        what: it does with the models that clients have trained in the round.

    Raises:
        UserError: there is such a substitution.
    """
    substitution = federation.policy(Substitution)
    if substitution is not None and substitution.row_sets:
        raise UserError(
            f"aggregation {type(aggregation).__name__} {what} the models that clients have trained in the round, and "
            f"substitution {type(substitution).__name__} mixes stored ones; use --substitution FDMS or --substitution "
            "null"
        )


class Prediction(Policy):
    """How clients predict where they are evaluated and reported: probabilities of classes from models' outputs.

    Without one, the scores of the client's model decide. It takes no part in rounds: what policies evaluate, another's
    model on one's own data for example, is the network alone. The run's loss must be the plain cross-entropy; reported
    are the mean negative log-likelihood of the probabilities, their accuracy, and `model.metrics` of them.

    Attributes:
        features: layers whose inputs `predict` wants, by name; `head` is the last linear layer of a forward pass.
        memory: which of the client's own samples `predict` wants: `train`, `val`.
    """

    needs_classes = True
    features: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()

    def rows(self, layout: Layout) -> Mapping[str, tuple[int, int]]:
        """Return columns of the client's own row sets that `predict` wants: first and end, by row set; default none.

        Args:
            layout: of the network's rows.
        """
        return {}

    def members(self, federation: Federation) -> tuple[Links, Tensor] | None:
        """Return models that clients predict with, by the present boundary; default None: each with its own.

        Returns:
            Links of every client to the clients whose models it uses, itself for example, and weights, float64 [E], of
            each client with the sum 1: its probabilities are the weighted sum of what `predict` makes of each model.
        """
        return None

    def predict(self, query: Outputs, memory: Mapping[str, LabelledOutputs]) -> Tensor:
        """Return probabilities by one model of a client, or by k models with equally many samples: by default softmax.

        Called by several threads at once, for any groups of clients: it writes nothing, and treats leading dimensions
        as a batch.

        Args:
            query: what is to be classified: `scores` float64 [..., B, C], `features["head"]` [..., B, D]; and
                `rows["prototypes"]` [..., columns] if asked for.
            memory: the same model's outputs on the client's own samples by split, with `labels` int64 [..., n]; n may
                be 0.

        Returns:
            [..., B, C]; 0 or more, of each sample with the sum 1.
        """
        return query.scores.softmax(-1)


class Monitor(RoundCallback):
    """Watches rounds and logs numbers; changes nothing and costs the simulated clients nothing.

    It gets copies of the bank's rows, what it evaluates is not charged, and a hook in which it writes anything else
    than row sets of its own (`bank.scratch`) ends the run with a sentence.
    """

    only_watches = True


def honest_clients(federation: Federation) -> Tensor | None:
    """Say which clients falsify neither messages nor labels, bool [m]: those over which mean scores are taken.

    Args:
        federation: of the run.

    Returns:
        The mask; None where all clients are honest, or none is, so that means are over all clients.
    """
    attacks = [policy.adversaries(federation) for policy in federation.policies if isinstance(policy, Outgoing)]
    falsify = [found for found in (*attacks, federation.data.adversaries) if found is not None]
    if not falsify:
        return None
    honest = ~torch.stack([found.bool().cpu() for found in falsify]).any(0)
    return None if bool(honest.all()) or not bool(honest.any()) else honest
