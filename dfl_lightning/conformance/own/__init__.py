"""The adapter of this library: each function plays rounds on the numbers of a case.

The arguments of a function are the inputs of its cases, which their files describe.
"""

from dfl_lightning.conformance.own.graphs import base_graph, epidemic, one_peer
from dfl_lightning.conformance.own.mixing import (
    d2,
    dispfl,
    dsgd,
    federico,
    federico_em,
    gossip,
    gradient_tracking,
    knn_per,
    pacfl,
    pens,
    pfedgraph,
    push_sum,
    qg_dsgdm,
)
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
    "base_graph",
    "d2",
    "dispfl",
    "ditto",
    "dpfl",
    "dsgd",
    "epidemic",
    "fdms",
    "fdms_dropout",
    "fdms_stale",
    "fedavg",
    "federico",
    "federico_em",
    "fedfomo",
    "fedper",
    "fedprox",
    "fedrep",
    "gossip",
    "gradient_tracking",
    "ifca",
    "knn_per",
    "one_peer",
    "pacfl",
    "panm",
    "panm_literal",
    "pens",
    "per_fedavg",
    "pfedgraph",
    "push_sum",
    "qg_dsgdm",
]
