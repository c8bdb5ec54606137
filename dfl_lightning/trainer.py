"""A Lightning Trainer whose epochs are communication rounds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import networkx as nx
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Callback, LightningDataModule, LightningModule
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.strategies import SingleDeviceStrategy, Strategy
from lightning.pytorch.trainer.states import TrainerFn, TrainerStatus

from dfl_lightning import trainer_callbacks as chosen
from dfl_lightning import trainer_options as lightnings
from dfl_lightning.bank.card import gpu_failures, one_sentence
from dfl_lightning.callbacks import Policy
from dfl_lightning.checkpoints.io import AtomicCheckpointIO, RoundCheckpoint, ShardedCheckpointIO
from dfl_lightning.distributed.connection import connected
from dfl_lightning.distributed.strategy import PATIENCE, ClientStrategy, strategy_for
from dfl_lightning.engines.factory import ENGINES
from dfl_lightning.engines.stacked.gpu.cuda_graphs import can_record
from dfl_lightning.loop import LocalWork, RoundLoop, checkpoint_by_word
from dfl_lightning.round.callback import RoundCallback
from dfl_lightning.round.run.fits import begin_fit, end_fit
from dfl_lightning.runs.run_folder import RunFolder
from dfl_lightning.trainer_evaluations import ClientEvaluations, clients_data, last_checkpoint, no_data, refuse_code
from dfl_lightning.utils.code.constructor_arguments import record
from dfl_lightning.utils.errors import UserError, nearest
from dfl_lightning.utils.lightning_warnings import quiet_lightning

if TYPE_CHECKING:
    from dfl_lightning.engines.engine import Engine
    from dfl_lightning.round.run.hosts import RunModule


class DFLTrainer(ClientEvaluations):
    """A Trainer whose epochs are communication rounds.

    Args:
        max_rounds: number of communication rounds (another name of `max_epochs`); default 100.
        topology: the links between clients: a topology file, a graph file, the name of a shipped topology, a networkx
            graph of the clients, or a matrix [m, m] whose row receives from its columns.
        engine: `stacked`: all clients of a cohort are trained side by side; `loop`: one after the other; `auto`:
            stacked if the network allows it.
        checkpoint_every: rounds between two saves of `checkpoints/last.ckpt`; it is also saved at the end, and when a
            signal or an error ends the run.
        checkpoints: `full`: one file; `sharded`: a folder to which each process writes its clients' models, so that
            no process has to hold all. A run can be resumed from either with any number of processes.
        keep_comparisons: write the similarities of all pairs of clients, if the method compares them, into the run
            folder; never above 1,000 clients.
        run_name: the run's folder is `<default_root_dir>/<run_name>/<time>`.
        default_root_dir: folder of the run folders; default `runs`.
        accelerator: `cpu`, `gpu`, or `auto`: a GPU if CUDA has one, otherwise the CPU.
        devices: number of processes, each with its own clients, on a GPU each or on the CPU's cores.
        strategy: `auto`, `ddp` and `clients` mean the same: nothing is averaged between processes.
        cohorts: least number of cohorts, groups of clients that are trained side by side; several processes need at
            least one each. Default: as many as are fast on a CPU, as few as the memory allows on a GPU.
        cuda_graphs: on a GPU, record the steps of local training once and replay them, if that is possible; results
            stay the same up to rounding. `auto`: where a GPU is used and replays are measured to be faster.
        precision: `32`, float32 in products and convolutions alike; `tf32`, both may be TensorFloat32 on a GPU that
            has it (on a CPU the same as `32`); `64-true`; or `bf16-mixed` (layers compute in bfloat16, models stay in
            float32).
        gradient_clip_val: largest gradient norm (or value, see `gradient_clip_algorithm`) of each client by itself.
        gradient_clip_algorithm: `norm` (default) or `value`.
        logger: Lightning loggers in addition to the run folder's `metrics.csv`; `true`: TensorBoard if it is
            installed, otherwise CSV, in the folder `logs` of the run.
        log_clients: send each client's numbers of an evaluation to the loggers, as `test_acc/client_3`, in addition to
            their means; `clients.npz` always has them.
        enable_progress_bar: show a line about the round in progress.
        callbacks: policies and monitors of the round, and any callbacks of Lightning's.
        defaults: add `Gossip` if the callbacks have no selection, `Uniform` if they have no aggregation, and the
            commands' default monitors if they have no monitor.
        max_epochs: another name of `max_rounds`.
        fast_dev_run: one round that leaves no files.
        num_nodes: number of machines, started by torchrun or SLURM, each with `devices` processes.
        process_timeout: seconds that a process waits for another one, which may be stuck, before the run ends.
        enable_checkpointing: false: save no checkpoints, so that the run cannot be resumed.
        enable_model_summary: print Lightning's table of the model, which counts all clients together.
        kwargs: all other options of Lightning's Trainer.

    Raises:
        UserError: an option has a wrong value or no meaning for rounds; the message names the remedy.
    """

    def __init__(
        self,
        *,
        max_rounds: int | None = None,
        topology: str | os.PathLike[str] | dict[str, Any] | nx.Graph | Any = "complete",
        engine: str = "auto",
        checkpoint_every: int = 10,
        checkpoints: Literal["full", "sharded"] = "full",
        keep_comparisons: bool = True,
        run_name: str = "run",
        default_root_dir: str | Path | None = None,
        accelerator: str = "auto",
        devices: list[int] | int | str = 1,
        strategy: str | Strategy = "auto",
        cohorts: int | None = None,
        cuda_graphs: bool | Literal["auto"] = False,
        precision: str | int = "32",
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
        logger: Logger | Iterable[Logger] | bool | None = False,
        log_clients: bool = False,
        callbacks: list[Callback] | Callback | None = None,
        defaults: bool = True,
        max_epochs: int | None = None,
        fast_dev_run: bool | int = False,
        num_nodes: int = 1,
        process_timeout: float = PATIENCE,
        enable_checkpointing: bool | None = None,
        enable_progress_bar: bool = True,
        enable_model_summary: bool = False,
        **kwargs: Any,
    ) -> None:
        record(self, dict(locals()))
        rounds = lightnings.number_of_rounds(max_rounds, max_epochs, kwargs)
        lightnings.refuse_options(kwargs)
        quick = lightnings.is_quick(fast_dev_run)
        self.precision_of_rows = lightnings.precision_of_rows(precision)
        self.clip_norm, self.clip_value = lightnings.clipping(gradient_clip_val, gradient_clip_algorithm)
        _check_numbers(engine, process_timeout, cohorts, checkpoint_every)
        self.log_clients = lightnings.logs_clients(log_clients, bool(logger))
        self.topology, self.engine, self.cohorts = topology, engine, cohorts
        self.checkpoint_every, self.run_name = checkpoint_every, run_name
        self.keep_comparisons = keep_comparisons
        if Path(run_name).name != run_name:
            raise UserError(f"trainer.run_name={run_name}: it is the name of a folder in default_root_dir, not a path")
        if checkpoints not in ("full", "sharded"):
            raise UserError(f"trainer.checkpoints={checkpoints}; it is full or sharded")
        self.remarks: list[str] = []  # sentences for the banner
        self._remarks_before: tuple[str, ...] | None = None  # the remarks before the first fit
        self.replaced_monitors: list[str] = []  # default monitors that those named in a command replace
        self.phase_seconds: dict[str, float] = {}
        self.fork = False
        self.resumed_from: str | Path | None = None
        # An engine of an equal network, data and local training, which a run that is only set up can reuse.
        self.tried: Engine | None = None
        self.repeated_code: dict[str, dict[str, str]] = {}  # hashes of the user's own code by config of an earlier run
        self.config: dict[str, Any] | None = None  # the resolved configuration; None if no command set one
        self.command = ""  # the command as it was typed; empty if there was none
        if accelerator == "auto":  # never MPS, which has no float64
            accelerator = "gpu" if torch.cuda.is_available() else "cpu"
        given = list(callbacks) if isinstance(callbacks, (list, tuple)) else [c for c in [callbacks] if c is not None]
        given += chosen.default_callbacks(given) if defaults else []
        kept = enable_checkpointing is not False
        kwargs["num_sanity_val_steps"] = 0  # evaluating untrained models checks nothing and takes time
        kwargs["use_distributed_sampler"] = False
        kwargs["inference_mode"] = False  # an evaluation may fine-tune models, in buffers that rounds reuse
        self.runs_root = os.fspath(default_root_dir) if default_root_dir is not None else "runs"
        self.makes_logger = logger is True
        with quiet_lightning():
            # jsonargparse reads this call to find types, so it must be plain, without kwargs.get above.
            super().__init__(
                max_epochs=rounds,
                default_root_dir=default_root_dir,
                accelerator=accelerator,
                devices=devices,
                num_nodes=num_nodes,
                strategy=strategy_for(strategy, devices, num_nodes, process_timeout),
                callbacks=chosen.completed(given, enable_progress_bar, not quick, kept and not quick),
                logger=False if logger is True and not quick else logger,  # see `make_logger`
                fast_dev_run=1 if quick else False,
                enable_checkpointing=kept,
                enable_progress_bar=enable_progress_bar,
                enable_model_summary=enable_model_summary,
                **kwargs,
            )
        if self.precision == "tf32" and self.strategy.root_device.type == "cpu":
            self.remarks.append("trainer.precision=tf32 is the same as 32 on a CPU, which has no TensorFloat32")
        self.cuda_graphs = cuda_graphs
        if cuda_graphs is not False:
            _check_cuda_graphs(cuda_graphs, self.strategy.root_device)
        if type(self.strategy.checkpoint_io) is TorchCheckpointIO:
            in_pieces = ShardedCheckpointIO(lambda: cast("RunModule", self.lightning_module).bank)
            self.strategy.checkpoint_io = in_pieces if checkpoints == "sharded" else AtomicCheckpointIO()
        if not isinstance(self.strategy, (SingleDeviceStrategy, ClientStrategy)):
            strategy_for(self.strategy, devices, num_nodes)  # refuses, by name, a strategy that Lightning chose itself
        old = self.fit_loop
        self.fit_loop = RoundLoop(self, old.min_epochs, old.max_epochs)
        self.fit_loop.epoch_loop = LocalWork(self, old.min_steps, old.max_steps)

    # --- policies -----------------------------------------------------------------------------------------------
    def policies(self) -> Iterator[Policy]:
        """Iterate over the policies that take part."""
        return chosen.taking_part(self.callbacks)  # type: ignore[attr-defined]

    def policy(self, family: type[chosen.P]) -> chosen.P | None:
        """Return the policy of this family that takes part; None if there is none."""
        return chosen.policy_of(self.callbacks, family)  # type: ignore[attr-defined]

    def settle_policies(self) -> tuple[RoundCallback, ...]:
        """Return the policies and monitors that take part; see `trainer_callbacks.settle_policies`."""
        return chosen.settle_policies(self.callbacks)  # type: ignore[attr-defined]

    # --- the run ------------------------------------------------------------------------------------------------
    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time an operation of the bank or an engine, for the profiler and summary.json."""
        started = time.perf_counter()
        with cast(Any, self).profiler.profile(name):
            yield
        self.phase_seconds[name] = self.phase_seconds.get(name, 0.0) + time.perf_counter() - started

    @property
    def run_folder(self) -> RunFolder | None:
        """The callback that writes the run folder; None in a fast_dev_run."""
        return next((c for c in getattr(self, "callbacks", []) if isinstance(c, RunFolder)), None)

    @property
    def keeps_checkpoints(self) -> bool:
        """True if the run saves checkpoints, so that it can be resumed."""
        return any(isinstance(c, RoundCheckpoint) for c in self.callbacks)  # type: ignore[attr-defined]

    def _saved(self) -> str:
        """Describe what of the run is saved; empty if the run saves no checkpoints."""
        saving = (c.saved for c in self.callbacks if isinstance(c, RoundCheckpoint))  # type: ignore[attr-defined]
        return next(saving, "")

    @property
    def run(self) -> RunFolder:
        """The run folder, with its contents as arrays: `path`, `metrics`, `clients`, `graphs`, `summary`."""
        if self.run_folder is None:
            raise UserError("a fast_dev_run writes no run folder; leave fast_dev_run out")
        return self.run_folder

    @property
    def default_root_dir(self) -> str:
        """The run folder, so that stock callbacks and loggers write into it; before it exists, its root folder."""
        folder = self.run_folder
        return str(folder.path) if folder is not None and folder.path is not None else self.runs_root

    @property
    def precision(self) -> str:  # type: ignore[override]
        """The precision of models and arithmetic: `32-true`, `tf32`, `64-true` or `bf16-mixed`."""
        return self.precision_of_rows

    def fit(
        self,
        model: LightningModule,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: LightningDataModule | None = None,
        ckpt_path: str | Path | None = None,
        weights_only: bool | None = None,
        fork: bool = False,
    ) -> None:
        """Run rounds.

        Args:
            model: a `DFLModule`.
            train_dataloaders: not used, except that the datamodule may be given here, as Lightning allows.
            val_dataloaders: not used.
            datamodule: the clients' data, one of `dfl_lightning.data`.
            ckpt_path: continue from this checkpoint, or from a run folder's last one, in its run folder.
            weights_only: None or true; no code in a checkpoint is ever run.
            fork: with `ckpt_path`: write a new run folder and leave the old one as it is.
        """
        refuse_code(weights_only)
        datamodule = clients_data("fit", train_dataloaders, datamodule)
        if val_dataloaders is not None:
            raise no_data("fit")
        if fork and ckpt_path is None:
            raise UserError("fork starts a new run from a checkpoint; set ckpt_path to a run folder or a checkpoint")
        if self.run_folder is not None:
            self.run_folder.leave()
        ckpt_path = last_checkpoint(ckpt_path)
        if ckpt_path in ("best", "last"):  # looked up now, since the callbacks of an earlier fit are reset below
            ckpt_path = checkpoint_by_word(self, ckpt_path)
        self.fork, self.resumed_from = fork, ckpt_path
        parts = chosen.changed_by_rounds(self.callbacks, model)  # type: ignore[attr-defined]
        if hasattr(model, "last_fit"):  # Lightning and `setup` refuse other objects
            self.remarks[:] = [*self._first_remarks(), *begin_fit(self, cast("RunModule", model), datamodule, parts)]
        loop = cast("RoundLoop", self.fit_loop)
        surroundings = (gpu_failures(self._saved), lightnings.anomaly_in_one_sentence(), self._arithmetic, connected())
        with loop.restore_signal_handlers(), quiet_lightning(), one_sentence(), ExitStack() as around:
            for context in surroundings:
                around.enter_context(context)
            try:
                super().fit(model, datamodule=datamodule, ckpt_path=ckpt_path)
            except SystemExit as left:  # Lightning's answer to Ctrl-C
                raise left.__context__ if isinstance(left.__context__, KeyboardInterrupt) else left from None
            finally:
                end_fit(parts)
                if self.run_folder is not None:
                    self.run_folder.unlock()

    def _first_remarks(self) -> list[str]:
        """Return the remarks from before this trainer's first fit."""
        if self._remarks_before is None:
            self._remarks_before = tuple(self.remarks)
        return list(self._remarks_before)

    def make_logger(self, folder: Path) -> None:
        """Create the logger of `logger=True` in the run folder, whose name is not known before the run starts."""
        if self.makes_logger:
            kind = TensorBoardLogger if any(map(find_spec, ("tensorboard", "tensorboardX"))) else CSVLogger
            self.loggers = [kind(save_dir=folder, name="logs")]

    def __repr__(self) -> str:
        """Show the number of rounds, the policies, the topology and the engine."""
        if not hasattr(self, "fit_loop"):  # Lightning logs the trainer while it constructs it
            return "DFLTrainer()"
        names = " + ".join(type(policy).__name__ for policy in self.policies())
        topology = self.topology if isinstance(self.topology, (str, os.PathLike)) else type(self.topology).__name__
        return f"DFLTrainer(max_rounds={self.max_epochs}, {names}, topology={topology}, engine={self.engine})"

    def save_checkpoint(self, filepath: Any, weights_only: bool | None = None, storage_options: Any = None) -> None:
        """Save the last boundary.

        If the run was interrupted before it began, or because other code wrote into the boundary's rows, nothing is
        saved: Lightning's `OnExceptionCheckpoint` calls this method even then.
        """
        module = cast("RunModule", self.lightning_module)
        begun = module.is_set_up and (self.run_folder is None or self.run_folder.is_open)
        if (begun and module.bank.written_in_place() is None) or self.state.status != TrainerStatus.INTERRUPTED:
            super().save_checkpoint(filepath, weights_only, storage_options)

    def prepare(self, module: Any, datamodule: Any) -> None:
        """Set up a run as `fit` does, up to the first round, without training or writing anything.

        Args:
            module: a `DFLModule`.
            datamodule: the clients' data.
        """
        self.state.fn = TrainerFn.FITTING
        self.strategy._lightning_module = module
        module.trainer = self
        self.datamodule = datamodule
        datamodule.prepare_data()
        datamodule.setup("fit")
        with one_sentence(), gpu_failures(), self._arithmetic:
            module.setup("fit")


