"""Refusal of draws from global generators during an engine's work."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from dfl_lightning.data import ClientData
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.placing import parts_of
from dfl_lightning.utils.randomness.global_generators import name_of, no_global_draws


def refuse_global_draws(config: EngineConfig, data: ClientData, work: str) -> AbstractContextManager[None]:
    """Raise if a block draws from a global generator, and name the parts of the run that may have drawn.

    Args:
        config: the engine's config.
        data: the clients' data.
        work: name of the work that the block does.
    """
    return no_global_draws(partial(_sentence, config, data, work))


def _sentence(config: EngineConfig, data: ClientData, work: str, generators: str) -> str:
    parts: dict[str, list[object]] = {
        "model.network": [config.network, *config.network.modules()],
        "model.loss": list(parts_of(config.loss)),
        "model.metrics": list(config.metrics.values()),
        "objective": [config.objective],
        "prediction": [config.prediction],
        "augmentation": [data.augment],
    }
    names = [
        f"{part} {name_of(things[0])}" for part, things in parts.items() if any(_is_users(thing) for thing in things)
    ]
    return (
        f"{work} draws from {generators}, whose state is not in checkpoints, so that a resumed run would differ "
        f"({' or '.join(names) or f'model.network {name_of(config.network)}'}); draw nothing there, "
        "except by dropout layers of torch.nn"
    )


def _is_users(thing: object) -> bool:
    """Return True if a part of local work is the user's own: neither from this package nor from its libraries."""
    packages = ("builtins", "dfl_lightning", "torch", "torchmetrics", "torchvision")
    return thing is not None and name_of(thing).partition(".")[0] not in packages
