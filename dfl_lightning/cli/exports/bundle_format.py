"""The format of a bundle: a zip file with a run's config and everything that this config names.

`bundle.json` lists the other members with their checksums, what was left out, and the versions of the run. In
`config.yaml` the paths of packed files are relative to the bundle.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from dfl_lightning.checkpoints.history import CHANGED, FORKED
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.utils.storage.files import unique_pairs
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS

FORMAT = 1
MANIFEST, CONFIG, SPLIT, METRICS = "bundle.json", "config.yaml", "split.npz", "metrics.csv"
FILES = "files"
"""The folder of a bundle with the files that its config names; its own code is in `code`, as in a run folder."""

MOST_MEMBERS = 2000
MOST_OF_A_FILE = 100 * 10**6
MOST_BYTES = 500 * 10**6
"""Limits on a bundle, checked when it is written and when it is read."""

NO_FILES = ("class_path", CLASS_FOLDERS, FORKED, CHANGED, CODE)
"""Keys of a config under which a text is never the path of an input."""


@dataclass(frozen=True)
class LeftOut:
    """An input of the run that is not in its bundle.

    Attributes:
        place: the option that names the input, such as `data.file`.
        value: value of the option; None if the bundle's config does not have the option either.
        why: the reason, as a phrase.
    """

    place: str
    value: str | None
    why: str


@dataclass(frozen=True)
class Manifest:
    """The content of `bundle.json`.

    Attributes:
        run: the name of the run.
        files: SHA-256 of each other member, by its name.
        versions: versions of the run's packages; empty if they are not known.
        device: the device of the run, such as `cpu`.
        left_out: inputs that are not packed.
        modules: the user's own modules whose source is packed.
    """

    run: str
    files: dict[str, str]
    versions: dict[str, str] = field(default_factory=dict)
    device: str = ""
    left_out: tuple[LeftOut, ...] = ()
    modules: tuple[str, ...] = ()

    def as_json(self) -> str:
        """Return the text of `bundle.json`."""
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)


def read_manifest(text: str | bytes) -> Manifest:
    """Read the text of `bundle.json`.

    Raises:
        ValueError: the text has another form or format.

    Examples:
        >>> read_manifest(Manifest("afind", {"config.yaml": "00"}).as_json()).run
        'afind'
    """
    content = json.loads(text, object_pairs_hook=unique_pairs)
    if not isinstance(content, dict) or not isinstance(content.get("format"), int):
        raise ValueError(f"{MANIFEST} has no number 'format'")
    if content["format"] != FORMAT:
        raise ValueError(f"{MANIFEST} has format {content['format']}, and this version reads {FORMAT}")
    try:
        left_out = tuple(LeftOut(**entry) for entry in content["left_out"])
        manifest = Manifest(
            run=content["run"],
            files=content["files"],
            versions=content["versions"],
            device=content["device"],
            left_out=left_out,
            modules=tuple(content["modules"]),
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{MANIFEST} is incomplete ({error})") from error
    tables = (manifest.files, manifest.versions)
    texts = [manifest.run, manifest.device, *manifest.modules]
    texts += [word for entry in left_out for word in (entry.place, entry.value or "", entry.why)]
    if not all(isinstance(table, dict) for table in tables) or not all(
        isinstance(text, str) for text in [*texts, *(word for table in tables for word in table.values())]
    ):
        raise ValueError(f"{MANIFEST} has values that are not texts")
    return manifest


def with_texts(value: Any, change: Callable[[str, str], Any], place: str = "") -> Any:
    """Return a config in which the texts that may name files are replaced.

    Args:
        value: the config, or a part of it.
        change: function of the dotted option and its text that returns the new value.
        place: dotted option of the part.

    Examples:
        >>> with_texts({"dropout": {"class_path": "Trace", "init_args": {"file": "a"}}}, lambda place, text: place)
        {'dropout': {'class_path': 'Trace', 'init_args': {'file': 'dropout.file'}}}
    """
    if isinstance(value, Mapping):
        return {
            key: inner if key in NO_FILES else with_texts(inner, change, _below(place, str(key)))
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [with_texts(inner, change, place) for inner in value]
    return change(place, value) if isinstance(value, str) else value


def _below(place: str, key: str) -> str:
    return place if key in ("init_args", "dict_kwargs") else f"{place}.{key}".lstrip(".")
