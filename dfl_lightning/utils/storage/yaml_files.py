"""Bounded reading of the YAML of configs and of the command line, and writing of YAML for the parser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from jsonargparse import get_loader

from dfl_lightning.utils.errors import UserError

CLASS_FOLDERS = "class_folders"
"""The key in a run's config for the folders of configs that contain its classes."""

WRITER: type[yaml.SafeDumper] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""The class that writes YAML: the one in C, which takes a tenth of the time, if PyYAML has it."""
_READER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # not for texts of others, see `parse`

MOST_BYTES = 2 * 10**6
_MOST_VALUES = 10**6


class DoubledKeyError(yaml.MarkedYAMLError):
    """A mapping has a key twice, so that one of the two values would be lost."""

    def __str__(self) -> str:
        return f"line {self.problem_mark.line + 1}: {self.problem}" if self.problem_mark else str(self.problem)


class UniqueKeyLoader(yaml.SafeLoader):
    """A safe loader of YAML that refuses repeated keys of a mapping, where PyYAML would silently keep the last value.

    A key next to a merge key `<<` may repeat a merged key, as this is the way to replace merged values.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Build a mapping and compare its keys by their values, so that 1 and 0x1 are the same key."""
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[Any, int] = {}
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            name = key.value if key.tag in _NOT_CONSTRUCTED else self.construct_object(key, deep=True)
            line = key.start_mark.line + 1
            if name in lines:
                shown = key.value if len(key.value) <= 40 else f"{key.value[:39]}…"
                where = "" if line == lines[name] else f", first in line {lines[name]}"
                problem = f"the key '{shown}' is there twice{where}; keep one"
                raise DoubledKeyError(problem=problem, problem_mark=key.start_mark)
            lines[name] = line
        return node


_NOT_CONSTRUCTED = ("tag:yaml.org,2002:merge", "tag:yaml.org,2002:value")


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a config file as the parser does.

    Raises:
        UserError: the file cannot be read, is not a mapping, or is too large for a config.
    """
    try:
        if Path(path).exists() and not Path(path).is_file():  # reading a pipe would wait for its writer
            raise ValueError("a folder or a pipe is not a config")
        if Path(path).stat().st_size > MOST_BYTES:
            raise ValueError(f"a config has at most {MOST_BYTES // 10**6} MB")
        content = parse(Path(path).read_text(encoding="utf-8"))
    except DoubledKeyError as error:
        raise UserError(f"{path}, {error}") from None
    except Exception as error:  # the constructors of numbers, dates and keys raise many types of errors
        where = getattr(error, "problem_mark", None)
        line = f", line {where.line + 1}" if where is not None else ""
        ours = str(error) if type(error) is ValueError else ""
        ours = ours or ("it is not UTF-8 text; save it as UTF-8" if isinstance(error, UnicodeDecodeError) else "")
        reason = getattr(error, "problem", None) or getattr(error, "strerror", None) or ours or type(error).__name__
        raise UserError(f"{path}{line}: not readable YAML ({' '.join(str(reason).split())[:160]})") from None
    if content is None:
        raise UserError(f"{path}: it is empty; a config names at least data and model")
    if not isinstance(content, dict):
        kind = type(content).__name__
        raise UserError(f"{path}: a config is a mapping of keys such as data, model, selection; this is a {kind}")
    return content


def parse(text: str) -> Any:
    """Parse a YAML text as the command-line parser does, without running code.

    Args:
        text: one YAML document.

    Raises:
        DoubledKeyError: a mapping has a key twice.
        yaml.YAMLError: the text is not YAML.
        RecursionError: the text is nested too deeply.
        ValueError: aliases unfold without end or to more values than a config has; or a number or date is not valid.
    """
    # PyYAML's own composer comes first, as deep nesting would end the process in the parser's, which is written in C.
    node = yaml.compose(text, Loader=UniqueKeyLoader)
    if node is not None:
        _count_values(node, {})
    value = get_loader("yaml")(text)
    # The parser returns the text itself for a mapping whose values are all null.
    return yaml.safe_load(text) if isinstance(node, yaml.MappingNode) and isinstance(value, str) else value


def _count_values(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Count the values of a node with its aliases unfolded; raise if there are too many.

    Args:
        node: the node.
        sizes: numbers of values of the nodes that were counted before, by id; 0 for nodes that contain this one.
    """
    if not isinstance(node, yaml.CollectionNode):
        return 1
    if id(node) in sizes:
        if not sizes[id(node)]:
            raise ValueError("an alias stands inside what it names")
        return sizes[id(node)]
    sizes[id(node)] = 0
    inner = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    sizes[id(node)] = 1 + sum(_count_values(part, sizes) for part in inner)
    if sizes[id(node)] > _MOST_VALUES:
        raise ValueError(f"more than {_MOST_VALUES} values, aliases written out")
    return sizes[id(node)]


def dump_yaml(value: Any) -> str:
    """Write plain values as YAML, with the keys of mappings in their order.

    Examples:
        >>> print(dump_yaml({"selection": {"k": 3}}), end="")
        selection:
          k: 3
    """
    return str(yaml.dump(value, Dumper=WRITER, sort_keys=False, allow_unicode=True))


def load_dumped(text: str) -> Any:
    """Read a text that `dump_yaml` has written in this process.

    Examples:
        >>> load_dumped(dump_yaml({"selection": {"k": 3}}))
        {'selection': {'k': 3}}
    """
    return yaml.load(text, Loader=_READER)


def as_yaml(value: Any) -> str:
    """Write a value as YAML on one line, which all readers of YAML read as the same value.

    Examples:
        >>> as_yaml({"class_path": "Gossip", "init_args": {"k": 3}})
        '{"class_path": "Gossip", "init_args": {"k": !!int "3"}}'
    """
    options: dict[str, Any] = {"default_flow_style": True, "default_style": '"', "sort_keys": False}
    # All values are quoted, as an unquoted one, for example 1e-3, is a text to some readers and a number to others.
    return yaml.safe_dump(value, width=2**31, allow_unicode=True, **options).strip()
