"""Write the cases of dfl_lightning/conformance/*.json from the plain references of tests/helpers/plain.

The references are numpy in float64, written from the papers; neither they nor this script import the library.

    python scripts/make_conformance.py
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CASES = ROOT / "dfl_lightning" / "conformance"
REFERENCES = ROOT / "tests" / "helpers" / "plain"


def documents() -> dict[str, dict[str, Any]]:
    """Compute the content of each file, by method."""
    helpers = str(REFERENCES.parent)
    if helpers not in sys.path:
        sys.path.insert(0, helpers)
    methods = importlib.import_module("plain.methods").METHODS

    return {method: found.document(method) for method, found in sorted(methods.items())}


def text(document: dict[str, Any]) -> str:
    """Format JSON with a line for each row of numbers."""
    return _lines(document, 0) + "\n"


def settled(made: Any, written: Any) -> Any:
    """Keep the written numbers where only their last digits differ, which depend on the machine's functions."""
    if isinstance(made, dict) and isinstance(written, dict):
        return {key: settled(part, written.get(key)) for key, part in made.items()}
    if isinstance(made, list) and isinstance(written, list) and len(made) == len(written):
        return [settled(*parts) for parts in zip(made, written, strict=True)]
    both = isinstance(made, float) and isinstance(written, float)
    return written if both and math.isclose(made, written, rel_tol=1e-12, abs_tol=1e-12) else made


def _lines(value: Any, depth: int) -> str:
    flat = json.dumps(value, ensure_ascii=False)
    nested = isinstance(value, dict | list) and value and any(isinstance(part, dict | list) for part in value)
    if isinstance(value, dict) and depth < 4:
        nested = bool(value)
    if not nested:
        return flat
    pad, end = " " * (depth + 1), " " * depth
    if isinstance(value, dict):
        parts = [f"{pad}{json.dumps(key)}: {_lines(part, depth + 1)}" for key, part in value.items()]
        return "{\n" + ",\n".join(parts) + f"\n{end}}}"
    parts = [f"{pad}{_lines(part, depth + 1)}" for part in value]
    return "[\n" + ",\n".join(parts) + f"\n{end}]"


if __name__ == "__main__":
    for name, document in documents().items():
        file = CASES / f"{name}.json"
        written = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
        file.write_text(text(settled(document, written)), encoding="utf-8")
        print(f"{name}: {len(document['cases'])} cases")
