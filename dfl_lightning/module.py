"""The LightningModule around the bank: one network for all clients, and their local training."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import LRSchedulerCallable, OptimizerCallable
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor, nn
from torchmetrics import Metric

from dfl_lightning import evaluation
from dfl_lightning.bank.bank import Bank
from dfl_lightning.bank.references import References
from dfl_lightning.build import build_run, parts_of_graphs, schedule_draws
from dfl_lightning.build_checks import refuse_broken_start
from dfl_lightning.callbacks.base import honest_clients
from dfl_lightning.checkpoints.compatibility import check_fingerprint, check_rounds, fingerprint
from dfl_lightning.checkpoints.history import resumed_history, settings_text
from dfl_lightning.checkpoints.own_code import CODE, about_changes
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.optimizing.optimizers import DEFAULT_OPTIMIZER, Hyperparameters, name_of
from dfl_lightning.engines.optimizing.schedule import Schedule
from dfl_lightning.functional import of_clients, over_clients, without_mean
from dfl_lightning.metrics import columns_of
from dfl_lightning.models import Network
from dfl_lightning.objectives import Duration, Objective, Plain
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.run.client_warnings import ClientWarnings
from dfl_lightning.round.run.fit import Fit
from dfl_lightning.round.run.parts import RunParts
from dfl_lightning.runs.columns import undefined_numbers
from dfl_lightning.tasks import Task
from dfl_lightning.utils.code.constructor_arguments import record
from dfl_lightning.utils.code.module_copies import uncompiled
from dfl_lightning.utils.code.source_code import ModuleSource, hashes_of
from dfl_lightning.utils.code.source_of_objects import sources_of
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import no_global_draws

if TYPE_CHECKING:
    from dfl_lightning.trainer import DFLTrainer


class DFLModule(LightningModule):
    """The clients' models and their local training.

    Args:
        network: the network that every client has a copy of: one of `dfl_lightning.models` or any module that maps
            inputs [B, ...] to class scores [B, classes].
        local_epochs: passes of a client over its training data in a round.
        local_steps: batches of a client in a round, instead of `local_epochs`: the same number for all clients,
            whatever their numbers of samples. Each round begins a new epoch.
        batch_size: samples in a local batch; `full`: all of a client's, in one batch. A number above the largest
            client's samples means the same, and costs no more.
        batch_growth: samples that batches gain from each round to the next, up to those of the largest client; default:
            none. Training before an evaluation keeps `batch_size`. FL-FDMS (section 5) has batches of `B_0 t` samples
            in round t = 1, 2, …: `batch_growth` equal to `batch_size`.
        optimizer: of `torch.optim`, or your own; acts on each client separately, new in every round and phase unless
            `keep_optimizer` says otherwise; default SGD with `lr=0.05` and `momentum=0.9`.
        lr_scheduler: of `torch.optim.lr_scheduler`; one step in each round. It may write any option of the optimizer's
            groups.
        shared: glob patterns of the parameters that clients exchange; the others are personal and are never sent. A
            pattern that begins with `!` takes away, and such patterns alone share all but what they match.
        personal: `norms`: the parameters and buffers of all normalisation layers are personal, too (FedBN).
        init: `common`: all clients start alike; `independent`: each from its own draw; or a file with a state dict
            (`.safetensors`, `.pt`, `.ckpt` of Lightning), with or without a prefix such as `model.` before its names.
        finetune_epochs: epochs of local training before each evaluation, for the evaluation only.
        loss: mean loss of a batch from (outputs, targets); null means the task's own, for classes the cross-entropy.
        metrics: numbers of each client in addition to the task's: `auroc`, `average_precision`, `f1_macro`,
            `balanced_accuracy` or `ece`, or torchmetrics for (outputs, targets).
        objective: the local training rule; default `Plain`.
        on_divergence: `quarantine`: a client whose training ends in NaN keeps its former model and takes no further
            part in the round; `stop`: end the run.
        task: what outputs and targets mean: `Classification`, `Regression`, or your own; null means what the data call
            for.
        keep_optimizer: each client keeps the state of its optimizer (momentum, Adam's moments and count of steps) from
            round to round, and continues from it when it trains again; the state is never sent. Fine-tuning before an
            evaluation has a new optimizer.
        init_skip: glob patterns of parameters and buffers that are not read from the file of `init`, but start as
            with `common`: `["fc.*"]` for a head that the file has for other classes.
        per_client: numbers that differ between clients: a CSV file with the column `client` and some of `lr`,
            `local_epochs`, `local_steps` and `k` (or `budget`: neighbours to choose), or a mapping of these names to a
            value for each client. An empty cell is the run's own number.
    """

    parts: RunParts
    """The parts of a run, once it is set up."""

    loss: Callable[[Tensor, Tensor], Tensor] | None
    """Mean loss of a batch; the user's own object, which is neither moved nor converted. None: the task's own."""

    def __init__(
        self,
        network: Network | nn.Module,
        local_epochs: int = 5,
        batch_size: int | Literal["full"] = 32,
        optimizer: OptimizerCallable = DEFAULT_OPTIMIZER,
        lr_scheduler: LRSchedulerCallable | None = None,
        shared: list[str] | None = None,
        init: str = "common",
        finetune_epochs: int = 0,
        loss: nn.Module | Callable[[Tensor, Tensor], Tensor] | None = None,
        metrics: list[Metric | str] | None = None,
        objective: Objective | None = None,
        on_divergence: Literal["quarantine", "stop"] = "quarantine",
        local_steps: int | None = None,
        task: Task | None = None,
        keep_optimizer: bool = False,
        init_skip: list[str] | None = None,
        per_client: dict[str, Any] | str | None = None,
        personal: Literal["norms"] | None = None,
        batch_growth: int | None = None,
    ) -> None:
        record(self, dict(locals()))
        super().__init__()
        for name, value, least in (
            ("local_epochs", local_epochs, 0),
            ("batch_size", batch_size, 1),
            ("finetune_epochs", finetune_epochs, 0),
            ("local_steps", local_steps, 1),
            ("batch_growth", batch_growth, 0),
        ):
            if value is None or value == "full":
                continue
            if not hasattr(value, "__index__"):  # numpy has whole numbers, too
                raise UserError(f"model.{name}={value}; it must be a whole number")
            if value < least:
                raise UserError(f"model.{name}={value}; it must be {least} or more")
        if not isinstance(network, nn.Module):
            remedy = f"make an object of it, {network.__name__}(…)" if isinstance(network, type) else "give an object"
            raise UserError(f"model.network is {network!r}, which is not a torch.nn.Module; {remedy}")
        network, self.was_compiled = uncompiled(network)
        self.automatic_optimization = False  # the engine trains; Lightning sees one batch a round
        self._network = [network]  # in a list: Lightning must not count or move one client's scratch network
        self.local_epochs, self.batch_size, self.finetune_epochs = local_epochs, batch_size, finetune_epochs
        self.local_steps, self.keep_optimizer, self.batch_growth = local_steps, keep_optimizer, batch_growth
        if batch_growth and batch_size == "full":
            raise UserError(
                f"model.batch_growth={batch_growth}, but batches cannot grow from model.batch_size=full; give the "
                "number of samples of the first batches as model.batch_size, or leave out model.batch_growth"
            )
        self.optimizer_factory, self.scheduler_factory = optimizer, lr_scheduler
        self.shared_patterns, self.personal = list(shared or ["*"]), personal
        self.init, self.init_skip = init, list(init_skip or [])
        if self.init_skip and init in ("common", "independent"):
            raise UserError(f"model.init_skip is for a file in model.init, which is {init}; leave it out")
        if personal not in (None, "norms"):
            raise UserError(f"model.personal={personal}; it must be norms or null, and model.shared takes patterns")
        # Not a layer of the module: Lightning would move the user's own object; engines work on a copy where they must.
        object.__setattr__(self, "loss", loss)
        self.chosen_task, self.per_client = task, per_client
        self.metrics = columns_of(metrics or [])
        self.objective = Plain() if objective is None else objective
        self.on_divergence = on_divergence
        self.last_fit: Fit | None = None
        self.begin_anew()

    def begin_anew(self) -> None:
        """Make the next fit begin at round 0, with the first models."""
        self.__dict__.pop("parts", None)
        self.client_warnings = ClientWarnings()
        self._loaded_metrics: dict[str, float] = {}
        self.history: dict[str, Any] = {}  # what the run was forked from, and what a resume changed
        self.sources: dict[str, ModuleSource] = {}  # of the user's own code that the run uses, by module

    def __repr__(self) -> str:
        """Show the network and the options of local training."""
        optimizer = name_of(self.optimizer_factory)
        length = f"local_epochs={self.local_epochs}" if self.local_steps is None else f"local_steps={self.local_steps}"
        growth = f", batch_growth={self.batch_growth}" if self.batch_growth else ""
        training = f"{length}, batch_size={self.batch_size}{growth}, optimizer={optimizer}"
        return f"DFLModule({type(self.network).__name__}, {training}, objective={type(self.objective).__name__})"

    @property
    def duration(self) -> Duration:
        """The length of a client's local training in a round."""
        return Duration(self.local_epochs, self.local_steps)

    # --- the parts of the run ---------------------------------------------------------------------------------------
    @property
    def network(self) -> nn.Module:
        """The plain network; its own parameters are not any client's."""
        return self._network[0]

    @property
    def dfl_trainer(self) -> DFLTrainer:
        """The trainer, by its real type."""
        return cast("DFLTrainer", self.trainer)

    @property
    def is_set_up(self) -> bool:
        """True if a run is set up, with an engine and the clients' models."""
        return "parts" in self.__dict__

    @property
    def federation(self) -> Federation:
        """The data, topology, network and policies of the run."""
        return self.parts.federation

    @property
    def bank(self) -> Bank:
        """The clients' models."""
        return self.parts.bank

    @property
    def engine(self) -> Engine:
        """The engine, which trains and evaluates models."""
        return self.parts.engine

    def __getattr__(self, name: str) -> Any:
        """Look up parameters and submodules as torch does; explain that a run's parts exist only after its set-up.

        Raises:
            AttributeError: the module has no such attribute, or a run must be set up first.
        """
        if name in ("parts", "federation", "bank", "engine"):
            raise AttributeError(f"module.{name} exists only after trainer.fit or trainer.prepare has set a run up")
        return super().__getattr__(name)

    def setup(self, stage: str) -> None:
        """Set up data, topology, network, engine and bank, and check that they fit together."""
        if not hasattr(self.trainer, "settle_policies"):
            raise UserError(f"a DFLModule is trained by a DFLTrainer, not by a {type(self.trainer).__name__}")
        self._find_sources()
        self.parts = build_run(self, self.dfl_trainer, stage, self.parts if self.is_set_up else None)
        self._schedule = self.parts.schedule
        if stage != "fit":  # an evaluation after a fit uses the states that the fit left to the policies
            evaluation.restore_policies(self.federation, self.bank.boundary.callbacks)

    def _find_sources(self) -> None:
        """Find the source of the user's own code, and compare it with that of the configs that the run repeats."""
        trainer = self.dfl_trainer
        parts = [*trainer.callbacks, trainer.datamodule, *parts_of_graphs(trainer), vars(self)]  # type: ignore[attr-defined]
        self.sources = sources_of(parts)
        now = hashes_of(self.sources)
        said = [source.why for source in self.sources.values() if source.why]
        said += [about_changes(where, before, now) for where, before in trainer.repeated_code.items()]
        trainer.remarks += [sentence for sentence in said if sentence and sentence not in trainer.remarks]

    def on_fit_start(self) -> None:
        """Check that all clients' models are finite, prepare the engine, and try the prediction policy."""
        with self.bank.ranks.together():
            refuse_broken_start(self.federation, self.bank.rows("models"))
        self.engine.tune_to_device(self.bank.ranks)
        evaluation.try_prediction(self, self.dfl_trainer.state.fn)

    # --- rounds -----------------------------------------------------------------------------------------------------
    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Do the local work of a round."""
        self.federation.layout.refuse_thawed(self.network)
        self.trainer.fit_loop.local_work()  # type: ignore[attr-defined]

    def evaluate(self) -> dict[str, Tensor]:
        """Evaluate the reported models of the present boundary on validation and test data, fine-tuned where asked.

        Clients predict as a `Prediction` policy says, if there is one. If the loss of a model is infinite on a
        client's data, the task's numbers and metrics are NaN, and a warning names the client (a prediction may well
        give a class the probability 0).

        Returns:
            Arrays over clients, float64 [m]: `val_loss`, `test_loss`, those of the task, for classes `val_acc` and
            `test_acc`, and the chosen metrics (splits without data are missing); `global_test_*` [1] where a single
            server has the model of all.
        """
        return evaluation.evaluate(self, self.dfl_trainer.state.fn)

    def evaluated_models(self) -> References:
        """Return the models that an evaluation is of: the reported ones, or what fine-tuning makes of them.

        These are rows `trained` of the bank until `bank.abandon()`, the same at each call after a round.
        """
        return evaluation.evaluated_models(self)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Evaluate the models, store the results in the boundary, and log their means over honest clients."""
        results = self.evaluate()
        self.bank.boundary = self.bank.boundary._replace(evaluation=results)
        honest = of_clients(results, honest_clients(self.federation))
        hidden = without_mean(honest, self.federation.task.score)
        means = {name: over_clients(values, name in hidden).mean for name, values in honest.items()}
        means |= undefined_numbers(honest, self.federation.task.score, self.metrics)
        self.log_dict({name: torch.tensor(mean, dtype=torch.float64) for name, mean in means.items()}, batch_size=1)
        if self.dfl_trainer.log_clients and self.dfl_trainer.is_global_zero:
            # Not by `log_dict`, which would copy thousands of numbers several times.
            for logger in self.dfl_trainer.loggers:
                logger.log_metrics(evaluation.by_client(results), step=max(0, self.bank.boundary.round - 1))

    test_step = validation_step

    def on_train_epoch_end(self) -> None:
        """Log the numbers of the round; Lightning's step is the round."""
        numbers = {k: v for k, v in self.bank.boundary.metrics.items() if v == v}
        self.log_dict({name: torch.tensor(value, dtype=torch.float64) for name, value in numbers.items()}, batch_size=1)

    # --- optimizer and schedule: a pure function of the round ---------------------------------------------------------
    @property
    def hyperparameters(self) -> Hyperparameters:
        """The options of the optimizer's groups in the round after the last boundary."""
        return self.catch_up_schedule()

    def catch_up_schedule(self) -> Hyperparameters:
        """Move the schedule to the bank's round; return the options of the optimizer's groups in it."""
        with no_global_draws(partial(schedule_draws, self._schedule.scheduler)):
            return self._schedule.at(self.bank.boundary.round)

    def configure_optimizers(self) -> Any:
        """Return the stub of the optimizer and its schedule, which LearningRateMonitor reads."""
        schedule = self._schedule = Schedule(self.parts.optimizer, self.scheduler_factory)
        stub, scheduler = schedule.stub, schedule.scheduler
        return stub if scheduler is None else {"optimizer": stub, "lr_scheduler": scheduler}

    # --- checkpoints: a boundary each ---------------------------------------------------------------------------------
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Save the callbacks' states of the last boundary, not their present ones, and a description of the run."""
        boundary = self.bank.boundary
        if "callbacks" in checkpoint and boundary.callbacks:
            checkpoint["callbacks"] = copy.deepcopy(boundary.callbacks)
        checkpoint["dfl_lightning"] = {"metrics": dict(boundary.metrics), **self._about()}

    def _about(self) -> dict[str, Any]:
        """Describe the run for a checkpoint: config, history, the user's code, the engine's decisions, fingerprint."""
        about: dict[str, Any] = {
            "settings": settings_text(self.dfl_trainer.config),
            "history": copy.deepcopy(self.history),
        }
        about[CODE] = hashes_of(self.sources)
        about["finetune_epochs"] = self.finetune_epochs
        if self.engine.decisions:  # on a CPU everything follows from the config
            about["engine"] = self.engine.decisions
        return {**about, **fingerprint(self.dfl_trainer, self)}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Check that the checkpoint fits this run, and restore its metrics, history and the engine's decisions.

        A checkpoint of another network, number of clients or config is refused, and so is one with more rounds than
        the run has.
        """
        trainer = self.dfl_trainer
        about = check_fingerprint(trainer, self, checkpoint.get("dfl_lightning"))
        done = int(checkpoint["state_dict"]["bank.progress"][0])
        check_rounds(trainer, done)
        self._loaded_metrics = dict(about["metrics"])
        self.engine.restore_decisions(about.get("engine", {}))
        if trainer.state.fn == TrainerFn.FITTING and trainer.resumed_from is not None:
            self.history = resumed_history(about, self._about(), trainer.resumed_from, done, trainer.fork)
        checkpoint["optimizer_states"], checkpoint["lr_schedulers"] = [], []  # the schedule is this run's own
        if self.trainer.fork:  # type: ignore[attr-defined]
            # A fork may have other policies. Without states of missing ones, Lightning does not warn about them.
            present = {callback.state_key for callback in self.trainer.callbacks}  # type: ignore[attr-defined]
            checkpoint["callbacks"] = {k: v for k, v in checkpoint["callbacks"].items() if k in present}

    def state_dict(self, *args: Any, destination: Any = None, prefix: str = "", keep_vars: bool = False) -> Any:
        """Return the bank's boundary; the module has no parameters of its own."""
        state = {} if destination is None else destination
        if self.is_set_up:
            state |= {f"{prefix}bank.{name}": value for name, value in self.bank.state_dict().items()}
        return state

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Restore a saved boundary; the last round's metrics are restored separately."""
        state = {key.removeprefix("bank."): value for key, value in state_dict.items() if key.startswith("bank.")}
        self.bank.load_state_dict(state, self._loaded_metrics)

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        if self.is_set_up:
            self.bank.apply_to_rows(fn)
        return super()._apply(fn, recurse)
