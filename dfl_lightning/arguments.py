"""The words of a command line before they are parsed: shipped configs by name, class names, one-sentence errors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from dfl_lightning.errors import UserError, nearest
from dfl_lightning.registry import GROUPS, check_class
from dfl_lightning.resources import find

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
    """Refuse class names and top-level keys that do not exist, with the choices and the nearest one.

    Raises:
        UserError: a malformed config, an unknown key or class, a class of another family.
    """
    for path in configs:
        content = _read(path)
        for key in content:
            if key not in TOP_LEVEL:
                known = [k for k in TOP_LEVEL if "." not in k]
                raise UserError(f"{path}: unknown key '{key}'{nearest(str(key), known)} (keys: {', '.join(known)})")
        for group in GROUPS:
            for name in _class_names(_at(content, group)):
                check_class(group, name)
    for position, word in enumerate(argv):
        option, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--"):
            continue
        for suffix in ("", ".class_path", "+"):
            group = option.removesuffix(suffix) if suffix and option.endswith(suffix) else option
            if group in GROUPS and (suffix == "" or option != group):
                text = value if equals else (argv[position + 1] if position + 1 < len(argv) else "")
                if re.fullmatch(r"[A-Za-z_][\w.]*", text) and text not in ("null", "true", "false"):
                    check_class(group, text)


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


def _class_names(value: Any) -> Iterator[str]:
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict):
            item = item.get("class_path")
        if isinstance(item, str):
            yield item


def sentence_of(error: BaseException) -> str:
    """An error's message as one sentence: jsonargparse's speak of parsers and validators over many lines."""
    cause: BaseException | None = error
    while cause is not None:  # a class's own refusal, raised while it was made
        if isinstance(cause, UserError):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = " ".join(lines) or type(error).__name__
    unknown = re.search(r"unrecognized arguments: (--[\w.]+)", text, re.IGNORECASE)
    if unknown:
        word = unknown.group(1).removeprefix("--")
        return f"there is no option --{word}{nearest(word, _options())}"
    for noise in (r"Parser key \"([\w.]+)\":", r"Problem with given class_path '[\w.]+':", r"Failed validation:", r"Validation failed:"):
        text = re.sub(noise, lambda m: f"{m.group(1)}:" if m.groups() else "", text)
    return re.sub(r"\s+", " ", text).strip()


def _options() -> list[str]:
    """Options worth hinting at."""
    from inspect import signature

    from dfl_lightning.module import DFLModule
    from dfl_lightning.trainer import DFLTrainer

    found = [key for key in TOP_LEVEL]
    found += [f"model.{name}" for name in signature(DFLModule).parameters]
    found += [f"trainer.{name}" for name in (*signature(DFLTrainer).parameters, *signature(DFLTrainer.__mro__[1]).parameters)]
    return [*found, "explain", "list", "help", "fork", "print_config"]
