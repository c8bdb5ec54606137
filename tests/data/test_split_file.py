import dataclasses

import numpy as np
import pytest
import torch

from dfl_lightning.data import (
    IID,
    ByWriter,
    ClassCounts,
    Digits,
    Dirichlet,
    FlippedLabels,
    FromDataset,
    LabelClusters,
    Pathological,
    RotatedClusters,
    Shards,
    SwappedLabelClusters,
    Vectors,
)
from dfl_lightning.data.partitions import Partition
from dfl_lightning.utils.errors import UserError


def tensors(clients):
    optional = [x for x in (clients.global_test, clients.clusters, clients.adversaries) if x is not None]
    return [clients.images, clients.labels, *clients.train, *clients.val, *clients.test, *optional, clients.scale]


@pytest.mark.parametrize(
    "partition",
    [
        IID(),
        Dirichlet(),
        RotatedClusters([0, 90]),
        RotatedClusters([15, 0]),
        SwappedLabelClusters([[], [[0, 1, 2]]]),
        LabelClusters(3),
        Pathological(2),
        Shards(2),
        ClassCounts([{0: 5}, {1: 4, 2: 3}, {0: 3}]),
        ByWriter(min_samples=5),
        FlippedLabels(0.4),
        FlippedLabels(clients=[0, 2], base=RotatedClusters([0, 180])),
        FlippedLabels(0.4, base=ByWriter(5, classes=2)),
    ],
    ids=Partition.describe,
)
@pytest.mark.parametrize("test_fraction", [None, 0.25])
def test_a_saved_split_gives_bit_identical_data_back(toy_of_writers, tmp_path, partition, test_fraction):
    options = {"num_clients": 3, "val_fraction": 0.1, "test_fraction": test_fraction}
    first = toy_of_writers(partition=partition, **options)
    first.setup()
    first.save_split(tmp_path / "split.npz")
    second = toy_of_writers(num_clients=3, split=str(tmp_path / "split.npz"), seed=99)
    second.setup()
    ours, theirs = tensors(first.clients), tensors(second.clients)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(ours, theirs, strict=True))
    assert second.describe() == first.describe().replace(":", " from split.npz:")
    for field in dataclasses.fields(first.client_split):
        a, b = (getattr(data.client_split, field.name) for data in (first, second))
        assert type(a) is type(b)
        same = [np.array_equal(x, y) for x, y in zip(a, b, strict=True)] if isinstance(a, list) else [np.all(a == b)]
        assert all(same), field.name
        assert not isinstance(a, np.ndarray) or a.dtype == b.dtype, field.name


