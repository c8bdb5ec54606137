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
from dfl_lightning.report.page.drawing import as_png, lighter, still

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run, make_links):
    """Three of 30 clients, with links of several weights and of all states but substitutes, and with similarities."""
    rng, found = np.random.default_rng(0), []
    for number in range(3):
        links = [
            (r, i, j, float(rng.choice([0.1, 0.2, 0.25])) * selected, selected, probed)
            for r, i, j, _, selected, probed in make_links(rng, 3, 30, 4, probes=2)
        ]
        folder = tmp_path_factory.mktemp("runs") / "run"
        config = {"selection": {"class_path": f"Method{number}"}}
        accuracy = np.cumsum(rng.uniform(0.0, 0.05, (20, 30)), 0)  # which begins below the axis
        make_run(folder, accuracy, links, clusters=[0, 1, 2] * 10, config=config)
        similarity = rng.random((1, 30, 30)).astype(np.float32)
        similarity[0, 3, 5:9] = np.nan
        np.savez(folder / "comparisons.npz", rounds=[2], similarity=similarity, threshold=np.full((1, 30), 0.5))
        found.append(read_run(folder))
    return found


@pytest.fixture(scope="module")
def run(runs):
    return runs[0]


def pixels(image):
    """Of a PNG, float [height, width, 3]."""
    return np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.float64)


@pytest.mark.parametrize("chart", ["collaboration_graph", "link_heatmap", "similarities", "learning_curves"])
def test_a_picture_is_the_one_that_vl_convert_draws(runs, chart):
    spec = getattr(report, chart)(runs if chart == "learning_curves" else runs[0]).to_dict()
    expected, found = pixels(vl_convert.vegalite_to_png(spec, scale=2.0)), pixels(as_png(spec, 2.0))
    assert found.shape == expected.shape
    assert (np.abs(found - expected) > 40).mean() < 0.005  # crossings of two lines of a path
    assert np.abs(found - expected).mean() < (0.6 if chart == "similarities" else 0.3)  # the seams between its tiles


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
    assert [line for line in lines_of(lighter(svg)) if line[2] == "0.8"] == links
    marks = [len(re.findall(r"<line ", text)) for text in (svg, lighter(svg))]
    assert marks[0] > 100
    assert marks[1] == 0
    paths = len(re.findall(r'<path [^>]*stroke-opacity="0.8"', lighter(svg)))
    assert paths <= math.ceil(len(links) / 250) + len({line[:2] for line in links}) * 4  # four kinds of dashes


def test_a_mark_of_a_graph_has_one_opacity(run):
    """One of the whole mark beside that of its area or line takes a canvas of its own."""
    svg = vl_convert.vegalite_to_svg(still(report.collaboration_graph(run).to_dict()))
    links, cells = np.unique(run.graphs["round"]), run.graphs["sender"] != run.graphs["receiver"]
    assert len(re.findall(r' fill-opacity="0\.56"', svg)) > (cells & (run.graphs["round"] == links[-1])).sum() / 2
    assert set(re.findall(r'[" ]opacity="([^"]*)"', svg)) == {"1"}


def test_lines_of_a_layer_are_clipped_together(runs):
    svg = vl_convert.vegalite_to_svg(still(report.learning_curves(runs).to_dict()))
    clips = [len(re.findall(r" clip-path=", text)) for text in (svg, lighter(svg))]
    assert clips == [3, 1]
    marks = [
        [path.get("d") for path in ElementTree.fromstring(text).iter(f"{SVG}path")] for text in (svg, lighter(svg))
    ]
    assert marks[0] == marks[1]


@pytest.mark.parametrize("other", ["area", "place"])
def test_lines_that_are_clipped_by_others_stay_as_they_are(runs, other):
    svg = vl_convert.vegalite_to_svg(still(report.learning_curves(runs).to_dict()))
    if other == "area":
        (used, *_) = re.findall(r' clip-path="url\(#([^)]*)\)"', svg)
        svg, count = re.subn(rf'(<clipPath id="{used}"><rect x="0" y="0" width=")', r"\g<1>1", svg)
        assert count == 1
    else:
        at = svg.index("<g", svg.index("role-scope"))
        svg = svg[:at] + svg[at:].replace("translate(0,0)", "translate(9,0)", 1)
    assert len(re.findall(r" clip-path=", lighter(svg))) == 3


def test_tiles_of_a_colour_are_one_path(run):
    svg = vl_convert.vegalite_to_svg(still(report.similarities(run).to_dict()))
    found = lighter(svg)
    tile = re.compile(r"M[^MZ]*Z")
    before, after = (re.findall(r'<path d="([^"]*)" fill="(rgb[^"]*)"', text) for text in (svg, found))
    tiles = [
        sorted((colour, one) for shape, colour in paths for one in tile.findall(shape)) for paths in (before, after)
    ]
    assert len(before) == len(tiles[0]) == 900 - 4  # those that are not known have no tile
    assert tiles[0] == tiles[1]
    assert len(after) == len({colour for _, colour in after}) < 800
    assert found.count('shape-rendering="crispEdges"') == 1
    heat = vl_convert.vegalite_to_svg(still(report.link_heatmap(run).to_dict()))
    assert "crispEdges" not in lighter(heat)  # it has gaps


def test_only_what_a_mouse_finds_is_left_out(run):
    spec = report.client_bands(run).to_dict()
    marks = [layer["mark"] for layer in spec["layer"]]
    found = still(spec)
    assert [layer["mark"] for layer in found["layer"]] == [mark for mark in marks if mark.get("opacity") != 0]
    assert len(found["layer"]) == len(marks) - 1
    assert "tooltip" not in str(found)
    assert "tooltip" in str(spec)  # which is as it was
    assert found["datasets"] == spec["datasets"]
