"""Metrics of each client: those with a name, those of torchmetrics, and where a number is not defined."""

from dfl_lightning.metrics.built_in import AUROC, ECE, AveragePrecision, BalancedAccuracy, BuiltIn, F1Macro
from dfl_lightning.metrics.client_metric import ClientMetric, metrics_of
from dfl_lightning.metrics.names import built_in, columns_of
from dfl_lightning.metrics.trial import about_clients, try_metric

__all__ = [
    "AUROC",
    "ECE",
    "AveragePrecision",
    "BalancedAccuracy",
    "BuiltIn",
    "ClientMetric",
    "F1Macro",
    "about_clients",
    "built_in",
    "columns_of",
    "metrics_of",
    "try_metric",
]
