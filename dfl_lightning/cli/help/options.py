"""The screens of `--GROUP.help`: the classes of a group, the arguments of a class, the options of a section."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from dfl_lightning.cli.arguments import SECTIONS
from dfl_lightning.cli.classes.registry import (
    CLASSES,
    LIBRARY_GROUPS,
    class_of,
    first_line,
    listed,
    names_of,
    parameters_of,
    shipped_classes,
)
from dfl_lightning.module import DFLModule
from dfl_lightning.topology.formats.files import FORMATS
from dfl_lightning.topology.reading.spec import KEYS as TOPOLOGY_KEYS
from dfl_lightning.trainer import DFLTrainer
from dfl_lightning.trainer_options import NO_MEANING
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.storage.shipped_files import shipped

_WIDTH = 80
_KINDS = {int: "whole number", float: "number", bool: "true|false", str: "text", list: "list", dict: "mapping"}


def options_page(argv: list[str]) -> str | None:
    """Return the text of the `--KEY.help` among the arguments; None without one, or if the parser explains it.

    Raises:
        UserError: the key or the class does not exist.
    """
    for index, argument in enumerate(argv):
        option, _, name = argument.partition("=")
        if not (option.startswith("--") and option.endswith(".help")):
            continue
        if not name and index + 1 < len(argv) and not argv[index + 1].startswith("-"):
            name = argv[index + 1]
        page = _page(option.removeprefix("--").removesuffix(".help"), name)
        if page is not None:
            return page
    return None


def _page(key: str, name: str) -> str | None:
    if key in CLASSES:
        return class_page(key, name) if name else group_page(key)
    if key == "trainer":
        return section_page(key, DFLTrainer)
    if key == "model":
        return section_page(key, DFLModule)
    if key == "topology":
        return topology_page()
    if "." in key:
        return None  # an argument of a class: the parser explains it
    pages = [*CLASSES, "trainer", "model", "topology"]
    raise UserError(f"there is no page --{key}.help{nearest(key, pages)} (pages: {', '.join(pages)})")


def group_page(group: str) -> str:
    """Return the classes of a group, a line each."""
    classes = shipped_classes(group)
    if group in LIBRARY_GROUPS:
        text = textwrap.fill(f"{listed(group)}; or your own by its import path.", _WIDTH)
    else:
        width = max(map(len, classes))
        text = "\n".join(_columns(f"  {name:{width}}  ", first_line(cls)) for name, cls in classes.items())
    return f"--{group} takes the name of a class:\n\n{text}\n\n--{group}.help {names_of(group)[0]} explains one."


def class_page(group: str, name: str) -> str:
    """Return the first line of a class's documentation and its options.

    Args:
        group: a key of a config, such as `selection`.
        name: name of a class of this group.

    Raises:
        UserError: the group has no such class.
    """
    made = class_of(group, name)
    # the run itself passes the first argument of these: the parameters or the optimizer
    passed = {"model.optimizer": 1, "model.lr_scheduler": 1}.get(group, 0)
    parameters = dict(list(parameters_of(made).items())[passed:])
    head = textwrap.fill(f"--{group} {name}: {first_line(made)}", _WIDTH)
    return f"{head}\n\n{_options(group, parameters, made)}"


def section_page(section: str, cls: type) -> str:
    """Return the options of `trainer` or `model`; those of Lightning by name only, since they are many."""
    described = descriptions(cls, bases=False)
    documented = {name: p for name, p in SECTIONS[section].items() if name in described}
    text = f"--{section}: {first_line(cls)}\n\n{_options(section, documented, cls)}"
    lightnings = [name for name in SECTIONS[section] if name not in described and name not in NO_MEANING]
    return f"{text}\n\n" + textwrap.fill(f"Lightning's: {', '.join(lightnings)}", _WIDTH) if lightnings else text


def topology_page() -> str:
    """Return the description of `--topology` and the shipped names."""
    return "\n".join(
        (
            "--topology NAME|FILE|MAPPING: the communication graph; the default is complete.",
            "",
            *textwrap.wrap(f"Shipped names: {', '.join(shipped('topologies'))}.", _WIDTH),
            "",
            *textwrap.wrap(
                f"A file is a graph ({', '.join(FORMATS)}), or a YAML mapping with the keys "
                f"{', '.join(TOPOLOGY_KEYS)}. The same mapping can stand in a config.",
                _WIDTH,
            ),
            "",
            "  --topology ring",
            "  --topology my_graph.graphml",
            "  --topology '{generator: random_regular_graph, args: {d: 4}, seed: 0}'",
        )
    )


class Option(NamedTuple):
    """The description of an argument in a help page.

    Args:
        name: name of the argument.
        kind: type of its values, in a few words.
        meaning: description without the default; empty if the argument is not documented.
        default: the default as it is typed; None if the argument is required, or if `meaning` states the default.
        required: True if the argument has no default.
    """

    name: str
    kind: str
    meaning: str
    default: str | None
    required: bool


def options_of(parameters: Mapping[str, inspect.Parameter], made: Any) -> list[Option]:
    """Describe arguments of a class or function.

    Args:
        parameters: the arguments, by name.
        made: the class or function, whose documentation is read.
    """
    meanings = descriptions(made)
    options = []
    for name, parameter in parameters.items():
        meaning, required = meanings.get(name, "").strip(), parameter.default is parameter.empty
        stated = re.search(r"\bdefaults?( to|:)|[;.] default ", meaning, re.IGNORECASE)
        default = None if required or stated else _shown(parameter.default)
        options.append(Option(name, kind_of(parameter.annotation), meaning, default, required))
    return options


def _options(prefix: str, parameters: Mapping[str, inspect.Parameter], made: Any) -> str:
    """Format each argument as an option with type, meaning and default."""
    lines = []
    for option in options_of(parameters, made):
        meaning = option.meaning
        if option.required:
            meaning = f"{meaning.rstrip('.')} (required)"
        elif option.default is not None:
            meaning = f"{meaning.rstrip('.')} (default: {option.default})"
        lines += _wrapped(f"  --{prefix}.{option.name} {option.kind}".rstrip())
        lines += textwrap.wrap(meaning.strip(), _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) or "  It has no options."


def _wrapped(line: str) -> list[str]:
    """Break a line that is too long after one of its `|`.

    Examples:
        >>> _wrapped("  --" + "o" * 60 + " first|second|third")[1]
        '      third'
    """
    lines = []
    while len(line) > _WIDTH and (end := line.rfind("|", 0, _WIDTH) + 1):
        lines.append(line[:end])
        line = f"      {line[end:]}"
    return [*lines, line]


def kind_of(annotation: Any) -> str:
    """Describe the values of an argument of some type in a few words.

    Examples:
        >>> kind_of(int | Literal["all"] | None)
        'whole number|all|null'
        >>> kind_of(list[int])
        'list'
    """
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if annotation in (NoneType, None):
        return "null" if annotation is NoneType else ""
    if kind in (Union, UnionType):
        return "|".join(dict.fromkeys(word for part in arguments if (word := kind_of(part))))
    if kind is Literal:
        return "|".join(map(str, arguments))
    if kind in _KINDS:
        return _KINDS[kind]
    if not inspect.isclass(kind) or kind is inspect.Parameter.empty:
        return ""
    return "list" if kind.__module__ == "collections.abc" and kind.__name__ != "Callable" else kind.__name__


def descriptions(made: Any, bases: bool = True) -> dict[str, str]:
    """Return the documentation of each argument of a class or function, by name.

    Args:
        made: a class, with its `__init__`, or a function.
        bases: True if the documentation of base classes is read, too.
    """
    classes = getattr(made, "__mro__", (made,)) if bases else (made,)
    sources = [text for cls in classes for text in (cls.__doc__, _init_doc(cls)) if text]
    meanings: dict[str, str] = {}
    for text in sources:
        for name, meaning in _arguments(inspect.cleandoc(text)):
            meanings.setdefault(name, meaning)
    return meanings


def _init_doc(cls: Any) -> str | None:
    return getattr(vars(cls).get("__init__"), "__doc__", None) if inspect.isclass(cls) else None


def _arguments(text: str) -> list[tuple[str, str]]:
    """Return the entries of the section `Args:` of a docstring, as pairs of name and meaning."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n|\s*\n)*)", f"{text}\n", re.MULTILINE)
    if section is None:
        return []
    body = textwrap.dedent(section.group(1))
    entries = re.split(r"^(\*{0,2}\w+)(?: ?\([^)\n]*\))?:", body, flags=re.MULTILINE)[1:]
    return [(name, _plain(meaning)) for name, meaning in zip(entries[::2], entries[1::2], strict=True)]


def _plain(text: str) -> str:
    """Remove the markup of a text and join its lines."""
    return " ".join(re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`|`+", r"\1", text).split())


def _columns(first: str, rest: str) -> str:
    return textwrap.fill(rest, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return getattr(value, "__name__", None) or str(value) or "''"
