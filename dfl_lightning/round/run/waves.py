"""The waves of an asynchronous round: what is kept of one that has ended, and the numbers of the whole round."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.round.fields import WaveRecord
from dfl_lightning.round.record import Round

__all__ = ["numbers_of_round", "record_wave"]

LAST = ("simulated_seconds", "trainings")
"""Logged numbers that count from the start of the run, so that the last wave has that of the round."""


def record_wave(round: Round) -> WaveRecord:
    """Return what is kept of the round's present wave."""
    losses = round.losses[~round.losses.isnan()] if round.has("losses") else None
    return WaveRecord(
        dict(round.metrics),
        round.ledger.costs(round.num_clients, len(round.bank.layout.shared)),
        (0.0, 0) if losses is None else (float(losses.sum()), len(losses)),
        int(round.active[: round.num_clients].sum()),
        int(round.diverged.sum()),
    )


def numbers_of_round(waves: Sequence[WaveRecord]) -> dict[str, float]:
    """Combine the numbers of a round's waves into its row of `metrics.csv`.

    Costs and the number of active clients are summed, and `train_loss` is the mean over all trainings. Other logged
    numbers are means over waves, weighted by their clients; those that count from the start of the run are the last.

    Args:
        waves: the waves in their order, two or more.

    Examples:
        >>> first = WaveRecord({"active": 3.0, "neighbours": 2.0}, {"bytes_received": 8.0}, (6.0, 3), 3, 0)
        >>> second = WaveRecord({"active": 1.0, "neighbours": 1.0}, {"bytes_received": 4.0}, (1.0, 1), 1, 0)
        >>> numbers_of_round([first, second])
        {'active': 4.0, 'neighbours': 1.75, 'bytes_received': 12.0, 'train_loss': 1.75}
    """
    numbers: dict[str, float] = {}
    for name in dict.fromkeys(name for wave in waves for name in wave.metrics):
        logged = [(wave.metrics[name], wave.clients) for wave in waves if name in wave.metrics]
        clients = sum(count for _, count in logged)
        if name == "active":
            numbers[name] = sum(value for value, _ in logged)
        elif name in LAST or not clients:
            numbers[name] = logged[-1][0]
        else:
            numbers[name] = sum(value * count for value, count in logged) / clients
    for name in dict.fromkeys(name for wave in waves for name in wave.costs):
        numbers[name] = sum(wave.costs.get(name, 0.0) for wave in waves)
    trainings = sum(count for _, count in (wave.losses for wave in waves))
    if trainings:
        numbers["train_loss"] = sum(total for total, _ in (wave.losses for wave in waves)) / trainings
    diverged = sum(wave.diverged for wave in waves)
    return {**numbers, "diverged": float(diverged)} if diverged else numbers
