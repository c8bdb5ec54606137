"""All methods by the names of their cases: METHOD of a module has the module's name, its LITERAL `<name>_literal`, and so on."""

import importlib
import pkgutil

import plain
from plain.book import Method

MODULES = [found.name for found in pkgutil.iter_modules(plain.__path__) if found.name != "methods"]
METHODS = {
    module + ("" if name == "METHOD" else f"_{name.lower()}"): value
    for module in MODULES
    for name, value in vars(importlib.import_module(f"plain.{module}")).items()
    if isinstance(value, Method)
}
