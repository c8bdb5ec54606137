"""Make docs/example.ipynb: run its cells and keep what they show."""

from __future__ import annotations

import argparse
import ast
import base64
import contextlib
import io
import os
import tempfile
from pathlib import Path
from typing import Any

import nbformat
import vl_convert

NOTEBOOK = Path(__file__).parent.parent / "docs" / "example.ipynb"
CELLS = (
    "# AFIND+ and gossip on scikit-learn's digits\n\n"
    "Twelve clients in two ground-truth clusters, whose images are turned by 0 or 90 degrees. `pip install "
    "'dfl-lightning[report]'` first. `python scripts/make_notebook.py` runs this notebook.",
    """from lightning import seed_everything

from dfl_lightning import DFLModule, DFLTrainer, data, models, read_run, report
from dfl_lightning import callbacks as cb


def train(seed, *policies):
    seed_everything(seed, verbose=False)
    trainer = DFLTrainer(max_rounds=10, callbacks=list(policies), enable_progress_bar=False)
    digits = data.Digits(num_clients=12, samples_per_client=60, partition=data.RotatedClusters([0, 90]))
    trainer.fit(DFLModule(models.MLP(hidden=[32]), local_epochs=3), datamodule=digits)
    return read_run(trainer.run.path)


afind = [train(seed, cb.AFIND(), cb.AdaptiveThreshold(), cb.Boltzmann()) for seed in (0, 1)]
gossip = [train(seed, cb.Gossip(3), cb.Uniform()) for seed in (0, 1)]
afind[0]""",
    "Everything that a run keeps is an array, or a plain table.",
    """run = afind[0]
run.metrics["test_acc"].round(3)""",
    "The charts are those of `dfl-report`.",
    "report.learning_curves([*afind, *gossip])",
    "report.collaboration_graph(run)",
    "And the page itself:",
    """report.write_report([r.path for r in (*afind, *gossip)], to="report.html")""",
)
"""Text and code, by turns or not: what does not begin with a name of Python's is text."""


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    here = Path.cwd()
    notebook = nbformat.v4.new_notebook()
    notebook.metadata = {"language_info": {"name": "python"}}
    names: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            notebook.cells = [cell(source, names, number) for number, source in enumerate(CELLS)]
        finally:
            os.chdir(here)
    NOTEBOOK.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")
    print(f"wrote {NOTEBOOK}")


def is_text(source: str) -> bool:
    try:
        ast.parse(source)
    except SyntaxError:
        return True
    return source.startswith("#")


def cell(source: str, names: dict[str, Any], number: int) -> Any:
    """Make a cell with its outputs."""
    about = {"id": f"cell-{number}"}
    if is_text(source):
        return nbformat.v4.new_markdown_cell(source, **about)
    printed, value = run(source, names)
    outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)] if printed else []
    if value is not None:
        outputs.append(nbformat.v4.new_output("execute_result", shown(value), execution_count=number + 1))
    return nbformat.v4.new_code_cell(source, outputs=outputs, execution_count=number + 1, **about)


def run(source: str, names: dict[str, Any]) -> tuple[str, Any]:
    """Run a cell; return its output and the value of its last line."""
    body = ast.parse(source)
    last = body.body.pop() if isinstance(body.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(body, "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if isinstance(last, ast.Expr) else None
    return printed.getvalue(), value


def shown(value: Any) -> dict[str, str]:
    """Format a value as a notebook shows it."""
    if hasattr(value, "to_dict"):
        image = vl_convert.vegalite_to_png(value.to_dict(), scale=1.2)
        return {"image/png": base64.b64encode(image).decode(), "text/plain": "alt.LayerChart(...)"}
    return {"text/plain": repr(value)}


if __name__ == "__main__":
    main()
