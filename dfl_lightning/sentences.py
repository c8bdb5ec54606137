"""What the parser and Lightning say over many lines, as one sentence about the words that a user typed."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from jsonargparse import ArgumentError

from dfl_lightning.arguments import SECTIONS, TOP_LEVEL, options_of_words
from dfl_lightning.errors import UNREACHABLE, UserError, nearest
from dfl_lightning.registry import GROUPS, LIBRARY_GROUPS, import_class, options_of, shipped_classes

_KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "list": "a list",
    "dict": "a mapping",
    "collections.abc.Sequence": "a list",
}

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
        r"Timer\(duration='(.*?)'\)",
        r"trainer.max_time=\1; it is a duration DD:HH:MM:SS",
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
    sentence = lightnings_sentence(text) or _about_words(text) or _about_values(text, lines, list(argv))
    if sentence is None and isinstance(error, (ValueError, TypeError)) and not isinstance(error, ArgumentError):
        return f"an argument is refused: {_short(text)}"
    return sentence or _short(text)


def lightnings_sentence(text: str) -> str | None:
    """What a refusal of Lightning's means here; None where it is not known to be one."""
    for pattern, sentence in _LIGHTNINGS:
        found = re.search(pattern, text)
        if found:
            return found.expand(sentence)
    return None


def where_in_users_code(error: BaseException) -> str | None:
    """The innermost line of the working folder's own modules that an error came through; None where there is none."""
    here, package = Path.cwd(), Path(__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_relative_to(here) and not file.is_relative_to(package) and "site-packages" not in file.parts:
            about = f"{type(error).__name__}: {' '.join(str(error).split())}"
            where = f"{file.relative_to(here)}, line {frame.lineno}, in {frame.name}"
            return _short(f"{where}: {about} (DFL_DEBUG=1 shows the way there)")
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
    unknown = re.search(r"(?:unrecognized arguments: --|does not accept option ')([\w.]+)", text, re.IGNORECASE)
    if unknown:
        near = nearest(unknown.group(1), _options()).replace("mean '", "mean '--")
        return f"there is no option --{unknown.group(1)}{near}"
    stray = re.search(r"unrecognized arguments: (.*)", text, re.IGNORECASE)
    if stray:
        return f"'{_short(stray.group(1))}' belongs to no option; options begin with --"
    bare = re.search(r"argument (--\S+?):? expected one argument", text)
    if bare:
        return f"{bare.group(1)} needs a value"
    missing = re.search(r"arguments are required: (fit|validate|test)\.([\w., ]+)", text)
    if missing:
        names = missing.group(2).replace(f"{missing.group(1)}.", "").split(", ")
        are = "are" if len(names) > 1 else "is"
        return f"{' and '.join(names)} {are} missing; give a config or {' and '.join(f'--{name}' for name in names)}"
    return None


def _about_values(text: str, lines: list[str], argv: list[str]) -> str | None:
    """A value that does not fit its key, or a class that refused to be made."""
    key = _key(text)
    refused = next(
        (line.removeprefix("- ") for line in lines if line.startswith("- ") and _is_a_reason(line[2:])), None
    )
    if refused is not None and not text.startswith("Parser key"):
        return _short(refused)
    if key is None:
        return None
    found = re.search(r"arguments are required: (\w+)", text)
    if found:
        return f"{key}.{found.group(1)} is missing; give it in a config or as --{key}.{found.group(1)}"
    found = re.search(r"Option '([\w.]+)' is not accepted", text)
    if found:
        return f"{key} has no option '{found.group(1)}'{nearest(found.group(1), _options_of_class(text))}"
    found = re.search(
        r"Multiple subclasses with name (\w+)\. Give the full class path to avoid ambiguity: ([\w., ]+)", text
    )
    if found:
        return f"{key}: several classes are called {found.group(1)}; write one of {found.group(2).rstrip('.')}"
    found = re.search(r"Expected a dot import path string: (\S+)", text)
    if found and (key in GROUPS or key in LIBRARY_GROUPS):
        return f"{key}: there is no class '{_short(found.group(1))}'{nearest(found.group(1), shipped_classes(key))}"
    expected = list(dict.fromkeys(_expected(text)))
    values = re.findall(r"(?:Got value|Given value): (?!Namespace|NestedArg)([^\s{]\S*)", text)
    for option, value in options_of_words(argv):
        if value and any(given.rstrip(".") == value or f"'{value}'" in given for given in values) and expected:
            return f"{option}={_short(value)}: expected {' or '.join(expected)}"
    if found:
        return f"{key}: there is no class '{_short(found.group(1))}'"
    value = _short(values[-1].rstrip(".")) if values else "this value"
    return f"{key}: expected {' or '.join(expected) or 'something else'}, not {value}"


def _key(text: str) -> str | None:
    """The dotted key that the message is about."""
    keys = re.findall(r"Parser key \"([\w.]+)\":", text)
    inner = next((k for k in keys[1:] if k != keys[0]), None)
    return None if not keys else keys[0] if inner is None else f"{keys[0]}.{inner}"


def _is_a_reason(line: str) -> bool:
    return not _PARSERS_OWN.match(line)


def _expected(text: str) -> Iterable[str]:
    yield from (_KINDS[name] for name in re.findall(r"Expected an? <class '([\w.]+)'>", text) if name in _KINDS)
    yield from (f"one of {choices}" for choices in re.findall(r"Expected a typing\.Literal\[(.*?)\]", text))
    if "Not a valid subclass" in text:
        yield "a class"


def _options_of_class(text: str) -> list[str]:
    """The options of the class that the message is about."""
    found = re.search(r"(?:given class_path|class_path=) ?'([\w.]+)'", text)
    return list(options_of(import_class("", found.group(1)))) if found else []


def _options() -> list[str]:
    """Options worth hinting at."""
    sections = [f"{section}.{name}" for section, names in SECTIONS.items() for name in names]
    return [*TOP_LEVEL, "config", *GROUPS, *sections, "explain", "list", "help", "print_config"]


def _short(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."
