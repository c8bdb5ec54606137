"""Substitution: what is mixed for the clients that dropped out."""

from dfl_lightning.callbacks.substitution.fdms import FDMS
from dfl_lightning.callbacks.substitution.stale import Stale

__all__ = ["FDMS", "Stale"]
