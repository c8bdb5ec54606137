"""Windows of time series, one series for each client, whose last part in time is held out."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from dfl_lightning.data.datamodule import DEFAULT_TEST_FRACTION, FederatedData
from dfl_lightning.data.partitions import ByWriter, Partition
from dfl_lightning.data.readers.series_file import SeriesTable, read_series
from dfl_lightning.data.sets.seasonal import seasonal_clusters, seasonal_series
from dfl_lightning.data.source import Source
from dfl_lightning.data.splits.split import Split
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["Series"]

Scope = Literal["client", "global"]


class Series(FederatedData):
    """Windows of time series and the values that follow them, which are predicted (`Forecast`); a series is a client.

    A sample consists of `window` times of a series, with all columns, and the `horizon` times that follow. The last
    part in time of each series is its client's test data, and the part before it the validation data. Samples whose
    inputs and targets are not in the same part are left out, so that clients never train on values that are tested or
    validated.

    Columns are standardised to mean 0 and standard deviation 1 over all times of the training samples, for each client
    or for all together; the split contains the means and deviations. A constant column becomes zeros. Errors are
    reported in the original unit.

    Without a file the series are synthetic, drawn with a fixed seed: seasons with noise, of clients in four
    ground-truth clusters that differ in periods and phases.

    Args:
        file: a text file with a line of column names (.csv, .tsv, .tab, .txt, also compressed as .gz), or an npz file
            with arrays [N]; a row for each time of each series. Null means the synthetic series.
        client: column that names the series of each row.
        value: columns of numbers, one name or several.
        target: those of the value columns that are predicted; null means all.
        time: column that orders a series, numbers or ISO 8601 dates; null keeps the order of the rows. Times determine
            the order only: gaps are not filled.
        window: number of times of a sample's input, W.
        horizon: number of times that are predicted.
        stride: number of times from the beginning of a sample to that of the next one.
        standardise: `client` for each series separately, `global` for all together, or null for no standardisation.
        test_fraction: share of each series, at its end, that is its test data, rounded down; null means a quarter.
        val_fraction: share of the rest, at its end, that is validation data, rounded down.
        random_windows: True to draw validation and test samples at random, as other data sets do. They then overlap the
            training samples, so that errors are too low; a partition may divide the samples.
        num_clients: number of clients, whose series are drawn at random from those that are long enough.
        partition: rule that divides the samples, with `random_windows` only; null means `ByWriter`, a client for each
            series.
        separator: what separates the columns of a text file: a character, `tab` or `space`; null finds it.
        **kwargs: `seed` and `split` of `FederatedData`; with `random_windows` also `samples_per_client`.
    """

    noun = "window"

    def __init__(
        self,
        file: str | None = None,
        client: str = "client",
        value: str | list[str] = "value",
        target: str | list[str] | None = None,
        time: str | None = None,
        window: int = 16,
        horizon: int = 4,
        stride: int = 1,
        standardise: Scope | None = "client",
        test_fraction: float | None = 0.2,
        val_fraction: float = 0.0,
        random_windows: bool = False,
        num_clients: int = 20,
        partition: Partition | None = None,
        separator: str | None = None,
        **kwargs: Any,
    ) -> None:
        if min(window, horizon, stride) < 1:
            raise UserError(f"data Series: window={window}, horizon={horizon}, stride={stride}; each must be 1 or more")
        if standardise not in ("client", "global", None):
            raise UserError(f"data Series: standardise={standardise}; it must be client, global or null")
        if file is None and (client, value, target, time) != ("client", "value", None, None):
            raise UserError("data Series: client, value, target and time describe a file; name it by data.file")
        self.value = [value] if isinstance(value, str) else list(value)
        self.target = self.value if target is None else [target] if isinstance(target, str) else list(target)
        for name in self.target:
            if name not in self.value:
                raise UserError(f"data Series: data.target has {name}, and data.value {', '.join(self.value)}; add it")
        if not self.target:
            raise UserError("data Series: data.value and data.target are lists with a column or more; name one")
        for name in ("normalise", "augment"):
            if kwargs.get(name):
                raise UserError(f"data Series: data.{name} is for images; leave it out")
        if not random_windows and partition is not None:
            raise UserError(
                f"data Series: data.partition {partition.describe()} divides windows at random, so that what is tested "
                "overlaps what is trained on; leave it out, or set random_windows: true to have it all the same"
            )
        if not random_windows and kwargs.get("samples_per_client") is not None:
            raise UserError("data Series: samples_per_client draws windows at random; thin them by stride")
        fraction = DEFAULT_TEST_FRACTION if test_fraction is None else test_fraction
        super().__init__(
            num_clients=num_clients,
            partition=ByWriter(min_samples=1) if partition is None else partition,
            test_fraction=fraction,
            val_fraction=val_fraction,
            **kwargs,
        )
        self._partition_given = partition is not None
        self.file, self.client, self.time, self.separator = file, client, time, separator
        self.window, self.horizon, self.stride = window, horizon, stride
        self.standardise, self.random_windows = standardise, random_windows
        self._values, self._starts = np.empty((0, 1)), np.empty(0, np.int64)

    def setup(self, stage: str | None = None) -> None:
        """Load and divide the series; see `FederatedData.setup`. Only the standardised inputs are kept in memory."""
        super().setup(stage)
        raw = self.source
        self._source = dataclasses.replace(raw, images=self.clients.images, checksums=raw.fingerprint)

    def load(self) -> Source:
        """Cut the series into samples: inputs float64 [N, C, W], targets [N, horizon x columns], not standardised."""
        table = self._read()
        columns = [self.value.index(name) for name in self.target]
        lengths = np.array([len(values) for values in table.values])
        self._values = np.concatenate(table.values)
        span = self.window + self.horizon
        begins = np.cumsum(lengths) - lengths
        starts = [np.arange(b, b + n - span + 1, self.stride) for b, n in zip(begins, lengths, strict=True)]
        if not any(map(len, starts)):
            raise UserError(
                f"data Series: none of the {len(lengths)} series of {table.name} has {self.window} + {self.horizon} "
                f"times (window + horizon), the longest has {lengths.max()}; lower window or horizon"
            )
        self._begins, self._ends = begins, begins + lengths
        self._starts = np.concatenate(starts).astype(np.int64)
        owners = np.repeat(np.arange(len(starts)), [len(own) for own in starts])
        covered = self._values[self._starts[:, None] + np.arange(span)]  # [N, W + horizon, C]
        return Source(
            table.name,
            torch.from_numpy(np.ascontiguousarray(covered[:, : self.window].transpose(0, 2, 1))),
            torch.from_numpy(covered[:, self.window :, columns].reshape(len(covered), -1)),
            0,
            writers=torch.from_numpy(owners),
            writer_names=table.names,
            words=(*self.value, *self.target),
        )

    def fit_to_training(self, source: Source, split: Split) -> tuple[Source, Split]:
        """Standardise the columns, float32, and store the scale of each target with it, [N, 2, d]; see `Forecast`."""
        if self.split is None:
            means, deviations = self._moments(split.train)
            split = dataclasses.replace(split, client_means=means, client_deviations=deviations)
        if split.client_means is None or split.client_deviations is None:
            raise UserError(
                f"data.split: {self.split} does not say how series are standardised; give the split.npz of a run on "
                "data Series"
            )
        columns = [self.value.index(name) for name in self.target] * self.horizon
        images, labels = source.images.float(), torch.stack([source.labels, torch.ones_like(source.labels)], 1)
        shift, scale = torch.from_numpy(split.client_means), torch.from_numpy(split.client_deviations)
        for client, parts in enumerate(zip(split.train, split.val, split.test, strict=True)):
            indices = torch.from_numpy(np.concatenate(parts))
            images[indices] = ((source.images[indices] - shift[client, :, None]) / scale[client, :, None]).float()
            labels[indices, 0] = (labels[indices, 0] - shift[client, columns]) / scale[client, columns]
            labels[indices, 1] = scale[client, columns]
        return dataclasses.replace(source, images=images, labels=labels.float()), split

    def notes(self) -> list[str]:
        """Return remarks for the user before training, in addition that random windows overlap."""
        leak = "data.random_windows: what is tested overlaps what is trained on, so that errors are too low"
        return [*super().notes(), *([leak] if self.random_windows and self.split is None else [])]

    def _read(self) -> SeriesTable:
        if self.file is None:
            return seasonal_series(self.num_clients)
        return read_series(Path(self.file), self.client, self.value, self.time, self.separator)

    def _divide(self, source: Source) -> Split:
        return super()._divide(source) if self.random_windows else self._divide_in_time(source)

    def _divide_in_time(self, source: Source) -> Split:
        """Cut each series into training, validation and test part, and leave out samples across a cut."""
        assert source.writers is not None
        assert self.test_fraction is not None
        writers, after = source.writers.numpy(), self._starts + self.window + self.horizon
        lengths = self._ends - self._begins
        tested = np.floor(self.test_fraction * lengths + 1e-9).astype(np.int64)
        validated = np.floor(self.val_fraction * (lengths - tested) + 1e-9).astype(np.int64)
        test_from = self._ends - tested
        val_from = test_from - validated
        train = after <= val_from[writers]
        val = (self._starts >= val_from[writers]) & (after <= test_from[writers])
        test = self._starts >= test_from[writers]
        parts = {"training": train, "validation": val, "test": test}
        asked = {"training": True, "validation": self.val_fraction > 0, "test": self.test_fraction > 0}
        counts = [np.bincount(writers[parts[what]], minlength=len(lengths)) for what in parts if asked[what]]
        eligible = np.flatnonzero(np.min(counts, 0) > 0)
        if len(eligible) < self.num_clients:
            raise UserError(
                f"data Series: {self.num_clients} clients, but only {len(eligible)} of the {len(lengths)} series of "
                f"{source.name} have a sample of {self.window} + {self.horizon} times (window + horizon) in each of "
                f"{', '.join(what for what in parts if asked[what])}; lower num_clients, window or horizon, or change "
                "test_fraction or val_fraction"
            )
        drawn = numpy_stream(self.split_seed, "series").permutation(eligible)
        chosen = np.sort(drawn[: self.num_clients])
        indices = {what: [np.flatnonzero(mask & (writers == w)) for w in chosen] for what, mask in parts.items()}
        return Split(
            train=indices["training"],
            val=indices["validation"],
            test=indices["test"],
            test_official=False,
            clusters=seasonal_clusters(self.num_clients) if self.file is None else None,
            partition="a series each",
            writers=np.array([source.writer_names[w] for w in chosen]),
        )

    def _moments(self, train: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Compute means and standard deviations of each client's columns over its training times, float64 [m, C]."""
        span = np.arange(self.window + self.horizon)
        times = [np.unique(self._starts[part][:, None] + span) for part in train]
        if self.standardise == "global":
            times = [np.unique(np.concatenate(times))] * len(times)
        shape = (len(train), self._values.shape[1])
        if self.standardise is None:
            return np.zeros(shape), np.ones(shape)
        mean, deviation = np.empty(shape), np.empty(shape)
        for client, covered in enumerate(times):
            values = self._values[covered]
            mean[client], deviation[client] = values.mean(0), values.std(0)
            constant = deviation[client] <= 1e-12 * np.abs(values).max(0)
            deviation[client, constant] = 1.0
        return mean, deviation
