import json

import numpy as np
import pytest
import torch

from dfl_lightning.data import FEMNIST, IID
from dfl_lightning.utils.errors import UserError


def write_leaf(folder, users, scale=1 / 255):
    """Users {name: (images [n, 784] of bytes, labels, test images, test labels)} as LEAF writes them, in two files."""
    for part, at in (("train", 0), ("test", 2)):
        (folder / part).mkdir(parents=True, exist_ok=True)
        names = [name for name, entry in users.items() if len(entry[at])]
        for number, chosen in enumerate((names[::2], names[1::2])):
            data = {u: {"x": (users[u][at] * scale).tolist(), "y": users[u][at + 1].tolist()} for u in chosen}
            sizes = [len(users[u][at]) for u in chosen]
            text = json.dumps({"users": chosen, "num_samples": sizes, "user_data": data})
            (folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json").write_text(text)
    return folder


def some_users(seed=0, **sizes):
    """Random users: name = (training images, test images)."""
    rng = np.random.default_rng(seed)
    return {
        name: tuple(rng.integers(0, high, (n, *shape)) for n in counts for high, shape in ((256, (784,)), (62, ())))
        for name, counts in sizes.items()
    }


USERS = some_users(eve=(30, 4), ann=(25, 3), bob=(3, 1), cyd=(22, 0))


@pytest.fixture
def root(tmp_path):
    write_leaf(tmp_path / "femnist", USERS)
    return tmp_path


def test_leafs_files_are_read_sorted_by_writer_as_bytes(root):
    source = FEMNIST(root=str(root)).load()
    names = ["ann", "bob", "cyd", "eve"]
    assert source.writer_names == tuple(names)
    assert (source.num_classes, source.scale, source.images.dtype) == (62, 1 / 255, torch.uint8)
    for at, images, labels, writers in (
        (0, source.images, source.labels, source.writers),
        (2, source.test_images, source.test_labels, source.test_writers),
    ):
        own = [USERS[name] for name in names]
        assert torch.equal(images.reshape(-1, 784), torch.from_numpy(np.concatenate([u[at] for u in own])))
        assert torch.equal(labels, torch.from_numpy(np.concatenate([u[at + 1] for u in own])))
        assert writers.tolist() == [i for i, u in enumerate(own) for _ in u[at]]
        assert images.shape[1:] == (1, 28, 28)


def test_leafs_division_into_files_does_not_matter(root, tmp_path):
    first = FEMNIST(root=str(root)).load()
    backwards = dict(reversed(USERS.items()))
    write_leaf(tmp_path / "again", backwards, scale=1)
    FEMNIST(root=str(root)).save_npz(tmp_path / "saved.npz")
    for path in ("again", "saved.npz"):
        other = FEMNIST(path=str(tmp_path / path)).load()
        assert other.writer_names == first.writer_names
        for name in ("images", "labels", "writers", "test_images", "test_labels", "test_writers"):
            assert torch.equal(getattr(other, name), getattr(first, name))
            assert getattr(other, name).dtype == getattr(first, name).dtype


def test_clients_are_writers_unless_another_partition_is_chosen(root):
    data = FEMNIST(root=str(root), num_clients=2)
    data.setup()
    assert data.describe() == "FEMNIST, ByWriter: 25–30 train / 3–4 test images a client"
    assert data.client_split.writers.tolist() == ["ann", "eve"]
    x, y = data.clients.batch(data.clients.train[1])
    torch.testing.assert_close(x.reshape(-1, 784), torch.from_numpy(USERS["eve"][0] / 255).float())
    assert y.tolist() == USERS["eve"][1].tolist()
    data = FEMNIST(root=str(root), num_clients=4, partition=IID(), test_fraction=0.25)
    data.setup()
    assert data.clients.sizes("train").tolist() == [15] * 4
    assert data.client_split.writers is None


def test_training_and_test_images_share_memory_without_a_copy(root):
    source = FEMNIST(root=str(root)).load()
    images, _ = source.everything()
    assert images.data_ptr() == source.images.data_ptr()
    assert torch.equal(images, torch.cat([source.images, source.test_images]))


def test_with_other_test_writers_own_images_are_held_out(tmp_path):
    users = some_users(ann=(40, 0), bob=(40, 0), cyd=(0, 30))  # LEAF's -t user
    write_leaf(tmp_path / "femnist", users)
    data = FEMNIST(root=str(tmp_path), num_clients=2)
    data.setup()
    assert data.clients.sizes("test").tolist() == [10, 10]
    assert len(data.clients.global_test) == 30


def test_pixels_between_two_bytes_are_kept_as_they_are(tmp_path):
    users = some_users(ann=(25, 3), bob=(25, 3))
    write_leaf(tmp_path / "femnist", {"ann": users["ann"]})
    thinned = {"bob": (users["bob"][0] * 0.9, *users["bob"][1:])}
    write_leaf(tmp_path / "more", thinned)
    for part in ("train", "test"):
        (tmp_path / "more" / part / f"all_data_0_niid_0_keep_0_{part}_9.json").rename(
            tmp_path / "femnist" / part / "b.json"
        )
    source = FEMNIST(root=str(tmp_path)).load()
    assert (source.images.dtype, source.scale) == (torch.float32, 1.0)
    expected = np.concatenate([users["ann"][0] / 255, users["bob"][0] * 0.9 / 255])
    torch.testing.assert_close(source.images.reshape(-1, 784), torch.from_numpy(expected).float(), rtol=1e-6, atol=0)
    with pytest.raises(UserError, match="only all classes, of images that are whole bytes"):
        FEMNIST(root=str(tmp_path)).save_npz(tmp_path / "a.npz")


def test_kept_classes_are_numbered_in_the_given_order(root):
    whole = FEMNIST(root=str(root)).load()
    classes = [50, int(whole.test_labels[0]), 7, 20, 9, 11]
    some = FEMNIST(root=str(root), classes=classes).load()
    kept = torch.tensor(classes)
    chosen = torch.isin(whole.labels, kept)
    assert some.num_classes == 6
    assert torch.equal(some.images, whole.images[chosen])
    assert torch.equal(kept[some.labels], whole.labels[chosen])
    assert torch.equal(some.writers, whole.writers[chosen])


def test_files_are_found_in_the_root_or_named(root, monkeypatch):
    monkeypatch.setenv("DFL_DATA_ROOT", str(root))
    FEMNIST().prepare_data()
    (root / "femnist").rename(root / "elsewhere")
    sentence = (
        r"neither a folder femnist/train nor a file femnist\*\.npz exists in root "
        r".*LEAF.*data\.path.*data\.root.*DFL_DATA_ROOT"
    )
    with pytest.raises(UserError, match=sentence):
        FEMNIST().prepare_data()
    FEMNIST(path=str(root / "elsewhere")).prepare_data()
    with pytest.raises(UserError, match=r"data\.path: .*nothing is neither an npz file nor a folder"):
        FEMNIST(path=str(root / "nothing")).prepare_data()
    for name in ("femnist_a.npz", "femnist_b.npz"):
        (root / name).touch()
    with pytest.raises(UserError, match=r"has several: femnist_a\.npz, femnist_b\.npz; name one by data\.path"):
        FEMNIST().prepare_data()


def test_reading_writes_nothing(root):
    before = sorted(root.rglob("*"))
    FEMNIST(root=str(root)).load()
    assert sorted(root.rglob("*")) == before


def changed(users, name, part, value):
    entry = list(users[name])
    entry[part] = value
    return {**users, name: tuple(entry)}


ANN = some_users(ann=(4, 2))


@pytest.mark.parametrize(
    ("users", "scale", "sentence"),
    [
        (changed(ANN, "ann", 0, np.zeros((4, 783), int)), 1, "images of writer ann have 783 pixels, not 28 x 28"),
        (changed(ANN, "ann", 1, np.array([0, 1, 2, 62])), 1, "writer ann: labels reach from 0 to 62"),
        (ANN, 2, "pixels of writer ann reach from 0 to [345]"),
        (ANN, 1.5 / 255, "pixels of writer ann reach from 0 to 1.5; they must be from 0 to 1, or whole numbers"),
        (ANN, -1, "pixels of writer ann reach from -255 to"),
        (changed(ANN, "ann", 2, ANN["ann"][2] / 255), 1, "writer ann are from 0 to 1, those of writer ann from 0 to"),
    ],
)
def test_images_unlike_femnists_are_refused_naming_file_writer_and_numbers(tmp_path, users, scale, sentence):
    write_leaf(tmp_path / "femnist", users, scale)
    with pytest.raises(UserError, match=sentence):
        FEMNIST(root=str(tmp_path)).load()


def test_missing_parts_and_repeated_writers_are_refused(root):
    train = sorted((root / "femnist" / "train").iterdir())
    (train[0].parent / "copy.json").write_text(train[0].read_text())
    with pytest.raises(UserError, match=r"copy\.json: writer eve is in all_data_0.*json, too; remove one"):
        FEMNIST(root=str(root)).load()
    (train[0].parent / "copy.json").unlink()
    train[0].write_text(train[0].read_text()[:-40])
    with pytest.raises(UserError, match=rf"{train[0].name}: not a file of LEAF"):
        FEMNIST(root=str(root)).load()
    for path in (root / "femnist" / "test").iterdir():
        path.unlink()
    train[0].unlink()
    with pytest.raises(UserError, match="femnist/test has no json file; make them with LEAF"):
        FEMNIST(root=str(root)).load()


@pytest.fixture
def arrays(root):
    FEMNIST(root=str(root)).save_npz(root / "one.npz")
    with np.load(root / "one.npz", allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda a: a.pop("writers"), "it has no array 'writers'.* it needs the arrays images, labels"),
        (lambda a: a.update(images=a["images"][1:]), r"the array images is uint8 \[87, 28, 28\]"),
        (lambda a: a.update(images=a["images"].astype(np.uint16)), "the array images is uint16"),
        (lambda a: a.update(labels=a["labels"] + 1.0), "the array labels is float64"),
        (lambda a: a.update(labels=a["labels"] + 62), "labels reach from 6[0-9] to 1"),
        (lambda a: a.update(writers=a["writers"] + 1), "names writers outside 0 to 3"),
        (lambda a: a.update(writer_ids=np.array(["a"] * 4)), r"the array writer_ids is <U1 \[4\]"),
        (lambda a: a.update(is_test=a["is_test"] * 1), "the array is_test is int64"),
        (lambda a: a.update(is_test=a["is_test"] | True), "has no training image"),
    ],
)
def test_an_npz_of_something_else_is_refused_naming_the_array(root, arrays, change, sentence):
    change(arrays)
    np.savez(root / "bad.npz", **arrays)
    with pytest.raises(UserError, match=rf"bad\.npz.*{sentence}"):
        FEMNIST(path=str(root / "bad.npz")).load()


