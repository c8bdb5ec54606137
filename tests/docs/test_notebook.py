"""docs/example.ipynb: its cells run, and it is what its script makes."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
pytest.importorskip("altair", reason="the extra `report` is not installed")

NOTEBOOK = Path(__file__).parents[2] / "docs" / "example.ipynb"


def test_the_cells_run_and_are_those_of_the_script(load, tmp_path, monkeypatch):
    script = load("make_notebook")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert [cell.source for cell in notebook.cells] == list(script.CELLS)
    assert NOTEBOOK.stat().st_size < 200_000
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            value = script.run(cell.source, names)[1]
            assert value is not None
            assert cell.outputs
    assert (tmp_path / "report.html").is_file()
    assert len(names["run"].metrics["round"]) == 10
