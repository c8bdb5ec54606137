"""Settings of a study's rows and columns as words of `dfl-fit`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from dfl_lightning.bench.study.file.study_file import MISSING, Study
from dfl_lightning.cli import keys
from dfl_lightning.cli.exports.unpacking import config_in
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.shipped_files import find

GROUPS = {"trainer", "model", *keys.GROUPS, "model.optimizer", "model.lr_scheduler", "model.loss"}
"""Keys of a config whose value is a mapping of options; a mapping elsewhere is one value."""


def words_of(study: Study, row: str, column: str) -> list[str]:
    """The options with which `dfl-fit` runs a row and column, without its seed.

    Args:
        study: the file's content.
        row: of the table.
        column: of the table.

    Raises:
        UserError: a config that is not a name, or a seed among the settings.
    """
    layers = study.layers(row, column)
    configs = [layer["config"] for layer in layers if layer.get("config") is not None]
    words = [f"--config={_config(study, configs[-1])}"] if configs else []
    for layer in layers:
        for option, value in options_in({key: v for key, v in layer.items() if key not in ("config", MISSING)}):
            if option == "seed_everything":
                raise UserError(f"{study.path}: {row}, {column}: seed_everything is what `seeds` lists")
            words.append(f"--{option}={as_word(value)}")
    return words


def options_in(layer: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names and values of settings that are nested or dotted.

    Args:
        layer: settings.
        below: prefix of the names.

    Examples:
        >>> list(options_in({"trainer": {"max_rounds": 3}, "selection.k": 5, "topology": {"generator": "partial"}}))
        [('trainer.max_rounds', 3), ('selection.k', 5), ('topology', {'generator': 'partial'})]
        >>> list(options_in({"data": {"partition": {"class_path": "IID"}}}))
        [('data.partition', {'class_path': 'IID'})]
    """
    for key, value in layer.items():
        name = f"{below}{key}".replace(".init_args", "")
        if name in GROUPS and isinstance(value, dict) and "class_path" not in value:
            inner = {**value, **(value.get("init_args") or {})}
            inner.pop("init_args", None)
            yield from options_in(inner, f"{name}.")
        else:
            yield name, value


def overridden(study: Study) -> Iterator[str]:
    """Remarks on rows whose own config sets an option that `base` sets too, to another value: `base` wins.

    Args:
        study: the file's content.

    Raises:
        UserError: there is no such config.
    """
    base = dict(_leaves(study.base))
    for row, layer in study.rows.items():
        if layer.get("config") is None:
            continue
        own = dict(_leaves(config_in(find("configs", _config(study, layer["config"])))[1]))
        again = dict(_leaves(layer))
        differ = [option for option in base if option in own and option not in again and own[option] != base[option]]
        if differ:
            said = ", ".join(f"{option} is {as_word(base[option])}, not {as_word(own[option])}" for option in differ)
            yield f"base overrides config {layer['config']} of row {row}: {said}"


def _leaves(content: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted names of all values that are no mappings, through classes and their arguments; without `config`."""
    for key, value in content.items():
        name = f"{below}{key}".replace(".init_args", "")
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        elif name not in ("config", MISSING):
            yield name, value


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Options and their values as words of `dfl-fit`.

    Examples:
        >>> as_words({"selection.init_args.k": 5, "topology": None})
        ['--selection.k=5', '--topology=null']
    """
    return [f"--{option.replace('.init_args', '')}={as_word(value)}" for option, value in values.items()]


def as_word(value: Any) -> str:
    """A value as the command line takes it.

    Examples:
        >>> as_word("all"), as_word(None), as_word([0, 180]), as_word({"class_path": "IID"})
        ('all', 'null', '[0, 180]', '{"class_path": "IID"}')
    """
    return value if isinstance(value, str) else json.dumps(value)


def slug(names: Iterable[str]) -> str:
    """A readable part of a folder's name.

    Examples:
        >>> slug(["AFIND+ (ours)", "Dir(0.1)"])
        'AFIND-ours_Dir-0.1'
    """
    parts = ("".join(c if c.isascii() and (c.isalnum() or c == ".") else " " for c in name) for name in names)
    return "_".join("-".join(part.split())[:30].strip("-.") for part in parts)


def _config(study: Study, name: Any) -> str:
    if not isinstance(name, str):
        raise UserError(f"{study.path}: config {name!r} is no name of a config or path of one")
    beside = study.path.parent / name
    return str(beside) if beside.is_file() else name
