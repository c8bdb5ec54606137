"""The packing of a run into one file that repeats it elsewhere: `dfl-export RUN --bundle run.zip`."""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import yaml

from dfl_lightning.checkpoints.io import run_of
from dfl_lightning.checkpoints.own_code import CODE, code_in
from dfl_lightning.cli.classes.registry import class_of
from dfl_lightning.cli.exports.bundle_format import (
    CONFIG,
    FILES,
    MANIFEST,
    METRICS,
    MOST_BYTES,
    MOST_MEMBERS,
    MOST_OF_A_FILE,
    SPLIT,
    LeftOut,
    Manifest,
    with_texts,
)
from dfl_lightning.utils.errors import UserError, one_line
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.shipped_files import shipped
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, read_config

INPUTS = ("topology", "graph", "file", "trace", "split", "path", "init")
"""Options whose value is always the path of an input."""

OUTPUTS = ("default_root_dir", "save_dir", "dirpath", "filename", "run_name")
"""Options whose value is the path of an output."""

NOT_FILES = {"model.init": ("common", "independent")}
"""Values of such options that are not paths."""


@dataclass
class Bundle:
    """The content of a bundle.

    Attributes:
        config: the config, with the paths of files in the bundle.
        members: content of each member, or the path of the file that has it, by name.
        left_out: inputs that are not packed.
        remarks: sentences about possible differences from the run.
    """

    config: dict[str, Any] = field(default_factory=dict)
    members: dict[str, bytes | Path] = field(default_factory=dict)
    left_out: list[LeftOut] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def modules(self) -> list[str]:
        """Names of the user's own modules whose code is packed."""
        names = sorted(name for name in self.members if name.startswith(f"{CODE}/"))
        return [".".join(Path(name).with_suffix("").parts[1:]).removesuffix(".__init__") for name in names]


def bundle(run: str | Path, to: str | Path) -> Bundle:
    """Pack everything that is needed to repeat a run into one zip file.

    These are its config, split and metrics, the code of classes that are not shipped, and the files that the config
    names: graphs, traces, tables, a split, first models. Data sets are not packed: the split has their fingerprint.

    Args:
        run: a run folder, or a checkpoint in one.
        to: the zip file to write; it must not exist.

    Returns:
        The content of the bundle, with the inputs that were left out.

    Raises:
        UserError: the run has no config, or its code is not kept; the file exists, cannot be written or would be too
            large.
    """
    folder, target = _run_folder(run), Path(to)
    if target.suffix.lower() != ".zip":
        raise UserError(f"--bundle {target}: a bundle is a zip file; write --bundle {target}.zip")
    if target.exists():
        raise UserError(f"{target} exists, and a bundle replaces no file; give another name")
    packed = collect(folder)
    summary = _summary(folder)
    digests = {name: _digest(content) for name, content in packed.members.items()}
    manifest = Manifest(
        run=folder.resolve().parent.name,
        files=digests,
        versions={str(k): str(v) for k, v in (summary.get("versions") or {}).items()},
        device=str(summary.get("device") or ""),
        left_out=tuple(packed.left_out),
        modules=tuple(packed.modules),
    )
    members = {MANIFEST: manifest.as_json().encode(), **packed.members}
    try:
        write_atomically(target, lambda file: _zip(file, members))
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror}); choose another place") from error
    return packed


def collect(folder: Path) -> Bundle:
    """Collect the content of a run's bundle.

    Args:
        folder: the run folder.

    Raises:
        UserError: a file is missing, or too large.
    """
    config, packed = read_config(folder / CONFIG), Bundle()
    files = _Files(packed, _working_folders(folder, config), (folder / CONFIG).stat().st_mtime)
    packed.config = with_texts(config, files.packed)
    packed.config.pop(CLASS_FOLDERS, None)
    if _add_code(packed, folder, config):
        packed.config[CLASS_FOLDERS] = [CODE]
    _add_remarks_on_data(packed, config)
    text = yaml.safe_dump(packed.config, sort_keys=False, allow_unicode=True)
    packed.members = {CONFIG: text.encode(), **packed.members}
    for name in (SPLIT, METRICS):
        if (folder / name).is_file():
            packed.members[name] = folder / name
    if len(packed.members) >= MOST_MEMBERS:
        raise UserError(f"{folder}: {len(packed.members)} files, and a bundle has fewer than {MOST_MEMBERS}")
    total = sum(
        content.stat().st_size if isinstance(content, Path) else len(content) for content in packed.members.values()
    )
    if total > MOST_BYTES:
        raise UserError(f"{folder}: its bundle would have {size(total)}, and at most {size(MOST_BYTES)} are packed")
    return packed


