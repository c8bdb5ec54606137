import numpy as np
import pytest
import torch
from PIL import Image

from dfl_lightning.data import CIFAR10, CINIC10, IID
from dfl_lightning.data.sets.cinic import CLASSES
from dfl_lightning.utils.errors import UserError


def write(folder, images_of):
    """Images {(part, class): uint8 [n, 32, 32, 3]} as CINIC-10's archive has them."""
    for (part, name), images in images_of.items():
        (folder / part / name).mkdir(parents=True, exist_ok=True)
        for number, image in enumerate(images):
            Image.fromarray(image).save(folder / part / name / f"cifar10-{part}-{9 - number}.png")
    return folder


@pytest.fixture
def images_of():
    rng = np.random.default_rng(0)
    sizes = {"train": 3, "valid": 2, "test": 4}
    return {
        (part, name): rng.integers(0, 256, (size, 32, 32, 3), dtype=np.uint8)
        for part, size in sizes.items()
        for name in CLASSES
    }


@pytest.fixture
def root(tmp_path, images_of):
    write(tmp_path / "CINIC-10", images_of)
    return tmp_path


def expected(images_of, *parts):
    # File names count down, so by name the last image comes first.
    images = [images_of[part, name][::-1] for part in parts for name in CLASSES]
    return torch.from_numpy(np.concatenate(images).transpose(0, 3, 1, 2).copy())


@pytest.mark.parametrize(("merge_valid", "parts"), [(True, ["train", "valid"]), (False, ["train"])])
def test_images_come_from_the_folders_sorted_by_name(root, images_of, merge_valid, parts):
    source = CINIC10(root=str(root), merge_valid=merge_valid).load()
    assert torch.equal(source.images, expected(images_of, *parts))
    assert torch.equal(source.test_images, expected(images_of, "test"))
    per_class = [
        label for part, size in (("train", 3), ("valid", 2)) if part in parts for label in np.repeat(range(10), size)
    ]
    assert source.labels.tolist() == per_class
    assert source.test_labels.tolist() == np.repeat(range(10), 4).tolist()
    assert (source.num_classes, source.scale, source.images.dtype) == (10, 1 / 255, torch.uint8)


def test_dpfls_setting_holds_out_a_fifth_of_each_client(root):
    data = CINIC10(root=str(root), num_clients=5, partition=IID(), val_fraction=0.2)
    data.setup()
    assert data.describe() == "CINIC10, IID: 8 train / 2 validation / 7–9 test images a client"


def test_images_are_in_memory_once(root):
    data = CINIC10(root=str(root), num_clients=2)
    data.setup()
    assert data.clients.images.data_ptr() == data.source.images.data_ptr()


def test_grey_images_become_colour_and_hidden_files_are_ignored(root):
    folder = root / "CINIC-10" / "train" / "airplane"
    Image.fromarray(np.full((32, 32), 77, dtype=np.uint8)).save(folder / "a.png")
    (folder / "._a.png").write_bytes(b"what some systems leave behind")
    source = CINIC10(root=str(root)).load()
    assert (source.images[0] == 77).all()
    assert len(source.images) == 51


def test_the_folder_is_found_in_the_root_or_named(root, monkeypatch):
    monkeypatch.setenv("DFL_DATA_ROOT", str(root))
    CINIC10().prepare_data()
    (root / "CINIC-10").rename(root / "elsewhere")
    sentence = r"has no CINIC-10/train; unpack the archive of doi.org/10.7488/ds/2448.*data\.path.*DFL_DATA_ROOT"
    with pytest.raises(UserError, match=sentence):
        CINIC10().prepare_data()
    CINIC10(path=str(root / "elsewhere")).prepare_data()
    with pytest.raises(UserError, match="nowhere has no train; unpack"):
        CINIC10(path=str(root / "nowhere")).load()


def test_a_class_without_images_is_refused_by_its_folder(root):
    for path in (root / "CINIC-10" / "valid" / "frog").iterdir():
        path.unlink()
    with pytest.raises(UserError, match=r"valid/frog has no png file; unpack CINIC-10 again, .* airplane, automobile"):
        CINIC10(root=str(root)).load()
    assert len(CINIC10(root=str(root), merge_valid=False).load().labels) == 30


