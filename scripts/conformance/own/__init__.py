"""The adapter of this library: each function runs rounds on the numbers of a case.

The arguments of a function are the inputs of its cases, which their files describe. Every public function of these
modules is a method:

    PYTHONPATH=scripts python -m dfl_lightning.conformance conformance.own
"""

from inspect import isfunction

from conformance.own import adapted, graphs, mixing, prototypes, robust, selections, served, timed

_METHODS = {
    name: value
    for module in (adapted, graphs, mixing, prototypes, robust, selections, served, timed)
    for name, value in vars(module).items()
    if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
}
globals().update(_METHODS)
__all__ = sorted(_METHODS)
