"""The note on the page of a run that is still training."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dfl_lightning.bench.report.methods import Method, planned_rounds
from dfl_lightning.bench.report.page.templates.filling import fill

if TYPE_CHECKING:
    from markupsafe import Markup


def live_note(methods: Sequence[Method], gap: float) -> Markup:
    """Write the note about the run's progress and the time of the page, with a button.

    Args:
        methods: one method with one run.
        gap: seconds until the next page.
    """
    run = methods[0].runs[0]
    done, planned = len(run.metrics["round"]), planned_rounds(run)
    rounds = f"{done}{f' of {planned}' if planned != done else ''} round{'s' * (planned != 1)}"
    return fill(
        "live.html", gap=f"{gap:.1f}", written=f"{time.time():.1f}", rounds=rounds, clock=time.strftime("%H:%M:%S")
    )
