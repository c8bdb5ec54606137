"""The LightningDataModule of all data sets: load, divide, lay out, and hand one sweep a round to Lightning."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning as L
import torch
from torch import Tensor

from dfl_lightning.data.augment import CropFlip
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
    """What Lightning sees as a loader: one batch, which stands for a whole round; the data stay where they are."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        return iter([0])


class FederatedData(RecordsArguments, L.LightningDataModule):
    """Samples of many clients. A data set is a subclass with one method, `load`.

    After `setup`, `clients` holds everything an engine needs. Samples that are held out follow what a client trains on.

    Args:
        num_clients: number of clients m.
        partition: how the training samples are divided; null means IID.
        test_fraction: share of each client's own samples that is held out for its test, rounded down; null takes the
            test samples from the official test set, or a quarter of the client's own where there is none (or none of
            the client's writer, see `ByWriter`); 0 means no test.
        val_fraction: share of each client's remaining samples that is held out for validation, rounded down.
        test_size: samples of each client's test part, before rounding up for each class, where they come from the
            official test set and follow the class distribution that the client was drawn with (`Dirichlet` with
            flavour `equal_sizes`, `Pathological`) or that of its training samples (flavour `image_by_image`).
        samples_per_client: samples a client keeps at most, validation and own test part included, drawn at random;
            null keeps all.
        root: folder of the data sets' files; null means the environment variable DFL_DATA_ROOT, else `./data`.
        seed: seed of the split; null means the run's seed.
        split: a split.npz to repeat, instead of drawing: partition, fractions, sizes and seed are not used then; null
            draws.
        normalise: subtract the mean and divide by the standard deviation of the training samples, channel by channel.
        augment: random crops (padding 4) and horizontal flips in training.
    """

    noun: str | None = None  # what a sample is called; None: an image where it has the shape of one
    expected: tuple[Path, bool] | None = None  # the split.npz of the run that this one repeats; with the same draw?
    run_seed: int | None = None  # the trainer sets it; without one, Lightning's PL_GLOBAL_SEED or 0

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
        augment: bool = False,
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
        """Read the data set. Called on every process; downloads belong to `prepare_data`."""

    def fit_to_training(self, source: Source, split: Split) -> tuple[Source, Split]:
        """Return both once it is known which samples clients train on; by default as they are.

        The place for what is computed from training samples only, such as means of columns.

        Args:
            source: as it was loaded; the same samples in the same order are returned.
            split: who trains, validates and is tested on which of them.
        """
        return source, split

    # -- what engines and reports read

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
        """The seed that the split is drawn with."""
        if self.seed is not None:
            return self.seed
        return int(os.environ.get("PL_GLOBAL_SEED", 0)) if self.run_seed is None else self.run_seed

    def setup(self, stage: str | None = None) -> None:
        """Load, divide and lay out; a second call does nothing unless the seed or an option has changed.

        Raises:
            UserError: the data are missing, cannot be divided as asked, or hold NaN or infinity.
        """
        if self._clients is not None and self._drawn_with is not None and _same(self._drawn_with, self._options()):
            return
        source = self.load()
        split = self._divide(source) if self.split is None else read_split(self.split, source, self.num_clients)
        if self.augment and source.images.ndim != 4:
            raise UserError(
                f"data.augment crops and flips images [C, H, W], but {source.name} has inputs of shape "
                f"{tuple(source.images.shape[1:])}; set augment: false"
            )
        fitted, split = self.fit_to_training(source, split)
        clients = materialise(fitted, split, self.normalise, CropFlip() if self.augment else None)
        refuse_what_is_no_number(clients, split, source)
        self._clients = clients
        self._source, self._split, self._drawn_with = source, split, self._options()

    def _options(self) -> dict[str, Any]:
        """Return what decides who has which samples: the seed, and the public attributes of data and partition."""
        own = {f"data.{name}": value for name, value in vars(self).items() if name[0] != "_" and name != "trainer"}
        of_partition = {f"partition.{name}": value for name, value in vars(self.partition).items()}
        return {**own, **of_partition, "seed": self.split_seed}

    def check_range(self, dtype: torch.dtype) -> None:
        """Refuse samples that are numbers, but infinity in the type that a run's inputs have.

        Args:
            dtype: float32, or float64 with `trainer.precision: 64-true`.
        """
        if self.clients.images.dtype == torch.float64 != dtype:
            refuse_what_is_no_number(self.clients, self.client_split, self.source, dtype)

    def notes(self) -> list[str]:
        """Return what a person should know before training: other data than expected, a partition that is not used."""
        expected = self.expected or (None if self.split is None else (Path(self.split), False))
        found = ""
        if expected is not None:
            found = difference(expected[0], self.client_split, self.source, same_draw=expected[1])
        given, used = self.partition.describe(), self.client_split.partition
        if self.split is None or not self._partition_given or given == used:
            return [found] if found else []
        unused = f"data.split decides who has which sample ({used}); data.partition {given} is not used"
        return [*([found] if found else []), unused]

    def _divide(self, source: Source) -> Split:
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
        """Return checksums of the loaded data and of their division among clients, see `fingerprint.NAMES`."""
        return {**self.source.fingerprint, "division": self.client_split.fingerprint}

    def save_split(self, path: str | Path) -> None:
        """Write `split.npz`, which `split=path` repeats exactly; see `split_file.write_split`."""
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

    # -- what Lightning calls

    def train_dataloader(self) -> OneSweep:
        """Return one batch a round."""
        return OneSweep()

    def val_dataloader(self) -> OneSweep:
        """Return one batch an evaluation."""
        return OneSweep()

    def test_dataloader(self) -> OneSweep:
        """Return one batch an evaluation."""
        return OneSweep()


def _same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether options are the same objects or equal plain values; arrays are not looked into."""
    plain = (bool, int, float, str, tuple, list, Path)

    def equal(one: Any, other: Any) -> bool:
        return one is other or (isinstance(one, plain) and type(one) is type(other) and one == other)

    return before.keys() == now.keys() and all(equal(before[name], now[name]) for name in now)


def _range(sizes: Tensor) -> str:
    low, high = int(sizes.min()), int(sizes.max())
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
