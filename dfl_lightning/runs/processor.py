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


def where_made(entries: Iterable[Mapping[str, Any] | None]) -> str:
    """Say where some runs were computed, as the end of a sentence; runs without an entry are counted.

    Args:
        entries: the entry `processor` of each run's summary.json; None if it was not recorded.

    Examples:
        >>> where_made([None, None])
        '; the processor was not recorded'
        >>> one = {"machine": "x86_64", "capability": "AVX2", "kernels": ["MKL"], "threads": 1}
        >>> where_made([one, one])
        ' on x86_64 AVX2 with MKL, 1 thread'
        >>> where_made([one, None, None])
        ' on x86_64 AVX2 with MKL, 1 thread; that of 2 of 3 cells was not recorded'
        >>> where_made([])
        ''
    """
    all_entries = list(entries)
    unknown = sum(not entry for entry in all_entries)
    words = in_words(all_entries)
    if not words:
        return "; the processor was not recorded" * bool(unknown)
    return f" on {words}" + f"; that of {unknown} of {len(all_entries)} cells was not recorded" * bool(unknown)
