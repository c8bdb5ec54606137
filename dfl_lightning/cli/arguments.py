"""The arguments of a command line, read once: shipped configs by name, then all values as one config.

A short name becomes the import path of the shipped class, for the parser would look for it among all classes of the
process, a user's own included. A class that replaces another starts from its own defaults; the options that a
config or the command line has given are kept where the new class takes them.
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
from dfl_lightning.trainer import DFLTrainer, default_monitors
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
"""Sections of a config that are no class, and their options."""

DEFAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "selection": ("Gossip", {}),
    "aggregation": ("Uniform", {}),
    "model.optimizer": ("SGD", DEFAULT_OPTIMIZER.keywords),
}
"""What a group is where no class is named: a class, and options for it that are not its own defaults."""

DEFAULT_LISTS: dict[str, list[str]] = {"monitors": [type(monitor).__name__ for monitor in default_monitors()]}
"""The classes that a group holds where none is named, and to which `--GROUP+=` adds."""

_PRINTED = ("skip_default", "skip_unset")
_FLAGS = ("print_config", "help_all", "explain", "report", "live", "list", "help", "version")


class Argument(NamedTuple):
    """An option with its value, as it is typed.

    Attributes:
        option: its name without dashes and `init_args`; empty for an argument that belongs to no option.
        value: what follows it; None where nothing does.
        content: of a config, what is in the file.
    """

    option: str
    value: str | None = None
    content: dict[str, Any] | None = None


def take_flag(argv: list[str], flag: str) -> tuple[list[str], bool]:
    """Remove a flag from the command line.

    Args:
        argv: of the command line.
        flag: `--explain` for example.

    Returns:
        The other arguments, and whether the flag was among them.

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
        UserError: no such config, or one that cannot be read.
    """
    found = [_config(each.value) if each.option == "config" else each for each in arguments]
    for each in found:
        if each.content is not None:
            require_inputs(str(each.value), [other.option for other in found if other.content is None])
    return found


def _config(name: str | None) -> Argument:
    """A config's path and content; `configs/NAME.yaml` is understood away from a checkout too."""
    if not name:
        raise UserError("--config needs a file or the name of a shipped config; --list names them")
    path = Path(name)
    shipped = path.name if path.parent == Path("configs") and not path.is_file() else name
    file, content = config_in(find("configs", shipped))
    return Argument("config", str(file), content)


def run_name(configs: Sequence[str]) -> str:
    """Name runs after the last config, or after the run itself where that config is a run's own.

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
    """The value of an option of a key, whatever class the key holds: `--selection.k 3` of `selection`."""

    name: str
    value: Any


class AddedClass(NamedTuple):
    """A value that is added to a list: `--monitors+=Fairness`."""

    value: str


@dataclass
class ClassChoice:
    """A class by its import path, None for the group's default, and the values of its options."""

    path: str | None
    options: dict[str, Any] = field(default_factory=dict)
    keywords: dict[str, Any] = field(default_factory=dict)


