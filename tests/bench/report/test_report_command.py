"""`dfl-report` and `dfl-fit --report`: what they write, and what they refuse."""

import gc
import io
import re

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report import writing as module
from dfl_lightning.bench.report.command import main
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.paper import figure_bytes, is_installed, read_paper
from dfl_lightning.bench.report.page.pictures import linked_figures
from dfl_lightning.bench.report.page.sections import figures
from dfl_lightning.cli.command import run as command


def test_page_is_written_into_the_run_or_as_requested(tmp_path, make_run, capsys):
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    assert main([str(run)]) == 0
    assert capsys.readouterr().out.startswith(f"{run / 'report.html'} (")
    assert (
        main(
            [
                str(run),
                "--out",
                str(tmp_path / "a" / "b.html"),
                "--figures",
                "png",
                "--figures-out",
                str(tmp_path / "pictures"),
            ]
        )
        == 0
    )
    assert (tmp_path / "a" / "b.html").read_bytes() == (run / "report.html").read_bytes()
    assert (tmp_path / "pictures" / "learning-curves.png").read_bytes().startswith(b"\x89PNG")
    head, row = (tmp_path / "pictures" / "learning-curves.csv").read_text().splitlines()
    assert head.startswith("method,round,mean")
    assert ",1,55.0," in row


def test_mistakes_are_answered_by_one_sentence(tmp_path, make_run, capsys, monkeypatch):
    assert main([str(tmp_path / "none")]) == 2
    assert "none: the folder does not exist; give a run folder or a folder of runs" in capsys.readouterr().err
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    (tmp_path / "file").write_text("")
    assert main([str(run), "--out", str(tmp_path / "file" / "page.html")]) == 2
    assert "choose another file with --out" in capsys.readouterr().err
    assert gc.isenabled()  # which rests while a page is made
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    assert main([str(run)]) == 2
    assert "pip install 'dfl-lightning[report]'" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    assert command("fit", ["--config", "gossip", "--report"]) == 2
    assert "pip install 'dfl-lightning[report]'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def drawn(tmp_path, make_run):
    """Return the figures of a run, by name."""
    run = make_run(tmp_path / "drawn", np.full((3, 4), 0.5), [(r, 0, 1, 0.5, True, False) for r in range(3)])
    methods = find_methods([read_run(run)])
    return {figure.name: figure for figure in [*figures(methods), *linked_figures(methods)]}


@pytest.mark.parametrize(
    ("width", "inches"),
    [
        *(("8.4cm", 8.4 / 2.54), ("240pt", 240 / 72.27)),
        pytest.param("3.3in", 3.3, marks=pytest.mark.slow),
        pytest.param("7in", 7, marks=pytest.mark.slow),
    ],
)
def test_figures_have_the_requested_width_and_eight_point_type(drawn, width, inches):
    for name in ("learning-curves", "matrix-1"):
        svg, pdf, png = (
            figure_bytes(drawn[name], read_paper(format, width, None), {}) for format in ("svg", "pdf", "png")
        )
        points, pixels = re.search(rb'width="([0-9.]+)pt" [^>]*viewBox="0 0 ([0-9.]+) ', svg).groups()
        assert float(points) == pytest.approx(72 * inches, abs=0.02)
        assert 12 * float(points) / float(pixels) == pytest.approx(8, rel=0.01)  # names have 12 of its pixels
        assert b'font-size="12px"' in svg
        box = re.search(rb"/MediaBox \[0 0 ([0-9.]+) ", pdf)
        assert float(box[1]) == pytest.approx(72 * inches, abs=0.02)
        with Image.open(io.BytesIO(png)) as image:
            assert image.width == pytest.approx(300 * inches, abs=2)
            assert image.info["dpi"] == pytest.approx((300, 300), abs=0.1)


def test_paper_figures_have_their_title_in_the_caption(tmp_path, make_run):
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    assert main([str(run), "--figures", "svg", "--width", "3.3in"]) == 0
    folder = run / "figures"
    lines = (folder / "captions.txt").read_text().splitlines()
    assert "learning-curves: Test accuracy over rounds. Mean over clients." in lines
    bands = next(line for line in lines if line.startswith("bands-1: "))  # what its lines are, and whose
    assert ": clients over rounds. The line is the median client, " in bands
    assert bands.endswith(". Seed 0.")
    assert "Test accuracy over rounds" not in (folder / "learning-curves.svg").read_text()
    assert len(lines) == len(list(folder.glob("*.csv"))) == len(list(folder.glob("*.svg"))) > 1


def test_a_figure_has_the_font_that_is_asked_for(drawn):
    font = next((name for name in ("DejaVu Serif", "Liberation Serif", "Times New Roman") if is_installed(name)), None)
    if font is None:
        pytest.skip("no font with serifs that is known to this test")
    pdf = figure_bytes(drawn["learning-curves"], read_paper("pdf", "3.3in", font), {})
    fonts = {name.partition(b"-")[0] for name in re.findall(rb"/BaseFont /[A-Z]+\+([\w-]+)", pdf)}
    assert fonts == {font.replace(" ", "").encode()}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--figures pfd", "--figures pfd: it is one of pdf, svg, png; did you mean 'pdf'?"),
        ("--width 3.3in", "--width is about figures; give their format too, for example --figures pdf"),
        ("--figures pdf --width 3.3", "--width 3.3: give a number with its unit, in, cm, mm, pt, for example 3.3in"),
        (
            "--figures pdf --width 3.3inch",
            "--width 3.3inch: give a number with its unit, in, cm, mm, pt, for example 3.3in",
        ),
        ("--figures pdf --width 90in", "--width 90in: a figure is 1.5 to 20 inches wide"),
        ("--figures pdf --font Nope", "--font Nope: there is no such font on this machine; `fc-list : family` lists"),
    ],
)
def test_wrong_figure_options_are_refused_before_writing(tmp_path, make_run, capsys, words, sentence):
    run = make_run(tmp_path / "run", [[0.5, 0.6]])
    assert main([str(run), *words.split()]) == 2
    assert sentence in capsys.readouterr().err
    assert not list(run.glob("report.html"))


def test_a_fit_makes_its_page_and_names_the_command(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["--config", "gossip", "--report", "--data.num_clients", "4", "--trainer.max_rounds=1"]
    assert command("fit", words) == 0
    (page,) = tmp_path.glob("runs/gossip/*/report.html")
    folder = page.parent.relative_to(tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"run: {folder}", f"page: {folder}/report.html"]
    assert f"dfl-fit {' '.join(words)}" in re.sub("</?span>", "", page.read_text(encoding="utf-8"))
