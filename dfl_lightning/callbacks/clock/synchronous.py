"""The clock of synchronous rounds: every round waits for its slowest client."""

from __future__ import annotations

from dfl_lightning.callbacks.base import Clock
from dfl_lightning.callbacks.devices import Devices, SynchronousTime


class Synchronous(SynchronousTime, Clock):
    """Rounds in which all clients wait for the slowest one; changes nothing but `simulated_seconds`.

        seconds of a round = max over clients i of
            samples_i * local epochs / speed_i + sum over messages of (bytes / min(down_i, up_j) + latency)

    The monitor `SimulatedTime` computes the same and describes the limits of this model. Given the same arguments,
    `Asynchronous` has the same devices.

    Args:
        speed: training samples per second; a number for all clients, or a list with one for each.
        up: bytes per second that a client can send; default: no limit.
        down: bytes per second that a client can receive; default: no limit.
        latency: seconds that a message waits; default: 0.
        spread: inequality of the clients: each number of each client is multiplied by exp(`spread` * z), with z drawn
            once from a standard normal distribution; 0 leaves the numbers as they are.
        seed: seed of these draws; default: the run's.
        trace: a CSV file with the numbers instead: a first line `client,speed,up,down,latency`, then a line per client.
    """

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
        self.devices = Devices("clock Synchronous", given, spread, seed, trace, needed=("speed",))
