"""Detection of draws from the global random generators of torch, Python and numpy, which a run must not use.

Checkpoints do not contain their states. A draw is detected by comparing the states before and after. A generator that
was made without a seed (`numpy.random.default_rng()`, `random.Random()`) cannot be detected.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from dfl_lightning.utils.errors import UserError

_BYTES_OF_MT19937 = 4 * (624 + 1)
"""Size of the state of numpy's default generator in memory, 624 words and a position."""


def states() -> dict[str, Any]:
    """Return the states of all global generators of the process by name; this takes some microseconds for each."""
    by_name = {
        "torch's global generator": torch.get_rng_state().numpy().tobytes(),
        "Python's random": random.getstate(),
        "numpy.random": _state_of_numpy(),
    }
    if torch.cuda.is_initialized():
        generators = torch.cuda.default_generators
        by_name["torch's global generators of GPUs"] = [g.get_state().numpy().tobytes() for g in generators]
    return by_name


def changed(before: dict[str, Any]) -> list[str]:
    """Return the names of the generators whose states have changed; generators that are new since then do not count."""
    now = states()
    return [name for name, state in before.items() if now[name] != state]


@contextmanager
def no_global_draws(refusal: Callable[[str], str]) -> Iterator[None]:
    """Raise if the code of a block draws from a global generator.

    Args:
        refusal: function that makes the sentence of the error from the names of the generators.

    Raises:
        UserError: the block has drawn from a global generator.
    """
    before = states()
    yield
    drawn = changed(before)
    if drawn:
        raise UserError(refusal(" and ".join(drawn)))


def name_of(thing: object) -> str:
    """Return the full name of a class, of a function, or of an object's class, for example `mine.LowestLoss`."""
    maker = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{maker.__module__}.{maker.__qualname__}"


def _state_of_numpy() -> Any:
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if isinstance(generator, np.random.MT19937):  # reading its `state` would take a hundred times as long
        return ctypes.string_at(generator.ctypes.state_address, _BYTES_OF_MT19937)
    return repr(generator.state)