def _run_folder(run: str | Path) -> Path:
    folder = Path(run) if Path(run).is_dir() else run_of(Path(run))
    if folder is None or not folder.is_dir():
        raise UserError(f"{run}: there is no such run; give the folder of one, runs/afind/… for example")
    if not (folder / CONFIG).is_file():
        raise UserError(f"{folder} has no {CONFIG}, from which a bundle is made; give the folder of a run")
    return folder


def _working_folders(folder: Path, config: Mapping[str, Any]) -> list[Path]:
    """List the folders from which relative paths may start: the run's working folder, if it is known, and ours."""
    resolved = folder.resolve()
    root = Path((config.get("trainer") or {}).get("default_root_dir") or "runs")
    started = []
    if not root.is_absolute() and ".." not in root.parts and len(resolved.parents) > 1 + len(root.parts):
        started = [resolved.parents[1 + len(root.parts)]]
    return [base for base in started if (base / root).resolve() == resolved.parents[1]] + [Path.cwd()]


class _Files:
    """The files that a config names, which are added to a bundle.

    Args:
        bundle: the bundle.
        bases: folders from which relative paths may start.
        since: start of the run, in seconds since 1970; there is a remark on each file that was changed later.
    """

    def __init__(self, bundle: Bundle, bases: list[Path], since: float) -> None:
        self.bundle, self.bases, self._since = bundle, bases, since
        self._names: dict[Path, str] = {}

    def packed(self, place: str, text: str) -> Any:
        """Pack the file that a text of the config names, if it does, and return the text for the bundle's config."""
        option = place.rpartition(".")[2]
        if option in OUTPUTS:
            return self._output(place, text)
        if text in NOT_FILES.get(place, ()) or not text or len(text) > 4000:
            return text
        is_input = option in INPUTS
        looks_like_one = "/" in text or os.sep in text or bool(re.search(r"\.\w{1,12}$", text))
        if not is_input and not looks_like_one:
            return text
        if place == "topology" and _is_shipped(text, self.bases[-1]):
            return text
        file = next((path for base in self.bases if _exists(path := base / text)), None)
        if option == "root":
            return self._leave_out(place, None, "the folder of the data sets", instead=None)
        if file is None:
            return self._leave_out(place, text, "it was not found when the bundle was made") if is_input else text
        if file.is_dir():
            return self._leave_out(place, text, "a folder")
        if not file.is_file():
            return text
        if file.stat().st_size > MOST_OF_A_FILE:
            return self._leave_out(
                place, text, f"{size(file.stat().st_size)}; at most {size(MOST_OF_A_FILE)} are packed"
            )
        return self._topology(file) if place == "topology" else self.add(file)

    def _output(self, place: str, text: str) -> str | None:
        """Return the path of an output, or None, with a remark, if it is absolute and so of this machine only."""
        if not Path(text).is_absolute():
            return text
        self.bundle.remarks.append(f"{place} is a place of this machine, and is left out; name another with --{place}")
        return None

    def _leave_out(self, place: str, text: str | None, why: str, instead: Any = ...) -> Any:
        """List an input as not packed, and return the value for the bundle's config, `text` by default."""
        self.bundle.left_out.append(LeftOut(place, text, why))
        return text if instead is ... else instead

    def add(self, path: Path, content: bytes | None = None) -> str:
        """Add a file under its own name, in a numbered folder if that is taken, and return its name in the bundle."""
        resolved = path.resolve()
        if resolved not in self._names:
            plain = re.sub(r'[\\:*?"<>|]', "_", one_line(path.name)).strip(". ")[:150] or "file"
            folder, number = FILES, 1
            while f"{folder}/{plain}".casefold() in {name.casefold() for name in self.bundle.members}:
                number += 1
                folder = f"{FILES}/{number}"
            self._names[resolved] = f"{folder}/{plain}"
            self.bundle.members[self._names[resolved]] = resolved if content is None else content
            self.notice(path)
        return self._names[resolved]

    def notice(self, path: Path) -> None:
        """Add a remark if a file was changed after the start of the run."""
        if path.stat().st_mtime > self._since:
            self.bundle.remarks.append(f"{path} was changed after the run began; the run may have read something else")

    def _topology(self, path: Path) -> str:
        """Pack a topology file with the graphs that it names, whose paths start from its folder."""
        if path.suffix.lower() not in (".yaml", ".yml"):
            return self.add(path)
        content = read_config(path)
        name = self.add(path, b"")

        def graph(place: str, text: str) -> str:
            if place.rpartition(".")[2] != "graph":
                return text
            file = path.parent / text
            if not file.is_file() or file.stat().st_size > MOST_OF_A_FILE:
                raise UserError(f"{path}: its graph {text} is not there or too large for a bundle; put it back")
            return posixpath.relpath(self.add(file), posixpath.dirname(name))

        text = yaml.safe_dump(with_texts(content, graph), sort_keys=False, allow_unicode=True)
        self.bundle.members[name] = text.encode()
        return name


