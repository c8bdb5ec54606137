"""The time that the run would take on devices of given speeds and bandwidths."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.functional import transfer_seconds
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.randomness.random_streams import stream

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

NUMBERS = ("speed", "up", "down", "latency")
"""Numbers of each client's device, in the order of a trace's columns."""
HEAD = ("client", *NUMBERS)
"""Columns in the first line of a trace."""


class SimulatedTime(Monitor):
    """Seconds of computing and transfer that the run would have taken so far, as `simulated_seconds`.

        seconds of a round = max over clients i of
            samples_i * local epochs / speed_i + sum over messages of (bytes / min(down_i, up_j) + latency)

    Rounds are synchronous. A client trains first, and then receives its messages, those that `bytes_received` counts,
    one after the other. The latency of a message from j to i is the larger one of the two clients. A client that has
    dropped out takes no time; a client whose training diverged takes the time of its training. A server has no limits
    of its own: the time of what it receives is added to the client that sends it, and clients send at the same time.

    Limits of the model: mixing, comparing and evaluating models take no time, and neither does fine-tuning. A sender
    serves all its receivers at once, each at the full rate. A receiver does not wait for the training of a slow sender.
    Speeds do not change over the run.

    Args:
        speed: training samples per second; a number for all clients, or a list with one for each.
        up: bytes per second that a client can send; a number or a list.
        down: bytes per second that a client can receive; a number or a list.
        latency: seconds that a message waits; a number or a list.
        spread: inequality of the clients: each number of each client is multiplied by exp(`spread` * z), with z drawn
            once from a standard normal distribution; 0 leaves the numbers as they are.
        seed: seed of these draws; default: the run's.
        trace: a CSV file with the numbers instead: a first line `client,speed,up,down,latency`, then a line per client.
    """

    state = ("seconds",)
    logs = ("simulated_seconds",)

    def __init__(
        self,
        speed: float | list[float] | None = None,
        up: float | list[float] | None = None,
        down: float | list[float] | None = None,
        latency: float | list[float] | None = None,
        spread: float = 0.0,
        seed: int | None = None,
        trace: str | None = None,
    ) -> None:
        given = {"speed": speed, "up": up, "down": down, "latency": latency}
        if not 0 <= spread < math.inf:
            raise UserError(f"SimulatedTime: spread={spread}; it is a number, 0 or more")
        if trace is not None:
            also = [name for name, value in given.items() if value is not None] + ["spread"] * (spread > 0)
            if also:
                raise UserError(f"SimulatedTime: the trace {trace} has all numbers of the clients; leave out {also[0]}")
        else:
            missing = [name for name in ("speed", "up", "down") if given[name] is None]
            if missing:
                raise UserError(
                    f"SimulatedTime: {missing[0]} is not given; give speed (samples a second), up and down (bytes a "
                    "second), or a trace"
                )
        self.spread, self.seed, self.trace = spread, seed, trace
        self.given = {name: _checked(name, value) for name, value in given.items() if value is not None}
        self.given.setdefault("latency", [0.0])
        self._read = None if trace is None else read_device_trace(trace)
        self.seconds = 0.0

    def start(self, federation: Federation) -> None:
        """Set `devices`, each client's numbers by name, float64 [m], from the trace or by drawing them.

        Raises:
            UserError: a list or the trace does not have a value for each client.
        """
        m, self.seconds = federation.num_clients, 0.0
        if self._read is not None:
            absent = [client for client in range(m) if client not in self._read]
            unknown = [client for client in self._read if client >= m]
            if absent or unknown:
                what = f"has no line for client {absent[0]}" if absent else f"has a line for client {unknown[0]}"
                raise UserError(f"{self.trace}: {what}, but data has {m} clients; give one line for each, from 0 on")
            rows = torch.tensor([self._read[client] for client in range(m)], dtype=torch.float64)
            self.devices = dict(zip(NUMBERS, rows.T, strict=True))
        else:
            seed = federation.seed if self.seed is None else self.seed
            self.devices = {name: self._drawn(name, values, m, seed) for name, values in self.given.items()}
        self._samples = federation.data.sizes("train")

    def _drawn(self, name: str, values: list[float], m: int, seed: int) -> Tensor:
        if len(values) not in (1, m):
            raise UserError(
                f"SimulatedTime: {name} lists {len(values)} numbers, but data has {m} clients; give one a client, or "
                "one number for all"
            )
        middle = torch.tensor(values, dtype=torch.float64).expand(m)
        if not self.spread:
            return middle
        normal = torch.randn(m, generator=stream(seed, f"simulated time, {name}"), dtype=torch.float64)
        return middle * torch.exp(self.spread * normal)

    def on_round_end(self, round: Round) -> None:
        """Add the seconds of the slowest client to the total, and log it."""
        devices = self.devices
        sent = round.ledger.by_link(len(round.bank.layout.shared))
        seconds = transfer_seconds(
            sent.links.receivers,
            sent.links.senders,
            sent.models + sent.parts,
            sent.bytes,
            *(devices[name] for name in ("up", "down", "latency")),
        )
        trained = round.jobs.owners
        batch_size = round.federation.local.batch_size
        for phase in round.phases:
            each = [phase.duration.samples(size, batch_size) for size in self._samples[trained].tolist()]
            seconds[trained] += torch.tensor(each, dtype=torch.float64) / devices["speed"][trained]
        self.seconds += float(seconds.max())
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


def _checked(name: str, value: float | list[float]) -> list[float]:
    """Convert a number or a list to a list of checked numbers."""
    values = [float(number) for number in value] if isinstance(value, list) else [float(value)]
    for number in values:
        _check("SimulatedTime: ", name, number)
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
