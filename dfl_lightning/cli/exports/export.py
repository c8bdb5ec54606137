"""Clients' models out of a run, as plain state dicts."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback
from lightning.pytorch.utilities.seed import isolate_rng
from safetensors.torch import save_file
from torch import Tensor

from dfl_lightning.checkpoints.io import checkpoint_of, run_of
from dfl_lightning.checkpoints.state_dicts import checked_content, reported_state, state_of_row
from dfl_lightning.cli.runs import CONFIG
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.lightning_warnings import quiet_lightning


def export(
    run: str | Path, clients: list[int] | None = None, to: str | Path | None = None, finetuned: bool = False
) -> list[Path]:
    """Write clients' models as safetensors that load into the plain network.

    In a server topology a client's model is the server's shared part with the client's personal one, as evaluated.
    Where a run fine-tunes models before it evaluates them, that is not done to these: see `finetuned`.

    Args:
        run: a run folder, or a checkpoint file.
        clients: which; None: all.
        to: the folder for the files; default `<run folder>/export`.
        finetuned: fine-tune the models as the run does before it evaluates them, with the same draws. That needs the
            run's `config.yaml`, its data, and one evaluation of all clients.

    Returns:
        The files, `client_<id>.safetensors` each.

    Raises:
        UserError: no checkpoint there, or no such client; nothing to fine-tune with.
    """
    return _export(run, clients, to, finetuned)[0]


def _export(
    run: str | Path, clients: list[int] | None, to: str | Path | None, finetuned: bool
) -> tuple[list[Path], bool]:
    """The files, and whether the run is judged by other models than these: the fine-tuned ones."""
    path = Path(run)
    checkpoint = checkpoint_of(path)
    content = checked_content(run, clients, finetuned)
    about = content["dfl_lightning"]
    epochs = about.get("finetune_epochs", 0)
    chosen = list(range(about["clients"])) if clients is None else clients
    rows = _finetuned(checkpoint) if finetuned else None
    folder = Path(to) if to is not None else (path if path != checkpoint else path.parent.parent) / "export"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = [_write(content, client, folder, rows) for client in chosen]
        return files, bool(epochs) and not finetuned
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another with --to") from error


def _finetuned(checkpoint: Path) -> Tensor:
    """The models that the clients of a run are judged by after fine-tuning, [m, width]."""
    from dfl_lightning.cli.command import evaluate_again

    run = run_of(checkpoint)
    if run is None or not (run / CONFIG).is_file():
        where = run or checkpoint
        raise UserError(
            f"{where}: fine-tuning needs the run's {CONFIG}, which is not there; restore it, or leave out --finetuned"
        )
    judged = _Judged()
    seed = os.environ.get("PL_GLOBAL_SEED")
    try:
        with isolate_rng():
            evaluate_again(checkpoint, run / CONFIG, judged)
    finally:  # what the process had seeded before is its own
        os.environ.pop("PL_GLOBAL_SEED", None)
        os.environ |= {} if seed is None else {"PL_GLOBAL_SEED": seed}
    return judged.rows


def _prediction_of(checkpoint: Path) -> str:
    """The class by which the clients of a run predict; empty where that is the network alone, or not known."""
    run = run_of(checkpoint)
    chosen = None if run is None else Run(run).config.get("prediction")
    return str(chosen["class_path"]).rpartition(".")[2] if isinstance(chosen, dict) else ""


class _Judged(Callback):
    """Keeps the models that an evaluation is of, [m, width] on the CPU."""

    rows: Tensor

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Fine-tune once more, with the same draws."""
        references = pl_module.evaluated_models()
        self.rows = pl_module.bank.rows("trained")[references.owners].cpu()
        pl_module.bank.abandon()


def _write(content: dict, client: int, folder: Path, rows: Tensor | None) -> Path:
    about = content["dfl_lightning"]
    file = folder / f"client_{client}.safetensors"
    state = reported_state(content, client) if rows is None else state_of_row(about, rows[client])
    what = {"client": str(client), "network": about["network"]["name"]}
    save_file(state, file, metadata=what if rows is None else {**what, "finetuned": "true"})
    return file


def export_as_asked(options: argparse.Namespace) -> int:
    """Do what `dfl-export` was asked for; the options have the names of the arguments of `export`."""
    with quiet_lightning():
        warnings.showwarning = lambda message, *where, **more: print(f"dfl-export: warning: {message}", file=sys.stderr)
        try:
            files, not_judged = _export(options.run, options.client, options.to, options.finetuned)
        except Exception as error:
            sentence = _users_mistake(error)
            if sentence is None or isinstance(error, UserError):
                raise
            raise UserError(sentence) from error
    print(f"{len(files)} model{'s' * (len(files) > 1)} in {files[0].parent}")
    prediction = _prediction_of(checkpoint_of(Path(options.run)))
    if prediction:
        print(f"they are the networks alone; the run's scores are of its prediction {prediction}, which is not in them")
    if not_judged:
        print("as they are before fine-tuning; the run's scores are of the models after it, which --finetuned writes")
    return 0


def _users_mistake(error: Exception) -> str | None:
    """What `dfl-test` would say, where an evaluation of the run fails."""
    from dfl_lightning.cli.command import users_mistake

    return users_mistake(error)
