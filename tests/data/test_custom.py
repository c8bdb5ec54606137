import math

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from dfl_lightning.data import FromDataset, RotatedClusters
from dfl_lightning.utils.errors import UserError


class Squares(Dataset):
    """Images filled with their number, three classes in turn."""

    def __init__(self, size: int = 30):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        return torch.full((1, 3, 3), index, dtype=torch.uint8), index % 3


class Items(Dataset):
    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_a_data_set_and_a_list_of_index_lists_are_enough():
    inputs = torch.randn(9, 4)
    data = FromDataset(TensorDataset(inputs, torch.arange(9) % 2), parts=[[0, 1, 2, 3], [8, 7, 6, 5]])
    data.setup()
    clients = data.clients
    assert clients.num_clients == data.num_clients == 2
    assert clients.num_classes == 2
    for client, own in enumerate(([0, 1, 2, 3], [5, 6, 7, 8])):
        indices = torch.cat([clients.train[client], clients.test[client]])
        assert sorted(indices.tolist()) == own
        assert torch.equal(clients.batch(indices)[0], inputs[indices])


def test_bytes_are_scaled_and_floats_are_kept():
    data = FromDataset(Squares(), num_clients=2)
    data.setup()
    assert data.clients.images.dtype == torch.uint8
    torch.testing.assert_close(data.clients.batch(torch.tensor([6]))[0], torch.full((1, 1, 3, 3), 6 / 255))
    floats = FromDataset(TensorDataset(torch.full((4, 2), 6.0), torch.zeros(4, dtype=torch.int64)), num_clients=2)
    floats.setup()
    assert floats.clients.batch(torch.tensor([0]))[0].tolist() == [[6.0, 6.0]]


def of_bytes(shape, **options):
    items = torch.arange(8 * math.prod(shape)).remainder(256).to(torch.uint8).view(8, *shape)
    data = FromDataset(TensorDataset(items, torch.arange(8) % 2), num_clients=2, **options)
    data.setup()
    return items, data.clients.batch(torch.arange(8))[0]


@pytest.mark.parametrize("shape", [(), (1,), (40,)])
def test_bytes_that_are_no_images_stay_whole_numbers(shape):
    items, inputs = of_bytes(shape)
    assert torch.equal(inputs.long(), items.long())


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8), (2, 3, 5, 8)])
def test_bytes_of_images_are_scaled_whatever_dimensions_come_before_height_and_width(shape):
    items, inputs = of_bytes(shape)
    torch.testing.assert_close(inputs, items / 255)


def test_a_scale_that_is_given_replaces_both_guesses():
    for shape in ((40,), (1, 5, 8)):
        for scale in (1, 1 / 255, 0.5):
            items, inputs = of_bytes(shape, scale=scale)
            torch.testing.assert_close(inputs, items.float() * scale)
    for wrong in (0, -1.0, math.inf, math.nan):
        with pytest.raises(UserError, match=r"data.scale=.*; it is a number above 0, or null"):
            of_bytes((40,), scale=wrong)


def test_a_test_data_set_is_the_official_test_set():
    data = FromDataset(Squares(30), Squares(12), num_clients=4, partition=RotatedClusters([0, 90]))
    data.setup()
    assert data.clients.sizes("test").sum() == 2 * 12
    assert data.clients.sizes("train").sum() == 30
    assert len(data.clients.global_test) == 12


def test_a_data_set_is_named_from_yaml_by_its_import_path(command, monkeypatch, tmp_path):
    (tmp_path / "my_squares.py").write_text(
        "import torch\n"
        "class MySquares(torch.utils.data.Dataset):\n"
        "    def __init__(self, size: int = 9): self.size = size\n"
        "    def __len__(self): return self.size\n"
        "    def __getitem__(self, index): return torch.ones(1, 2, 2), index % 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    config = command.parser.parse_string(
        "data:\n"
        "  class_path: FromDataset\n"
        "  init_args:\n"
        "    dataset: {class_path: my_squares.MySquares, init_args: {size: 12}}\n"
        "    parts: [[0, 1, 2, 3], [4, 5, 6, 7, 8]]\n"
    )
    data = command.instantiate(config)
    data.setup()
    assert data.describe() == "MySquares, given parts: 3–4 train / 1 test images a client"


def test_classes_are_counted_or_given():
    for given, expected in ((None, 3), (7, 7)):
        data = FromDataset(Squares(), num_clients=2, num_classes=given)
        data.setup()
        assert data.clients.num_classes == expected


IMAGE = torch.zeros(1, 2, 2)


