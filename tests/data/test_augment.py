import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.transforms import functional as vision

from dfl_lightning import DFLModule, DFLTrainer, UserError, callbacks
from dfl_lightning.data import Digits, FromDataset, Vectors
from dfl_lightning.data.augment import CropFlip
from dfl_lightning.models import MLP
from dfl_lightning.utils.randomness.random_streams import stream


def test_augmented_images_are_padded_crops_that_may_be_flipped():
    batch = torch.rand(32, 3, 6, 6) + 0.1
    augment = CropFlip(padding=2)
    out = augment.apply(batch, augment.draw(32, torch.Generator().manual_seed(0)))
    kinds = set()
    for image, result in zip(batch, out, strict=True):
        padded = vision.pad(image, [2])
        found = [
            (top, left, flip)
            for top in range(5)
            for left in range(5)
            for flip in (False, True)
            if torch.equal(result, (vision.hflip if flip else lambda x: x)(vision.crop(padded, top, left, 6, 6)))
        ]
        assert len(found) == 1
        kinds.add(found[0])
    assert len(kinds) > 15
    assert {flip for *_, flip in kinds} == {False, True}


def test_augmentation_depends_on_the_given_generator_only():
    torch.manual_seed(0)
    first = CropFlip().draw(8, torch.Generator().manual_seed(3))
    state = torch.get_rng_state()
    second = CropFlip().draw(8, torch.Generator().manual_seed(3))
    assert torch.equal(first, second)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(first, CropFlip().draw(8, torch.Generator().manual_seed(4)))


# --- functions of one sample ------------------------------------------------------------------------------------------
def noise(x):
    """Draws from all three global generators."""
    return x * random.uniform(0.5, 1.5) + torch.randn_like(x) * 0.1 + float(np.random.normal()) * 0.01


def digits(**options):
    data = Digits(num_clients=2, seed=0, **options)
    data.setup()
    return data


def test_a_function_of_a_sample_draws_from_its_seed_alone():
    clients = digits(augment=noise).clients
    samples = clients.train[0][:5]
    draws = clients.augment.draw(5, stream(0, "a", 1))
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()
    out, _ = clients.batch(samples, draws=draws)
    again, _ = clients.batch(samples[[4, 2]], draws=draws[[4, 2]])
    assert torch.equal(again, out[[4, 2]])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (random.getstate(), np.random.get_state()[1].tolist()) == states[1:]
    plain, _ = clients.batch(samples)
    for x, seed, found in zip(plain, draws.flatten().tolist(), out, strict=True):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed % 2**32)
        torch.testing.assert_close(found, noise(x))  # pixels from 0 to 1
    assert torch.equal(clients.batch(samples)[0], plain)


def test_a_function_of_a_sample_comes_before_normalisation():
    plain, data = digits(normalise=True).clients, digits(normalise=True, augment=lambda x: x / 2).clients
    pixels = digits().clients
    samples = plain.train[0][:3]
    half = data.batch(samples, draws=data.augment.draw(3, torch.Generator()))[0]
    wanted = pixels.batch(samples)[0] / 2 * (plain.scale / pixels.scale).float() + plain.shift.float()
    torch.testing.assert_close(half, wanted)


def test_threads_draw_the_same_as_one_thread():
    clients = digits(augment=noise).clients
    draws = clients.augment.draw(40, stream(0, "a", 1))
    parts = list(zip(clients.train[0][:40].split(4), draws.split(4), strict=True))
    alone = [clients.batch(part, draws=seeds)[0] for part, seeds in parts]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda each: clients.batch(each[0], draws=each[1])[0], parts))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


class Counting:
    """Remembers how often it was called."""

    calls = 0

    def __call__(self, x):
        self.calls += 1
        return x + self.calls


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (3, "data.augment is 3; it is true, false, or a function of a sample"),
        (CropFlip, r"data.augment is the class dfl_lightning.data.augment.CropFlip; give an object, CropFlip\("),
        (lambda x: x[:, 1:], r"makes \[1, 7, 8\] of a sample float32 \[1, 8, 8\]; it must return a tensor of the same"),
        (lambda x: None, r"makes NoneType of a sample float32 \[1, 8, 8\]"),
        (lambda x: x.numpy().crop(3), r"<lambda> fails on a sample float32 \[1, 8, 8\] .*no attribute 'crop'"),
        (Counting(), "Counting gives two results for the same sample and the same draws"),
    ],
)
def test_an_augmentation_that_cannot_work_is_refused_before_the_run(given, sentence):
    with pytest.raises(UserError, match=sentence):
        digits(augment=given)


