"""Decentralized federated learning as one modular Lightning trainer.

>>> from dfl_lightning import DFLModule, DFLTrainer, callbacks, data, models
"""

from dfl_lightning import callbacks, data, models
from dfl_lightning.errors import UserError
from dfl_lightning.module import DFLModule
from dfl_lightning.round import Round, RoundCallback
from dfl_lightning.trainer import DFLTrainer

__all__ = ["DFLModule", "DFLTrainer", "Round", "RoundCallback", "UserError", "callbacks", "data", "models"]
__version__ = "0.1.0"
