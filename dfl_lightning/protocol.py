"""One communication round, as the papers read: begin, train, mix, commit.

An ordinary class on the public Trainer only; `loop.py` calls it from inside Lightning.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback
from torch import Tensor

from dfl_lightning.bank.bank import Bank, Boundary
from dfl_lightning.bank.references import References
from dfl_lightning.callbacks.base import Aggregation, Outgoing, Selection, Substitution, Threshold
from dfl_lightning.engines.jobs import Trained, Training
from dfl_lightning.functional import count_votes
from dfl_lightning.links import AllPairs, Links
from dfl_lightning.round.callback import RoundCallback, call_round_hook, draws_by_name_only
from dfl_lightning.round.hosts import RunModule, RunTrainer
from dfl_lightning.round.record import Round
from dfl_lightning.round.running import running
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class RoundProtocol:
    """The steps of a round and the promises that each must keep."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer
        self.module = cast("RunModule", trainer.lightning_module)
        self._known: frozenset[str] | None = None  # callbacks of which the boundary that a fit began at has a state

    @property
    def federation(self) -> Federation:
        """What is fixed for the run."""
        return self.module.federation

    @property
    def bank(self) -> Bank:
        """The bank, which exists from the set-up of the run on."""
        return self.module.bank

    @property
    def callbacks(self) -> list[Callback]:
        """All callbacks of the trainer, in their order."""
        return cast(Any, self.trainer).callbacks

    # --- where a fit starts -------------------------------------------------------------------------------------------
    def restore_callbacks(self) -> None:
        """Callbacks as they were at the boundary, whatever a former fit of this process did to them after it."""
        saved = self.bank.boundary.callbacks
        self._known = frozenset(saved)
        for callback in self.callbacks:
            if callback.state_key in saved:
                callback.load_state_dict(copy.deepcopy(saved[callback.state_key]))
        if not saved:
            self.bank.boundary = self.bank.boundary._replace(callbacks=self.capture())

    # --- 1 to 3: who is there, and what each of them does -----------------------------------------------------------
    def begin(self) -> Round:
        """A round record with topology, availability, jobs and candidates."""
        trainer = self.trainer
        self.bank.abandon()  # an interrupted round may have left something behind
        round = self._new_round()
        call_round_hook(trainer, "on_start", round, only=partial(self._begins, round.index))
        if round.index == 0:
            self._call_objective("on_start", round)
        call_round_hook(trainer, "on_dropout", round)
        round.active[round.num_clients :] = True
        round.log("active", int(round.active[: round.num_clients].sum()))
        self._settle_availability(round)
        round.jobs = self.federation.start_of_training(round.active)
        round.candidates = round.available
        call_round_hook(trainer, "on_propose", round)
        self._check_links(round, round.candidates, Selection, "candidates")
        self._check_reach(round, round.candidates, "proposed")
        owners = round.jobs.owners
        twice = torch.nonzero(torch.bincount(owners, minlength=1) > 1).squeeze(1)
        self._check(not len(twice), Selection, lambda: f"proposed two jobs for client {int(twice[0])}")
        absent = owners[~round.active[owners]]
        self._check(
            not len(absent), Selection, lambda: f"proposed a job for client {int(absent[0])}, which dropped out"
        )
        return round

    def train(self, round: Round) -> None:
        """Local work of all jobs; who ends in NaN or infinity sits out the rest of the round."""
        m = round.num_clients

        def progress(done: int, total: int) -> None:
            call_round_hook(self.trainer, "on_engine_progress", done, total)

        round.charge(round.jobs)  # a server's model is downloaded
        memory = self.federation.local.memory
        training = Training("local", round.index, round.phases, round.hyperparameters, memory=memory)
        result = self.federation.engine.train(round.jobs, training, progress)
        round.losses = torch.full((m,), float("nan"), dtype=torch.float64)
        round.losses[round.jobs.owners] = result.losses
        self._quarantine(round, result)

    # --- 4 to 11: learn from others -----------------------------------------------------------------------------------
    def mix(self, round: Round) -> None:
        """Compare, select, substitute, weigh and mix."""
        trainer, m = self.trainer, round.num_clients
        if round.active[:m].any():
            call_round_hook(trainer, "on_outgoing", round)
            self._check_sent()
            self._size_messages(round)
            call_round_hook(trainer, "on_trained", round)
            call_round_hook(trainer, "on_compare", round)
            for field in ("similarity", "scores"):
                if round.has(field):
                    beside = (len(round.candidates),)
                    self._check_type(getattr(round, field), float, beside, Selection, field, "as many as candidates")
            call_round_hook(trainer, "on_threshold", round)
            self._check_type(round.threshold, float, (round.num_nodes,), Threshold, "threshold")
            call_round_hook(trainer, "on_select", round)
            self._check(round.has("selected"), Selection, "selected nothing; write round.selected")
            self._check_links(round, round.selected, Selection, "selected")
            self._check_reach(round, round.selected, "selected")
            round.selected = round.selected.between(receivers=round.receivers)
            self._substitute(round)
            self._weigh(round)
            self._call_objective("before_mixing", round)
            call_round_hook(trainer, "on_mix", round)
            self._check_finite(round.bank.next_rows()["models"])
        round.bank.end_mixing()
        call_round_hook(trainer, "on_mixed", round)
        self._call_objective("after_mixing", round)
        call_round_hook(trainer, "on_round_end", round)

    def commit(self, round: Round) -> None:
        """End the round: one assignment replaces the boundary."""
        bank = self.bank
        self._known = None
        metrics = {**round.metrics, **self._costs(round)}
        bank.commit(
            Boundary(round.index + 1, bank.next_rows(), self.capture(), metrics, {}, False, bank.next_numbers())
        )

    def capture(self) -> dict[str, Any]:
        """Copies of the state of every callback, as a checkpoint stores them."""
        states = {callback.state_key: callback.state_dict() for callback in self.callbacks}
        before = self.bank.boundary.callbacks
        return {key: _copied(state, before.get(key)) for key, state in states.items() if state}

    # --- details ------------------------------------------------------------------------------------------------------
    def _begins(self, index: int, callback: RoundCallback) -> bool:
        """Whether a callback has yet to start: in round 0, or in the first round of a fork that brings it in."""
        new = self._known is not None and bool(callback.state) and callback.state_key not in self._known
        return index == 0 or new

    def _call_objective(self, hook: str, round: Round) -> None:
        """Call a hook of the objective, which draws by name only and writes its own row sets."""
        objective = self.federation.objective
        with draws_by_name_only(round.index, objective, hook), running(self.bank, objective, hook):
            getattr(objective, hook)(round)

    def _new_round(self) -> Round:
        federation, index = self.federation, self.bank.boundary.round
        n, m = federation.num_nodes, federation.num_clients
        reachable = federation.topology.reachable(index)
        self._check_links(None, reachable, None, "a topology's links", n)
        loops = _loops(reachable)
        self._check(not len(loops), None, lambda: f"has a topology with self loops, the first at node {int(loops[0])}")
        empty = Links.empty(n)
        return Round(
            index=index,
            federation=federation,
            reachable=reachable,
            active=torch.ones(n, dtype=torch.bool),
            available=empty,
            receivers=torch.zeros(n, dtype=torch.bool),
            jobs=References.rows("models", torch.arange(m)),
            candidates=empty,
            phases=federation.phases(index),
            hyperparameters=self.module.hyperparameters,
            diverged=torch.zeros(m, dtype=torch.bool),
        )

    def _settle_availability(self, round: Round) -> None:
        """Receivers are those who are active, or the servers; senders too unless a substitution replaces the others."""
        round.receivers = round.active.clone()
        if round.num_servers:
            round.receivers[: round.num_clients] = False
        senders = round.clients_only
        if self.federation.policy(Substitution) is None:
            senders = senders & round.active
        round.available = round.reachable.between(round.receivers, senders)

    def _quarantine(self, round: Round, result: Trained) -> None:
        bad = round.jobs.owners[~result.finite]
        if not len(bad):
            return
        names = ", ".join(map(str, bad.tolist()))
        if self.module.on_divergence == "stop":
            raise UserError(
                f"{nth_round(round.index)}: training of client {names} diverged (NaN or infinity); "
                "lower model.optimizer.lr, set trainer.gradient_clip_val, or use --model.on_divergence quarantine"
            )
        round.diverged[bad] = True
        round.active[bad] = False
        round.losses[bad] = float("nan")
        self._settle_availability(round)
        senders = round.clients_only if self.federation.policy(Substitution) else round.active
        round.candidates = round.candidates.between(round.receivers, senders)
        self.module.warn_of_divergence(
            bad.tolist(),
            f"{nth_round(round.index)}: training of client {{}} diverged; no client mixes it "
            "(said once a client: diverged.npz has every round)",
        )

    def _size_messages(self, round: Round) -> None:
        """What each policy of what is sent says of the bytes, in their order; not in a hook that a user may replace."""
        for policy in self.trainer.policies():
            if isinstance(policy, Outgoing):
                policy.size_messages(round)

    def _substitute(self, round: Round) -> None:
        n = round.num_nodes
        round.substitute = round.selected.senders.clone()
        call_round_hook(self.trainer, "on_substitute", round)
        aggregation = self.federation.require(Aggregation)
        rows = n + round.num_clients * len(round.substitute_rows)
        selected = round.selected
        self._check_type(round.substitute, int, (len(selected),), Substitution, "substitute", "as many as are selected")
        substitute = round.substitute
        wrong = (substitute < -1) | (substitute >= rows)
        self._check(
            not wrong.any(),
            Substitution,
            lambda: (
                f"names a row that does not exist: {_first(wrong, substitute, selected)}; "
                f"rows are 0 to {rows - 1}, or -1 for the mean"
            ),
        )
        round.log("neighbours", float(selected.count[round.receivers].double().mean()))
        include_self = round.receivers & torch.tensor(aggregation.include_self) & round.clients_only
        round.voters, round.votes = count_votes(selected, substitute, round.active, include_self, rows, round.receivers)

    def _weigh(self, round: Round) -> None:
        call_round_hook(self.trainer, "on_weigh", round)
        self._check(round.has("weights"), Aggregation, "wrote no weights; write round.weights in on_weigh")
        weights, votes, voters = round.weights, round.votes, round.voters
        got, asked = list(weights.shape), list(votes.shape)
        self._check(got == asked, Aggregation, f"wrote weights {got}; they must be {asked}, as round.votes is")
        wrong = ~weights.isfinite()
        self._check(
            not wrong.any(), Aggregation, lambda: f"wrote a weight that is no number: {_first(wrong, weights, voters)}"
        )
        idle = (weights != 0) & (votes == 0) & (voters.receivers != voters.senders)
        self._check(
            not idle.any(), Aggregation, lambda: f"gave weight to a row without a vote: {_first(idle, weights, voters)}"
        )
        if self.federation.require(Aggregation).column_stochastic:
            self._check_columns(weights, voters)
            return
        sums = voters.sum(weights.double())
        off = ((sums - 1).abs() >= 1e-6) & voters.any(weights != 0)  # below 0 a weight may be: a server's step above 1
        self._check(
            not off.any(), Aggregation, lambda: f"wrote weights that do not sum to 1: {_first(off, sums)} as their sum"
        )

    def _check_columns(self, weights: Tensor, voters: Links) -> None:
        """What each sender gives away, to itself too, sums to 1."""
        given = torch.zeros(voters.rows, dtype=torch.float64).index_add_(0, voters.senders, weights.double())
        gives = torch.zeros(voters.rows, dtype=torch.bool)
        gives[voters.senders[weights != 0]] = True
        off = ((given - 1).abs() >= 1e-6) & gives
        self._check(
            not off.any(),
            Aggregation,
            lambda: (
                f"wrote weights of which those of sender {int(torch.nonzero(off)[0])} sum to "
                f"{float(given[off][0]):.6g}; what a sender gives away must sum to 1"
            ),
        )

    def _costs(self, round: Round) -> dict[str, float]:
        """What the round's messages were, as means over clients; bytes of shared columns (buffers too) and proxies."""
        ledger, m = round.ledger, round.num_clients
        models = len(ledger.models) + ledger.repeated
        proxies = sum(map(len, ledger.parts.values()))
        probes = models - len(ledger.mixed) - ledger.mixed_again if not round.num_servers else 0
        costs = {
            "models_received": models / m,
            "probes_received": probes / m,
            "proxies_received": proxies / m,
            "bytes_received": ledger.total_bytes(len(round.bank.layout.shared)) / m,
        }
        if ledger.messages:
            costs["messages_received"] = ledger.num_messages / m
        if round.has("losses") and not round.losses.isnan().all():
            costs["train_loss"] = float(round.losses.nanmean())
        if round.diverged.any():
            costs["diverged"] = float(round.diverged.sum())
        return costs

    def _check_type(
        self, value: Tensor | None, kind: type, shape: tuple[int, ...], family: type, field: str, why: str = ""
    ) -> None:
        """What a hook wrote is what the next one reads: int (long) or any float, of this shape."""
        if value is None:
            return
        if not isinstance(value, Tensor):
            self._check(False, family, f"wrote {field} of type {type(value).__name__}; it must be a tensor")
        right = value.is_floating_point() if kind is float else value.dtype == torch.long
        got = f"{str(value.dtype)[6:]} {list(value.shape)}"
        kept = right and value.shape == shape
        self._check(
            kept, family, f"wrote {field} of type {got}; it must be {kind.__name__} {list(shape)}{why and ', '}{why}"
        )

    def _check_links(self, round: Round | None, links: object, family: type | None, field: str, n: int = 0) -> None:
        """A list of links between the nodes of the run, and nothing else."""
        n = n if round is None else round.num_nodes
        if isinstance(links, Links):
            shape = (links.nodes, links.rows)
            self._check(shape == (n, n), family, f"wrote {field} between {shape[0]} nodes; there are {n}")
            return
        matrix = isinstance(links, Tensor)
        got = f"{str(links.dtype)[6:]} {list(links.shape)}" if isinstance(links, Tensor) else type(links).__name__
        remedy = "; a matrix becomes one by Links.from_mask(matrix)" if matrix else ""
        self._check(False, family, f"wrote {field} of type {got}; it must be Links{remedy}")

    def _check_reach(self, round: Round, links: Links, did: str) -> None:
        """Receivers look at, and learn from, in-neighbours only."""
        if links is round.available or (links is round.candidates and did == "selected"):
            return  # these have been looked at
        wrong = ~links.within(round.available)

        def broken() -> str:
            first = int(torch.nonzero(wrong)[0])
            receiver, sender = int(links.receivers[first]), int(links.senders[first])
            reached = bool(links.keep(wrong).within(round.reachable)[0])
            if receiver == sender:
                why = "is the receiver itself"
            elif not reached:
                why = "is out of its reach"
            else:
                why = "dropped out" if round.receivers[receiver] else "is in its reach, but the receiver does not mix"
            return f"{did} sender {sender} for receiver {receiver}, which {why}; stay within round.available"

        self._check(not wrong.any(), Selection, broken)

    def _check_sent(self) -> None:
        """What is sent are numbers, in every process."""
        bank = self.bank
        if not bank.changes_messages or bank.ranks.all(_all_finite(bank.rows("sent"))):
            return
        bad = bank.ranks.own[~bank.rows("sent").isfinite().all(1).cpu()]
        first = bank.ranks.least(int(bad[0]) if len(bad) else bank.num_nodes)
        names = " and ".join(
            type(policy).__name__ for policy in self.trainer.policies() if isinstance(policy, Outgoing)
        )
        raise UserError(f"{nth_round(bank.boundary.round)}: outgoing {names}: what client {first} sends is not finite")

    def _check_finite(self, rows: Tensor) -> None:
        """The mixed models are numbers, in every process."""
        ranks = self.bank.ranks
        if ranks.all(_all_finite(rows)):
            return
        here = ranks.own[~rows.isfinite().all(1).cpu()]
        first = ranks.least(int(here[0]) if len(here) else self.bank.num_nodes)
        self._check(False, Aggregation, f"mixed a model that is not finite, for receiver {first}")

    def _check(self, kept: bool, family: type | None, broken: str | Callable[[], str]) -> None:
        """Refuse what a policy has done.

        Args:
            kept: whether it is as it must be.
            family: of the policy; None: the run itself.
            broken: what it did, said only where it is not.
        """
        if not kept:
            policy = self.federation.policy(family) if family is not None else None
            who = type(policy).__name__ if policy is not None else "the run"
            what = broken if isinstance(broken, str) else broken()
            raise UserError(f"{nth_round(self.bank.boundary.round)}: {who} {what}")