class Settings:
    """The settings that a command line makes: later arguments are merged over earlier ones.

    Args:
        arguments: options and configs, in their order.

    Attributes:
        arguments: the same.
        configs: paths and contents of the configs among them.
        dropped: options whose class was replaced by one that does not have them.
        rest: arguments that the parser answers.

    Raises:
        UserError: an unknown key, class or option, a class of another family, a value where a class belongs.
    """

    def __init__(self, arguments: Sequence[Argument]) -> None:
        self.arguments = arguments
        self.configs = [(str(each.value), each.content) for each in arguments if each.content is not None]
        self.dropped: list[str] = []
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
        """All of it as one config, with import paths for short names; values that were typed are texts."""
        config: dict[str, Any] = _written("", self._values)
        return config

    def _take_config(self, path: str, content: dict[str, Any]) -> None:
        _refuse_unrepeatable(path, content)
        self._file, self._folder = f"{path}: ", Path(path).parent
        for key, value in content.items():
            if key in (FORKED, CHANGED, CODE, UNKNOWN_SETTINGS, NOT_MAKEABLE):
                continue  # a note about a run, and no setting
            if key not in TOP_LEVEL:
                hint = meant(str(key), "") or nearest(str(key), TOP_LEVEL)
                raise UserError(f"{path}: unknown key '{key}'{hint} (keys: {', '.join(TOP_LEVEL)})")
            self._values[key] = self._merged(key, self._values.get(key), value)
        self._file, self._folder = "", Path()

    def _take_option(self, argument: Argument) -> None:
        option = argument.option
        value = "true" if argument == Argument("fork") else argument.value
        if not option:
            raise UserError(f"'{value}' belongs to no option; options begin with --")
        if option in ("print_config", "help_all") or option.endswith(".help"):
            self._ask(option, value)
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

    def _ask(self, option: str, value: str | None) -> None:
        """Leave an argument to the parser."""
        if option == "help_all" and value is not None:
            raise no_such_option(option)
        if option == "print_config" and not set((value or _PRINTED[0]).split(",")) <= set(_PRINTED):
            raise UserError(f"--{option}={value}: expected {' or '.join(_PRINTED)}, or no value")
        name = option.removesuffix("_all")
        self.rest.append(f"--{name}" if value is None else f"--{name}={value}")

    def _merged(self, where: str, old: Any, new: Any, default: Any = None) -> Any:
        """Merge a value of a config or of an option into what the config holds so far.

        Args:
            where: the dotted name of the key, without `init_args`.
            old: its value; None: none was given.
            new: the value that is given.
            default: its value where none is given.
        """
        if isinstance(new, AddedClass):
            return self._longer(where, default if old is None else old, new.value)
        if where in SECTIONS:
            return self._section(where, old, new)
        if where in CLASSES:
            return self._chosen(where, old, new)
        if isinstance(new, NestedOption):
            return self._with_option(where, old, new)
        if isinstance(new, dict) and "class_path" in new:  # of a class that is an argument of another
            kept = old.options if isinstance(old, ClassChoice) and old.path == new["class_path"] else {}
            return ClassChoice(
                new["class_path"], {**kept, **(new.get("init_args") or {})}, new.get("dict_kwargs") or {}
            )
        return new

    def _longer(self, where: str, old: Any, value: str) -> list[Any]:
        """Append a value to a list."""
        if where in SECTIONS or (where in CLASSES and where not in MANY):
            raise UserError(f"--{where}+ takes one thing and adds to no list; write --{where}")
        held, added = _as_list(value_of(old)), _as_list(self._merged(where, None, value_of(value)))
        if where in DEFAULT_LISTS:
            if value_of(old) is None:  # none is named yet
                held = _default_list(where)
            added = [choice for choice in added if choice not in held]
        return [*held, *added]

    @property
    def replaced_monitors(self) -> list[str]:
        """The default monitors, where others are named in their place."""
        chosen = _as_list(self._values.get("monitors"))
        known = any(choice in chosen for choice in _default_list("monitors"))
        return [] if known or not chosen else DEFAULT_LISTS["monitors"]

    def _section(self, section: str, old: Any, new: Any) -> dict[str, Any]:
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
        """Set an option of a section or a class, if it has that option."""
        if name not in options:
            its = "" if where in SECTIONS else f" (its options: {', '.join(options)})" if options else " (it has none)"
            hint = nearest(str(name), options) or meant(f"{where}.{name}", "" if self._file else "--")
            raise UserError(f"{self._file}{owner} has no option '{name}'{hint}{its}")
        if (value if self._file else value_of(value)) is None and not may_be_null(options[name]):
            raise UserError(f"{self._file}{where}.{name} is null; leave it out, or give it a value")
        held[name] = self._merged(f"{where}.{name}", held.get(name), value, options[name].default)

    def _chosen(self, group: str, old: Any, new: Any) -> Any:
        """A group's class, or its classes, in the place of a former one."""
        if isinstance(new, NestedOption):
            if isinstance(old, list) and old:  # the last one is meant
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
        for option, value in options.items():
            if option not in taken and leaves_keywords_open(made):
                kept[option] = value  # only the parser finds out what it is for
            else:
                self._give(kept, group, f"{group} {made.__name__}", taken, option, value)
        path = former.path if same else name if "." in name else public_path(made)
        return ClassChoice(path, kept, {**former.keywords, **(spec.get("dict_kwargs") or {})})

    def _with_option(self, where: str, old: Any, new: NestedOption) -> Any:
        """Set an option of what an argument holds: a class, perhaps given by its path alone, or a mapping."""
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
        """Parse a value; where it names a YAML file, a part of a config of its own, read that file."""
        if isinstance(value, str) and value.endswith((".yaml", ".yml")):
            for file in (self._folder / value, Path(value)):
                if file.is_file():
                    return read_config(file)
        return value if self._file else value_of(value)


