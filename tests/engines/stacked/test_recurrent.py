"""Recurrent layers side by side, client by client, and in rounds of both engines, against plain layers."""

import functools

import pytest
import torch
from banks import own
from networks import Forward
from torch import nn

from dfl_lightning.engines.factory import make_engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.recurrent_layers import one_layer
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.engines.stacked.layers import recurrent
from dfl_lightning.utils.errors import UserError

STEPS, NUMBERS, UNITS, BATCH = 5, 3, 4, 4


class Net(nn.Module):
    """A recurrent layer whose outputs and last states both count, from learned first states or from zeros.

    Args:
        kind: the layer.
        given: whether the first states are given.
        batch_first: see the layer.
        options: of the layer.
    """

    def __init__(self, kind, given=False, batch_first=True, **options):
        super().__init__()
        self.own = kind(NUMBERS, UNITS, batch_first=batch_first, **options)
        states = self.own.num_layers * (1 + self.own.bidirectional)
        self.first = nn.Parameter(torch.rand(states, 1, self.own.proj_size or UNITS)) if given else None
        self.cells = nn.Parameter(torch.rand(states, 1, UNITS)) if given and kind is nn.LSTM else None
        self.batch_first = batch_first

    def forward(self, x):
        states = None if self.first is None else self.first.expand(-1, x.size(0), -1)
        if self.cells is not None:
            states = (states, self.cells.expand(-1, x.size(0), -1))
        x = x if self.batch_first else x.transpose(0, 1)
        out, last = self.own(x, states)
        last = torch.cat(last, -1) if isinstance(self.own, nn.LSTM) else last
        out = out if self.batch_first else out.transpose(0, 1)
        return torch.cat([out.flatten(1), last.transpose(0, 1).flatten(1)], 1)


OPTIONS = {
    "plain": {},
    "without biases": {"bias": False, "batch_first": False},
    "given states": {"given": True},
    "two layers": {"num_layers": 2, "given": True, "batch_first": False},
    "both directions": {"bidirectional": True},
    "all": {"num_layers": 3, "bidirectional": True, "dropout": 0.4, "given": True},
    "dropout, time first": {"num_layers": 2, "dropout": 0.5, "batch_first": False},
}
CASES = [(kind, name, options) for kind in (nn.RNN, nn.GRU, nn.LSTM) for name, options in OPTIONS.items()]
CASES += [
    (nn.RNN, "relu", {"nonlinearity": "relu", "num_layers": 2}),
    (nn.LSTM, "projection", {"proj_size": 2, "num_layers": 2, "bidirectional": True, "given": True}),
]


@pytest.fixture(params=[True, False], ids=["side by side", "client by client"])
def form(request, monkeypatch):
    """Each form in turn, whatever the sizes."""
    monkeypatch.setattr(recurrent, "is_side_by_side", lambda layer, x: request.param)
    return request.param


@pytest.mark.parametrize(("kind", "name", "options"), CASES, ids=lambda part: getattr(part, "__name__", part))
def test_every_option_gives_outputs_states_and_gradients_of_plain_layers(compare, form, kind, name, options):
    torch.manual_seed(0)
    inputs = torch.randn(3, BATCH, STEPS, NUMBERS, dtype=torch.float64)
    stacked = compare(Net(kind, **options), inputs, tolerance=1e-12)
    compare(stacked, inputs, sizes=[BATCH, 1, 3], tolerance=1e-12)
    compare(stacked, inputs, training=False, tolerance=1e-12)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_states_that_all_clients_share_and_single_sequences(compare, form, kind):
    def common(x, layer):
        first = torch.full((1, x.size(0), UNITS), 0.3, dtype=x.dtype)
        return layer(x, (first, -first) if kind is nn.LSTM else first)[0][:, -1]

    def single(x, layer):
        return layer(x[:, 0], None)[0]

    torch.manual_seed(0)
    layer = kind(NUMBERS, UNITS, batch_first=True)
    inputs = torch.randn(3, BATCH, STEPS, NUMBERS, dtype=torch.float64)
    compare(Forward(common, layer), inputs, tolerance=1e-12)
    compare(Forward(single, layer), inputs, tolerance=1e-12)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_wrong_inputs_and_states_raise_as_they_do_in_torch(stack, kind):
    from dfl_lightning.engines.stacked.layers.passes import Pass

    network = nn.Sequential(nn.Identity(), kind(NUMBERS, UNITS, batch_first=True)).double()
    rule = recurrent.recurrent(lambda now, layer, x: x)
    now = Pass(stack.tensors(stack.clients(network)), False)
    given = recurrent.Activation(torch.zeros(3, BATCH, STEPS, NUMBERS + 1, dtype=torch.float64), 3)
    with pytest.raises(RuntimeError, match=r"takes inputs of 3 numbers a step, not \(4, 5, 4\)"):
        rule(network[1], "1", now, given)
    given = recurrent.Activation(torch.zeros(3, BATCH, STEPS, NUMBERS, dtype=torch.float64), 3)
    state = torch.zeros(1, BATCH + 1, UNITS, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"takes a state of shape \(1, 4, 4\), not \(1, 5, 4\)"):
        rule(network[1], "1", now, given, (state, state) if kind is nn.LSTM else state)


