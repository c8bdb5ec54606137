"""The adapter of this library: each function plays rounds on the numbers of a case.

The arguments of a function are the inputs of its cases, which their files describe.
"""

from dfl_lightning.conformance.own.selections import (
    afind,
    afind_literal,
    dpfl,
    fdms,
    fdms_dropout,
    fdms_stale,
    fedfomo,
    panm,
    panm_literal,
)
from dfl_lightning.conformance.own.served import apfl, ditto, fedavg, fedper, fedprox, fedrep, ifca, per_fedavg

__all__ = [
    "afind",
    "afind_literal",
    "apfl",
    "ditto",
    "dpfl",
    "fdms",
    "fdms_dropout",
    "fdms_stale",
    "fedavg",
    "fedfomo",
    "fedper",
    "fedprox",
    "fedrep",
    "ifca",
    "panm",
    "panm_literal",
    "per_fedavg",
]
