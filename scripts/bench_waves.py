"""Measure asynchronous rounds: a training on a simulated clock in units of one in a synchronous round.

    python scripts/bench_waves.py
    python scripts/bench_waves.py --clients 100 --rounds 20 --spreads 0 0.5 1 --turns 5

Digits, an MLP with 64 units, Gossip(3) and Uniform. Runs take turns. Seconds are those of one thread on the processor,
from the end of the first round to that of the last.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

import torch
from benchmarks.rounds import quietly
from benchmarks.tables import Table, busy_note
from benchmarks.timing import Others, Ratio

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning import callbacks as cb
from dfl_lightning.data import Digits
from dfl_lightning.models import MLP


class Laps(cb.Monitor):
    """Processor seconds, trainings and waves after the first round.

    Attributes:
        seconds: from the end of the first round to that of the last.
        trainings: of all clients in that time.
        waves: calls that trained them.
    """

    def __init__(self) -> None:
        self.seconds, self.trainings, self.waves = 0.0, 0, 0
        self._started: float | None = None

    def on_round_end(self, round: Any) -> None:
        """Count a wave."""
        if self._started is not None:
            self.trainings += int(round.participants.sum())
            self.waves += 1

    def on_boundary(self, trainer: Any, module: Any) -> None:
        """Read the processor's clock."""
        now = time.process_time()
        self._started = now if self._started is None else self._started
        self.seconds = now - self._started


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what was asked for; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100, metavar="N", help="%(default)s")
    parser.add_argument("--samples", type=int, default=13, metavar="N", help="of a client (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="local epochs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="that count (%(default)s)")
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.0, 0.5, 1.0], metavar="S", help="of speeds")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="times that all is measured (%(default)s)")
    words = parser.parse_args(argv)
    torch.set_num_threads(1)
    clocks: dict[str, cb.Clock | None] = {"synchronous": None}
    clocks |= {f"spread {spread:g}": cb.Asynchronous(speed=100.0, spread=spread) for spread in words.spreads}
    found: dict[str, list[Laps]] = {name: [] for name in clocks}
    others = Others()
    for turn in range(words.turns):
        names = list(clocks)
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(measure(words, name))
    table = Table(
        f"{words.clients} clients, {words.samples} samples, {words.epochs} epochs: processor milliseconds",
        ["clock", "clients in a wave", "a training", "a wave", "training/synchronous", "wave/synchronous round"],
    )
    for name, laps in found.items():
        training = [1e3 * lap.seconds / lap.trainings for lap in laps]
        wave = [1e3 * lap.seconds / lap.waves for lap in laps]
        first = found["synchronous"]
        by_training = [t / (1e3 * lap.seconds / lap.trainings) for t, lap in zip(training, first, strict=True)]
        by_wave = [t / (1e3 * lap.seconds / lap.waves) for t, lap in zip(wave, first, strict=True)]
        width = statistics.median(lap.trainings / lap.waves for lap in laps)
        table.rows.append(
            [
                *(name, f"{width:.0f}", f"{statistics.median(training):.3g}", f"{statistics.median(wave):.3g}"),
                *(_shown(ratios) for ratios in (by_training, by_wave)),
            ]
        )
    table.notes = ["Medians over turns; ratios within a turn, with lowest and highest.", busy_note([others.share()])]
    print(table.markdown())
    return 0


def measure(words: argparse.Namespace, name: str) -> Laps:
    """Run one clock, `synchronous` or `spread S`, and return its laps."""
    laps = Laps()
    clock = [] if name == "synchronous" else [cb.Asynchronous(speed=100.0, spread=float(name.partition(" ")[2]))]
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = DFLTrainer(
            max_rounds=1 + words.rounds,
            callbacks=[*clock, cb.Gossip(k=3), cb.Uniform(), laps],
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_checkpointing=False,
            check_val_every_n_epoch=10 * words.rounds,
        )
        optimizer = functools.partial(torch.optim.SGD, lr=0.05)
        module = DFLModule(MLP(hidden=[64]), local_epochs=words.epochs, batch_size=16, optimizer=optimizer)
        trainer.fit(module, datamodule=Digits(num_clients=words.clients, samples_per_client=words.samples + 4))
    return laps


def _shown(ratios: Sequence[float]) -> str:
    ratio = Ratio(statistics.median(ratios), min(ratios), max(ratios))
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