def _loops(links: Links) -> Tensor:
    """Nodes that are linked to themselves, long."""
    if isinstance(links, AllPairs):
        return torch.empty(0, dtype=torch.long)
    return links.receivers[links.receivers == links.senders]


def _first(wrong: Tensor, values: Tensor, links: Links | None = None) -> str:
    """The first place that is wrong, and what is there.

    Args:
        wrong: bool [n] over receivers, or [E] over links.
        values: of the same shape.
        links: beside which they stand; None: over receivers.

    Examples:
        >>> two = Links.of(torch.tensor([0, 1]), torch.tensor([1, 0]), nodes=2)
        >>> _first(torch.tensor([False, True]), torch.tensor([0.5, torch.nan]), two)
        'receiver 1 has nan for row 0'
    """
    place = int(torch.nonzero(wrong)[0])
    value = f"{values[place].item():.6g}"
    if links is None:
        return f"receiver {place} has {value}"
    return f"receiver {int(links.receivers[place])} has {value} for row {int(links.senders[place])}"


def _copied(state: Any, before: Any) -> Any:
    """A deep copy of a state; a tensor that is bit by bit as it was before is not copied again.

    Args:
        state: nested dicts, lists and tuples of anything.
        before: the copy of an earlier state, never written into; None where there is none.
    """
    if type(state) is dict:
        former = before if type(before) is dict else {}
        return {key: _copied(value, former.get(key)) for key, value in state.items()}
    if type(state) is Tensor and type(before) is Tensor and _same_bits(state, before):
        return before
    return copy.deepcopy(state)


def _same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are the same numbers, NaN included."""
    if a.dtype != b.dtype or a.shape != b.shape or a.device != b.device or a.requires_grad or a.is_complex():
        return False
    if a.is_floating_point():
        whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(a.element_size())
        return (
            whole is not None and a.is_contiguous() and b.is_contiguous() and torch.equal(a.view(whole), b.view(whole))
        )
    return torch.equal(a, b)


def _all_finite(rows: Tensor) -> bool:
    """Whether no entry is NaN or infinite: a sum is, where any entry is.

    A sum of many large float32 may overflow; only then each row is summed in float64, which makes a copy of it.
    """
    return bool(rows.sum().isfinite()) or all(bool(row.sum(dtype=torch.float64).isfinite()) for row in rows)
