"""A sample has one owner and one purpose, in drawn splits and in those of files."""

# ruff: noqa: E501  # the table below quotes whole sentences

import re

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from dfl_lightning.data import Digits, FromDataset
from dfl_lightning.data.partitions import Partition
from dfl_lightning.data.partitions.base import Assignment
from dfl_lightning.data.splits.ownership import refuse_shared_images
from dfl_lightning.utils.errors import UserError


def lists(*parts):
    return [np.array(part, dtype=np.int64) for part in parts]


NONE = lists([], [])


@pytest.mark.parametrize(
    ("train", "val", "test", "sentence"),
    [
        (([0, 0], [1]), None, None, "sample 0 is among the training samples of client 0 twice; give each"),
        (([0, 2], [1, 2]), None, None, "sample 2 is among the training samples of client 0 and among the training samples of client 1;"),
        (([0, 2], [1, 3]), ([], [2]), None, "sample 2 is among the training samples of client 0 and among the validation samples of client 1;"),
        (([0, 2], [1, 3]), None, ([2, 3, 0], [1]), "sample 0 is among the training samples of client 0 and among the test samples of client 0 (4 samples are at two places);"),
        (([0], [1]), ([2], [3]), ([4], [3]), "sample 3 is among the validation samples of client 1 and among the test samples of client 1;"),
        (([0], [1]), None, ([4, 4], []), "sample 4 is among the test samples of client 0 twice;"),
        (([0], [-1]), None, None, "training samples of client 1 reach from -1 to -1 in 6 samples, which are counted from 0"),
        (([0], [1]), None, ([6], [2]), "test samples of client 0 reach from 6 to 6 in 6 samples"),
    ],
)  # fmt: skip
def test_a_repeated_image_is_named_with_both_places(train, val, test, sentence):
    with pytest.raises(UserError, match=f"^here: {re.escape(sentence)}"):
        refuse_shared_images(lists(*train), lists(*val or ([], [])), lists(*test or ([], [])), False, 6, 0, "here")


def test_clients_may_share_official_test_images():
    refuse_shared_images(lists([0], [1]), NONE, lists([0, 1], [1, 0]), True, 2, 2, "here")
    with pytest.raises(UserError, match="sample 1 is among the test samples of client 1 twice"):
        refuse_shared_images(lists([0], [1]), NONE, lists([0, 1], [1, 1]), True, 2, 2, "here")
    with pytest.raises(UserError, match="test samples of client 1 reach from 0 to 2 in 2 samples"):
        refuse_shared_images(lists([0], [1]), NONE, lists([0, 1], [0, 2]), True, 2, 2, "here")


def test_a_split_file_that_tests_training_samples_is_refused(tmp_path):
    data = Digits(num_clients=6)
    data.setup()
    data.save_split(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz") as file:
        arrays = {name: file[name] for name in file.files}
    same = {f"test_{what}": arrays[f"train_{what}"] for what in ("indices", "offsets")}
    np.savez(tmp_path / "same.npz", **(arrays | same))
    count = len(arrays["train_indices"])
    with pytest.raises(
        UserError,
        match=rf"^data.split: .*same\.npz: sample 0 is among the training .* \({count} samples are at two places",
    ):
        Digits(num_clients=6, split=str(tmp_path / "same.npz")).setup()


class Overlapping(Partition):
    def assign(self, labels, num_classes, num_clients, seed):
        return Assignment([np.arange(8), np.arange(4, 12)])


def test_a_partition_that_assigns_an_image_twice_is_refused():
    pairs = TensorDataset(torch.rand(12, 2), torch.arange(12) % 2)
    with pytest.raises(
        UserError, match=r"^data.partition Overlapping: sample 4 is among .* \(4 samples are at two places"
    ):
        FromDataset(pairs, num_clients=2, partition=Overlapping()).setup()


def test_a_split_file_makes_a_partition_unused_with_a_note(tmp_path):
    from dfl_lightning.data import IID, RotatedClusters

    data = Digits(num_clients=6, partition=RotatedClusters([0, 90]))
    data.setup()
    data.save_split(tmp_path / "split.npz")
    assert data.notes() == []
    for partition, said in ((None, False), (RotatedClusters([0, 90]), False), (IID(), True)):
        again = Digits(num_clients=6, partition=partition, split=str(tmp_path / "split.npz"))
        again.setup()
        expected = "data.split decides who has which sample (RotatedClusters{0,90}); data.partition IID is not used"
        assert again.notes() == ([expected] if said else [])


def test_parts_together_with_a_split_file_are_refused():
    pairs = TensorDataset(torch.rand(4, 2), torch.arange(4) % 2)
    with pytest.raises(UserError, match="parts and split both say who has which sample"):
        FromDataset(pairs, parts=[[0, 1], [2, 3]], split="split.npz")
