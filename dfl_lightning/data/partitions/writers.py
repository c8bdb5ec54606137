"""A partition in which each client is one writer, or another natural client."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition, contiguous_clusters
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["ByWriter"]


class ByWriter(Partition):
    """All samples of one writer for each client (LEAF, Caldas et al. 2018).

    A writer is a natural client of the data: a person, a shop of a table, a text, an airline. The clients are drawn at
    random from the writers with at least `min_samples` training samples, and ordered as in `writer_names`. With as many
    clients as such writers, all are used. If the official test set has samples of the same writers (`FEMNIST`), a
    client is tested on its own ones, and a writer without any is left out. If all its writers are different (`MNIST`),
    a share of the client's own samples is held out for the test.

    If the data have groups of writers (`Text` with packages), these are the ground-truth clusters of the clients, and
    as many clients are drawn from each, or one more from the first ones.

    Args:
        min_samples: least number of a writer's training samples, before a validation part is held out.
        classes: number of classes that a client keeps, drawn at random from its own (in DPFL, appendix H.2, each client
            misses some, but the number is not given); a writer with fewer is left out. Null keeps all.
    """

    needs_writers = True

    def __init__(self, min_samples: int = 20, classes: int | None = None) -> None:
        if min_samples < 1:
            raise UserError(f"data.partition ByWriter: min_samples must be at least 1, not {min_samples}")
        if classes is not None and classes < 1:
            raise UserError(f"data.partition ByWriter: classes must be at least 1 or null, not {classes}")
        self.min_samples = min_samples
        self.classes = classes

    def describe(self) -> str:
        """Describe the partition: `ByWriter`, or for example `ByWriter(5 classes)`."""
        return "ByWriter" if self.classes is None else f"ByWriter({self.classes} classes)"

    def assign(self, labels: np.ndarray, num_classes: int, num_clients: int, seed: int) -> Assignment:
        """Raise `UserError`, as labels do not tell the writer of a sample."""
        raise UserError(
            "data.partition ByWriter: these data do not say whose each sample is; use data FEMNIST, MNIST or Text, "
            "name the column of your table that says so by data.client, or use another partition"
        )

    def divide(self, source: Source, num_clients: int, seed: int) -> Assignment:
        """Divide the samples of a data set; see `Partition.divide`."""
        if source.writers is None:
            return self.assign(source.strata_of[0].numpy(), source.num_strata, num_clients, seed)
        writers = source.writers.numpy()
        train = self._keep_classes(_by_writer(writers), source.strata_of[0].numpy(), seed)
        tested = {} if source.test_writers is None else _by_writer(source.test_writers.numpy())
        own_tests = not tested.keys().isdisjoint(train)
        eligible, tests = [], {}
        for writer, part in train.items():
            if len(part) < self.min_samples:
                continue
            if own_tests:
                test = tested.get(writer, np.empty(0, dtype=np.int64))
                if self.classes is not None:
                    strata, of_test = source.strata_of
                    assert of_test is not None
                    test = test[np.isin(of_test.numpy()[test], np.unique(strata.numpy()[part]))]
                if not len(test):
                    continue
                tests[writer] = test
            eligible.append(writer)
        if num_clients > len(eligible):
            kept = "" if self.classes is None else f" of {self.classes} classes"
            raise UserError(
                f"data.partition {self.describe()}: {num_clients} clients, but only {len(eligible)} of the "
                f"{len(np.unique(writers))} natural clients of {source.name} have {self.min_samples} training "
                f"samples{kept}{' and a test sample' if own_tests else ''}; lower num_clients or min_samples"
            )
        chosen = _draw(eligible, source, num_clients, seed)
        return Assignment(
            [train[writer] for writer in chosen],
            clusters=np.array(source.writer_groups)[chosen] if source.writer_groups else None,
            writers=np.array([source.writer_names[writer] for writer in chosen]),
            test=[tests[writer] for writer in chosen] if own_tests else None,
            tests_on_own=not own_tests,
        )

    def _keep_classes(self, parts: dict[int, np.ndarray], labels: np.ndarray, seed: int) -> dict[int, np.ndarray]:
        """Draw the classes of each writer, and keep its samples of these; leave out writers with too few classes."""
        if self.classes is None:
            return parts
        kept = {}
        for writer, part in parts.items():
            existing = np.unique(labels[part])
            if len(existing) >= self.classes:
                chosen = numpy_stream(seed, "classes of a writer", writer).permutation(existing)[: self.classes]
                kept[writer] = part[np.isin(labels[part], chosen)]
        return kept


def _draw(eligible: list[int], source: Source, num_clients: int, seed: int) -> list[int]:
    """Draw the writers that are clients, in the order of their numbers; equally many of each group, if any."""
    if not source.writer_groups:
        return np.sort(numpy_stream(seed, "writers").permutation(eligible)[:num_clients]).tolist()
    groups = np.array(source.writer_groups)
    names = np.unique(groups)
    chosen = []
    for group, wanted in zip(names, np.bincount(contiguous_clusters(num_clients, len(names), "ByWriter")), strict=True):
        members = [writer for writer in eligible if groups[writer] == group]
        if wanted > len(members):
            raise UserError(
                f"data.partition ByWriter: {num_clients} clients are {wanted} of each group, but group {group} of "
                f"{source.name} has {len(members)} natural clients with enough samples; "
                "lower num_clients or min_samples"
            )
        chosen += numpy_stream(seed, "writers", int(group)).permutation(members)[:wanted].tolist()
    return sorted(chosen)


def _by_writer(writers: np.ndarray) -> dict[int, np.ndarray]:
    """Group the indices of samples by writer."""
    order = np.argsort(writers, kind="stable")
    numbers, starts = np.unique(writers[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
