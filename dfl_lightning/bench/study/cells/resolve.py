"""The resolved config that `dfl-fit` makes of its arguments, and the check that it could run."""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dfl_lightning.bench.study.cells.environment import without_slurm
from dfl_lightning.cli.loading import loading
from dfl_lightning.utils.code.source_code import differing, find_sources, hashes_of
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, MOST_BYTES, dump_yaml

if TYPE_CHECKING:
    from dfl_lightning.cli.resolve import Common, Outline

NO_NUMBER = {
    "": (CLASS_FOLDERS, "ckpt_path", "fork"),
    "trainer": (
        *("default_root_dir", "checkpoint_every", "checkpoints", "devices", "num_nodes", "strategy", "logger"),
        "log_clients",
        *("process_timeout", "log_every_n_steps", "profiler", "enable_progress_bar", "enable_model_summary"),
        "max_epochs",
    ),
    "data": ("root", "download"),
}
"""Options that change no number of a run, by section: places of files, what is kept or printed, devices.

The empty section has the top-level keys.
"""

_IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_YAML_FILE = re.compile(r"[^\s\"'{}\[\],:]+\.ya?ml\b")


def resolved(words: Sequence[str]) -> dict[str, Any]:
    """Resolve arguments of `dfl-fit` to a config with all defaults.

    Raises:
        UserError: dfl-fit refuses them.
    """
    with loading():
        from dfl_lightning.cli.resolve import resolve

    with without_slurm():
        return resolve(words)


def common_to_runs() -> Common:
    """Return a context in which `outline_of` makes only once what several runs have in common."""
    with loading():
        from dfl_lightning.cli.resolve import Common

    return Common()


def outline_of(config: dict[str, Any], common: Common | None = None) -> Outline:
    """Set up the run of a resolved config without training, and return its samples and columns.

    Args:
        config: resolved config.
        common: what earlier runs have made, see `common_to_runs`; None: nothing.

    Raises:
        MissingData: files of the data are missing.
        UserError: the run is refused for another reason.
    """
    with loading():
        from dfl_lightning.cli.resolve import set_up

    with tempfile.TemporaryDirectory() as folder, without_slurm():
        file = Path(folder) / "cell.yaml"
        file.write_text(config_text(config), encoding="utf-8")
        return set_up([f"--config={file}"], common)


def config_text(config: dict[str, Any]) -> str:
    """Format a resolved config as YAML for `dfl-fit --config`."""
    settings = {key: value for key, value in config.items() if key not in ("ckpt_path", "fork")}
    return dump_yaml(settings)


@dataclass(frozen=True)
class Resolved:
    """The meaning of arguments of `dfl-fit`.

    Attributes:
        config: the resolved config, all defaults included.
        defaults: defaults of its classes, by class and argument.
        code: hashes of the user's own code that it names, by module, as last found.
        lost: modules of this code that are not found any more, so that a change of them would not be noticed.
    """

    config: dict[str, Any]
    defaults: dict[str, dict[str, Any]]
    code: dict[str, str]
    lost: tuple[str, ...] = ()


class Resolver:
    """A cache of resolved configs, valid while arguments, files, the library and the user's code do not change.

    Everything that needs a class is looked up when a config is resolved, and kept with it. So later results are the
    same in each process, whether or not it can import the class.

    Args:
        cache: file of the cache.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._stamp = _stamp()
        self._kept: dict[str, Any] = {}
        self._new = False
        with contextlib.suppress(OSError, ValueError):  # a cache that cannot be read is made again
            kept = json.loads(cache.read_text(encoding="utf-8"))
            self._kept = kept if isinstance(kept, dict) else {}
        self._used: dict[str, Any] = {}

    def resolve(self, words: Sequence[str]) -> Resolved:
        """Resolve arguments of `dfl-fit`, from the cache if it is valid.

        Raises:
            UserError: dfl-fit refuses them, or one of their classes cannot be imported.
        """
        key = hashlib.sha256(json.dumps([self._stamp, list(words), contents(words)]).encode()).hexdigest()
        entry = self._kept.get(key)
        now = {} if entry is None else own_code(entry["config"])
        if entry is None or differing(entry["code"], now):
            config = resolved(words)
            entry = {"config": config, "defaults": defaults_of(config), "code": own_code(config)}
            now, self._new = entry["code"], True
        self._used[key] = self._kept[key] = entry
        copied: dict[str, Any] = json.loads(json.dumps(entry))
        return Resolved(**copied, lost=tuple(name for name in copied["code"] if name not in now))

    def save(self) -> None:
        """Write the entries that were used to the file, if it has to change."""
        if self._new or len(self._used) < len(self._kept):
            text = json.dumps(self._used)
            write_atomically(self._cache, lambda file: file.write(text.encode()))


def own_code(config: Mapping[str, Any]) -> dict[str, str]:
    """Return hashes of the user's own modules that a resolved config names, by module; nothing is imported."""
    places = [os.getcwd(), *sys.path, *map(str, config.get(CLASS_FOLDERS) or [])]
    return hashes_of(find_sources(sorted(_modules_in(config)), places))


def _modules_in(value: Any) -> set[str]:
    """Collect the modules of all import paths in a config."""
    if isinstance(value, dict | list):
        inside = value.values() if isinstance(value, dict) else value
        return {name for inner in inside for name in _modules_in(inner)}
    if isinstance(value, str) and _IMPORT_PATH.fullmatch(value):
        return {value.rpartition(".")[0]}
    return set()


