"""The notes below a table about columns whose rows have different seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dfl_lightning.bench.stats.common_seeds import Comparable
from dfl_lightning.utils.words import counted


def sentences(
    columns: Mapping[str, Comparable], values: Mapping[tuple[str, str], Mapping[int, float]]
) -> Iterator[str]:
    """Yield a sentence for each column whose rows have different seeds: which rows are compared over which seeds.

    Args:
        columns: comparison of each column, by name.
        values: numbers by seed, by row and column.
    """
    for column, compared in columns.items():
        if compared.same_seeds:
            continue
        over = f"{counted(len(compared.seeds), 'seed')} ({', '.join(map(str, compared.seeds))})"
        text = f"rows of {column} have different seeds: the best row, tau and ranks are over the {over} "
        text += f"of {', '.join(compared.means)}"
        if compared.others:
            text += f"; not among these: {', '.join(compared.others)}"
        alone = [
            row for row in compared.others if not values[row, column].keys() & values[compared.best, column].keys()
        ]
        if alone:
            text += f"; without a seed in common with {compared.best}, so without a difference: {', '.join(alone)}"
        yield text
