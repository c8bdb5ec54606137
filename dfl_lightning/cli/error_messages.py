"""What the parser and Lightning say over many lines, as one sentence about the words that a user typed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence

from jsonargparse import ArgumentError

from dfl_lightning.cli.arguments import SECTIONS, TOP_LEVEL, options_of_words
from dfl_lightning.cli.registry import GROUPS, LIBRARY_GROUPS, import_class, import_object, options_of
from dfl_lightning.utils.errors import UNREACHABLE, UserError, nearest, shortened

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "tuple": "a list",
    "dict": "a mapping",
    "collections.abc.Sequence": "a list",
}

_EXPECTATIONS = re.compile(
    r"Expected an? <class '([\w.]+)'>|Expected a typing\.Literal\[(.*?)\]|(?:a |not a valid )subclass of (\w+)"
    r"|Expected '\S+' to be a function that returns <class '(?:\w+\.)*(\w+)'>|(Callable)\["
    r"|Expected a tuple with (\d+) elements|(dot import path)",
    re.IGNORECASE,
)
"""What the parser says it expected: a plain type, one of some values, a class, a function, a list of a length."""

_MAKERS = (
    *("dfl_lightning.cli.command", "dfl_lightning.module", "dfl_lightning.trainer", "lightning.pytorch.cli"),
    *("lightning.pytorch.trainer", "jsonargparse", "argparse"),
)
"""Modules whose own classes are being made whenever something is refused."""

_PARSERS_OWN = re.compile(
    "Expected |Does not validate|Problem with given|the following arg|Option '|Not a valid subclass|Type |Parser key|"
    "Got value|Given value|Subtypes?:|Errors:|Subclass types|a class path|a dict |Unable to load|Multiple subclasses|"
    "Import path "
)
"""How lines begin that the parser adds around the reason of a class's own refusal."""

_LIGHTNINGS = (
    (
        r"No supported gpu backend found",
        r"trainer.accelerator=gpu: there is no GPU that torch can use here; leave it out or set it to cpu",
    ),
    (
        r"invalid accelerator name: `accelerator='(.*?)'`",
        r"trainer.accelerator=\1: there is no such accelerator; it is auto, cpu or gpu",
    ),
    (
        r"torch_xla|`(?:\w+)Accelerator` can not run on your system",
        r"trainer.accelerator: there is no such device that this can use here; it is auto, cpu or gpu",
    ),
    (
        r"`devices` selected with `\w+` should be|`Trainer\(devices=.*?\)` value is not a valid input",
        r"trainer.devices: it is a number of processes, 1 or more (on GPUs also a list of their numbers)",
    ),
    (
        r"`num_nodes` must be a positive integer, but got (\S+?)\.?$",
        r"trainer.num_nodes=\1; it is a number of machines, 1 or more",
    ),
    (
        r"passing string value for the `profiler` parameter.* one of \[(.*?)\]",
        r"trainer.profiler: there is no such profiler; it is one of \1, or a class",
    ),
    (
        r"`max_epochs` must be .* You passed in (\S+?)\.?$",
        r"trainer.max_rounds=\1; it is a number of rounds, 0 or more (-1: without end)",
    ),
    (
        r"Cannot use `(\w+)` callback with `Trainer` that has no logger",
        r"trainer.callbacks \1 needs a logger; add one, for example --trainer.logger true",
    ),
    (
        r"Connection (?:closed|reset) by peer|gloo|NCCL|ProcessGroup",
        UNREACHABLE,
    ),
    (
        r"class_path '(?:[\w.]+\.)?(\w+)'.*?[`'](?:python -m )?(pip install [^`]*?)[`'](?:[^'`\w]|$)",
        r"\1 needs a package that is not installed; run: \2",
    ),
    (
        r"Timer\(duration='(.*?)'\)",
        r"\1 is no duration; trainer.max_time, and the duration of a Timer, are DD:HH:MM:SS",
    ),
    (
        r"Early stopping conditioned on metric `(\S+)` which is not available.*the following: (.*)",
        r"EarlyStopping monitors \1, which this run does not log; it logs \2",
    ),
    (
        r"ModelCheckpoint\(monitor='(\S+)'\)` could not find .*? metrics: \[(.*?)\]",
        r"ModelCheckpoint monitors \1, which this run does not log; it logs \2",
    ),
)
"""Refusals of Lightning's that a user can meet, and what they mean here."""


