"""Errors of the parser and of Lightning as one sentence about the arguments that a user typed."""

from __future__ import annotations

import collections.abc
import inspect
import re
import traceback
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from jsonargparse import ArgumentError, ArgumentParser
from torch import Tensor

from dfl_lightning.cli.arguments import PLAIN, SECTIONS, Settings, value_of
from dfl_lightning.cli.classes.annotations import EMPTY, accepted_by
from dfl_lightning.cli.classes.registry import CLASSES, import_object, leaves_keywords_open, parameters_of
from dfl_lightning.utils.errors import UNREACHABLE, UserError, nearest, shortened

_KINDS: dict[Any, tuple[str, str]] = {
    int: ("a whole number", "whole numbers"),
    float: ("a number", "numbers"),
    bool: ("true or false", ""),
    str: ("a text", "texts"),
    dict: ("a mapping", "mappings"),
}
_LISTS = (list, tuple, set, collections.abc.Sequence, collections.abc.Iterable)

_MAKERS = (
    *("dfl_lightning.cli.command", "dfl_lightning.module", "dfl_lightning.trainer", "lightning.pytorch.cli"),
    *("lightning.pytorch.trainer", "jsonargparse", "argparse"),
)
"""Modules whose classes are always being made when an error occurs, and are not the cause of it."""

_PARSERS_OWN = ("Expected ", "Import path ", "Does not validate", "Problem with", "Parser key", "Not a valid")
"""Beginnings of lines that the parser adds to the reason that a class gives."""

