"""The loss of other clients' models on a client's data, which PENS, DPFL and Boltzmann weights need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks.federations import Federation, Setting, built, federation, plain_modules, random_data
from benchmarks.tables import Table, busy_note, microseconds, times
from benchmarks.timing import Candidate, Machine, Times, alternate
from dfl_lightning.bank.references import References

NEIGHBOURS = 10


def losses_table(settings: Sequence[Setting], machines: Sequence[Machine], repeats: int | None) -> Table:
    """Measure the losses of some other models on each client's data."""
    columns = ["network", "models x candidates, samples", "threads, clock", "stacked", "loop", "naive"]
    columns += ["naive/stacked", "loop/stacked", "largest difference"]
    table = Table("Losses of others' models: microseconds for a pair", columns)
    others: list[float | None] = []
    for setting in settings:
        for machine in machines:
            found, difference, candidates = measure_losses(setting, machine, repeats or setting.repeats)
            table.rows.append(
                [
                    setting.name,
                    f"{setting.clients} x {candidates}, {setting.validation}",
                    f"{machine.threads}, {machine.clock}",
                    *(microseconds(found.median(n), found.spread(n)) for n in ("stacked", "loop", "naive")),
                    times(found.ratio("naive", "stacked")),
                    times(found.ratio("loop", "stacked")),
                    f"{difference:.0e}",
                ]
            )
            table.numbers.append(
                {
                    "network": setting.name,
                    "models": setting.clients,
                    "candidates": candidates,
                    "samples": setting.validation,
                    "threads": machine.threads,
                    "clock": machine.clock,
                    "seconds_per_pair": found.seconds,
                    "largest_difference": difference,
                    "others": found.others,
                }
            )
            others.append(found.others)
    table.notes = [
        "naive: load_state_dict and a forward pass for every pair; largest difference: between any two of the three.",
        busy_note(others),
    ]
    return table


def measure_losses(setting: Setting, machine: Machine, repeats: int) -> tuple[Times, float, int]:
    """Measure seconds for a pair by candidate; also return the largest difference of losses, and models per client."""
    neighbours = min(NEIGHBOURS, setting.clients)
    data = random_data(setting.shape, [1] * setting.clients, setting.validation, machine.device)
    draws = torch.rand(setting.clients, setting.clients, generator=torch.Generator().manual_seed(2))
    senders = draws.argsort(dim=1)[:, :neighbours].flatten()
    receivers = torch.arange(setting.clients).repeat_interleave(neighbours)
    losses: dict[str, Tensor] = {}
    naive: NaivePairs | None = None
    candidates = {}
    for engine in ("stacked", "loop"):
        clients = federation(setting, engine, data)
        candidates[engine] = Candidate(_scoring(clients, senders, receivers, losses, engine))
        naive = NaivePairs(clients, senders, receivers, losses) if naive is None else naive
    assert naive is not None
    found = alternate({**candidates, "naive": Candidate(naive.run)}, repeats, machine)
    every = torch.stack(list(losses.values()))
    return found, float((every.max(0).values - every.min(0).values).max()), neighbours


def _scoring(
    clients: Federation, senders: Tensor, receivers: Tensor, losses: dict[str, Tensor], name: str
) -> Callable[[], int]:
    references = References.rows("models", senders, receivers, "models")

    def score() -> int:
        losses[name] = clients.engine.evaluate(references, "val").losses
        return len(senders)

    return score


class NaivePairs:
    """One module that takes a state dict for every pair.

    Args:
        clients: whose models and data are taken.
        senders: whose model, int64 [J].
        receivers: on whose data, int64 [J].
        losses: `naive` is entered here, float64 [J].
    """

    def __init__(self, clients: Federation, senders: Tensor, receivers: Tensor, losses: dict[str, Tensor]) -> None:
        modules = plain_modules(clients, torch.arange(clients.setting.clients))
        self._states = [module.state_dict() for module in modules]
        self._module = built(clients.setting).to(clients.data.images.device).eval()
        self._batches = [clients.data.batch(indices) for indices in clients.data.val]
        self._pairs = list(zip(senders.tolist(), receivers.tolist(), strict=True))
        self._losses = losses

    @torch.no_grad()
    def run(self) -> int:
        """Evaluate all pairs; return their number."""
        found = []
        for sender, receiver in self._pairs:
            self._module.load_state_dict(self._states[sender])
            x, y = self._batches[receiver]
            found.append(float(F.cross_entropy(self._module(x), y)))
        self._losses["naive"] = torch.tensor(found, dtype=torch.float64)
        return len(found)