@pytest.mark.parametrize(
    ("items", "sentence"),
    [
        ([IMAGE], "item 0 is a Tensor, not a pair"),
        ([(IMAGE, 0), (IMAGE, 0, 1)], "item 1 is a tuple, not a pair"),
        ([(np.zeros(3), 0)], "item 0 has a ndarray in place of a tensor"),
        ([(IMAGE.long(), 0)], "item 0 is torch.int64; tensors must be uint8 or floating point"),
        ([(IMAGE, "0.5")], r"item 0 has '0.5' \(str\) in place of a target"),
        ([(IMAGE, 1), (IMAGE, 0.5)], r"target of item 1 is float64 \[\], that of item 0 is int64 \[\]"),
        ([(IMAGE, 0.5), (IMAGE, float("nan"))], r"the target of item 1 \(counted from 0\) is NaN or infinity"),
        ([(IMAGE, torch.tensor([[0, 1]]))], "labels of shape"),
        ([(IMAGE, 0), (torch.zeros(1, 2, 3), 0)], r"item 1 is torch.float32 \(1, 2, 3\), item 0 is .*\(1, 2, 2\)"),
        ([(IMAGE, 0), (IMAGE.double(), 0)], "item 1 is torch.float64"),
        ([(IMAGE, 0), (IMAGE, -1)], "labels reach from -1 to 0"),
        ([], "it is empty"),
    ],
)
def test_items_that_are_no_pairs_of_tensor_and_class_are_refused_in_one_sentence(items, sentence):
    with pytest.raises(UserError, match=sentence):
        FromDataset(Items(*items), num_clients=1).setup()


@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1), True])
def test_any_integer_is_a_class(label):
    data = FromDataset(Items((IMAGE, 0), (IMAGE, label)), num_clients=1)
    data.setup()
    assert data.clients.labels.tolist() == [0, 1]


def test_a_label_beyond_the_given_number_of_classes_is_refused():
    with pytest.raises(UserError, match="labels reach from 0 to 2, but there are 2 classes"):
        FromDataset(Squares(), num_classes=2).setup()


def test_a_data_set_without_a_length_is_refused():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter([])

    with pytest.raises(UserError, match="map-style"):
        FromDataset(Stream()).setup()


def test_parts_contradicting_other_options_are_refused():
    parts = [[0, 1], [2, 3]]
    with pytest.raises(UserError, match="parts lists 2 clients, but num_clients is 3"):
        FromDataset(Squares(), parts=parts, num_clients=3)
    with pytest.raises(UserError, match="parts and partition RotatedClusters"):
        FromDataset(Squares(), parts=parts, partition=RotatedClusters())
    with pytest.raises(UserError, match="client 1 lists sample 30, but the data set has 30 samples"):
        FromDataset(Squares(), parts=[[0], [30]]).setup()
    with pytest.raises(UserError, match="client 1 has no training sample"):
        FromDataset(Squares(), parts=[[0, 1], []]).setup()


# --- NaN and infinity -------------------------------------------------------------------------------------------------
def with_numbers(wrong, item=7, **options):
    images = torch.rand(12, 2)
    images[item, 1] = wrong
    parts = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    return FromDataset(TensorDataset(images, torch.arange(12) % 2), **{"parts": parts, "test_fraction": 0.0, **options})


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), -float("inf")])
def test_an_image_that_is_no_number_is_named_with_its_client_before_training(wrong):
    with pytest.raises(
        UserError, match="1 of the 4 training samples of client 1 hold NaN or infinity, the first is item 7"
    ):
        with_numbers(wrong).setup()


