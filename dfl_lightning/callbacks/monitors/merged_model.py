"""Loss and score of the mean of all models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.callbacks.base import Monitor

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

MERGED = "merged model"


class MergedModel(Monitor):
    """Loss and score of the mean of all models, on the test data of all clients together.

        w = mean over clients i of w_i

    Logs `merged_test_loss` and `merged_test_<score>` (`merged_test_acc` for classes) in rounds with an evaluation. They
    are over all test samples, so that a client counts by its number of samples; an `rmse` is the root of the mean over
    all squared errors. The models are merged after mixing, with equal weights, also those of clients that have dropped
    out; with servers the mean is over the servers' models. Shared parameters and buffers of the row set `models` are
    merged. Personal ones (`model.shared`) remain those of the client whose samples are predicted, and other row sets
    (Ditto's personal models) are not used. There is no fine-tuning and no `prediction`. If the loss is not finite, the
    score is NaN.
    """

    def start(self, federation: Federation) -> None:
        """Declare the columns, named after the task's score; none without test data."""
        names = ("merged_test_loss", f"merged_test_{federation.task.score}")
        self.logs = names if int(federation.data.sizes("test").sum()) else ()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Add loss and score to the metrics of the round that was just evaluated."""
        if trainer.state.fn != TrainerFn.FITTING or not int(pl_module.federation.data.sizes("test").sum()):
            return
        federation, bank = pl_module.federation, pl_module.bank
        nodes = merged_nodes(federation)
        bank.scratch(MERGED)
        bank.mix([(equal_weights(nodes, federation.num_nodes), "models")], into=MERGED, where=nodes[:1])
        measures = _evaluate_on_all_samples(pl_module, int(nodes[0]))
        bank.abandon()
        bank.boundary = bank.boundary._replace(metrics={**bank.boundary.metrics, **measures})


def merged_nodes(federation: Federation) -> Tensor:
    """Return the nodes whose models are merged, long [k]: the servers, or the clients if there are no servers."""
    clients, nodes = federation.num_clients, federation.num_nodes
    return torch.arange(clients, nodes) if federation.servers_have_models else torch.arange(clients)


def equal_weights(nodes: Tensor, rows: int) -> Weights:
    """Return the weights of one sum, the mean of the nodes' rows.

    Args:
        nodes: long [k].
        rows: number of rows of the row set.
    """
    shares = torch.full((len(nodes),), 1 / len(nodes), dtype=torch.float64)
    return Weights(torch.zeros_like(nodes), nodes, shares, (1, rows))


def _evaluate_on_all_samples(module: Any, row: int) -> dict[str, float]:
    """Evaluate a row of `MERGED` on all test samples, with each client's personal parameters on its own samples."""
    owners = torch.nonzero(module.federation.data.sizes("test")).squeeze(1)
    references = References((Term(MERGED, torch.full_like(owners, row)),), owners, "models")
    scores = module.engine.evaluate(references, "test")
    shares = scores.weights / scores.weights.sum()
    loss = float(scores.losses @ shares)
    name = module.federation.task.score
    score = float(module.federation.task.finish({mean: values @ shares for mean, values in scores.means.items()})[name])
    finite = bool(scores.losses.isfinite().all())
    return {"merged_test_loss": loss, f"merged_test_{name}": score if finite else torch.nan}
