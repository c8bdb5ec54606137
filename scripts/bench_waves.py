"""Measure asynchronous rounds: a training on a simulated clock in units of one in a synchronous round.

    python scripts/bench_waves.py
    python scripts/bench_waves.py --clients 100 --rounds 20 --spreads 0 0.5 1 --turns 5
    python scripts/bench_waves.py --methods pairwise buffered afind --spreads 0.5
    python scripts/bench_waves.py --network lenet --samples 32 --rounds 3 --spreads 0.5

Digits and an MLP with 64 units, or images of 32 x 32 pixels and LeNet. The methods are `uniform` (Gossip(3) and
Uniform), `afind` (AFIND+ in a small world), `pairwise` (AD-PSGD) and `buffered` (FedBuff). The synchronous run that a
method is compared with has the same policies, for `pairwise` Gossip(1) and Uniform, and for `buffered` a server that
averages. Runs take turns. Seconds are those of one thread on the processor, from the end of the first round to that of
the last.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from benchmarks.rounds import ClusteredImages, quietly
from benchmarks.tables import Table, busy_note
from benchmarks.timing import Others, Ratio

from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning import callbacks as cb
from dfl_lightning.data import Digits
from dfl_lightning.models import MLP, LeNet

METHODS: dict[str, tuple[Any, Callable[[bool], list[Any]]]] = {
    "uniform": ("complete", lambda waits: [cb.Gossip(k=3), cb.Uniform()]),
    "afind": ("small_world", lambda waits: [cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()]),
    "pairwise": ("complete", lambda waits: [cb.Gossip(k=1), cb.Uniform() if waits else cb.Pairwise()]),
    "buffered": ("server", lambda waits: [cb.Gossip(k="all"), cb.Uniform() if waits else cb.Buffered(k=10)]),
}
"""Topology of each method, and its policies on a clock (False) or in synchronous rounds (True)."""

NETWORKS: dict[str, Callable[[argparse.Namespace], tuple[Any, Any]]] = {
    "mlp": lambda w: (MLP(hidden=[64]), Digits(num_clients=w.clients, samples_per_client=w.samples + 4)),
    "lenet": lambda w: (LeNet(), ClusteredImages(-(-5 * w.samples // 4), num_clients=w.clients)),
}
"""Each network and its data; a part of the data is held out."""


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
    parser.add_argument("--network", default="mlp", choices=NETWORKS, help="%(default)s")
    parser.add_argument("--samples", type=int, default=13, metavar="N", help="of a client (%(default)s)")
    parser.add_argument("--epochs", type=int, default=1, metavar="N", help="local epochs (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, metavar="N", help="that count (%(default)s)")
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.0, 0.5, 1.0], metavar="S", help="of speeds")
    parser.add_argument("--methods", nargs="+", default=["uniform"], choices=METHODS, help="%(default)s")
    parser.add_argument("--turns", type=int, default=5, metavar="N", help="times that all is measured (%(default)s)")
    words = parser.parse_args(argv)
    torch.set_num_threads(1)
    kinds = ["synchronous", *(f"spread {spread:g}" for spread in words.spreads)]
    names = [f"{method}, {kind}" for method in words.methods for kind in kinds]
    found: dict[str, list[Laps]] = {name: [] for name in names}
    others = Others()
    for turn in range(words.turns):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(measure(words, name))
    table = Table(
        f"{words.clients} clients, {words.network}, {words.samples} samples, {words.epochs} epochs: milliseconds",
        [
            "method and clock",
            "clients in a wave",
            "a training",
            "a wave",
            "training/synchronous",
            "wave/synchronous round",
        ],
    )
    for name, laps in found.items():
        training = [1e3 * lap.seconds / lap.trainings for lap in laps]
        wave = [1e3 * lap.seconds / lap.waves for lap in laps]
        first = found[f"{name.partition(', ')[0]}, synchronous"]
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
    """Run a method on one clock, `METHOD, synchronous` or `METHOD, spread S`, and return its laps."""
    laps = Laps()
    method, _, kind = name.partition(", ")
    waits = kind == "synchronous"
    clock = [] if waits else [cb.Asynchronous(speed=100.0, spread=float(kind.partition(" ")[2]))]
    topology, policies = METHODS[method]
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = DFLTrainer(
            max_rounds=1 + words.rounds,
            topology=topology,
            callbacks=[*clock, *policies(waits), laps],
            accelerator="cpu",
            default_root_dir=folder,
            enable_progress_bar=False,
            enable_checkpointing=False,
            check_val_every_n_epoch=10 * words.rounds,
        )
        optimizer = functools.partial(torch.optim.SGD, lr=0.05)
        network, data = NETWORKS[words.network](words)
        module = DFLModule(network, local_epochs=words.epochs, batch_size=16, optimizer=optimizer)
        trainer.fit(module, datamodule=data)
    return laps


def _shown(ratios: Sequence[float]) -> str:
    ratio = Ratio(statistics.median(ratios), min(ratios), max(ratios))
    return f"{ratio.median:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


if __name__ == "__main__":
    sys.exit(main())
