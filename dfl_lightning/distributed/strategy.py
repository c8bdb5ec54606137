"""The strategy of runs with several processes, for example `--trainer.devices 8`, each with its own clients.

Lightning launches the processes, connects them and gives each its device; nothing is averaged between them.
`communicator.py` distributes the clients.
"""

from __future__ import annotations

import os
from abc import abstractmethod
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric.plugins import CheckpointIO
from lightning.pytorch.strategies import DDPStrategy, Strategy, StrategyRegistry
from torch import nn
from torch.distributed.rendezvous import rendezvous

from dfl_lightning.distributed import notices
from dfl_lightning.distributed.communicator import Ranks
from dfl_lightning.distributed.connection import LostProcess, exchange, hide
from dfl_lightning.distributed.environment import check_launch
from dfl_lightning.distributed.launcher import Launcher, launched_by_another, leave, lost_child, lost_parent
from dfl_lightning.utils.errors import UserError, nearest

NAME = "clients"
BACKENDS = "cpu:gloo,cuda:nccl"
"""Backends that exchange tensors between processes on GPUs, by the tensors' device."""

PATIENCE = 1800.0
"""Seconds that a process waits for another one by default, as in torch."""

SAME = ("auto", "ddp", NAME)
"""Names of the strategy, which all mean the same."""


class RowsCheckpointIO(CheckpointIO):
    """Base class for reading and writing checkpoints in which each process may read and write its own rows only.

    Attributes:
        in_pieces: True if each process writes its own rows.
    """

    in_pieces = False

    @abstractmethod
    def read(
        self, path: Any, map_location: Any = "cpu", mmap: bool | None = None, verify: bool = True
    ) -> dict[str, Any]:
        """Read a checkpoint.

        Args:
            path: the file or folder.
            map_location: see `torch.load`.
            mmap: True to leave large parts in the file until they are used.
            verify: True to compare the file with its checksums.
        """


