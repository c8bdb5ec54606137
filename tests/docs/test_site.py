"""The documentation as a site: built strictly, with everything that its reference has to have."""

import base64
import html
import json
import re
from itertools import pairwise
from pathlib import Path

import pytest
from forked import Forked

from dfl_lightning import callbacks, functional
from dfl_lightning.cli.classes.registry import GROUPS, parameters_of, shipped_classes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the text of a page of the site by its name."""
    folder = tmp_path_factory.mktemp("site")
    done = Forked("mkdocs.__main__:cli", ["mkdocs", "build", "--strict", "--site-dir", str(folder)], ROOT, logs=folder)
    _, err = done.communicate(timeout=600)
    assert done.returncode == 0, err

    def page(name):
        return html.unescape((folder / name / "index.html").read_text(encoding="utf-8"))

    page.file = lambda name, place: (folder / name / place).read_bytes()  # what a page names
    return page


def test_start_page_is_the_readme_and_menu_lists_pages(site):
    start = site(".")
    assert "Decentralized federated learning as one modular Lightning trainer" in start
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}/"' in start, page.name


def test_configuration_reference_has_every_option_of_every_class(site):
    page = site("reference/configuration")
    for group in GROUPS:
        for name, cls in shipped_classes(group).items():
            section = re.search(rf">{re.escape(f'{group}: {name}')}<(.*?)(?:<h[23]|</article)", page, re.DOTALL)
            assert section is not None, f"{group}: {name}"
            for option in parameters_of(cls):
                assert f"<code>{option}</code>" in section[1], f"{group}: {name}.{option}"
    for option in ("max_rounds", "checkpoint_every", "local_epochs", "local_steps", "finetune_epochs"):
        assert f"<code>{option}</code>" in page


def test_the_reference_of_python_has_every_public_policy_and_function(site):
    for page, names in (("callbacks", callbacks.__all__), ("functional", functional.__all__)):
        explained = re.findall(r'<h2 id="[\w.]*\.(\w+)"', site(f"reference/{page}"))
        assert set(explained) == set(names)
        assert len(explained) == len(names)


def test_examples_are_code_and_not_quotations(site):
    page = site("reference/functional")
    assert "<blockquote>" not in page
    assert page.count('class="highlight"') > 20


def test_the_notebook_is_a_page_with_what_its_cells_show(site):
    page = site("example")
    notebook = json.loads((ROOT / "docs" / "example.ipynb").read_text(encoding="utf-8"))
    outputs = [output for cell in notebook["cells"] for output in cell.get("outputs", [])]
    pictures = re.findall(r'<img alt="([^"]*)" src="([^"]*)"', page)
    shown = [output["data"]["image/png"] for output in outputs if "image/png" in output["data"]]
    assert len(pictures) == len(shown) >= 2
    for (alt, source), image in zip(pictures, shown, strict=True):
        assert alt.startswith("report.")
        assert site.file("example", source) == base64.b64decode("".join(image))
    text = re.sub("<[^>]*>", "", page)
    for cell in notebook["cells"]:
        assert "".join(cell["source"]).splitlines()[0].lstrip("# ").replace("`", "") in text
    assert "array([" in text
    assert 'href="../example/"' in site("reports")
    assert site.file("example", "../example.ipynb")


def test_numbers_do_not_turn_sentences_into_lists():
    for path in (ROOT / "docs").rglob("*.md"):
        for before, line in pairwise(path.read_text(encoding="utf-8").splitlines()):
            sentence = before.strip() and not re.match(r" *\d+\. ", before)
            assert not (sentence and re.match(r" *\d+\. ", line)), f"{path.name}: {line}"


def test_nothing_is_loaded_from_elsewhere(site):
    for name in (".", "running", "reference/configuration"):
        page = site(name)
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page)
        assert loaded == []
