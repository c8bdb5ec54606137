"""docs/results.md names every shipped study, and leads to every table that has been measured."""

import re
from pathlib import Path

from dfl_lightning.study.study_file import KIND
from dfl_lightning.utils.shipped_files import shipped

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE))


def test_every_shipped_study_has_a_row():
    assert set(ROWS) == set(shipped(KIND))


def test_every_table_is_linked_from_the_row_of_its_study():
    measured = {path.stem for path in DOCS.glob("results/*.md")}
    for name, link in ROWS.items():
        assert link == (f"[table](results/{name}.md)" if name in measured else "–"), name
    assert measured <= set(ROWS)