def sentence_of(error: BaseException, argv: Sequence[str] = ()) -> str:
    """An error's message as one sentence.

    Args:
        error: what was raised.
        argv: the command line's words, to name the option that a refused value was given for.

    Example:
        >>> sentence_of(ValueError("unrecognized arguments: --topologie ring"))
        "there is no option --topologie; did you mean '--topology'?"
    """
    own = _refusal(error)
    if own is not None:
        return own
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) or type(error).__name__
    sentence = lightnings_sentence(text) or _about_words(text) or _about_values(str(error), list(argv))
    if sentence is not None:
        return sentence
    reasons = (line.removeprefix("- ") for line in lines if line.startswith("- ") and _is_a_reason(line[2:]))
    who = _refuser(error)
    refused = isinstance(error, (ValueError, TypeError)) and not isinstance(error, ArgumentError)
    before = f"{who}: " if who else "an argument is refused: " if refused else ""
    return f"{before}{_short(next(reasons, text))}"


def _refuser(error: BaseException) -> str:
    """The name of the class whose arguments were refused while an object of it was made; empty if none was."""
    while error.__cause__ is not None:
        error = error.__cause__
    name = ""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        made = {"__init__": "self", "__new__": "cls"}.get(frame.f_code.co_name, "")
        if made in frame.f_locals and not frame.f_globals["__name__"].startswith(_MAKERS):
            thing = frame.f_locals[made]
            cls = thing if isinstance(thing, type) else type(thing)
            name = name if cls.__name__.startswith("_") else cls.__name__
    return name


def lightnings_sentence(text: str) -> str | None:
    """What a refusal of Lightning's means here; None where it is not known to be one."""
    for pattern, sentence in _LIGHTNINGS:
        found = re.search(pattern, text)
        if found:
            return found.expand(sentence)
    return None