def defaults_of(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the defaults of all classes that a resolved config names, by class and argument.

    Raises:
        UserError: one of its classes cannot be imported.
    """
    paths = ["dfl_lightning.DFLTrainer", "dfl_lightning.DFLModule", *dict.fromkeys(_class_paths(config))]
    return {path: _defaults(path) for path in paths}


def _class_paths(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for inner in value:
            yield from _class_paths(inner)
    elif isinstance(value, dict):
        if isinstance(value.get("class_path"), str):
            yield value["class_path"]
        for inner in value.values():
            yield from _class_paths(inner)


def identity(found: Resolved, config: dict[str, Any]) -> str:
    """Return the name of a resolved config: a hash of all settings that change its numbers and are not defaults.

    Defaults are left out so that a further option of the library does not change the names of existing cells.

    Args:
        found: resolved config with the defaults of its classes.
        config: the same config with a seed, and possibly fewer rounds.
    """
    kept = {key: value for key, value in config.items() if value is not None and key not in NO_NUMBER[""]}
    for section, names in NO_NUMBER.items():
        inside = kept.get(section)
        if isinstance(inside, dict) and isinstance(inside.get("init_args"), dict):
            kept[section] = {**inside, "init_args": {k: v for k, v in inside["init_args"].items() if k not in names}}
        elif isinstance(inside, dict):
            kept[section] = {k: v for k, v in inside.items() if k not in names}
    for section, path in (("trainer", "dfl_lightning.DFLTrainer"), ("model", "dfl_lightning.DFLModule")):
        defaults = found.defaults[path]
        kept[section] = {k: v for k, v in kept.get(section, {}).items() if v is not None and v != defaults.get(k, ...)}
    text = json.dumps(_without_defaults(kept, found.defaults), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def disagreement(kept: Any, now: Any, where: str = "") -> str:
    """Describe the first option that two configs both have with different values; empty if there is none.

    Args:
        kept: config of an earlier run, or a part of it.
        now: the present config, or the same part of it.
        where: dotted name of the part; empty: the whole config.

    Examples:
        >>> disagreement({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}})
        'a.b was 1 and is 2'
    """
    if isinstance(kept, dict) and isinstance(now, dict):
        for key in kept:
            hidden = where in NO_NUMBER and key in NO_NUMBER[where]
            if key in now and not hidden:
                name = where if key == "init_args" else f"{where}.{key}".lstrip(".")
                difference = disagreement(kept[key], now[key], name)
                if difference:
                    return difference
        return ""
    return "" if kept == now else f"{where} was {json.dumps(kept)} and is {json.dumps(now)}"


def _without_defaults(value: Any, defaults: Mapping[str, Mapping[str, Any]]) -> Any:
    """Remove arguments that are equal to the default of their class."""
    if isinstance(value, list):
        return [_without_defaults(inner, defaults) for inner in value]
    if not isinstance(value, dict):
        return value
    path = value.get("class_path")
    if isinstance(path, str):
        of_class = defaults[path]
        given = {k: v for k, v in (value.get("init_args") or {}).items() if v != of_class.get(k, ...)}
        return {"class_path": path, **{k: _without_defaults(v, defaults) for k, v in given.items()}}
    return {key: _without_defaults(inner, defaults) for key, inner in value.items()}


def _defaults(path: str) -> dict[str, Any]:
    """Return the defaults of the arguments of a class and its bases, except those that a config cannot contain."""
    with loading():
        from dfl_lightning.cli.classes.registry import import_object

    imported = import_object("class", path)
    defaults: dict[str, Any] = {}
    for base in inspect.getmro(imported) if inspect.isclass(imported) else [imported]:
        init = base.__dict__.get("__init__") if inspect.isclass(base) else base
        if init is not None and base is not object:
            for parameter in inspect.signature(init).parameters.values():
                if parameter.default is not parameter.empty:
                    defaults.setdefault(parameter.name, parameter.default)
    return {name: value for name, value in defaults.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_plain(inner) for key, inner in value.items())
    return value is None or type(value) in (bool, int, float, str)


def contents(words: Sequence[str]) -> dict[str, str]:
    """Read the YAML files that arguments of `dfl-fit` name, and those that such files name; return texts by path."""
    texts: dict[str, str] = {}
    left = [Path(name) for word in words for name in _YAML_FILE.findall(word.partition("=")[2])]
    while left:
        file = left.pop()
        if str(file) in texts or not file.is_file() or file.stat().st_size > MOST_BYTES:
            continue
        text = texts[str(file)] = file.read_text(encoding="utf-8", errors="replace")
        left += [folder / name for name in _YAML_FILE.findall(text) for folder in (file.parent, Path())]
    return dict(sorted(texts.items()))


def _stamp() -> str:
    """Return a text that changes with the library and its shipped configs."""
    package = Path(__file__).parents[3]
    folders = [package, package.parent / "configs", package.parent / "topologies"]
    times = [
        f.stat().st_mtime_ns for folder in folders for f in folder.rglob("*.[py]*") if f.suffix in (".py", ".yaml")
    ]
    return f"{package}:{len(times)}:{max(times)}"
