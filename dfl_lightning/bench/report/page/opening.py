"""The first section of a study's page, before the verdict: its table, charts and sentences."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dfl_lightning.bench.report.page.sections import Figure

if TYPE_CHECKING:
    from markupsafe import Markup


@dataclass(frozen=True)
class Opening:
    """The first section of a page, and the sentence at its top.

    Attributes:
        lead: sentence at the top of the page, about all columns.
        body: HTML of the table and the sentences below it; the charts follow.
        figures: charts of the section `table`.
    """

    lead: str
    body: Markup
    figures: list[Figure] = field(default_factory=list)
