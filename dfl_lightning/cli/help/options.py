"""`--GROUP.help`: what a group's classes, a class's arguments and a section's options are, as they are typed."""

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
from dfl_lightning.topology.reading.spec import KEYS as TOPOLOGY_KEYS
from dfl_lightning.trainer import NO_MEANING, DFLTrainer
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.storage.shipped_files import shipped

_WIDTH = 80
_KINDS = {int: "whole number", float: "number", bool: "true|false", str: "text", list: "list", dict: "mapping"}


def options_page(argv: list[str]) -> str | None:
    """Make the page that a `--KEY.help` asks for; None where there is none that is known here.

    Raises:
        UserError: no such key or class.
    """
    for at, argument in enumerate(argv):
        option, _, name = argument.partition("=")
        if not (option.startswith("--") and option.endswith(".help")):
            continue
        if not name and at + 1 < len(argv) and not argv[at + 1].startswith("-"):
            name = argv[at + 1]
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
    known = [*CLASSES, "trainer", "model", "topology"]
    raise UserError(f"there is no page --{key}.help{nearest(key, known)} (pages: {', '.join(known)})")


def group_page(group: str) -> str:
    """The classes of a group, a line each."""
    classes = shipped_classes(group)
    if group in LIBRARY_GROUPS:
        text = textwrap.fill(f"{listed(group)}; or your own by its import path.", _WIDTH)
    else:
        width = max(map(len, classes))
        text = "\n".join(_columns(f"  {name:{width}}  ", first_line(cls)) for name, cls in classes.items())
    return f"--{group} takes the name of a class:\n\n{text}\n\n--{group}.help {names_of(group)[0]} explains one."


def class_page(group: str, name: str) -> str:
    """A class's first line and its options.

    Args:
        group: a key of a config, `selection` for example.
        name: of a class of this group.

    Raises:
        UserError: the group has no such class.
    """
    made = class_of(group, name)
    passed = {"model.optimizer": 1, "model.lr_scheduler": 1}.get(group, 0)  # what the run gives: parameters, optimizer
    parameters = dict(list(parameters_of(made).items())[passed:])
    head = textwrap.fill(f"--{group} {name}: {first_line(made)}", _WIDTH)
    return f"{head}\n\n{_options(group, parameters, made)}"


def section_page(section: str, cls: type) -> str:
    """The options of `trainer` or `model`."""
    own = descriptions(cls, bases=False)  # Lightning's own are many, and are named without a word
    documented = {name: p for name, p in SECTIONS[section].items() if name in own}
    text = f"--{section}: {first_line(cls)}\n\n{_options(section, documented, cls)}"
    others = [name for name in SECTIONS[section] if name not in own and name not in NO_MEANING]
    return f"{text}\n\n" + textwrap.fill(f"Lightning's: {', '.join(others)}", _WIDTH) if others else text


def topology_page() -> str:
    """How to name the communication graph."""
    return "\n".join(
        (
            "--topology NAME|FILE|MAPPING: the communication graph; the default is complete.",
            "",
            *textwrap.wrap(f"Shipped names: {', '.join(shipped('topologies'))}.", _WIDTH),
            "",
            *textwrap.wrap(
                "A file is an edge list, an adjacency list, GraphML, GML, node-link JSON, or a YAML mapping with the "
                f"keys {', '.join(TOPOLOGY_KEYS)}. The same mapping can stand in a config.",
                _WIDTH,
            ),
            "",
            "  --topology ring",
            "  --topology my_graph.graphml",
            "  --topology '{generator: random_regular_graph, args: {d: 4}, seed: 0}'",
        )
    )


class Option(NamedTuple):
    """An argument, as a page explains it.

    Args:
        name: of the argument.
        kind: what it takes, in a few words.
        meaning: a sentence, without its default; empty where the documentation says nothing.
        default: as it is typed; None: it has to be given, or the meaning says what it is.
        required: whether it has to be given.
    """

    name: str
    kind: str
    meaning: str
    default: str | None
    required: bool


def options_of(parameters: Mapping[str, inspect.Parameter], made: Any) -> list[Option]:
    """What a class or function takes.

    Args:
        parameters: those to explain, by name.
        made: the class or function.
    """
    meanings = descriptions(made)
    found = []
    for name, parameter in parameters.items():
        meaning, required = meanings.get(name, "").strip(), parameter.default is parameter.empty
        stated = re.search(r"\bdefaults?( to|:)|[;.] default ", meaning, re.IGNORECASE)
        default = None if required or stated else _shown(parameter.default)
        found.append(Option(name, kind_of(parameter.annotation), meaning, default, required))
    return found


def _options(prefix: str, parameters: Mapping[str, inspect.Parameter], made: Any) -> str:
    """Each option as it is typed, with what it takes, what it means and its default."""
    lines = []
    for option in options_of(parameters, made):
        meaning = option.meaning
        if option.required:
            meaning = f"{meaning.rstrip('.')} (required)"
        elif option.default is not None:
            meaning = f"{meaning.rstrip('.')} (default: {option.default})"
        lines += _broken(f"  --{prefix}.{option.name} {option.kind}".rstrip())
        lines += textwrap.wrap(meaning.strip(), _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return "\n".join(lines) or "  It has no options."


def _broken(line: str) -> list[str]:
    """The line, or where it is too long the same in several, broken after a value.

    Examples:
        >>> _broken("  --" + "o" * 60 + " first|second|third")[1]
        '      third'
    """
    found = []
    while len(line) > _WIDTH and (end := line.rfind("|", 0, _WIDTH) + 1):
        found.append(line[:end])
        line = f"      {line[end:]}"
    return [*found, line]


def kind_of(annotation: Any) -> str:
    """What an argument takes, in a few words.

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
    """What the documentation of a class, of its `__init__` or of its bases says about each argument.

    Args:
        made: a class, or a function that makes objects.
        bases: whether its bases count too.
    """
    classes = getattr(made, "__mro__", (made,)) if bases else (made,)
    sources = [text for cls in classes for text in (cls.__doc__, _init_doc(cls)) if text]
    found: dict[str, str] = {}
    for text in sources:
        for name, meaning in _arguments(inspect.cleandoc(text)):
            found.setdefault(name, meaning)
    return found


def _init_doc(cls: Any) -> str | None:
    return getattr(vars(cls).get("__init__"), "__doc__", None) if inspect.isclass(cls) else None


def _arguments(text: str) -> list[tuple[str, str]]:
    """The entries of a section `Args:`."""
    section = re.search(r"^Args:\n((?:[ \t]+.*\n|\s*\n)*)", f"{text}\n", re.MULTILINE)
    if section is None:
        return []
    body = textwrap.dedent(section.group(1))
    entries = re.split(r"^(\*{0,2}\w+)(?: ?\([^)\n]*\))?:", body, flags=re.MULTILINE)[1:]
    return [(name, _plain(meaning)) for name, meaning in zip(entries[::2], entries[1::2], strict=True)]


def _plain(text: str) -> str:
    """Documentation without its markup, on one line."""
    return " ".join(re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`|`+", r"\1", text).split())


def _columns(first: str, rest: str) -> str:
    return textwrap.fill(rest, _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))


def _shown(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return getattr(value, "__name__", None) or str(value) or "''"
