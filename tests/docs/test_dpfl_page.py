"""Numbers of docs/dpfl.md follow from the files that it names."""

import csv
import re
import statistics
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "dpfl.md").read_text(encoding="utf-8")


def graphs(which):
    """Yield sparsity and symmetry of DPFL's graph of each seed, in the first or the last round."""
    with (DOCS / "results/rounds/claims_dpfl_options.csv").open(encoding="utf-8", newline="") as file:
        lines = [line for line in csv.DictReader(file) if line["row"] == "DPFL"]
    at = which(int(line["round"]) for line in lines)
    for line in lines:
        if int(line["round"]) == at:
            yield float(line["collaboration_sparsity"]), float(line["collaboration_symmetry"])


def unlike(sparsity, symmetry, clients=24):
    """Count the share of ordered pairs of clients with a link in one direction only."""
    links = round((1 - sparsity) * clients * (clients - 1))
    alone = round(links * (1 - symmetry))  # each makes its own pair and the reversed one unlike
    return 2 * alone / (clients * (clients - 1))


@pytest.mark.parametrize(("place", "which"), [("first choice", min), ("last round", max)])
def test_graph_table_follows_from_the_recorded_rounds(place, which):
    found = list(graphs(which))
    assert len(found) == 10
    numbers = {
        "sparsity s": [s for s, _ in found],
        "links with a reverse": [r for _, r in found],
        "pairs alike": [1 - unlike(s, r) for s, r in found],
    }
    for name, values in numbers.items():
        mean, sd = (100 * f(values) for f in (statistics.fmean, statistics.stdev))
        [cells] = re.findall(rf"^\| {name}.*{place}, % \|.*\| (.*?) \|$", PAGE, re.MULTILINE)
        assert cells == f"{mean:.1f} ± {sd:.1f}"


def test_table_of_operations_is_what_its_script_prints(load, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["dpfl_flops.py"])
    load("dpfl_flops").main()
    head, table = capsys.readouterr().out.strip().split("\n\n")
    assert f"\n\n{table}\n\n" in PAGE
    assert re.findall(r"F = ([\d.]+)|B = ([\d.]+)|= (\d+) steps", head) == [
        ("20.9", "", ""), ("", "30.4", ""), ("130.3", "", ""), ("", "", "125"),
    ]  # fmt: skip
    text = " ".join(PAGE.split())
    assert (
        "has F = 20.9 and B = 30.4 million operations, the 100 validation images of a client F = 130.3, and E is 125"
        in text
    )
