"""The spread of the clients' scores, which are accuracies for classes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lightning.pytorch.trainer.states import TrainerFn

from dfl_lightning.callbacks.base import Monitor, honest_clients
from dfl_lightning.functional import of_clients, without_mean, worst_decile_mean

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Fairness(Monitor):
    """Variance of the clients' scores, and the means of the best and worst tenth, on test and validation data.

    Logs `test_acc_variance` and `test_acc_best10`, and, if clients have validation data, `val_acc_variance`,
    `val_acc_best10` and `val_acc_worst10`; `test_acc_worst10` is a column of every run. These names are for classes,
    with accuracies from 0 to 1. Other tasks have columns named after their own score, such as `test_rmse_variance`; the
    best scores are the lowest ones if a lower score is better. The variance has n in its denominator, and a tenth is
    rounded up to whole clients. Clients without such data and adversaries do not count. Only rounds with an evaluation
    have these numbers. The report compares clients with training alone.
    """

    def start(self, federation: Federation) -> None:
        """Declare a column for each measure of each split that has data."""
        kinds = {"test": ("variance", "best10"), "val": ("variance", "best10", "worst10")}
        splits, score = [split for split in kinds if int(federation.data.sizes(split).sum())], federation.task.score
        self.logs = tuple(f"{split}_{score}_{kind}" for split in splits for kind in kinds[split])

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Add the measures to the metrics of the round that was just evaluated."""
        if trainer.state.fn != TrainerFn.FITTING:
            return
        boundary, task = pl_module.bank.boundary, pl_module.federation.task
        results = of_clients(boundary.evaluation, honest_clients(pl_module.federation))
        measures: dict[str, float] = {}
        for split in ("test", "val"):
            name = f"{split}_{task.score}"
            scores = results.get(name)
            if scores is None or scores.isnan().all() or name in without_mean(results, task.score):
                continue
            known = scores[~scores.isnan()].double().cpu()
            sign = 1 if task.higher_is_better else -1
            measures[f"{name}_variance"] = float(known.var(correction=0))
            measures[f"{name}_best10"] = -sign * worst_decile_mean(-sign * known)
            if split == "val":  # every run has the worst tenth of the test data
                measures[f"{name}_worst10"] = sign * worst_decile_mean(sign * known)
        pl_module.bank.boundary = boundary._replace(metrics={**boundary.metrics, **measures})
