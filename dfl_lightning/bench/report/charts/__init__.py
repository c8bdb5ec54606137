"""The charts of the report: each is a function of runs that returns an Altair chart."""

from dfl_lightning.bench.report.charts.clients import gain_over_local, sorted_clients
from dfl_lightning.bench.report.charts.cost import accuracy_by_bytes, accuracy_by_time, accuracy_by_trainings
from dfl_lightning.bench.report.charts.curves import client_bands, learning_curves
from dfl_lightning.bench.report.charts.links import collaboration_graph, link_heatmap
from dfl_lightning.bench.report.charts.over_run import who_from_whom
from dfl_lightning.bench.report.charts.points.front import accuracy_front
from dfl_lightning.bench.report.charts.points.sweep import score_by_setting, score_by_two_settings
from dfl_lightning.bench.report.charts.reasons import dropouts, found_over_rounds, similarities

__all__ = [
    "accuracy_by_bytes",
    "accuracy_by_time",
    "accuracy_by_trainings",
    "accuracy_front",
    "client_bands",
    "collaboration_graph",
    "dropouts",
    "found_over_rounds",
    "gain_over_local",
    "learning_curves",
    "link_heatmap",
    "score_by_setting",
    "score_by_two_settings",
    "similarities",
    "sorted_clients",
    "who_from_whom",
]
