"""Local training: the engines, the plain loop that all start with, and a bound; skewed sizes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.federations import (
    LEARNING_RATE,
    OPTIMIZER,
    Count,
    Federation,
    Setting,
    built,
    counted,
    federation,
    log_normal_sizes,
    plain_modules,
    random_data,
)
from benchmarks.tables import Table, busy_note, microseconds, times
from benchmarks.timing import Candidate, Machine, Times, alternate
from dfl_lightning.engines.stacked import CannotStack


class PlainLoop:
    """The plain loop: a module, a DataLoader and an optimizer for each client, one client after the other.

    Args:
        clients: whose rows and data are taken.
        owners: which of them.
    """

    def __init__(self, clients: Federation, owners: Tensor) -> None:
        self._device, self._loss = clients.data.images.device, clients.setting.task.mean_loss()
        self._modules = plain_modules(clients, owners)
        self._starts = [{name: t.clone() for name, t in m.state_dict().items()} for m in self._modules]
        self._loaders = [
            DataLoader(TensorDataset(x.cpu(), y.cpu()), batch_size=clients.setting.batch_size, shuffle=True)
            for x, y in (clients.data.batch(clients.data.train[owner]) for owner in owners.tolist())
        ]

    def prepare(self) -> None:
        """Restore the first parameters."""
        for module, start in zip(self._modules, self._starts, strict=True):
            module.load_state_dict(start)

    def run(self) -> int:
        """Train all modules for one epoch; return the samples."""
        loss, seen = self._loss, 0
        for module, loader in zip(self._modules, self._loaders, strict=True):
            module.train()
            optimizer = OPTIMIZER(module.parameters(), lr=LEARNING_RATE)
            for x, y in loader:
                optimizer.zero_grad()
                loss(module(x.to(self._device)), y.to(self._device)).backward()
                optimizer.step()
                seen += len(y)
        return seen


class BigBatch:
    """The bound: one model, and the batches of all clients together as one batch.

    Nothing that trains clients apart does less arithmetic, nor has it in larger pieces. It is no hard limit: a cohort's
    small convolutions stay in the cache, where a big batch does not.

    Args:
        clients: whose data are taken.
        steps: big batches in a run.
        channels_last: memory format.
    """

    def __init__(self, clients: Federation, steps: int, channels_last: bool) -> None:
        setting, data = clients.setting, clients.data
        self._loss = setting.task.mean_loss()
        self._batch = setting.batch_size * setting.clients
        indices = torch.cat(list(data.train))[: self._batch * steps]
        self._inputs, self._labels = data.batch(indices)
        self._format = torch.channels_last if channels_last else torch.contiguous_format
        self._module = built(setting).to(self._inputs.device).train()
        if channels_last:
            self._module.to(memory_format=torch.channels_last)
        self._optimizer = OPTIMIZER(self._module.parameters(), lr=LEARNING_RATE, fused=True)

    def run(self) -> int:
        """Take all steps; return the samples."""
        loss = self._loss
        order = torch.randperm(len(self._labels), device=self._labels.device)
        for part in order.split(self._batch):
            x = self._inputs.index_select(0, part).contiguous(memory_format=self._format)
            self._optimizer.zero_grad()
            loss(self._module(x), self._labels.index_select(0, part)).backward()
            self._optimizer.step()
        return len(order)


def train_table(settings: Sequence[Setting], machines: Sequence[Machine], repeats: int | None) -> Table:
    """Measure local training of a round, in microseconds for a sample."""
    columns = ["network", "clients x samples", "threads, clock", "stacked", "loop", "plain", "bound"]
    columns += ["plain/stacked", "loop/stacked", "bound/stacked"]
    table = Table("Local training of a round: microseconds for a sample, gathering of data included", columns)
    others: list[float | None] = []
    for setting in settings:
        for machine in machines:
            found, counts, apart = measure_training(setting, machine, min(repeats or setting.repeats, setting.repeats))
            bound = min((name for name in found.seconds if name.startswith("bound")), key=found.median)
            table.rows.append(
                [
                    setting.name,
                    setting.describe(),
                    f"{machine.threads}, {machine.clock}",
                    *(_microseconds(found, name) for name in ("stacked", "loop", "plain", bound)),
                    *(_times(found, name, "stacked") for name in ("plain", "loop", bound)),
                ]
            )
            table.numbers.append(
                {
                    "network": setting.name,
                    **_sizes(setting),
                    "threads": machine.threads,
                    "clock": machine.clock,
                    "seconds_per_sample": found.seconds,
                    "bound": bound,
                    "counts": {name: asdict(count) for name, count in counts.items()},
                    "largest_difference": apart,
                    "others": found.others,
                }
            )
            others.append(found.others)
    table.notes = [
        "stacked and loop: the engines; plain: nn.Module, DataLoader(TensorDataset) and torch.optim.SGD for each "
        "client; bound: the clients' batches as one batch of one model, in the faster memory format.",
        "bound/stacked is the share of the bound that the stacked engine reaches; above 1 it beats it.",
        "Medians, ± half of (slowest - fastest); ratios are taken within a repetition, with lowest and highest.",
        busy_note(others),
    ]
    return table


def measure_training(setting: Setting, machine: Machine, repeats: int) -> tuple[Times, dict[str, Count], float | None]:
    """Measure seconds for a sample by candidate.

    Also return the samples and steps in the first run of each, and the largest difference of rows between engines. A
    network that cannot be stacked has no candidate `stacked`, and its difference is None.
    """
    sizes = [setting.samples] * setting.clients
    data = random_data(
        setting.shape, sizes, device=machine.device, tokens=setting.tokens, classified=setting.classified
    )
    all_clients, some = torch.arange(setting.clients), setting.some_clients
    candidates: dict[str, Candidate] = {}
    stacked, loop = None, federation(setting, "loop", data)
    try:
        stacked = together = federation(setting, "stacked", data)
    except CannotStack as obstacle:
        print(f"{setting.name} cannot be stacked: {obstacle}", file=sys.stderr)
    else:
        candidates["stacked"] = Candidate(lambda: int(together.train(all_clients).samples.sum()))
    plain = PlainLoop(loop, some)
    candidates |= {
        "loop": Candidate(lambda: int(loop.train(some).samples.sum())),
        "plain": Candidate(plain.run, plain.prepare),
    }
    steps = max(1, -(-setting.samples // setting.batch_size) // setting.stride)
    no_images = setting.tokens or setting.name == "MLP"
    formats = {"bound": False} if no_images else {"bound": False, "bound, channels last": True}
    candidates |= {name: Candidate(BigBatch(loop, steps, last).run) for name, last in formats.items()}
    found, counts = _counting(candidates, type(loop.network), repeats, machine)
    if stacked is None:
        return found, counts, None
    rows, others = (these.bank.rows("trained")[some.to(machine.device)] for these in (stacked, loop))
    return found, counts, float((rows - others).abs().max())


def skew_table(settings: Sequence[Setting], machines: Sequence[Machine], repeats: int | None) -> Table:
    """Measure the cost of clients of very different sizes."""
    columns = ["network", "sizes", "threads, clock", "computed/useful", "all padded/useful"]
    columns += ["equal sizes", "log-normal sizes", "log-normal/equal"]
    table = Table("Clients of different sizes, stacked engine: microseconds for a useful sample", columns)
    others: list[float | None] = []
    for setting in settings:
        sizes = log_normal_sizes(setting.clients, setting.samples, min(4, setting.batch_size))
        padded = max(sizes) * len(sizes) / sum(sizes)
        for machine in machines:
            found, counts = measure_skew(setting, sizes, machine, min(repeats or setting.repeats, setting.repeats))
            computed = counts["log-normal"].samples / sum(sizes)
            table.rows.append(
                [
                    setting.name,
                    f"{len(sizes)} x {min(sizes)} to {max(sizes)}, B {setting.batch_size}",
                    f"{machine.threads}, {machine.clock}",
                    f"{computed:.3f}",
                    f"{padded:.2f}",
                    *(microseconds(found.median(n), found.spread(n)) for n in ("equal", "log-normal")),
                    times(found.ratio("log-normal", "equal")),
                ]
            )
            table.numbers.append(
                {
                    "network": setting.name,
                    "sizes": sizes,
                    "threads": machine.threads,
                    "clock": machine.clock,
                    "computed": counts["log-normal"].samples,
                    "useful": sum(sizes),
                    "all_padded": padded,
                    "seconds_per_sample": found.seconds,
                    "counts": {name: asdict(count) for name, count in counts.items()},
                    "others": found.others,
                }
            )
            others.append(found.others)
    table.notes = [
        "computed: samples that went through the network, padding included, counted there; useful: those of the "
        "clients; all padded: if all clients were padded to the largest client (not measured).",
        busy_note(others),
    ]
    return table


def measure_skew(
    setting: Setting, sizes: Sequence[int], machine: Machine, repeats: int
) -> tuple[Times, dict[str, Count]]:
    """Measure seconds for a useful sample of equal and of skewed clients; also return samples and steps."""
    equal = [round(sum(sizes) / len(sizes))] * len(sizes)
    all_clients = torch.arange(len(sizes))
    clients = {
        name: federation(setting, "stacked", random_data(setting.shape, given, device=machine.device))
        for name, given in (("equal", equal), ("log-normal", sizes))
    }

    def train(these: Federation) -> int:
        return int(these.train(all_clients).samples.sum())

    candidates = {name: Candidate(functools.partial(train, these)) for name, these in clients.items()}
    return _counting(candidates, type(clients["equal"].network), repeats, machine)


def _counting(
    candidates: dict[str, Candidate], kind: type[nn.Module], repeats: int, machine: Machine
) -> tuple[Times, dict[str, Count]]:
    """Measure, and count in each candidate's first run."""
    counts: dict[str, Count] = {}

    @contextmanager
    def counting(name: str) -> Iterator[None]:
        with counted(kind) as counts[name]:
            yield

    return alternate(candidates, repeats, machine, counting), counts


def _microseconds(found: Times, name: str) -> str:
    return microseconds(found.median(name), found.spread(name)) if name in found.seconds else "cannot be stacked"


def _times(found: Times, slow: str, fast: str) -> str:
    return times(found.ratio(slow, fast)) if fast in found.seconds else ""


def _sizes(setting: Setting) -> dict[str, Any]:
    return {"clients": setting.clients, "samples": setting.samples, "batch_size": setting.batch_size}
