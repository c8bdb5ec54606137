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


def test_a_data_set_and_index_lists_are_enough():
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
def test_bytes_without_an_image_shape_stay_integers(shape):
    items, inputs = of_bytes(shape)
    assert torch.equal(inputs.long(), items.long())


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8), (2, 3, 5, 8)])
def test_bytes_of_images_with_more_dimensions_are_scaled(shape):
    items, inputs = of_bytes(shape)
    torch.testing.assert_close(inputs, items / 255)


def test_a_scale_that_is_given_replaces_both_guesses():
    for shape in ((40,), (1, 5, 8)):
        for scale in (1, 1 / 255, 0.5):
            items, inputs = of_bytes(shape, scale=scale)
            torch.testing.assert_close(inputs, items.float() * scale)


def test_a_test_data_set_is_the_official_test_set():
    data = FromDataset(Squares(30), Squares(12), num_clients=4, partition=RotatedClusters([0, 90]))
    data.setup()
    assert data.clients.sizes("test").sum() == 2 * 12
    assert data.clients.sizes("train").sum() == 30
    assert len(data.clients.global_test) == 12


def test_yaml_names_a_data_set_by_its_import_path(command, monkeypatch, tmp_path):
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


@pytest.mark.parametrize("label", [1, np.int64(1), torch.tensor(1), True])
def test_any_integer_is_a_class(label):
    data = FromDataset(Items((IMAGE, 0), (IMAGE, label)), num_clients=1)
    data.setup()
    assert data.clients.labels.tolist() == [0, 1]


@pytest.mark.parametrize("number", [2.5, np.float64(2.5), np.float32(2.5), np.float16(2.5), torch.tensor(2.5)])
def test_any_fraction_among_labels_means_a_regression(number):
    data = FromDataset(Items((IMAGE, number), (IMAGE, number)), num_clients=1)
    data.setup()
    assert data.clients.labels.tolist() == [[2.5], [2.5]]


