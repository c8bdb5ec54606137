"""Whole rounds of `trainer.fit`: what Lightning and the round loop add to the four verbs, and every shipped system."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from benchmarks.tables import Table, busy_note
from benchmarks.timing import Others
from dfl_lightning import DFLModule, DFLTrainer
from dfl_lightning.callbacks import Gossip, Monitor, Uniform
from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, read, users_mistake
from dfl_lightning.data import FederatedData, Source
from dfl_lightning.models import LeNet
from dfl_lightning.utils.lightning_warnings import quiet_lightning

VERBS = ("train", "evaluate", "compare", "mix")
OTHER_VERBS = {"gradients": "train", "distances_in_groups": "compare"}
"""Further verbs, and those that their seconds are counted with."""

ENGINES = ("stacked", "loop")


class ClusteredImages(FederatedData):
    """Noise around a prototype of each class, [3, 32, 32]: data as large as CIFAR-10's, from nowhere.

    Args:
        images_per_client: training and held-out images of each client, on average.
        **kwargs: everything else of `FederatedData`.
    """

    def __init__(self, images_per_client: int = 100, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.images_per_client = images_per_client

    def load(self) -> Source:
        """Draw them, always the same."""
        generator = torch.Generator().manual_seed(0)
        count = self.num_clients * self.images_per_client
        labels = torch.randint(0, 10, (count,), generator=generator)
        prototypes = torch.randint(0, 128, (10, 3, 32, 32), generator=generator, dtype=torch.uint8)
        images = torch.randint(0, 128, (count, 3, 32, 32), generator=generator, dtype=torch.uint8)
        for some, classes in zip(images.split(1000), labels.split(1000), strict=True):
            some += prototypes[classes]
        return Source("ClusteredImages", images, labels, 10, scale=1 / 255)


class RoundClock(Monitor):
    """Times whole rounds, from one boundary to the next, and the four verbs of engine and bank in each.

    `trainer.phase_seconds` is kept in addition: it times the hooks around the verbs, but not the losses of others'
    models that some policies ask for when they weigh.

    Args:
        now: seconds; `time.process_time` counts those on the processor.

    Attributes:
        rounds: of each round seconds by verb, `wall`, and by `phase ...`.
    """

    def __init__(self, now: Callable[[], float] = time.perf_counter) -> None:
        self._now = now
        self.rounds: list[dict[str, float]] = []

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start the clock and put stop watches around the verbs."""
        self._verbs = dict.fromkeys(VERBS, 0.0)
        self._last = self._now(), dict(self._verbs), dict(trainer.phase_seconds)
        for name, verb in (*((verb, verb) for verb in VERBS), *OTHER_VERBS.items()):
            doer = pl_module.engine if hasattr(pl_module.engine, name) else pl_module.bank
            setattr(doer, name, self._timed(getattr(doer, name), verb))

    def on_boundary(self, trainer: Any, module: Any) -> None:
        """Note the round that has ended; on a GPU, wait for what is under way there."""
        _wait_for_gpu()
        now = self._now(), dict(self._verbs), dict(trainer.phase_seconds)
        (started, verbs, phases), self._last = self._last, now
        spent = {verb: seconds - verbs[verb] for verb, seconds in now[1].items()}
        spent |= {f"phase {name}": seconds - phases.get(name, 0.0) for name, seconds in now[2].items()}
        self.rounds.append({"wall": now[0] - started, **spent})

    def _timed(self, method: Callable[..., Any], verb: str) -> Callable[..., Any]:
        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            _wait_for_gpu()
            start = self._now()
            result = method(*args, **kwargs)
            _wait_for_gpu()
            self._verbs[verb] += self._now() - start
            return result

        return timed

    def medians(self) -> dict[str, float]:
        """Compute medians over all rounds but the first, which warms up; `rest` is the time outside the verbs."""
        counted = self.rounds[1:]
        for spent in counted:
            spent["rest"] = spent["wall"] - sum(spent[verb] for verb in VERBS)
        return {name: statistics.median(spent[name] for spent in counted) for name in counted[0]}


def lightning_table(clients: int, samples: int, rounds: int, device: str) -> Table:
    """Measure the rest of a round without the four verbs: Lightning, the round loop, policies and the run folder."""
    columns = ["network", "clients x samples", "round", *VERBS, "rest", "rest/round"]
    table = Table("Rounds of trainer.fit, Gossip(10): milliseconds", columns)
    others = Others()
    clock = RoundClock()
    with tempfile.TemporaryDirectory() as folder, quietly():
        trainer = DFLTrainer(
            max_rounds=1 + rounds,
            callbacks=[Gossip(k=10), Uniform(), clock],
            accelerator=_accelerator(device),
            default_root_dir=folder,
            enable_progress_bar=False,
        )
        module = DFLModule(LeNet(), local_epochs=1, batch_size=16)
        trainer.fit(module, datamodule=ClusteredImages(samples, num_clients=clients, test_fraction=0.1, seed=0))
        trained = int(module.federation.data.sizes("train")[0])
    found = clock.medians()
    cells = [f"{1e3 * found[name]:.1f}" for name in ("wall", *VERBS, "rest")]
    table.rows.append(["LeNet", f"{clients} x {trained}", *cells, f"{100 * found['rest'] / found['wall']:.1f} %"])
    table.numbers.append({"clients": clients, "samples": trained, "rounds": clock.rounds, "others": others.share()})
    table.notes = [
        "Medians over rounds; the rest is everything from one round's end to the next that is no verb: Lightning's "
        "loops and hooks, policies, promises, run folder.",
        busy_note([others.share()]),
    ]
    return table


