"""Messages of each link, over the whole run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dfl_lightning.callbacks.base import Monitor
from dfl_lightning.links import LinkMemory
from dfl_lightning.round.record import Round
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_npz

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation

FILE = "link_messages.npz"


class LinkMessages(Monitor):
    """Messages of each link, summed over the run, as `link_messages.npz` in the run folder.

    The file has an entry for each link that was used: `receiver` and `sender` (servers come after the clients),
    `models` (number of whole models), `parts` (number of other messages) and `bytes`. The sum of `bytes` equals the sum
    of the column `bytes_received` times the number of clients. The file is written with each checkpoint and at the end.
    A monitor that is added to a resumed run counts from that round on.
    """

    state = ("models", "parts", "bytes")

    def __init__(self) -> None:
        self._count_from_nothing(0)

    def start(self, federation: Federation) -> None:
        """Begin without used links."""
        self._count_from_nothing(federation.num_nodes)

    def _count_from_nothing(self, nodes: int) -> None:
        self.models, self.parts, self.bytes = (LinkMemory.empty(nodes, torch.int64) for _ in self.state)

    def on_round_end(self, round: Round) -> None:
        """Add the round's messages."""
        sent = round.ledger.by_link(len(round.bank.layout.shared))
        for total, more in ((self.models, sent.models), (self.parts, sent.parts), (self.bytes, sent.bytes)):
            total.add(sent.links, more)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Write the file together with a checkpoint, so that both are of the same round."""
        self._write(trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write the file at the end, also in a run without checkpoints."""
        self._write(trainer, pl_module)

    def _write(self, trainer: Any, module: Any) -> None:
        """Write the sums of all complete rounds; those of a round that is not complete are left out."""
        folder = trainer.run_folder
        if not trainer.is_global_zero or folder is None or not folder.is_open:
            return
        complete = LinkMessages()
        complete.load_state_dict(module.bank.boundary.callbacks.get(self.state_key, self.state_dict()))
        links = complete.models.links
        ids = {"receiver": links.receivers.int().numpy(), "sender": links.senders.int().numpy()}
        arrays = {name: getattr(complete, name).values.numpy() for name in self.state}
        file = folder.path / FILE
        try:
            write_npz(file, {**ids, **arrays})
        except OSError as error:
            raise UserError(f"{file}: cannot be written ({error.strerror})") from error
