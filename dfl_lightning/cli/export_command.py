"""The command `dfl-export`: its arguments, which are read before torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.cli.outcome import OneSentenceParser, end


def main(argv: Sequence[str] | None = None) -> int:
    """The command, from its arguments to its exit code: 0 done, 2 a user's mistake, 1 our bug."""

    def work() -> int:
        parser = OneSentenceParser(prog="dfl-export", description="Write clients' models as safetensors.")
        parser.add_argument("run", help="a run folder or a checkpoint")
        which = parser.add_mutually_exclusive_group()
        which.add_argument("--client", type=int, nargs="+", help="which clients (default: all)")
        which.add_argument("--all", action="store_true", help="all clients")
        parser.add_argument("--to", help="the folder for the files (default: RUN/export)")
        parser.add_argument(
            "--finetuned", action="store_true", help="fine-tune them first, as the run does before it evaluates them"
        )
        parser.add_version()
        options = parser.parse_args(argv)
        from dfl_lightning.cli.export import export_as_asked

        return export_as_asked(options)

    return end("dfl-export", work)
