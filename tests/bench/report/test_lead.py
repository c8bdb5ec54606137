"""The title and the lead of a page with several test sets."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page


def test_title_and_lead_are_of_the_largest_comparison(tmp_path, make_run):
    runs = []
    for at, (name, data, level) in enumerate(
        [("A", "Alone, 4 clients", 0.9), ("B", "Both, 4 clients", 0.6), ("C", "Both, 4 clients", 0.5)]
    ):
        images = np.arange(40) + 100 * (at > 0)
        config = {"selection": {"class_path": f"mine.{name}"}}
        runs.append(make_run(tmp_path / name, [[level] * 4], config=config, test_images=images, data=data))
    text = page(find_methods([read_run(folder) for folder in runs]))
    assert "<h1>Both, 4 clients" in text
    lead = text[text.index("<p class='lead'>") :]
    assert lead.startswith("<p class='lead'><strong>Both, 4 clients: B ends at 60.0 % test accuracy")
