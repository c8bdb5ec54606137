"""Clients' models out of a checkpoint's content, as state dicts of the plain network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.checkpoints.io import checkpoint_of, is_checkpoint, read_checkpoint
from dfl_lightning.checkpoints.names import FOLDER, LAST
from dfl_lightning.utils.errors import UserError


def checked_content(run: str | Path, clients: list[int] | None, finetuned: bool = False) -> dict[str, Any]:
    """The content of a run's checkpoint, which has a model for each of the clients.

    Args:
        run: run folder or checkpoint.
        clients: ids that are asked for; None: no check of ids.
        finetuned: whether fine-tuned models are asked for.

    Raises:
        UserError: there is no checkpoint, no such client, or no single model for each client.
    """
    checkpoint = checkpoint_of(Path(run))
    if not is_checkpoint(checkpoint):
        raise UserError(f"{run}: no {FOLDER}/{LAST} in there; give a run folder or a checkpoint")
    content: dict[str, Any] = read_checkpoint(checkpoint)
    about = content["dfl_lightning"]
    if finetuned and not about.get("finetune_epochs", 0):
        raise UserError(f"{run}: the run does not fine-tune models (model.finetune_epochs is 0); leave out --finetuned")
    if about["nodes"] > about["clients"] + 1 and not finetuned:
        raise UserError(
            f"{run}: a run with several servers, of whose models a client takes the one that fits its data best; "
            "there is no one model a client to export"
        )
    for client in clients or []:
        if not 0 <= client < about["clients"]:
            raise UserError(f"{run}: there is no client {client}; the run has clients 0 to {about['clients'] - 1}")
    return content


def reported_state(content: dict, client: int) -> dict[str, Tensor]:
    """Return the state dict of a client's reported model: its row, or a server's with the client's personal columns.

    Args:
        content: of a checkpoint.
        client: its id.
    """
    about = content["dfl_lightning"]
    models = content["state_dict"][f"bank.rows.{about['reported']}"]
    row = models[client].clone()
    if about["of_server"]:
        for start, stop in about["network"]["shared"]:
            row[start:stop] = models[about["clients"], start:stop]
    return state_of_row(about, row)


def state_of_row(about: dict, row: Tensor) -> dict[str, Tensor]:
    """A row as a state dict of the plain network.

    Args:
        about: the entry `dfl_lightning` of a checkpoint: shapes, types and names of the network's tensors.
        row: a model, [width].
    """
    own, at = {}, 0
    for name, (shape, dtype) in about["network"]["parameters"].items():
        size = int(torch.tensor(shape).prod()) if shape else 1
        values = row[at : at + size].reshape(shape)
        kind = getattr(torch, dtype)
        own[name] = (values if kind.is_floating_point else values.round()).to(kind)
        at += size
    return {name: own[column].clone() for name, column in about["network"]["names"].items()}
