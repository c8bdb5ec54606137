"""The reader of bundles: they are checked, unpacked into a new folder, and compared with this machine.

The file may come from a stranger. All names and sizes are checked before a file is written, and only a new folder is
written: an existing file is never changed. Running the config of a bundle also runs the code in it.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dfl_lightning
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.cli.exports.bundle_format import (
    CONFIG,
    FILES,
    MANIFEST,
    METRICS,
    MOST_BYTES,
    MOST_MEMBERS,
    MOST_OF_A_FILE,
    SPLIT,
    Manifest,
    read_manifest,
    with_texts,
)
from dfl_lightning.utils.errors import UserError, reason
from dfl_lightning.utils.memory import size
from dfl_lightning.utils.storage.checksums import check_directory
from dfl_lightning.utils.storage.files import read_bounded
from dfl_lightning.utils.storage.yaml_files import read_config

_BLOCK = 2**20
_MANIFEST_BYTES = 10**6
_SINGLE = (MANIFEST, CONFIG, SPLIT, METRICS)
_LONGEST = 200
_MODULE = re.compile(rf"{CODE}(/[A-Za-z_]\w*)+\.py", re.ASCII)


def config_in(path: Path) -> tuple[Path, dict[str, Any]]:
    """Read a config, or the config of a bundle.

    A bundle is unpacked first, into a folder of its name in the working folder. The paths of packed files in its config
    are completed, so that they are valid in any working folder.

    Args:
        path: path of a config or of a bundle.

    Returns:
        The path of the config, and its content.

    Raises:
        UserError: it cannot be read, or the folder exists with other content.
    """
    if path.suffix.lower() == ".zip":
        path = unpack(path) / CONFIG
    content = read_config(path)
    manifest = manifest_of(path)
    if manifest is None:
        return path, content
    packed = {name for name in manifest.files if name.startswith(f"{FILES}/")}
    placed = with_texts(content, lambda _, text: str(path.parent / text) if text in packed else text)
    return path, placed


def manifest_of(config: str | Path) -> Manifest | None:
    """Read the manifest next to the config of an unpacked bundle; return None for any other config.

    Raises:
        UserError: the manifest cannot be read.
    """
    file = Path(config).with_name(MANIFEST)
    if Path(config).name != CONFIG or not file.is_file():
        return None
    try:
        return read_manifest(read_bounded(file, _MANIFEST_BYTES))
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: not readable ({reason(error)}); unpack the bundle again") from error


# --- unpack -----------------------------------------------------------------------------------------------------------
def unpack(file: Path) -> Path:
    """Unpack a bundle into a new folder of its name, unless it is unpacked there already.

    Args:
        file: the bundle.

    Returns:
        The folder, relative to the working folder.

    Raises:
        UserError: the file is not a valid bundle, or the folder exists with other content.
    """
    folder = Path(file.stem.strip(". ") or "bundle")
    try:
        with zipfile.ZipFile(file) as archive:
            check_directory(file, archive)
            manifest = _checked(archive)
            if folder.exists() or folder.is_symlink():
                _require_same(folder, file, archive, manifest)
                return folder
            _write(archive, manifest, folder, file)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{file}: it cannot be unpacked into {folder} ({error.strerror or error})") from error
    except Exception as error:  # an archive can be damaged in many ways
        raise UserError(f"{file} is not a bundle of dfl-export --bundle ({reason(error)}); ask for another") from error
    return folder


def _checked(archive: zipfile.ZipFile) -> Manifest:
    """Check names, kinds and sizes of all members of an archive, and then read its manifest.

    Raises:
        ValueError: a member is not allowed, or the manifest and the members differ.
    """
    members = archive.infolist()
    if len(members) > MOST_MEMBERS:
        raise ValueError(f"it has {len(members)} members, and at most {MOST_MEMBERS} are read")
    for member in members:
        check_name(member.filename)
        kind = stat.S_IFMT(member.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or member.flag_bits & 1:
            raise ValueError(f"{_shown(member.filename)} is a link, or encrypted")
        if member.file_size > MOST_OF_A_FILE:
            raise ValueError(f"{_shown(member.filename)} would have {size(member.file_size)}")
    _check_no_clashes([member.filename for member in members])
    total = sum(member.file_size for member in members)
    if total > MOST_BYTES:
        raise ValueError(f"it would unpack to {size(total)}, and at most {size(MOST_BYTES)} are unpacked")
    by_name = {member.filename: member for member in members}
    if MANIFEST not in by_name or CONFIG not in by_name:
        raise ValueError(f"it has no {MANIFEST if MANIFEST not in by_name else CONFIG}")
    if by_name[MANIFEST].file_size > _MANIFEST_BYTES:
        raise ValueError(f"its {MANIFEST} is too large")
    manifest = read_manifest(archive.read(MANIFEST))
    if {MANIFEST, *manifest.files} != set(by_name):
        odd = sorted({MANIFEST, *manifest.files} ^ set(by_name))[0]
        raise ValueError(f"{_shown(odd)} is in its list and not in it, or the other way round")
    return manifest


def check_name(name: str) -> None:
    """Check that the name of a member stays inside the folder, and is one that a bundle can have.

    Raises:
        ValueError: it does not; the message has the name.

    Examples:
        >>> check_name("files/graph.graphml")
        >>> check_name("files/../../graph.graphml")
        Traceback (most recent call last):
        ValueError: the name 'files/../../graph.graphml' does not belong into a bundle
    """
    parts = name.split("/")
    inside = all(
        part not in ("", ".", "..")
        and part.isprintable()
        and not set(part) & set('\\:*?"<>|')
        and part[-1] not in ". "
        and len(part.encode()) <= _LONGEST
        for part in parts
    )
    is_allowed = name in _SINGLE or (parts[0] == FILES and len(parts) > 1) or _MODULE.fullmatch(name) is not None
    if not inside or not is_allowed or len(parts) > 20:
        raise ValueError(f"the name {_shown(name)} does not belong into a bundle")


def _check_no_clashes(names: list[str]) -> None:
    """Raise if two names are equal without regard to case, or if one is both a file and a folder."""
    seen: set[str] = set()
    for name in names:
        if name.casefold() in seen:
            raise ValueError(f"{_shown(name)} is in it twice")
        seen.add(name.casefold())
    folders = {"/".join(name.split("/")[:depth]) for name in seen for depth in range(1, name.count("/") + 1)}
    if folders & seen:
        raise ValueError(f"{_shown(sorted(folders & seen)[0])} is a file and a folder")


def _write(archive: zipfile.ZipFile, manifest: Manifest, folder: Path, file: Path) -> None:
    """Write all members under a temporary name, compare them with their checksums, and rename the folder."""
    temporary = Path(f".{folder}.{os.getpid()}.tmp")
    try:
        temporary.mkdir()
        for name in (MANIFEST, *manifest.files):
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(path, "xb") as target:
                digest = hashlib.sha256()
                for block in _blocks(archive, name):
                    digest.update(block)
                    target.write(block)
            if name != MANIFEST and digest.hexdigest() != manifest.files[name]:
                raise ValueError(f"{name} is not what was packed")
        try:
            temporary.rename(folder)
        except OSError:  # another process was faster
            if not folder.exists():
                raise
            _require_same(folder, file, archive, manifest)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _blocks(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    with archive.open(name) as member:
        while block := member.read(_BLOCK):
            yield block


def _require_same(folder: Path, file: Path, archive: zipfile.ZipFile, manifest: Manifest) -> None:
    """Raise if an existing folder lacks a file of the bundle, or has another one; additional files are allowed."""
    wanted = {**manifest.files, MANIFEST: hashlib.sha256(archive.read(MANIFEST)).hexdigest()}
    for name, digest in wanted.items():
        path = folder / name
        if not path.is_file() or path.is_symlink() or _digest(path) != digest:
            remedy = f"move it away, or run what is in it with --config {folder / CONFIG}"
            if not (folder / CONFIG).is_file():
                remedy = "rename the bundle, or work in another folder"
            raise UserError(f"{file} unpacks into {folder}, which exists and has another {name}; {remedy}")


def _digest(file: Path) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _shown(name: str) -> str:
    return repr(name if len(name) <= 80 else f"{name[:79]}…")


# --- compare ----------------------------------------------------------------------------------------------------------
def require_inputs(config: str | Path, given: Iterable[str]) -> None:
    """Raise if inputs are missing that were left out of a bundle.

    Args:
        config: path of the unpacked config.
        given: dotted options of the command line, which replace those of the config.

    Raises:
        UserError: inputs are missing; the message has the options that name them.
    """
    manifest = manifest_of(config)
    if manifest is None:
        return
    named = set(given)
    lacking = [
        entry
        for entry in manifest.left_out
        if entry.value is not None
        and not Path(entry.value).exists()
        and not any(option == entry.place or entry.place.startswith(f"{option}.") for option in named)
    ]
    if lacking:
        missing = ", ".join(f"{entry.place}={entry.value} ({entry.why})" for entry in lacking)
        options = " ".join(f"--{entry.place} PLACE" for entry in lacking)
        raise UserError(f"{Path(config).parent}: the bundle does not hold {missing}; say where it is here: {options}")


def require_code(config: str | Path) -> None:
    """Raise if Python would import another module instead of one of a bundle.

    Args:
        config: path of the unpacked config.

    Raises:
        UserError: it would; the message names both files.
    """
    manifest = manifest_of(config)
    for module in () if manifest is None else manifest.modules:
        relative = Path(*module.split("."))
        packed = next(
            (
                place
                for name in (relative.with_suffix(".py"), relative / "__init__.py")
                if (place := Path(config).parent / CODE / name).is_file()
            ),
            None,
        )
        imported = _imported_from(module)
        if packed is not None and imported is not None and imported.read_bytes() != packed.read_bytes():
            raise UserError(
                f"{module} would be imported from {imported}, which is not the code of the bundle, {packed}; work in "
                "another folder, or rename that file"
            )


def _imported_from(module: str) -> Path | None:
    """Return the file from which Python would import a module, without importing it; None if it is not found."""
    loaded = sys.modules.get(module)
    if loaded is not None:
        file = getattr(loaded, "__file__", None)
        return Path(file) if file else None
    if "." not in module:
        spec = find_spec(module)
        return Path(spec.origin) if spec is not None and spec.has_location and spec.origin else None
    relative = Path(*module.split("."))
    places = (Path(place or ".") / name for place in sys.path for name in (relative, relative / "__init__"))
    return next((file for place in places if (file := place.with_suffix(".py")).is_file()), None)


def remarks_on_bundles(configs: Iterable[tuple[str, Mapping[str, Any]]], device: str) -> list[str]:
    """Return remarks on a bundle's run before it is repeated: the code that it executes, and versions that differ.

    Args:
        configs: paths and contents of the configs.
        device: the device of this run.
    """
    remarks = []
    for path, _ in configs:
        manifest = manifest_of(path)
        if manifest is None:
            continue
        if manifest.modules:
            what = ", ".join(manifest.modules)
            remarks.append(f"{Path(path).parent} is a bundle with code of its own, which this run executes: {what}")
        other = [
            f"{name} {theirs} (here {ours})"
            for name, theirs in manifest.versions.items()
            if (ours := _version(name)) != theirs
        ]
        if manifest.device and manifest.device.partition(":")[0] != device.partition(":")[0]:
            other.append(f"the device {manifest.device} (here {device})")
        if other:
            remarks.append(f"the bundle's run had {', '.join(other)}: its numbers may not be repeated bit for bit")
    return remarks


def _version(name: str) -> str:
    if name == "python":
        return platform.python_version()
    if name == "dfl_lightning":
        return dfl_lightning.__version__
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"
