"""The clock of clients that do not wait for each other."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Aggregation, Clock, Monitor, Selection, Substitution
from dfl_lightning.callbacks.clock.durations import LONGEST, refuse_endless
from dfl_lightning.callbacks.clock.pushes import Pushes
from dfl_lightning.callbacks.devices import Devices
from dfl_lightning.functional import next_wave, round_span, to_nanoseconds
from dfl_lightning.functional.waves import NANOSECONDS
from dfl_lightning.links import Links
from dfl_lightning.round.fields import PublishedModels
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

PUBLISHED, FRESH = "published", "fresh"
"""Row sets: the last model that each client sent, before the present wave and after it."""

MOST_TRAININGS = 10_000
"""Largest number of trainings of a client in a round of a given span; each may be a wave of its own."""


TIMES_A_ROUND = {"AFIND": 1.1, "Gossip Uniform": 1.3, "Gossip Pairwise": 1.4, "Gossip Buffered": 1.6}
"""Time of a wave of all clients divided by that of a synchronous round, as `scripts/bench_waves.py` measured it, by
selection, or by selection and aggregation."""


class Asynchronous(Clock):
    """Clients that train at their own speed and never wait for each other (asynchronous gossip).

        y_i = train(x_i), published when it is finished;  x_i = sum_j W_ij y_j, the last y_j that j has published

    When client i has finished a training, it fetches the last published models of the neighbours that its policies
    choose, waits until these have arrived, mixes them with its own, and starts again. A neighbour that has not yet
    published a model cannot be chosen. At one instant all clients that finish publish first, then they mix.

    A round is a span of simulated time; a client may finish several times in it, or not at all. Topology, schedules and
    evaluations follow the rounds; random draws follow each client's own count of trainings. If all clients take equally
    long and messages take no time, the run is the synchronous one, bit for bit.

    With `waits: false` clients push: one that has finished sends its model to all its out-neighbours, mixes the newest
    model of each in-neighbour that has arrived by then, and starts again at once. A message takes
    bytes / min(up of the sender, down of the receiver) and the larger of both latencies, and is charged when it is
    sent.

    This is so with aggregations that average trained models. `Pairwise` and `Buffered` mix models as they are when a
    client finishes instead, and describe their rule.

    The row sets of a client's published model and of those being sent need as much memory as two models for each
    client, and up to three more if clients push: models that have not reached all receivers.

    Args:
        speed: training samples per second; a number for all clients, or a list with one for each.
        up: bytes per second that a client can send; default: no limit.
        down: bytes per second that a client can receive; default: no limit.
        latency: seconds that a message waits; default: 0.
        spread: inequality of the clients: each number of each client is multiplied by exp(`spread` * z), with z drawn
            once from a standard normal distribution; 0 leaves the numbers as they are.
        seed: seed of these draws; default: the run's.
        trace: a CSV file with the numbers instead: a first line `client,speed,up,down,latency`, then a line per client.
        every: seconds of simulated time in a round; default: the harmonic mean of the clients' training times, in which
            a client trains once on average if messages take no time.
        waits: True if a client fetches models, and waits for them (pull); False if clients send theirs, and wait for
            none (push).
    """

    is_asynchronous = True
    state = ("finish", "cycle", "trainings", "published_at", "earlier_at")
    logs = ("simulated_seconds", "trainings", "staleness")

    def __init__(
        self,
        speed: float | list[float] | None = None,
        up: float | list[float] | None = None,
        down: float | list[float] | None = None,
        latency: float | list[float] | None = None,
        spread: float = 0.0,
        seed: int | None = None,
        trace: str | None = None,
        every: float | None = None,
        waits: bool = True,
    ) -> None:
        given = {"speed": speed, "up": up, "down": down, "latency": latency}
        self.devices = Devices("clock Asynchronous", given, spread, seed, trace, needed=("speed",))
        if every is not None and not 1 / NANOSECONDS <= every <= LONGEST / NANOSECONDS:
            raise UserError(
                f"clock.every={every:g}; it is a number of seconds, at least a nanosecond (1e-9) and at most 36 years "
                "(1.15e9)"
            )
        self.every, self.waits = every, waits
        self._pushes: Pushes | None = None  # None: clients fetch models
        self._costs = -1, torch.zeros(0, dtype=torch.long)  # a round, and what `_cost` returns for it
        self.finish = self.cycle = self.trainings = self.published_at = torch.zeros(0, dtype=torch.long)
        self.earlier_at = torch.zeros(0, 0, dtype=torch.long)

    def start(self, federation: Federation) -> None:
        """Set devices, the duration of each client's training, and the span of a round.

        Raises:
            UserError: a client has no training data or does not train; batches grow; there is a substitution or a
                second clock;
                there is a server, and an aggregation that waits for all clients; or clients push, and the aggregation
                mixes other models, the topology changes, or a message takes too long.
        """
        empty = torch.nonzero(federation.data.sizes("train") == 0).squeeze(1).tolist()
        if empty:
            raise UserError(f"clock Asynchronous: client {empty[0]} has no training data, so it would never finish")
        idle = [client for client, length in enumerate(federation.local.durations or ()) if length.is_empty]
        if idle:
            raise UserError(
                f"clock Asynchronous: client {idle[0]} does not train (model.per_client), so it would finish again "
                "and again in no time; give it 1 epoch or more"
            )
        if federation.local.batch_growth:
            raise UserError(
                "clock Asynchronous has no common round from which the batches of a training could follow; leave out "
                "model.batch_growth"
            )
        if federation.policy(Substitution) is not None:
            raise UserError(
                "clock Asynchronous mixes the last model of a client that dropped out; use --substitution null"
            )
        for policy in federation.policies:
            if isinstance(policy, Monitor) and "simulated_seconds" in policy.logs:
                raise UserError(
                    f"monitor {type(policy).__name__} is a second clock: clock Asynchronous logs "
                    "simulated_seconds itself; leave the monitor out"
                )
        aggregation = federation.require(Aggregation)
        self._current = aggregation.mixes_current_models
        if federation.num_servers and not self._current:
            raise UserError(
                f"clock Asynchronous: aggregation {type(aggregation).__name__} averages what all clients send to a "
                "server; use --aggregation Buffered, or a topology without servers"
            )
        m = federation.num_clients
        self.devices.start(federation)
        self._costs, self._pushes = (-1, self._costs[1]), None
        self._rows: tuple[str, ...] = (PUBLISHED,)
        cost = self._cost(federation, 0)
        if not self.waits:
            self._pushes = Pushes(federation, self.devices)
            self._rows = tuple(_name(place) for place in range(self._pushes.versions(cost)))
        self.span = round_span(cost) if self.every is None else round(self.every * NANOSECONDS)
        self._check_span(cost, federation.planned_rounds)
        self._upload = torch.zeros_like(cost)
        if federation.num_servers:
            up = Links.of(torch.full((m,), m), torch.arange(m), federation.num_nodes)
            seconds = self.devices.model_seconds(up, len(federation.layout.shared))
            refuse_endless(seconds, "sending", "raise up and down, or lower latency")
            self._upload = to_nanoseconds(seconds)
        self.finish = cost + self._upload  # a server's client has finished when its model has arrived
        self.row_sets = {} if self._current else dict.fromkeys(self._rows, "zeros")
        self.cycle, self.trainings = torch.zeros(m, dtype=torch.long), torch.zeros(m, dtype=torch.long)
        self.published_at, self.earlier_at = torch.full((m,), -1), torch.full((len(self._rows) - 1, m), -1)

    def describe(self, federation: Federation) -> str | None:
        """Describe the span of a round and its waves: their number and clients, if messages take no time, and cost."""
        cost = self._cost(federation, 0)
        rate = 1 / cost.double()
        together, waves = float(rate.sum() / rate.max()), max(1, round(self.span / int(cost.min())))
        names = [type(federation.require(kind)).__name__ for kind in (Selection, Aggregation)]
        times = TIMES_A_ROUND.get(names[0], TIMES_A_ROUND.get(" ".join(names)))
        said = (
            f"clock: a round is {self.span / NANOSECONDS:.3g} s of simulated time, of about {waves:,} "
            f"wave{'s' * (waves > 1)}; about {together:.0f} of {federation.num_clients} clients train together in one"
        )
        if self._pushes is not None:
            kept = len(self._rows)
            said += f"; clients push, and the last {kept} models of each are kept" if kept > 1 else "; clients push"
        elif times is not None:
            said += f"; with a small network, a wave of all clients took {times:g} times as long as a synchronous round"
        return said

    def _cost(self, federation: Federation, round: int) -> Tensor:
        """Return the duration of each client's training in a round, in nanoseconds, long [m]."""
        if self._costs[0] != round:
            seconds = self.devices.training_seconds(federation, round)
            refuse_endless(seconds, "a training", "raise its speed")
            self._costs = round, to_nanoseconds(seconds).clamp(min=1)
            if self._pushes is not None and self._pushes.versions(self._costs[1]) > len(self._rows):
                raise UserError(
                    f"{nth_round(round)}: clients train for a shorter time than before, and more of their models would "
                    "be under way than are kept; use phases of the same length in all rounds, or --clock.waits true"
                )
        return self._costs[1]

    def _check_span(self, cost: Tensor, rounds: int | None) -> None:
        """Raise if a round has too many trainings of a client, or if the run is too long to be counted in 64 bits."""
        client = int(cost.argmin())
        if self.every is not None and self.span > MOST_TRAININGS * int(cost[client]):
            raise UserError(
                f"clock.every={self.every:g}: client {client} could train {self.span // int(cost[client]):,} times in "
                f"a round, and at most {MOST_TRAININGS:,} are allowed; lower clock.every and raise trainer.max_rounds"
            )
        if rounds is not None and rounds * self.span > 2 * LONGEST:
            raise UserError(
                f"clock Asynchronous: {rounds:,} rounds of {self.span / NANOSECONDS:.3g} s are more than 73 years, and "
                "longer times are not counted; lower trainer.max_rounds or clock.every"
            )

    def on_clock(self, round: Round) -> None:
        """Find the clients of the next wave."""
        end = (round.index + 1) * self.span
        due = next_wave(self.finish, self._cost(round.federation, round.index), end)
        round.due = torch.cat([due, torch.ones(round.num_servers, dtype=torch.bool)])
        round.cycles, round.instants = self.cycle.clone(), self.finish.clone()
        if self._current:
            return
        instants = torch.cat([self.published_at[None], self.earlier_at])
        round.published = PublishedModels(self._rows, instants, None if self._pushes is None else self._pushes.travel)

    def has_more(self, round: Round) -> bool:
        """Return True if a client finishes once more before the end of the round."""
        return bool((self.finish <= (round.index + 1) * self.span).any())

    def readable(self, round: Round, links: Links) -> Links:
        """Return the links to clients that have published a model by the time that the receiver finishes.

        With an aggregation of current models, all clients have one, and a server gets those that are sent in the wave.
        """
        if self._current:
            return links.between(senders=round.active) if round.num_servers else links
        return round.receivable(links)

    def on_trained(self, round: Round) -> None:
        """Copy the models that clients send in this wave, since mixing overwrites them; charge those that they push."""
        if not self._current:
            round.bank.scratch(FRESH, of=PUBLISHED)
            round.bank.combine(lambda rows: rows, ["sent"], FRESH, self._senders(round), only_reads=True)
        if self._pushes is not None:
            self._pushes.charge(round, self._senders(round))

    def on_substitute(self, round: Round) -> None:
        """Compute the ages of the selected models."""
        if self._current:
            return
        receivers, senders = round.selected.receivers, round.selected.senders
        known = torch.cat([round.instants[None], self.published_at[None], self.earlier_at])
        when = known[round.versions(round.selected), senders]
        round.age = (round.instants[receivers] - when).double() / NANOSECONDS
        if len(senders):
            round.log("staleness", float(round.age.mean()))

    def on_mixed(self, round: Round) -> None:
        """Let the models of this wave be published, after others have read the former ones."""
        if not self._current and bool(round.participants.any()):
            for newer, older in reversed(list(pairwise(self._rows))):
                round.bank.combine(lambda rows: rows, [newer], older, self._senders(round), only_reads=True)
            round.bank.adopt(FRESH, PUBLISHED)

    def on_round_end(self, round: Round) -> None:
        """Let the clients of this wave start again after their messages have arrived, and log the time."""
        due, senders = round.due[: round.num_clients], self._senders(round)
        following = self.finish + self._cost(round.federation, round.index) + self._upload
        if self._pushes is None:
            following = following + self._waiting(round)
        self.finish = torch.where(due, following, self.finish)
        self.cycle = self.cycle + due
        self.trainings, self.published_at = self.trainings.clone(), self.published_at.clone()
        self.trainings[senders] += 1
        known = torch.cat([self.published_at[None], self.earlier_at])
        self.earlier_at = self.earlier_at.clone()
        self.earlier_at[:, senders] = known[:-1, senders]
        self.published_at[senders] = round.instants[senders]
        round.log("simulated_seconds", (round.index + 1) * self.span / NANOSECONDS)
        round.log("trainings", float(self.trainings.double().mean()))

    def _waiting(self, round: Round) -> Tensor:
        """Return the time that each client waits for the messages of this wave, in nanoseconds, long [m]."""
        clients = round.active[: round.num_clients]
        links = round.federation.require(Aggregation).awaited(round) if clients.any() else None
        if links is None:
            messages = self.devices.message_seconds(round)
        else:
            messages = self.devices.model_seconds(links, len(round.bank.layout.shared))
        refuse_endless(messages, "receiving", "raise up and down, or lower latency")
        return to_nanoseconds(messages)

    def _senders(self, round: Round) -> Tensor:
        """Return the clients that have finished a training in this wave, long [k]."""
        return torch.nonzero(round.participants).squeeze(1)


def _name(place: int) -> str:
    """Return the row set of the clients' last models (place 0), or of those before (1, 2 and so on)."""
    return PUBLISHED if place == 0 else f"{PUBLISHED}_{place + 1}"
