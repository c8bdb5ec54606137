"""The LightningDataModule of all data sets, which loads the samples and divides them among the clients."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from dfl_lightning.data.augment import Augment, augmentation
from dfl_lightning.data.check_finite import refuse_what_is_no_number
from dfl_lightning.data.client_data import ClientData
from dfl_lightning.data.materialise import materialise
from dfl_lightning.data.partitions import IID, Partition
from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.expected_split import difference
from dfl_lightning.data.splits.split import Split, draw_split
from dfl_lightning.data.splits.split_file import read_split, write_split
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError

__all__ = ["FederatedData", "OneSweep"]

DEFAULT_TEST_FRACTION = 0.25
ROOT_VARIABLE = "DFL_DATA_ROOT"


class OneSweep:
    """A data loader for Lightning with a single batch, which stands for a whole round and contains no data."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter([0])


class FederatedData(RecordsArguments, L.LightningDataModule):
    """The samples of many clients; a data set is a subclass that implements one method, `load`.

    After `setup`, `clients` contains everything that an engine needs. The distribution of a client's validation and
    test samples follows that of its training samples.

    Args:
        num_clients: number of clients m.
        partition: rule that divides the training samples; null means IID.
        test_fraction: share of each client's own samples that is held out for its test, rounded down; null takes the
            test samples from the official test set, or a quarter of the client's own if there is none (or none of
            the client's writer, see `ByWriter`); 0 means no test.
        val_fraction: share of each client's remaining samples that is held out for validation, rounded down.
        test_size: number of each client's test samples, before rounding up for each class, if they come from the
            official test set and follow the class distribution that the client was drawn with (`Dirichlet` with
            flavour `equal_sizes`, `Pathological`) or that of its training samples (flavour `image_by_image`).
        samples_per_client: largest number of samples of a client, validation and own test part included, drawn at
            random; null keeps all.
        root: folder of the data sets' files; null means the environment variable DFL_DATA_ROOT, else `./data`.
        seed: seed of the split; null means the run's seed.
        split: a split.npz to repeat, instead of drawing a split: partition, fractions, sizes and seed are then not
            used; null draws a split.
        normalise: True to subtract the mean and divide by the standard deviation of the training samples, for each
            channel.
        augment: True for random crops (padding 4) and horizontal flips in training; or a function of one training
            sample, such as a transform of torchvision, or an `Augment`, which changes whole batches. Samples of
            validation and test stay as they are. A function may draw from the global generators of torch, numpy and
            Python, which are seeded for each sample from the client's own stream.
    """

    noun: str | None = None  # the name of a sample in messages; None: image or sample, by the shape
    shipped_images = False  # True: the options of a config for other images that are shipped fit these, too
    expected: tuple[Path, bool] | None = None  # split.npz of the run that this one repeats; True: with the same draw
    run_seed: int | None = None  # set by the trainer; None means Lightning's PL_GLOBAL_SEED or 0

    def __init__(
        self,
        num_clients: int = 20,
        partition: Partition | None = None,
        test_fraction: float | None = None,
        val_fraction: float = 0.0,
        test_size: int = 100,
        samples_per_client: int | None = None,
        root: str | None = None,
        seed: int | None = None,
        split: str | None = None,
        normalise: bool = False,
        augment: bool | nn.Module | Augment | Callable[[Tensor], Tensor] = False,
    ) -> None:
        super().__init__()
        for name, number in (("num_clients", num_clients), ("test_size", test_size)):
            if number < 1:
                raise UserError(f"data.{name} must be at least 1, not {number}")
        if samples_per_client is not None and samples_per_client < 1:
            raise UserError(f"data.samples_per_client must be at least 1 or null, not {samples_per_client}")
        for name, fraction in (("test_fraction", test_fraction), ("val_fraction", val_fraction)):
            if fraction is not None and not 0 <= fraction < 1:
                raise UserError(f"data.{name} must be at least 0 and less than 1, not {fraction}")
        self.num_clients = num_clients
        self._partition_given = partition is not None
        self.partition = IID() if partition is None else partition
        self.test_fraction = test_fraction
        self.val_fraction = val_fraction
        self.test_size = test_size
        self.samples_per_client = samples_per_client
        self.root = Path(root or os.environ.get(ROOT_VARIABLE) or "data")
        self.seed = seed
        self.split = split
        self.normalise = normalise
        self.augment = augment
        self._clients: ClientData | None = None
        self._split: Split | None = None
        self._source: Source | None = None
        self._drawn_with: dict[str, Any] | None = None

    @abstractmethod
    def load(self) -> Source:
        """Read the data set. All processes call this; downloads belong to `prepare_data`."""

    def fit_to_training(self, source: Source, split: Split) -> tuple[Source, Split]:
        """Transform the data set and the split by statistics of the clients' training samples; by default do nothing.

        A subclass can compute here what must not depend on test samples, such as the means of columns.

        Args:
            source: the loaded data set; the returned one must have the same samples in the same order.
            split: training, validation and test samples of each client.
        """
        return source, split

    # -- attributes for engines and reports

    @property
    def clients(self) -> ClientData:
        """The resident tensors, after `setup`."""
        if self._clients is None:
            raise UserError("data: the clients' data do not exist yet; call setup() first")
        return self._clients

    @property
    def source(self) -> Source:
        """The data set as it was loaded, after `setup`."""
        if self._source is None:
            raise UserError("data: the data set is not loaded yet; call setup() first")
        return self._source

    @property
    def client_split(self) -> Split:
        """The samples of each client, after `setup`."""
        if self._split is None:
            raise UserError("data: the split does not exist yet; call setup() first")
        return self._split

    @property
    def split_seed(self) -> int:
        """The seed of the split: that of the data, else that of the run."""
        if self.seed is not None:
            return self.seed
        return int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.run_seed is None else self.run_seed

    def setup(self, stage: str | None = None) -> None:
        """Load the data set, divide it among the clients and build their tensors.

        A second call does nothing unless the seed or an option has changed.

        Raises:
            UserError: the data are missing, cannot be divided as asked, or contain NaN or infinity.
        """
        if self._clients is not None and self._drawn_with is not None and _same(self._drawn_with, self._options()):
            return
        source = self.load()
        split = self._divide(source) if self.split is None else read_split(self.split, source, self.num_clients)
        fitted, split = self.fit_to_training(source, split)
        augment = augmentation(self.augment, fitted.images[0], fitted.scale, source.name)
        clients = materialise(fitted, split, self.normalise, augment)
        refuse_what_is_no_number(clients, split, source)
        self._clients = clients
        self._source, self._split, self._drawn_with = source, split, self._options()

    def _options(self) -> dict[str, Any]:
        """Return everything that determines the split: the seed, and the public attributes of data and partition."""
        of_data = {f"data.{name}": value for name, value in vars(self).items() if name[0] != "_" and name != "trainer"}
        of_partition = {f"partition.{name}": value for name, value in vars(self.partition).items()}
        return {**of_data, **of_partition, "seed": self.split_seed}

    def check_range(self, dtype: torch.dtype) -> None:
        """Raise if finite samples are infinite in the dtype of a run's inputs.

        Args:
            dtype: float32, or float64 with `trainer.precision: 64-true`.

        Raises:
            UserError: a sample of a client is beyond the range of the dtype.
        """
        if self.clients.images.dtype == torch.float64 != dtype:
            refuse_what_is_no_number(self.clients, self.client_split, self.source, dtype)

    def notes(self) -> list[str]:
        """Return remarks for the user before training: other data than expected, or a partition that is not used."""
        expected = self.expected or (None if self.split is None else (Path(self.split), False))
        differing = ""
        if expected is not None:
            differing = difference(expected[0], self.client_split, self.source, same_draw=expected[1])
        given, used = self.partition.describe(), self.client_split.partition
        if self.split is None or not self._partition_given or given == used:
            return [differing] if differing else []
        unused = f"data.split decides who has which sample ({used}); data.partition {given} is not used"
        return [*([differing] if differing else []), unused]

    def _divide(self, source: Source) -> Split:
        """Draw a split by the partition."""
        if self.num_clients > len(source.labels):
            raise UserError(
                f"data: {self.num_clients} clients, but {source.name} has {len(source.labels)} training samples; "
                f"lower num_clients"
            )
        seed = self.split_seed
        assignment = self.partition.divide(source, self.num_clients, seed)
        if assignment.label_map is not None and not source.has_classes:
            raise UserError(
                f"data.partition {self.partition.describe()} renames classes, and {source.name} has none; use another "
                "partition"
            )
        fraction = self.test_fraction
        if fraction is None and (not source.num_test or assignment.tests_on_own):
            fraction = DEFAULT_TEST_FRACTION
        return draw_split(
            source,
            assignment,
            self.partition.describe(),
            test_fraction=fraction,
            val_fraction=self.val_fraction,
            test_size=self.test_size,
            samples_per_client=self.samples_per_client,
            seed=seed,
        )

    def fingerprint(self) -> dict[str, int]:
        """Return checksums of the loaded data and of their division among clients; see `fingerprint.NAMES`."""
        return {**self.source.fingerprint, "division": self.client_split.fingerprint}

    def save_split(self, path: str | Path) -> None:
        """Write a `split.npz`, which the option `split` repeats exactly; see `split_file.write_split`."""
        write_split(path, self.client_split, self.source)

    def describe(self) -> str:
        """Describe the data for the banner, for example `Digits, IID: 67–68 train / 22 test samples a client`."""
        sizes = [f"{_range(self.clients.sizes('train'))} train"]
        if int(self.clients.sizes("val").max()):
            sizes.append(f"{_range(self.clients.sizes('val'))} validation")
        if int(self.clients.sizes("test").max()):
            sizes.append(f"{_range(self.clients.sizes('test'))} test")
        origin = "" if self.split is None else f" from {Path(self.split).name}"
        noun = self.noun or ("image" if self.source.images.ndim == 4 else "sample")
        return f"{self.source.name}, {self.client_split.partition}{origin}: {' / '.join(sizes)} {noun}s a client"

    # -- methods that Lightning calls

    def train_dataloader(self) -> OneSweep:
        """Return a loader with one batch for each round."""
        return OneSweep()

    def val_dataloader(self) -> OneSweep:
        """Return a loader with one batch for each evaluation."""
        return OneSweep()

    def test_dataloader(self) -> OneSweep:
        """Return a loader with one batch for each evaluation."""
        return OneSweep()


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return True if options are the same objects or equal plain values; the values of arrays are not compared."""
    plain = (bool, int, float, str, tuple, list, Path)

    def equal(one: Any, other: Any) -> bool:
        return one is other or (isinstance(one, plain) and type(one) is type(other) and one == other)

    return before.keys() == now.keys() and all(equal(before[name], now[name]) for name in now)


def _range(sizes: Tensor) -> str:
    """Format the range of some sizes, for example `67–68`."""
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