def _keys_of_topology(source: str, option: str) -> dict[str, Any]:
    """What a topology file says, to which an option is added: its generator's arguments, its links over the rounds."""
    path = find("topologies", source)
    keys = read_config(path) if path.suffix in (".yaml", ".yml") else {}
    if "generator" not in keys:  # a graph's file is named relative to its topology's
        raise UserError(
            f"--topology.{option}: topology {source} names no generator, so that the command line "
            "cannot add an option to it; say it in a topology file"
        )
    return keys


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _default_list(group: str) -> list[Any]:
    return [ClassChoice(public_path(class_of(group, name))) for name in DEFAULT_LISTS[group]]


def _written(where: str, value: Any) -> Any:
    """A value as a config has it."""
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
        return path  # a function can be named only so
    spec = {"class_path": path, "init_args": _written(where, options)}
    return {**spec, "dict_kwargs": value.keywords} if value.keywords else spec


def no_such_option(option: str) -> UserError:
    """The error for an option that does not exist, with the nearest one."""
    sections = [f"{section}.{name}" for section, names in SECTIONS.items() for name in names]
    known = [*TOP_LEVEL, "config", *CLASSES, *sections, *_FLAGS]
    if option in _FLAGS:
        return UserError(f"--{option} takes no value; write --{option}")
    same = [ours for ours in known if ours.rpartition(".")[2] == option.replace("-", "_")]  # without its section
    hint = meant(option) or nearest(option, same or known).replace("mean '", "mean '--")
    return UserError(f"there is no option --{option}{hint}")


def value_of(text: Any) -> Any:
    """Parse a value of the command line as YAML; what is not YAML is a text."""
    if not isinstance(text, str) or not text:
        return text
    try:
        return parse(text)
    except Exception:  # the constructors of numbers, dates and keys raise what they like
        return text


def _refuse_doubled_keys(option: str, value: str) -> None:
    """Refuse a mapping with a key twice, whatever option it is given to: the parser would keep the last value."""
    try:
        parse(value)
    except DoubledKeyError as error:
        raise UserError(f"--{option}: {error.problem}") from None
    except Exception:  # not YAML: the option's own reader says so, or takes the value as it is
        return


def _shown(value: Any) -> str:
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _refuse_unrepeatable(path: str, content: dict[str, Any]) -> None:
    """Refuse the config of a run from Python with objects that no text can make.

    Raises:
        UserError: names the settings.
    """
    found = {**(content.get(UNKNOWN_SETTINGS) or {}), **(content.get(NOT_MAKEABLE) or {})}
    if found:
        named = ", ".join(f"{name} ({text})" for name, text in found.items())
        raise UserError(
            f"{path} is of a run from Python and cannot make {named}; run it from Python again, or name classes that "
            f"can be imported and remove the keys {UNKNOWN_SETTINGS} and {NOT_MAKEABLE}"
        )
