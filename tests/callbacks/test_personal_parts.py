"""Personal parameters never leave their client: changes of one client's do not affect others."""

import networkx as nx
import pytest
import torch

from dfl_lightning.callbacks import (
    AFIND,
    DPFL,
    PANM,
    PENS,
    AdaptiveThreshold,
    Bernoulli,
    Boltzmann,
    FedeRiCo,
    Gossip,
    SampleWeighted,
    ScoreWeighted,
    Stale,
    Uniform,
)
from dfl_lightning.data import Digits, RotatedClusters
from dfl_lightning.models import MLP
from dfl_lightning.objectives import Plain

POLICIES = {
    "gossip, uniform": lambda: [Gossip(k=3), Uniform()],
    "gossip, boltzmann": lambda: [Gossip(k="all"), Boltzmann()],
    "oracle, by samples": lambda: [Gossip(k="all", within="cluster"), SampleWeighted()],
    "afind": lambda: [AFIND(), AdaptiveThreshold(), Boltzmann()],
    "afind, weights": lambda: [AFIND(proxy="weight", center=False), AdaptiveThreshold(), Boltzmann()],
    "dpfl": lambda: [DPFL(budget=2), SampleWeighted()],
    "panm, gradients": lambda: [PANM(k=3, l=2, stage_one=2, tau=2), Uniform()],
    "panm, losses": lambda: [PANM("loss", k=3, l=2, stage_one=2, tau=2), Uniform()],
    "federico": lambda: [FedeRiCo(k=3), ScoreWeighted()],
    "pens": lambda: [PENS(k=3, sampled=3, top=2, stage_one=2), Uniform()],
    "stale": lambda: [Gossip(k=3), Boltzmann(), Bernoulli(0.3), Stale()],
}
every_policy = pytest.mark.parametrize("name", POLICIES)


@pytest.fixture
def digits(start):
    """Make six clients; 0 only sends, to all others, so that its shared parameters depend on nothing personal.

    Only the personal parameters are trained; the shared ones start apart and are moved by mixing alone. So the
    others may notice client 0's shared parameters, which are the same whatever its personal ones are.
    """

    def _start(name, shared, change=0.0):
        graph = nx.complete_graph(6, create_using=nx.DiGraph)
        graph.remove_edges_from(list(graph.in_edges(0)))
        run = start(
            *POLICIES[name](),
            topology=graph,
            data=Digits(num_clients=6, samples_per_client=12, val_fraction=0.25, partition=RotatedClusters([0, 180])),
            network=MLP(hidden=[8]),
            init="independent",
            shared=shared,
            local_epochs=0,
            objective=Plain(personal_epochs=2),
        )
        layout = run.module.federation.layout
        models = run.models.clone()
        models[0, layout.module_columns("head").mask(layout.width)] += change
        run.write(models)
        return run

    return _start


@every_policy
def test_personal_parameters_stay_with_their_client_and_influence_no_other(name, digits):
    usual, changed = digits(name, ["features.*"]), digits(name, ["features.*"], change=1.0).go(4)
    layout = usual.module.federation.layout
    personal, first = layout.personal.mask(layout.width), usual.models.clone()
    for one, other in zip(usual.go(4).rounds, changed.rounds, strict=True):
        assert torch.equal(one.after[1:], other.after[1:])
        assert torch.equal(one.selected[1:], other.selected[1:])
        assert not torch.equal(one.after[0], other.after[0])
        assert torch.equal(one.after[:, personal], one.trained[:, personal])
        models, proxies = one.metrics["models_received"], one.metrics["proxies_received"]
        assert models > 0
        assert one.metrics["bytes_received"] == pytest.approx(4 * (64 * 8 + 8) * (models + proxies))
    assert not torch.equal(usual.models[1:, ~personal], first[1:, ~personal])
    assert not torch.equal(usual.models[:, personal], first[:, personal])


@every_policy
def test_same_parameters_influence_others_if_shared(name, digits):
    usual, changed = digits(name, ["*"]).go(4), digits(name, ["*"], change=1.0).go(4)
    assert not torch.equal(usual.models[1:], changed.models[1:])
