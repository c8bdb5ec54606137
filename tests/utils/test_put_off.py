"""A package's eager imports are delayed: it works as with them, and other modules are not affected."""

import builtins
import importlib
import sys

import pytest

from dfl_lightning.utils.code.put_off import import_without

HEAVY = """
import heavy_one.part
from heavy_one import Shape, styled
from heavy_one.part import area
import heavy_one.part as whole
SHAPES = Shape | None
EITHER = int | Shape

@styled("bold")
def drawn(text):
    return text

def of(shape):
    return area(shape), whole.area(shape), heavy_one.part.area(shape)

def is_shape(thing):
    return isinstance(thing, Shape), issubclass(type(thing), Shape)

def square():
    class Square(Shape):
        side = 3
    return Square()
"""


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """Write modules below a folder that Python looks through; what was imported of them is forgotten afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def packages(**files):
        for name, text in files.items():
            path = tmp_path.joinpath(*name.split("__")).with_suffix(".py")
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            (path.parent / "__init__.py").touch()
        importlib.invalidate_caches()

    packages(
        heavy_one="",
        heavy_one__part="def area(shape): return shape.side**2",
        user_of_heavy__inner=HEAVY,
        user_of_heavy__other="import heavy_two",
    )
    tmp_path.joinpath("heavy_one.py").unlink()
    styled = "def styled(how): return lambda draw: lambda text: f'{how} {draw(text)}'"
    (tmp_path / "heavy_one" / "__init__.py").write_text(f"class Shape:\n    side = 2\n\n{styled}\n")
    (tmp_path / "user_of_heavy" / "__init__.py").write_text("from user_of_heavy import inner")
    yield packages
    for name in set(sys.modules) - before:
        if name.startswith(("heavy_", "user_of_")):
            del sys.modules[name]


def heavy():
    return sorted(name for name in sys.modules if name.startswith("heavy_"))


def test_a_delayed_import_happens_at_first_use(packages):
    import_without("user_of_heavy", ["heavy_one"])
    assert heavy() == []
    inner = sys.modules["user_of_heavy.inner"]
    assert repr(inner.Shape) == "<heavy_one.Shape, put off until it is used>"
    assert inner.drawn("a") == "bold a"
    assert heavy() == ["heavy_one"]
    import heavy_one

    assert inner.of(heavy_one.Shape()) == (4, 4, 4)
    assert heavy() == ["heavy_one", "heavy_one.part"]
    assert inner.is_shape(heavy_one.Shape()) == (True, True)
    assert inner.is_shape(3) == (False, False)
    assert heavy_one.part.area(inner.square()) == 9
    assert isinstance(inner.square(), heavy_one.Shape)
    assert "side" in dir(inner.Shape)
    inner.Shape.side = 5
    assert inner.of(heavy_one.Shape()) == (25, 25, 25)
    assert inner.Shape.__name__ == "Shape"


def test_only_the_packages_own_imports_are_delayed(packages):
    plain = builtins.__import__
    packages(user_of_user="import user_of_heavy, heavy_one.part", user_of_heavy__late="import heavy_one")
    packages(user_of_heavy__inner="import user_of_user")
    import_without("user_of_heavy", ["heavy_one"])
    assert builtins.__import__ is plain
    assert sys.modules["user_of_user"].heavy_one is sys.modules["heavy_one"]
    assert importlib.import_module("user_of_heavy.late").heavy_one is sys.modules["heavy_one"]


@pytest.mark.parametrize(
    "text",
    [
        "from heavy_one import Shape\nassert Shape.__name__ == 'Shape'",
        "import heavy_one\nnumbers = [0, 1, 2][: heavy_one.Shape.side]",
    ],
    ids=["its name", "an index"],
)
def test_an_import_that_is_used_immediately_is_not_delayed(packages, tmp_path, text):
    packages(user_of_heavy__inner=text, user_of_heavy__early="import heavy_one")
    (tmp_path / "user_of_heavy" / "__init__.py").write_text("from user_of_heavy import early, inner")
    import_without("user_of_heavy", ["heavy_one"])
    assert sys.modules["user_of_heavy"].early.heavy_one is sys.modules["heavy_one"]
    inner = sys.modules["user_of_heavy.inner"]
    assert heavy() == ["heavy_one"]
    assert getattr(inner, "numbers", [0, 1]) == [0, 1]


def test_star_imports_are_not_delayed(packages):
    packages(user_of_heavy__inner="from heavy_one import *\nassert Shape.side == 2")
    import_without("user_of_heavy", ["heavy_one"])
    assert heavy() == ["heavy_one"]


def test_missing_modules_and_errors_are_raised_as_usual(packages):
    packages(user_of_heavy__inner="try:\n    import heavy_three\nexcept ImportError:\n    there = False")
    import_without("user_of_heavy", ["heavy_three"])
    assert sys.modules["user_of_heavy.inner"].there is False
    packages(user_of_wrong="1 / 0")
    with pytest.raises(ZeroDivisionError):
        import_without("user_of_wrong", ["heavy_one"])
    assert "user_of_wrong" not in sys.modules


def test_an_imported_package_is_returned_unchanged(packages):
    there = importlib.import_module("user_of_heavy")
    import_without("user_of_heavy", ["heavy_one"])
    assert sys.modules["user_of_heavy"] is there
