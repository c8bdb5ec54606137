"""All methods by the names of their files."""

from plain import afind, dpfl, fdms, fedfomo, mixed, panm, served

METHODS = {
    "afind": afind.METHOD,
    "afind_literal": afind.LITERAL,
    "dpfl": dpfl.METHOD,
    "fdms": fdms.METHOD,
    "fdms_dropout": fdms.DROPOUT,
    "fdms_stale": fdms.STALE,
    "fedfomo": fedfomo.METHOD,
    "d2": mixed.D2,
    "dsgd": mixed.DSGD,
    "qg_dsgdm": mixed.QG,
    "federico": mixed.FEDERICO,
    "gossip": mixed.GOSSIP,
    "gradient_tracking": mixed.TRACKING,
    "knn_per": mixed.KNN,
    "pacfl": mixed.PACFL,
    "pens": mixed.PENS,
    "pfedgraph": mixed.PFEDGRAPH,
    "push_sum": mixed.PUSH,
    "apfl": served.APFL,
    "ditto": served.DITTO,
    "fedavg": served.FEDAVG,
    "fedper": served.FEDPER,
    "fedprox": served.FEDPROX,
    "fedrep": served.FEDREP,
    "ifca": served.IFCA,
    "per_fedavg": served.PER_FEDAVG,
    "panm": panm.METHOD,
    "panm_literal": panm.LITERAL,
}
