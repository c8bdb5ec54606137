"""Cases that tests take in turn."""

import itertools

import pytest


def in_turn(*lists, every=2):
    """List all combinations of some lists as parameters of a test; only one in `every` runs without `-m slow`.

    They are chosen such that each value takes its turn.
    """
    combinations = itertools.product(*(enumerate(values) for values in lists))
    return [
        pytest.param(*(value for _, value in case), marks=[pytest.mark.slow] * (sum(at for at, _ in case) % every > 0))
        for case in combinations
    ]
