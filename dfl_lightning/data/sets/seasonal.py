"""Synthetic seasonal time series of clusters of clients, drawn with a fixed seed."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import contiguous_clusters
from dfl_lightning.data.readers.series_file import SeriesTable
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["PERIODS", "seasonal_clusters", "seasonal_series"]

PERIODS = (12, 12, 17, 17)
"""Period of each cluster; clusters with the same period differ in the phase of the first overtone."""
SHORTEST, LONGEST = 160, 240
NOISE = 0.3
_SEED = 0


def seasonal_series(num_clients: int) -> SeriesTable:
    """Draw series of 160 to 240 values, the same in all runs.

    The season of cluster g at time t is sin(2 pi t / p_g) + sin(4 pi t / p_g + f_g), with the phase f_g = 0 or pi. Each
    client has its own level (10 to 100), amplitude (1 to 10) and first time, and adds autoregressive noise of standard
    deviation 0.3 with coefficient 0.5.

    Args:
        num_clients: number of clients m.
    """
    clusters = seasonal_clusters(num_clients)
    values = []
    for client, cluster in enumerate(clusters):
        rng = numpy_stream(_SEED, "seasonal series", client)
        length = int(rng.integers(SHORTEST, LONGEST + 1))
        time = rng.integers(PERIODS[cluster]) + np.arange(length)
        angle = 2 * np.pi * time / PERIODS[cluster]
        wave = np.sin(angle) + np.sin(2 * angle + np.pi * (cluster % 2))
        noise = np.zeros(length)
        for t, drawn in enumerate(rng.normal(size=length)):
            noise[t] = 0.5 * noise[t - 1] + np.sqrt(0.75) * drawn if t else drawn
        level, amplitude = rng.uniform(10, 100), np.exp(rng.uniform(0, np.log(10)))
        values.append((level + amplitude * (wave + NOISE * noise))[:, None])
    width = len(str(num_clients - 1))
    names = tuple(f"client {client:0{width}d}" for client in range(num_clients))
    return SeriesTable("seasonal series (synthetic)", names, tuple(values))


def seasonal_clusters(num_clients: int) -> np.ndarray:
    """Return the cluster of each client, int64 [m]: at most 4 blocks of consecutive ids.

    Args:
        num_clients: number of clients m.

    Examples:
        >>> seasonal_clusters(6).tolist()
        [0, 0, 1, 1, 2, 3]
    """
    return contiguous_clusters(num_clients, min(len(PERIODS), num_clients), "Series")
