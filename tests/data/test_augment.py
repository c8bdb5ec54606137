import torch
from torchvision.transforms import functional as vision

from dfl_lightning.data.augment import CropFlip


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
