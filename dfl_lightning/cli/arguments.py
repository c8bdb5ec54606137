"""The arguments of a command line: configs are read, and all values are merged to one config.

A short name becomes the import path of the shipped class, since the parser would search for it among all classes of the
process, including the user's. A class that replaces another starts from its own defaults; options that a config or the
command line has given are kept if the new class has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dfl_lightning.checkpoints.history import CHANGED, FORKED, NOT_MAKEABLE, UNKNOWN_SETTINGS
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.cli.classes.registry import (
    CLASSES,
    MANY,
    class_of,
    leaves_keywords_open,
    may_be_null,
    names_of,
    parameters_of,
    public_path,
)
from dfl_lightning.cli.exports.unpacking import config_in, manifest_of, require_inputs
from dfl_lightning.cli.keys import KEYS
from dfl_lightning.cli.other_names import meant
from dfl_lightning.engines.factory import ENGINES
from dfl_lightning.engines.optimizing.optimizers import DEFAULT_OPTIMIZER
from dfl_lightning.module import DFLModule
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.trainer_callbacks import default_monitors
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.storage.shipped_files import find
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, DoubledKeyError, parse, read_config

PLAIN: dict[str, Any] = {
    "seed_everything": bool | int,
    "topology": str | dict[str, Any],
    "engine": Literal[ENGINES],
    CLASS_FOLDERS: list[str] | None,
    "ckpt_path": str | None,
    "fork": bool,
}
"""Top-level keys that are neither sections nor groups, and their types."""

TOP_LEVEL = (*KEYS, CLASS_FOLDERS, "ckpt_path", "fork")

SECTIONS = {
    "trainer": {n: p for n, p in parameters_of(DFLTrainer).items() if n not in ("topology", "run_name", "engine")},
    "model": {n: p for n, p in parameters_of(DFLModule).items() if n != "objective"},
}
"""The options of each section of a config, a key that does not name a class."""

DEFAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "selection": ("Gossip", {}),
    "aggregation": ("Uniform", {}),
    "model.optimizer": ("SGD", DEFAULT_OPTIMIZER.keywords),
}
"""The default class of a group, and options that differ from the defaults of the class."""

DEFAULT_LISTS: dict[str, list[str]] = {"monitors": [type(monitor).__name__ for monitor in default_monitors()]}
"""The default classes of groups that take a list, to which `--GROUP+=` adds."""

_PRINTED = ("skip_default", "skip_unset")
_FLAGS = ("print_config", "help_all", "explain", "report", "live", "list", "help", "version")


class Argument(NamedTuple):
    """An option with its value, as typed.

    Attributes:
        option: name of the option without dashes and `init_args`; empty for a value without an option.
        value: the value; None if the option has none.
        content: the content of the file, if the option is a config.
    """

    option: str
    value: str | None = None
    content: dict[str, Any] | None = None


def take_flag(argv: list[str], flag: str) -> tuple[list[str], bool]:
    """Remove a flag from the command line.

    Args:
        argv: the arguments of the command line.
        flag: the flag with dashes, such as `--explain`.

    Returns:
        The other arguments, and True if the flag was among them.

    Examples:
        >>> take_flag(["--config", "afind", "--explain"], "--explain")
        (['--config', 'afind'], True)
    """
    kept = [argument for argument in argv if argument != flag]
    return kept, len(kept) < len(argv)


def split(argv: Sequence[str]) -> list[Argument]:
    """Split a command line into options with their values.

    Examples:
        >>> [(option, value) for option, value, _ in split(["-c", "afind", "--a.init_args.b=-1", "--fork", "x"])]
        [('config', 'afind'), ('a.b', '-1'), ('fork', 'x')]
    """
    arguments, left = [], list(argv)
    while left:
        option, equals, value = left.pop(0).partition("=")
        if not option.startswith("-"):
            arguments.append(Argument("", option + equals + value))
            continue
        follows = not equals and bool(left) and not left[0].startswith("--")
        name = "config" if option == "-c" else option.lstrip("-").replace(".init_args", "")
        arguments.append(Argument(name, value if equals else left.pop(0) if follows else None))
    return arguments


def with_configs(arguments: Sequence[Argument]) -> list[Argument]:
    """Read the configs among the arguments: files, bundles, or shipped ones by name.

    Raises:
        UserError: a config does not exist or cannot be read, or an input of a bundle is missing.
    """
    read = [_config(each.value) if each.option == "config" else each for each in arguments]
    for each in read:
        if each.content is not None:
            require_inputs(str(each.value), [other.option for other in read if other.content is None])
    return read


def _config(name: str | None) -> Argument:
    """Read a config by path or name; `configs/NAME.yaml` finds the shipped one, if no such file exists."""
    if not name:
        raise UserError("--config needs a file or the name of a shipped config; --list names them")
    path = Path(name)
    shipped = path.name if path.parent == Path("configs") and not path.is_file() else name
    file, content = config_in(find("configs", shipped))
    return Argument("config", str(file), content)


def run_name(configs: Sequence[str]) -> str:
    """Return the name for runs: that of the last config, or of the run or bundle to which this config belongs.

    Examples:
        >>> run_name(["configs/afind.yaml"])
        'afind'
    """
    if not configs:
        return "run"
    path = Path(configs[-1]).resolve()
    manifest = manifest_of(path)
    if manifest is not None:
        return path.parent.name
    if path.name == "config.yaml" and path.with_name("metrics.csv").is_file():
        return path.parent.parent.name or "run"
    return path.stem.strip(".") or "run"


class NestedOption(NamedTuple):
    """A value for an option of the class that a key holds: `--selection.k 3` is `k` with 3, for `selection`."""

    name: str
    value: Any


class AddedClass(NamedTuple):
    """A value that is appended to a list: `--monitors+=Fairness`."""

    value: str


@dataclass
class ClassChoice:
    """A class by its import path, None for the group's default, with the values of its options.

    Attributes:
        path: the import path.
        options: values by name.
        keywords: values that the class takes as open keywords.
        configured: names of the options that were set by a config, not on the command line.
    """

    path: str | None
    options: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)
    configured: frozenset[str] = field(default=frozenset(), compare=False)


class Settings:
    """The settings of a command line, in which later arguments are merged over earlier ones.

    Args:
        arguments: options and configs, in their order.

    Attributes:
        arguments: the arguments.
        configs: paths and contents of the configs among them.
        dropped: options whose class was replaced by one that does not have them.
        left: options of a config's data that other data do not take over, by the names of both classes.
        rest: arguments that the parser handles, such as `--print_config`.

    Raises:
        UserError: a key, class or option is unknown, a class is of another group, or a value is not a class.
    """

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = arguments
        self.configs = [(str(each.value), each.content) for each in arguments if each.content is not None]
        self.dropped: list[str] = []
        self.left: dict[tuple[str, str], list[str]] = {}
        self.rest: list[str] = []
        self._values: dict[str, Any] = {"model": {}}
        for group in DEFAULTS:
            *above, key = group.split(".")
            (self._values[above[0]] if above else self._values)[key] = ClassChoice(None)
        self._file, self._folder = "", Path()
        for argument in arguments:
            if argument.content is None:
                self._take_option(argument)
            else:
                self._take_config(str(argument.value), argument.content)

    @property
    def config(self) -> dict[str, Any]:
        """All settings as one config, with import paths for short names; typed values are still texts."""
        config: dict[str, Any] = _written("", self._values)
        return config

    def _take_config(self, path: str, content: dict[str, Any]) -> None:
        """Merge a config into the values."""
        _refuse_unrepeatable(path, content)
        self._file, self._folder = f"{path}: ", Path(path).parent
        for key, value in content.items():
            if key in (FORKED, CHANGED, CODE, UNKNOWN_SETTINGS, NOT_MAKEABLE):
                continue  # a note about a run, not a setting
            if key not in TOP_LEVEL:
                hint = meant(str(key), "") or nearest(str(key), TOP_LEVEL)
                raise UserError(f"{path}: unknown key '{key}'{hint} (keys: {', '.join(TOP_LEVEL)})")
            self._values[key] = self._merged(key, self._values.get(key), value)
        self._file, self._folder = "", Path()

    def _take_option(self, argument: Argument) -> None:
        """Merge an option of the command line into the values."""
        option = argument.option
        value = "true" if argument == Argument("fork") else argument.value
        if not option:
            raise UserError(f"unexpected argument '{value}'; options begin with --")
        if option in ("print_config", "help_all") or option.endswith(".help"):
            self._leave_to_parser(option, value)
            return
        key, *path = (name.removesuffix("+") for name in option.removesuffix(".class_path").split("."))
        if key not in TOP_LEVEL:
            raise no_such_option(option)
        if value is None:
            raise UserError(f"--{option} needs a value")
        _refuse_doubled_keys(option, value)
        given: Any = AddedClass(value) if option.endswith("+") else value
        for name in reversed(path):
            given = NestedOption(name, given)
        self._values[key] = self._merged(key, self._values.get(key), given)

    def _leave_to_parser(self, option: str, value: str | None) -> None:
        """Leave an argument that prints something to the parser."""
        if option == "help_all" and value is not None:
            raise no_such_option(option)
        if option == "print_config" and not set((value or _PRINTED[0]).split(",")) <= set(_PRINTED):
            raise UserError(f"--{option}={value}: expected {' or '.join(_PRINTED)}, or no value")
        name = option.removesuffix("_all")
        self.rest.append(f"--{name}" if value is None else f"--{name}={value}")

    def _merged(self, where: str, old: Any, new: Any, default: Any = None) -> Any:
        """Merge a new value of a key with its earlier one.

        Args:
            where: dotted name of the key, without `init_args`.
            old: the earlier value; None if there is none.
            new: the new value, from a config or an option.
            default: the value of the key if none is given, to which `+=` adds.
        """
        if isinstance(new, AddedClass):
            return self._appended(where, default if old is None else old, new.value)
        if where in SECTIONS:
            return self._section(where, old, new)
        if where in CLASSES:
            return self._chosen(where, old, new)
        if isinstance(new, NestedOption):
            return self._with_option(where, old, new)
        if isinstance(new, dict) and "class_path" in new:  # a class that is an argument of another class
            kept = old.options if isinstance(old, ClassChoice) and old.path == new["class_path"] else {}
            return ClassChoice(
                new["class_path"], {**kept, **(new.get("init_args") or {})}, new.get("dict_kwargs") or {}
            )
        return new

    def _appended(self, where: str, old: Any, value: str) -> list[Any]:
        """Append a value to the list of a key."""
        if where in SECTIONS or (where in CLASSES and where not in MANY):
            raise UserError(f"--{where}+: {where} does not take a list; write --{where}")
        held, added = _as_list(value_of(old)), _as_list(self._merged(where, None, value_of(value)))
        if where in DEFAULT_LISTS:
            if value_of(old) is None:  # so far the defaults hold
                held = _default_list(where)
            added = [choice for choice in added if choice not in held]
        return [*held, *added]

    @property
    def replaced_monitors(self) -> list[str]:
        """The default monitors, if others are named instead of them; else empty."""
        chosen = _as_list(self._values.get("monitors"))
        has_default = any(choice in chosen for choice in _default_list("monitors"))
        return [] if has_default or not chosen else DEFAULT_LISTS["monitors"]

    def _section(self, section: str, old: Any, new: Any) -> dict[str, Any]:
        """Merge options of a section, `trainer` or `model`, over its earlier ones."""
        options, new = SECTIONS[section], {new.name: new.value} if isinstance(new, NestedOption) else self._meant(new)
        if not isinstance(new, dict):
            raise UserError(f"{self._file}{section} takes options such as {next(iter(options))}, not {_shown(new)}")
        merged = dict(old or {})
        for name, same in (("max_rounds", "max_epochs"), ("max_epochs", "max_rounds")):  # the later one counts
            if value_of(new.get(name)) is not None and new.get(same) is None:
                merged.pop(same, None)
        for name, value in new.items():
            if name not in options and not self._file:
                raise no_such_option(f"{section}.{name}")
            self._give(merged, section, section, options, name, value)
        return merged

    def _give(
        self, held: dict[str, Any], where: str, owner: str, options: Mapping[str, Parameter], name: str, value: Any
    ) -> None:
        """Set an option in `held`, the options of a section or a class; raise if it is unknown or may not be null."""
        if name not in options:
            its = "" if where in SECTIONS else f" (its options: {', '.join(options)})" if options else " (it has none)"
            hint = nearest(str(name), options) or meant(f"{where}.{name}", "" if self._file else "--")
            raise UserError(f"{self._file}{owner} has no option '{name}'{hint}{its}")
        if (value if self._file else value_of(value)) is None and not may_be_null(options[name]):
            raise UserError(f"{self._file}{where}.{name} is null; leave it out, or give it a value")
        held[name] = self._merged(f"{where}.{name}", held.get(name), value, options[name].default)

    def _chosen(self, group: str, old: Any, new: Any) -> Any:
        """Merge the class of a group, or its list of classes, with the earlier choice."""
        if isinstance(new, NestedOption):
            if isinstance(old, list) and old:  # the option belongs to the last class of a list
                return [*old[:-1], self._chosen(group, old[-1], new)]
            if not isinstance(old, ClassChoice):
                first = f"name one with --{group}{'+=NAME' * (group in MANY)} ({', '.join(names_of(group))})"
                raise UserError(f"--{group}.{new.name}: no {group} is chosen; {first}")
            new = {"init_args": {new.name: new.value}}
        new = self._meant(new)
        if new is None or (group == "trainer.logger" and isinstance(new, bool)):
            return new
        if isinstance(new, list) and group in MANY:
            return [self._chosen(group, None, item) for item in new]
        spec = {"class_path": new} if isinstance(new, str) else new
        if not isinstance(spec, dict) or not spec or not set(spec) <= {"class_path", "init_args", "dict_kwargs"}:
            what = "{class_path: NAME, init_args: {…}}"
            raise UserError(f"{self._file}{group} takes a class, {what}, not {_shown(new)}")
        former = old if isinstance(old, ClassChoice) else ClassChoice(None)
        name = spec.get("class_path", former.path or DEFAULTS.get(group, (None,))[0])
        if not isinstance(name, str):
            raise UserError(f"{self._file}{group}: class_path must name a class")
        made, options = class_of(group, name), spec.get("init_args") or {}
        if not isinstance(options, dict):
            raise UserError(f"{self._file}{group}: init_args takes arguments by name, not {_shown(options)}")
        taken, same = parameters_of(made), "class_path" not in spec
        kept = {option: value for option, value in former.options.items() if same or option in taken}
        self.dropped += [f"{group}.{option}" for option in former.options if option not in kept]
        configured = {option for option in former.configured if option in kept}
        if group == "data" and not same and former.path is not None:
            left = _left_behind(class_of(group, former.path), made, configured)
            kept = {option: value for option, value in kept.items() if option not in left}
            configured -= left
            if left:
                self.left[class_of(group, former.path).__name__, made.__name__] = sorted(left)
        for option, value in options.items():
            if option not in taken and leaves_keywords_open(made):
                kept[option] = value  # the parser checks it when it makes the object
            else:
                self._give(kept, group, f"{group} {made.__name__}", taken, option, value)
        path = former.path if same else name if "." in name else public_path(made)
        configured = configured | set(options) if self._file else configured - set(options)
        return ClassChoice(path, kept, {**former.keywords, **(spec.get("dict_kwargs") or {})}, frozenset(configured))

    def _with_option(self, where: str, old: Any, new: NestedOption) -> Any:
        """Set an option of a class, which may be given by its path alone, or an entry of a mapping."""
        held = value_of(old)
        if where == "topology" and isinstance(held, str):
            held = _keys_of_topology(held, new.name)
        if isinstance(held, str) and (where in PLAIN or "." not in held):
            raise UserError(f"--{where}.{new.name}: {where} is {held}, which has no options")
        if not isinstance(held, ClassChoice):
            held = self._merged(where, None, {"class_path": held} if isinstance(held, str) else held)
        options = dict(held.options if isinstance(held, ClassChoice) else held if isinstance(held, dict) else {})
        options[new.name] = self._merged(f"{where}.{new.name}", options.get(new.name), new.value)
        return ClassChoice(held.path, options, held.keywords) if isinstance(held, ClassChoice) else options

    def _meant(self, value: Any) -> Any:
        """Parse a value; if it names a YAML file with a part of a config, read that file."""
        if isinstance(value, str) and value.endswith((".yaml", ".yml")):
            for file in (self._folder / value, Path(value)):
                if file.is_file():
                    return read_config(file)
        return value if self._file else value_of(value)


def _keys_of_topology(source: str, option: str) -> dict[str, Any]:
    """Read the keys of a topology file, so that an option can be added to them; raise if its graph is in a file."""
    path = find("topologies", source)
    keys = read_config(path) if path.suffix in (".yaml", ".yml") else {}
    if "generator" not in keys and "class_path" not in keys:  # the path of a graph's file is relative to this file
        raise UserError(
            f"--topology.{option}: topology {source} names no generator, so the command line "
            "cannot add an option to it; write a topology file"
        )
    return keys


def _left_behind(former: type, made: type, configured: set[str]) -> set[str]:
    """Return the options of a config's data that do not fit other data: their division, files and scaling.

    Args:
        former: class of the data in the config.
        made: class of the data that replace them.
        configured: options of the former class that the config sets, and the new class has.
    """
    if former is made or (getattr(former, "shipped_images", False) and getattr(made, "shipped_images", False)):
        return set()
    counts_its_own = parameters_of(made)["num_clients"].default is None  # the number of clients follows from the data
    return configured - {"seed", "val_fraction", *([] if counts_its_own else ["num_clients"])}


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _default_list(group: str) -> list[Any]:
    return [ClassChoice(public_path(class_of(group, name))) for name in DEFAULT_LISTS[group]]


def _written(where: str, value: Any) -> Any:
    """Convert a value to plain types, as they are in a config."""
    if isinstance(value, list):
        return [_written(where, item) for item in value]
    if isinstance(value, dict):
        return {key: _written(f"{where}.{key}".removeprefix("."), inner) for key, inner in value.items()}
    if not isinstance(value, ClassChoice):
        return value
    path, options = value.path, value.options
    if path is None:
        name, defaults = DEFAULTS[where]
        path, options = public_path(class_of(where, name)), {**defaults, **options}
    if not options and not value.keywords:
        return path  # without init_args, which a function cannot have
    spec = {"class_path": path, "init_args": _written(where, options)}
    return {**spec, "dict_kwargs": value.keywords} if value.keywords else spec


def no_such_option(option: str) -> UserError:
    """Return the error about an option that does not exist, with the nearest one."""
    sections = [f"{section}.{name}" for section, names in SECTIONS.items() for name in names]
    options = [*TOP_LEVEL, "config", *CLASSES, *sections, *_FLAGS]
    if option in _FLAGS:
        return UserError(f"--{option} takes no value; write --{option}")
    same = [ours for ours in options if ours.rpartition(".")[2] == option.replace("-", "_")]  # without its section
    hint = meant(option) or nearest(option, same or options).replace("mean '", "mean '--")
    return UserError(f"unknown option --{option}{hint}")


def value_of(text: Any) -> Any:
    """Parse a value of the command line as YAML; if that fails, it is a text."""
    if not isinstance(text, str) or not text:
        return text
    try:
        return parse(text)
    except Exception:  # the constructors of numbers, dates and keys raise errors of many types
        return text


def _refuse_doubled_keys(option: str, value: str) -> None:
    """Raise if a value is a mapping with a key twice, of which the parser would silently keep the last."""
    try:
        parse(value)
    except DoubledKeyError as error:
        raise UserError(f"--{option}: {error.problem}") from None
    except Exception:  # not YAML; the reader of the option handles that
        return


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_unrepeatable(path: str, content: dict[str, Any]) -> None:
    """Raise if a config, written for a run that Python code started, has objects that a config cannot make.

    Raises:
        UserError: it has; the message names the settings.
    """
    settings = {**(content.get(UNKNOWN_SETTINGS) or {}), **(content.get(NOT_MAKEABLE) or {})}
    if settings:
        named = ", ".join(f"{name} ({text})" for name, text in settings.items())
        raise UserError(
            f"{path} is of a run from Python and cannot make {named}; run it from Python again, or name classes that "
            f"can be imported and remove the keys {UNKNOWN_SETTINGS} and {NOT_MAKEABLE}"
        )
