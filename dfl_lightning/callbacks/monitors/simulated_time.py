"""The time that the run would take on devices of given speeds and bandwidths."""

from __future__ import annotations

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.callbacks.devices import Devices, SynchronousTime


class SimulatedTime(SynchronousTime, Monitor):
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
        self.devices = Devices("SimulatedTime", given, spread, seed, trace)
