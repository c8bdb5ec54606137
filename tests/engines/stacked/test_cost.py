"""Cost of a step, against numbers counted by hand."""

import functools
from dataclasses import replace

import pytest
import torch
from threads import threads
from torch import nn

from dfl_lightning.engines.cohorts import plan_cohorts
from dfl_lightning.engines.stacked import cost as costs
from dfl_lightning.engines.stacked.cost import Cost
from dfl_lightning.models import MLP, LeNet


def cost_of(federation, make_data, network, shape, **options):
    return federation(network=network, data=make_data((6, 4), shape), **options).engine.cost


def test_a_perceptron_counted_by_hand(federation, make_data):
    network = MLP(hidden=[5, 4], input_shape=(1, 4, 4), num_classes=3)
    cost = cost_of(federation, make_data, network, (1, 4, 4), batch_size=7, dtype=torch.float32)
    assert cost.operations == 2 * (16 * 5 + 5 * 4 + 4 * 3)
    hidden = 2 * (5 + 4)  # each linear layer and each relu; flattening writes nothing
    assert cost.activations == 16 + hidden + 3
    assert cost.columns == 16 * 5 + 5 + 5 * 4 + 4 + 4 * 3 + 3
    assert cost.bytes_per_client == 4 * (2 * 7 * cost.activations + 2 * cost.columns)


def test_lenet_counted_by_hand(federation, make_data):
    network = LeNet(input_shape=(3, 32, 32), num_classes=10)
    cost = cost_of(federation, make_data, network, (3, 32, 32), dtype=torch.float32)
    first, second = 6 * 28 * 28, 16 * 10 * 10  # after the convolutions; a relu works behind its pooling
    assert cost.activations == 3 * 32 * 32 + first + 2 * first // 4 + second + 2 * second // 4 + 2 * 120 + 2 * 84 + 10
    products = first * 3 * 25 + second * 6 * 25 + 400 * 120 + 120 * 84 + 84 * 10
    assert cost.operations == 2 * products
    assert cost.columns == 62006
    assert cost.calls == 2 * 3 + 1 + 2 * 2 + 1  # convolution, pooling, relu; flattening; linear, relu; the last layer


@pytest.mark.parametrize(
    ("optimizer", "states"),
    [
        (functools.partial(torch.optim.SGD, lr=0.1), 0),
        (functools.partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1),
        (torch.optim.Adam, 2),
        (functools.partial(torch.optim.Adam, amsgrad=True), 3),
        (torch.optim.RMSprop, 1),
        (functools.partial(torch.optim.RMSprop, momentum=0.9, centered=True), 3),
    ],
    ids=["sgd", "momentum", "adam", "amsgrad", "rmsprop", "centred rmsprop"],
)
def test_optimizer_states_are_counted_per_model_parameter(federation, make_network, optimizer, states):
    cost = federation(network=make_network("mlp"), optimizer=optimizer).engine.cost
    assert cost.states == states
    assert cost.columns == 6 * 5 + 5 + 5 * 3 + 3
    activations = 6 + 2 * 5 + 3
    assert cost.bytes_per_client == 8 * (2 * 4 * activations + (2 + states) * cost.columns)  # float64, batches of 4


def test_cohort_widths_respect_cache_and_overhead():
    cost = Cost(activations=1000, operations=10**6, calls=12, columns=10**4, states=1, batch_size=10, itemsize=4)
    assert cost.bytes_per_client == 4 * (2 * 10 * 1000 + 3 * 10**4) == 200_000
    assert cost.widest == 36e6 // 200_000 == 180
    seconds = 3 * 10**6 * 10 / 50e9 + 20 * 10**4 / 20e9
    assert cost.narrowest == round(8 * 8e-4 / seconds) == 10
    huge = Cost(activations=10**8, operations=10**12, calls=100, columns=10**9, states=2, batch_size=100, itemsize=4)
    assert huge.widest == huge.narrowest == 1


def test_many_small_layers_make_cohorts_wider_than_the_cache():
    few = Cost(activations=40_000, operations=10**7, calls=12, columns=10**4, states=0, batch_size=10, itemsize=4)
    more, most = replace(few, calls=48), replace(few, calls=480)
    work = 3 * 10**7 * 10 / 50e9 + 20 * 10**4 / 20e9
    assert few.narrowest == most.narrowest == round(8 * 8e-4 / work) == 1
    assert few.widest == more.widest == 36e6 // few.bytes_per_client == 10  # the overhead of a step weighs less
    assert most.widest == round(8 * 40 * 8e-4 / work) == 43


def test_few_clients_of_a_large_network_keep_threads_busy():
    """Twelve clients with the transformer of text.yaml: the overhead alone would be worth cohorts of four."""
    cost = Cost(90_000, operations=6_680_000, calls=46, columns=114_528, states=2, batch_size=16, itemsize=4)
    assert (cost.widest, cost.narrowest) == (4, 1)
    assert len(plan_cohorts([1] * 12, cost.narrowest, cost.widest)) == 8
    assert len(plan_cohorts([1] * 100, cost.narrowest, cost.widest)) == 32


def test_counting_changes_nothing(federation, make_network):
    network = make_network("batchnorm")
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    federation("batchnorm", network=network)
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())


def test_memory_is_that_of_the_cohorts_under_way(federation, monkeypatch):
    monkeypatch.setattr(costs, "OVERHEAD", 1e-9)
    for count in (1, 2):
        with threads(count):
            engine = federation(sizes=(4,) * 10 + (8,) * 10).engine
            largest = sorted(map(len, engine.cohorts), reverse=True)[:count]
            assert engine.cohort_bytes == sum(largest) * engine.cost.bytes_per_client


def test_a_network_of_one_layer_costs_its_products(federation, make_data):
    network = nn.Sequential(nn.Flatten(), nn.Linear(6, 3))
    cost = cost_of(federation, make_data, network, (6,))
    assert (cost.activations, cost.operations, cost.columns) == (6 + 3, 2 * 18, 21)
