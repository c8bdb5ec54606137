"""Every module can be the first one that is imported."""

import importlib
import pkgutil
import sys

import pytest

import dfl_lightning

MODULES = [module.name for module in pkgutil.walk_packages(dfl_lightning.__path__, "dfl_lightning.")]


@pytest.fixture
def nothing_loaded():
    """Forget the library's modules during a test, and restore them afterwards."""

    def ours():
        return {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "dfl_lightning"}

    def forget():
        for name in ours():
            del sys.modules[name]

    before = ours()
    forget()
    yield forget
    forget()
    sys.modules.update(before)


PUBLIC = ["bank", "callbacks", "data", "objectives", "trainer"]


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([f"dfl_lightning.{name}" for name in PUBLIC], id="public"),
        pytest.param(MODULES, marks=pytest.mark.slow),
    ],
)
def test_any_module_can_be_imported_first(nothing_loaded, names):
    assert set(names) <= set(MODULES)
    for name in names:
        nothing_loaded()
        importlib.import_module(name)


def test_the_package_has_all_its_public_names():
    for name in dfl_lightning.__all__:
        assert getattr(dfl_lightning, name).__name__.rpartition(".")[2] == name
    assert set(dfl_lightning.__all__) <= set(dir(dfl_lightning))
    with pytest.raises(AttributeError, match="no attribute 'DFLTrainr'"):
        _ = dfl_lightning.DFLTrainr