def _refusal(error: BaseException) -> str | None:
    """A class's own refusal, raised while it was made."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return None


def _about_words(text: str) -> str | None:
    """Options that do not exist, are missing, or lack a value."""
    unknown = re.search(r"(?:unrecognized arguments: --|does not accept option ')([\w.]+)(\+?)", text, re.IGNORECASE)
    if unknown and unknown.group(1) in _options():
        option, plus = unknown.groups()
        remedy = "takes one thing and adds to no list" if plus else "takes no value"
        return f"--{option}{plus} {remedy}; write --{option}"
    if unknown:
        near = nearest(unknown.group(1), _options()).replace("mean '", "mean '--")
        return f"there is no option --{unknown.group(1)}{near}"
    stray = re.search(r"unrecognized arguments: (.*)", text, re.IGNORECASE)
    if stray:
        return f"'{_short(stray.group(1))}' belongs to no option; options begin with --"
    bare = re.search(r"argument (--\S+?):? expected one argument", text)
    if bare:
        return f"{bare.group(1)} needs a value"
    valued = re.search(
        r"argument (-\S+?):? ignored explicit argument|Invalid option \"\S*\" for (--print_config)", text
    )
    if valued:
        return f"{valued.group(1) or valued.group(2)} takes no value"
    missing = re.search(r"arguments are required: (fit|validate|test)\.([\w., ]+)", text)
    if missing:
        names = missing.group(2).replace(f"{missing.group(1)}.", "").split(", ")
        are = "are" if len(names) > 1 else "is"
        return f"{' and '.join(names)} {are} missing; give a config or {' and '.join(f'--{name}' for name in names)}"
    return None


def _about_values(message: str, argv: list[str]) -> str | None:
    """A value that does not fit its key, or a class that cannot be had."""
    key, block = _innermost(message)
    if not key:
        return None
    text = " ".join(block)
    found = re.search(r"arguments are required: (\w+)", text)
    if found:
        return f"{key}.{found.group(1)} is missing; give it in a config or as --{key}.{found.group(1)}"
    found = re.search(r"Option '([\w.]+)' is not accepted", text)
    if found:
        options = _options_of_class(message)
        first = f"; name its class first, as in --{key}+=NAME" if not options and key in LIBRARY_GROUPS else ""
        near = "" if found.group(1) in options else nearest(found.group(1), options)
        return f"{key} has no option '{found.group(1)}'{near}{first}"
    found = re.search(
        r"Multiple subclasses with name (\w+)\. Give the full class path to avoid ambiguity: ([\w., ]+)", text
    )
    if found:
        return f"{key}: several classes are called {found.group(1)}; write one of {found.group(2).rstrip('.')}"
    found = re.search(r"Problem with given class_path '([\w.]+)': (?!Parser key)(.*?)(?: - |$)", text)
    if found:
        return _why_not_imported(key, found.group(1)) or f"{key} '{found.group(1)}': {_short(found.group(2))}"
    expected = list(dict.fromkeys(_expected(text)))
    value = _value(block)
    for option, typed in options_of_words(argv):
        if typed and option == key and value in (typed, f"'{typed}'"):
            return f"{option}={_short(typed)}: {_wanted(expected, typed)}"
    for option, typed in options_of_words(argv):
        if typed and f"'{typed}'" in message and value in (typed, f"'{typed}'"):
            return f"{option}={_short(typed)}: {_wanted(expected, typed)}"
    return f"{key}: {_wanted(expected, value)}, not {_short(value)}"


def _why_not_imported(key: str, path: str) -> str | None:
    """What is wrong with an import path; None where it can be imported."""
    try:
        import_object(key, path)
    except UserError as error:
        return str(error)
    return None


def _innermost(message: str) -> tuple[str, list[str]]:
    """The dotted key that the parser's message is about in the end, and what the message says about it.

    A message about an argument of a class lies, further to the right, inside that about the class.
    """
    keys: list[str] = []
    depth, block = -1, []
    for line in message.splitlines():
        indent = len(line) - len(line.lstrip())
        found = re.search(r"Parser key \"([\w.]+)\":", line)
        if found and indent > depth:
            keys.append(found.group(1))
            depth, block = indent, [line[found.end() :].strip()]
        elif found or (line.strip() and indent <= depth):
            break  # about something else that was tried
        elif keys:
            block.append(line.strip())
    return ".".join(keys), [line for line in block if line]


def _wanted(expected: list[str], value: str) -> str:
    """What was expected; how a list is written, where one thing was given."""
    alone = expected == ["a list"] and not value.startswith(("[", "{", "'"))
    return f"expected {' or '.join(expected or ['another kind of value'])}" + f"; write [{value}]" * alone


def _value(block: list[str]) -> str:
    """The value that a message is about: of an object, the name of its class."""
    given = [
        found
        for line in block
        for found in re.findall(
            r"(?:Got value: |Given value: |Import path (?=\S+ does not))(.*?)(?:\. Got| does not|$)", line
        )
    ]
    if not given:
        return "this value"
    nested = re.search(r"NestedArg\(key='.*?', val='(.*)'\)", given[-1])
    named = re.search(r"class_path['\"]?[=:] ?['\"]([\w.]+)", given[-1])
    return nested.group(1) if nested else f"'{named.group(1)}'" if named else given[-1].strip().rstrip(".")


def _is_a_reason(line: str) -> bool:
    return not _PARSERS_OWN.match(line)


def _expected(text: str) -> Iterable[str]:
    """What each of the types that were tried takes, in the order in which the parser tried them."""
    for found in _EXPECTATIONS.finditer(text):
        kind, choices, base, made, function, length, path = found.groups()
        if kind in _KINDS:
            yield _KINDS[kind]
        elif choices:
            yield f"one of {choices}"
        elif base:
            yield f"a subclass of {base}"
        elif made:
            yield f"a function that says '-> {made}'"
        elif function and "to be a function that returns" not in text:
            yield "a function"
        elif length:
            yield f"a list of {length} values"
        elif path and not re.search(r"Callable\[|<class 'float'>", text):
            yield "a class"


def _options_of_class(text: str) -> list[str]:
    """The options of the class that the message is about."""
    found = re.search(r"(?:given class_path|class_path=) ?'([\w.]+)'", text)
    return list(options_of(import_class("", found.group(1)))) if found else []


def _options() -> list[str]:
    """Options worth hinting at."""
    sections = [f"{section}.{name}" for section, names in SECTIONS.items() for name in names]
    return [*TOP_LEVEL, "config", *GROUPS, *sections, "explain", "list", "help", "help_all", "print_config"]


def _short(text: str) -> str:
    return shortened(text, 300)
