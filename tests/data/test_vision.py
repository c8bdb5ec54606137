import hashlib
import os
import pickle
from urllib.error import URLError

import numpy as np
import pytest
import torch
import torchvision.datasets as datasets
from torchvision.transforms.functional import center_crop, pil_to_tensor

from dfl_lightning import data as d
from dfl_lightning.utils.errors import UserError

NAMES = ["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"]
REAL = ["MNIST", "FashionMNIST", "CIFAR10"]


def real(name, root, **options):
    data = getattr(d, name)(root=str(root), download=False, **options)
    try:
        data.setup()
    except UserError as error:
        pytest.skip(f"no {name} there: {error}")
    return data


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_are_refused_naming_root_variable_and_option(name, tmp_path):
    data = getattr(d, name)(root=str(tmp_path), download=False)
    with pytest.raises(
        UserError, match=rf"data {name}: .*{tmp_path}.*data\.download is false.*data\.root.*DFL_DATA_ROOT"
    ):
        data.prepare_data()
    with pytest.raises(UserError, match=r"data\.download is false"):
        data.setup()


@pytest.mark.parametrize("name", NAMES)
def test_a_failed_download_is_reported_in_one_sentence(name, tmp_path, monkeypatch):
    def offline(*args, **kwargs):
        raise URLError("no network")

    monkeypatch.setattr("urllib.request.urlopen", offline)
    data = getattr(d, name)(root=str(tmp_path / "data"))
    with pytest.raises(UserError, match=rf"data {name}: .*cannot be downloaded .*go online.*DFL_DATA_ROOT"):
        data.prepare_data()
    with pytest.raises(UserError, match=r"call prepare_data\(\) first"):
        data.setup()


@pytest.mark.parametrize("name", REAL)
def test_batches_are_torchvisions_images_scaled_to_one(name, real_root):
    data = real(name, real_root, num_clients=10)
    clients = data.clients
    reference = getattr(datasets, name)(real_root, train=True, download=False)
    for client in (0, 9):
        chosen = data.client_split.train[client][:20]
        x, y = clients.batch(clients.train[client][:20])
        for row, index in enumerate(chosen):
            image, label = reference[int(index)]
            pixels = np.asarray(image, dtype=np.float32) / 255
            pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
            np.testing.assert_allclose(x[row].numpy(), pixels, rtol=1e-6)
            assert y[row] == label
    assert len(clients.global_test) == 10_000
    assert torch.equal(clients.images[clients.global_test], data.source.test_images)


def test_dis_pfls_partition_of_cifar10_has_500_images_a_client(real_root):
    clients = real("CIFAR10", real_root, num_clients=100, partition=d.Dirichlet(0.1)).clients
    assert set(clients.sizes("train").tolist()) == {500}
    assert 100 <= int(clients.sizes("test").min()) <= int(clients.sizes("test").max()) <= 110


