"""Texts from the modules of installed packages: clusters, halves, codes and versions, each against the files."""

import sys
from pathlib import Path

import networkx
import numpy as np
import pytest

from dfl_lightning import UserError
from dfl_lightning.data import ByWriter, Text

SMALL = {"length": 8, "most": 64, "num_clients": 4}


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Two packages of Python on the path, one of them with tests and a package inside."""
    files = {
        "upper": {"__init__.py": "", "a.py": "AB" * 40, "b.py": "BA" * 40, "tests/test_a.py": "T" * 90},
        "lower": {"__init__.py": "", "deep/c.py": "cd" * 40, "deep/d.py": "dc" * 40, "e.py": "ccd" * 30},
    }
    for package, modules in files.items():
        for name, text in modules.items():
            file = tmp_path / package / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return ["upper", "lower"]


def decoded(source, writer):
    """Join the training blocks of a writer to a text again."""
    table = dict(enumerate(source.words, 2))
    rows = source.images[source.writers == writer].flatten().tolist()
    return "".join(table.get(code, "?") for code in rows)


def test_modules_are_texts_and_packages_are_clusters(packages):
    source = Text(packages=packages, **SMALL).load()
    assert source.writer_names == ("upper.a", "upper.b", "lower.deep.c", "lower.deep.d", "lower.e")
    assert source.writer_groups == (0, 0, 1, 1, 1)
    assert [decoded(source, writer)[:6] for writer in range(5)] == ["ABABAB", "BABABA", "cdcdcd", "dcdcdc", "ccdccd"]
    assert "upper" not in sys.modules  # found, not imported


def test_both_halves_have_the_codes_of_all_texts(packages):
    whole, first, second = (Text(packages=packages, half=half, **SMALL).load() for half in (None, "first", "second"))
    assert first.writer_names == ("upper.a", "lower.deep.c", "lower.e")
    assert second.writer_names == ("upper.b", "lower.deep.d")
    assert first.words == second.words == whole.words
    assert decoded(second, 1).startswith("dcdc")
    assert len({whole.name, first.name, second.name}) == 3


def test_as_many_clients_of_each_cluster(packages):
    data = Text(packages=packages, **SMALL)
    source = data.load()
    for seed in range(5):
        drawn = data.partition.divide(source, 4, seed)
        assert drawn.clusters.tolist() == [0, 0, 1, 1]
        assert [name.partition(".")[0] for name in drawn.writers] == ["upper", "upper", "lower", "lower"]
        assert all(
            (source.writers[part] == source.writer_names.index(w)).all()
            for part, w in zip(drawn.train, drawn.writers, strict=True)
        )
    chosen = {tuple(data.partition.divide(source, 4, seed).writers[2:]) for seed in range(20)}
    assert len(chosen) == 3  # two of three modules


def test_a_cluster_with_too_few_texts_is_named(packages):
    data = Text(packages=packages, **{**SMALL, "num_clients": 5})
    with pytest.raises(UserError, match=r"3 of each group, but group 0 of upper .* has 2 natural clients"):
        data.partition.divide(data.load(), 5, 0)


def test_the_files_of_an_installed_package():
    source = Text(packages=["networkx"], length=32, most=320, partition=ByWriter(min_samples=8)).load()
    file = Path(networkx.__file__).parent / "algorithms" / "clique.py"
    assert decoded(source, source.writer_names.index("networkx.algorithms.clique")) == file.read_text()[:256]
    assert source.name == f"networkx {networkx.__version__}"
    assert not any("tests" in name for name in source.writer_names)
    assert np.unique(source.writer_groups).tolist() == [0]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"packages": ["no_such_package"]}, "'no_such_package' is not an installed package"),
        ({"packages": ["networkx.algorithms"]}, "'networkx.algorithms' is not an installed package"),
        ({"packages": ["math"]}, "'math' is not an installed package"),
        ({"packages": []}, "give a path, or at least one package"),
        ({"packages": ["networkx"], "path": "books"}, "give a path, or at least one package"),
    ],
)
def test_what_is_no_package_is_refused(options, words):
    with pytest.raises(UserError, match=words):
        Text(**options).load()