@pytest.mark.parametrize("content", [b"", b"no npz", b"PK\x03\x04 torn"])
def test_a_torn_npz_is_refused(tmp_path, content):
    (tmp_path / "femnist.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"femnist\.npz: not an npz of FEMNIST"):
        FEMNIST(root=str(tmp_path)).load()


# --- real data --------------------------------------------------------------------------------------------------------


@pytest.fixture
def real(real_root):
    data = FEMNIST(root=str(real_root), num_clients=90)
    try:
        data.setup()
    except UserError as error:
        pytest.skip(f"no FEMNIST there: {error}")
    return data


def test_the_105_real_writers_have_leafs_own_tests(real):
    if len(real.source.writer_names) != 105:
        pytest.skip("another part of FEMNIST")
    assert (len(real.source.labels), real.source.num_test) == (14_708, 1_685)
    assert real.clients.sizes("train").min() >= 20
    for name, train, test in zip(
        real.client_split.writers, real.client_split.train, real.client_split.test, strict=True
    ):
        number = real.source.writer_names.index(name)
        assert (real.source.writers[train] == number).all()
        assert (real.source.test_writers[test] == number).all()
        share = len(test) / (len(train) + len(test))
        assert 0.09 < share < 0.2  # a tenth, rounded up


def test_real_images_come_back_from_leafs_json_byte_for_byte(real, tmp_path):
    source, users = real.source, {}
    for number in (3, 50, 104):
        train, test = source.writers == number, source.test_writers == number
        parts = (source.images[train], source.labels[train], source.test_images[test], source.test_labels[test])
        users[source.writer_names[number]] = tuple(
            p.numpy() if p.ndim == 1 else p.reshape(-1, 784).numpy() for p in parts
        )
    write_leaf(tmp_path, users)
    again = FEMNIST(path=str(tmp_path)).load()
    chosen = torch.isin(source.writers, torch.tensor([3, 50, 104]))
    assert torch.equal(again.images, source.images[chosen])
    assert torch.equal(again.labels, source.labels[chosen])
    assert again.images.dtype == torch.uint8
