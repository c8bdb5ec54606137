"""The kind of processor that a run computes on; the last bits of float sums depend on it."""

from __future__ import annotations

import platform
from collections.abc import Iterable, Mapping
from typing import Any

import torch


def processor() -> dict[str, Any]:
    """Describe the processor of this process and the libraries that compute on it.

    Returns:
        `machine`, such as `x86_64`; `capability`, the vector instructions that torch has chosen, such as `AVX2` or
        `AVX512`; `kernels`, the libraries for matrix products and convolutions; `threads`.
    """
    libraries = {"MKL": torch.backends.mkl.is_available(), "oneDNN": torch.backends.mkldnn.is_available()}
    return {
        "machine": platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "kernels": [name for name, there in libraries.items() if there],
        "threads": torch.get_num_threads(),
    }


def in_words(entries: Iterable[Mapping[str, Any] | None]) -> str:
    """Describe the processors of some runs, equal ones only once; empty if none is known.

    Args:
        entries: the entry `processor` of each run's summary.json; None if it is not known.

    Examples:
        >>> one = {"machine": "x86_64", "capability": "AVX2", "kernels": ["MKL", "oneDNN"], "threads": 1}
        >>> in_words([one, {**one, "threads": 2}, None])
        'x86_64 AVX2 with MKL and oneDNN, 1 or 2 threads'
    """
    threads: dict[str, set[int]] = {}
    for entry in entries:
        if entry:
            kernels = " and ".join(entry["kernels"])
            kind = f"{entry['machine']} {entry['capability']}" + f" with {kernels}" * bool(kernels)
            threads.setdefault(kind, set()).add(entry["threads"])
    parts = []
    for kind, numbers in sorted(threads.items()):
        counts = " or ".join(map(str, sorted(numbers)))
        parts.append(f"{kind}, {counts} thread{'s' * (max(numbers) > 1)}")
    return "; ".join(parts)