@pytest.mark.parametrize(
    ("kind", "batch", "units", "dtype", "options", "expected"),
    [
        (nn.LSTM, 32, 32, torch.float32, {}, True),
        (nn.LSTM, 33, 32, torch.float32, {}, False),
        (nn.LSTM, 1, 65, torch.float32, {}, False),
        (nn.LSTM, 64, 256, torch.float64, {}, True),
        (nn.LSTM, 64, 256, torch.float32, {"proj_size": 2}, True),
        (nn.GRU, 64, 256, torch.float32, {}, True),
    ],
)
def test_the_form_follows_from_layer_and_sizes(kind, batch, units, dtype, options, expected):
    x = torch.zeros(2, 5, batch, 3, dtype=dtype)
    assert recurrent.is_side_by_side(kind(3, units, **options), x) is expected
    assert (
        recurrent.is_side_by_side(kind(3, units, **options), x.repeat(9, 2, 1, 1)) is expected
    )  # More clients, steps.


# --- rounds -----------------------------------------------------------------------------------------------------------
class Twice(nn.Module):
    """Two layers of one kind and a linear one, as one recurrent layer, or as two with a dropout layer between."""

    def __init__(self, kind, apart):
        super().__init__()
        self.own = kind(NUMBERS, UNITS, batch_first=True, num_layers=1 if apart else 2, dropout=0 if apart else 0.4)
        self.between = nn.Dropout(0.4) if apart else None
        self.other = kind(UNITS, UNITS, batch_first=True) if apart else None
        self.head = nn.Linear(UNITS, 3)

    def forward(self, x):
        out = self.own(x)[0]
        if self.other is not None:
            out = self.other(self.between(out))[0]
        return self.head(out[:, -1])


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine], ids=lambda engine: engine.name)
@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_round_equals_plain_modules_with_dropout_between_layers(federation, make_data, naive, engine, kind):
    torch.manual_seed(0)
    data = make_data((9, 4, 14), (STEPS, NUMBERS))
    f = federation(network=Twice(kind, apart=False), data=data, engine=engine)
    f.engine.train(own(0, 1, 2), f.training(epochs=2))
    f.network = Twice(kind, apart=True).double()  # Its parameters are in the same order.
    naive.check(f, functools.partial(torch.optim.SGD, lr=0.05), epochs=2, tolerance=1e-12)


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_round_in_float32_client_by_client_equals_the_loop_engine(federation, make_data, form, kind):
    torch.manual_seed(0)
    trained, data = [], make_data((9, 4, 14), (STEPS, NUMBERS))
    network = Twice(kind, apart=False)
    for engine in (LoopEngine, StackedEngine):
        f = federation(network=network, data=data, dtype=torch.float32, engine=engine)
        f.engine.train(own(0, 1, 2), f.training(epochs=2))
        trained.append(f.bank.rows("trained").clone())
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-5, atol=1e-6)
    assert (trained[0] - f.bank.rows("models")).abs().max() > 1e-3


# --- the engine -------------------------------------------------------------------------------------------------------
def test_auto_stacks_a_recurrent_network_and_counts_its_steps(federation, make_data):
    network = Forward(lambda x, own, head: head(own(x)[0][:, -1]), nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 3))
    f = federation(
        network=network, data=make_data((6, 4), (STEPS, NUMBERS)), engine=functools.partial(make_engine, "auto")
    )
    assert type(f.engine) is StackedEngine
    cost = f.engine.cost
    assert cost.operations == STEPS * 2 * (3 * 16 + 4 * 16) + 2 * 4 * 3
    gates_and_states = STEPS * (16 + 16)  # Gates of the inputs, and as many numbers that include the states.
    assert cost.activations == STEPS * 3 + gates_and_states + STEPS * 4 + 4 + 3  # The last step counts again.
    assert cost.calls == 4 + STEPS  # The layer, its first result, the last step of it, the linear layer; the steps.


class Packs(nn.Module):
    """Packs its sequences, as a text classifier often does."""

    def __init__(self, **options):
        super().__init__()
        self.own, self.head = nn.LSTM(NUMBERS, UNITS, batch_first=True, **options), nn.Linear(UNITS, 3)

    def forward(self, x):
        lengths = torch.full_like(x[:, 0, 0], STEPS).long().cpu()
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.head(self.own(packed)[1][0][-1])


def test_packed_sequences_are_refused_in_one_sentence(federation, make_data):
    data = make_data((6, 4), (STEPS, NUMBERS))
    with pytest.raises(CannotStack, match=r"^it packs sequences \(pack_padded_sequence\), which only the loop engine"):
        federation(network=Packs(), data=data, engine=StackedEngine)
    f = federation(network=Packs(), data=data, engine=functools.partial(make_engine, "auto"))
    assert type(f.engine) is LoopEngine
    assert f.engine.train(own(0, 1), f.training()).finite.all()
    with pytest.raises(UserError, match="LSTM with dropout between its layers got a packed sequence"):
        federation(network=Packs(num_layers=2, dropout=0.2), data=data, engine=LoopEngine)


def test_one_of_the_layers_is_computed_by_torchs_function():
    torch.manual_seed(0)
    layer, x = nn.GRU(NUMBERS, UNITS, batch_first=True), torch.rand(2, STEPS, NUMBERS)
    out, (last,) = one_layer(layer, x, [torch.zeros(1, 2, UNITS)], list(layer.parameters()), True)
    torch.testing.assert_close((out, last), layer(x))
