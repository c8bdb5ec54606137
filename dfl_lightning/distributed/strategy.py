"""Several processes, each with its own clients: what `--trainer.devices 8` means.

Lightning launches the processes, connects them and gives each its device; nothing is averaged between them. Which
process has which clients is decided in `communicator.py`.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, Strategy, StrategyRegistry
from torch import nn

from dfl_lightning.distributed.communicator import LostProcess, Ranks
from dfl_lightning.distributed.environment import check_launch
from dfl_lightning.distributed.launcher import Launcher, lost_child, lost_parent
from dfl_lightning.utils.errors import UserError, nearest

NAME = "clients"
BACKENDS = "cpu:gloo,cuda:nccl"
"""What carries tensors between processes on GPUs, by where the tensors are."""

SAME = ("auto", "ddp", NAME)
"""Names of the strategy: for clients they all mean the same."""


class RowsCheckpointIO(CheckpointIO):
    """Reads and writes checkpoints of which each process may want its own rows only.

    Attributes:
        in_pieces: whether every process writes its own rows.
    """

    in_pieces = False

    @abstractmethod
    def read(
        self, path: Any, map_location: Any = "cpu", mmap: bool | None = None, verify: bool = True
    ) -> dict[str, Any]:
        """A checkpoint.

        Args:
            path: the file or folder.
            map_location: see `torch.load`.
            mmap: leave large parts in the file until they are read.
            verify: compare what is read with its checksums.
        """


class ClientStrategy(DDPStrategy):
    """Processes of Lightning's DDP without its gradients: each process has the models of its own clients."""

    strategy_name = NAME

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_distributed(self) -> None:
        """On GPUs by gloo too, for what is on the CPU; see `Ranks`."""
        if self.process_group_backend is None and self.root_device.type == "cuda":
            self._process_group_backend = BACKENDS
        super().setup_distributed()

    def setup(self, trainer: Any) -> None:
        """Without DDP's copy of the first process' models to the others."""
        Strategy.setup(self, trainer)

    def configure_ddp(self) -> None:
        """Nothing to wrap: clients have no common gradients."""

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        return model

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """The boundary with the rows of all processes, in the first of them; all of them call this."""
        state = super().lightning_module_state_dict()
        if self._in_pieces:
            return state
        whole = {name: self._ranks.gather_rows(rows) for name, rows in state.items() if name.startswith("bank.rows.")}
        return {**state, **whole}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """By the first process, or in pieces by all."""
        if self._in_pieces:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)
        else:
            super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Verified by the first process of each machine; each reads the rows of its own clients only."""
        if not isinstance(self.checkpoint_io, RowsCheckpointIO):
            return super().load_checkpoint(checkpoint_path, weights_only)
        with self._ranks.together():
            return self.checkpoint_io.read(checkpoint_path, mmap=True, verify=self.local_rank == 0)

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """A damaged piece, which one process reads, is refused by all."""
        with self._ranks.together():
            super().load_model_state_dict(checkpoint, strict)

    @property
    def _in_pieces(self) -> bool:
        return isinstance(self.checkpoint_io, RowsCheckpointIO) and self.checkpoint_io.in_pieces

    @property
    def _ranks(self) -> Ranks:
        module: Any = self.lightning_module
        return module.bank.ranks


StrategyRegistry.register(NAME, ClientStrategy, description="each process has its own clients", override=True)


def strategy_for(strategy: str | Strategy, devices: Any, num_nodes: Any) -> str | Strategy:
    """The strategy that Lightning is given for the one that the user asked for.

    Args:
        strategy: a name or an object.
        devices: `trainer.devices`.
        num_nodes: `trainer.num_nodes`.

    Raises:
        UserError: a strategy that would synchronise clients, or processes that were not started.
    """
    check_launch(devices, num_nodes)
    if isinstance(strategy, ClientStrategy):
        return strategy
    if not isinstance(strategy, str) or strategy not in SAME:
        name = strategy if isinstance(strategy, str) else type(strategy).__name__
        remedy = f"; use {NAME} (or auto, or ddp: all mean the same)"
        if isinstance(strategy, str) and strategy not in StrategyRegistry.available_strategies():
            raise UserError(f"trainer.strategy={name}: there is no such strategy{nearest(name, SAME) or remedy}")
        raise UserError(f"trainer.strategy={name} would synchronise clients{remedy}")
    return "auto" if str(devices) == "1" and str(num_nodes) == "1" else NAME


def look_for_the_others() -> None:
    """To be called regularly during long work.

    Raises:
        LostProcess: another process of the run on this machine has gone.
    """
    lost = lost_child() or lost_parent()
    if lost:
        raise LostProcess(lost)