def _check_numbers(engine: str, process_timeout: float, cohorts: int | None, checkpoint_every: int) -> None:
    if engine not in ENGINES:
        raise UserError(f"engine={engine}: no such engine{nearest(engine, ENGINES)}; choose {', '.join(ENGINES)}")
    if not process_timeout > 0:
        raise UserError(f"trainer.process_timeout={process_timeout}; it is a number of seconds, above 0")
    if cohorts is not None and cohorts < 1:
        raise UserError(f"trainer.cohorts={cohorts}; it is a number of groups of clients, 1 or more")
    if checkpoint_every < 1:
        raise UserError(f"trainer.checkpoint_every={checkpoint_every}; it is a number of rounds, 1 or more")


def _check_cuda_graphs(wanted: bool | str, device: torch.device) -> None:
    if wanted == "auto":
        return
    if wanted is not True:
        raise UserError(f"trainer.cuda_graphs={wanted}; choose true, false or auto")
    if device.type != "cuda":
        raise UserError(
            f"trainer.cuda_graphs=true needs a GPU with CUDA, and this run is on {device.type}; leave it out"
        )
    if not can_record():
        lacking = f"torch.cuda.MemPool, which torch {torch.__version__} does not have"
        raise UserError(f"trainer.cuda_graphs=true needs {lacking}; update torch, or leave it out")
