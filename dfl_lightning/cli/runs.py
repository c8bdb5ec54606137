"""Runs on a command line: a run folder stands for its last checkpoint and, without a config, for its own config."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dfl_lightning.checkpoints.history import CHANGED, FORKED, check_history, in_words
from dfl_lightning.checkpoints.io import checkpoint_of, is_checkpoint, read_checkpoint, rounds_in, run_of
from dfl_lightning.checkpoints.names import PREVIOUS
from dfl_lightning.cli.arguments import Argument
from dfl_lightning.utils.errors import DamagedCheckpoint, UserError
from dfl_lightning.utils.storage.shipped_files import shipped

CONFIG = "config.yaml"
"""The file of a run folder that holds the resolved configuration."""


def take_run(command: str, arguments: list[Argument]) -> list[Argument]:
    """Turn a run that is named without an option, `dfl-test RUN`, into `--ckpt_path`.

    Args:
        command: `fit`, `validate` or `test`.
        arguments: the arguments of the command line.

    Raises:
        UserError: there are two runs or none; or the command is `dfl-fit`, which takes options only.
    """
    strays, options = [each.value or "" for each in arguments if not each.option], {each.option for each in arguments}
    if not strays:
        asks = any(option.endswith((".help", "print_config")) for option in options)
        if command != "fit" and not asks and not options & {"config", "ckpt_path", "data"}:
            raise no_run(command)
        return arguments
    if command == "fit":
        _check_stray(strays[0])
        return arguments
    if len(strays) > 1:
        raise UserError(f"'{strays[0]}' and '{strays[1]}': a command evaluates one run; options begin with --")
    if "ckpt_path" in options:
        raise UserError(f"'{strays[0]}' and --ckpt_path both name a run; give one of them")
    return [each if each.option else Argument("ckpt_path", each.value) for each in arguments]


def no_run(command: str) -> UserError:
    """Return the error about an evaluation without a run."""
    return UserError(f"no run is named; give its folder: dfl-{command} RUN")


def _check_stray(value: str) -> None:
    """Raise if a value without an option is a config or a run; the message names the option that it needs."""
    if value in shipped("configs") or (value.endswith((".yaml", ".yml", ".zip")) and Path(value).is_file()):
        raise UserError(f"unexpected argument '{value}'; write --config {value}")
    if is_checkpoint(checkpoint_of(value)):
        raise UserError(f"unexpected argument '{value}'; to resume that run use --ckpt_path {value}")


def config_of_run(arguments: list[Argument]) -> list[Argument]:
    """Find the config of the run that a command line names, if the command line has no config itself.

    Returns:
        The config as an argument, to be read before the others; or nothing.

    Raises:
        UserError: the run does not exist, or has no config although the arguments do not name data.
    """
    options = {each.option: each.value for each in arguments}
    if options.get("ckpt_path") == "":  # probably a variable of the shell that is not set
        raise UserError("--ckpt_path needs a value, a run folder or a checkpoint")
    named = options.get("ckpt_path") or "null"
    if "config" in options or named == "null":
        return []
    checkpoint = checkpoint_of(named)
    if not is_checkpoint(checkpoint):
        config = Path(named) / CONFIG
        if config.is_file() and not is_checkpoint(checkpoint.with_name(PREVIOUS)):
            raise DamagedCheckpoint(
                f"{named}: the run has no checkpoint; it was killed before its first one (trainer.checkpoint_every), "
                f"or keeps none; dfl-fit --config {shlex.quote(str(config))} begins it again"
            )
        read_checkpoint(checkpoint)
    run = run_of(checkpoint)
    if run is None:
        return []
    if (run / CONFIG).is_file():
        return [Argument("config", str(run / CONFIG))]
    if "data" in options:
        return []
    raise UserError(f"{run} has no {CONFIG}, for it was not started by dfl-fit; give a config with --config")


def remarks_on_history(configs: Sequence[tuple[str, dict[str, Any]]], checkpoint: str | None, fork: bool) -> list[str]:
    """Return remarks on configs of runs that had other settings in earlier rounds, so that a new run differs.

    Args:
        configs: paths and contents of the configs.
        checkpoint: the checkpoint that the fit continues, if any.
        fork: True if the fit continues it as a new run.
    """
    if checkpoint is not None and not fork:
        return []
    return [remark for path, content in configs for remark in _remarks(path, content, checkpoint)]


def remarks_on_place(arguments: Sequence[Argument], checkpoint: str) -> list[str]:
    """Return a remark if a resume names another folder for its run, which stays in its own.

    Args:
        arguments: the arguments of the command line.
        checkpoint: the checkpoint that the fit continues.
    """
    run = run_of(Path(checkpoint))
    typed = [str(a.value) for a in arguments if a.content is None and a.option == "trainer.default_root_dir"]
    if not typed or run is None or Path(typed[-1]).resolve() in run.resolve().parents:
        return []
    option = f"trainer.default_root_dir={typed[-1]}"
    return [f"{option}: the run continues in its own folder, {run}; with --fork a new one would start there"]


def _remarks(path: str, content: dict[str, Any], checkpoint: str | None) -> Iterator[str]:
    """Yield a remark on the fork, and one on each changed resume, of the run to which a config belongs."""
    check_history(path, content)
    parent = content.get(FORKED)
    if parent is not None:
        where, then = str(parent.get("checkpoint")), parent["round"]
        changed = in_words(parent.get("changed") or {})
        was = f"{path} is of a run that was forked from {where} after round {then}"
        if checkpoint is None:
            yield (
                f"{was}{f', with {changed}' if changed else ''}; this run begins with round 1, and "
                f"--ckpt_path {shlex.quote(where)} --fork repeats that one"
            )
        elif rounds_in(Path(checkpoint)) != then:
            yield f"{was}; {checkpoint} has {rounds_in(Path(checkpoint))} rounds, so this run does not repeat that one"
    for step in content.get(CHANGED, []):
        changed = in_words(step["changed"])
        yield f"{path} is of a run that changed after round {step['round']}: {changed}; this run begins with the latter"


def command_to_go_on(run: Path) -> str:
    """Return the command that continues a run, for the same working folder, quoted for a shell."""
    program, installed = sys.argv[0], shutil.which("dfl-fit")
    is_on_path = installed is not None and os.path.realpath(installed) == os.path.realpath(program)
    if is_on_path or os.path.basename(program) != "dfl-fit":
        program = "dfl-fit"
    return shlex.join([program, "--ckpt_path", str(run)])
