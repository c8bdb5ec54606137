"""The command `python -m dfl_lightning.conformance ADAPTER`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console

from dfl_lightning.conformance.adapters import check_names, load_adapter, run_method
from dfl_lightning.conformance.cases import read_all
from dfl_lightning.conformance.described import describe
from dfl_lightning.conformance.table import markdown, rich_table
from dfl_lightning.utils.errors import UserError

DESCRIPTION = """Check an implementation against the cases of the papers' methods. An adapter is a module with a
function for each method that it offers: it gets the inputs of a case by keyword, as numpy arrays, and returns a
dictionary of outputs, the main ones at least. docs/conformance.md describes the cases. Exit status: 0 if everything
that is offered agrees, 1 if something differs, 2 for a mistake in the command or in the name of a function."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases on an adapter, print a table, and return the exit code.

    Args:
        arguments: arguments of the command line; None: those of this process.

    Returns:
        0: everything that is offered agrees; 1: something differs, or nothing is offered; 2: a mistake in the command.
    """
    parser = argparse.ArgumentParser("python -m dfl_lightning.conformance", description=DESCRIPTION)
    parser.add_argument("adapter", nargs="?", help="import path of a module, or a file that ends with .py")
    parser.add_argument(
        "--describe",
        metavar="METHOD",
        help="print a method's inputs, outputs and readings, and a function to begin with",
    )
    parser.add_argument("--methods", nargs="+", metavar="METHOD", help="only these")
    parser.add_argument("--tolerance", type=float, help="instead of that of the cases; 1e-5 suits float32")
    parser.add_argument("--markdown", action="store_true", help="print the table of a page")
    parser.add_argument("--cases", action="store_true", help="print a line for each case")
    options = parser.parse_args(arguments)
    try:
        return _run(options)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2


def _run(options: argparse.Namespace) -> int:
    methods = read_all()
    named = [*(options.methods or ()), *([options.describe] if options.describe else [])]
    unknown = [name for name in named if name not in methods]
    if unknown:
        raise UserError(f"there are no cases of {unknown[0]}; there are cases of {', '.join(methods)}")
    if options.tolerance is not None and not options.tolerance >= 0:
        raise UserError(f"--tolerance {options.tolerance}: it must be 0 or more")
    if options.describe:
        print(describe(methods[options.describe]), end="")
        return 0
    if options.adapter is None:
        raise UserError("name an adapter, or a method: --describe fedavg prints what its function gets and returns")
    adapter = load_adapter(options.adapter)
    others = check_names(adapter, methods)
    chosen = [methods[name] for name in options.methods or methods]
    outcomes = [run_method(adapter, cases, options.tolerance) for cases in chosen]
    if not any(outcome.offered for outcome in outcomes):
        raise UserError(
            f"adapter {options.adapter} offers none of these methods: it has no function of the name of one "
            f"({', '.join(cases.method for cases in chosen)})"
        )
    if others:
        print(f"not run, since there are no cases of that name: {', '.join(others)}", file=sys.stderr)
    if options.markdown:
        print(markdown(outcomes), end="")
    else:
        console = Console(width=None if sys.stdout.isatty() else 160)
        console.print(rich_table(outcomes))
        if options.cases:
            for outcome in outcomes:
                for case in outcome.outcomes:
                    what = case.refused or case.failed or f"{case.largest:.1e}"
                    console.print(f"{outcome.cases.method}: {case.case}: {what}", markup=False, highlight=False)
    return int(any(outcome.agrees is False for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
