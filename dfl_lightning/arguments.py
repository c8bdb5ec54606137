"""The words of a command line before they are parsed: shipped configs by name, class names, options, swaps."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dfl_lightning.errors import UserError, nearest
from dfl_lightning.module import DFLModule
from dfl_lightning.registry import (
    GROUPS,
    NESTED_GROUPS,
    check_class,
    check_option,
    class_of,
    may_be_null,
    options_of,
    parameters_of,
    shipped_classes,
)
from dfl_lightning.resources import find
from dfl_lightning.trainer import DFLTrainer

KEYS = [
    *("seed_everything", "trainer", "model", "data", "topology", "dropout", "selection", "threshold"),
    *("substitution", "aggregation", "objective", "monitors", "engine"),
]
"""Top-level keys of a config, in the order in which they are saved."""

TOP_LEVEL = (*KEYS, "ckpt_path", "fork")

DEFAULT_CLASSES = {"selection": "Gossip", "aggregation": "Uniform", "model.optimizer": "SGD"}
"""What a group is where a config names nothing."""

CHECKED = (*GROUPS, *NESTED_GROUPS, "model.optimizer", "model.lr_scheduler")
"""Groups whose names and options are looked at before the parser sees them."""

SECTIONS = {
    "trainer": {
        name: p for name, p in parameters_of(DFLTrainer).items() if name not in ("topology", "run_name", "engine")
    },
    "model": {name: p for name, p in parameters_of(DFLModule).items() if name != "objective"},
}
"""Sections of a config that are no class, and their options."""


def take_flag(argv: list[str], *flags: str) -> tuple[list[str], bool]:
    """The words without a flag's names, and whether one was among them.

    Example:
        >>> take_flag(["--config", "afind", "--explain"], "--explain")
        (['--config', 'afind'], True)
    """
    kept = [word for word in argv if word not in flags]
    return kept, len(kept) < len(argv)


def bare_flag(argv: list[str], flag: str) -> list[str]:
    """A flag without a value means true.

    Example:
        >>> bare_flag(["--fork", "--config", "afind"], "--fork")
        ['--fork=true', '--config', 'afind']
    """
    alone = [*(word.startswith("--") for word in argv[1:]), True]
    return [f"{word}=true" if word == flag and alone[at] else word for at, word in enumerate(argv)]


def find_configs(argv: list[str]) -> tuple[list[str], list[str]]:
    """The words with every `--config NAME` as a path, and these paths.

    `--config afind` or `--config configs/afind.yaml` mean a shipped file where there is no such file here.

    Raises:
        UserError: no such config; the sentence lists the shipped ones.
    """
    words, paths = [], []
    before = ""
    for word in argv:
        option, equals, value = word.partition("=")
        if option in ("--config", "-c") and equals:
            paths.append(_config(value))
            word = f"{option}={paths[-1]}"
        elif before in ("--config", "-c"):
            paths.append(_config(word))
            word = paths[-1]
        words.append(word)
        before = word
    if before in ("--config", "-c"):
        _config("")
    return words, paths


def _config(name: str) -> str:
    """A config's path; `configs/NAME.yaml` is understood away from a checkout too."""
    if not name or name.startswith("--"):
        raise UserError("--config needs a file or the name of a shipped config; --list names them")
    path = Path(name)
    if not path.is_file() and path.parent == Path("configs"):
        return str(find("configs", path.name))
    return str(find("configs", name))


def run_name(configs: list[str]) -> str:
    """How runs are called: like the last config; like the run itself where that config is a run's own.

    Example:
        >>> run_name(["configs/afind.yaml"])
        'afind'
    """
    if not configs:
        return "run"
    path = Path(configs[-1]).resolve()
    if path.name == "config.yaml" and path.with_name("metrics.csv").is_file():
        return path.parent.parent.name
    return path.stem


