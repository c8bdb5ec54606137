"""Run a set of short runs that touches every part of the library, and compare what two versions of it give.

    python scripts/digests.py run before             # with the one version
    python scripts/digests.py run after              # with the other one
    python scripts/digests.py compare before after   # the same bits, or how far apart

What is compared of each run: all models and policies' state in the last checkpoint, metrics.csv (without seconds), the
npz files, and the summary's accuracies, costs and findings. The exit code of `compare` is 1 if any run differs. Runs
are those of one machine: other processors round otherwise.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from killing.results import TIMES, result
from killing.starts import FOLDER

from dfl_lightning.utils.storage.shipped_files import shipped

NETWORKS = Path(__file__).resolve().with_name("digest_networks.py")
SMALL = [
    *["--data.num_clients", "10", "--data.samples_per_client", "30", "--data.val_fraction", "0.2"],
    *["--model.local_epochs", "2", "--trainer.max_rounds", "4"],
    *["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.checkpoint_every", "2"],
]
OWN = {
    "text": ["--model.network.width", "16"],
    "forecast": ["--model.network.channels", "[8]", "--data.samples_per_client", "null"],
}
"""What makes those small that have other networks than perceptrons, by config."""
SCORES = {"test_accuracy", "test_score"}
"""Of classes, and of what has another score than accuracy."""
DOWN = ["--dropout", "Bernoulli", "--dropout.rate", "0.4"]


def _network(name: str) -> list[str]:
    """Return the options for a network of `digest_networks.py`, and for epochs whose last batch is smaller."""
    return ["--model.network", f"{NETWORKS.stem}.{name}", "--model.batch_size", "7"]


def _small(config: str) -> list[str]:
    """Return the options that shorten a run of a config."""
    return [*SMALL, *OWN.get(config, ["--model.network.hidden", "[12]"])]


RUNS: dict[str, list[list[str]]] = {
    # Each run is a list of commands; a later command continues the run of the one before.
    "double precision": [["--config", "afind", "--trainer.precision", "64-true"]],
    "dropout": [["--config", "afind", *DOWN]],
    "dropout, Stale": [["--config", "fdms", "--substitution", "Stale"]],
    "dropout, DPFL": [["--config", "dpfl", *DOWN]],
    "links that fail": [["--config", "panm_loss", "--topology", "failing_links"]],
    "graph over time": [["--config", "dsgd", "--topology", "redrawn"]],
    "loop engine": [["--config", "afind", "--engine", "loop"]],
    "two processes": [["--config", "afind", "--trainer.devices", "2", *DOWN]],
    "two processes, server": [["--config", "ifca", "--trainer.devices", "2"]],
    "resumed": [["--config", "panm_grad"], ["--trainer.max_rounds", "7"]],
    "checkpoint in pieces": [["--config", "pens", "--trainer.checkpoints", "sharded"]],
    "personal head, fine-tuned": [
        [
            *["--config", "afind", "--model.shared", "[features.*]", "--objective", "Plain"],
            *["--objective.personal_epochs", "1", "--model.finetune_epochs", "1"],
        ]
    ],
    "independent starts": [["--config", "gossip", "--model.init", "independent"]],
    "Adam, schedule, clipping": [
        [
            *["--config", "gossip", "--model.optimizer", "Adam", "--model.optimizer.lr", "0.01"],
            *["--model.lr_scheduler", "StepLR", "--model.lr_scheduler.step_size", "2"],
            *["--trainer.gradient_clip_val", "0.5"],
        ]
    ],
    "convolutions and norms": [["--config", "afind", *_network("Normed")]],
    "convolutions and norms, loop engine": [["--config", "gossip", *_network("Normed"), "--engine", "loop"]],
    "layers of other kinds": [["--config", "panm_grad", *_network("Varied"), *DOWN]],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="run all, and keep what they leave")
    run.add_argument("folder", type=Path)
    run.add_argument("--only", nargs="*", help="names of runs")
    compare = commands.add_parser("compare", help="what two folders of runs have left")
    compare.add_argument("one", type=Path)
    compare.add_argument("other", type=Path)
    words = parser.parse_args()
    sys.exit(run_all(words.folder, words.only) if words.command == "run" else compare_all(words.one, words.other))


def runs() -> dict[str, list[list[str]]]:
    """Return the commands of each run: every shipped config, and runs that use other parts of the library."""
    return {**{name: [["--config", name]] for name in shipped("configs")}, **RUNS}


def run_all(folder: Path, only: list[str] | None) -> int:
    for name, (first, *further) in runs().items():
        if only and name not in only:
            continue
        place = folder / name.replace(" ", "_").replace(",", "")
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        shutil.copy(NETWORKS, place)  # modules are found where a run is started
        _fit(place, [*first[:2], *_small(first[1]), *first[2:], "--trainer.default_root_dir", "out"])
        for words in further:
            (run,) = place.glob("out/*/*")
            _fit(place, ["--ckpt_path", str(run.relative_to(place)), *words])
        print(f"{digest(place)}  {name}", flush=True)
    return 0


def _fit(place: Path, words: list[str]) -> None:
    """Run `dfl-fit` in a process of its own, so that moved modules do not matter."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(FOLDER / "fit.py"), *words]
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{place.name}: dfl-fit {' '.join(words)} ended with {done.returncode}: {done.stderr}")


