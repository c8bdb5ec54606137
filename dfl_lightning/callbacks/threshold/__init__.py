"""Thresholds: what score is enough to be learned from."""

from dfl_lightning.callbacks.threshold.adaptive import AdaptiveThreshold

__all__ = ["AdaptiveThreshold"]
