"""Parts of a run: policies by name, a network, data."""

import torch
from torch import nn

from dfl_lightning import callbacks as cb
from dfl_lightning.data import ClientData, FederatedData
from dfl_lightning.objectives import FedProx, GradientTracking, Plain, QGDSGDm

FEATURES, CLASSES = 5, 3

SELECTIONS = {
    "gossip": lambda: cb.Gossip(k=2),
    "all neighbours": lambda: cb.Gossip(k="all"),
    "no neighbours": lambda: cb.Gossip(k=0),
    "oracle": lambda: cb.Gossip(k="all", within="cluster"),
    "fixed neighbours": lambda: cb.Gossip(k=2, redraw=False),
    "afind": lambda: cb.AFIND(),
    "afind, uncentred": lambda: cb.AFIND(center=False, k=2),
    "afind, update of the round": lambda: cb.AFIND(proxy="delta"),
    "afind, first batch": lambda: cb.AFIND(proxy="grad_batch"),
    "afind as printed": lambda: cb.AFIND(nu=0.01, rule="literal", proxy="weight", center=False),
    "dpfl": lambda: cb.DPFL(budget=2, initial_epochs=2),
    "dpfl, always among all": lambda: cb.DPFL(budget=2, initial_epochs=2, period=2, repeat_bggc=True),
    "dpfl as printed": lambda: cb.DPFL(budget="all", initial_epochs=2, rule="literal"),
    "panm": lambda: cb.PANM(k=2, l=2, stage_one=2, tau=2),
    "panm, losses": lambda: cb.PANM(metric="loss", k=2, l=2, stage_one=2, tau=2),
    "panm as printed": lambda: cb.PANM(k=2, l=2, stage_one=2, tau=2, candidates="all", matching="literal"),
    "federico": lambda: cb.FedeRiCo(k=2),
    "pens": lambda: cb.PENS(k=2, sampled=3, top=2, stage_one=2),
    "ifca": lambda: cb.IFCA(),
}
AGGREGATIONS = {
    "uniform": lambda: cb.Uniform(),
    "half a step": lambda: cb.Uniform(server_step=0.5),
    "by samples": lambda: cb.SampleWeighted(),
    "boltzmann": lambda: cb.Boltzmann(),
    "boltzmann of others": lambda: cb.Boltzmann(temperature=0.1, include_self=False),
    "boltzmann of own losses": lambda: cb.Boltzmann(contribution="own"),
    "metropolis": lambda: cb.Metropolis(),
    "from the topology": lambda: cb.FromTopology(),
    "by scores": lambda: cb.ScoreWeighted(),
}
DROPOUTS = {
    "coins": lambda: cb.Bernoulli(rate=0.5),
    "half of them": lambda: cb.ExactCount(rate=0.5, full_first_round=True),
    "one of a group": lambda: cb.GroupedCount(rate=0.3),
    "outages": lambda: cb.Markov(rate=0.5, outage=2.0),
}
SUBSTITUTIONS = {"none": lambda: None, "friends": lambda: cb.FDMS(), "stale": lambda: cb.Stale()}
SUBSTITUTIONS["friends by distance"] = lambda: cb.FDMS(similarity="distance")
SUBSTITUTIONS["candidates"] = lambda: cb.FDMS(theta_scale=0.01)
THRESHOLDS = {
    "none": lambda: None,
    "adaptive": lambda: cb.AdaptiveThreshold(),
    "literal": lambda: cb.AdaptiveThreshold(rule="literal"),
}
OBJECTIVES = {"plain": Plain, "fedprox": FedProx, "tracking": GradientTracking, "quasi-global momentum": QGDSGDm}


class Planned(cb.Dropout):
    """A dropout with a given list of active clients for each round."""

    def __init__(self, up):
        super().__init__()
        self.up = torch.tensor(up)

    def draw(self, round):
        return self.up[round.index]


class Network(nn.Sequential):
    """Two layers; the second one can be personal."""

    def __init__(self):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            super().__init__(nn.Linear(FEATURES, 4), nn.ReLU(), nn.Linear(4, CLASSES))


class Toy(FederatedData):
    """Clients with the given numbers of samples; none is refused for having few."""

    def __init__(self, train, val, test, seed=0):
        super().__init__(num_clients=len(train))
        total = sum(train) + sum(val) + sum(test)
        draws = torch.Generator().manual_seed(seed)
        images = torch.randn(total, FEATURES, generator=draws)
        labels = (images @ torch.randn(FEATURES, CLASSES, generator=draws)).argmax(1)
        parts = torch.arange(total).split([*train, *val, *test])
        m = len(train)
        self._clients = ClientData(
            images=images,
            labels=labels,
            train=parts[:m],
            val=parts[m : 2 * m],
            test=parts[2 * m :],
            global_test=torch.arange(min(total, 3)),
            clusters=None,
            num_classes=CLASSES,
            scale=torch.tensor(1.0),
            shift=torch.tensor(0.0),
        )

    def load(self):
        raise AssertionError("everything is there already")

    def setup(self, stage=None):
        pass
