"""Reproduction: for each method a text for a shell that runs it again on any machine, and fingerprints to compare."""

from __future__ import annotations

import copy
import hashlib
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath, PureWindowsPath
from typing import TYPE_CHECKING, Any

import numpy as np

from dfl_lightning.bench.report.methods import Method, seed_of, tested_on
from dfl_lightning.bench.report.page.templates.filling import fill
from dfl_lightning.checkpoints.history import CHANGED, FORKED, NOT_MAKEABLE, UNKNOWN_SETTINGS, config_text
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS
from dfl_lightning.utils.words import enumerated

if TYPE_CHECKING:
    from markupsafe import Markup

_END = "END_OF_FILE"
_SHOWN = 12
"""Digits of a fingerprint that the page shows."""

_APART = 3
"""Largest number of seeds with a fingerprint each."""


@dataclass(frozen=True)
class StudyFile:
    """The file of a study.

    Attributes:
        name: its name, without a folder.
        text: its content.
        options: options of `dfl-study run`, as a shell reads them.
    """

    name: str
    text: str
    options: str = ""


@dataclass(frozen=True)
class Repeat:
    """A method, to be run again.

    Attributes:
        name: full name of the method.
        text: commands for a shell; empty if no config repeats the runs.
        needs: sentences about files and code that are needed too, or why no config repeats the runs.
        seeds: seeds of the runs.
        split: fingerprint of who has which samples, if it is the same for all seeds; otherwise by seed.
        tested: the same of the test data.
    """

    name: str
    text: str
    needs: list[str] = field(default_factory=list)
    seeds: str = ""
    split: str = ""
    tested: str = ""


def repeats(methods: Sequence[Method]) -> list[Repeat]:
    """Describe how each method is run again.

    Args:
        methods: methods of the page.
    """
    taken: set[str] = set()
    return [_repeat(method, taken) for method in methods]


def repeat_section(found: Sequence[Repeat], study: StudyFile | None) -> Markup:
    """Write the table of methods with their buttons, and the study's file.

    Args:
        found: methods, to be run again.
        study: file of the study, if the page is one of a study.
    """
    return fill("repeating.html", rows=found, study=study, can_all=any(row.text for row in found))


def texts(found: Sequence[Repeat], study: StudyFile | None) -> dict[str, Any]:
    """Return what the buttons copy.

    Args:
        found: methods, to be run again.
        study: file of the study, if the page is one of a study.
    """
    of_study = (
        ""
        if study is None
        else f"{_file(study.name, study.text)}dfl-study run {shlex.quote(study.name)}{study.options}\n"
    )
    return {"methods": [row.text for row in found], "study": of_study}


def split_fingerprint(split: Mapping[str, np.ndarray]) -> str:
    """Hash all arrays of a split: samples, ground-truth clusters, rotations, adversaries; empty without a split.

    Args:
        split: arrays of the run's split file.
    """
    if not split:
        return ""
    digest = hashlib.sha256()
    for name, array in sorted(split.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _repeat(method: Method, taken: set[str]) -> Repeat:
    """Describe how a method is run again.

    Args:
        method: the method.
        taken: names of files that other methods have; this method's are added.
    """
    seeds = ", ".join("–" if seed is None else str(seed) for seed in method.seeds)
    about = {
        "seeds": seeds,
        "split": _by_seed(method.runs, [split_fingerprint(run.split) for run in method.runs]),
        "tested": _by_seed(method.runs, [tested_on(run) for run in method.runs]),
    }
    reason = next((reason for run in method.runs if (reason := _not_repeatable(run))), "")
    if reason:
        return Repeat(method.full_name, "", [reason], **about)
    files: dict[str, str] = {}  # the names of files by their content
    lines, needs = [], []
    for run in method.runs:
        config = _portable(run.config)
        needs += _needs(run.config, config)
        config.pop("seed_everything", None)
        content = config_text(config)
        if content not in files:
            files[content] = _file_name(method.full_name, taken)
        lines.append(f"dfl-fit --config {files[content]} --seed_everything {seed_of(run)}\n")
    text = "".join(_file(name, content) for content, name in files.items()) + "".join(lines)
    return Repeat(method.full_name, text, list(dict.fromkeys(needs)), **about)


def _not_repeatable(run: Run) -> str:
    """Return the reason why no config repeats a run; empty if its config does."""
    if not run.config:
        return "started from Python, without a config"
    if any(run.config.get(key) for key in (UNKNOWN_SETTINGS, NOT_MAKEABLE)):
        return "started from Python, with objects that no config makes"
    if run.config.get(FORKED):
        return "forked from a checkpoint, which is needed too"
    if run.config.get(CHANGED):
        return "settings were changed when a run was resumed"
    return ""


def _portable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Copy a config without notes about its run and without folders of its machine."""
    copied = copy.deepcopy({key: value for key, value in config.items() if key not in (CODE, CLASS_FOLDERS)})
    if isinstance(copied.get("trainer"), dict):
        copied["trainer"].pop("default_root_dir", None)
    data = copied.get("data")
    if isinstance(data, dict) and isinstance(data.get("init_args"), dict):
        data["init_args"].pop("root", None)  # the data sets lie in DFL_DATA_ROOT
    return copied


def _needs(config: Mapping[str, Any], portable: Mapping[str, Any]) -> list[str]:
    """Name files and modules that a config needs in addition to the library."""
    needs = [f"the module {enumerated(sorted(config[CODE]))}"] if config.get(CODE) else []
    return [*needs, *(f"the file {path} (change {name})" for name, path in _paths(portable, ""))]


def _paths(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield the settings that are absolute paths."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _paths(inner, f"{name}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _paths(inner, name)
    elif isinstance(value, str) and (PurePath(value).is_absolute() or PureWindowsPath(value).is_absolute()):
        yield name.replace(".init_args", ""), value


def _by_seed(runs: Sequence[Run], hashes: Sequence[str]) -> str:
    """Write a fingerprint; if seeds differ, one for each, or of many the fingerprint of all together."""
    if len(set(hashes)) == 1:
        return hashes[0][:_SHOWN] or "–"
    if len(hashes) > _APART:
        together = hashlib.sha256("\n".join(hashes).encode()).hexdigest()
        return f"{together[:_SHOWN]} ({len(hashes)} seeds together)"
    return ", ".join(f"{found[:_SHOWN] or '–'} (seed {seed_of(run)})" for run, found in zip(runs, hashes, strict=True))


def _file_name(method: str, taken: set[str]) -> str:
    """Return a name for the config of a method that is safe in a shell, and that no other file has."""
    stem = re.sub(r"[^A-Za-z0-9.]+", "-", method).strip("-.").lower()[:60] or "method"
    names = (f"{stem}{f'-{number}' if number else ''}.yaml" for number in range(len(taken) + 1))
    name = next(name for name in names if name not in taken)
    taken.add(name)
    return name


def _file(name: str, content: str) -> str:
    """Write the command that writes a file, in which a shell changes nothing."""
    end, lines = _END, set(content.splitlines())
    while end in lines:
        end += "_"
    return f"cat > {shlex.quote(name)} <<'{end}'\n{content.rstrip(chr(10))}\n{end}\n"
