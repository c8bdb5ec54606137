"""A cell of `bench_scale.py` or `bench_processes.py` in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1]


def run_job(job: dict[str, Any], limit: float) -> tuple[list[dict[str, Any]], str]:
    """Run `scale_job.py` and read its measurements.

    Args:
        job: its words.
        limit: seconds that it may take.

    Returns:
        What each of its processes measured, in their order, and why there is nothing, empty where there is.
    """
    path = os.pathsep.join([str(SCRIPTS), str(SCRIPTS.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(job["threads"])}
    command = [sys.executable, "-m", "benchmarks.scale_job", json.dumps(job)]
    try:
        ended = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return [], f"not finished within {limit:.0f} s"
    if ended.returncode:
        return [], f"its process ended with {ended.returncode}; see above"
    found = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("{")]
    return sorted(found, key=lambda measured: measured["rank"]), ""
