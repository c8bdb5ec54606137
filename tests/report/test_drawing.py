"""The pictures of charts: they show what the charts show, out of fewer parts."""

import io
import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

import vl_convert
from PIL import Image

from dfl_lightning import read_run, report
from dfl_lightning.report.page.drawing import as_png, joined, still

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def run(tmp_path_factory, make_run, make_links):
    """Of 30 clients, with links of several weights and of all states but stand-ins."""
    rng = np.random.default_rng(0)
    links = [
        (r, i, j, float(rng.choice([0.1, 0.2, 0.25])) * selected, selected, probed)
        for r, i, j, _, selected, probed in make_links(rng, 3, 30, 4, probes=2)
    ]
    folder = tmp_path_factory.mktemp("runs") / "run"
    return read_run(make_run(folder, rng.uniform(0.3, 0.9, (3, 30)), links, clusters=[0, 1, 2] * 10))


def pixels(image):
    """Of a PNG, float [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.float64)


@pytest.mark.parametrize("chart", ["collaboration_graph", "link_heatmap"])
def test_a_picture_is_the_one_that_vl_convert_draws(run, chart):
    spec = getattr(report, chart)(run).to_dict()
    expected, found = pixels(vl_convert.vegalite_to_png(spec, scale=2.0)), pixels(as_png(spec, 2.0))
    assert found.shape == expected.shape
    assert (np.abs(found - expected) > 40).mean() < 0.005  # crossings of two lines of a path
    assert np.abs(found - expected).mean() < 0.3


def lines_of(svg):
    """The ends of all lines, drawn alone or within a path, by colour and width; sorted."""
    found = []
    for mark in ElementTree.fromstring(svg).iter():
        look = mark.get("stroke"), round(float(mark.get("stroke-width", 1)), 1), mark.get("stroke-opacity")
        if mark.tag == f"{SVG}line":
            x, y = (float(number) for number in re.findall(r"-?[\d.]+(?:e-\d+)?", mark.get("transform")))
            found.append((*look, x, y, x + float(mark.get("x2", 0)), y + float(mark.get("y2", 0))))
        elif mark.tag == f"{SVG}path" and "l" in mark.get("d"):
            for step in mark.get("d").split("M")[1:]:
                x, y, right, down = (float(number) for number in re.split("[,l]", step)[:4])
                found.append((*look, x, y, x + right, y + down))
    return sorted(found, key=str)


def test_every_line_is_still_drawn_in_its_colour_and_width(run):
    spec = still(report.collaboration_graph(run).to_dict())
    svg = vl_convert.vegalite_to_svg(spec)
    links = [line for line in lines_of(svg) if line[2] == "0.8"]
    assert len(links) > 100
    assert [line for line in lines_of(joined(svg)) if line[2] == "0.8"] == links
    marks = [len(re.findall(r"<line ", text)) for text in (svg, joined(svg))]
    assert marks[0] > 100
    assert marks[1] == 0
    paths = len(re.findall(r'<path [^>]*stroke-opacity="0.8"', joined(svg)))
    assert paths <= math.ceil(len(links) / 100) + len({line[:2] for line in links}) * 4  # four kinds of dashes


def test_two_opacities_of_a_filled_mark_become_one(run):
    svg = vl_convert.vegalite_to_svg(still(report.collaboration_graph(run).to_dict()))
    assert re.search(r' opacity="0\.7"', svg)
    assert not re.search(r' opacity="0\.7"', joined(svg))
    assert len(re.findall(r' fill-opacity="0\.56"', joined(svg))) == len(re.findall(r' opacity="0\.7"', svg)) > 100
    around = '<path d="M0,0" fill="#000" fill-opacity="0.8" stroke="#fff" opacity="0.5"/>'
    assert joined(f"<svg>{around}</svg>") == f"<svg>{around}</svg>"  # the line around it has the opacity, too


def test_only_what_a_mouse_finds_is_left_out(run):
    spec = report.client_bands(run).to_dict()
    marks = [layer["mark"] for layer in spec["layer"]]
    found = still(spec)
    assert [layer["mark"] for layer in found["layer"]] == [mark for mark in marks if mark.get("opacity") != 0]
    assert len(found["layer"]) == len(marks) - 1
    assert "tooltip" not in str(found)
    assert "tooltip" in str(spec)  # which is as it was
    assert found["datasets"] == spec["datasets"]
