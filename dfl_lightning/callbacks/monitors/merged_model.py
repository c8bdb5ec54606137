"""How good is the mean of all models?"""

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

    Logs `merged_test_loss` and `merged_test_<score>` (`merged_test_acc` for classes) in rounds with an evaluation, over
    all test samples, so that a client counts by how many it has (an `rmse` is that of all errors, no mean of roots).
    The models are merged after mixing, with equal weights, those of clients that have dropped out included; under a
    server they are those of the servers, with one its own model. Merged are shared parameters and buffers, of the row
    set `models`: personal ones (`model.shared`) remain those of the client whose samples are predicted, and what a
    method keeps for itself (Ditto's personal models) does not count. There is no fine-tuning and no `prediction`.
    Where the loss is not finite, there is no score.
    """

    def start(self, federation: Federation) -> None:
        """Read the task's score; without test data there is none."""
        names = ("merged_test_loss", f"merged_test_{federation.task.score}")
        self.logs = names if int(federation.data.sizes("test").sum()) else ()

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Add to the round that was just evaluated."""
        if trainer.state.fn != TrainerFn.FITTING or not int(pl_module.data.sizes("test").sum()):
            return
        federation, bank = pl_module.federation, pl_module.bank
        nodes = merged_nodes(federation)
        bank.scratch(MERGED)
        bank.mix([(equal_weights(nodes, federation.num_nodes), "models")], into=MERGED, where=nodes[:1])
        found = _on_all_samples(pl_module, int(nodes[0]))
        bank.abandon()
        bank.boundary = bank.boundary._replace(metrics={**bank.boundary.metrics, **found})


def merged_nodes(federation: Federation) -> Tensor:
    """Return the nodes whose models are averaged with each other, long: the servers, or the clients without them."""
    clients, nodes = federation.num_clients, federation.num_nodes
    return torch.arange(clients, nodes) if federation.servers_have_models else torch.arange(clients)


def equal_weights(nodes: Tensor, rows: int) -> Weights:
    """The mean of the nodes' rows, as the weights of one sum.

    Args:
        nodes: long [k].
        rows: number of rows.
    """
    shares = torch.full((len(nodes),), 1 / len(nodes), dtype=torch.float64)
    return Weights(torch.zeros_like(nodes), nodes, shares, (1, rows))


def _on_all_samples(module: Any, row: int) -> dict[str, float]:
    """Loss and score of one row of `MERGED`, with each client's personal part on its own samples."""
    owners = torch.nonzero(module.data.sizes("test")).squeeze(1)
    references = References((Term(MERGED, torch.full_like(owners, row)),), owners, "models")
    scores = module.engine.evaluate(references, "test")
    shares = scores.weights / scores.weights.sum()
    loss = float(scores.losses @ shares)
    name = module.task.score
    score = float(module.task.finish({mean: values @ shares for mean, values in scores.means.items()})[name])
    finite = bool(scores.losses.isfinite().all())
    return {"merged_test_loss": loss, f"merged_test_{name}": score if finite else torch.nan}
