"""Times of the row verbs, in units of the simplest operation on the same rows.

Run it with `OMP_NUM_THREADS=1 python scripts/benchmarks/rows.py`, or more threads.
Mixing is measured against a plain copy of the rows, comparing against the bare float32 product `X @ X.T`. Candidates
alternate and ratios are taken pair by pair, so that a busy machine slows both; still, believe a ratio only after two
runs on a quiet machine. With one thread CPU time is measured, with more wall time.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from dfl_lightning.bank.comparing.similarity import compare_rows
from dfl_lightning.bank.layout import Columns
from dfl_lightning.bank.mixing import mix_rows
from dfl_lightning.links import Links

SHAPES = ((1000, 60_000), (100, 500_000))
"""(clients, parameters): many small models, few larger ones."""


def ratios(
    candidates: Mapping[str, Callable[[], object]], baseline: str, repeats: int, synchronise: Callable[[], object]
) -> dict[str, float]:
    """Measure the median ratio of each candidate's time to the baseline's in the same repeat."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in candidates}
    for repeat in range(repeats + 1):  # the first one warms up
        for name in list(candidates)[:: 1 if repeat % 2 else -1]:
            synchronise()
            start = clock()
            candidates[name]()
            synchronise()
            if repeat:
                times[name].append(clock() - start)
    return {
        name: statistics.median(t / b for t, b in zip(taken, times[baseline], strict=True))
        for name, taken in times.items()
    }


def neighbour_weights(clients: int, neighbours: int) -> Tensor:
    """Draw equal weights of a client and `neighbours` others, float64 [clients, clients]."""
    scores = torch.rand(clients, clients, generator=torch.Generator().manual_seed(0)).fill_diagonal_(2)
    chosen = torch.zeros(clients, clients, dtype=torch.float64)
    return chosen.scatter_(1, scores.topk(neighbours + 1, dim=1).indices, 1 / (neighbours + 1))


def mixing(clients: int, parameters: int, neighbours: int = 10, device: str = "cpu") -> dict[str, Callable[[], object]]:
    """Make the candidates of mixing: a copy of the rows, a mix with few neighbours, and with all."""
    rows = torch.randn(clients, parameters, device=device)
    other, all_clients, columns = (
        torch.empty_like(rows),
        torch.arange(clients, device=device),
        Columns([(0, parameters)]),
    )
    few, all_ = neighbour_weights(clients, neighbours), torch.rand(clients, clients).double().softmax(dim=1)
    return {
        "copy": lambda: other.copy_(rows),
        f"mix {neighbours} neighbours": lambda: mix_rows([(few, rows)], rows, all_clients, columns),
        "mix all": lambda: mix_rows([(all_, rows)], rows, all_clients, columns),
    }


def measure_mixing(
    clients: int, parameters: int, neighbours: int = 10, repeats: int = 7, device: str = "cpu"
) -> dict[str, float]:
    """Time of a mix with few neighbours, and with all, in copies of the rows."""
    return ratios(mixing(clients, parameters, neighbours, device), "copy", repeats, _synchroniser(device))


def comparing(clients: int, parameters: int, device: str = "cpu") -> dict[str, Callable[[], object]]:
    """Make the candidates of comparing: the bare float32 product, and comparisons of all clients with all."""
    rows = torch.randn(clients, parameters, device=device)
    pairs, columns = Links.complete(clients), Columns([(0, parameters)])

    def compare(centre: bool) -> object:
        return compare_rows(lambda start, stop: rows[:, start:stop], clients, pairs, columns, centre)

    return {
        "product": lambda: rows @ rows.T,
        "compare": lambda: compare(False),
        "compare centred": lambda: compare(True),
    }


def measure_comparing(clients: int, parameters: int, repeats: int = 5, device: str = "cpu") -> dict[str, float]:
    """Time of comparing all clients with all, in bare float32 products."""
    return ratios(comparing(clients, parameters, device), "product", repeats, _synchroniser(device))


def _synchroniser(device: str) -> Callable[[], object]:
    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


if __name__ == "__main__":
    where = "cuda" if torch.cuda.is_available() else "cpu"
    for shape in SHAPES:
        found = measure_mixing(*shape, device=where) | measure_comparing(*shape, device=where)
        print(f"{shape[0]} x {shape[1]}, {where}, {torch.get_num_threads()} threads:", end=" ")
        print(", ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