class ClientStrategy(DDPStrategy):
    """Processes of Lightning's DDP without its gradients: each process has the models of its own clients."""

    strategy_name = NAME

    def _configure_launcher(self) -> None:
        assert self.cluster_environment is not None
        self._launcher = Launcher(self.cluster_environment, self.num_processes, self.num_nodes)

    def setup_distributed(self) -> None:
        """Connect the processes; those on GPUs also by gloo, for tensors on the CPU (see `Ranks`)."""
        if self.process_group_backend is None and self.root_device.type == "cuda":
            self._process_group_backend = BACKENDS
        if not dist.is_initialized():
            self.set_world_ranks()
            self._connect()
        super().setup_distributed()  # it keeps the existing connection
        notices.begin(None if launched_by_another() else leave)  # the first process ends those that it has started

    def _connect(self) -> None:
        """Connect to the other processes; as loading takes long, the time-out is longer than that of exchanges.

        Raises:
            UserError: not all processes have connected in time.
        """
        environment, start = self.cluster_environment, max(self._patience, PATIENCE)
        assert environment is not None
        rank, count = environment.global_rank(), environment.world_size()
        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
        try:
            store, *_ = next(rendezvous("env://", rank, count, timeout=timedelta(seconds=start)))
        except dist.DistStoreError as error:
            raise UserError(
                f"not all of the {count} processes of the run have connected within {start:g} seconds"
            ) from error
        dist.init_process_group(
            self._get_process_group_backend(),
            store=dist.PrefixStore("run", store),
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=self._patience),
            device_id=self.root_device if self.root_device.type != "cpu" else None,
        )
        notices.join(dist.PrefixStore("notices", store), rank, count)

    @property
    def _patience(self) -> float:
        """Seconds that a process waits for another one."""
        return PATIENCE if self._timeout is None else self._timeout.total_seconds()

    def setup(self, trainer: Any) -> None:
        """Set up the trainer without DDP's copy of the first process' models to the others."""
        Strategy.setup(self, trainer)

    def configure_ddp(self) -> None:
        """Skip DDP's wrapper, as clients have no common gradients."""

    def _setup_model(self, model: nn.Module) -> nn.Module:  # type: ignore[override]
        return model

    def lightning_module_state_dict(self) -> dict[str, Any]:
        """Return the module's state at the round boundary; the first process gets the rows of all processes.

        All processes must call this. If each process writes its own rows, none are gathered.
        """
        state = super().lightning_module_state_dict()
        if self._in_pieces:
            return state
        whole = {name: self._ranks.gather_rows(rows) for name, rows in state.items() if name.startswith("bank.rows.")}
        return {**state, **whole}

    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any = None) -> None:
        """Save by the first process, or in pieces by all; if saving fails in one process, it fails in all."""
        if self._in_pieces:
            self.checkpoint_io.save_checkpoint(checkpoint, filepath, storage_options)
        else:
            with self._ranks.together():
                super().save_checkpoint(checkpoint, filepath, storage_options)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> dict[str, Any]:
        """Load the rows of this process' clients only; the first process of each machine verifies the checksums."""
        if not isinstance(self.checkpoint_io, RowsCheckpointIO):
            return super().load_checkpoint(checkpoint_path, weights_only)
        with self._ranks.together():
            return self.checkpoint_io.read(checkpoint_path, mmap=True, verify=self.local_rank == 0)

    def load_model_state_dict(self, checkpoint: Any, strict: bool = True) -> None:
        """Load the module's state; if one process reads a damaged piece, all processes raise."""
        with self._ranks.together():
            super().load_model_state_dict(checkpoint, strict)

    # --- exchanges of Lightning -----------------------------------------------------------------------------------
    def barrier(self, name: str | None = None) -> None:
        """Wait for all processes; hide the connection after the barrier that follows the data's preparation."""
        with exchange():
            super().barrier(name)
        if name == "pre_setup":
            hide(self._patience)

    def broadcast(self, obj: Any, src: int = 0) -> Any:
        """Send an object of process `src` to all processes and return it."""
        with exchange():
            return super().broadcast(obj, src)

    def reduce(self, tensor: Any, group: Any = None, reduce_op: Any = "mean") -> Any:
        """Return the tensor as it is: all processes log the same values, and one that logs alone must not wait."""
        return tensor

    def reduce_boolean_decision(self, decision: bool, all: bool = True) -> bool:
        """Return True if all processes, or at least one (`all=False`), have decided True."""
        decisions = torch.tensor(int(decision), device=self.root_device)
        with exchange():
            dist.all_reduce(decisions)
        return int(decisions) == self.world_size if all else int(decisions) > 0

    @property
    def _in_pieces(self) -> bool:
        return isinstance(self.checkpoint_io, RowsCheckpointIO) and self.checkpoint_io.in_pieces

    @property
    def _ranks(self) -> Ranks:
        module: Any = self.lightning_module
        return module.bank.ranks


StrategyRegistry.register(NAME, ClientStrategy, description="each process has its own clients", override=True)


def strategy_for(strategy: str | Strategy, devices: Any, num_nodes: Any, timeout: float = PATIENCE) -> str | Strategy:
    """Return the strategy to pass to Lightning for the user's choice.

    Args:
        strategy: a name or an object.
        devices: `trainer.devices`.
        num_nodes: `trainer.num_nodes`.
        timeout: `trainer.process_timeout`, in seconds; only for a strategy that is given by name.

    Raises:
        UserError: the strategy is unknown or would synchronise clients, or the processes were not started.
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
    if str(devices) == "1" and str(num_nodes) == "1":
        return "auto"
    return ClientStrategy(timeout=timedelta(seconds=timeout))


def look_for_the_others() -> None:
    """Raise if another process of the run has failed or ended; long work calls this regularly.

    Raises:
        LostProcess: another process has failed or ended.
    """
    notice = notices.latest()
    lost = notice.sentence if notice else lost_child() or lost_parent()
    if lost:
        raise LostProcess(lost)
