"""The words of a command line before they are parsed: shipped configs by name, class names, options, swaps."""

from __future__ import annotations

import inspect
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from dfl_lightning.checkpoints.history import CHANGED, FORKED
from dfl_lightning.cli.keys import KEYS, LISTS
from dfl_lightning.cli.registry import (
    GROUPS,
    LIBRARY_GROUPS,
    NESTED_GROUPS,
    check_class,
    check_option,
    class_of,
    may_be_null,
    options_of,
    parameters_of,
    path_of,
    shipped_classes,
)
from dfl_lightning.engines.optimizers import DEFAULT_OPTIMIZER
from dfl_lightning.module import DFLModule
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.shipped_files import find
from dfl_lightning.utils.yaml_files import CLASS_FOLDERS, DoubledKeyError, as_yaml, parse, read_config

TOP_LEVEL = (*KEYS, CLASS_FOLDERS, "ckpt_path", "fork")

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
        return path.parent.parent.name or "run"
    return path.stem.strip(".") or "run"


def settle_choices(argv: list[str]) -> list[str]:
    """Refuse keys, classes and options that do not exist, and say to the parser what the others mean.

    The parser looks for a short name among all classes of the process, a user's own included, and would keep a replaced
    class's defaults where the new class has an argument of the same name. So a short name becomes the import path of
    the shipped class, in configs too, and a class that replaces another starts from its own defaults. What a config or
    an option says is kept.

    Args:
        argv: the words, with configs as paths.

    Returns:
        The words, configs as their content, with a word for each such default after the one that replaced the class.

    Raises:
        UserError: a malformed config, an unknown key, class or option, a class of another family.
    """
    choices = _Choices()
    words: list[str] = []
    for start, stop, option, value in _options(argv):
        meant = value
        if option == "config":
            meant = choices.take_config(value)
        elif option is not None:
            _refuse_doubled_keys(option, value)
            meant = choices.take_option(option, value)
        words += argv[start:stop] if meant == value else [f"{argv[start].partition('=')[0]}={meant}"]
        words += choices.resets
        choices.resets = []
    return words


def with_default_optimizer(argv: list[str]) -> list[str]:
    """The words, after the default optimizer where none of them names one.

    As the parser's own default, its learning rate and momentum would become those of any optimizer that is named.

    Args:
        argv: the words, after `settle_choices`.
    """
    for option, value in options_of_words(argv):
        content = value_of(value) if option == "config" else _nested(option, value_of(value))
        named = _at(content, "model.optimizer")
        if named is not _ABSENT and not (isinstance(named, dict) and "class_path" not in named):
            return argv
    path = path_of("model.optimizer", DEFAULT_CLASSES["model.optimizer"])
    return [f"--model.optimizer={json.dumps({'class_path': path, 'init_args': DEFAULT_OPTIMIZER.keywords})}", *argv]


def options_of_words(argv: list[str]) -> Iterator[tuple[str, str]]:
    """Options without dashes and `init_args`, with their values."""
    for _, _, option, value in _options(argv):
        if option is not None:
            yield option, value


