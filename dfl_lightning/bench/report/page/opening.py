"""What a study puts before the verdict of its page: its table, its charts and what they say."""

from __future__ import annotations

from dataclasses import dataclass, field

from dfl_lightning.bench.report.page.sections import Figure


@dataclass(frozen=True)
class Opening:
    """The first section of a page, and the sentence at its top.

    Attributes:
        lead: the sentence, about all columns.
        body: HTML of the table and what is said below it; the charts come after it.
        figures: charts of the section `table`.
    """

    lead: str
    body: str
    figures: list[Figure] = field(default_factory=list)
