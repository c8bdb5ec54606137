"""The export of clients' models as plain state dicts."""

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

    In a server topology a client's model has the server's shared parameters and the client's personal ones, as in the
    evaluation. Models are exported without the fine-tuning before an evaluation, unless `finetuned` is True.

    Args:
        run: a run folder, or a checkpoint file.
        clients: ids of the clients; None: all.
        to: the folder for the files; default `<run folder>/export`.
        finetuned: fine-tune the models as the run does before it evaluates them, with the same random numbers. This
            needs the run's `config.yaml`, its data, and the time of one evaluation of all clients.

    Returns:
        The files `client_<id>.safetensors`, one for each client.

    Raises:
        UserError: the checkpoint or a client does not exist, or the run cannot fine-tune.
    """
    return _export(run, clients, to, finetuned)[0]


def _export(
    run: str | Path, clients: list[int] | None, to: str | Path | None, finetuned: bool
) -> tuple[list[Path], bool]:
    """Export models; return the files, and True if the run's scores are of fine-tuned models instead of these."""
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
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another with --out") from error


def _finetuned(checkpoint: Path) -> Tensor:
    """Evaluate a checkpoint again, and return the fine-tuned models of all clients, [m, width]."""
    from dfl_lightning.cli.command import evaluate_again

    run = run_of(checkpoint)
    if run is None or not (run / CONFIG).is_file():
        where = run or checkpoint
        raise UserError(
            f"{where}: fine-tuning needs the run's {CONFIG}, which is missing; restore it, or leave out --finetuned"
        )
    collector = _FinetunedModels()
    seed = os.environ.get("PL_GLOBAL_SEED")
    try:
        with isolate_rng():
            evaluate_again(checkpoint, run / CONFIG, collector)
    finally:  # restore the seed that the process had before
        os.environ.pop("PL_GLOBAL_SEED", None)
        os.environ |= {} if seed is None else {"PL_GLOBAL_SEED": seed}
    return collector.rows


def _prediction_of(checkpoint: Path) -> str:
    """Return the name of the run's prediction policy; empty if clients predict with the network alone, or unknown."""
    run = run_of(checkpoint)
    chosen = None if run is None else Run(run).config.get("prediction")
    return str(chosen["class_path"]).rpartition(".")[2] if isinstance(chosen, dict) else ""


class _FinetunedModels(Callback):
    """Callback that keeps the evaluated models after fine-tuning, [m, width] on the CPU."""

    rows: Tensor

    def on_test_end(self, trainer: Any, pl_module: Any) -> None:
        """Keep the models, which are fine-tuned once more with the same random numbers."""
        references = pl_module.evaluated_models()
        self.rows = pl_module.bank.rows("trained")[references.owners].cpu()
        pl_module.bank.abandon()


def _write(content: dict, client: int, folder: Path, rows: Tensor | None) -> Path:
    about = content["dfl_lightning"]
    file = folder / f"client_{client}.safetensors"
    state = reported_state(content, client) if rows is None else state_of_row(content, rows[client])
    what = {"client": str(client), "network": about["network"]["name"]}
    save_file(state, file, metadata=what if rows is None else {**what, "finetuned": "true"})
    return file


def export_as_asked(options: argparse.Namespace) -> int:
    """Export models for `dfl-export`, and print which models they are; the options are the arguments of `export`."""
    with quiet_lightning():
        warnings.showwarning = lambda message, *where, **more: print(f"dfl-export: warning: {message}", file=sys.stderr)
        try:
            files, not_evaluated = _export(options.run, options.client, options.out, options.finetuned)
        except Exception as error:
            sentence = _users_mistake(error)
            if sentence is None or isinstance(error, UserError):
                raise
            raise UserError(sentence) from error
    print(f"{len(files)} model{'s' * (len(files) > 1)} in {files[0].parent}")
    prediction = _prediction_of(checkpoint_of(Path(options.run)))
    if prediction:
        print(f"they are the networks alone; the run's scores are of its prediction {prediction}, which is not in them")
    if not_evaluated:
        print("as they are before fine-tuning; the run's scores are of the models after it, which --finetuned writes")
    return 0


def _users_mistake(error: Exception) -> str | None:
    """Return the message of `dfl-test` about an error; imported late, since the module loads much."""
    from dfl_lightning.cli.command import users_mistake

    return users_mistake(error)
