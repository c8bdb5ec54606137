"""Outgoing: what leaves a client, in the place of the model that it trained."""

from dfl_lightning.callbacks.outgoing.a_little_is_enough import ALittleIsEnough
from dfl_lightning.callbacks.outgoing.choco import CHOCO
from dfl_lightning.callbacks.outgoing.compression import TopK
from dfl_lightning.callbacks.outgoing.noise import GaussianNoise
from dfl_lightning.callbacks.outgoing.noise_attack import NoiseAttack
from dfl_lightning.callbacks.outgoing.qsgd import QSGD
from dfl_lightning.callbacks.outgoing.sign_flip import SignFlip

__all__ = ["CHOCO", "QSGD", "ALittleIsEnough", "GaussianNoise", "NoiseAttack", "SignFlip", "TopK"]
