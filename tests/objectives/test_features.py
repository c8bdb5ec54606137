"""Inputs of layers that an objective asks for by name."""

import pytest
import torch
from banks import make_federation
from torch import nn

from dfl_lightning.bank.references import References
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.objectives import Objective
from dfl_lightning.utils.errors import UserError

ALL = References.rows("models", torch.arange(3))


class Watcher(Objective):
    stackable = True

    def __init__(self, *layers):
        self.features, self.seen = layers, []

    def step(self, ctx):
        model, batch = ctx.model(), ctx.next_batch()
        for layer in self.features:
            self.seen.append((batch.inputs, model.params, model.features(batch, layer)))
        model.update(model.grad(batch))


@pytest.mark.parametrize(("layer", "depth"), [("head", 2), ("2", 2), ("0", 0), ("1", 1)])
@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_features_are_the_input_of_the_named_layer(engine, layer, depth):
    objective = Watcher(layer)
    f = make_federation(objective=objective, engine=engine, sizes=(8, 8, 8))
    f.engine.train(ALL, f.training(epochs=1, lr=0.0))
    inputs, params, found = objective.seen[0]
    if engine is LoopEngine:
        inputs, params, found = inputs[None], [p[None] for p in params], found[None]
    for i in range(len(found)):
        hidden = inputs[i]
        if depth:
            hidden = hidden @ params[0][i].T + params[1][i]
        if depth == 2:
            hidden = hidden.tanh()
        torch.testing.assert_close(found[i], hidden, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_an_unknown_layer_is_refused_with_the_existing_ones(engine):
    with pytest.raises(UserError, match=r"Watcher wants the input of the layer 'fc', which .* its layers are 0, 1, 2"):
        make_federation(objective=Watcher("fc"), engine=engine)


def test_a_container_needs_the_loop_engine():
    network = nn.Sequential(nn.Sequential(nn.Linear(6, 4), nn.ReLU()), nn.Linear(4, 3))
    with pytest.raises(CannotStack, match="the input of '0' is needed, but it consists of several layers"):
        make_federation(network=network, objective=Watcher("0"), engine=StackedEngine)
    make_federation(network=network, objective=Watcher("0"), engine=LoopEngine)


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_attached_values_are_attributes_of_the_batch(engine):
    class Attaching(Objective):
        stackable = True

        def step(self, ctx):
            batch = ctx.next_batch().attach(twice=2 * ctx.next_batch().inputs)
            assert batch.twice.shape == batch.attached["twice"].shape
            with pytest.raises(AttributeError, match="a batch has no attribute 'thrice'"):
                _ = batch.thrice

    f = make_federation(objective=Attaching(), engine=engine)
    f.engine.train(ALL, f.training(epochs=1))


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_assigned_parameters_replace_the_model(engine):
    class Zero(Objective):
        stackable = True

        def step(self, ctx):
            ctx.next_batch()
            ctx.model().assign([0 * p for p in ctx.model().params])

    f = make_federation(objective=Zero(), engine=engine)
    f.engine.train(ALL, f.training(epochs=1))
    assert not f.bank.rows("trained").any()
