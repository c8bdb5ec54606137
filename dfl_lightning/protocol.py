"""One communication round in the steps of the papers: begin, train, mix, commit.

The class uses only the public interface of Trainer; `loop.py` calls it from inside Lightning.
"""

from __future__ import annotations

import copy
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import torch
from lightning.pytorch import Callback

from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.boundary import Boundary
from dfl_lightning.bank.references import References
from dfl_lightning.callbacks.base import Aggregation, Clock, Outgoing, Selection, Substitution, Threshold
from dfl_lightning.engines.jobs import Trained
from dfl_lightning.functional import count_votes
from dfl_lightning.links import Links
from dfl_lightning.round import checks
from dfl_lightning.round.callback import RoundCallback, call_round_hook, draws_by_name_only
from dfl_lightning.round.joining import charge_starts, let_join, note_joined
from dfl_lightning.round.record import Round
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.round.run.waves import numbers_of_round, record_wave
from dfl_lightning.round.running import guard_hook
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.state_copies import copied
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class RoundProtocol:
    """The steps of a round. After each step, functions of `round.checks` check its results for the next step."""

    def __init__(self, trainer: RunTrainer) -> None:
        self.trainer = trainer
        self.module = cast("RunModule", trainer.lightning_module)
        # Keys of the callbacks that have a state in the boundary from which a fit starts.
        self._restored: frozenset[str] | None = None

    @property
    def federation(self) -> Federation:
        """The data, topology, network and policies of the run."""
        return self.module.federation

    @property
    def bank(self) -> Bank:
        """The bank, which exists once the run is set up."""
        return self.module.bank

    @property
    def callbacks(self) -> list[Callback]:
        """All callbacks of the trainer, in their order."""
        return cast(Any, self.trainer).callbacks

    # --- the start of a fit -------------------------------------------------------------------------------------------
    def restore_callbacks(self) -> None:
        """Restore all callbacks' states from the last boundary, whatever a former fit has changed since."""
        saved = self.bank.boundary.callbacks
        self._restored = frozenset(saved)
        for callback in self.callbacks:
            if callback.state_key in saved:
                callback.load_state_dict(copy.deepcopy(saved[callback.state_key]))
        if not saved:
            self.bank.boundary = self.bank.boundary._replace(callbacks=self.capture())

    # --- 1 to 3: availability, and the local work of each client ------------------------------------------------------
    def begin(self) -> Round:
        """Make the record of a round, with topology, availability, jobs and candidates."""
        self.bank.abandon()  # an interrupted round may have left rows behind
        round = self._new_round()
        call_round_hook(self.trainer, "on_start", round, only=partial(self._starts_in, round.index))
        if round.index == 0:
            self._call_objective("on_start", round)
        return self._propose(round)

    def next_wave(self, round: Round) -> Round | None:
        """End a wave, and make the record of the round's next one; None if the clock has no further wave."""
        clock = self.federation.policy(Clock)
        if clock is None or not clock.has_more(round):
            return None
        self.bank.end_wave()
        following = self._new_round()
        following.earlier = (*round.earlier, record_wave(round))
        return self._propose(following)

    def _propose(self, round: Round) -> Round:
        """Settle who takes part, the jobs of local training, and the candidates."""
        trainer, selection = self.trainer, self.federation.policy(Selection)
        call_round_hook(trainer, "on_clock", round)
        call_round_hook(trainer, "on_dropout", round)
        round.active[: round.num_clients] &= self.federation.topology.present(round.index)
        round.active[round.num_clients :] = True
        round.active &= round.due
        round.log("active", int(round.active[: round.num_clients].sum()))
        self._settle_availability(round)
        round.jobs = self.federation.start_of_training(round.active)
        if self.federation.joins:
            let_join(round)
        round.candidates = round.available
        call_round_hook(trainer, "on_propose", round)
        checks.check_links(round.index, round.candidates, round.num_nodes, selection, "candidates")
        checks.check_reach(round, round.candidates, selection, "proposed")
        checks.check_jobs(round, selection)
        return round

    def train(self, round: Round) -> None:
        """Train all jobs; a client whose model becomes NaN or infinite takes no further part in the round."""
        m = round.num_clients

        def progress(done: int, total: int) -> None:
            call_round_hook(self.trainer, "on_engine_progress", done, total)

        charge_starts(round)  # a server's model is downloaded
        memory = self.federation.local.memory
        training = round.local_training(memory=memory, own=round.own_training, cycles=round.cycles)
        result = self.federation.engine.train(round.jobs, training, progress)
        round.losses = torch.full((m,), float("nan"), dtype=torch.float64)
        round.losses[round.jobs.owners] = result.losses
        if self.federation.joins:
            note_joined(round, result)
        self._quarantine(round, result)

    # --- 4 to 11: exchange and mixing ---------------------------------------------------------------------------------
    def mix(self, round: Round) -> None:
        """Let clients send models, compare, select and substitute neighbours, weigh the models, and mix them."""
        trainer, m = self.trainer, round.num_clients
        if round.active[:m].any():
            self._send(round)
            call_round_hook(trainer, "on_trained", round)
            self._select(round)
            self._substitute(round)
            self._weigh(round)
            self._call_objective("before_mixing", round)
            call_round_hook(trainer, "on_mix", round)
            checks.check_mixed(round, self.federation.policy(Aggregation))
        round.bank.end_mixing()
        call_round_hook(trainer, "on_mixed", round)
        self._call_objective("after_mixing", round)
        call_round_hook(trainer, "on_round_end", round)

    def commit(self, round: Round) -> None:
        """End the round: one assignment replaces the boundary."""
        bank = self.bank
        self._restored = None
        if round.earlier:
            metrics = numbers_of_round([*round.earlier, record_wave(round)])
        else:
            metrics = {**round.metrics, **round.ledger.costs(round.num_clients, len(bank.layout.shared))}
            if round.has("losses") and not round.losses.isnan().all():
                metrics["train_loss"] = float(round.losses.nanmean())
            if round.diverged.any():
                metrics["diverged"] = float(round.diverged.sum())
        bank.commit(
            Boundary(round.index + 1, bank.next_rows(), self.capture(), metrics, {}, False, bank.next_numbers())
        )

    def capture(self) -> dict[str, Any]:
        """Copy the state of every callback, as a checkpoint stores it."""
        states = {callback.state_key: callback.state_dict() for callback in self.callbacks}
        before = self.bank.boundary.callbacks
        return {key: copied(state, before.get(key)) for key, state in states.items() if state}

    # --- details ------------------------------------------------------------------------------------------------------
    def _starts_in(self, index: int, callback: RoundCallback) -> bool:
        """Return True if a callback starts in this round, the first of the run or of a fork that adds the callback."""
        is_new = self._restored is not None and bool(callback.state) and callback.state_key not in self._restored
        return index == 0 or is_new

    def _call_objective(self, hook: str, round: Round) -> None:
        """Call a hook of the objective, which may not use global generators and may write only its own row sets."""
        objective = self.federation.objective
        with draws_by_name_only(round.index, objective, hook), guard_hook(self.bank, objective, hook):
            getattr(objective, hook)(round)

    def _new_round(self) -> Round:
        federation, index = self.federation, self.bank.boundary.round
        n, m = federation.num_nodes, federation.num_clients
        reachable = federation.topology.reachable(index)
        checks.check_topology(index, reachable, n)
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
            own=federation.own_training(index),
            diverged=torch.zeros(m, dtype=torch.bool),
        )

    def _settle_availability(self, round: Round) -> None:
        """Set the receivers (the active clients, or the servers) and the links over which they may receive.

        If a substitution replaces inactive senders, links from these are included; by an asynchronous clock, those from
        all clients that have published a model.
        """
        round.receivers = round.active.clone()
        if round.num_servers:
            round.receivers[: round.num_clients] = False
        senders = round.clients_only
        clock = self.federation.policy(Clock)
        waits = clock is None or not clock.is_asynchronous
        if waits and self.federation.policy(Substitution) is None:
            senders = senders & round.active
        round.available = round.reachable.between(round.receivers, senders)
        if clock is not None:
            round.available = clock.readable(round, round.available)

    def _quarantine(self, round: Round, result: Trained) -> None:
        diverged = round.jobs.owners[~result.finite]
        if not len(diverged):
            return
        names = ", ".join(map(str, diverged.tolist()))
        if self.module.on_divergence == "stop":
            raise UserError(
                f"{nth_round(round.index)}: training of client {names} diverged (NaN or infinity); "
                "lower model.optimizer.lr, set trainer.gradient_clip_val, or use --model.on_divergence quarantine"
            )
        round.diverged[diverged] = True
        round.active[diverged] = False
        round.losses[diverged] = float("nan")
        self._settle_availability(round)
        keeps_others = self.federation.policy(Substitution) is not None or self.federation.is_asynchronous
        senders = round.clients_only if keeps_others else round.active
        round.candidates = round.candidates.between(round.receivers, senders)
        clock = self.federation.policy(Clock)
        if clock is not None:
            round.candidates = clock.readable(round, round.candidates)
        self.module.client_warnings.divergence(
            diverged.tolist(),
            f"{nth_round(round.index)}: training of client {{}} diverged; excluded from this round "
            "(warned once per client; diverged.npz has every round)",
        )

    def _send(self, round: Round) -> None:
        """Let policies change what clients send; then let each set the size of its messages, in their order."""
        call_round_hook(self.trainer, "on_outgoing", round)
        outgoing = [policy for policy in self.trainer.policies() if isinstance(policy, Outgoing)]
        checks.check_sent(round, outgoing)
        for policy in outgoing:
            policy.size_messages(round)

    def _select(self, round: Round) -> None:
        selection, threshold = self.federation.policy(Selection), self.federation.policy(Threshold)
        call_round_hook(self.trainer, "on_compare", round)
        for field in ("similarity", "scores"):
            checks.check_field(round, field, float, (len(round.candidates),), selection, "as many as candidates")
        call_round_hook(self.trainer, "on_threshold", round)
        checks.check_field(round, "threshold", float, (round.num_nodes,), threshold)
        call_round_hook(self.trainer, "on_select", round)
        if not round.has("selected"):
            checks.refuse(round.index, selection, "selected nothing; write round.selected")
        checks.check_links(round.index, round.selected, round.num_nodes, selection, "selected")
        checks.check_reach(round, round.selected, selection, "selected")
        round.selected = round.selected.between(receivers=round.receivers)

    def _substitute(self, round: Round) -> None:
        round.substitute = round.selected.senders.clone()
        call_round_hook(self.trainer, "on_substitute", round)
        rows = round.num_nodes + round.num_clients * len(round.substitute_rows)
        checks.check_substitutes(round, rows, self.federation.policy(Substitution))
        selected, aggregation = round.selected, self.federation.require(Aggregation)
        round.log("neighbours", float(selected.count[round.receivers].double().mean()))
        include_self = round.receivers & torch.tensor(aggregation.include_self) & round.clients_only
        round.voters, round.votes = count_votes(
            selected, round.substitute, round.active, include_self, rows, round.receivers
        )

    def _weigh(self, round: Round) -> None:
        call_round_hook(self.trainer, "on_weigh", round)
        aggregation = self.federation.require(Aggregation)
        checks.check_weights(round, aggregation, aggregation.column_stochastic)