def settle_choices(argv: list[str]) -> list[str]:
    """Refuse keys, classes and options that do not exist; let a class that replaces another start from its defaults.

    The parser would keep the replaced class's defaults where the new class has an argument of the same name. What a
    config or an option says is kept.

    Args:
        argv: the words, with configs as paths.

    Returns:
        The words, with a word for each such default after the one that replaced the class.

    Raises:
        UserError: a malformed config, an unknown key, class or option, a class of another family.
    """
    choices = _Choices()
    words: list[str] = []
    for start, stop, option, value in _options(argv):
        words += argv[start:stop]
        if option == "config":
            choices.take_config(value)
        elif option is not None:
            choices.take_option(option, value)
        words += choices.resets
        choices.resets = []
    return words


def options_of_words(argv: list[str]) -> Iterator[tuple[str, str]]:
    """Options without dashes and `init_args`, with their values."""
    for _, _, option, value in _options(argv):
        if option is not None:
            yield option, value


def _options(argv: list[str]) -> Iterator[tuple[int, int, str | None, str]]:
    """Where each option and its value are among the words; the option is None for a stray word."""
    at = 0
    while at < len(argv):
        word = argv[at]
        if not word.startswith("-"):
            yield at, at + 1, None, word
            at += 1
            continue
        option, equals, value = word.lstrip("-").partition("=")
        alone = equals or at + 1 == len(argv) or argv[at + 1].startswith("--")
        stop = at + 1 if alone else at + 2
        option = "config" if word.partition("=")[0] == "-c" else option.replace(".init_args", "")
        yield at, stop, option, value if alone else argv[at + 1]
        at = stop


class _Choices:
    """The class of each group as far as the words have been read, and what was said about its options."""

    def __init__(self) -> None:
        self.names: dict[str, str] = dict(DEFAULT_CLASSES)
        self.given: defaultdict[str, set[str]] = defaultdict(set)
        self.resets: list[str] = []
        self.where = ""

    def take_config(self, path: str) -> None:
        """A config file: its keys, then the groups in it."""
        content = read_config(path)
        self.where = f"{path}: "
        for key in content:
            if key not in TOP_LEVEL:
                raise UserError(
                    f"{path}: unknown key '{key}'{nearest(str(key), TOP_LEVEL)} (keys: {', '.join(TOP_LEVEL)})"
                )
        for section, options in SECTIONS.items():
            inside = content.get(section, {})
            if not isinstance(inside, dict):
                raise UserError(f"{path}: {section} takes options such as {next(iter(options))}, not {_shown(inside)}")
            for key, value in inside.items():
                if key not in options:
                    raise UserError(f"{path}: {section} has no option '{key}'{nearest(str(key), options)}")
                if value is None and not may_be_null(options[key]):
                    raise UserError(f"{path}: {section}.{key} is null; leave it out, or give it a value")
        self._take(content, "")
        self.where = ""

    def take_option(self, option: str, value: str) -> None:
        """An option of the command line."""
        option = option.removesuffix("+").removesuffix(".class_path")
        if option.endswith(".help"):
            group = option.removesuffix(".help")
            if group in GROUPS and value:
                check_class(group, value)
            return
        if option in CHECKED or option in SECTIONS:
            self._take(_nested(option, _value(value)), option)
            return
        groups = [g for g in CHECKED if option.startswith(f"{g}.")]
        if not groups:
            return
        group = max(groups, key=len)
        name = option.removeprefix(f"{group}.").partition(".")[0]
        if group not in self.names:
            choices = ", ".join(shipped_classes(group))
            raise UserError(f"--{option}: no {group} is chosen; name one with --{group} ({choices})")
        check_option(group, self.names[group], name, _value(value) if option.endswith(f".{name}") else ...)
        self.given[group].add(name)

    def _take(self, content: dict[str, Any], below: str) -> None:
        """The groups in a mapping like a config's, those that contain others first."""
        for group in CHECKED:
            if group.startswith(below):
                value = _at(content, group)
                if value is not _ABSENT:
                    self._choose(group, value)

    def _choose(self, group: str, value: Any) -> None:
        if value is None:
            self.names.pop(group, None)
            self.given[group].clear()
            return
        if isinstance(value, str) and value.endswith((".yaml", ".yml")) and Path(value).is_file():
            value = read_config(value)  # a part of a config in a file of its own
        if isinstance(value, list) and group == "monitors":
            for item in value:
                self._choose(group, item)
            return
        spec = {"class_path": value} if isinstance(value, str) else value
        if not isinstance(spec, dict) or not spec or not set(spec) <= {"class_path", "init_args", "dict_kwargs"}:
            raise UserError(
                f"{self.where}{group} takes a class, {{class_path: NAME, init_args: {{…}}}}, not {_shown(value)}"
            )
        name: Any = spec.get("class_path", self.names.get(group))
        options: Any = spec.get("init_args") or {}
        if not isinstance(name, str):
            raise UserError(f"{self.where}{group}: class_path must name a class")
        if not isinstance(options, dict):
            raise UserError(f"{self.where}{group}: init_args takes arguments by name, not {_shown(options)}")
        check_class(group, name)
        for option in options:
            check_option(group, name, str(option), options[option])
        self.given[group] |= {str(option) for option in options}
        self._replace(group, name)

    def _replace(self, group: str, name: str) -> None:
        """Note the group's new class, and the defaults that must not be the former one's."""
        former = self.names.get(group)
        self.names[group] = name
        if former is None or group == "monitors" or class_of(group, former) is class_of(group, name):
            return
        old, new = options_of(class_of(group, former)), options_of(class_of(group, name))
        self.given[group] &= set(new)
        for option in (o for o in new if o in old and o not in self.given[group] and old[o] != new[o]):
            if new[option] is not inspect.Parameter.empty:
                self.resets.append(f"--{group}.{option}={json.dumps(new[option])}")


