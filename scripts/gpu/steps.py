"""Steps of local training: convolutions with groups or unfolded, recorded or not, and memory against its prediction."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from benchmarks.federations import SETTINGS, Federation, Setting, federation, random_data
from benchmarks.tables import Table
from benchmarks.timing import Candidate, alternate

from gpu.scope import Scope

CASES = (
    *(("MLP", 100, 32), ("MLP", 1000, 32), ("MNISTCNN", 100, 5), ("LeNet", 100, 16), ("LeNet", 1000, 16)),
    *(("CNN4", 100, 128), ("CharTransformer", 100, 16), ("ResNet18", 8, 128)),
)
"""Network, clients, batch size."""
SMALL = (("MNISTCNN", 3, 2),)
STEPS = 10
"""Steps of each client in a measurement; fewer than eight would not be recorded."""


def steps(scope: Scope) -> Table:
    """Measure a step of all clients in milliseconds, by the form of convolutions, recorded and not."""
    ways = [(u, r) for u, r in product((False, True), (False, True)) if not r or scope.recorder is not None]
    heads = [("unfolded" if unfolded else "grouped") + ", recorded" * recorded for unfolded, recorded in ways]
    table = Table("A step of all clients: milliseconds", ["network", "clients, batch", *heads])
    for setting in _settings(scope):
        candidates = {}
        for head, (unfolded, recorded) in zip(heads, ways, strict=True):
            clients = _federation(setting, scope, unfolded, recorded)
            if clients is not None:
                candidates[head] = Candidate(_training(clients))
        found = alternate(candidates, scope.repeats, scope.machine)
        cells = [f"{1e3 * found.median(head):.3g}" if head in candidates else "–" for head in heads]
        table.rows.append([setting.name, f"{setting.clients}, B {setting.batch_size}", *cells])
        table.numbers.append({"network": setting.name, "clients": setting.clients, "seconds": found.seconds})
    table.notes = [
        "A dash: no convolution can be unfolded, its patches do not fit, or the network's steps cannot be recorded."
    ]
    return table


def memory(scope: Scope) -> Table:
    """Measure the peak of memory above rows and data in one round of training, and its prediction."""
    columns = ["network", "clients, batch", "predicted, MB", "measured, MB", "predicted/measured"]
    table = Table("Memory of a training step", columns)
    for setting in _settings(scope):
        clients = _federation(setting, scope, unfolded=False, recorded=False)
        assert clients is not None
        predicted = clients.engine.cohort_bytes
        before = 0 if scope.peak is None else scope.peak(True)
        clients.train(torch.arange(setting.clients))
        measured = None if scope.peak is None else scope.peak(False) - before
        table.rows.append(
            [
                setting.name,
                f"{setting.clients}, B {setting.batch_size}",
                f"{predicted / 1e6:.0f}",
                "–" if measured is None else f"{measured / 1e6:.0f}",
                "–" if not measured else f"{predicted / measured:.2f}",
            ]
        )
        table.numbers.append({"network": setting.name, "predicted": predicted, "measured": measured})
    table.notes = ["A run leaves 20 % of the free memory, so that a prediction of .8 or more of the peak is safe."]
    return table


def _settings(scope: Scope) -> list[Setting]:
    known = {setting.name: setting for setting in SETTINGS}
    cases = SMALL if scope.small else CASES
    return [known[name].resized(clients, STEPS * batch, batch) for name, clients, batch in cases]


def _federation(setting: Setting, scope: Scope, unfolded: bool, recorded: bool) -> Federation | None:
    """Make a federation whose convolutions are all unfolded or none; return None if that is not possible."""
    data = random_data(setting.shape, [setting.samples] * setting.clients, 0, scope.device, setting.tokens)
    clients = federation(setting, "stacked", data)
    engine = clients.engine
    if recorded:
        assert scope.recorder is not None
        engine.all_at_once(scope.recorder())  # type: ignore[attr-defined]
        if engine.recordings is None:  # type: ignore[attr-defined]
            return None
    if unfolded:
        network, budget = engine._context.network, engine.budget  # type: ignore[attr-defined]
        names = frozenset(network.can_be_unfolded())
        if not names or not budget.allows(names, setting.clients):
            return None
        network.unfolded = names
    return clients


def _training(clients: Federation) -> Callable[[], int]:
    def run() -> int:
        clients.train(torch.arange(clients.setting.clients))
        return STEPS

    return run
