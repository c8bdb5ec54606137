"""The distance of the models from their mean."""

from __future__ import annotations

import torch

from dfl_lightning.bank.references import Weights
from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.callbacks.monitors.merged_model import equal_weights, merged_nodes
from dfl_lightning.round.record import Round

DEVIATION = "deviation from the mean model"


class ConsensusDistance(Monitor):
    """Squared distance of the models from their mean after mixing (Kong et al. 2021, arXiv 2102.04828, squared).

        consensus_distance = mean over clients i of ||w_i - w||^2,    w = mean of the w_i

    `consensus_distance_relative` is this number divided by ||w||^2. Only shared parameters of the row set `models`
    count: neither personal parameters, nor buffers, nor other row sets (Ditto's personal models). A client that has
    dropped out counts with its present model. With servers the models are those of the servers, so that the distance is
    0 with one server.
    """

    logs = ("consensus_distance", "consensus_distance_relative")

    def on_round_end(self, round: Round) -> None:
        """Log the distance of the mixed models from their mean, computed in float64."""
        bank, columns = round.bank, round.bank.layout.shared_parameters
        nodes = merged_nodes(round.federation)
        n, first = round.num_nodes, nodes[:1]
        bank.scratch(DEVIATION, torch.float64)
        bank.mix([(equal_weights(nodes, n), "mixed")], into=DEVIATION, where=first, columns=columns)
        length = float(bank.squared_lengths(DEVIATION, first, columns)[0])
        less_mean = Weights.of_rows(first.expand(len(nodes)), n, -1.0)
        bank.mix([(Weights.of_rows(nodes, n), "mixed"), (less_mean, DEVIATION)], DEVIATION, nodes, columns)
        distance = float(bank.squared_lengths(DEVIATION, nodes, columns).mean())
        round.log("consensus_distance", distance)
        if length > 0:
            round.log("consensus_distance_relative", distance / length)
