"""The command `dfl-export`: its arguments, which are read before torch is loaded."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence

from dfl_lightning.cli.loading import loading
from dfl_lightning.cli.outcome import OneSentenceParser, end
from dfl_lightning.utils.errors import UserError


def main(argv: Sequence[str] | None = None) -> int:
    """Run `dfl-export` and return its exit code: 0 done, 2 a user's mistake, 1 a bug."""

    def work() -> int:
        parser = OneSentenceParser(
            prog="dfl-export", description="Write clients' models as safetensors, or pack a run to repeat it elsewhere."
        )
        parser.add_argument("run", help="a run folder or a checkpoint")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--client", type=int, nargs="+", help="which clients (default: all)")
        which.add_argument("--all", action="store_true", help="all clients")
        parser.add_argument("--out", help="the folder for the files (default: RUN/export)")
        parser.add_argument(
            "--finetuned", action="store_true", help="fine-tune them first, as the run does before it evaluates them"
        )
        parser.add_argument(
            "--bundle", metavar="FILE.zip", help="pack the run instead: config, split, own code and the files it names"
        )
        parser.add_version()
        options = parser.parse_args(argv)
        if options.bundle is not None:
            return _pack(options)
        with loading():
            from dfl_lightning.cli.exports.export import export_as_asked

        return export_as_asked(options)

    return end("dfl-export", work)


def _pack(options: argparse.Namespace) -> int:
    """Pack a run, and print the members of the bundle and the inputs that are not in it."""
    for name in ("client", "all", "out", "finetuned"):
        if getattr(options, name):
            raise UserError(f"--bundle packs a run without its models, so --{name} has no effect; leave it out")
    with loading():
        from dfl_lightning.cli.exports.bundle import bundle

    packed = bundle(options.run, options.bundle)
    print(f"{options.bundle}: {', '.join(packed.members)}")
    if packed.modules:
        print(f"own code, which runs when the bundle is run: {', '.join(packed.modules)}")
    for entry in packed.left_out:
        value = "" if entry.value is None else f"={entry.value}"
        print(f"not packed: {entry.place}{value} ({entry.why}); name it there with --{entry.place}")
    for remark in packed.remarks:
        print(f"note: {remark}")
    print(f"it is repeated with: dfl-fit --config {shlex.quote(str(options.bundle))}")
    return 0
