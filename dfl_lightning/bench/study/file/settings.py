"""Settings of a study's rows and columns as arguments of `dfl-fit`."""

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
    """Return the options of `dfl-fit` that run a row and column, without its seed.

    Raises:
        UserError: a config is not a name, or a seed is among the settings.
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
    """Flatten settings, nested or dotted, into dotted names and their values.

    Args:
        layer: settings of a row, a column or a cell.
        below: prefix of all names.

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
    """Yield a remark for each row whose config sets an option to another value than `base`, which wins.

    Raises:
        UserError: a row names a config that does not exist.
    """
    base = dict(_leaves(study.base))
    for row, layer in study.rows.items():
        if layer.get("config") is None:
            continue
        of_config = dict(_leaves(config_in(find("configs", _config(study, layer["config"])))[1]))
        of_row = dict(_leaves(layer))
        shared = [option for option in base if option in of_config and option not in of_row]
        differing = [option for option in shared if of_config[option] != base[option]]
        if differing:
            values = (f"{option} is {as_word(base[option])}, not {as_word(of_config[option])}" for option in differing)
            yield f"base overrides config {layer['config']} of row {row}: {', '.join(values)}"


def without_effect(study: Study) -> Iterator[str]:
    """Yield a remark for each option that a row and columns set to different values, of which the row's counts."""
    found: dict[tuple[str, str], list[str]] = {}
    for row, column in study.pairs():
        *_, of_column, of_row, of_cell = (dict(_leaves(layer)) for layer in study.layers(row, column))
        for option, value in of_column.items():
            if of_row.get(option, value) != value and option not in of_cell:
                found.setdefault((row, option), []).append(f"{column} ({as_word(value)})")
    for (row, option), columns in found.items():
        value = as_word(dict(_leaves(study.rows[row]))[option])
        yield (
            f"row {row} sets {option} to {value}, which overrides the columns {', '.join(columns)}; "
            f"to have their values, give {option} in cells: {row}"
        )


def _leaves(content: Mapping[str, Any], below: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and values of all options, those of classes' arguments included; skip `config`."""
    for key, value in content.items():
        name = f"{below}{key}".replace(".init_args", "")
        if isinstance(value, dict):
            yield from _leaves(value, f"{name}.")
        elif name not in ("config", MISSING):
            yield name, value


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Format options and their values as arguments of `dfl-fit`.

    Examples:
        >>> as_words({"selection.init_args.k": 5, "topology": None})
        ['--selection.k=5', '--topology=null']
    """
    return [f"--{option.replace('.init_args', '')}={as_word(value)}" for option, value in values.items()]


def as_word(value: Any) -> str:
    """Format a value as the command line expects it.

    Examples:
        >>> as_word("all"), as_word(None), as_word([0, 180]), as_word({"class_path": "IID"})
        ('all', 'null', '[0, 180]', '{"class_path": "IID"}')
    """
    return value if isinstance(value, str) else json.dumps(value)


def slug(names: Iterable[str]) -> str:
    """Join names to a readable part of a folder's name: ASCII letters, digits and dots, 30 at most from each name.

    Examples:
        >>> slug(["AFIND+ (ours)", "Dir(0.1)"])
        'AFIND-ours_Dir-0.1'
    """
    parts = ("".join(c if c.isascii() and (c.isalnum() or c == ".") else " " for c in name) for name in names)
    return "_".join("-".join(part.split())[:30].strip("-.") for part in parts)


def _config(study: Study, name: Any) -> str:
    if not isinstance(name, str):
        raise UserError(f"{study.path}: config {name!r} is neither the name nor the path of a config; give one of them")
    relative = study.path.parent / name  # a path is relative to the study file
    return str(relative) if relative.is_file() else name
