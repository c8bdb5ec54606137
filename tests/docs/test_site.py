"""The documentation as a site: built strictly, with everything that its reference has to have."""

import html
import re
from pathlib import Path

import pytest
from forked import Forked

from dfl_lightning import callbacks, functional
from dfl_lightning.cli.registry import GROUPS, parameters_of, shipped_classes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A page of the site, as text, by its name."""
    folder = tmp_path_factory.mktemp("site")
    done = Forked("mkdocs.__main__:cli", ["mkdocs", "build", "--strict", "--site-dir", str(folder)], ROOT, logs=folder)
    _, err = done.communicate(timeout=600)
    assert done.returncode == 0, err
    return lambda name: html.unescape((folder / name / "index.html").read_text(encoding="utf-8"))


def test_the_start_is_the_readme_and_every_page_is_in_the_menu(site):
    start = site(".")
    assert "Decentralized federated learning as one modular Lightning trainer" in start
    for page in (ROOT / "docs").glob("*.md"):
        assert f'href="{page.stem}/"' in start, page.name


def test_the_reference_of_the_configuration_has_every_option_of_every_class(site):
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


def test_nothing_is_loaded_from_elsewhere(site):
    for name in (".", "running", "reference/configuration"):
        page = site(name)
        loaded = re.findall(r'<(?:script|link|img)[^>]*(?:src|href)="(https?:[^"]*)"', page)
        assert loaded == []
