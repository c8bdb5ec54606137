"""Tables: standardised as by scikit-learn, read from CSV and npz, and errors in the original unit."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes
from sklearn.preprocessing import StandardScaler
from torch import nn

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks
from dfl_lightning.data import IID, ByWriter, Dirichlet, FlippedLabels, Vectors
from dfl_lightning.runs.tables import read_metrics
from dfl_lightning.utils.errors import MissingData


def test_columns_are_standardised_by_training_rows_alone(tmp_path):
    x, y = load_diabetes(return_X_y=True, scaled=False)
    table = Vectors(num_clients=4, val_fraction=0.2)
    table.setup()
    rows, clients = np.concatenate(table.client_split.train), table.clients
    assert len(rows) < 0.65 * len(x)
    of_inputs, of_targets = StandardScaler().fit(x[rows]), StandardScaler().fit(y[rows, None])
    assert np.allclose(clients.images.numpy(), of_inputs.transform(x), atol=1e-6)
    assert np.allclose(clients.labels.numpy(), of_targets.transform(y[:, None]), atol=1e-6)
    assert np.allclose(clients.labels.double() * clients.target_scale + clients.target_shift, y[:, None], atol=1e-4)
    assert np.array_equal(table.source.images.numpy(), x)
    table.save_split(tmp_path / "split.npz")
    with np.load(tmp_path / "split.npz") as file:
        assert np.allclose(file["input_means"], of_inputs.mean_, rtol=1e-12)
        assert np.allclose(file["input_deviations"], of_inputs.scale_, rtol=1e-12)
        assert np.allclose([file["target_means"], file["target_deviations"]], [of_targets.mean_, of_targets.scale_])
        arrays = {**file, "input_means": file["input_means"] + 1}
    np.savez(tmp_path / "moved.npz", **arrays)
    moved = Vectors(num_clients=4, split=str(tmp_path / "moved.npz"))
    moved.setup()
    wanted = clients.images.double() - 1 / torch.from_numpy(of_inputs.scale_)
    assert torch.allclose(moved.clients.images.double(), wanted, atol=1e-5)
    np.savez(tmp_path / "short.npz", **{**arrays, "input_means": np.ones(3), "input_deviations": np.ones(3)})
    with pytest.raises(UserError, match=r"it standardises 3 input columns by .* and diabetes has 10"):
        Vectors(num_clients=4, split=str(tmp_path / "short.npz")).setup()
    raw = Vectors(num_clients=4, standardise=False)
    raw.setup()
    assert np.allclose(raw.clients.images.numpy(), x)
    assert raw.clients.target_scale is None


def test_errors_are_in_the_original_unit(tmp_path):
    """A network that says 0, the mean of the training targets: errors are the deviations from that mean."""
    network = nn.Linear(10, 1)
    nn.init.zeros_(network.weight), nn.init.zeros_(network.bias)
    table = Vectors(num_clients=4, seed=0)
    module = DFLModule(network, batch_size=8, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-30))
    options = {"default_root_dir": tmp_path, "enable_progress_bar": False, "accelerator": "cpu"}
    trainer = DFLTrainer(max_rounds=1, callbacks=[callbacks.Gossip(k=0), callbacks.Uniform()], **options)
    trainer.fit(module, datamodule=table)
    y = load_diabetes().target
    parts = table.client_split.test
    mean = y[np.concatenate(table.client_split.train)].mean()
    wanted = np.mean([np.sqrt(np.mean((y[part] - mean) ** 2)) for part in parts])
    found = float(read_metrics(trainer.run.path / "metrics.csv")[-1]["test_rmse"])
    assert found == pytest.approx(wanted, rel=1e-5)
    assert table.describe().endswith(" test rows a client")


CSV = "shop,age,town,price\nnorth,1,5,10\nsouth,2,5,20\nnorth,3,5,60\nsouth,4,5,30\n"


def test_csv_and_npz_files_give_equal_data(tmp_path):
    (tmp_path / "table.csv").write_text(CSV)
    arrays = {"x": np.array([[1, 5], [2, 5], [3, 5], [4, 5]]), "y": np.array([10.0, 20.0, 60.0, 30.0])}
    np.savez(tmp_path / "table.npz", shop=np.array(["north", "south", "north", "south"]), **arrays)
    options = {"client": "shop", "num_clients": 2, "test_fraction": 0.0}
    sources = []
    for words in ({"file": "table.csv", "target": "price"}, {"file": "table.npz"}):
        table = Vectors(**{**words, "file": str(tmp_path / words["file"])}, **options)
        table.setup()
        assert isinstance(table.partition, ByWriter)
        assert [part.tolist() for part in table.client_split.train] == [[0, 2], [1, 3]]
        assert list(table.client_split.writers) == ["north", "south"]
        sources.append(table.clients)
    csv, npz = sources
    assert torch.equal(csv.images, npz.images)
    assert torch.equal(csv.labels, npz.labels)
    assert torch.equal(csv.images[:, 1], torch.zeros(4))  # constant
    assert csv.images[:, 0].tolist() == pytest.approx([-1.341641, -0.447214, 0.447214, 1.341641], rel=1e-5)


def test_a_spreadsheets_csv_file_gives_equal_data(tmp_path):
    """A byte order mark, CRLF, quotes, empty lines at the end, a suffix in capitals."""
    (tmp_path / "plain.csv").write_text(CSV)
    quoted = CSV.replace("north", '"north"').replace("\n", "\r\n")
    (tmp_path / "SHEET.CSV").write_bytes(f"\ufeff{quoted}\r\n\r\n".encode())
    one, other = (
        Vectors(str(tmp_path / file), target="price", client="shop").load() for file in ("plain.csv", "SHEET.CSV")
    )
    assert torch.equal(one.images, other.images)
    assert torch.equal(one.writers, other.writers)
    assert one.writer_names == other.writer_names == ("north", "south")


def test_replacing_a_files_clients_by_a_partition_is_noted(tmp_path):
    """This happens if a shipped config has a partition and the user names a file in addition."""
    (tmp_path / "table.csv").write_text(CSV)
    said = "decides who has which row, and data.client shop is not used; data.partition: null makes each shop a client"
    for partition, notes in (
        (None, []),
        (ByWriter(min_samples=1), []),
        (FlippedLabels(clients=[0], base=ByWriter(min_samples=1)), []),
        (IID(), [f"data.partition IID {said}"]),
        (FlippedLabels(clients=[0]), [f"data.partition FlippedLabels(1 clients of IID) {said}"]),
        (Dirichlet(100.0), [f"data.partition Dirichlet(100) {said}"]),
    ):
        options = {"num_clients": 2, "test_fraction": 0.0, "classes": True, "partition": partition}
        table = Vectors(str(tmp_path / "table.csv"), target="age", client="shop", **options)
        table.setup()
        assert table.notes() == notes


def test_file_clients_without_rows_for_each_part_are_dropped(tmp_path):
    (tmp_path / "table.csv").write_text(CSV + "west,5,5,30\neast,6,5,30\neast,7,5,30\neast,8,5,30\n")
    for fraction, names in ((0.0, ["east", "north", "south"]), (0.25, ["east"])):
        options = {"num_clients": len(names), "val_fraction": fraction}
        table = Vectors(str(tmp_path / "table.csv"), target="price", client="shop", **options)
        table.setup()
        assert table.client_split.writers.tolist() == names


def test_several_targets_and_names_of_classes(tmp_path):
    file = tmp_path / "table.csv"
    file.write_text(CSV)
    assert Vectors(str(file), target=["age", "price"], client="shop").load().labels.shape == (4, 2)
    classes = Vectors(str(file), target="shop", classes=True).load()
    assert classes.num_classes == 2
    assert classes.labels.tolist() == [0, 1, 0, 1]


WRONG = {
    "no file": ({"target": "price"}, "target, client, .* describe a file; name it by data.file"),
    "not there": ({"file": "none.csv", "target": "a"}, "none.csv does not exist; check data.file"),
    "kind": ({"file": "table.xlsx"}, "is neither a text file .* nor an .npz file; convert it to one"),
    "no target": ({"file": "table.csv"}, "data.target names the columns"),
    "unknown column": (
        {"file": "table.csv", "target": "prize"},
        "has no column 'prize'; did you mean 'price'. .it has shop, age, town, price.; name one of them",
    ),
    "words": ({"file": "table.csv", "target": "price"}, "line 2: shop is 'north', not a number"),
    "category": (
        {"file": "table.csv", "target": "town", "categories": ["town"]},
        "categories names town, which is target",
    ),
    "no category": ({"file": "table.csv", "target": "town", "categories": ["a"]}, "has no column 'a'"),
    "short line": ({"file": "short.csv", "target": "b"}, "line 3: 1 values for 2 columns"),
    "no rows": ({"file": "empty.csv", "target": "b"}, "has no rows"),
    "nan": (
        {"file": "nan.csv", "target": "b"},
        "1 of 2 values of 'a' are missing, the first in line 3; set data.missing to mean, indicator or",
    ),
    "only a target": ({"file": "nan.csv", "target": ["a", "b"]}, "has only columns of target and client"),
    "npz target": (
        {"file": "table.npz", "target": "y"},
        "an npz file's targets are its array y, and its inputs are numbers",
    ),
    "two classes": (
        {"file": "table.csv", "target": ["shop", "town"], "classes": True},
        "shop is 'north', not a number",
    ),
    "two kinds": ({"file": "table.csv", "classes": True, "labels": True}, "are two kinds of targets; set one of them"),
    "no such table": ({"table": "iris"}, "there is no table 'iris'; there are diabetes, wine"),
    "no label": (
        {"file": "table.npz", "labels": True},
        r"has 2 for label 1 of row 0 \(counted from 0\); labels are 0 or 1",
    ),
    "no name": ({"file": "names.csv", "target": "b", "client": "a"}, "names.csv: a of line 3 is empty; fill it in"),
    "no class": ({"file": "names.csv", "target": "a", "classes": True}, "names.csv: a of line 3 is empty; fill it in"),
    "npz class": ({"file": "nan.npz", "classes": True}, r"nan.npz: y of row 1 \(counted from 0\) is empty; fill it in"),
    "npz array": ({"file": "table.npz", "client": "shop"}, "has no array shop"),
    "npz shape": ({"file": "shape.npz"}, r"has x \[3, 2\] and y \[2\]"),
    "npz kind": ({"file": "text.npz"}, "x is <U1; it must be numbers"),
}


@pytest.mark.parametrize("what", WRONG)
def test_an_unusable_file_is_refused_in_one_sentence(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = {"table.csv": CSV, "short.csv": "a,b\n1,2\n3\n", "empty.csv": "a,b\n", "nan.csv": "a,b\n1,2\nnan,3\n"}
    texts["names.csv"] = "a,b,c\nx,1,1\n ,2,1\n"
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    np.savez("shape.npz", x=np.ones((3, 2)), y=np.ones(2))
    np.savez("table.npz", x=np.ones((3, 2)), y=np.array([[1, 2], [0, 1], [0, 0]]))
    np.savez("text.npz", x=np.array([["a"]]), y=np.ones(1))
    np.savez("nan.npz", x=np.ones((2, 2)), y=np.array([1.0, np.nan]))
    words, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as caught:
        Vectors(**words).load()
    assert isinstance(caught.value, MissingData) == (what == "not there")
    assert "\n" not in str(caught.value)
