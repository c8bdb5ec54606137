"""Columns, and how networks lie in rows."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.bank.patterns import without_norms
from dfl_lightning.utils.errors import UserError


class Words(nn.Module):
    """An output layer that is the embedding, a counter, and a buffer that no state dict holds."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.hidden = nn.Linear(4, 4)
        self.output = nn.Linear(4, 5, bias=False)
        self.output.weight = self.embedding.weight
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("positions", torch.arange(4.0), persistent=False)
        self.register_buffer("mask", torch.tensor([True, False]))


def names(layout, columns):
    return [e.name for e in layout.entries if any(a <= e.start and e.stop <= b for a, b in columns.ranges)]


# --- columns ----------------------------------------------------------------------------------------------------------
RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=8)


@settings(max_examples=80)
@given(RANGES, st.integers(1, 20))
def test_columns_are_a_set_in_sorted_disjoint_ranges(ranges, width):
    members = {c for a, b in ranges for c in range(a, b)}
    columns = Columns(ranges)
    assert len(columns) == len(members)
    assert torch.nonzero(columns.mask(60)).squeeze(1).tolist() == sorted(members)
    assert all(one[1] < two[0] for one, two in zip(columns.ranges, columns.ranges[1:], strict=False))
    blocks = list(columns.blocks(width))
    assert [c for a, b in blocks for c in range(a, b)] == sorted(members)
    assert all(0 < b - a <= width for a, b in blocks)
    assert columns == Columns([(c, c + 1) for c in members])
    assert hash(columns) == hash(Columns(columns.ranges))


def test_columns_are_equal_to_columns_only():
    assert Columns([(0, 2)]) != ((0, 2),)
    assert Columns([(0, 2)]) != Columns([(0, 3)])


# --- shared and personal ----------------------------------------------------------------------------------------------
def test_everything_but_integer_buffers_is_shared_by_default(make_network):
    layout = Layout(make_network("batchnorm"))
    assert names(layout, layout.personal) == ["1.num_batches_tracked"]
    assert not layout.has_personal_parameters
    assert names(layout, layout.shared_parameters) == [
        "0.weight", "1.weight", "1.bias", "5.weight", "5.bias"
    ]  # fmt: skip
    assert len(layout.parameters) == layout.num_parameters == 27 + 3 + 3 + 36 + 3
    assert layout.width == layout.num_parameters + 3 + 3 + 1
    assert layout.all.ranges == ((0, layout.width),)


def test_patterns_choose_what_is_shared_and_the_rest_is_personal(make_network):
    layout = Layout(make_network("batchnorm"), ["0.*", "*.bias", "1.running_mean"])
    assert names(layout, layout.shared) == ["0.weight", "1.bias", "5.bias", "1.running_mean"]
    assert names(layout, layout.personal) == ["1.weight", "5.weight", "1.running_var", "1.num_batches_tracked"]
    assert names(layout, layout.shared_parameters) == ["0.weight", "1.bias", "5.bias"]
    assert layout.has_personal_parameters
    together = layout.shared.mask(layout.width).int() + layout.personal.mask(layout.width).int()
    assert together.tolist() == [1] * layout.width


def test_patterns_that_begin_with_an_exclamation_mark_take_away(make_network):
    network = make_network("batchnorm")
    all_but = Layout(network, ["!1.*"])
    assert names(all_but, all_but.shared) == ["0.weight", "5.weight", "5.bias"]
    both = Layout(network, ["!1.running_*", "1.*", "5.*", "!*.bias"])
    assert names(both, both.shared) == ["1.weight", "5.weight"]


