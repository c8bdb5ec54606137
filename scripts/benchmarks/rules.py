"""Local rules of the papers: each in both engines, and how much longer than FedAvg's a batch takes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from benchmarks.federations import LEARNING_RATE, OPTIMIZER, Setting
from benchmarks.rounds import quietly
from benchmarks.tables import Table, busy_note, microseconds, times
from benchmarks.timing import Candidate, Machine, alternate
from dfl_lightning import DFLModule, DFLTrainer, objectives
from dfl_lightning.callbacks import Gossip, Uniform
from dfl_lightning.data import FederatedData, Source
from dfl_lightning.protocol import RoundProtocol
from dfl_lightning.round.objective import Objective

RULES: dict[str, Callable[[], Objective]] = {
    "FedAvg": objectives.Plain,
    "FedProx": objectives.FedProx,
    "Ditto": objectives.Ditto,
    "APFL": objectives.APFL,
    "Per-FedAvg, first order": functools.partial(objectives.PerFedAvg, order="first"),
    "Per-FedAvg, difference": functools.partial(objectives.PerFedAvg, order="difference"),
    "pFedGraph": objectives.PFedGraph,
    "Dis-PFL": objectives.DisPFL,
}
ENGINES = ("stacked", "loop")


class Noise(FederatedData):
    """Noise instead of images.

    Args:
        shape: of an image.
        images: of each client.
        clients: their number.
    """

    def __init__(self, shape: Sequence[int], images: int, clients: int) -> None:
        super().__init__(num_clients=clients, test_fraction=0.0)
        self._shape, self._count = tuple(shape), clients * images

    def load(self) -> Source:
        """Draw it, always the same."""
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (self._count, *self._shape), generator=generator, dtype=torch.uint8)
        labels = torch.randint(0, 10, (self._count,), generator=generator)
        return Source("Noise", images, labels, 10, scale=1 / 255)


class LocalWork:
    """The local training of a round, again and again: one epoch of every client.

    Args:
        setting: network, clients, samples, batch size.
        rule: the objective.
        engine: `stacked` or `loop`.
        machine: its device.
    """

    def __init__(self, setting: Setting, rule: Objective, engine: str, machine: Machine) -> None:
        with tempfile.TemporaryDirectory() as folder, quietly():
            trainer = DFLTrainer(
                max_rounds=1000,
                engine=engine,
                callbacks=[Gossip(k=0), Uniform()],
                accelerator="gpu" if machine.device.startswith("cuda") else "cpu",
                default_root_dir=folder,
                enable_progress_bar=False,
            )
            self._module = DFLModule(
                setting.network(),
                local_epochs=1,
                batch_size=setting.batch_size,
                optimizer=functools.partial(OPTIMIZER, lr=LEARNING_RATE),
                objective=rule,
            )
            trainer.prepare(self._module, Noise(setting.shape, setting.samples, setting.clients))
        self._protocol = RoundProtocol(trainer)
        self._samples = int(self._module.federation.data.sizes("train").sum())

    def prepare(self) -> None:
        """Begin the next round."""
        self._module.bank.abandon()
        self._round = self._protocol.begin()

    def run(self) -> int:
        """Train; returns the samples."""
        self._protocol.train(self._round)
        return self._samples


def rules_table(settings: Sequence[Setting], machines: Sequence[Machine], repeats: int | None) -> Table:
    """Measure local training under each rule, in microseconds for a sample."""
    columns = ["network", "clients x samples", "threads, clock", "rule", *ENGINES, "loop/stacked", "stacked/FedAvg"]
    table = Table("Local rules: microseconds for a sample of the round's local training", columns)
    others: list[float | None] = []
    for setting in settings:
        for machine in machines:
            work = {
                f"{name}, {engine}": LocalWork(setting, rule(), engine, machine)
                for name, rule in RULES.items()
                for engine in ENGINES
            }
            turns = {name: Candidate(done.run, done.prepare) for name, done in work.items()}
            found = alternate(turns, repeats or 3, machine)
            others.append(found.others)
            for name in RULES:
                stacked, loop = (f"{name}, {engine}" for engine in ENGINES)
                table.rows.append(
                    [
                        setting.name,
                        setting.describe(),
                        f"{machine.threads}, {machine.clock}",
                        name,
                        *(microseconds(found.median(n), found.spread(n)) for n in (stacked, loop)),
                        times(found.ratio(loop, stacked)),
                        times(found.ratio(stacked, "FedAvg, stacked")),
                    ]
                )
            about = {"network": setting.name, "clients": setting.clients, "samples": setting.samples}
            table.numbers.append({**about, "machine": asdict(machine), "seconds_per_sample": found.seconds})
    table.notes = [
        "A sample counts once, whatever a rule does with it: Per-FedAvg computes one gradient of each batch, of first "
        "order on two batches a step, and FedAvg one step a batch.",
        busy_note(others),
    ]
    return table
