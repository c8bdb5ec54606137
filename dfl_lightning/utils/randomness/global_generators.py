"""The generators of whole processes: torch's, Python's and numpy's. No run may depend on them, for none is saved.

A draw from one of them is detected by its state before and after. A generator that was made without a seed
(`numpy.random.default_rng()`, `random.Random()`) cannot be seen.
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
"""Its state in memory: 624 words and a position."""


def states() -> dict[str, Any]:
    """The state of every global generator of a process, by the generator's name; some microseconds each."""
    found = {
        "torch's global generator": torch.get_rng_state().numpy().tobytes(),
        "Python's random": random.getstate(),
        "numpy.random": _state_of_numpy(),
    }
    if torch.cuda.is_initialized():
        generators = torch.cuda.default_generators
        found["torch's global generators of GPUs"] = [g.get_state().numpy().tobytes() for g in generators]
    return found


def changed(before: dict[str, Any]) -> list[str]:
    """Names of the generators whose state is not what it was; one that has come into being since counts for nothing."""
    now = states()
    return [name for name, state in before.items() if now[name] != state]


@contextmanager
def no_global_draws(refusal: Callable[[str], str]) -> Iterator[None]:
    """Refuse what draws from a global generator inside.

    Args:
        refusal: names of generators -> the sentence that says who drew from them, and what to do instead.

    Raises:
        UserError: the sentence.
    """
    before = states()
    yield
    drawn = changed(before)
    if drawn:
        raise UserError(refusal(" and ".join(drawn)))


def name_of(thing: object) -> str:
    """How a user finds a class or a function: `mine.LowestLoss`."""
    maker = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{maker.__module__}.{maker.__qualname__}"


def _state_of_numpy() -> Any:
    generator = np.random.get_bit_generator()  # type: ignore[attr-defined]
    if isinstance(generator, np.random.MT19937):  # its `state` would take a hundred times as long
        return ctypes.string_at(generator.ctypes.state_address, _BYTES_OF_MT19937)
    return repr(generator.state)
