"""Check and measure the library on a GPU, stage by stage, within a budget of seconds.

    python scripts/gpu_check.py                                   # all stages that fit into 480 s
    python scripts/gpu_check.py --only losses,steps --budget 240 --out runs/gpu
    python scripts/gpu_check.py --stage steps                     # one stage in this process, without a limit

Each stage runs in a process of its own with a limit, since an error that CUDA reports ends everything that uses the
GPU. After each stage its table is printed, and everything so far is written, so that nothing is lost if time is up. The
exit code is 1 if a stage failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from benchmarks.tables import Table, machine
from gpu.losses import losses
from gpu.same_numbers import same_numbers
from gpu.scope import Scope, cuda_scope
from gpu.steps import memory, steps
from gpu.streams import streams
from gpu.whole_rounds import devices, rounds, tasks

ROOT = Path(__file__).resolve().parents[1]


def suite(scope: Scope) -> Table:
    """Run the tests that need a GPU.

    Raises:
        AssertionError: a test failed.
    """
    environment = {**os.environ, "DFL_TEST_ACCELERATOR": "gpu"}
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-n", "0", "tests"]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.strip()]
    assert ended.returncode == 0, "\n".join(lines[-30:])
    return Table("pytest -m gpu", ["result"], [[lines[-1]]])


@dataclass(frozen=True)
class Stage:
    """A stage.

    Args:
        measure: makes its table.
        limit: seconds that it may take.
    """

    measure: Callable[[Scope], Table]
    limit: float


STAGES = {
    "same": Stage(same_numbers, 90),
    "losses": Stage(losses, 60),
    "steps": Stage(steps, 90),
    "streams": Stage(streams, 60),
    "rounds": Stage(rounds, 120),
    "tasks": Stage(tasks, 60),
    "memory": Stage(memory, 60),
    "suite": Stage(suite, 120),
    "devices": Stage(devices, 120),
}
"""The stages in their order: what decides most comes first."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(STAGES), metavar="A,B", help="stages")
    parser.add_argument("--budget", type=float, default=480.0, metavar="S", help="seconds of all stages (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="gets gpu.md and gpu.json after each stage")
    parser.add_argument("--stage", choices=STAGES, help="run this stage in this process")
    words = parser.parse_args(argv)
    unknown = [name for name in words.only if name not in STAGES]
    if unknown:
        parser.error(f"--only: there is no '{unknown[0]}'; choose among {', '.join(STAGES)}")
    if not torch.cuda.is_available():
        print("gpu_check: torch sees no GPU with CUDA here; run it on a machine that has one", file=sys.stderr)
        return 2
    if words.stage:
        print(json.dumps(asdict(STAGES[words.stage].measure(cuda_scope()))))
        return 0
    return run_stages(words.only, words.budget, words.out, measure_apart)


Measure = Callable[[str, float], tuple[Table | None, str]]
"""(stage, limit in seconds) -> its table and why there is none, empty if there is one."""


def run_stages(names: Sequence[str], budget: float, out: Path | None, measure: Measure) -> int:
    """Run stages one after the other, and print and write their tables as they come.

    Args:
        names: stages in their order.
        budget: seconds of all of them; stages that begin later are named and left out.
        out: a folder that gets gpu.md and gpu.json; None: nothing is written.
        measure: runs a stage.

    Returns:
        1 if a stage failed, else 0.
    """
    started, tables = time.monotonic(), dict[str, Table]()
    failed: dict[str, str] = {}
    for name in names:
        left = budget - (time.monotonic() - started)
        if left <= 1:
            failed[name] = f"not begun: the budget of {budget:.0f} s is used up (--only {name} runs it alone)"
        else:
            table, failure = measure(name, min(left, STAGES[name].limit))
            if table is None:
                failed[name] = failure
            else:
                tables[name] = table
        text = tables[name].markdown() if name in tables else f"{name}: {failed[name]}"
        print(f"{text}\n\n({name}: {time.monotonic() - started:.0f} s since the start)\n", flush=True)
        if out is not None:
            _write(out, tables, failed)
    return int(bool(failed))


def measure_apart(name: str, limit: float) -> tuple[Table | None, str]:
    """Run a stage in a process of its own."""
    path = os.pathsep.join([str(ROOT / "scripts"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, str(Path(__file__).resolve()), "--stage", name]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            ended = subprocess.run(
                command,
                env={**os.environ, "PYTHONPATH": path},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                check=False,
                timeout=limit,
            )
        except subprocess.TimeoutExpired:
            return None, f"not finished within {limit:.0f} s"
        errors.seek(0)
        last = errors.read().strip().splitlines()[-8:]
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]
    if ended.returncode or not lines:
        return None, f"its process ended with {ended.returncode}: " + "\n".join(last)
    return Table(**json.loads(lines[-1])), ""


def _write(folder: Path, tables: dict[str, Table], failed: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    where: dict[str, Any] = machine("cuda" if torch.cuda.is_available() else "cpu")
    head = f"# GPU check\n\n{where['device']}, torch {where['torch']}. Made by `python scripts/gpu_check.py`.\n\n"
    parts = [table.markdown() for table in tables.values()] + [f"{name}: {why}" for name, why in failed.items()]
    (folder / "gpu.md").write_text(head + "\n\n".join(parts) + "\n", encoding="utf-8")
    content = {"machine": where, "tables": {name: asdict(table) for name, table in tables.items()}, "failed": failed}
    (folder / "gpu.json").write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
