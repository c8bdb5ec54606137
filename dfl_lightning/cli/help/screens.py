"""The screens of `--help`, `--list` and `--version`, which need neither torch nor Lightning and so come at once."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import dfl_lightning
from dfl_lightning.cli.classes.class_names import class_names
from dfl_lightning.cli.keys import GROUPS, KEYS
from dfl_lightning.utils.storage.shipped_files import shipped


def page_without_torch(command: str, argv: Sequence[str]) -> str | None:
    """Return the text of `--help`, `--list` or `--version`; None if none of them is among the arguments.

    Args:
        command: `fit`, `validate` or `test`.
        argv: the arguments of the command.
    """
    if "--help" in argv or "-h" in argv:
        return help_page(command)
    if "--list" in argv:
        return list_page()
    return version_line() if "--version" in argv else None


_PAGES = (
    "  --report              make a page about the run when it is over",
    "  --live                make it while the run lasts, too: a browser follows",
)


def help_page(command: str) -> str:
    """Return the text of `--help` for a command: its groups, options and examples."""
    does = {"fit": "train clients", "validate": "evaluate a run", "test": "evaluate a run"}[command]
    what = "--config CONFIG" if command == "fit" else "RUN"
    lines = [
        f"dfl-{command} {what} [--GROUP Class] [--GROUP.option value] …  {does}",
        "",
        "groups, as keys of a config and as options; a later one wins:",
        *(f"  --{name:14}{key.about}" for name, key in KEYS.items() if name != "seed_everything"),
        "",
        f"  --seed_everything N   {KEYS['seed_everything'].about}",
        "  --ckpt_path RUN       continue a run or checkpoint; --fork: in a new folder"
        if command == "fit"
        else "  --ckpt_path FILE      another checkpoint than the run's last one",
        *(_PAGES if command == "fit" else []),
        "  --explain             describe the run, but do not start it",
        "  --print_config        the resolved config",
        "  --list                configs, topologies, policies, data sets, networks",
        "  --GROUP.help          classes of a group; options of trainer or model",
        "  --GROUP.help Class    the options of a class, as in --selection.help AFIND",
        "  --help_all            every option, as the parser lists them",
        "  --version             of this library, torch and Lightning",
        "",
        "examples:",
        "  dfl-fit --config afind" if command == "fit" else f"  dfl-{command} runs/afind/…",
    ]
    if command == "fit":
        lines.append("  dfl-fit --config afind --selection Gossip --selection.k 10 --topology ring")
    return "\n".join(lines)


def list_page() -> str:
    """Return the text of `--list`: all shipped configs, topologies and classes, a line each."""
    lines = []
    for kind in ("configs", "topologies"):
        lines.append(f"{kind}:")
        lines += [f"  {name:21}{_first_comment(path)}" for name, path in shipped(kind).items()]
    for group, base in GROUPS.items():
        lines.append(f"{group}:")
        lines += [f"  {name:21}{about}" for name, about in class_names(base).items()]
    return "\n".join(lines)


def version_line() -> str:
    """Return the versions of this library, of torch, Lightning and Python."""
    packages = [f"{name} {version(name)}" for name in ("torch", "lightning")]
    return (
        f"dfl_lightning {dfl_lightning.__version__} ({', '.join([*packages, f'Python {platform.python_version()}'])})"
    )


def _first_comment(path: Path) -> str:
    first = path.read_text(encoding="utf-8").splitlines()[0] if path.suffix == ".yaml" else ""
    return first.removeprefix("#").strip() if first.startswith("#") else f"an example graph in {path.suffix[1:]} format"