def what_is_left(place: Path) -> dict[str, Any]:
    """Read everything of a run that must not change, by file."""
    (folder,) = place.glob("out/*/*")
    left = result(folder)
    checkpoint, summary = left["last.ckpt"], left["summary.json"]
    return {
        "models": checkpoint["state_dict"],
        "policies": checkpoint["callbacks"],
        "metrics.csv": left["metrics.csv"],
        "summary.json": {key: summary[key] for key in (*SCORES & set(summary), "found", "received_per_client")},
        **{name: content for name, content in left.items() if name.endswith(".npz")},
    }


def digest(place: Path) -> str:
    """Compute a short digest of all bits of a run's results."""
    sha = hashlib.sha256()
    for where, value in parts(what_is_left(place)):
        sha.update(f"{where} {value.dtype}{value.shape} ".encode() + value.tobytes())
    return sha.hexdigest()[:16]


def parts(content: Any, where: str = "") -> Iterator[tuple[str, np.ndarray]]:
    """List the arrays and other values of a nested content, in the order of their names."""
    if isinstance(content, dict):
        for key in sorted(set(content) - set(TIMES), key=str):
            yield from parts(content[key], f"{where}/{key}")
    elif isinstance(content, (list, tuple)):
        for number, value in enumerate(content):
            yield from parts(value, f"{where}/{number}")
    else:
        value = content.numpy() if isinstance(content, torch.Tensor) else np.asarray(_number(content))
        yield where, np.asarray(repr(content)) if value.dtype == object else value  # the bytes of None are an address


def _number(word: Any) -> Any:
    """Convert a cell of a table to a number if it is one."""
    with suppress(TypeError, ValueError):
        return float(word)
    return str(word)  # the bytes of an array of objects are addresses


def compare_all(one: Path, other: Path) -> int:
    """Print where runs of two folders differ: parts in one of them only, or values and how far apart they are."""
    names = sorted({place.name for folder in (one, other) for place in folder.iterdir()})
    same = 0
    for name in names:
        found = [*differs(one / name, other / name)]
        same += not found
        print(f"{name}: {'the same bits' if not found else '; '.join(found)}")
    print(f"{same} of {len(names)} runs are the same, bit for bit")
    return int(same < len(names))


def differs(one: Path, other: Path) -> Iterator[str]:
    """List the differences of two runs, in a few words each."""
    if not (one.is_dir() and other.is_dir()):
        yield "in one of them only"
        return
    a, b = (dict(parts(what_is_left(place))) for place in (one, other))
    for where in sorted({*a} | {*b}):
        if where not in a or where not in b:
            yield f"{where} {'gone' if where in a else 'new'}"
        elif (a[where].shape, a[where].dtype) != (b[where].shape, b[where].dtype):
            yield f"{where} {a[where].dtype}{a[where].shape}, {b[where].dtype}{b[where].shape}"
        elif a[where].tobytes() != b[where].tobytes():
            yield f"{where} {_apart(a[where], b[where])}"


def _apart(a: np.ndarray, b: np.ndarray) -> str:
    """Describe the distance of two arrays, relative to the largest number."""
    if not np.issubdtype(a.dtype, np.floating):
        return "differs"
    largest = max(float(np.nanmax(np.abs(a))), 1e-300)
    return f"apart by {float(np.nanmax(np.abs(a - b))) / largest:.1e}"


if __name__ == "__main__":
    main()