@pytest.mark.parametrize("kept", [0, 10, 60, -30])
def test_a_torn_image_is_refused_by_name(root, kept):
    path = root / "CINIC-10" / "test" / "ship" / "cifar10-test-9.png"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(UserError, match=r"cifar10-test-9\.png: not a whole png image .*unpack CINIC-10 again"):
        CINIC10(root=str(root)).load()


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "EPS"])
def test_only_png_content_is_read_under_any_name(root, kind):
    path = root / "CINIC-10" / "test" / "ship" / "cifar10-test-9.png"
    Image.fromarray(np.zeros((32, 32), dtype=np.uint8)).save(path, format=kind)
    with pytest.raises(UserError, match="not a whole png image"):
        CINIC10(root=str(root)).load()


def test_an_image_of_another_size_is_refused_with_its_size(root):
    path = root / "CINIC-10" / "train" / "cat" / "cifar10-train-9.png"
    Image.fromarray(np.zeros((40, 30, 3), dtype=np.uint8)).save(path)
    with pytest.raises(UserError, match=r"cifar10-train-9\.png: it has 30 x 40 pixels, not 32 x 32"):
        CINIC10(root=str(root)).load()


def test_real_photographs_come_back_pixel_for_pixel(real_root, tmp_path):
    real = CIFAR10(root=str(real_root), download=False)
    try:
        source = real.load()
    except UserError as error:
        pytest.skip(f"no CIFAR-10 there: {error}")
    images_of = {}
    for label, name in enumerate(CLASSES):
        chosen = source.images[source.labels == label][:9].permute(0, 2, 3, 1).numpy()
        images_of |= {("train", name): chosen[:3], ("valid", name): chosen[3:5], ("test", name): chosen[5:]}
    again = CINIC10(path=str(write(tmp_path, images_of))).load()
    assert torch.equal(again.images, expected(images_of, "train", "valid"))
    assert torch.equal(again.test_images, expected(images_of, "test"))


def put(root, image, name="new.png", **options):
    image.save(root / "CINIC-10" / "train" / "dog" / name, **options)


RGB = np.arange(32 * 32 * 3, dtype=np.uint32).reshape(32, 32, 3).astype(np.uint8)
ALPHA = np.dstack([RGB, np.full((32, 32, 1), 255, dtype=np.uint8)])
HOLE = ALPHA.copy()
HOLE[3, 4, 3] = 254


@pytest.mark.parametrize(
    ("image", "options", "sentence"),
    [
        (Image.fromarray(HOLE), {}, "it is transparent in places, which would be lost"),
        (Image.fromarray(RGB[..., 0]), {"transparency": 7}, "it is transparent in places"),
        (Image.fromarray(RGB[..., 0].astype(np.uint16) * 250), {}, "it has more than 8 bits a channel"),
        (
            Image.fromarray(RGB),
            {"save_all": True, "append_images": [Image.fromarray(255 - RGB)]},
            "it has several frames",
        ),
    ],
)
def test_images_that_lose_information_in_8_bit_rgb_are_refused(root, image, options, sentence):
    put(root, image, **options)
    with pytest.raises(UserError, match=rf"new\.png: {sentence}.*unpack CINIC-10 again"):
        CINIC10(root=str(root)).load()


def test_grey_and_opaque_images_and_capital_suffixes_are_images(root):
    put(root, Image.fromarray(RGB[..., 0]), "a-grey.png")
    put(root, Image.fromarray(ALPHA), "b-opaque.PNG")
    images = CINIC10(root=str(root)).load().images[3 * CLASSES.index("dog") :]
    assert torch.equal(images[0], torch.from_numpy(RGB[..., 0].copy()).expand(3, 32, 32))
    assert torch.equal(images[1], torch.from_numpy(RGB.transpose(2, 0, 1).copy()))


def test_images_of_another_format_are_refused(root):
    put(root, Image.fromarray(RGB), "c.jpg")
    with pytest.raises(UserError, match=r"c\.jpg is an image, but not a png; convert it or remove it"):
        CINIC10(root=str(root)).load()
