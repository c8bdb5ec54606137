"""How evenly is accuracy spread over the clients?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.states import TrainerFn

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.functional import without_mean, worst_decile_mean

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Fairness(Monitor):
    """Variance of the clients' accuracies, and the mean of the best tenth, of the test and of the validation data.

    Logs `test_acc_variance` and `test_acc_best10`, and, where clients have validation data, `val_acc_variance`,
    `val_acc_best10` and `val_acc_worst10`; `test_acc_worst10` is a column of every run. Accuracies are from 0 to 1, the
    variance has n in its denominator, and a tenth is rounded up to whole clients. Clients without such data do not
    count. Only rounds with an evaluation have these numbers. What clients gain over training alone is in the report.
    """

    def start(self, federation: Federation) -> None:
        """Accuracies are of the data that clients have, and of tasks that have one."""
        kinds = {"test": ("variance", "best10"), "val": ("variance", "best10", "worst10")}
        splits = [s for s in kinds if int(federation.data.sizes(s).sum()) and "acc" in federation.task.numbers]
        self.logs = tuple(f"{split}_acc_{kind}" for split in splits for kind in kinds[split])

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Add to the round that was just evaluated."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        boundary = pl_module.bank.boundary
        found: dict[str, float] = {}
        for split in ("test", "val"):
            accuracy = boundary.evaluation.get(f"{split}_acc")
            if accuracy is None or accuracy.isnan().all() or f"{split}_acc" in without_mean(boundary.evaluation):
                continue
            known = accuracy[~accuracy.isnan()].double().cpu()
            found[f"{split}_acc_variance"] = float(known.var(correction=0))
            found[f"{split}_acc_best10"] = -worst_decile_mean(-known)
            if split == "val":  # every run has that of the test data
                found["val_acc_worst10"] = worst_decile_mean(known)
        pl_module.bank.boundary = boundary._replace(metrics={**boundary.metrics, **found})
