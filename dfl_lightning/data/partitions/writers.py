"""The natural division: every client is a writer."""

from __future__ import annotations

import numpy as np

from dfl_lightning.data.partitions.base import Assignment, Partition
from dfl_lightning.data.source import Source
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.random_streams import numpy_stream

__all__ = ["ByWriter"]


class ByWriter(Partition):
    """Every client is one writer and has what this writer wrote (LEAF, Caldas et al. 2018).

    A writer is whatever the data name as a natural client: a person, a shop of a table, a text, an airline.
    The clients are drawn at random among the writers with `min_samples` training samples or more; they are in the order
    of `writer_names`, whichever order they were drawn in. With as many clients as such writers nothing is drawn.
    Where the official test set has samples of the same writers (`FEMNIST`), a client is tested on those of its own, and
    a writer without any is passed over. Where all its writers are others (`MNIST`), a share of the client's own samples
    is held out for the test.

    Args:
        min_samples: training samples of a writer, before a validation part is held out.
        classes: classes that a client keeps, drawn at random among its own (DPFL, appendix H.2, has each client miss
            some, but does not say how many); a writer with fewer is passed over. Null keeps all.
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
        """Refuse: labels do not say who wrote a sample."""
        raise UserError(
            "data.partition ByWriter: these data do not say whose each sample is; use data FEMNIST, MNIST or Text, "
            "name the column of your table that says so by data.client, or use another partition"
        )

    def divide(self, source: Source, num_clients: int, seed: int) -> Assignment:
        """See `Partition.divide`."""
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
        chosen = np.sort(numpy_stream(seed, "writers").permutation(eligible)[:num_clients]).tolist()
        return Assignment(
            [train[writer] for writer in chosen],
            writers=np.array([source.writer_names[writer] for writer in chosen]),
            test=[tests[writer] for writer in chosen] if own_tests else None,
            tests_on_own=not own_tests,
        )

    def _keep_classes(self, parts: dict[int, np.ndarray], labels: np.ndarray, seed: int) -> dict[int, np.ndarray]:
        """The samples of the classes that each writer keeps; writers that have fewer classes are left out."""
        if self.classes is None:
            return parts
        kept = {}
        for writer, part in parts.items():
            own = np.unique(labels[part])
            if len(own) >= self.classes:
                chosen = numpy_stream(seed, "classes of a writer", writer).permutation(own)[: self.classes]
                kept[writer] = part[np.isin(labels[part], chosen)]
        return kept


def _by_writer(writers: np.ndarray) -> dict[int, np.ndarray]:
    """The samples of each writer, in the order of their numbers."""
    order = np.argsort(writers, kind="stable")
    numbers, starts = np.unique(writers[order], return_index=True)
    return dict(zip(numbers.tolist(), np.split(order, starts[1:]), strict=True))
