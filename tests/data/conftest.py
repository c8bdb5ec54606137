import dataclasses
import os
from pathlib import Path

import jsonargparse
import pytest
import torch

from dfl_lightning.data import FederatedData, Source


class Toy(FederatedData):
    """40 training and 30 test images whose first pixel is their number, three classes in turn."""

    sizes = (40, 30)
    has_test = True

    def load(self):
        def images(count, first):
            numbers = torch.arange(first, first + count, dtype=torch.uint8).view(-1, 1, 1, 1)
            return numbers + torch.tensor([[0, 64], [128, 192]], dtype=torch.uint8)

        train, test = (torch.arange(size) % 3 for size in self.sizes)
        if not self.has_test:
            return Source("Toy", images(self.sizes[0], 0), train, 3)
        return Source("Toy", images(self.sizes[0], 0), train, 3, images(self.sizes[1], 40), test, scale=1 / 255)


@pytest.fixture
def toy():
    return Toy


@pytest.fixture
def toy_of_writers():
    """Five writers in turn; the last one has no test images."""

    def load(self):
        source = Toy.load(self)
        writers, test_writers = (torch.arange(size) % writers for size, writers in zip(self.sizes, (5, 4), strict=True))
        names = ("ann", "bob", "cyd", "dee", "eve")
        return dataclasses.replace(source, writers=writers, test_writers=test_writers, writer_names=names)

    return type("Toy", (Toy,), {"load": load})


@pytest.fixture
def real_root():
    """The folder with real data sets."""
    root = os.environ.get("DFL_DATA_ROOT")
    if not root:
        pytest.skip("set DFL_DATA_ROOT to a folder with torchvision's data sets to run this on real data")
    return Path(root)


class Command:
    """A command with one option, `data`, read as LightningCLI reads it."""

    def __init__(self):
        self.parser = jsonargparse.ArgumentParser(exit_on_error=False)
        self.parser.add_subclass_arguments(FederatedData, "data")

    def instantiate(self, config):
        # jsonargparse before 4.49 has only the longer name.
        make = "instantiate" if hasattr(self.parser, "instantiate") else "instantiate_classes"
        return getattr(self.parser, make)(config).data

    def data(self, *arguments):
        return self.instantiate(self.parser.parse_args(list(arguments)))


@pytest.fixture
def command():
    return Command()
