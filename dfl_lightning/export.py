"""`dfl-export`: clients' models out of a run, as plain state dicts."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

import torch
from safetensors.torch import save_file
from torch import Tensor

from dfl_lightning.checkpoints import FOLDER, LAST, is_checkpoint, read_checkpoint
from dfl_lightning.errors import UserError


def export(run: str | Path, clients: list[int] | None = None, to: str | Path | None = None) -> list[Path]:
    """Write clients' models as safetensors that load into the plain network.

    In a server topology a client's model is the server's shared part with the client's personal one, as evaluated.

    Args:
        run: a run folder, or a checkpoint file.
        clients: which; None: all.
        to: the folder for the files; default `<run folder>/export`.

    Returns:
        The files, `client_<id>.safetensors` each.

    Raises:
        UserError: no checkpoint there, or no such client.
    """
    path = Path(run)
    checkpoint = path if is_checkpoint(path) else path / FOLDER / LAST
    if not is_checkpoint(checkpoint):
        raise UserError(f"{run}: no {FOLDER}/{LAST} in there; give a run folder or a checkpoint")
    content = read_checkpoint(checkpoint)
    about = content["dfl_lightning"]
    if about["nodes"] > about["clients"] + 1:
        raise UserError(
            f"{run}: a run with several servers, of whose models a client takes the one that fits its data best; "
            "there is no one model a client to export"
        )
    chosen = list(range(about["clients"])) if clients is None else clients
    for client in chosen:
        if not 0 <= client < about["clients"]:
            raise UserError(f"{run}: there is no client {client}; the run has clients 0 to {about['clients'] - 1}")
    folder = Path(to) if to is not None else (path if path != checkpoint else path.parent.parent) / "export"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_write(content, client, folder) for client in chosen]
    except OSError as error:
        raise UserError(f"{folder}: cannot be written ({error.strerror}); choose another with --to") from error


def _write(content: dict, client: int, folder: Path) -> Path:
    about = content["dfl_lightning"]
    file = folder / f"client_{client}.safetensors"
    save_file(
        reported_state(content, client), file, metadata={"client": str(client), "network": about["network"]["name"]}
    )
    return file


def reported_state(content: dict, client: int) -> dict[str, Tensor]:
    """The state dict of a client's reported model out of a checkpoint's content."""
    about = content["dfl_lightning"]
    models = content["state_dict"][f"bank.rows.{about['reported']}"]
    row = models[client].clone()
    if about["nodes"] > about["clients"]:
        for start, stop in about["network"]["shared"]:
            row[start:stop] = models[about["clients"], start:stop]
    own, at = {}, 0
    for name, (shape, dtype) in about["network"]["parameters"].items():
        size = int(torch.tensor(shape).prod()) if shape else 1
        values = row[at : at + size].reshape(shape)
        kind = getattr(torch, dtype)
        own[name] = (values if kind.is_floating_point else values.round()).to(kind)
        at += size
    return {name: own[column].clone() for name, column in about["network"]["names"].items()}


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, like every other refusal."""
        self.exit(2, f"dfl-export: {message}; --help says what it takes\n")


def main(argv: list[str] | None = None) -> int:
    """The command, from its words to its exit code: 0 done, 2 a user's mistake."""
    parser = _Parser(prog="dfl-export", description="Write clients' models as safetensors.")
    parser.add_argument("run", help="a run folder or a checkpoint")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--client", type=int, nargs="+", help="which clients (default: all)")
    which.add_argument("--all", action="store_true", help="all clients")
    parser.add_argument("--to", help="the folder for the files (default: RUN/export)")
    words = parser.parse_args(argv)
    try:
        files = export(words.run, words.client, words.to)
    except UserError as error:
        if os.environ.get("DFL_DEBUG", "") not in ("", "0"):
            raise
        print(f"dfl-export: {error}", file=sys.stderr)
        return 2
    print(f"{len(files)} model{'s' * (len(files) > 1)} in {files[0].parent}")
    return 0
