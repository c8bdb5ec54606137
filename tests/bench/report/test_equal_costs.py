"""The verdict and the charts at equal seconds, bytes and trainings, with numbers by hand."""

import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.pictures import rows_of
from dfl_lightning.bench.report.page.sections import figures
from dfl_lightning.bench.report.page.sentences.equal_costs import at_equal_costs
from dfl_lightning.bench.report.page.sentences.said import qualified


def written(folder, make_run, name, scores, **columns):
    config = {"selection": {"class_path": f"mine.{name}"}}
    made = make_run(folder / name, [[score] * 4 for score in scores], config=config)
    head, *lines = (made / "metrics.csv").read_text().splitlines()
    lines = [",".join([line, *(repr(v[at]) for v in columns.values())]) for at, line in enumerate(lines)]
    (made / "metrics.csv").write_text("\n".join([",".join([head, *columns]), *lines]) + "\n")
    return read_run(made)


@pytest.fixture
def methods(tmp_path, make_run):
    """A round of A takes a second and two trainings; one of B, which is synchronous, takes four seconds and one."""
    a = {"simulated_seconds": [1.0, 2.0, 3.0, 4.0], "trainings": [2.0, 4.0, 6.0, 8.0]}
    b = {"simulated_seconds": [4.0, 8.0, 12.0, 16.0]}
    return find_methods(
        [
            written(tmp_path, make_run, "A", [0.1, 0.5, 0.6, 0.65], **a),
            written(tmp_path, make_run, "B", [0.2, 0.55, 0.7, 0.8], **b),
        ]
    )


def test_the_verdict_names_what_it_counts(methods):
    """At 4 s: A 65, B 20. At 4 MB: A 65, B 80. At 4 trainings: A 50, B 80."""
    after, firsts = at_equal_costs(methods)
    assert after == "This compares models after the last round, at unequal seconds, bytes and trainings."
    assert firsts == (
        "First by their means over seeds, without a test, are A at equal simulated seconds (4: 65.0 %), B at equal "
        "bytes (4 MB: 80.0 %) and B at equal trainings (4: 80.0 %). The order depends on what is counted."
    )
    short = at_equal_costs(methods, brief=True)[1]
    assert "are A at equal simulated seconds, B at equal bytes and B at equal trainings." in short
    assert qualified(methods)[-2:] == [after, firsts]


def test_one_order_is_not_said_to_differ(methods):
    (b,) = [method for method in methods if method.name == "B"]
    for run in b.runs:
        run.metrics["simulated_seconds"] /= 4
    assert at_equal_costs(methods)[1].endswith("B at equal trainings (4: 80.0 %).")


def test_pages_without_an_asynchronous_clock_say_nothing_of_it(tmp_path, make_run):
    runs = [written(tmp_path, make_run, name, [0.1, 0.2], simulated_seconds=[1.0, 2.0]) for name in "AB"]
    methods = find_methods(runs)
    assert at_equal_costs(methods) == []
    assert not [one for one in figures(methods) if "trainings" in one.name]


def test_the_chart_counts_trainings_of_both_clocks(methods):
    rows = rows_of(report.accuracy_by_trainings(methods).to_dict())
    found = {name: [row["cost"] for row in rows if row["method"] == name] for name in "AB"}
    assert found == {"A": [2, 4, 6, 8], "B": [1, 2, 3, 4]}
    assert [one.name for one in figures(methods) if "trainings" in one.name] == ["accuracy-by-trainings"]
