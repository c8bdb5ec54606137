"""Numbers of several seeds in one cell of a table."""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def spread(values: Sequence[float | None], digits: int = 2) -> str:
    """Format mean and standard deviation over seeds, in percent.

    Examples:
        >>> spread([0.5, 0.7])
        '60.00 ± 14.14'
    """
    known = [100 * v for v in values if v is not None]
    if not known:
        return "–"
    deviation = statistics.stdev(known) if len(known) > 1 else 0.0
    return f"{statistics.mean(known):.{digits}f} ± {deviation:.{digits}f}"
