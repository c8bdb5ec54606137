from urllib.error import URLError

import numpy as np
import pytest

from dfl_lightning.data import IID, MNIST, ByWriter, FlippedLabels
from dfl_lightning.data.readers.mnist_writers import LABELS, read_writers
from dfl_lightning.data.sets import vision as vision_data
from dfl_lightning.utils.errors import UserError

CLASSES = np.arange(60) % 10
TEST_CLASSES = np.arange(20) % 10
WRITERS = np.repeat([2131, 5, 77], 20)
TEST_WRITERS = np.repeat([900, 12], 10)


def write_qmnist(root, classes=CLASSES, test_classes=TEST_CLASSES, writers=WRITERS, test_writers=TEST_WRITERS):
    """QMNIST's label files: eight big-endian columns, class first, writer third; more rows than MNIST has."""
    for file, labels, own, more in ((LABELS[0], classes, writers, 0), (LABELS[1], test_classes, test_writers, 5)):
        table = np.zeros((len(labels) + more, 8), dtype=">i4")
        table[: len(labels), 0], table[: len(labels), 2] = labels, own
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        header = bytes([0, 0, 0x0C, 2]) + len(table).to_bytes(4, "big") + (8).to_bytes(4, "big")
        path.write_bytes(header + table.tobytes())
    return root


def write_npz(root):
    np.savez(root / "mnist_writers.npz", train_writer=np.int16(WRITERS), test_writer=np.int16(TEST_WRITERS))
    return root


@pytest.mark.parametrize("write", [write_qmnist, write_npz])
def test_writers_are_read_from_qmnists_label_files_or_an_npz(tmp_path, write):
    names, writers, test_writers = read_writers(write(tmp_path), CLASSES, TEST_CLASSES)
    assert names == ("5", "12", "77", "900", "2131")
    assert [int(names[writer]) for writer in writers] == WRITERS.tolist()
    assert [int(names[writer]) for writer in test_writers] == TEST_WRITERS.tolist()
    assert writers.dtype == test_writers.dtype == np.int64


def test_label_files_of_other_images_are_refused(tmp_path):
    write_qmnist(tmp_path, test_classes=TEST_CLASSES[::-1])
    with pytest.raises(UserError, match="qmnist-test-labels-idx2-int: its classes are not those of MNIST's images"):
        read_writers(tmp_path, CLASSES, TEST_CLASSES)


@pytest.mark.parametrize("change", [lambda b: b[:-1], lambda b: b"", lambda b: b[:9], lambda b: b"\x01" + b[1:]])
def test_a_torn_label_file_is_refused_by_name(tmp_path, change):
    path = write_qmnist(tmp_path) / LABELS[0]
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(UserError, match="qmnist-train-labels-idx2-int: not QMNIST's label file, or only a part of it"):
        read_writers(tmp_path, CLASSES, TEST_CLASSES)


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"train_writer": WRITERS}, "not a file of MNIST's writers .*it has no array 'test_writer'"),
        (
            {"train_writer": WRITERS[1:], "test_writer": TEST_WRITERS},
            r"int64 \[59\] cannot be the writers of 60 images",
        ),
        ({"train_writer": WRITERS, "test_writer": TEST_WRITERS / 2}, r"float64 \[20\] cannot be the writers of 20"),
        (
            {"train_writer": np.array([None] * 60), "test_writer": TEST_WRITERS},
            "not a file of MNIST's writers .*is object, not numbers",
        ),
    ],
)
def test_an_npz_of_something_else_is_refused_by_name(tmp_path, arrays, sentence):
    np.savez(tmp_path / "mnist_writers.npz", **arrays)
    with pytest.raises(UserError, match=rf"mnist_writers\.npz: {sentence}"):
        read_writers(tmp_path, CLASSES, TEST_CLASSES)


def test_a_torn_npz_is_refused_by_name(tmp_path):
    (tmp_path / "mnist_writers.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(UserError, match=r"mnist_writers\.npz: not a file of MNIST's writers"):
        read_writers(tmp_path, CLASSES, TEST_CLASSES)


def test_missing_files_are_refused_with_the_remedies(tmp_path):
    with pytest.raises(
        UserError, match=r"neither mnist_writers\.npz nor QMNIST/raw.* set data\.download: true, or use"
    ):
        read_writers(tmp_path, CLASSES, TEST_CLASSES)


@pytest.mark.parametrize(
    ("partition", "options", "asked"),
    [
        (ByWriter(), {}, 1),
        (FlippedLabels(base=ByWriter()), {}, 1),
        (IID(), {}, 0),
        (ByWriter(), {"download": False}, 0),
        (ByWriter(), {"split": "split.npz"}, 0),
    ],
)
def test_writers_are_fetched_only_where_the_partition_asks_for_them(tmp_path, monkeypatch, partition, options, asked):
    calls = []

    def offline(*args, **kwargs):
        calls.append(args)
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    monkeypatch.setattr(vision_data.TorchvisionData, "prepare_data", lambda self: None)
    data = MNIST(root=str(tmp_path), partition=partition, **options)
    if asked:
        with pytest.raises(UserError, match=r"writers for partition ByWriter cannot be downloaded .*go online, or put"):
            data.prepare_data()
    else:
        data.prepare_data()
    assert bool(calls) == bool(asked)
    write_npz(tmp_path)
    data.prepare_data()
    assert not asked or len(calls) == 1


# --- real data --------------------------------------------------------------------------------------------------------


@pytest.fixture
def real(real_root):
    data = MNIST(root=str(real_root), download=False, num_clients=539, partition=ByWriter(min_samples=1))
    try:
        data.setup()
    except UserError as error:
        pytest.skip(f"no MNIST with writers there: {error}")
    return data


def test_mnists_539_writers_have_19_to_131_images(real, tmp_path):
    own = real.clients.sizes("train") + real.clients.sizes("test")
    assert (own.sum(), own.min(), own.max(), own.median()) == (60_000, 19, 131, 116)
    assert len(real.clients.global_test) == 10_000
    assert not {*real.source.writers.tolist()} & {*real.source.test_writers.tolist()}
    numbers = np.array([int(name) for name in real.source.writer_names])
    labels, test_labels = real.source.labels.numpy(), real.source.test_labels.numpy()
    writers, test_writers = numbers[real.source.writers], numbers[real.source.test_writers]
    write_qmnist(tmp_path, labels, test_labels, writers, test_writers)
    names, again, test_again = read_writers(tmp_path, labels, test_labels)
    assert names == real.source.writer_names
    assert np.array_equal(again, real.source.writers)
    assert np.array_equal(test_again, real.source.test_writers)
