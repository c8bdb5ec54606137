"""AFIND+'s proxies and printed weights on three clients, with numbers that can be checked by hand."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

from dfl_lightning.callbacks import AFIND, Boltzmann, Gossip, Uniform
from dfl_lightning.data import FromDataset
from dfl_lightning.models import MLP


@pytest.fixture
def of_samples(start):
    """Run a round of three clients that do not train, with given samples and parameters of a network of two layers.

    Inputs and hidden units are two numbers; there are three classes. A client's parameters are those given for it.
    """

    def _of(inputs, labels, parameters, *policies, engine="stacked"):
        x, y = torch.tensor(inputs).flatten(0, 1), torch.tensor(labels).flatten()
        each = len(y) // 3
        parts = [list(range(client * each, (client + 1) * each)) for client in range(3)]
        data = FromDataset(TensorDataset(x, y), parts=parts, num_classes=3, test_fraction=0.0)
        settings = {"network": MLP(hidden=[2]), "local_epochs": 0, "trainer": {"engine": engine}, "batch_size": each}
        run = start(*policies, clients=3, data=data, **settings)
        run.write(torch.stack([torch.cat([torch.tensor(part).flatten() for part in row]) for row in parameters]))
        return run.go().rounds[0]

    return _of


ONES = [[[0.0, 0], [0, 0]], [1.0, 1]]
"""A first layer whose outputs are 1 and 1 for all inputs."""

BALANCED = [[[1.0, -1], [-1, 1], [0, 0]], [0.0, 0, 0]]
"""A head with the same score for each class where both hidden units are equal."""


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_gradients_are_taken_at_the_receivers_model_on_one_batch(engine, of_samples):
    """Each class has probability 1/3, so the error at the hidden units is (-1, 1) for class 0 and (1, -1) for class 1.

    The gradient of the first layer is this times (x, 1). With x = (2, 0), (0, 2) and (2, 0) of the classes 0, 0 and 1,
    the cosines at client 0's model are 1 / 5 and -1. At client 1's model, whose head is 0, all gradients are 0.
    """
    zero = [[[0.0, 0]] * 3, [0.0] * 3]
    models = [[*ONES, *BALANCED], [*ONES, *zero], [*ONES, *BALANCED]]
    policies = AFIND(proxy="grad_at_receiver", center=False, k=1), Uniform()
    round = of_samples([[[2.0, 0]], [[0.0, 2]], [[2.0, 0]]], [[0], [0], [1]], models, *policies, engine=engine)
    assert round.similarity[0, 1:].tolist() == pytest.approx([0.2, -1], abs=1e-6)
    assert round.similarity[1, [0, 2]].tolist() == [0, 0]
    assert round.similarity[2, :2].tolist() == pytest.approx([-1, -0.2], abs=1e-6)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_activations_are_the_mean_inputs_of_the_head(engine, of_samples):
    """The first layer copies its inputs, and ReLU cuts them at 0: the means are (2, 0), (0, 2) and (3, 0).

    Less their mean (5/3, 2/3) they are (1, -2) / 3, (-5, 4) / 3 and (4, -2) / 3.
    """
    copying = [[[1.0, 0], [0, 1]], [0.0, 0]]
    inputs = [[[1.0, 0], [3.0, -2]], [[0.0, 1], [0.0, 3]], [[2.0, 0], [4.0, 0]]]
    policies = AFIND(proxy="activations", k=1), Uniform()
    round = of_samples(inputs, [[0, 1]] * 3, [[*copying, *BALANCED]] * 3, *policies, engine=engine)
    expected = [[-13 / math.sqrt(205), 0.8], [-13 / math.sqrt(205), -28 / math.sqrt(820)]]
    assert round.similarity[0, 1:].tolist() == pytest.approx(expected[0], abs=1e-6)
    assert round.similarity[1, [0, 2]].tolist() == pytest.approx(expected[1], abs=1e-6)


@pytest.mark.parametrize("engine", ["stacked", "loop"])
def test_printed_weights_are_of_the_receivers_loss_at_the_senders(engine, of_samples):
    """Client 0's model gives the classes 1/2, 1/4 and 1/4; its loss is ln 2 for class 0, and ln 4 for class 1.

    So the weights are in the ratio 1/2 to 1/4. Client 1's model gives each class 1/3, and has the same loss everywhere.
    """
    head = [[[0.0, 0]] * 3, [math.log(2), 0.0, 0]]
    models = [[*ONES, *head], [*ONES, *BALANCED], [*ONES, *head]]
    policies = Gossip(k="all"), Boltzmann(contribution="printed", include_self=False)
    round = of_samples([[[2.0, 0]], [[0.0, 2]], [[2.0, 0]]], [[2], [0], [1]], models, *policies, engine=engine)
    assert round.weights[0].tolist() == pytest.approx([0, 2 / 3, 1 / 3], abs=1e-6)
    assert round.weights[1].tolist() == pytest.approx([0.5, 0, 0.5], abs=1e-6)
    assert round.weights[2].tolist() == pytest.approx([1 / 3, 2 / 3, 0], abs=1e-6)
