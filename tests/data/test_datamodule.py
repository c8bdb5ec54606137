from pathlib import Path

import pytest
import torch

from dfl_lightning.data import IID, ByWriter, Digits, Dirichlet, RotatedClusters, Shards
from dfl_lightning.utils.errors import UserError


def test_lightning_sees_one_batch_a_round():
    data = Digits()
    for loader in (data.train_dataloader(), data.val_dataloader(), data.test_dataloader()):
        assert len(loader) == 1
        assert list(loader) == [0]
        assert list(loader) == [0]


def test_a_second_setup_does_nothing_and_another_seed_divides_again():
    data = Digits()
    data.setup("fit")
    first = data.clients
    data.setup("test")
    assert data.clients is first
    data.run_seed = 7
    data.setup("fit")
    assert not torch.equal(data.clients.train[0], first.train[0])


def test_the_seed_comes_from_split_run_lightning_or_zero(monkeypatch):
    data = Digits()
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert data.split_seed == 0
    monkeypatch.setenv("PL_GLOBAL_SEED", "5")
    assert data.split_seed == 5
    data.run_seed = 6
    assert data.split_seed == 6
    data.seed = 7
    assert data.split_seed == 7


def test_the_root_comes_from_argument_environment_or_default(monkeypatch):
    monkeypatch.delenv("DFL_DATA_ROOT", raising=False)
    assert Digits().root == Path("data")
    monkeypatch.setenv("DFL_DATA_ROOT", "/from/environment")
    assert Digits().root == Path("/from/environment")
    assert Digits(root="/mine").root == Path("/mine")


def test_the_description_is_one_line_with_ranges():
    data = Digits(num_clients=24, partition=RotatedClusters())
    data.setup()
    assert data.describe() == "Digits, RotatedClusters{0,90,180,270}: 56–57 train / 18 test images a client"
    data = Digits(num_clients=20, partition=Dirichlet(0.5), val_fraction=0.1)
    data.setup()
    assert data.describe() == "Digits, Dirichlet(0.5): 61 train / 6 validation / 22 test images a client"


def test_augmentation_acts_in_training_only():
    data = Digits(augment=True)
    data.setup()
    indices = data.clients.train[0]
    plain, _ = data.clients.batch(indices)
    torch.testing.assert_close(plain, data.clients.images[indices].float() / 16)
    assert not torch.equal(
        data.clients.batch(indices, draws=data.clients.augment.draw(len(indices), torch.Generator().manual_seed(0)))[0],
        plain,
    )


def test_normalised_images_have_mean_zero():
    data = Digits(normalise=True, test_fraction=0)
    data.setup()
    x, _ = data.clients.batch(torch.cat(list(data.clients.train)))
    assert abs(x.mean().item()) < 1e-5
    assert abs(x.std(correction=0).item() - 1) < 1e-5


def test_the_command_line_sets_a_partition_and_its_arguments(command):
    data = command.data(
        "--data=Digits", "--data.partition=Dirichlet", "--data.partition.alpha=0.5", "--data.num_clients=8"
    )
    assert isinstance(data.partition, Dirichlet)
    assert (data.partition.alpha, data.num_clients, data.test_fraction) == (0.5, 8, 0.25)
    data = command.data("--data=Digits", "--data.partition=Dirichlet", "--data.partition.flavour=per_class")
    assert data.partition.flavour == "per_class"
    data = command.data("--data=Digits", "--data.partition=RotatedClusters", "--data.partition.degrees=[0, 45]")
    assert data.partition.degrees == [0, 45]
    data = command.data(
        "--data=Digits", "--data.partition=SwappedLabelClusters", "--data.partition.swaps=[[], [[0, 1, 2]]]"
    )
    assert data.partition.swaps == [[], [[0, 1, 2]]]


@pytest.mark.parametrize(
    "name",
    [
        *("IID", "Dirichlet", "Pathological", "Shards", "FlippedLabels"),
        *("RotatedClusters", "SwappedLabelClusters", "LabelClusters"),
    ],
)
def test_every_partition_survives_printing_and_parsing_as_yaml(name, command):
    config = command.parser.parse_args(["--data=Digits", f"--data.partition={name}"])
    again = command.parser.parse_string(command.parser.dump(config))
    data = command.instantiate(again)
    data.setup()
    assert type(data.partition).__name__ == name
    assert data.clients.num_clients == 20


def test_the_command_line_sets_nested_partitions_tables_and_paths(command):
    words = ["--data=Digits", "--data.partition=FlippedLabels", "--data.partition.fraction=0.25"]
    data = command.data(*words, "--data.partition.base=Shards", "--data.partition.base.per_client=3")
    assert isinstance(data.partition.base, Shards)
    assert (data.partition.fraction, data.partition.base.per_client) == (0.25, 3)
    data = command.data("--data=Digits", "--data.partition=FlippedLabels", "--data.partition.clients=[3, 1]")
    assert (data.partition.clients, type(data.partition.base)) == ([1, 3], IID)
    data = command.data("--data=Digits", "--data.partition=ClassCounts", "--data.partition.counts=[{0: 2}, {3: 1}]")
    assert data.partition.counts == [{0: 2}, {3: 1}]
    data = command.data("--data=Digits", "--data.partition=LabelClusters", "--data.partition.labels=[[1, 2], [0]]")
    assert data.partition.labels == [[1, 2], [0]]
    data = command.data("--data=FEMNIST", "--data.path=/leaf", "--data.classes=[1, 0]", "--data.num_clients=5")
    assert (data.path, data.classes, data.num_clients, type(data.partition)) == ("/leaf", [1, 0], 5, ByWriter)
    data = command.data("--data=CINIC10", "--data.merge_valid=false", "--data.path=/cinic")
    assert (data.path, data.merge_valid, type(data.partition)) == ("/cinic", False, IID)


@pytest.mark.parametrize("name", ["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"])
def test_every_data_set_takes_the_common_options(name, command):
    data = command.data(f"--data={name}", "--data.download=false", "--data.val_fraction=0.2", "--data.root=/somewhere")
    assert (type(data).__name__, data.download, data.val_fraction) == (name, False, 0.2)


def test_help_explains_every_option(capsys, command):
    with pytest.raises(SystemExit):
        command.parser.parse_args(["--data.help=Digits"])
    text = capsys.readouterr().out
    for words in (
        "number of clients m",
        "see `FederatedData`",
        "share of each client's remaining samples",
        "a split.npz to repeat",
    ):
        assert words in " ".join(text.split())


def test_data_are_missing_before_setup():
    for name in ("clients", "source", "client_split"):
        with pytest.raises(UserError, match="call setup"):
            getattr(Digits(), name)
