"""The second process that draws: with it, without it, and where it does not do its part."""

import os

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run, report
from dfl_lightning.report.page import helper
from dfl_lightning.report.page.drawing import as_png
from dfl_lightning.report.page.scripts import packed, vega_script
from dfl_lightning.report.writing import write_report


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, make_links):
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("runs") / "run"
    return make_run(folder, rng.uniform(0.3, 0.9, (3, 6)), make_links(rng, 3, 6, 2), clusters=[0, 1] * 3)


@pytest.fixture(scope="module")
def specs(run):
    found = read_run(run)
    charts = (report.learning_curves([found]), report.client_bands(found), report.collaboration_graph(found))
    return [chart.to_dict() for chart in charts]


def test_page_and_pictures_are_the_same_with_and_without_it(run, tmp_path, monkeypatch):
    for cores in (1, 2):
        monkeypatch.setattr(helper, "cores", lambda cores=cores: cores)
        write_report([run], tmp_path / f"{cores}.html", tmp_path / str(cores))
    assert (tmp_path / "1.html").read_bytes() == (tmp_path / "2.html").read_bytes()
    one, two = ({file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("1", "2"))
    assert one == two
    assert len(one) > 8


def test_each_picture_is_drawn_once_and_both_draw(specs, monkeypatch):
    """Here the first picture takes until the other process has drawn all others."""
    drawn = []

    def slowly(spec, scale):
        drawn.append(spec)
        work._process.wait(60)  # it ends when all pictures are taken
        return as_png(spec, scale)

    monkeypatch.setattr(helper, "cores", lambda: 2)
    monkeypatch.setattr(helper, "as_png", slowly)
    with helper.Helper() as work:
        assert work.script() == packed(vega_script())
        work.offer(specs, 1.0)
        pictures = work.draw()
    assert drawn == specs[:1]
    assert pictures == [as_png(spec, 1.0) for spec in specs]


@pytest.mark.parametrize("killed", ["never started", "after the script"])
def test_what_it_does_not_do_is_done_here(specs, monkeypatch, killed):
    monkeypatch.setattr(helper, "cores", lambda: 2)
    if killed == "never started":
        monkeypatch.setattr(helper.sys, "executable", "/bin/false")
    with helper.Helper() as work:
        assert work.script() == packed(vega_script())
        work._process.kill()
        work._process.wait()
        work.offer(specs, 1.0)
        assert work.draw() == [as_png(spec, 1.0) for spec in specs]
        folder = work._folder.name
    assert not os.path.exists(folder)


def test_an_error_of_a_picture_is_raised_here(specs, monkeypatch):
    monkeypatch.setattr(helper, "cores", lambda: 2)
    with helper.Helper() as work:
        work.offer([*specs, {"mark": "nothing", "encoding": {}}], 1.0)
        with pytest.raises(ValueError, match="conversion failed"):
            work.draw()
    assert work._process.poll() is not None
