"""Forms in which charts take runs."""

import pytest

from dfl_lightning import DFLTrainer, UserError, callbacks, read_run, report


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    from tests.helpers.small_run import SmallRun

    root = tmp_path_factory.mktemp("runs")
    return [SmallRun(root, 2, policies=[callbacks.Gossip(k=k), callbacks.Uniform()]).fit().trainer.run for k in (1, 3)]


def test_charts_take_runs_in_every_form(runs):
    read = [read_run(run.path) for run in runs]
    expected = report.learning_curves(read).to_dict()
    for form in (tuple(runs), [runs[0].path, str(runs[1].path)], [runs[0], read[1]]):
        assert report.learning_curves(form).to_dict() == expected
    assert report.learning_curves(runs=runs).to_dict() == expected
    assert report.learning_curves(runs[0]).to_dict() == report.learning_curves([read[0]]).to_dict()
    bands = report.client_bands(read[0]).to_dict()
    assert report.client_bands(runs[0]).to_dict() == report.client_bands(str(runs[0].path)).to_dict() == bands


def test_a_dict_names_the_lines(runs):
    for values in ([runs[0], str(runs[1].path)], [[run] for run in runs]):
        chart = report.learning_curves(dict(zip(("few", "many"), values, strict=True)))
        rows = [row for data in chart.to_dict()["datasets"].values() for row in data]
        assert {row["method"] for row in rows if "method" in row} == {"few", "many"}


def test_other_objects_are_refused_by_name(runs, tmp_path):
    with pytest.raises(UserError, match="a chart takes runs, not a DFLTrainer: read_run"):
        report.learning_curves(DFLTrainer(accelerator="cpu"))
    with pytest.raises(UserError, match=r"no metrics\.csv in there"):
        report.client_bands(tmp_path)
    with pytest.raises(UserError, match="this run has no folder yet"):
        report.client_bands(DFLTrainer(accelerator="cpu").run)
