"""Inputs of several tensors: packed into rows, taken apart again, and read from a user's data set."""

import pytest
import torch
from torch import fx, nn
from torch.utils.data import Dataset

from dfl_lightning.data import FromDataset
from dfl_lightning.data.augment import CropFlip
from dfl_lightning.data.materialise import materialise
from dfl_lightning.data.parts import Parts
from dfl_lightning.utils.errors import UserError


class Items(Dataset):
    """Items as they are given."""

    def __init__(self, *items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


ITEM = {"ids": torch.tensor([[3, 0], [7, 2**24]]), "mask": torch.tensor([True, False]), "x": torch.rand(2, 1)}


def read(*items, **options):
    data = FromDataset(Items(*items), num_clients=1, test_fraction=0.0, **options)
    data.setup()
    return data.clients


def test_parts_come_out_of_a_row_as_they_went_in():
    parts = Parts.of(ITEM)
    assert str(parts) == "ids int [2, 2], mask bool [2], x float [2, 1]"
    rows = torch.stack([parts.pack(ITEM)] * 3)
    assert rows.shape == (3, parts.width) == (3, 8)
    positional, named = parts.arguments(rows)
    assert not positional
    for name, tensor in ITEM.items():
        assert torch.equal(named[name], tensor.expand(3, *tensor.shape))
        assert named[name].dtype == tensor.dtype
    assert parts.arguments(rows.double())[1]["x"].dtype == torch.float64  # of the run's precision
    assert Parts.of((ITEM["x"], ITEM["mask"])).arguments(torch.ones(1, 4))[0][1].dtype == torch.bool


def test_taking_a_part_is_one_node_of_a_traced_network():
    class Sum(nn.Module):
        def forward(self, rows):
            return Parts.of(ITEM).arguments(rows)[1]["x"].sum()

    names = [node.name for node in fx.symbolic_trace(Sum()).graph.nodes if node.op == "call_function"]
    assert names == ["taken", "taken_1", "taken_2"]


@pytest.mark.parametrize("form", ["dict", "dict with labels", "tuple", "lists"])
def test_items_of_several_parts_are_read_into_rows(form):
    items = [{"a": torch.tensor([index, 1]), "b": torch.tensor([0.5 * index])} for index in range(4)]
    made = {
        "dict": [(item, 1) for item in items],
        "dict with labels": [{"labels": 1, **item} for item in items],
        "tuple": [(tuple(item.values()), 1) for item in items],
        "lists": [({name: value.tolist() for name, value in item.items()}, 1) for item in items],
    }[form]
    clients = read(*made)
    inputs, labels = clients.batch(torch.tensor([[2, 3]]))
    assert inputs.tolist() == [[[2, 1, 1], [3, 1, 1.5]]]
    assert labels.tolist() == [[1, 1]]
    positional, named = clients.parts.arguments(inputs[0])
    assert [t.tolist() for t in positional or named.values()] == [[[2, 1], [3, 1]], [[1.0], [1.5]]]
    assert list(named) == ([] if form == "tuple" else ["a", "b"])


def test_whole_numbers_and_masks_keep_their_kind():
    ids = torch.tensor([[300, 2], [1, 0]])
    clients = read(*((row, index) for index, row in enumerate(ids)))
    rows = clients.batch(torch.tensor([0, 1]))[0]
    (got,), _ = clients.parts.arguments(rows)
    assert torch.equal(got, ids)
    assert got.dtype == torch.int64
    assert not clients.parts.takes_apart


def test_a_collator_pads_both_sets_to_one_length():
    def pad(items):
        longest = max(len(ids) for ids, _ in items)
        ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in items])
        return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": torch.tensor([y for _, y in items])}

    train, test = Items(([4, 5], 0), ([6], 1)), Items(([7, 8, 9], 1))
    data = FromDataset(train, test, num_clients=1, collate=pad)
    data.setup()
    rows, labels = data.clients.batch(torch.arange(3))
    assert rows.tolist() == [[4, 5, 0, 1, 1, 0], [6, 0, 0, 1, 0, 0], [7, 8, 9, 1, 1, 1]]
    assert labels.tolist() == [0, 1, 1]


def test_rows_of_parts_are_not_augmented_as_images():
    data = FromDataset(Items((torch.tensor([1, 2]), 0), (torch.tensor([3, 4]), 1)), num_clients=1)
    data.setup()
    with pytest.raises(UserError, match=r"data.augment takes images, and the inputs are the tensor int \[2\]"):
        materialise(data.source, data.client_split, augment=CropFlip())


def test_the_fingerprint_depends_on_the_names_of_parts():
    def names(**item):
        data = FromDataset(Items((item, 0), (item, 1)), num_clients=1)
        data.setup()
        return data.source.fingerprint["names"]

    assert names(a=torch.ones(2)) != names(b=torch.ones(2))
