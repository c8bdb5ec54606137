"""Compact values of a page expand to the original ones."""

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report import page
from dfl_lightning.bench.report.page.compact import compact

SCRIPT = Path(page.__file__).with_name("expand.js")

ROWS = [{"method": "a", "round": r, "mean": r / 3, "sd": None} for r in range(40)]
MATRIX = (lambda half: ((half + half.T) / 2).round(3).tolist())(np.random.default_rng(0).normal(size=(20, 20)))


VALUES = [
    {"rows": ROWS, "matrix": MATRIX, "deep": [{"rows": ROWS}, {"rows": [{"m": MATRIX}, {"m": [[1]]}]}]},
    [[1, 2, 3], [2, 1, 4], [0, 4, 1]],
    [{"a": 1}, {"b": 2}],
    [{"a": 1, "b": 2}, {"b": 2, "a": 1}],
    [{}, {}],
    [[], [], []],
    [None, {"a": 1}, {"a": 2}],
    [{"a": 1}, None],
    [[1, None, 3], [None, 1, 2], [3, 2, 1]],
    [[[1], 2, 3], [2, [1], 4], [3, 4, [1]]],
    ["word", {"a": [[0]]}],
    *([number / 10**decimals for number in (-7, 0, 1, 3, 49_993, 12, 92, 93, 100)] for decimals in range(7)),
    [1 / 3] * 9,
    [*range(0, 400_000, 50_000), 3],
    [1e300, *range(9)],
    [*range(9), None],
    [*range(9), [1]],
    [*range(90), 200, 40_000],
    [True, *[False] * 9],
    [0.1, 0.2, 0.3, *np.linspace(-1, 1, 21).round(2).tolist()],
]


def test_page_expands_compact_values_exactly(chromium):
    seen = chromium.new_page()
    seen.add_script_tag(path=SCRIPT)
    for value in VALUES:
        packed = json.dumps(compact(value))
        found = json.loads(seen.evaluate("(text) => JSON.stringify(expand(JSON.parse(text)))", packed))
        assert found == value
    assert len(json.dumps(compact(ROWS))) < 0.6 * len(json.dumps(ROWS))
    assert len(json.dumps(compact(MATRIX))) < 0.6 * len(json.dumps(MATRIX))
    seen.close()
