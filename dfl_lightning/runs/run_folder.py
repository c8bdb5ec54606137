"""The writer of a run folder: plain CSV, JSON and npz files that can be read without this library."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from dfl_lightning.checkpoints.history import CHANGED, config_text
from dfl_lightning.checkpoints.io import rounds_in, run_of
from dfl_lightning.checkpoints.names import FOLDER
from dfl_lightning.checkpoints.own_code import CODE
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.record import Round
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.runs.by_round.recorded import METRICS, RecordedRounds, Row
from dfl_lightning.runs.python_config import config_of_objects
from dfl_lightning.runs.reading import RunFiles
from dfl_lightning.runs.summary import summarise
from dfl_lightning.runs.tables import as_csv, damaged
from dfl_lightning.runs.typed import COMMANDS, read_commands, write_commands
from dfl_lightning.utils.code.source_code import ModuleSource, hashes_of, is_kept, write_sources
from dfl_lightning.utils.code.users_code import account_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import remove_unfinished, sync_file, write_atomically
from dfl_lightning.utils.storage.locks import NAME as LOCK
from dfl_lightning.utils.storage.locks import FolderLock

if TYPE_CHECKING:
    from dfl_lightning.bank.boundary import Boundary

OF_THE_PROCESS = (CHANGED, CODE, "engine", "seconds", "device", "processor", "versions")
"""Keys of summary.json about how the rounds were computed, not about their results."""

ARRAYS = ("clients.npz", "graphs.npz", "diverged.npz", "dropouts.npz", "substitutes.npz", "comparisons.npz")
"""Files with arrays by round, in addition to the rows of metrics.csv."""

OWN_FILES = ("config.yaml", "commands.csv", METRICS, "split.npz", *ARRAYS)
"""Files that a run writes before its first round is complete, and whenever it saves."""

_COUNTS = "rounds in files"
"""Key of a checkpoint for the number of rounds in each file when it was saved."""


class RunFolder(RunFiles, RoundCallback):
    """The run folder `runs/<name>/<time>/` of a fit, with all that `read_run` gives; tables are those in memory.

    The folder is locked during the fit, so that no other process writes into it.

    Attributes:
        path: the folder, or None before the run.
        is_open: True while the files of a fit can be written.
        summary: the content of summary.json, after the run.
    """

    def __init__(self) -> None:
        self.path: Path | None = None
        self.is_open = False
        self.summary: dict[str, Any] = {}
        self._rounds = RecordedRounds()
        self._commands: list[dict[str, str]] = []
        self._source: Path | None = None  # the run folder whose rounds this fit continues
        self._saved: dict[str, int] = {}  # rounds in each file when the checkpoint of this fit was saved
        self._began: tuple[int, bool] | None = None  # the boundary at which this fit started
        self._lock = FolderLock()
        self._made = False  # True if this fit made the folder
        self._trainer: Any = None
        self._monitored: dict[str, torch.Tensor] = {}
        self._placed: list[ModelCheckpoint] = []  # those whose files this class directs into the run folder

    def _table(self, name: str) -> dict[str, np.ndarray]:
        return super()._table(name) if name in ("split", "link_messages") else self._rounds.table(name)

    # --- open ---------------------------------------------------------------------------------------------------------
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Choose and lock the folder; `on_fit_start` writes the files, when the boundary is known."""
        if stage != "fit":
            return
        self.is_open, self.summary, self._trainer, self._monitored = False, {}, trainer, {}
        self._made = False
        former = self.path if getattr(pl_module, "bank", None) is not None else None
        self._source = run_of(trainer.resumed_from) or former
        chosen, refusal = "", ""
        if trainer.is_global_zero:
            try:
                chosen = str(self._choose_folder(trainer))
            except UserError as error:
                refusal = str(error)
        chosen, refusal = trainer.strategy.broadcast((chosen, refusal))
        if refusal:
            raise UserError(refusal)
        self.path = Path(chosen)
        self._made = self._source is None or trainer.fork
        trainer.make_logger(self.path)
        for callback in trainer.callbacks:
            if isinstance(callback, ModelCheckpoint) and (callback.dirpath is None or callback in self._placed):
                callback.dirpath = str(self.path / FOLDER)  # Lightning would put it where the first logger writes
                self._placed.append(callback)

    def _choose_folder(self, trainer: RunTrainer) -> Path:
        """Lock and return the folder of the run that continues, or a new one.

        Raises:
            UserError: another process writes into the folder, or it is not writable.
        """
        if self._source is None or trainer.fork:
            folder = _new_folder(Path(trainer.runs_root) / trainer.run_name)
        else:
            folder = self._source
            _check_no_links(folder)
        self._lock.take(folder)
        remark = f"{folder} cannot be locked ({self._lock.missing}): do not continue this run in two processes at once"
        if self._lock.missing and remark not in trainer.remarks:
            trainer.remarks.append(remark)
        return folder

    def leave(self) -> None:
        """Close the folder, so that an error before the next fit has its own folder does not change this one."""
        self.is_open = self._made = False

    def unlock(self) -> None:
        """Release the lock, so that other processes can write into the folder; called at the end of every fit."""
        self._lock.release()

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Read the rows up to the boundary, set aside later ones, and write the files that describe the run.

        Raises:
            UserError: the folder cannot be written, or a file of it is damaged or lacks rounds.
        """
        assert self.path is not None
        self.is_open = True
        self._rounds.describe(pl_module.federation, pl_module.engine.config.metrics)
        if not trainer.is_global_zero:
            return  # since only the first process writes
        self.is_open = False
        boundary = pl_module.bank.boundary
        try:
            self._read_earlier_rounds(boundary)
            last = int(self._rounds.rows[-1]["round"]) + 1 if self._rounds.rows else 0
            if boundary.closed and last < boundary.round:
                self._rounds.add_row(
                    boundary
                )  # since the run ended after the round was closed and before its row was written
            self._rounds.write_rows(self.path)
            if self._rounds.rows:
                self._rounds.write_arrays(self.path, boundary.round)
            trainer.datamodule.save_split(self.path / "split.npz")
            config = config_of_objects(trainer, pl_module) if trainer.config is None else trainer.config
            if not (trainer.fit_loop.is_over and self._file("config.yaml").is_file()):
                code = hashes_of(pl_module.sources)
                text = config_text({**pl_module.history, **config, **({CODE: code} if code else {})})
                write_atomically(self.path / "config.yaml", lambda file: file.write(text.encode()))
            if not (trainer.fit_loop.is_over and self._source == self.path):
                self._write_code(pl_module.sources)
            if trainer.command and not (trainer.fit_loop.is_over and self._commands):
                self._commands.append({"round": str(boundary.round), "command": trainer.command})
            if self._commands:
                write_commands(self.path / COMMANDS, self._commands)
        except OSError as error:
            raise UserError(f"{self.path}: the run folder cannot be written ({error.strerror})") from error
        self._began = (boundary.round, boundary.closed)
        self.is_open = True
        for logger in trainer.loggers if trainer.enable_autolog_hparams else ():
            logger.log_hyperparams(_settings(trainer, pl_module))

    def _write_code(self, sources: Mapping[str, ModuleSource]) -> None:
        """Write the source of the user's own code; move an earlier one that differs to `superseded/`."""
        folder = self._file(CODE)
        if folder.is_dir() and not is_kept(folder, sources):
            folder.rename(_new_folder(self._file("superseded")) / CODE)
        write_sources(folder, sources)

    def __repr__(self) -> str:
        """Show the folder, the number of rounds and the last test score."""
        if self.path is None:
            return "RunFolder(no run yet)"
        score = self._rounds.score
        values = self.metrics[f"test_{score.name}"]
        values = values[~np.isnan(values)]
        last = f", test {score.label} {score.text(values[-1])}" if len(values) else ""
        return f"RunFolder({self.path}, {len(self._rounds.rows)} rounds{last})"

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Give the trainer the metrics of earlier rounds, which early stopping and checkpoints may monitor."""
        trainer.callback_metrics.update(self._monitored)

    def state_dict(self) -> dict[str, Any]:
        """Return the last value of each logged metric; some were logged several rounds ago."""
        now = {} if self._trainer is None else self._trainer.callback_metrics
        metrics = {**self._monitored, **now}  # a resumed run may save before it has logged all of them again
        return {"monitored": {name: value.detach().cpu().clone() for name, value in metrics.items()}}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore the metrics that `state_dict` returned."""
        self._monitored = dict(state_dict["monitored"])

    def _read_earlier_rounds(self, boundary: Boundary) -> None:
        """Read the rounds up to the boundary from the source folder.

        Later rounds are set aside if the run continues in that folder; a fork leaves them where they are.
        """
        # a second fit without a checkpoint has the rounds in memory
        expected, self._saved = self._saved or self._rounds.counts(boundary), {}
        self._rounds.clear()
        self._commands = []
        if self._source is None:
            return
        later = self._rounds.read(self._source, boundary)
        if self._source == self.path:
            self._commands = read_commands(self.path / COMMANDS, boundary.round)
        self._check_nothing_is_lost(expected, boundary)
        if self._source == self.path:
            remove_unfinished(self.path)
            self._set_aside(later, boundary.round)

    def _check_nothing_is_lost(self, expected: Mapping[str, int], boundary: Boundary) -> None:
        """Check that the files have all rounds of the checkpoint.

        A fork does not need them: it remarks which files lack rounds. The row of the last round may be missing, since
        it is made again from the checkpoint.

        Raises:
            UserError: a file lacks rounds and the run is not a fork, or rows are missing in the middle of metrics.csv.
        """
        counts = self._rounds.counts(boundary)  # not of commands: a run is the same if it was interrupted
        rows = [int(row["round"]) for row in self._rounds.rows]
        if boundary.closed and (not rows or rows[-1] < boundary.round - 1):
            counts[METRICS] += 1
        forks = self._source != self.path
        for name in (name for name in expected if counts[name] < expected[name]):
            if name == METRICS and rows and rows[-1] + 1 < boundary.round - boundary.closed:
                why = f"it ends with the row of round {rows[-1]}, and the checkpoint is of {boundary.round} rounds"
                raise damaged(Path(f"{self._source}/{name}"), why)  # also for a fork, which would have a gap
            file = f"{self._source}/{name}"
            sentence = f"{file} is lost" if not Path(file).is_file() else f"{file} has lost some of its rounds"
            if not forks:
                remedy = "restore it, or --fork starts a new run from the checkpoint, without them"
                raise UserError(f"{sentence}, and the run cannot continue without gaps; {remedy}")
            self._trainer.remarks.append(f"{sentence}, so this run does not have them either")

    def _set_aside(self, rows: list[Row], done: int) -> None:
        """Move later rounds, which another continuation of the run has written, to `superseded/`.

        Args:
            rows: the later rows of metrics.csv.
            done: number of complete rounds; checkpoints with more are moved.
        """
        checkpoints = [f for f in sorted(self._file(FOLDER).glob("*.ckpt")) if not _has_at_most(f, done)]
        if not rows and not checkpoints:
            return
        aside = _new_folder(self._file("superseded"))
        write_atomically(aside / METRICS, lambda file: file.write(as_csv(rows, self._rounds.columns).encode()))
        for name in ARRAYS:
            if self._file(name).is_file():
                shutil.copyfile(self._file(name), aside / name)
        for file in checkpoints:
            file.rename(aside / file.name)

    # --- write --------------------------------------------------------------------------------------------------------
    def on_round_end(self, round: Round) -> None:
        """Record the clients that diverged or dropped out, and the links and comparisons of an evaluated round."""
        self._rounds.add_absent(round)
        trainer = self._trainer
        if trainer is None:
            return  # since rounds outside a fit have no folder
        every = trainer.check_val_every_n_epoch or 1
        if round.has("weights") and (round.index + 1) % every == 0 and trainer.is_global_zero:
            self._rounds.add_links(round, every, trainer.keep_comparisons)

    def on_boundary(self, trainer: RunTrainer, module: RunModule) -> None:
        """Append the round's row to metrics.csv.

        Raises:
            UserError: the folder cannot be written.
        """
        if not trainer.is_global_zero:
            return
        self._rounds.add_row(module.bank.boundary)
        try:
            self._rounds.append_row(self._file(""))
        except OSError as error:
            raise UserError(
                f"{self.path}: the run folder cannot be written ({error.strerror}); "
                f"{module.bank.boundary.round} rounds are complete, their checkpoint follows if there is room"
            ) from error

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write arrays and rows to the disk before the checkpoint, which is never ahead of them after a power cut."""
        if self.is_open and trainer.is_global_zero:
            self._rounds.write_arrays(self._file(""), pl_module.bank.boundary.round)
            sync_file(self._file(METRICS))
            checkpoint[_COUNTS] = self._rounds.counts(pl_module.bank.boundary)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Read how many rounds each file had when the checkpoint was saved."""
        self._saved = dict(checkpoint.get(_COUNTS) or {})

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the arrays and the summary.

        Raises:
            UserError: the folder cannot be written.
        """
        if not trainer.is_global_zero:
            return
        try:
            self._summarise(trainer, pl_module, "finished")
        except OSError as error:
            raise UserError(f"{self.path}: the run folder cannot be written ({error.strerror})") from error

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write the arrays and the summary of the rounds so far, or remove the folder of a run without a round.

        Errors of the disk are ignored, since they would hide the exception.
        """
        if trainer.state.fn != "fit" or self.path is None or not trainer.is_global_zero:
            return
        with suppress(OSError):
            begun = self.is_open and pl_module.bank.boundary.round > 0
            if self._made and not begun and self._holds_own_files_only():
                self._remove()
            elif self.is_open:
                stopped = not isinstance(exception, Exception | SystemExit)  # by Ctrl-C or a signal
                reason = "" if stopped else account_of(exception)
                self._summarise(trainer, pl_module, "stopped" if stopped else "failed", reason)

    def _holds_own_files_only(self) -> bool:
        """Return True if the folder has only files of this class; a logger, for example, may also write there."""
        return all(file.name in (*OWN_FILES, CODE, LOCK) or _is_empty_folder(file) for file in self._file("").iterdir())

    def _remove(self) -> None:
        """Remove the files that describe the run, the folder, and its parent if that is empty."""
        self.unlock()  # since the file of the lock is in the folder, which must be empty
        folder, self.path, self.is_open = self._file(""), None, False  # so that a second fit makes a new one
        for file in folder.iterdir():
            shutil.rmtree(file) if file.is_dir() else file.unlink()
        folder.rmdir()
        folder.parent.rmdir()  # fails, without harm, if other runs are in it

    def _summarise(self, trainer: RunTrainer, module: RunModule, status: str, reason: str = "") -> None:
        """Write the arrays and summary.json; a former summary with the same results is kept."""
        boundary = module.bank.boundary
        self._rounds.write_arrays(self._file(""), boundary.round)
        self.summary = summarise(trainer, module, status, reason)
        if self._rounds.rows and (first := int(self._rounds.rows[0]["round"])):
            self.summary["first_row"] = first  # not 0 if this is a fork of a run whose earlier rows are lost
        former = self._former_summary() if self._began == (boundary.round, boundary.closed) else {}
        if _results(self.summary) == _results(former):
            self.summary = former  # since no round was added, its seconds are the right ones
            return
        text = json.dumps(self.summary, indent=2, allow_nan=False) + "\n"
        write_atomically(self._file("summary.json"), lambda file: file.write(text.encode()))

    def _former_summary(self) -> dict[str, Any]:
        """Read summary.json; return an empty mapping if it cannot be read."""
        try:
            former = json.loads(self._file("summary.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):  # a missing or damaged one is written anew
            return {}
        return former if isinstance(former, dict) else {}

    def _file(self, name: str) -> Path:
        assert self.path is not None
        return self.path / name


def _settings(trainer: RunTrainer, module: RunModule) -> dict[str, Any]:
    """Return the hyperparameters for loggers: the resolved config, or the main settings of a run without one."""
    if trainer.config is not None:
        return {key: value for key, value in trainer.config.items() if value is not None}
    rates = [fields["lr"] for fields in module.hyperparameters]
    return {
        "max_rounds": trainer.max_epochs,
        "policies": [type(policy).__name__ for policy in trainer.policies()],
        "network": type(module.federation.network).__name__,
        **(
            {"local_epochs": module.local_epochs} if module.local_steps is None else {"local_steps": module.local_steps}
        ),
        "batch_size": module.batch_size,
        **({"batch_growth": module.batch_growth} if module.batch_growth else {}),
        "lr": rates[0] if len(rates) == 1 else rates,
        "clients": module.federation.num_clients,
        "seed": module.federation.seed,
    }


def _results(summary: dict[str, Any]) -> dict[str, Any]:
    """Return the part of a summary that the rounds decide, without the entry `task`."""
    return {key: value for key, value in summary.items() if key not in (*OF_THE_PROCESS, "task")}


def _check_no_links(run: Path) -> None:
    """Raise if a subfolder of a run folder is a symbolic link: a run must write into its own folder only."""
    for name in (FOLDER, "superseded"):
        if (run / name).is_symlink():
            raise UserError(f"{run / name} is a link; a run writes into its own folder only: --fork starts a new one")


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink() and not any(path.iterdir())


def _has_at_most(checkpoint: Path, done: int) -> bool:
    """Return True if a checkpoint is whole and has at most `done` rounds."""
    try:
        return rounds_in(checkpoint) <= done
    except UserError:
        return False


def _new_folder(parent: Path) -> Path:
    """Make a new folder that is named by the present time.

    Raises:
        UserError: the folder cannot be made.
    """
    stamp = time.strftime("%Y-%m-%d_%H-%M-%S")
    for number in range(1, 1000):
        folder = parent / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            remedy = "set trainer.default_root_dir"
            raise UserError(f"{folder}: the run folder cannot be made ({error.strerror}); {remedy}") from error
        return folder
    raise UserError(f"{parent}: no free name for a run folder")
