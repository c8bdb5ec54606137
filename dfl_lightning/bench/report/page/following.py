"""Additions to the page of a run that is still training: a note, and a script that loads the next page."""

from __future__ import annotations

import time
from collections.abc import Sequence

from dfl_lightning.bench.report.methods import Method, planned_rounds

_EARLY = (
    "try { const theme = JSON.parse(sessionStorage.getItem(`following ${location.pathname}`))?.theme; "
    "if (theme) document.documentElement.dataset.theme = theme; } catch { /* the browser keeps nothing: no theme */ }"
)


def early_script() -> str:
    """Write a script that restores the reader's theme before the page is painted."""
    return f"<script>{_EARLY}</script>\n"


def live_note(methods: Sequence[Method], gap: float) -> str:
    """Write the note about the run's progress and the time of the page, with a button.

    Args:
        methods: one method with one run.
        gap: seconds until the next page.
    """
    run = methods[0].runs[0]
    done, planned = len(run.metrics["round"]), planned_rounds(run)
    rounds = f"{done}{f' of {planned}' if planned != done else ''} round{'s' * (planned != 1)}"
    clock = time.strftime("%H:%M:%S")
    return (
        f'<p class="live" id="live" data-gap="{gap:.1f}" data-written="{time.time():.1f}"><b>Training</b> '
        f'<span id="age">{rounds}, written at {clock}</span> '
        '<button id="follow" type="button" aria-pressed="true" hidden>Following</button></p>\n'
    )
