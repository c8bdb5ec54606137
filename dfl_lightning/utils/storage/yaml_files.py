"""The YAML of configs and of the command line: read within bounds, and written back for the parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from dfl_lightning.utils.errors import UserError

CLASS_FOLDERS = "class_folders"
"""The key under which a run keeps the folders of configs that its classes were found in."""

MOST_BYTES = 2 * 10**6
_MOST_VALUES = 10**6


class DoubledKeyError(yaml.MarkedYAMLError):
    """A mapping has a key twice; of its two values one would be lost."""

    def __str__(self) -> str:
        return f"line {self.problem_mark.line + 1}: {self.problem}" if self.problem_mark else str(self.problem)


class UniqueKeyLoader(yaml.SafeLoader):
    """Safe YAML that refuses a key written twice in one mapping, where PyYAML keeps the last value in silence.

    A key beside a merge key `<<` may repeat what is merged: that is how merged values are replaced.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """A mapping, whose keys are compared by what they mean: 1 and 0x1 are one key."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = key.value if key.tag in _NOT_CONSTRUCTED else self.construct_object(key, deep=True)
            line = key.start_mark.line + 1
            if name in lines:
                word = key.value if len(key.value) <= 40 else f"{key.value[:39]}…"
                where = "" if line == lines[name] else f", first in line {lines[name]}"
                problem = f"the key '{word}' is there twice{where}; keep one"
                raise DoubledKeyError(problem=problem, problem_mark=key.start_mark)
            lines[name] = line
        return node


_NOT_CONSTRUCTED = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


def read_config(path: str | Path) -> dict[str, Any]:
    """A config file's content, as the parser reads it.

    Raises:
        UserError: it cannot be read, is no mapping, or is of no config's size.
    """
    try:
        if Path(path).exists() and not Path(path).is_file():  # a pipe would be waited for
            raise ValueError("a folder or a pipe is no config")
        if Path(path).stat().st_size > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES // 10**6} MB are no config")
        content = parse(Path(path).read_text(encoding="utf-8"))
    except DoubledKeyError as error:
        raise UserError(f"{path}, {error}") from None
    except Exception as error:  # the constructors of numbers, dates and keys raise what they like
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        own = str(error) if type(error) is ValueError else ""
        own = own or ("it is not UTF-8 text; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "")
        reason = getattr(error, "problem", None) or getattr(error, "strerror", None) or own or type(error).__name__
        raise UserError(f"{path}{line}: not readable YAML ({' '.join(str(reason).split())[:160]})") from None
    if content is None:
        raise UserError(f"{path}: it is empty; a config names at least data and model")
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"{path}: a config is a mapping of keys such as data, model, selection; this is a {kind}")
    return content


def parse(text: str) -> Any:
    """What a YAML text means to the parser; runs no code.

    Args:
        text: of one document.

    Raises:
        DoubledKeyError: a key is there twice in a mapping.
        yaml.YAMLError: it is no YAML.
        RecursionError: it is nested too deep.
        ValueError: its aliases unfold without end or to more values than any config has; or no such number.
    """
    # PyYAML's own composer comes first: the parser's is written in C, where deep nesting ends the process
    node = yaml.compose(text, Loader=UniqueKeyLoader)
    if node is not None:
        _unfolded(node, {})
    value = get_loader("yaml")(text)
    # the parser gives back the text of a mapping whose values are all null
    return yaml.safe_load(text) if isinstance(node, yaml.MappingNode) and isinstance(value, str) else value


def _unfolded(node: yaml.Node, sizes: dict[int, int]) -> int:
    """How many values a node has with its aliases written out."""
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("an alias stands inside what it names")
        return sizes[id(node)]
    sizes[id(node)] = 0
    inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    sizes[id(node)] = 1 + sum(_unfolded(part, sizes) for part in inner)
    if sizes[id(node)] > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES} values, aliases written out")
    return sizes[id(node)]


def as_yaml(value: Any) -> str:
    """A value as a word of YAML on one line that is read back as just this value.

    Examples:
        >>> as_yaml({"class_path": "Gossip", "init_args": {"k": 3}})
        '{"class_path": "Gossip", "init_args": {"k": !!int "3"}}'
    """
    options: dict[str, Any] = {"default_flow_style": True, "default_style": '"', "sort_keys": False}
    # quoted everywhere: what is plain text to one reader of YAML, 1e-3 for example, is a number to another
    return yaml.safe_dump(value, width=2**31, allow_unicode=True, **options).strip()
