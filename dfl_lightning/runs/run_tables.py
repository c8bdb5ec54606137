"""The tables of a run as arrays, with the same names while it runs (`trainer.run`) and later (`read_run`)."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np


class RunTables(ABC):
    """The tables that a run keeps of its rounds, each a mapping from columns to arrays."""

    @abstractmethod
    def _table(self, name: str) -> dict[str, np.ndarray]:
        """Return the columns or arrays of one table.

        Args:
            name: the file name without its suffix.
        """

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """metrics.csv by column, float64 [rounds], NaN where a cell is empty."""
        return self._table("metrics")

    @property
    def clients(self) -> dict[str, np.ndarray]:
        """clients.npz: arrays [evaluations, clients], and `rounds` [evaluations]."""
        return self._table("clients")

    @property
    def graphs(self) -> dict[str, np.ndarray]:
        """graphs.npz, an entry for each link, by column.

        The columns are `round`, `receiver`, `sender`, `weight`, `selected` and `probed`.
        """
        return self._table("graphs")

    @property
    def diverged(self) -> dict[str, np.ndarray]:
        """diverged.npz, an entry each time that a client's training diverged, by column: `round`, `client`."""
        return self._table("diverged")

    @property
    def dropouts(self) -> dict[str, np.ndarray]:
        """dropouts.npz, an entry each time that a client dropped out, by column: `round`, `client`."""
        return self._table("dropouts")

    @property
    def substitutes(self) -> dict[str, np.ndarray]:
        """substitutes.npz, an entry for each row that was mixed instead of a selected client's, by column.

        The columns are `round`, `receiver`, `client` (selected, but dropped out) and `substitute`.
        """
        return self._table("substitutes")

    @property
    def comparisons(self) -> dict[str, np.ndarray]:
        """comparisons.npz: `rounds` [k], `similarity` [k, n, n], `threshold` [k, n]."""
        return self._table("comparisons")
