"""What `dfl-fit` makes of words: the resolved config, and whether it could run."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import inspect
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from dfl_lightning.study.environment import without_slurm
from dfl_lightning.utils.files import write_atomically

if TYPE_CHECKING:
    from dfl_lightning.cli.resolve import Outline

NO_NUMBER = {
    "trainer": (
        *("default_root_dir", "checkpoint_every", "checkpoints", "devices", "num_nodes", "strategy", "logger"),
        *("process_timeout", "log_every_n_steps", "profiler", "enable_progress_bar", "enable_model_summary"),
        "max_epochs",
    ),
    "data": ("root", "download"),
}
"""Options that change no number of a run: where files are, how they are kept, what is printed, who computes."""


def resolved(words: Sequence[str]) -> dict[str, Any]:
    """The config that words of `dfl-fit` mean, all defaults included.

    Raises:
        UserError: they are refused.
    """
    from dfl_lightning.cli.resolve import resolve  # it loads all of the library

    with without_slurm():
        return resolve(words)


def outline_of(config: dict[str, Any]) -> Outline:
    """Samples and columns of the run that a resolved config describes, which is set up without training.

    Raises:
        MissingData: files of the data are missing.
        UserError: the run is refused for another reason.
    """
    from dfl_lightning.cli.resolve import set_up  # it loads all of the library

    with tempfile.TemporaryDirectory() as folder, without_slurm():
        file = Path(folder) / "cell.yaml"
        file.write_text(config_text(config), encoding="utf-8")
        return set_up([f"--config={file}"])


def config_text(config: dict[str, Any]) -> str:
    """A resolved config as `dfl-fit --config` takes it."""
    settings = {key: value for key, value in config.items() if key not in ("ckpt_path", "fork")}
    return yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)


class Resolver:
    """Resolved configs, kept in a file as long as neither words nor configs nor the library change.

    Args:
        cache: the file.
    """

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._stamp = _stamp()
        self._kept: dict[str, Any] = {}
        self._new = False
        with contextlib.suppress(OSError, ValueError):  # it is made again
            kept = json.loads(cache.read_text(encoding="utf-8"))
            self._kept = kept if isinstance(kept, dict) else {}
        self._used: dict[str, Any] = {}

    def resolve(self, words: Sequence[str]) -> dict[str, Any]:
        """The config that the words mean, all defaults included.

        Raises:
            UserError: dfl-fit refuses them.
        """
        key = hashlib.sha256(json.dumps([self._stamp, list(words), _contents(words)]).encode()).hexdigest()
        if key not in self._kept:
            self._kept[key] = resolved(words)
            self._new = True
        self._used[key] = self._kept[key]
        copied: dict[str, Any] = json.loads(json.dumps(self._kept[key]))
        return copied

    def save(self) -> None:
        """Keep what was used."""
        if self._new or len(self._used) < len(self._kept):
            text = json.dumps(self._used)
            write_atomically(self._cache, lambda file: file.write(text.encode()))


def identity(config: dict[str, Any]) -> str:
    """What names a resolved config: what differs from the defaults and has a say in its numbers, as a hash.

    Defaults are left out so that an option which the library gets later does not make other cells of the old ones.
    """
    kept = {key: value for key, value in config.items() if value is not None and key not in ("ckpt_path", "fork")}
    for section, names in NO_NUMBER.items():
        inside = kept.get(section)
        if isinstance(inside, dict) and isinstance(inside.get("init_args"), dict):
            kept[section] = {**inside, "init_args": {k: v for k, v in inside["init_args"].items() if k not in names}}
        elif isinstance(inside, dict):
            kept[section] = {k: v for k, v in inside.items() if k not in names}
    for section in ("trainer", "model"):
        defaults = _defaults(f"dfl_lightning.DFL{'Trainer' if section == 'trainer' else 'Module'}")
        kept[section] = {k: v for k, v in kept.get(section, {}).items() if v is not None and v != defaults.get(k, ...)}
    text = json.dumps(_without_defaults(kept), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def disagreement(kept: Any, now: Any, where: str = "") -> str:
    """The first option that two configs both have, with different values; empty if there is none.

    Args:
        kept: the config of an earlier run.
        now: the present one.
        where: dotted name of the part that the two are; empty: the whole.

    Examples:
        >>> disagreement({"a": {"b": 1}}, {"a": {"b": 2, "c": 3}})
        'a.b was 1 and is 2'
    """
    if isinstance(kept, dict) and isinstance(now, dict):
        for key in kept:
            hidden = where in NO_NUMBER and key in NO_NUMBER[where]
            if key in now and not hidden:
                name = where if key == "init_args" else f"{where}.{key}".lstrip(".")
                found = disagreement(kept[key], now[key], name)
                if found:
                    return found
        return ""
    return "" if kept == now else f"{where} was {json.dumps(kept)} and is {json.dumps(now)}"


def _without_defaults(value: Any) -> Any:
    """The same without arguments of classes that are as the class has them anyway."""
    if isinstance(value, list):
        return [_without_defaults(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("class_path"), str):
        defaults = _defaults(value["class_path"])
        given = {k: v for k, v in (value.get("init_args") or {}).items() if v != defaults.get(k, ...)}
        return {"class_path": value["class_path"], **{k: _without_defaults(v) for k, v in given.items()}}
    return {key: _without_defaults(inner) for key, inner in value.items()}


def _defaults(path: str) -> dict[str, Any]:
    """The arguments of a class, its bases' included, and their defaults; nothing where it cannot be found."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError):  # beside a config, for example: all that is written counts
        return {}
    defaults: dict[str, Any] = {}
    for base in inspect.getmro(found) if inspect.isclass(found) else [found]:
        init = base.__dict__.get("__init__") if inspect.isclass(base) else base
        if init is not None and base is not object:
            for parameter in inspect.signature(init).parameters.values():
                if parameter.default is not parameter.empty:
                    defaults.setdefault(parameter.name, parameter.default)
    return defaults


def _contents(words: Sequence[str]) -> list[str]:
    """The texts of the configs among the words that are files here."""
    files = [Path(word.partition("=")[2]) for word in words if word.startswith("--config=")]
    return [file.read_text(encoding="utf-8", errors="replace") for file in files if file.is_file()]


def _stamp() -> str:
    """Something that changes with the library and its configs."""
    package = Path(__file__).parents[1]
    folders = [package, package.parent / "configs", package.parent / "topologies"]
    times = [
        f.stat().st_mtime_ns for folder in folders for f in folder.rglob("*.[py]*") if f.suffix in (".py", ".yaml")
    ]
    return f"{package}:{len(times)}:{max(times)}"
