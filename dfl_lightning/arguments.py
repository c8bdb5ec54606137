"""The words of a command line before they are parsed: shipped configs by name, class names, one-sentence errors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from dfl_lightning.errors import UserError, nearest
from dfl_lightning.registry import GROUPS, check_class, check_option, shipped_classes
from dfl_lightning.resources import find

DEFAULT_CLASSES = {"selection": "Gossip", "aggregation": "Uniform", "data.partition": "IID"}
"""What a group is where a config names nothing."""

TOP_LEVEL = ("seed_everything", "trainer", "model", "topology", "ckpt_path", "config", *GROUPS)


def take_flag(argv: list[str], flag: str) -> tuple[list[str], bool]:
    """The words without a flag, and whether it was among them."""
    return [word for word in argv if word != flag], flag in argv


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
        raise UserError("--config needs a file or the name of a shipped config; --list names them")
    return words, paths


def _config(name: str) -> str:
    """A config's path; `configs/NAME.yaml` is understood away from a checkout too."""
    path = Path(name)
    if not path.is_file() and path.parent == Path("configs"):
        return str(find("configs", path.name))
    return str(find("configs", name))


def check_names(argv: list[str], configs: list[str]) -> None:
    """Refuse keys, class names and options that do not exist, with the choices and the nearest one.

    Raises:
        UserError: a malformed config, an unknown key, class or option, a class of another family.
    """
    chosen: dict[str, str] = {}  # the class of each group, as far as the words have been read
    for path in configs:
        content = _read(path)
        for key in content:
            if key not in TOP_LEVEL:
                known = [k for k in TOP_LEVEL if "." not in k]
                raise UserError(f"{path}: unknown key '{key}'{nearest(str(key), known)} (keys: {', '.join(known)})")
        for group in GROUPS:
            value = _at(content, group)
            for item in value if isinstance(value, list) else [value]:
                name = item.get("class_path") if isinstance(item, dict) else item
                if isinstance(name, str):
                    check_class(group, name)
                    chosen[group] = name
                    options = item.get("init_args") if isinstance(item, dict) else None
                    for option in options if isinstance(options, dict) else ():
                        check_option(group, name, str(option))
    for option, value in _options_of_words(argv):
        group, _, rest = option.rpartition(".")
        if option.removesuffix(".class_path").removesuffix("+") in GROUPS:
            group = option.removesuffix(".class_path").removesuffix("+")
            if re.fullmatch(r"[A-Za-z_][\w.]*", value) and value not in ("null", "true", "false"):
                check_class(group, value)
                chosen[group] = value
        elif group in GROUPS and rest not in ("help", "class_path", "init_args"):
            name = chosen.get(group) or DEFAULT_CLASSES.get(group)
            if name is None:
                choices = ", ".join(shipped_classes(group))
                raise UserError(f"--{option}: no {group} is chosen; name one with --{group} ({choices})")
            check_option(group, name, rest)


def _options_of_words(argv: list[str]) -> Iterator[tuple[str, str]]:
    """Options without dashes and `init_args`, with their values."""
    for word, following in zip(argv, [*argv[1:], ""], strict=True):
        if word.startswith("--"):
            option, equals, value = word.removeprefix("--").partition("=")
            yield option.replace(".init_args.", "."), value if equals else following


def dropped_options(configs: list[str], resolved: dict[str, Any]) -> list[str]:
    """Options of the configs that are gone because another class was chosen on the command line.

    Args:
        configs: paths.
        resolved: the configuration as it runs.

    Returns:
        Dotted names such as `selection.nu`.
    """
    return [name for path in configs for name in _gone(_read(path), resolved, ())]


def _gone(asked: Any, got: Any, where: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(asked, dict) or not isinstance(got, dict):
        return
    for key, value in asked.items():
        if key == "init_args" and isinstance(value, dict):
            kept = got.get("init_args") or {}
            for option, inner in value.items():
                if option not in kept:
                    yield ".".join((*where, option))
                else:
                    yield from _gone(inner, kept[option], (*where, option))
        elif key in got:
            yield from _gone(value, got[key], (*where, key))


def _read(path: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, OSError, RecursionError, ValueError) as error:
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        raise UserError(f"{path}{line}: not readable YAML ({getattr(error, 'problem', None) or type(error).__name__})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path}: a config is a mapping of keys such as data, model, selection; this is a {type(content).__name__}")
    return content


def _at(content: Any, dotted: str) -> Any:
    """A group's value in a config, also below `init_args`."""
    for part in dotted.split("."):
        if isinstance(content, dict) and part not in content and isinstance(content.get("init_args"), dict):
            content = content["init_args"]
        content = content.get(part) if isinstance(content, dict) else None
    return content


def sentence_of(error: BaseException, argv: Sequence[str] = ()) -> str:
    """An error's message as one sentence: jsonargparse's speak of parsers and validators over many lines.

    Args:
        error: what was raised.
        argv: the command line's words, to name the option that a refused value was given for.
    """
    cause: BaseException | None = error
    while cause is not None:  # a class's own refusal, raised while it was made
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    text = re.sub(r"\s+", " ", str(error)).strip() or type(error).__name__
    unknown = re.search(r"unrecognized arguments: --([\w.]+)", text, re.IGNORECASE)
    if unknown:
        return f"there is no option --{unknown.group(1)}{nearest(unknown.group(1), _options())}"
    missing = re.search(r"arguments are required: (?:\w+\.)?([\w.]+)", text)
    if missing:
        return f"{missing.group(1)} is missing; give it in a config or as --{missing.group(1)}"
    key = re.match(r"Parser key \"([\w.]+)\":", text)
    expected = [_KINDS[n] for n in re.findall(r"Expected an? <class '([\w.]+)'>", text) if n in _KINDS]
    expected += [f"one of {choices}" for choices in re.findall(r"Expected a typing\.Literal\[(.*?)\]", text)]
    values = [f"{value}" for value in re.findall(r"(?:Got value|Given value): ([^\s{]\S*)", text)]
    for option, value in _options_of_words(list(argv)):
        if value and any(given.rstrip(".") == value or f"'{value}'" in given for given in values):
            return f"{option}={value}: expected {' or '.join(dict.fromkeys(expected)) or 'something else'}"
    importable = re.search(r"Expected a dot import path string: (\w+)", text)
    if key and importable:
        return f"{key.group(1)}: there is no class '{importable.group(1)}'"
    if key and expected and values:
        return f"{key.group(1)}: expected {expected[0]}, not {values[0].rstrip('.')}"
    return text


_KINDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text", "list": "a list"}


def _options() -> list[str]:
    """Options worth hinting at."""
    from inspect import signature

    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer

    found = [key for key in TOP_LEVEL]
    found += [f"model.{name}" for name in signature(DFLModule).parameters]
    found += [f"trainer.{name}" for name in (*signature(DFLTrainer).parameters, *signature(DFLTrainer.__mro__[1]).parameters)]
    return [*found, "explain", "list", "help", "fork", "print_config"]
