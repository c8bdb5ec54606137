"""Rounds with robust averages, compressed messages and attacks, on the numbers of a case."""

# mypy: disallow-untyped-defs=False, disallow-incomplete-defs=False

from __future__ import annotations

from typing import Any

import networkx as nx
import numpy as np
from torch import Tensor

from conformance.own.runs import GivenRun, graph_of, weights_of, without_data
from dfl_lightning import callbacks as cb
from dfl_lightning.round.record import Round
from dfl_lightning.round.senders import Senders

Found = dict[str, Any]


class _GivenMessages(cb.Outgoing):
    """Messages whose models are given, the row set `message`."""

    row_sets = {"message": "zeros"}

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Return the update that turns a client's model from before the round into the given one."""
        return senders.rows("message") - senders.rows("models")


class _SentModels(cb.Monitor):
    """Monitor of the models that clients send."""

    def on_compare(self, round: Round) -> None:
        """Copy the sent models before they are mixed."""
        self.rows = round.bank.rows("sent").numpy().copy()


def _mixed(aggregation, before, trained, sent, graph, active, first=0, rounds=1) -> Found:
    rows = {"models": before, "given": trained, "message": sent}
    policies = [cb.Gossip(k="all"), _GivenMessages(), aggregation]
    x, y, layers = without_data(*before.shape)
    topology = nx.Graph(graph_of(graph))
    run = GivenRun(policies, x, y, layers, topology, rows, active=active, round=first, rounds=rounds)
    round = run.go()
    return {"weights": weights_of(round, len(before)), "models": run.rows()}


def clipped_gossip(before, trained, sent, graph, active, outliers, radius) -> Found:
    """Run a round of ClippedGossip."""
    return _mixed(cb.ClippedGossip(outliers, radius or None), before, trained, sent, graph, active)


def balance(before, trained, sent, graph, active, gamma, kappa, alpha, round, rounds_of_run) -> Found:
    """Run a round of BALANCE."""
    arguments = before, trained, sent, graph, active
    return _mixed(cb.BALANCE(gamma, kappa, alpha), *arguments, round, rounds_of_run - round)


class _KrumOnAnyGraph(cb.MultiKrum):
    """Krum, also on graphs in which some clients never have enough models."""

    def start(self, federation) -> None:
        """Skip the check that all clients have enough models."""


def krum(before, trained, sent, graph, active, adversaries, kept) -> Found:
    """Run a round of Krum or MultiKrum."""
    return _mixed(_KrumOnAnyGraph(adversaries, kept or None), before, trained, sent, graph, active)


def geometric_median(before, trained, sent, graph, active, smoothing, iterations) -> Found:
    """Run a round of GeometricMedian."""
    return _mixed(cb.GeometricMedian(smoothing, iterations), before, trained, sent, graph, active)


def _message(policy, starts, trained, **more: np.ndarray) -> tuple[GivenRun, np.ndarray]:
    monitor = _SentModels()
    x, y, layers = without_data(*starts.shape)
    rows = {"models": starts, "given": trained, **more}
    run = GivenRun([cb.Gossip(k="all"), cb.Uniform(), policy, monitor], x, y, layers, "complete", rows)
    run.go()
    return run, monitor.rows


def top_k(starts, trained, residual, share) -> Found:
    """Return what clients send by TopK, and their residuals."""
    run, sent = _message(cb.TopK(share), starts, trained, residual=residual)
    return {"sent": sent, "residual": run.rows("residual")}


class _GivenDraws(cb.QSGD):
    """QSGD with given random numbers, the row set `draws`."""

    row_sets = {"draws": "zeros"}

    def send(self, updates: Tensor, senders: Senders) -> Tensor:
        """Send by QSGD, with the given random numbers."""
        senders.uniform = lambda shape: senders.rows("draws").view(*shape)  # type: ignore[method-assign]
        return super().send(updates, senders)


def qsgd(starts, trained, draws, bits, bucket) -> Found:
    """Return what clients send by QSGD."""
    return {"sent": _message(_GivenDraws(bits, bucket), starts, trained, draws=draws)[1]}


def sign_flip(starts, trained, adversaries, scale) -> Found:
    """Return what clients send under the attack SignFlip."""
    return {
        "sent": _message(cb.SignFlip(clients=np.flatnonzero(adversaries).tolist(), scale=scale), starts, trained)[1]
    }


def a_little_is_enough(starts, trained, adversaries, z) -> Found:
    """Return what clients send under the attack ALittleIsEnough."""
    policy = cb.ALittleIsEnough(clients=np.flatnonzero(adversaries).tolist(), z=z)
    return {"sent": _message(policy, starts, trained)[1]}