# --- NaN and infinity -------------------------------------------------------------------------------------------------
def with_numbers(wrong, item=7, **options):
    images = torch.rand(12, 2)
    images[item, 1] = wrong
    parts = [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    return FromDataset(TensorDataset(images, torch.arange(12) % 2), **{"parts": parts, "test_fraction": 0.0, **options})


def test_large_numbers_are_numbers():
    data = with_numbers(3e38)
    data.dataset.tensors[0].fill_(3e38)
    data.setup()
    assert data.clients.images.max() == torch.tensor(3e38)


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
    assert dataset.asked == [*range(6), *range(6)]  # again, to find out whether they are drawn
    assert data.clients.images[:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_parts_may_be_arrays_and_tensors():
    data = FromDataset(Squares(), parts=[np.arange(4, dtype=np.uint8), torch.arange(4, 8), range(8, 12)])
    data.setup()
    assert data.clients.sizes("train").tolist() == [3, 3, 3]


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


def test_unused_images_need_not_be_finite():
    with_numbers(torch.nan, item=11).setup()


@pytest.mark.parametrize(
    ("labels", "given", "count"), [([0, 1, 1009], None, 1010), ([1000, 1005], None, 1006), ([0, 5000], 5001, 5001)]
)
def test_plausible_integer_labels_count_as_classes(labels, given, count):
    data = of(*((IMAGE, label) for label in labels), num_classes=given)
    data.setup()
    assert data.clients.num_classes == count


# --- what is refused --------------------------------------------------------------------------------------------------
class OfLength(Items):
    """Says that its length is something else."""

    def __init__(self, length):
        super().__init__((IMAGE, 0), (IMAGE, 1))
        self.length = length

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def of(*items, **options):
    return FromDataset(Items(*items), num_clients=1, **options)


def squares(*more, **options):
    return FromDataset(Squares(), *more, **options)


def of_length(length):
    return FromDataset(OfLength(length), num_clients=1)


def no_numbers_in_tests():
    pairs = TensorDataset(torch.full((4, 2), torch.nan), torch.tensor([0, 1, 0, 1]))
    return with_numbers(1.0, test_fraction=None, test_dataset=pairs)


def turned():
    images = torch.rand(40, 1, 4, 4)
    images[23, 0, 1, 1] = torch.nan
    pairs = TensorDataset(images, torch.arange(40) % 2)
    return FromDataset(pairs, num_clients=4, partition=RotatedClusters([0, 90]), test_fraction=0.0)


def overflowing():
    pairs = TensorDataset(torch.full((8, 2), 1e200, dtype=torch.float64), torch.arange(8) % 2)
    return FromDataset(pairs, num_clients=2, normalise=True)


IDS = torch.tensor([5, 6, 7])
TWO = [[0, 1], [2, 3]]
IN_TRAINING = "1 of the 4 training samples of client 1 hold NaN or infinity, the first is item 7"
OUT_OF_PROPORTION = "the largest label is {}, but only {} labels occur; number"
NO_LISTS = r"data\.parts: what is listed for client \d is not a list of whole numbers"
REFUSED = [
    # items
    (lambda: of(IMAGE), "item 0 is a Tensor, not a pair"),
    (lambda: of((IMAGE, 0), (IMAGE, 0, 1)), "item 1 is a tuple, not a pair"),
    (lambda: of((np.zeros(3), 0)), "item 0 has a ndarray instead of a tensor"),
    (lambda: of(({}, 0)), "item 0 has a dict instead of a tensor"),
    (lambda: of({"x": IMAGE}), "item 0 is a dict with x and no labels; .*or a dict with the target as 'labels'"),
    (lambda: of((("one", IMAGE), 0)), "part number 0 of item 0 is a str instead of a tensor"),
    (lambda: of((torch.tensor([2**24 + 1]), 0)), "holds a whole number beyond 2\\^24"),
    (lambda: of((IDS, 0), (IDS[:2], 0)), r"item 1 are the tensor int \[2\], those of item 0 the .*to one"),
    (lambda: of((IDS, 0), scale=2.0), r"data.scale=2.0 is for one tensor of numbers, and inputs are"),
    (lambda: of((IDS, 0), (IDS, 1), normalise=True), "data.normalise is for one tensor of numbers"),
    (lambda: of((IMAGE, 0), test_dataset=Items((IDS, 0))), "inputs are one tensor of numbers, and those of"),
    (lambda: of((IMAGE, 0), collate=lambda items: items[0][2]), r"data.collate fails on 1 items of Items"),
    (lambda: of((IMAGE, "0.5")), r"item 0 has '0.5' \(str\) instead of a target"),
    (lambda: of((IMAGE, 1), (IMAGE, 0.5)), r"target of item 1 is float64 \[\], that of item 0 is int64 \[\]"),
    (lambda: of((IMAGE, 0.5), (IMAGE, math.nan)), r"the target of item 1 \(counted from 0\) is NaN or infinity"),
    (lambda: of((IMAGE, torch.tensor([[0, 1]]))), "labels of shape"),
    (lambda: of((IMAGE, torch.rand(2, 3))), r"the target of item 0 is float32 \[2, 3\]; give one number, or one row"),
    (lambda: of((IMAGE, 0), (torch.zeros(1, 2, 3), 0)), r"item 1 is torch.float32 \(1, 2, 3\), item 0 .*\(1, 2, 2\)"),
    (lambda: of((IMAGE, 0), (IMAGE.double(), 0)), "item 1 is torch.float64"),
    (lambda: of((torch.eye(3).to_sparse(), 0)), "item 0 is sparse.*; tensors must be dense numbers"),
    (lambda: of((torch.zeros(2, device="meta"), 0)), "item 0 is without numbers.*; tensors must be dense numbers"),
    (lambda: of(), "it is empty"),
    # labels
    (lambda: of((IMAGE, 0), (IMAGE, -1)), "labels reach from -1 to 0"),
    (lambda: squares(num_classes=2), "labels reach from 0 to 2, but there are 2 classes"),
    (lambda: of((IMAGE, 0), (IMAGE, 1), num_classes=10**9), "1000000000 classes; 100000 are the most"),
    (lambda: of((IMAGE, 0), (IMAGE, 10**30)), "item 1 has a label of 31 digits"),
    (lambda: of((IMAGE, 0), (IMAGE, 1), (IMAGE, 1031)), OUT_OF_PROPORTION.format(1031, 3)),
    (lambda: of((IMAGE, 10**9), (IMAGE, 0)), OUT_OF_PROPORTION.format(10**9, 2)),
    (lambda: of((IMAGE, 2**62)), OUT_OF_PROPORTION.format(2**62, 1)),
    # lengths
    (lambda: FromDataset(Stream()), "map-style"),
    (lambda: of_length(-5), r"its length is not known \(__len__\(\) should return >= 0\)"),
    (lambda: of_length(2.5), "its length is not known"),
    (lambda: of_length(2**80), "its length is not known"),
    (lambda: of_length(TypeError("no length here")), r"its length is not known \(no length here\)"),
    (lambda: of_length(RuntimeError("out of order")), r"its length is not known \(out of order\)"),
    (lambda: of_length(3), r"item 2 of 3 is not there \(IndexError: tuple index out of range\)"),
    # lists of clients' samples
    (lambda: squares(parts=TWO, num_clients=3), "parts lists 2 clients, but num_clients is 3"),
    (lambda: squares(parts=TWO, partition=RotatedClusters()), "parts and partition RotatedClusters"),
    (lambda: squares(parts=[[0], [30]]), "client 1 lists sample 30, but the data set has 30 samples"),
    (lambda: squares(parts=[[0, 1], []]), "client 1 has no training sample"),
    (lambda: squares(parts=[[0, 1], [2.7]]), NO_LISTS),
    (lambda: squares(parts=[[True, False], [2]]), NO_LISTS),
    (lambda: squares(parts=[[0], ["3"]]), NO_LISTS),
    (lambda: squares(parts=[TWO]), NO_LISTS),
    (lambda: squares(parts=[[[0], [1, 2]]]), NO_LISTS),
    (lambda: FromDataset(*[Squares()] * 2), "test_dataset is dataset itself"),
    (lambda: squares(Squares()), "test_dataset holds the same items as dataset"),
    # numbers
    (lambda: with_numbers(math.nan), IN_TRAINING),
    (lambda: with_numbers(math.inf), IN_TRAINING),
    (lambda: with_numbers(-math.inf), IN_TRAINING),
    (no_numbers_in_tests, r"1 of the 1 test samples of client 0 .* item \d of the test set"),
    (lambda: with_numbers(math.nan, item=11, normalise=True), r"takes the mean .* item 11 .* holds NaN or infinity"),
    (turned, "the first is item 23 "),
    (overflowing, "their squares are beyond what 64 bits hold; scale the samples, or set"),
    *(
        (lambda wrong=wrong: of((IMAGE, 0), scale=wrong), r"data.scale=.*; give a number above 0, or null")
        for wrong in (0, -1.0, math.inf, math.nan)
    ),
]


@pytest.mark.parametrize(("make", "sentence"), REFUSED, ids=[sentence[:30] for _, sentence in REFUSED])
def test_unusable_data_sets_are_refused_in_one_sentence(make, sentence):
    with pytest.raises(UserError, match=sentence):
        make().setup()


# --- targets in other forms -------------------------------------------------------------------------------------------
CLASSES = [0, 2, 1, 2, 0, 1]
ONE_HOT = np.eye(3)[CLASSES]
COLUMN = [[label] for label in CLASSES]


@pytest.mark.parametrize(
    ("targets", "remark"),
    [
        (torch.tensor(COLUMN), ""),
        (torch.tensor(COLUMN, dtype=torch.int32), ""),
        (torch.tensor(COLUMN, dtype=torch.uint8), ""),
        (torch.from_numpy(ONE_HOT).long(), "targets [3] of 0 and a single 1 are taken for 3 classes"),
        (torch.from_numpy(ONE_HOT).to(torch.uint8), "targets [3] of 0 and a single 1 are taken for 3 classes"),
        (torch.from_numpy(ONE_HOT), "taken for 3 classes; data.num_classes: 0 makes a regression of them"),
    ],
)
@pytest.mark.parametrize("tested", [False, True])
def test_classes_in_a_column_or_one_hot_are_classes(targets, remark, tested):
    pairs = TensorDataset(torch.rand(6, 2), targets)
    others = TensorDataset(torch.rand(6, 2), targets.flip(0))
    data = FromDataset(pairs, others if tested else None, num_clients=1)
    data.setup()
    assert data.source.labels.tolist() == CLASSES
    assert data.source.num_classes == 3
    if tested:
        assert data.source.test_labels.tolist() == CLASSES[::-1]
    assert len(data.notes()) == bool(remark)
    assert remark in "".join(data.notes())


def test_one_hot_numbers_may_stay_a_regression():
    data = FromDataset(TensorDataset(torch.rand(6, 2), torch.from_numpy(ONE_HOT)), num_clients=1, num_classes=0)
    data.setup()
    assert np.array_equal(data.source.labels.numpy(), ONE_HOT)
    assert data.source.num_classes == 0


def test_numbers_that_are_not_one_hot_stay_what_they_were():
    for targets in (torch.rand(6, 3), torch.eye(3).repeat(2, 1).bool(), torch.ones(6, 1)):
        data = FromDataset(TensorDataset(torch.rand(6, 2), targets), num_clients=1)
        data.setup()
        assert torch.equal(data.source.labels, targets)
    lines = FromDataset(TensorDataset(torch.ones(6, 4), torch.tensor([[1, 2, 3, 4]] * 6)), num_clients=1)
    lines.setup()
    assert lines.source.labels.tolist() == [[1, 2, 3, 4]] * 6


def test_several_whole_numbers_for_an_image_are_refused():
    pairs = TensorDataset(torch.rand(4, 1, 2, 2), torch.tensor([[0, 3]] * 4))
    with pytest.raises(UserError, match=r"of item 0 is 2 whole numbers, \[0, 3\]; give one number, the class, or"):
        FromDataset(pairs, num_clients=1).setup()
    mixed = [TensorDataset(torch.rand(6, 2), targets) for targets in (torch.from_numpy(ONE_HOT), torch.rand(6, 3))]
    with pytest.raises(UserError, match="targets of dataset and test_dataset are not of one form; make them alike"):
        FromDataset(*mixed, num_clients=1).setup()


class Drawn(Squares):
    """Draws each item, or only its target, at random."""

    def __init__(self, size, of_target=False):
        super().__init__(size)
        self.of_target = of_target

    def __getitem__(self, index):
        image, label = super().__getitem__(index)
        if self.of_target:
            return image, int(torch.randint(0, 3, ()))
        return image.float() + torch.rand(1, 3, 3), label


@pytest.mark.parametrize("of_target", [False, True])
@pytest.mark.parametrize("size", [30, 200])
def test_items_that_are_drawn_are_noticed(of_target, size):
    with pytest.raises(
        UserError, match=r"data Drawn: item \d+ differs when it is read again, as if a transform drew it"
    ):
        FromDataset(Drawn(size, of_target), num_clients=2).setup()


def test_items_that_are_not_finite_are_not_drawn():
    images = torch.rand(6, 2)
    images[0, 0], images[5, 1] = torch.nan, torch.inf
    FromDataset(TensorDataset(images, torch.arange(6) % 2), parts=[[1, 2, 3, 4]]).setup()