def _is_shipped(text: str, here: Path) -> bool:
    """Return True if a text is the name of a shipped topology, and not of a file in the folder `here`."""
    files, word = shipped("topologies"), Path(text)
    is_name = word.name == text and word.stem in files and word.suffix in ("", files[word.stem].suffix)
    return is_name and not (here / text).is_file()


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the text cannot be the name of a file
        return False


def _add_remarks_on_data(packed: Bundle, config: Mapping[str, Any]) -> None:
    """Add the folder of a data set to the inputs that are left out, with a remark."""
    data = config.get("data")
    path = data if isinstance(data, str) else (data or {}).get("class_path", "")
    name, left_out = path.rpartition(".")[2], {entry.place for entry in packed.left_out}
    if path.startswith("dfl_lightning.") and "prepare_data" in _methods(class_of("data", path)):
        if not left_out & {"data.root", "data.path"}:
            packed.left_out.append(LeftOut("data.root", None, "the folder of the data sets"))
        packed.remarks.append(f"the files of {name} are not packed; the bundle has the fingerprint of these data")


def _methods(cls: type) -> set[str]:
    """List the methods of a class and of its bases in this library."""
    return {name for base in cls.__mro__ if base.__module__.startswith("dfl_lightning.") for name in vars(base)}


# --- own code ---------------------------------------------------------------------------------------------------------
def _add_code(packed: Bundle, folder: Path, config: Mapping[str, Any]) -> bool:
    """Add the source that the run keeps of the user's own code, and return True if there is any.

    Raises:
        UserError: the source of a class is not kept, or cannot be imported from a file.
    """
    modules = code_in(config, str(folder / CONFIG))
    for module in modules:
        stem = f"{CODE}/{module.replace('.', '/')}"
        name = next((name for name in (f"{stem}.py", f"{stem}/__init__.py") if (folder / name).is_file()), None)
        if name is None:
            raise UserError(f"{folder} keeps no source of {module} in {CODE}/, without which it cannot be repeated")
        packed.members[name] = folder / name
    if "__main__" in {path.partition(".")[0] for path in _class_paths(config)}:
        raise UserError(
            f"{folder}: one of its classes was defined in a notebook or a script, from which a command cannot import "
            "it; put it into a file of its own, and run it again"
        )
    return bool(modules)


def _class_paths(config: Any) -> Iterator[str]:
    """Yield the import paths of all classes of a config."""
    if isinstance(config, Mapping):
        if isinstance(path := config.get("class_path"), str):
            yield path
        for value in config.values():
            yield from _class_paths(value)
    elif isinstance(config, list):
        for value in config:
            yield from _class_paths(value)


# --- write ------------------------------------------------------------------------------------------------------------
def _summary(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a killed run has no summary
        return {}
    return content if isinstance(content, dict) else {}


def _digest(content: bytes | Path) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with open(content, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _zip(file: BinaryIO, members: Mapping[str, bytes | Path]) -> None:
    """Write the archive; the same members make the same bytes."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            info = zipfile.ZipInfo(name)
            info.compress_type, info.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(info, content if isinstance(content, bytes) else content.read_bytes())
