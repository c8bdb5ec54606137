"""What a table says of columns whose rows have different seeds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dfl_lightning.bench.stats.common_seeds import Comparable
from dfl_lightning.utils.words import counted


def sentences(
    columns: Mapping[str, Comparable], values: Mapping[tuple[str, str], Mapping[int, float]]
) -> Iterator[str]:
    """What to say below a table of columns whose rows have different seeds.

    Args:
        columns: what is compared in each.
        values: accuracy by seed, by row and column.
    """
    for column, found in columns.items():
        if found.same_seeds:
            continue
        over = f"{counted(len(found.seeds), 'seed')} ({', '.join(map(str, found.seeds))})"
        said = f"rows of {column} have different seeds: the best row, tau and ranks are over the {over} "
        said += f"of {', '.join(found.means)}"
        if found.others:
            said += f"; not among these: {', '.join(found.others)}"
        alone = [row for row in found.others if not values[row, column].keys() & values[found.best, column].keys()]
        if alone:
            said += f"; without a seed in common with {found.best}, so without a difference: {', '.join(alone)}"
        yield said