def test_a_test_image_that_is_no_number_is_named_too():
    pairs = TensorDataset(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(UserError, match=r"1 of the 1 test samples of client 0 .* item \d of the test set"):
        with_numbers(1.0, test_fraction=None, test_dataset=pairs).setup()


def test_an_image_that_nobody_uses_does_no_harm_but_to_the_mean_of_all():
    with_numbers(torch.nan, item=11).setup()
    with pytest.raises(UserError, match=r"data.normalise takes the mean .* item 11 .* holds NaN or infinity"):
        with_numbers(torch.nan, item=11, normalise=True).setup()


def test_large_numbers_are_numbers():
    data = with_numbers(3e38)
    data.dataset.tensors[0].fill_(3e38)
    data.setup()
    assert data.clients.images.max() == torch.tensor(3e38)


def test_an_image_keeps_its_name_where_clients_turn_theirs():
    images = torch.rand(40, 1, 4, 4)
    images[:, 0, 0, 0] = torch.arange(40)
    images[23, 0, 1, 1] = torch.nan
    data = FromDataset(
        TensorDataset(images, torch.arange(40) % 2),
        num_clients=4,
        partition=RotatedClusters([0, 90]),
        test_fraction=0.0,
    )
    with pytest.raises(UserError, match="the first is item 23 "):
        data.setup()


# --- labels, lengths, items and lists that are out of proportion ------------------------------------------------------
@pytest.mark.parametrize(
    ("labels", "count"), [([0, 1, 1009], None), ([0, 1, 1031], 3), ([10**9, 0], 2), ([2**62], 1), ([1000, 1005], 1006)]
)
def test_a_label_out_of_proportion_is_told_with_the_number_of_labels(labels, count):
    data = FromDataset(Items(*((IMAGE, label) for label in labels)), num_clients=1)
    if max(labels) < 1000 + 10 * len(labels):
        data.setup()
        assert data.clients.num_classes == max(labels) + 1
    else:
        with pytest.raises(
            UserError, match=f"the largest label is {max(labels)}, but only {count} labels occur; number"
        ):
            data.setup()


def test_a_number_of_classes_that_is_given_is_believed_within_bounds():
    data = FromDataset(Items((IMAGE, 0), (IMAGE, 5000)), num_clients=1, num_classes=5001)
    data.setup()
    assert data.clients.num_classes == 5001
    with pytest.raises(UserError, match="1000000000 classes; 100000 are the most"):
        FromDataset(Items((IMAGE, 0), (IMAGE, 1)), num_clients=1, num_classes=10**9).setup()


def test_a_label_that_no_integer_type_has_is_refused():
    with pytest.raises(UserError, match="item 1 has a label of 31 digits"):
        FromDataset(Items((IMAGE, 0), (IMAGE, 10**30)), num_clients=1).setup()


class OfLength(Items):
    length: object = 3

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length


@pytest.mark.parametrize(
    ("length", "sentence"),
    [
        (-5, r"its length is not known \(__len__\(\) should return >= 0\)"),
        (2.5, "its length is not known"),
        (2**80, "its length is not known"),
        (TypeError("no length here"), r"its length is not known \(no length here\)"),
        (RuntimeError("out of order"), r"its length is not known \(out of order\)"),
        (3, r"item 2 of 3 is not there \(IndexError: tuple index out of range\)"),
    ],
)
def test_a_length_that_is_none_is_refused(length, sentence):
    data = OfLength((IMAGE, 0), (IMAGE, 1))
    data.length = length
    with pytest.raises(UserError, match=sentence):
        FromDataset(data, num_clients=1).setup()


def test_items_are_read_once_each_and_at_once():
    class OneBuffer(Dataset):
        """Hands out the same tensor each time, as readers of streams do."""

        def __init__(self):
            self.buffer, self.asked = torch.zeros(2), []

        def __len__(self):
            return 6

        def __getitem__(self, index):
            self.asked.append(index)
            return self.buffer.fill_(index), 0

    dataset = OneBuffer()
    data = FromDataset(dataset, num_clients=1)
    data.setup()
    assert dataset.asked == list(range(6))
    assert data.clients.images[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("image", "word"), [(torch.eye(3).to_sparse(), "sparse"), (torch.zeros(2, device="meta"), "without numbers")]
)
def test_tensors_without_plain_numbers_are_refused(image, word):
    with pytest.raises(UserError, match=f"item 0 is {word}.*; tensors must be dense numbers"):
        FromDataset(Items((image, 0)), num_clients=1).setup()


@pytest.mark.parametrize(
    "parts", [[[0, 1], [2.7]], [[True, False], [2]], [[0], ["3"]], [[[0, 1], [2, 3]]], [[[0], [1, 2]]]]
)
def test_parts_are_lists_of_whole_numbers(parts):
    with pytest.raises(UserError, match=r"data\.parts: what is listed for client \d is not a list of whole numbers"):
        FromDataset(Squares(), parts=parts)


def test_parts_may_be_arrays_and_tensors():
    data = FromDataset(Squares(), parts=[np.arange(4, dtype=np.uint8), torch.arange(4, 8), range(8, 12)])
    data.setup()
    assert data.clients.sizes("train").tolist() == [3, 3, 3]


def test_a_test_set_that_is_the_training_set_is_refused():
    squares = Squares()
    with pytest.raises(UserError, match="test_dataset is dataset itself"):
        FromDataset(squares, squares).setup()
    with pytest.raises(UserError, match="test_dataset holds the same items as dataset"):
        FromDataset(squares, Squares()).setup()


def test_images_beyond_what_the_run_computes_with_are_named():
    data = with_numbers(1.0)
    data.dataset.tensors = (data.dataset.tensors[0].double(), data.dataset.tensors[1])
    data.dataset.tensors[0][5, 0] = -1e300
    data.setup()
    data.check_range(torch.float64)
    with pytest.raises(
        UserError,
        match=r"1 of the 4 training samples of client 1 hold .* beyond 3\.4e\+38, which 32 bits do not reach, the "
        "first is item 5 .*set trainer.precision: 64-true",
    ):
        data.check_range(torch.float32)


def test_a_mean_that_overflows_is_told_apart_from_images_that_are_no_numbers():
    pairs = TensorDataset(torch.full((8, 2), 1e200, dtype=torch.float64), torch.arange(8) % 2)
    with pytest.raises(UserError, match="their squares are beyond what 64 bits hold; scale the samples, or set"):
        FromDataset(pairs, num_clients=2, normalise=True).setup()
