"""Devices of given speeds and bandwidths, and the seconds that a round takes on them."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.engines.local_work import Phase
from dfl_lightning.functional import link_seconds, transfer_seconds
from dfl_lightning.links import Links
from dfl_lightning.round.ledger import BYTES
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.randomness.random_streams import stream

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

__all__ = ["Devices", "SynchronousTime", "read_device_trace"]

NUMBERS = ("speed", "up", "down", "latency")
"""Numbers of each client's device, in the order of a trace's columns."""
HEAD = ("client", *NUMBERS)
"""Columns in the first line of a trace."""


class Devices:
    """Numbers of each client's device: given, drawn, or read from a trace.

    Args:
        who: name of the class that has the devices, for messages.
        given: numbers by name, for all clients or in a list with one for each; None: not given. `speed` is in training
            samples a second, `up` and `down` are in bytes a second, `latency` is in seconds a message.
        spread: inequality of the clients: each number of each client is multiplied by exp(`spread` * z), with z drawn
            once from a standard normal distribution.
        seed: seed of these draws; None: the run's.
        trace: a CSV file with the numbers instead.
        needed: names of the numbers that must be given without a trace; the others are free of limits.

    Attributes:
        numbers: numbers by name, float64 [m], after `start`.

    Raises:
        UserError: a number is missing or out of range, is given in addition to a trace, or the trace cannot be read.
    """

    def __init__(
        self,
        who: str,
        given: dict[str, float | list[float] | None],
        spread: float,
        seed: int | None,
        trace: str | None,
        needed: tuple[str, ...] = ("speed", "up", "down"),
    ) -> None:
        if not 0 <= spread < math.inf:
            raise UserError(f"{who}: spread={spread}; it is a number, 0 or more")
        if trace is not None:
            also = [name for name, value in given.items() if value is not None] + ["spread"] * (spread > 0)
            if also:
                raise UserError(f"{who}: the trace {trace} has all numbers of the clients; leave out {also[0]}")
        else:
            missing = [name for name in needed if given[name] is None]
            if missing:
                *others, last = ("speed (samples a second)", "up and down (bytes a second)")[: len(needed)]
                wanted = ", ".join([*others, last])
                raise UserError(f"{who}: {missing[0]} is not given; give {wanted}, or a trace")
        self._who, self._spread, self._seed, self._trace = who, spread, seed, trace
        self._given = {name: _checked(who, name, value) for name, value in given.items() if value is not None}
        for name, default in zip(NUMBERS, (math.inf, math.inf, math.inf, 0.0), strict=True):
            self._given.setdefault(name, [default])
        self._read = None if trace is None else read_device_trace(trace)
        self.numbers: dict[str, Tensor] = {}

    __hash__ = None  # type: ignore[assignment]  # numbers change at the start of a run

    def __eq__(self, other: object) -> bool:
        """Return True if the clients have equal numbers."""
        if not isinstance(other, Devices):
            return NotImplemented
        return all(torch.equal(values, other.numbers[name]) for name, values in self.numbers.items())

    def start(self, federation: Federation) -> None:
        """Set the numbers of each client, from the trace or by drawing them.

        Args:
            federation: the run's data, topology, network and policies.

        Raises:
            UserError: a list or the trace does not have a value for each client.
        """
        m = federation.num_clients
        self._samples = federation.data.sizes("train")
        if self._read is None:
            seed = federation.seed if self._seed is None else self._seed
            self.numbers = {name: self._drawn(name, values, m, seed) for name, values in self._given.items()}
            return
        absent = [client for client in range(m) if client not in self._read]
        unknown = [client for client in self._read if client >= m]
        if absent or unknown:
            what = f"has no line for client {absent[0]}" if absent else f"has a line for client {unknown[0]}"
            raise UserError(f"{self._trace}: {what}, but data has {m} clients; give one line for each, from 0 on")
        rows = torch.tensor([self._read[client] for client in range(m)], dtype=torch.float64)
        self.numbers = dict(zip(NUMBERS, rows.T, strict=True))

    def _drawn(self, name: str, values: list[float], m: int, seed: int) -> Tensor:
        if len(values) not in (1, m):
            raise UserError(
                f"{self._who}: {name} lists {len(values)} numbers, but data has {m} clients; give one a client, or "
                "one number for all"
            )
        middle = torch.tensor(values, dtype=torch.float64).expand(m)
        if not self._spread:
            return middle
        normal = torch.randn(m, generator=stream(seed, f"simulated time, {name}"), dtype=torch.float64)
        return middle * torch.exp(self._spread * normal)

    def training_seconds(self, federation: Federation, round: int) -> Tensor:
        """Compute the seconds of each client's local training in a round, float64 [m].

        Args:
            federation: the run's data, topology, network and policies.
            round: 0-based; the phases of training may differ from round to round.
        """
        own, common = federation.own_training(round), federation.phases(round)
        phases = [common if own is None else own.phases_of(client, common) for client in range(len(self._samples))]
        clients, seconds = torch.arange(len(self._samples)), torch.zeros(len(self._samples), dtype=torch.float64)
        return self._add_phases(seconds, clients, phases, federation.local.batch_size_in(round))

    def _add_phases(
        self, seconds: Tensor, clients: Tensor, phases: Sequence[tuple[Phase, ...]], batch_size: int
    ) -> Tensor:
        """Add the seconds of the clients' phases, one after the other, to `seconds`, float64 [m]."""
        sizes = self._samples[clients].tolist()
        for place in range(max(map(len, phases), default=0)):
            each = [
                some[place].duration.samples(size, batch_size) if place < len(some) else 0
                for some, size in zip(phases, sizes, strict=True)
            ]
            seconds[clients] += torch.tensor(each, dtype=torch.float64) / self.numbers["speed"][clients]
        return seconds

    def message_seconds(self, round: Round) -> Tensor:
        """Compute the seconds that each client spends on its messages in a round, float64 [m].

        Args:
            round: the round after its mixing, whose ledger has all messages.
        """
        sent = round.ledger.by_link(len(round.bank.layout.shared))
        return self._transfer_seconds(sent.links, sent.models + sent.parts, sent.bytes)

    def model_seconds(self, links: Links, numbers: int) -> Tensor:
        """Compute the seconds that each client spends on one whole model over each of these links, float64 [m].

        Args:
            links: links between nodes; the time of an upload to a server is added to its sender.
            numbers: number of shared parameters of a model.
        """
        one = torch.ones(len(links), dtype=torch.long)
        return self._transfer_seconds(links, one, BYTES * numbers * one)

    def link_seconds(self, receivers: Tensor, senders: Tensor, size: Tensor) -> Tensor:
        """Compute the seconds in which one message arrives over each link, float64 [e].

        Args:
            receivers: long [e].
            senders: long [e].
            size: bytes of each message, long [e].
        """
        limits = (self.numbers[name] for name in ("up", "down", "latency"))
        return link_seconds(receivers, senders, torch.ones_like(size), size, *limits)

    def _transfer_seconds(self, links: Links, messages: Tensor, size: Tensor) -> Tensor:
        limits = (self.numbers[name] for name in ("up", "down", "latency"))
        return transfer_seconds(links.receivers, links.senders, messages, size, *limits)

    def round_seconds(self, round: Round) -> float:
        """Compute the seconds of the slowest client in a synchronous round: its training and then its messages.

        Args:
            round: the round after its mixing, whose ledger has all messages.
        """
        seconds, trained = self.message_seconds(round), round.jobs.owners
        phases = [round.phases_of(client) for client in trained.tolist()]
        self._add_phases(seconds, trained, phases, round.batch_size)
        return float(seconds.max())