_ABSENT = object()


def _at(content: Any, dotted: str) -> Any:
    """A group's value in a config, also below `init_args`."""
    for part in dotted.split("."):
        if isinstance(content, dict) and part not in content and isinstance(content.get("init_args"), dict):
            content = content["init_args"]
        if not isinstance(content, dict) or part not in content:
            return _ABSENT
        content = content[part]
    return content


def _nested(dotted: str, value: Any) -> dict[str, Any]:
    """A dotted name and its value as a config has them."""
    for part in reversed(dotted.split(".")):
        value = {part: value}
    return value


def _value(word: str) -> Any:
    """What a word of the command line means: YAML, or the word itself."""
    try:
        return yaml.safe_load(word)
    except (yaml.YAMLError, ValueError, RecursionError):
        return word


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def dropped_options(configs: list[str], resolved: dict[str, Any]) -> list[str]:
    """Options of the configs that are gone because another class was chosen on the command line.

    Args:
        configs: paths.
        resolved: the configuration as it runs.

    Returns:
        Dotted names such as `selection.nu`.
    """
    return list(dict.fromkeys(name for path in configs for name in _gone(read_config(path), resolved, ())))


def _gone(asked: Any, got: Any, where: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(asked, dict) or not isinstance(got, dict):
        return
    for key, value in asked.items():
        if key == "init_args" and isinstance(value, dict):
            kept = got.get("init_args") or {}
            for option, inner in value.items():
                if option not in kept:
                    yield ".".join((*where, str(option)))
                else:
                    yield from _gone(inner, kept[option], (*where, str(option)))
        elif key in got:
            yield from _gone(value, got[key], (*where, str(key)))


def read_config(path: str) -> dict[str, Any]:
    """A config file's content.

    Raises:
        UserError: it cannot be read, or is no mapping.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (
        yaml.YAMLError,
        UnicodeDecodeError,
        OSError,
        RecursionError,
        ValueError,
        TypeError,
        AttributeError,
    ) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        reason = " ".join(str(getattr(error, "problem", None) or type(error).__name__).split())
        raise UserError(f"{path}{line}: not readable YAML ({reason})") from None
    if content is None:
        raise UserError(f"{path}: it is empty; a config names at least data and model")
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"{path}: a config is a mapping of keys such as data, model, selection; this is a {kind}")
    return content