def stray_words(argv: list[str]) -> list[int]:
    """Where the words are that belong to no option.

    Example:
        >>> stray_words(["runs/afind/monday", "--trainer.devices", "2"])
        [0]
    """
    return [start for start, _, option, _ in _options(argv) if option is None]


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
        self.folder = Path()

    def take_config(self, path: str) -> str:
        """A config file: its keys, then the groups in it; the content as a word."""
        content = read_config(path)
        self.where, self.folder = f"{path}: ", Path(path).parent
        for key in (FORKED, CHANGED):
            content.pop(key, None)  # a note about a run, and no setting
        for key in content:
            if key not in TOP_LEVEL:
                raise UserError(
                    f"{path}: unknown key '{key}'{nearest(str(key), TOP_LEVEL)} (keys: {', '.join(TOP_LEVEL)})"
                )
        self._take(content, "")
        self.where, self.folder = "", Path()
        return as_yaml(content)

    def take_option(self, option: str, value: str) -> str:
        """An option of the command line; its value with import paths for names."""
        option = option.removesuffix("+").removesuffix(".class_path")
        if option.endswith(".help"):
            return value
        if option in CHECKED or option in SECTIONS or option in LIBRARY_GROUPS:
            content = _nested(option, value_of(value))
            self._take(content, option)
            meant = _at(content, option)
            return value if meant == value_of(value) else meant if isinstance(meant, str) else as_yaml(meant)
        groups = [g for g in CHECKED if option.startswith(f"{g}.")]
        if not groups:
            return value
        group = max(groups, key=len)
        name = option.removeprefix(f"{group}.").partition(".")[0]
        if group not in self.names:
            choices = ", ".join(shipped_classes(group))
            raise UserError(f"--{option}: no {group} is chosen; name one with --{group} ({choices})")
        check_option(group, self.names[group], name, value_of(value) if option.endswith(f".{name}") else ...)
        self.given[group].add(name)
        return value

    def _take(self, content: dict[str, Any], below: str) -> None:
        """The sections and groups in a mapping like a config's, those that contain others first."""
        for section, options in SECTIONS.items():
            inside = self._put(content, section, self._unfiled)
            if section.startswith(below) and inside is not _ABSENT:
                self._check_section(section, options, inside)
        for group in CHECKED:
            if group.startswith(below):
                self._put(content, group, partial(self._choose, group))
        for group in LIBRARY_GROUPS:
            if group.startswith(below) and group not in CHECKED:
                self._put(content, group, partial(self._named, group))

    def _put(self, content: dict[str, Any], dotted: str, meaning: Callable[[Any], Any]) -> Any:
        """Replace a group's value in a mapping by what it means."""
        inside, key = _place(content, dotted)
        if inside is None:
            return _ABSENT
        inside[key] = meaning(inside[key])
        return inside[key]

    def _check_section(self, section: str, options: dict[str, inspect.Parameter], inside: Any) -> None:
        if not isinstance(inside, dict):
            first = next(iter(options))
            raise UserError(f"{self.where}{section} takes options such as {first}, not {_shown(inside)}")
        for key, value in inside.items():
            if key not in options:
                raise UserError(f"{self.where}{section} has no option '{key}'{nearest(str(key), options)}")
            if value is None and not may_be_null(options[key]):
                raise UserError(f"{self.where}{section}.{key} is null; leave it out, or give it a value")

    def _unfiled(self, value: Any) -> Any:
        """The content of a file where the value names one: a part of a config in a file of its own."""
        if isinstance(value, str) and value.endswith((".yaml", ".yml")):
            for file in (self.folder / value, Path(value)):
                if file.is_file():
                    return read_config(file)
        return value

    def _choose(self, group: str, value: Any) -> Any:
        """Check a group's value; the same with import paths for names."""
        if value is None:
            self.names.pop(group, None)
            self.given[group].clear()
            return None
        value = self._unfiled(value)
        if isinstance(value, list) and group in LISTS:
            return [self._choose(group, item) for item in value]
        spec = {"class_path": value} if isinstance(value, str) else value
        if not isinstance(spec, dict) or not spec or not set(spec) <= {"class_path", "init_args", "dict_kwargs"}:
            self._refuse_value(group, value)
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
        return self._named(group, value)

    def _refuse_value(self, group: str, value: Any) -> NoReturn:
        raise UserError(
            f"{self.where}{group} takes a class, {{class_path: NAME, init_args: {{…}}}}, not {_shown(value)}"
        )

    def _named(self, group: str, value: Any) -> Any:
        """A class, or a list of them, with import paths for the names of shipped classes."""
        value = self._unfiled(value)
        if isinstance(value, list):
            return [self._named(group, item) for item in value]
        spec = {"class_path": value} if isinstance(value, str) else value
        if isinstance(spec, dict) and not set(spec) <= {"class_path", "init_args", "dict_kwargs"}:
            self._refuse_value(group, value)
        if isinstance(spec, dict) and isinstance(spec.get("class_path"), str):
            check_class(group, spec["class_path"])
            path = path_of(group, spec["class_path"])
            return path if isinstance(value, str) else {**value, "class_path": path}
        return value

    def _replace(self, group: str, name: str) -> None:
        """Note the group's new class, and the defaults that must not be the former one's."""
        former = self.names.get(group)
        self.names[group] = name
        if former is None or group in LISTS or class_of(group, former) is class_of(group, name):
            return
        old, new = options_of(class_of(group, former)), options_of(class_of(group, name))
        self.given[group] &= set(new)
        for option in (o for o in new if o in old and o not in self.given[group] and old[o] != new[o]):
            if new[option] is not inspect.Parameter.empty:
                self.resets.append(f"--{group}.{option}={json.dumps(new[option])}")


_ABSENT = object()


def _place(content: Any, dotted: str) -> tuple[dict[str, Any] | None, str]:
    """The mapping in a config, also below `init_args`, that has a group's value, and its key there; None: no such."""
    inside, key = None, ""
    for key in dotted.split("."):
        if isinstance(content, dict) and key not in content and isinstance(content.get("init_args"), dict):
            content = content["init_args"]
        if not isinstance(content, dict) or key not in content:
            return None, key
        inside, content = content, content[key]
    return inside, key


def _at(content: Any, dotted: str) -> Any:
    """A group's value in a config."""
    inside, key = _place(content, dotted)
    return _ABSENT if inside is None else inside[key]


def _nested(dotted: str, value: Any) -> dict[str, Any]:
    """A dotted name and its value as a config has them."""
    for part in reversed(dotted.split(".")):
        value = {part: value}
    return value


def value_of(word: str) -> Any:
    """What a word of the command line means: YAML, or the word itself."""
    try:
        return parse(word)
    except Exception:  # the constructors of numbers, dates and keys raise what they like
        return word


def _refuse_doubled_keys(option: str, word: str) -> None:
    """Refuse a mapping with a key twice, whatever option it is given to: the parser would keep the last value."""
    if ":" not in word:
        return
    try:
        parse(word)
    except DoubledKeyError as error:
        raise UserError(f"--{option}: {error.problem}") from None
    except Exception:  # not YAML: the option's own reader says so, or takes the word as it is
        return


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
