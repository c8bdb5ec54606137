"""Warnings about single clients, which a run gives once for each client."""

from __future__ import annotations

import warnings

from dfl_lightning.utils.words import counted


class ClientWarnings:
    """The warnings of a run about clients: each names the clients that an earlier one of its kind has not named."""

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._diverged: set[int] = set()
        self._broken: set[int] = set()
        self._failed: set[tuple[str, int]] = set()

    def divergence(self, clients: list[int], sentence: str) -> None:
        """Warn of clients that diverged; the run folder records every round.

        Args:
            clients: ids of the clients that have just diverged.
            sentence: the warning, with {} instead of their ids.
        """
        new = [client for client in clients if client not in self._diverged]
        self._diverged |= set(new)
        if new:
            self._warn(sentence.format(", ".join(map(str, new))))

    def broken_losses(self, clients: list[int], sentence: str) -> None:
        """Warn of models whose loss is not finite.

        Args:
            clients: ids of the models' clients; -1 is the server.
            sentence: the warning, with {} instead of `client 3` or `the server`.
        """
        new = [client for client in clients if client not in self._broken]
        self._broken |= set(new)
        if new:
            self._warn(sentence.format("the server" if new == [-1] else f"client {', '.join(map(str, new))}"))

    def failed_metrics(self, failures: dict[tuple[str, int], str], rounds: int) -> None:
        """Warn of metrics that failed, naming each metric and client once.

        Args:
            failures: the errors in words, by column and client; -1 is the global test set, for which metrics are not
                reported.
            rounds: number of complete rounds.
        """
        new: dict[tuple[str, str], list[int]] = {}
        for (column, client), why in sorted(failures.items()):
            if client >= 0 and (column, client) not in self._failed:
                self._failed.add((column, client))
                new.setdefault((column, why), []).append(client)
        for (column, why), clients in new.items():
            self._warn(
                f"after {counted(rounds, 'round')}: the metric {column} fails for client "
                f"{', '.join(map(str, clients))} ({why}); it is NaN there, and left out of means (warned once per "
                "client; clients.npz has every evaluation)"
            )

    def _warn(self, sentence: str) -> None:
        """Warn the user, unless the same sentence was shown before."""
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(sentence, UserWarning, stacklevel=3)
