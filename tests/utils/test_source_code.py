"""The source of a user's own code: which modules belong to it, their hashes, and what is not known."""

import hashlib
import importlib
import linecache
import sys
import types

import pytest

from dfl_lightning.callbacks import Gossip
from dfl_lightning.checkpoints.own_code import about_changes
from dfl_lightning.utils.code.source_code import UNKNOWN, differing, find_sources, hashes_of, is_kept, write_sources
from dfl_lightning.utils.code.source_of_objects import sources_of

FILES = {
    "own_mine.py": "import random\nimport numpy\nimport own_beside\nfrom own_pack.sub import net\n\n\n"
    "class Mine:\n    def sign(self):\n        return own_beside.SIGN\n",
    "own_beside.py": "SIGN = 1\n",
    "own_other.py": "nothing imports this\n",
    "own_pack/__init__.py": "",
    "own_pack/sub/__init__.py": "",
    "own_pack/sub/net.py": "from . import part\nfrom ..above import *\n",
    "own_pack/sub/part.py": "def late():\n    import own_late\n",
    "own_pack/above.py": "",
    "own_late.py": "",
}
OWN = {"own_mine", "own_beside", "own_pack", "own_pack.sub", "own_pack.sub.net", "own_pack.sub.part", "own_late"}


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The module `own_mine`, imported from a folder of files."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("own_mine")
    for name in [name for name in sys.modules if name.startswith("own_")]:
        del sys.modules[name]


def test_the_source_of_a_class_includes_imported_modules(mine, tmp_path):
    found = sources_of([mine.Mine])
    assert set(found) == OWN | {"own_pack.above"}
    for source in found.values():
        assert source.sha256 == hashlib.sha256((tmp_path / source.file).read_bytes()).hexdigest()
    assert find_sources(["own_mine"], [str(tmp_path), *sys.path]) == found  # without an import, the same
    write_sources(tmp_path / "code", found)
    kept = {file.relative_to(tmp_path / "code").as_posix() for file in (tmp_path / "code").rglob("*.py")}
    assert kept == set(FILES) - {"own_other.py"}
    assert is_kept(tmp_path / "code", found)


def test_objects_are_searched_and_installed_modules_left_out(mine):
    class Holds(Gossip):
        pass

    held = Gossip()
    held.inside = [{"a": (mine.Mine(),)}]
    assert "own_mine" in sources_of([held])
    assert "own_mine" in sources_of([lambda: held])
    assert set(sources_of([Holds()])) >= {Holds.__module__}
    assert sources_of([Gossip(), "text", 3, [1, 2]]) == {}


def test_a_file_that_changed_after_its_import_is_unknown(mine, tmp_path):
    text = FILES["own_mine.py"]
    (tmp_path / "own_mine.py").write_text(text.replace("own_beside.SIGN", "-own_beside.SIGN"))
    found = sources_of([mine.Mine()])["own_mine"]
    assert found.sha256 == UNKNOWN
    assert "own_mine.py was changed after Python had read it; restart" in found.why
    (tmp_path / "own_mine.py").write_text(text)
    assert sources_of([mine.Mine()])["own_mine"].why == ""


CELL = """\
SCALE = 3


def twice(x):
    return 2 * x * SCALE * own_beside.SIGN


@str
def other(x):
    return x


class Typed:
    def value(self):
        return twice(1)
"""


@pytest.fixture
def notebook(mine, monkeypatch):
    """A module without a file, whose lines Python keeps as those of a notebook's cell."""
    module = types.ModuleType("own_notebook")
    monkeypatch.setitem(sys.modules, "own_notebook", module)
    module.own_beside = sys.modules["own_beside"]

    def run(text, kept=True):
        name = f"<cell {hash(text)}>"
        if kept:
            monkeypatch.setitem(linecache.cache, name, (len(text), None, text.splitlines(keepends=True), name))
        exec(compile(text, name, "exec"), vars(module))
        return module

    return run


def test_a_notebooks_class_is_its_lines_and_their_names(notebook):
    found = sources_of([notebook(CELL).Typed()])
    assert set(found) == {"own_notebook", "own_beside"}
    said = found["own_notebook"].content.decode()
    shown = [words in said for words in ("SCALE = 3\n", "def twice(x)", "class Typed", "other")]
    assert shown == [True, True, True, False]
    for change in (("2 * x", "5 * x"), ("SCALE = 3", "SCALE = 4")):
        assert sources_of([notebook(CELL.replace(*change)).Typed()])["own_notebook"] != found["own_notebook"]
    assert sources_of([notebook(f"\n\n{CELL}").Typed()]) == found


def test_a_class_without_source_lines_is_never_the_same(notebook):
    found = hashes_of(sources_of([notebook("class Typed:\n    def f(self): pass\n", kept=False).Typed()]))
    assert found == {"own_notebook": UNKNOWN}
    assert differing(found, found) == ["own_notebook"]
    assert "may be of a run with other code: the source of own_notebook is not known" in about_changes(
        "a run", found, found
    )


def test_changes_are_reported_in_one_sentence():
    before, now = {"a": "1", "b": "2", "c": "3"}, {"a": "9", "b": "8", "d": "4"}
    assert about_changes("r", before, now) == "r is of a run with other code: a and b have changed"
    assert about_changes("r", before, dict(before)) == ""
