"""A virtual environment for each peer, made on first use and kept.

It adds the peer and what it needs to the packages of the Python that runs the script, so that all run the same torch
and none of them can disturb another.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import torch
from peer_list import Peer


class NotInstalled(Exception):
    """A peer cannot be used here; the message is the reason in one sentence."""


def default_folder() -> Path:
    """Return the folder of the environments in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dfl_lightning" / "peers"


def python_of(peer: Peer, folder: Path, timeout: float = 1200.0) -> Path:
    """Return the Python that runs a peer, in an environment that is made if it is missing.

    Args:
        peer: the simulator.
        folder: of all environments; `<name>.log` in it is what pip said.
        timeout: seconds that an installation may take.

    Raises:
        NotInstalled: the reason, in one sentence.
    """
    if peer.package is None:
        return Path(sys.executable)
    home = folder / peer.name
    python = home / "bin" / "python"
    if installed(python, peer):
        return python
    log = folder / f"{peer.name}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with log.open("w") as out:
            make = [sys.executable, "-m", "venv", str(home)]
            pip = [str(python), "-m", "pip", "install", "--disable-pip-version-check", peer.requirement]
            _call(make, out, timeout)
            _share_packages(python)
            _call(pip, out, timeout)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"not installed: {peer.requirement} took pip more than {timeout:.0f} s") from error
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotInstalled(f"not installed: {_reason(log) or error}") from error
    if not installed(python, peer):
        raise NotInstalled(f"not installed: {peer.module} cannot be imported after pip install {peer.requirement}")
    return python


def installed(python: Path, peer: Peer) -> bool:
    """Return True if the peer is installed in the wanted version and can be imported."""
    if not python.is_file():
        return False
    code = f"import importlib.metadata as m, {peer.module}; assert m.version('{peer.package}') == '{peer.version}'"
    try:
        done = subprocess.run([str(python), "-c", code], env=clean_environment(), capture_output=True, timeout=300)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def clean_environment() -> dict[str, str]:
    """Return a peer's variables: no PYTHONPATH (without dfl_lightning), GPU or telemetry, and loopback only."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return kept | {
        "CUDA_VISIBLE_DEVICES": "",
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "WANDB_MODE": "disabled",
        "HF_HUB_OFFLINE": "1",
    }


def _call(command: list[str], out: object, timeout: float) -> None:
    subprocess.run(
        command,
        env=clean_environment(),
        stdout=out,  # type: ignore[call-overload]
        stderr=subprocess.STDOUT,
        timeout=timeout,
        check=True,
    )


def _share_packages(python: Path) -> None:
    """Let the environment see the packages that the present Python has, after its own."""
    code = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    own = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()
    (Path(own) / "shared.pth").write_text(f"{Path(torch.__file__).parents[1]}\n")


def _reason(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.is_file() else []
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return short(errors[-1] if errors else (lines[-1] if lines else ""))


def short(text: str, length: int = 160) -> str:
    """Shorten a sentence to a bounded length.

    Examples:
        >>> short("No matching  distribution", 12)
        'No matching…'
    """
    text = " ".join(text.split())
    return text if len(text) <= length else text[:length].rsplit(" ", 1)[0].rstrip(" ,;") + "…"
