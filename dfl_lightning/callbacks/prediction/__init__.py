"""Prediction: what classes clients predict, beyond the scores of one network."""

from dfl_lightning.callbacks.prediction.knn import KNN
from dfl_lightning.callbacks.prediction.mixture import Mixture

__all__ = ["KNN", "Mixture"]