def test_a_table_may_be_augmented_by_a_function(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(12.0).reshape(6, 2), y=np.arange(6.0))
    data = Vectors(str(tmp_path / "a.npz"), num_clients=1, augment=lambda x: x + 1)
    data.setup()
    draws = data.clients.augment.draw(2, torch.Generator())
    plain, changed = (data.clients.batch(data.clients.train[0][:2], draws=each)[0] for each in (None, draws))
    torch.testing.assert_close(changed, plain + 1)


# --- a folder of images -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Make a folder of images for each of three classes, as `ImageFolder` reads it."""
    root, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for label in "abc":
        (root / label).mkdir()
        for number in range(12):
            pixels = draw.integers(0, 256, (9, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(root / label / f"{number}.png")
    return root


FLIPS = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.RandomCrop(8, padding=2)])


def of_folder(folder, *transform, **options):
    as_tensors = transforms.Compose([transforms.CenterCrop(8), *transform, transforms.ToTensor()])
    return FromDataset(ImageFolder(folder, as_tensors), num_clients=3, **options)


class Stop(RuntimeError):
    pass


class StopsAt(callbacks.Monitor):
    """Ends the run in the middle of a round."""

    def __init__(self, round):
        self.last = round

    def on_mix(self, mixing):
        if mixing.index == self.last:
            raise Stop


def run_of(root, data, rounds=4, monitors=(), engine="auto"):
    policies = [callbacks.Gossip(k=1), callbacks.Uniform(), *monitors]
    options = {"enable_progress_bar": False, "accelerator": "cpu", "default_root_dir": root, "engine": engine}
    trainer = DFLTrainer(max_rounds=rounds, callbacks=policies, **options)
    optimizer = partial(torch.optim.SGD, lr=0.1)
    return trainer, DFLModule(MLP([6]), local_epochs=1, batch_size=5, optimizer=optimizer), data


def test_an_augmented_folder_of_images_resumes_with_the_same_bits(folder, tmp_path):
    trainer, module, data = run_of(tmp_path / "whole", of_folder(folder, augment=FLIPS))
    trainer.fit(module, datamodule=data)
    whole = module.bank.rows("models").clone()
    stopped, second, again = run_of(tmp_path / "stopped", of_folder(folder, augment=FLIPS), monitors=[StopsAt(2)])
    with pytest.raises(Stop):
        stopped.fit(second, datamodule=again)
    resumed, third, again = run_of(tmp_path / "stopped", of_folder(folder, augment=FLIPS))
    resumed.fit(third, datamodule=again, ckpt_path=stopped.run.path)
    assert torch.equal(third.bank.rows("models"), whole)
    assert torch.equal(data.clients.images, of_folder_tensors(folder))
    plain, module, data = run_of(tmp_path / "plain", of_folder(folder))
    plain.fit(module, datamodule=data)
    assert not torch.allclose(module.bank.rows("models"), whole, atol=1e-3)


def of_folder_tensors(folder):
    data = of_folder(folder)
    data.setup()
    return data.clients.images


def test_both_engines_see_the_same_augmented_images(folder, tmp_path):
    found = []
    for engine in ("stacked", "loop"):
        trainer, module, data = run_of(tmp_path, of_folder(folder, augment=FLIPS), rounds=2, engine=engine)
        trainer.fit(module, datamodule=data)
        found.append(module.bank.rows("models").clone())
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_transform_that_draws_is_refused_and_its_advice_works(folder, tmp_path):
    flip = transforms.RandomHorizontalFlip()
    with pytest.raises(UserError, match=r"data ImageFolder: item \d+ differs when it is read again, .* data\.augment"):
        of_folder(folder, flip).setup()
    with pytest.raises(UserError, match=r"data ImageFolder \(test_dataset\): item \d+ differs when it is read again"):
        of_folder(folder, test_dataset=of_folder(folder, flip).dataset).setup()
    trainer, module, data = run_of(tmp_path, of_folder(folder, augment=flip), rounds=1)
    trainer.fit(module, datamodule=data)
