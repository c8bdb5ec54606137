"""Clients' models from the content of a checkpoint, as state dicts of the plain network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dfl_lightning.checkpoints.io import checkpoint_of, is_checkpoint, read_checkpoint
from dfl_lightning.checkpoints.names import FOLDER, LAST
from dfl_lightning.utils.errors import UserError


def checked_content(run: str | Path, clients: list[int] | None, finetuned: bool = False) -> dict[str, Any]:
    """Read a run's checkpoint, and check that it has the models that are wanted.

    Args:
        run: run folder or checkpoint.
        clients: ids of the clients whose models are wanted; None: ids are not checked.
        finetuned: True if fine-tuned models are wanted.

    Returns:
        The content of the checkpoint.

    Raises:
        UserError: the checkpoint or a client does not exist, or clients do not have one model each.
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
            f"{run}: the run has several servers, and a client is evaluated with the server's model that fits its data "
            "best; a single model for each client cannot be exported"
        )
    for client in clients or []:
        if not 0 <= client < about["clients"]:
            raise UserError(f"{run}: client {client} does not exist; the run has clients 0 to {about['clients'] - 1}")
    return content


def reported_state(content: dict, client: int) -> dict[str, Tensor]:
    """Return the state dict of the model with which a client is evaluated.

    It is the client's row; if a server has the model, the shared parameters are those of the server's row.

    Args:
        content: content of a checkpoint.
        client: id of the client, from 0.
    """
    about = content["dfl_lightning"]
    models = content["state_dict"][f"bank.rows.{about['reported']}"]
    row = models[client].clone()
    if about["of_server"]:
        for start, stop in about["network"]["shared"]:
            row[start:stop] = models[about["clients"], start:stop]
    return state_of_row(content, row)


def state_of_row(content: dict, row: Tensor) -> dict[str, Tensor]:
    """Convert a row to a state dict of the plain network, with the base that all clients share.

    Args:
        content: content of a checkpoint: shapes, types and names of the network's tensors, and the base.
        row: a model, [width].
    """
    network = content["dfl_lightning"]["network"]
    common = network.get("base", {"tensors": {}})["tensors"]
    tensors = {
        name: content["state_dict"][f"bank.base.{name}"].to(row.device, getattr(torch, dtype))
        for name, (_, dtype) in common.items()
    }
    start = 0
    for name, (shape, dtype) in network["parameters"].items():
        size = int(torch.tensor(shape).prod()) if shape else 1
        values = row[start : start + size].reshape(shape)
        kind = getattr(torch, dtype)
        tensors[name] = (values if kind.is_floating_point else values.round()).to(kind)
        start += size
    return {name: tensors[column].clone() for name, column in network["names"].items()}
