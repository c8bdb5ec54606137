"""DPFL's three clients: what is run for each row, and the table of its differences."""

import contextlib
import io
from argparse import Namespace

import pytest
import yaml
from scipy.stats import ttest_1samp

from dfl_lightning.cli.command import run


@pytest.fixture(scope="module")
def script(load):
    return load("dpfl_three_clients")


@pytest.mark.parametrize(
    ("row", "sizes", "k"),
    [("alone", [200], 0), ("with client 2", [200, 1000], "all"), ("with both", [200, 1000, 1000], "all")],
)
def test_a_row_trains_its_group(script, row, sizes, k):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert run("fit", [*script.command(row, Namespace(rounds=20)), "--print_config"]) == 0
    config = yaml.safe_load(printed.getvalue())
    counts = config["data"]["init_args"]["partition"]["init_args"]["counts"]
    assert [sum(row.values()) for row in counts] == sizes
    assert config["selection"]["init_args"]["k"] == k
    assert config["trainer"]["max_rounds"] == 20


def test_the_table_has_paired_differences_and_adjusted_p_values(script):
    alone = [50.0, 52.0, 54.0, 51.0]
    better, same = [53.0, 54.5, 57.5, 53.0], [50.5, 51.0, 54.5, 51.5]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in script.table({"alone": alone, "better": better, "same": same})
    ]
    small, large = (
        ttest_1samp([a - b for a, b in zip(values, alone, strict=True)], 0).pvalue for values in (better, same)
    )
    assert small < large
    assert rows[3][1:] == ["54.5 ± 2.1", "+2.8", "+1.7 to +3.8", f"{2 * small:.3f}"]
    assert rows[4][2] == "+0.1"
    assert rows[4][4] == f"{large:.3f}"