_CONNECTION = r"Connection (?:closed|reset) by peer|gloo|NCCL|ProcessGroup"
"""Pattern of torch's errors if a process cannot reach another one."""

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
        r"Cannot use `(\w+)` callback with `Trainer\(logger=False\)`",
        r"trainer.callbacks \1 needs a logger that is named, for example --trainer.logger CSVLogger "
        r"--trainer.logger.save_dir logs",
    ),
    (
        r"`(\w+)` cannot log CPU stats as `(\w+)` is not installed",
        r"trainer.callbacks \1 needs a package that is not installed; run: pip install \2",
    ),
    (
        _CONNECTION,
        UNREACHABLE,
    ),
    (
        r"class_path '(?:[\w.]+\.)?(\w+)'.*?[`'](?:python -m )?(pip install [^`]*?)[`'](?:[^'`\w]|$)",
        r"\1 needs a package that is not installed; run: \2",
    ),
    (
        r"Timer\(duration='(.*?)'\)",
        r"\1 is not a duration; trainer.max_time, and the duration of a Timer, are DD:HH:MM:SS",
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
"""Patterns of Lightning's errors that a user can cause, and our messages for them."""


def sentence_of(error: BaseException, settings: Settings | None = None) -> str:
    """Return the message of an error as one sentence.

    Args:
        error: the error that was raised.
        settings: settings of the command line, to find the option with the wrong value.

    Examples:
        >>> sentence_of(ValueError("width 3 is odd"))
        'an argument is refused: width 3 is odd'
    """
    message = _user_error_message(error)
    if message is not None:
        return message
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(" ".join(lines).split()) or type(error).__name__
    sentence = lightnings_sentence(text)
    if sentence is None and settings is not None and isinstance(error, ArgumentError):
        sentence = next(_wrong_settings(settings), None)
    if sentence is not None:
        return sentence
    cls = _refusing_class(error)
    is_refusal = isinstance(error, (ValueError, TypeError)) and not isinstance(error, ArgumentError)
    before = f"{cls}: " if cls else "an argument is refused: " if is_refusal else ""
    reasons = (line[2:] for line in lines if line.startswith("- ") and not line[2:].startswith(_PARSERS_OWN))
    return f"{before}{shortened(next(reasons, text), 300)}"


def _refusing_class(error: BaseException) -> str:
    """Return the name of the class whose constructor raised the error; empty if none did."""
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
    """Return our message for an error of Lightning; None if the error is not in the table."""
    for pattern, sentence in _LIGHTNINGS:
        match = re.search(pattern, text)
        if match:
            return match.expand(sentence)
    return None


def is_unreachable(error: BaseException) -> bool:
    """Return True if the error says that torch could not reach another process of the run."""
    return _user_error_message(error) is None and bool(re.search(_CONNECTION, str(error)))


def _user_error_message(error: BaseException) -> str | None:
    """Return the message of the first `UserError` among an error and its causes; None without one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return None


# --- which value the parser means ------------------------------------------------------------------------------------
def _wrong_settings(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each error in a config that the parser refuses: missing keys first, then wrong values."""
    config = settings.config
    needed = {"model.network": config["model"].get("network"), "data": config.get("data")}
    missing = [name for name, value in needed.items() if value is None]
    if missing:
        are = "is" if len(missing) == 1 else "are"
        yield f"{' and '.join(missing)} {are} missing; give a config or --{' and --'.join(missing)}"
    typed = {each.option.removesuffix("+"): each.value or "" for each in settings.arguments}
    for key, value in config.items():
        if key in SECTIONS:
            for option, inner in value.items():
                yield from _wrong_value(f"{key}.{option}", inner, SECTIONS[key][option].annotation, typed)
        else:
            yield from _wrong_value(key, value, PLAIN.get(key, EMPTY), typed)


def _wrong_value(where: str, value: Any, annotation: Any, typed: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each error in the classes that a value contains, and then for the value itself."""
    inside = value_of(value)
    for item in inside if isinstance(inside, list) else [inside]:
        named = isinstance(item, str) and re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", item)
        if named and (where in CLASSES or accepted_by(annotation).bases):
            item = {"class_path": item}
        if isinstance(item, dict) and "." in str(item.get("class_path")):
            yield from _wrong_class(where, item, accepted_by(annotation).bases, typed)
    if annotation is not EMPTY and not _takes(annotation, value):
        text = typed.get(where)
        wanted = " or ".join(dict.fromkeys(_wanted(annotation))) or "another kind of value"
        if text is not None and (value in (text, value_of(text)) or str(value).endswith(f".{text}")):
            remedy = f"; write [{text}]" * (wanted.startswith("a list") and " or " not in wanted and text[:1] != "[")
            yield f"{where}={shortened(text, 300)}: expected {wanted}{remedy}"
        yield f"{where}: expected {wanted}, not {shortened(str(value), 300)}"


def _wrong_class(
    where: str, spec: Mapping[str, Any], bases: tuple[type, ...], typed: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for each error of a class or its arguments."""
    try:
        made = import_object(where, spec["class_path"])
    except UserError as error:
        yield str(error)
        return
    if inspect.isclass(made) and bases and not issubclass(made, bases):
        return  # the caller reports it with the classes that the option takes
    options, given = parameters_of(made), spec.get("init_args") or {}
    for option, value in given.items():
        if option in options:
            yield from _wrong_value(f"{where}.{option}", value, options[option].annotation, typed)
        elif not leaves_keywords_open(made):
            yield f"{where} has no option '{option}'{nearest(option, options)}"
    needed = [name for name, parameter in options.items() if parameter.default is EMPTY]
    from_the_run = 1 if where in ("model.optimizer", "model.lr_scheduler") else 0
    for name in needed[from_the_run:] if inspect.isclass(made) else ():
        if name not in given:
            yield f"{where}.{name} is missing; give it in a config or as --{where}.{name}"


def _takes(annotation: Any, value: Any) -> bool:
    """Return True if the parser accepts a value for an argument of some type."""
    parser = ArgumentParser(exit_on_error=False)
    try:
        parser.add_argument("--value", type=annotation)
    except ValueError:  # the parser does not know the type, and accepts any value
        return True
    try:
        parser.parse_object({"value": value})
    except (ArgumentError, TypeError):
        return False
    return True


def _wanted(annotation: Any) -> Iterator[str]:
    """Yield phrases for the values that an argument of some type takes, in the order of the type's parts."""
    kind, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if kind in (Union, UnionType):
        for part in arguments:
            yield from _wanted(part)
    elif kind is Literal:
        yield f"one of {', '.join(map(repr, arguments))}" if len(arguments) > 1 else repr(arguments[0])
    elif kind in _KINDS:
        yield _KINDS[kind][0]
    elif kind is tuple and arguments and ... not in arguments:
        yield f"a list of {len(arguments)} values"
    elif kind in _LISTS:
        inner = _KINDS.get(arguments[0], ("", ""))[1] if arguments else ""
        yield f"a list of {inner}" if inner else "a list"
    elif kind is collections.abc.Callable:
        yield "a function"
    elif inspect.isclass(kind) and kind is not NoneType and not issubclass(kind, Tensor):
        yield f"a subclass of {kind.__name__}"