def test_two_classes_of_cifar10_have_250_and_50_images(real_root):
    clients = real("CIFAR10", real_root, num_clients=100, partition=d.Pathological(2)).clients
    for train, test in zip(clients.train, clients.test, strict=True):
        counts = clients.labels[train].bincount(minlength=10)
        tested = clients.labels[test].bincount(minlength=10)
        assert counts[counts > 0].tolist() == [250, 250]
        assert torch.equal(tested, counts // 5)


def test_dpfls_partition_of_cifar10_gives_at_least_twenty_images(real_root):
    data = real("CIFAR10", real_root, num_clients=100, partition=d.Dirichlet(0.1, "per_class"), val_fraction=0.2)
    clients = data.clients
    own = clients.sizes("train") + clients.sizes("val")
    assert own.sum() == 50_000
    assert own.min() >= 20
    assert clients.sizes("test").sum() == 10_000


def test_panms_200_clients_have_100_test_images_on_average(real_root):
    options = {"num_clients": 200, "samples_per_client": 200, "partition": d.RotatedClusters([0, 180])}
    clients = real("MNIST", real_root, **options).clients
    assert set(clients.sizes("train").tolist()) == {200}
    assert clients.sizes("test").sum() == 20_000
    assert (clients.sizes("test") - 100).abs().max() <= 10


def test_fl_fdms_clustered_mnist_has_200_images_of_two_labels(real_root):
    clients = real("MNIST", real_root, num_clients=20, samples_per_client=200, partition=d.LabelClusters(5)).clients
    assert clients.sizes("train").tolist() == [200] * 20
    for client, train in enumerate(clients.train):
        assert clients.labels[train].unique().tolist() == [2 * (client // 4), 2 * (client // 4) + 1]


def test_setup_reuses_what_prepare_data_opened(real_root, monkeypatch):
    opened = []

    def counted(root, train, download):
        opened.append(train)
        return datasets.FashionMNIST(root, train=train, download=download)

    monkeypatch.setattr(d.FashionMNIST, "dataset", staticmethod(counted))
    data = d.FashionMNIST(root=str(real_root), num_clients=10, download=False)
    try:
        data.prepare_data()
    except UserError as error:
        pytest.skip(f"no FashionMNIST there: {error}")
    data.setup()
    assert opened == [True, False]
    data.seed = 1
    data.setup()  # another seed loads again, from the files
    assert opened == [True, False, True, False]


@pytest.fixture
def small_cifar(tmp_path, monkeypatch):
    """CIFAR-10 of two images a file with hashes of its own: the folder, and the files that were hashed."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()

    def written(name, **content):
        text = pickle.dumps(content)
        (folder / name).write_bytes(text)
        return name, hashlib.md5(text).hexdigest()

    images = np.arange(2 * 3072, dtype=np.uint8).reshape(2, 3072)
    parts = [list(written(f"data_batch_{n}", data=images, labels=[n, 9 - n])) for n in range(1, 6)]
    test = [list(written("test_batch", data=images, labels=[3, 4]))]
    name, md5 = written("batches.meta", label_names=list("abcdefghij"))
    meta = {"filename": name, "key": "label_names", "md5": md5}
    for key, value in (("train_list", parts), ("test_list", test), ("meta", meta)):
        monkeypatch.setattr(datasets.CIFAR10, key, value)
    hashed, plain = [], datasets.utils.calculate_md5
    monkeypatch.setattr(
        datasets.utils, "calculate_md5", lambda path, *more: hashed.append(os.path.basename(path)) or plain(path, *more)
    )
    return folder, hashed


def test_cifars_files_are_hashed_once_until_they_change(small_cifar, tmp_path):
    folder, hashed = small_cifar

    def opened(download=False):
        data = d.CIFAR10(root=str(tmp_path), download=download)
        data.prepare_data()
        return [name for name in hashed if name != "batches.meta"], data.load()

    files = [*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"]
    names, source = opened()
    assert names == files
    assert source.labels.tolist() == [1, 8, 2, 7, 3, 6, 4, 5, 5, 4]
    assert opened()[0] == files
    changed = folder / "data_batch_2"
    before, content = changed.stat(), changed.read_bytes()
    changed.write_bytes(content[:-50] + bytes([content[-50] ^ 1]) + content[-49:])
    os.utime(changed, ns=(before.st_atime_ns, before.st_mtime_ns))  # same size, same time
    with pytest.raises(UserError, match="missing or damaged"):
        opened()
    assert hashed[-1] == "data_batch_2"
    changed.write_bytes(content)
    hashed.clear()
    assert opened()[0] == files


@pytest.mark.parametrize("crop", [24, 7, 1])
@pytest.mark.parametrize("name", REAL)
def test_crop_keeps_the_middle_as_torchvision_does(name, crop, real_root):
    data = real(name, real_root, num_clients=10, crop=crop)
    reference = getattr(datasets, name)(real_root, train=False, download=False)
    source = data.load()
    for index in (0, 77):
        image = center_crop(reference[index][0], [crop, crop])
        assert torch.equal(source.test_images[index], pil_to_tensor(image))


@pytest.mark.parametrize("crop", [0, 29])
def test_a_crop_larger_than_the_images_is_refused(crop, real_root):
    real("MNIST", real_root, num_clients=10)
    data = d.MNIST(root=str(real_root), download=False, num_clients=10, crop=crop)
    with pytest.raises(UserError, match=rf"data\.crop is {crop}, but .* have 28 x 28 pixels; set it to 1 to 28"):
        data.setup()