@pytest.mark.parametrize(
    "partition",
    [Dirichlet(), SwappedLabelClusters([[], [[0, 1, 2]]]), FlippedLabels(0.4, clients=[0, 2])],
    ids=Partition.describe,
)
def test_the_file_counts_what_each_client_trains_on(toy, tmp_path, partition):
    data = toy(num_clients=3, partition=partition, seed=1, test_fraction=0.3, samples_per_client=9)
    data.setup()
    data.save_split(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz") as file:
        seen = [data.clients.labels[data.clients.train[client]].tolist() for client in range(3)]
        assert file["train_counts"].tolist() == [[own.count(label) for label in range(3)] for own in seen]
        assert file["target_edges"].size == 0
        tested = [data.clients.labels[data.clients.test[client]].tolist() for client in range(3)]
        assert file["test_counts"].tolist() == [[own.count(label) for label in range(3)] for own in tested]


def test_numeric_targets_are_counted_by_interval(tmp_path):
    table = Vectors(num_clients=4, partition=Dirichlet(1.0))
    table.setup()
    table.save_split(tmp_path / "split.npz")
    y, parts = table.source.labels[:, 0].numpy(), table.client_split.train
    with np.load(tmp_path / "split.npz") as file:
        edges = file["target_edges"]
        everyone = np.concatenate([y[part] for part in parts])
        assert np.allclose(edges, np.histogram_bin_edges(everyone, 12), rtol=1e-12)
        assert file["train_counts"].tolist() == [np.histogram(y[part], edges)[0].tolist() for part in parts]
        assert edges[-1] > 100  # in the original unit
        assert file["test_counts"].size == 0
    (tmp_path / "tags.csv").write_text("x,red,blue\n" + "".join(f"{i},{i % 2},{int(i % 3 == 0)}\n" for i in range(30)))
    tags = Vectors(num_clients=2, file=str(tmp_path / "tags.csv"), target=["red", "blue"], labels=True)
    tags.setup()
    tags.save_split(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz") as file:
        wanted = [[sum(int(i) % 2 for i in own), sum(int(i) % 3 == 0 for i in own)] for own in tags.client_split.train]
        assert file["train_counts"].tolist() == wanted


def test_the_file_names_adversaries_and_writers(toy_of_writers, tmp_path):
    data = toy_of_writers(num_clients=3, partition=FlippedLabels(clients=[1], base=ByWriter(5)), seed=1)
    data.setup()
    data.save_split(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz", allow_pickle=False) as file:
        assert file["adversaries"].tolist() == [False, True, False]
        assert file["label_map"].tolist() == [[0, 1, 2], [2, 1, 0], [0, 1, 2]]
        assert file["test_label_map"].tolist() == [[0, 1, 2]] * 3
        assert set(file["writers"].tolist()) < {"ann", "bob", "cyd", "dee"}
        for name, number in zip(file["writers"], file["train_indices"][file["train_offsets"][:-1]], strict=True):
            assert number % 5 == ("ann", "bob", "cyd", "dee").index(name)


def test_the_file_can_be_read_with_numpy_alone(toy, tmp_path):
    data = toy(num_clients=4, partition=RotatedClusters([0, 180]), val_fraction=0.2)
    data.setup()
    data.save_split(tmp_path / "new" / "split.npz")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["split.npz"]
    with np.load(tmp_path / "new" / "split.npz", allow_pickle=False) as file:
        assert str(file["dataset"]) == "Toy"
        assert int(file["num_samples"]) == 40
        assert file["rotation"].tolist() == [0, 0, 180, 180]
        assert bool(file["test_official"])
        offsets = file["train_offsets"]
        for client in range(4):
            numbers = file["train_indices"][offsets[client] : offsets[client + 1]]
            # The toy's first pixel is its number; rotated by 180 degrees it is the last one.
            pixel = (0, 0) if client < 2 else (1, 1)
            seen = data.clients.images[data.clients.train[client]][:, 0, pixel[0], pixel[1]]
            assert seen.tolist() == numbers.tolist()


@pytest.fixture
def saved(tmp_path):
    data = Digits(num_clients=6)
    data.setup()
    data.save_split(tmp_path / "split.npz")
    return tmp_path / "split.npz"


def change(path, **arrays):
    with np.load(path) as file:
        everything = {name: file[name] for name in file.files}
    np.savez(path, **(everything | arrays))


def test_another_number_of_clients_is_refused_with_both_numbers(saved):
    with pytest.raises(UserError, match=r"split\.npz has 6 clients, but num_clients is 8; set num_clients: 6"):
        Digits(num_clients=8, split=str(saved)).setup()


def test_another_data_set_is_refused_by_name(saved):
    other = FromDataset(
        torch.utils.data.TensorDataset(torch.zeros(60, 1), torch.zeros(60)), split=str(saved), num_clients=6
    )
    other.dataset = torch.utils.data.TensorDataset(torch.zeros(60, 1), torch.zeros(60, dtype=torch.int64))
    with pytest.raises(UserError, match=r"split\.npz divides Digits, but data is TensorDataset"):
        other.setup()


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"num_samples": 1796}, "with 1796 samples, but data has 1797"),
        ({"num_test_samples": 5}, "with 5 test samples, but data has 0"),
        ({"targets_crc32": 1}, "with other labels"),
        ({"format": 3}, "format 3, this version reads 2"),
        ({"train_indices": np.array([1])}, "malformed .*train_offsets do not fit 6 clients and 1 indices"),
        ({"test_offsets": np.array([0, 1])}, "malformed .*test_offsets do not fit"),
        ({"train_indices": np.array([0.5])}, r"malformed .*train_indices is float64 \[1\]"),
        ({"test_offsets": np.zeros((7, 1), int)}, r"malformed .*test_offsets is int64 \[7, 1\]"),
        ({"rotation": np.full(6, np.nan)}, "malformed .*rotation has values that are not finite"),
        ({"partition": "IID\n\x1b[2J"}, "malformed .*partition is not a line of text"),
        ({"rotation": np.zeros(5)}, "malformed .*rotation has shape"),
        ({"label_map": np.full((6, 10), 10)}, "malformed .*label_map names labels outside 0 to 9"),
        ({"label_map": np.zeros((6, 9), int)}, r"malformed .*label_map has shape \(6, 9\)"),
        ({"test_label_map": np.full((6, 10), -1)}, "malformed .*test_label_map names labels outside 0 to 9"),
        ({"test_label_map": np.zeros((6, 10))}, "malformed .*test_label_map is float64"),
        ({"adversaries": np.zeros(5, bool)}, "malformed .*adversaries has shape"),
        ({"adversaries": np.zeros(6)}, "malformed .*adversaries is float64"),
        ({"writers": np.array(["a"])}, "malformed .*writers has shape"),
        ({"writers": np.arange(6)}, "malformed .*writers is int64"),
    ],
)
def test_a_wrong_file_is_refused_naming_file_and_numbers(saved, changed, sentence):
    change(saved, **changed)
    with pytest.raises(UserError, match=r"split\.npz.*" + sentence):
        Digits(num_clients=6, split=str(saved)).setup()


def test_indices_outside_the_data_set_are_refused(saved):
    with np.load(saved) as file:
        indices = file["train_indices"].copy()
    indices[0] = 1797
    change(saved, train_indices=indices)
    with pytest.raises(UserError, match="to 1797 in 1797 samples"):
        Digits(num_clients=6, split=str(saved)).setup()


def test_a_client_without_training_images_is_named(saved):
    with np.load(saved) as file:
        offsets = file["train_offsets"].copy()
    offsets[3] = offsets[2]
    change(saved, train_offsets=offsets)
    with pytest.raises(UserError, match=r"split\.npz leaves client 2 without training samples"):
        Digits(num_clients=6, split=str(saved)).setup()


def test_a_file_without_its_arrays_is_refused(tmp_path):
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(UserError, match=r"other\.npz is malformed"):
        Digits(split=str(tmp_path / "other.npz")).setup()


@pytest.mark.parametrize("content", [b"", b"not a split", b"PK\x03\x04 broken"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "s.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"s\.npz is not a split file"):
        Digits(split=str(tmp_path / "s.npz")).setup()


def test_a_single_array_is_refused(tmp_path):
    np.save(tmp_path / "s.npy", np.zeros(3))
    with pytest.raises(UserError, match=r"s\.npy is not a split file"):
        Digits(split=str(tmp_path / "s.npy")).setup()


def test_a_failed_write_is_reported_and_leaves_no_file(tmp_path):
    (tmp_path / "file").write_text("in the way")
    data = Digits(num_clients=6)
    data.setup()
    with pytest.raises(UserError, match="cannot be written"):
        data.save_split(tmp_path / "file" / "split.npz")