class RMS(nn.Module):
    """A norm of a user's own, as the networks of transformers have them."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))


class MyRMSNorm(RMS):
    """Its name says what it is."""


def test_norms_are_found_by_their_kind_or_name(make_network):
    network = nn.ModuleDict(
        {"a": nn.Linear(4, 4), "b[0]": nn.LayerNorm(4), "c": MyRMSNorm(), "d": RMS(), "e": nn.BatchNorm1d(4)}
    )
    layout = Layout(network, without_norms(network, ["*"]))
    assert names(layout, layout.shared) == ["a.weight", "a.bias", "d.weight"]
    with pytest.raises(UserError, match=r"model.personal: norms, but Sequential has no normalisation layer"):
        without_norms(make_network("mlp"), ["*"])


@pytest.mark.parametrize(
    ("patterns", "sentence"),
    [
        (["!*"], "shares no trainable parameter"),
        (["*", "!head.*"], r"no parameter of Sequential matches '!head\.\*'"),
        (["head.*"], r"no parameter of Sequential matches 'head\.\*'.*its parameters: 0\.weight"),
        (["0.*", "0.wieght"], r"matches '0\.wieght'; did you mean '0\.weight'\?"),
        (["1.running_*"], "shares no trainable parameter"),
        (["*.num_batches_tracked"], "shares no trainable parameter"),
    ],
)
def test_patterns_that_share_nothing_are_refused(make_network, patterns, sentence):
    with pytest.raises(UserError, match=sentence):
        Layout(make_network("batchnorm"), patterns)


def test_networks_with_nothing_to_learn_are_refused(make_network):
    with pytest.raises(UserError, match="Flatten has no parameters"):
        Layout(nn.Flatten())
    with pytest.raises(UserError, match="Sequential has no trainable parameters"):
        Layout(make_network("mlp").requires_grad_(False))
    half_frozen = make_network("mlp")
    half_frozen[0].requires_grad_(False)
    with pytest.raises(UserError, match="matches frozen parameters of Sequential only"):
        Layout(half_frozen, ["0.*"])


@pytest.mark.parametrize(
    "buffer", [torch.tensor([0.0, float("-inf")]), torch.tensor(float("nan")), torch.tensor(2**25)]
)
def test_buffers_that_no_row_can_hold_are_refused(make_network, buffer):
    network = make_network("mlp")
    network.register_buffer("attention", buffer)
    with pytest.raises(UserError, match="buffer 'attention'"):
        Layout(network)


# --- rows and state dicts ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_network_survives_a_round_trip_through_its_row(make_network, dtype):
    network = make_network("batchnorm")
    network(torch.randn(5, 1, 6, 6, generator=torch.Generator().manual_seed(0)))  # buffers move
    layout = Layout(network)
    row = layout.flatten(network, dtype)
    assert row.dtype == dtype
    state = layout.state_dict(row)
    other = make_network("batchnorm")
    other.load_state_dict(state)
    for name, value in network.state_dict().items():
        assert other.state_dict()[name].dtype == value.dtype
        assert torch.equal(other.state_dict()[name], value)
    assert torch.equal(layout.row(state, dtype), row)
    assert torch.equal(layout.row(network.state_dict(), dtype), row)


def test_a_state_dict_does_not_share_memory_with_the_row(make_network):
    network = make_network("mlp")
    layout = Layout(network)
    row = layout.flatten(network)
    layout.state_dict(row)["0.weight"].zero_()
    assert torch.equal(row, layout.flatten(network))


def test_tied_weights_and_all_buffers_survive_a_round_trip():
    network = Words()
    layout = Layout(network)
    assert layout.width == 20 + 20 + 8 + 4 + 4 + 1 + 4 + 2
    state = layout.state_dict(layout.flatten(network))
    assert state.keys() == network.state_dict().keys()
    other = copy.deepcopy(network)
    nn.init.zeros_(other.output.weight)
    other.load_state_dict(state)
    assert torch.equal(other.embedding.weight, network.embedding.weight)
    assert torch.equal(other.mask, network.mask)
    assert torch.equal(layout.row(state), layout.flatten(network))


def test_files_of_other_networks_are_refused(make_network):
    layout = Layout(make_network("mlp"))
    state = make_network("mlp").state_dict()
    with pytest.raises(UserError, match=r"has no '2\.bias'"):
        layout.row({name: value for name, value in state.items() if name != "2.bias"})
    with pytest.raises(UserError, match=r"'0\.weight' has shape \(5, 7\) in the file and \(5, 6\) in the network"):
        layout.row({**state, "0.weight": torch.zeros(5, 7)})


def test_fingerprints_tell_networks_and_sharing_apart(make_network):
    one = Layout(make_network("mlp")).fingerprint()
    assert one == Layout(make_network("mlp")).fingerprint()
    assert one != Layout(make_network("mlp"), ["0.*"]).fingerprint()
    assert one != Layout(make_network("mlp").double()).fingerprint()
    assert one["parameters"]["0.weight"] == [[5, 6], "float32"]


# --- layers -----------------------------------------------------------------------------------------------------------
def test_a_layers_columns_are_its_own_parameters(make_network):
    layout = Layout(make_network("batchnorm"))
    assert names(layout, layout.module_columns("1")) == ["1.weight", "1.bias"]
    nested = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Linear(2, 2))
    assert Layout(nested).last_feature_layer() == "0.1"
    assert names(Layout(nested), Layout(nested).module_columns("0.1")) == ["0.1.weight", "0.1.bias"]


def test_tied_layers_have_the_same_columns():
    network = Words()
    del network.norm
    layout = Layout(network)
    assert layout.module_columns("output") == layout.module_columns("embedding") == Columns([(0, 20)])
    assert layout.last_feature_layer() == "hidden"


class Scale(nn.Module):
    """A learned factor for each channel of an image."""

    def __init__(self, channels):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1, channels, 1, 1))


CONVOLUTIONS = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 6, 3)]
HEAD = [nn.Flatten(), nn.Linear(24, 3)]


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Linear(12, 3)], "0"),
        ([*CONVOLUTIONS, nn.BatchNorm2d(6), *HEAD], "2"),
        ([*CONVOLUTIONS, nn.GroupNorm(2, 6), *HEAD], "2"),
        ([*CONVOLUTIONS, nn.InstanceNorm2d(6, affine=True), *HEAD], "2"),
        ([*CONVOLUTIONS, nn.LayerNorm([6, 2, 2]), *HEAD], "2"),
        ([*CONVOLUTIONS, nn.RMSNorm([6, 2, 2]), *HEAD], "2"),
        ([*CONVOLUTIONS, nn.PReLU(6), Scale(6), *HEAD], "2"),
        ([nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3), nn.BatchNorm1d(3)], "0"),  # a norm after the head too
        ([nn.Linear(4, 1), nn.LayerNorm(1), nn.Linear(1, 3)], "0"),
        ([nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)], "0"),
        ([nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), nn.Linear(4, 3)], "0.parametrizations.weight"),
    ],
)
def test_the_last_feature_layer_has_a_matrix_or_kernels(layers, expected):
    assert Layout(nn.Sequential(*layers)).last_feature_layer() == expected


def test_layers_that_are_not_there_are_refused_with_a_hint():
    layout = Layout(Words())
    with pytest.raises(
        UserError, match=r"no layer 'hiden' with parameters; did you mean 'hidden'\?.*embedding, hidden"
    ):
        layout.module_columns("hiden")
    with pytest.raises(UserError, match="no layer '' with parameters"):
        layout.module_columns("")
    for single in (nn.Flatten(), nn.BatchNorm1d(3)):
        with pytest.raises(UserError, match="a single linear or convolutional layer has no featurizer"):
            Layout(nn.Sequential(single, nn.Linear(3, 2))).last_feature_layer()


# --- tensors that a row cannot hold -----------------------------------------------------------------------------------
class With(nn.Linear):
    """A layer with one more tensor, as a parameter that is not trained or as a buffer."""

    def __init__(self, tensor, what):
        super().__init__(2, 3)
        if what == "buffer":
            self.register_buffer("more", tensor)
        else:
            self.more = nn.Parameter(tensor, requires_grad=False)


UNUSUAL = {
    "complex": torch.ones(3, dtype=torch.complex64),
    "sparse": torch.eye(3).to_sparse(),
    "without numbers": torch.ones(3, device="meta"),
}


@pytest.mark.parametrize("what", ["buffer", "parameter"])
@pytest.mark.parametrize("word", UNUSUAL)
def test_a_network_with_unusual_tensors_is_refused_naming_the_tensor(word, what):
    with pytest.raises(
        UserError, match=f"^model.network With: {what} 'more' is {word}.*; models are exchanged as dense"
    ):
        Layout(With(UNUSUAL[word], what))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parameters_of_fewer_bits_are_refused_and_the_remedy_works(dtype):
    with pytest.raises(UserError, match=f"parameter 'weight' is {dtype}; .* call .float()".replace("torch.", "")):
        Layout(nn.Linear(2, 3).to(dtype))
    assert Layout(nn.Linear(2, 3).to(dtype).float()).width == 9


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantized_buffer_is_refused():
    with pytest.raises(UserError, match="buffer 'more' is quantized"):
        Layout(With(torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "buffer"))


def test_integer_parameters_are_common_and_may_be_large():
    layout = Layout(With(torch.tensor([2**24 + 1]), "parameter"))
    assert layout.width == 9
    assert [common.name for common in layout.common] == ["more"]
    layout.load_base({"more": torch.tensor([2**40 + 1])})
    assert layout.state_dict(torch.zeros(9))["more"].tolist() == [2**40 + 1]


@pytest.mark.parametrize("word", UNUSUAL)
def test_a_file_with_unusual_tensors_is_refused_naming_the_tensor(word):
    network = nn.Linear(3, 3)
    state = {**network.state_dict(), "weight": UNUSUAL[word].expand(3, 3) if word != "sparse" else UNUSUAL[word]}
    with pytest.raises(UserError, match=f"^'weight' in the file is {word}.*; save it as float32 numbers"):
        Layout(network).row(state)
    Layout(network).row({**network.state_dict(), "another": UNUSUAL[word]})  # of no concern


@pytest.mark.parametrize(
    ("value", "row", "fits"),
    [
        (torch.tensor([2**24, -3]), torch.float32, True),
        (torch.tensor([2**24 + 1, 0]), torch.float32, False),
        (torch.tensor([2**24 + 1, 0]), torch.float64, True),
        (torch.tensor([2**53 + 1, 0]), torch.float64, False),
        (torch.tensor([True, False]), torch.float32, True),
        (torch.tensor([0.1, 1 / 3], dtype=torch.float64), torch.float32, True),  # rounding is not losing
    ],
)
def test_integers_in_a_file_are_kept_or_refused(value, row, fits):
    network = nn.Linear(2, 1, bias=False)
    if fits:
        assert Layout(network).row({"weight": value[None]}, row).tolist() == value.to(row).tolist()
    else:
        with pytest.raises(UserError, match=r"^'weight' in the file is int64 with numbers that float.. does not have"):
            Layout(network).row({"weight": value[None]}, row)


def test_a_fraction_for_an_integer_buffer_is_refused():
    network = nn.BatchNorm1d(2)
    Layout(network).row({**network.state_dict(), "num_batches_tracked": torch.tensor(7.0)})
    with pytest.raises(
        UserError, match="'num_batches_tracked' in the file is float32 with numbers that int64 does not"
    ):
        Layout(network).row({**network.state_dict(), "num_batches_tracked": torch.tensor(7.5)})