class SynchronousTime:
    """The time of rounds that wait for their slowest client, for a monitor or a clock with `devices`.

    Attributes:
        devices: each client's device.
        seconds: from the start of the run to the end of the last round.
    """

    state: tuple[str, ...] = ("seconds",)
    logs: tuple[str, ...] = ("simulated_seconds",)
    devices: Devices
    seconds: float = 0.0

    def start(self, federation: Federation) -> None:
        """Set the numbers of each client's device, and the time to 0."""
        self.devices.start(federation)
        self.seconds = 0.0

    def on_round_end(self, round: Round) -> None:
        """Add the seconds of the slowest client to the total, and log it."""
        self.seconds += self.devices.round_seconds(round)
        round.log("simulated_seconds", self.seconds)


def read_device_trace(file: str) -> dict[int, list[float]]:
    """Read the numbers of each client from a trace, in the order of `NUMBERS`.

    Raises:
        UserError: the file does not exist, its first line differs from `HEAD`, a client occurs twice, or a number is
            invalid.
    """
    try:
        lines = list(csv.reader(Path(file).read_text(encoding="utf-8").splitlines()))
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"{file}: the trace of devices cannot be read ({reason(error)})") from error
    if not lines or tuple(word.strip() for word in lines[0]) != HEAD:
        raise UserError(f"{file}: the first line of a trace of devices is {','.join(HEAD)}")
    devices: dict[int, list[float]] = {}
    for number, line in enumerate(lines[1:], 2):
        if not line:
            continue
        try:
            client, values = int(line[0]), [float(word) for word in line[1:]]
        except ValueError:
            client, values = -1, []
        if client < 0 or len(values) != len(NUMBERS):
            raise UserError(
                f"{file}, line {number}: a line is a client's number, counted from 0, and {len(NUMBERS)} numbers"
            )
        if client in devices:
            raise UserError(f"{file}, line {number}: client {client} has a line already")
        for name, value in zip(NUMBERS, values, strict=True):
            _check(f"{file}, line {number}: ", name, value)
        devices[client] = values
    return devices


def _checked(who: str, name: str, value: float | list[float]) -> list[float]:
    """Convert a number or a list to a list of checked numbers."""
    values = [float(number) for number in value] if isinstance(value, list) else [float(value)]
    for number in values:
        _check(f"{who}: ", name, number)
    return values


def _check(where: str, name: str, value: float) -> None:
    """Require a finite latency of 0 or more, and a speed or bandwidth above 0, which may be infinite.

    Raises:
        UserError: the value is out of range; the message begins with `where`.
    """
    if name == "latency":
        if not 0 <= value < math.inf:
            raise UserError(f"{where}latency={value:g}; it is a number of seconds, 0 or more")
    elif not value > 0:
        unit = "samples" if name == "speed" else "bytes"
        raise UserError(f"{where}{name}={value:g}; it is a number of {unit} a second, more than 0")