def systems_table(configs: Sequence[Path], clients: int, images: int, rounds: int, device: str) -> Table:
    """Measure whole rounds of each config's system, on the same clients and network, with both engines."""
    columns = ["config", "policies", "engine", "seconds/round", *VERBS, "rest", "loop/stacked"]
    table = Table(f"Systems: seconds for a round of {clients} clients with {images} images of 3x32x32, LeNet", columns)
    others = Others()
    for place, config in enumerate(configs):
        found: dict[str, dict[str, float]] = {}
        clocks: dict[str, list[dict[str, float]]] = {}
        accuracy: dict[str, float] = {}
        for engine in ENGINES if place % 2 else reversed(ENGINES):
            try:
                trainer, clock = run_config(config, engine, clients, images, rounds, device)
            except Exception as error:
                sentence = users_mistake(error)
                if sentence is None:
                    raise
                table.notes.append(f"{config.stem} does not run on these data: {sentence}")
                break
            found[engine], clocks[engine] = clock.medians(), clock.rounds
            accuracy[engine] = float(np.nanmean(trainer.run.clients["test_acc"][-1]))
            policies = [type(policy).__name__ for policy in trainer.policies()]
        if len(found) < len(ENGINES):
            continue
        for engine in ENGINES:
            cells = [f"{found[engine][name]:.3g}" for name in ("wall", *VERBS, "rest")]
            ratio = f"{found['loop']['wall'] / found['stacked']['wall']:.2f}" if engine == "stacked" else ""
            named = [config.stem, " + ".join(policies)] if engine == "stacked" else ["", ""]
            table.rows.append([*named, engine, *cells, ratio])
            row = {"config": config.stem, "engine": engine, "policies": policies, "test_accuracy": accuracy[engine]}
            table.numbers.append({**row, "rounds": clocks[engine]})
    table.notes += [
        "Epochs, batch size and optimizer are each config's own; a quarter of the images is held out, as most configs "
        "ask for. Medians over rounds without the first. train includes fine-tuning before an evaluation, evaluate "
        "the losses of others' models.",
        busy_note([others.share()]),
    ]
    return table


def run_config(
    config: Path, engine: str, clients: int, images: int, rounds: int, device: str, **others: object
) -> tuple[DFLTrainer, RoundClock]:
    """Run a config as `dfl-fit` does, with other data and network.

    Args:
        config: the file.
        engine: `stacked` or `loop`.
        clients: number of clients.
        images: images of each client.
        rounds: rounds that count; one before them warms up.
        device: `cpu` or `cuda`.
        **others: further options, with a double underscore for each dot.
    """
    partition = yaml.safe_load(config.read_text(encoding="utf-8"))["data"]["init_args"].get("partition", "IID")
    with tempfile.TemporaryDirectory() as folder, quietly(), _environment_kept():
        options = {
            "config": config,
            "engine": engine,
            "data": "benchmarks.rounds.ClusteredImages",
            "data.partition": json.dumps(partition),
            "data.num_clients": clients,
            "data.images_per_client": images,
            "model.network": "LeNet",
            "trainer.max_rounds": 1 + rounds,
            "trainer.accelerator": _accelerator(device),
            "trainer.default_root_dir": folder,
            "trainer.enable_progress_bar": "false",
            "trainer.enable_checkpointing": "false",
            "trainer.callbacks": "benchmarks.rounds.RoundClock",
            **{name.replace("__", "."): value for name, value in others.items()},
        }
        settings = read(split([f"--{name}={value}" for name, value in options.items()]))
        trainer = DFLCLI("fit", settings).trainer
    (clock,) = (c for c in trainer.callbacks if isinstance(c, RoundClock))  # type: ignore[attr-defined]
    return trainer, clock


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress banners and advice."""
    with quiet_lightning(), contextlib.redirect_stdout(io.StringIO()):
        yield


@contextlib.contextmanager
def _environment_kept() -> Iterator[None]:
    """Restore the environment, in which a command leaves its seed."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _accelerator(device: str) -> str:
    return "gpu" if device.startswith("cuda") else "cpu"


def _wait_for_gpu() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
