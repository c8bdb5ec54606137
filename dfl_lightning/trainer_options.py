"""The options of Lightning's Trainer: which of them rounds obey, which are refused, and which have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from lightning.pytorch.plugins.layer_sync import LayerSync
from lightning.pytorch.plugins.precision import Precision

from dfl_lightning.utils.errors import UserError

OBEYED, REFUSED, NO_EFFECT = "obeyed", "refused", "no effect"
"""Treatments of an option: it does what it says, accepts only values that change nothing, or changes nothing."""


class Treatment(NamedTuple):
    """Treatment of an option of Lightning's Trainer by communication rounds.

    Attributes:
        kind: `obeyed`, `refused` or `no effect`.
        about: for an option that is obeyed, its meaning for rounds; for one that is refused, the remedy; else why
            nothing depends on it.
        accepted: values of a refused option that change nothing.
    """

    kind: str
    about: str
    accepted: tuple[Any, ...] = ()

    def accepts(self, value: Any) -> bool:
        """Return True if the value changes nothing: in Lightning 1 is a number of batches and 1.0 is all of them."""
        return any(value == one and type(value) is type(one) for one in self.accepted)


def _refused(about: str, *accepted: Any) -> Treatment:
    return Treatment(REFUSED, about, accepted)


def _obeyed(about: str) -> Treatment:
    return Treatment(OBEYED, about)


OPTIONS: dict[str, Treatment] = {
    "accelerator": _obeyed("`cpu`, `gpu` or `auto`"),
    "strategy": _obeyed("`auto`, `ddp` and `clients` mean the same; others are refused"),
    "devices": _obeyed("number of processes, each with its own clients"),
    "num_nodes": _obeyed("number of machines"),
    "precision": _obeyed("`32`, `tf32`, `64-true` or `bf16-mixed`; others are refused"),
    "logger": _obeyed("in addition to the run folder"),
    "callbacks": _obeyed("policies, monitors and Lightning's; those that work on steps are refused"),
    "fast_dev_run": _obeyed("one round that leaves no files; other numbers than 1 are refused"),
    "max_epochs": _obeyed("another name of `max_rounds`"),
    "min_epochs": _obeyed("least number of rounds, which early stopping respects; at most `max_rounds`"),
    "max_steps": _refused("use max_rounds", -1),
    "min_steps": _refused("use min_epochs, which counts rounds", None),
    "max_time": _obeyed("the round in progress is completed"),
    "limit_train_batches": _refused("use model.local_epochs or model.local_steps", None, 1.0),
    "limit_val_batches": _refused("an evaluation uses all samples; 0 switches it off", None, 1.0, 0, 0.0),
    "limit_test_batches": _refused("an evaluation uses all samples; leave it out", None, 1.0),
    "limit_predict_batches": _refused("a run makes no predictions; leave it out", None, 1.0),
    "overfit_batches": _refused("give clients fewer samples with a partition", 0, 0.0),
    "val_check_interval": _refused("use check_val_every_n_epoch, which counts rounds", None, 1.0),
    "check_val_every_n_epoch": _obeyed("rounds between two evaluations, 1 or more"),
    "num_sanity_val_steps": _refused("DFLTrainer.validate evaluates first models; leave it out", None, 0),
    "log_every_n_steps": _obeyed(
        "a step is a round; for callbacks that log by step, such as LearningRateMonitor; the numbers of a round are "
        "logged in every round"
    ),
    "enable_checkpointing": _obeyed("false: the run cannot be resumed"),
    "enable_progress_bar": _obeyed("false: nothing is printed"),
    "enable_model_summary": _obeyed("Lightning's table, which counts all clients together"),
    "accumulate_grad_batches": _refused("use a larger model.batch_size", 1),
    "gradient_clip_val": _obeyed("of each client by itself"),
    "gradient_clip_algorithm": _obeyed("`norm` or `value`"),
    "deterministic": _obeyed("for kernels of a GPU"),
    "benchmark": _obeyed("for kernels of a GPU"),
    "inference_mode": Treatment(NO_EFFECT, "an evaluation keeps no gradients in either case, and may fine-tune models"),
    "use_distributed_sampler": Treatment(NO_EFFECT, "processes have their own clients"),
    "profiler": _obeyed("with the parts of a round"),
    "detect_anomaly": _obeyed("torch's search for the operation whose gradient is NaN, which ends the run"),
    "barebones": _refused("switch things off one by one", False),
    "plugins": _obeyed("environments and checkpoint files; plugins of precision and of layers are refused"),
    "sync_batchnorm": _refused("clients never share batches", False),
    "reload_dataloaders_every_n_epochs": _refused("data stay resident", 0),
    "default_root_dir": _obeyed("folder of the run folders, `runs` by default"),
    "enable_autolog_hparams": _obeyed("false: loggers do not get the config as hyperparameters"),
    "model_registry": _refused("run folders are not uploaded; leave it out", None),
}
"""Every option of Lightning's Trainer."""

NO_MEANING = tuple(name for name, treatment in OPTIONS.items() if treatment.kind == REFUSED)
"""Names of the options that have no meaning for rounds."""


def refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse the values of Lightning's options that rounds do not obey.

    Args:
        options: values by name; those of `DFLTrainer`'s own options are checked elsewhere.

    Raises:
        UserError: names an option, its value and the remedy.
    """
    for name, value in options.items():
        treatment = OPTIONS.get(name)
        if treatment is not None and treatment.kind == REFUSED and not treatment.accepts(value):
            raise UserError(f"trainer.{name}={value} has no meaning for communication rounds; {treatment.about}")
    every = options.get("check_val_every_n_epoch", 1)
    if not hasattr(every, "__index__") or every < 1:
        what = "has no meaning for communication rounds"
        raise UserError(f"trainer.check_val_every_n_epoch={every} {what}; give a number of rounds")
    plugins = options.get("plugins")
    for plugin in plugins if isinstance(plugins, (list, tuple)) else [plugins]:
        if isinstance(plugin, (Precision, LayerSync)) or plugin in ("transformer-engine", "bitsandbytes"):
            raise UserError(
                f"trainer.plugins {type(plugin).__name__} would change how Lightning computes batches, and an engine "
                "trains the clients; use trainer.precision, or leave it out"
            )


def number_of_rounds(max_rounds: int | None, max_epochs: int | None, others: Mapping[str, Any]) -> int:
    """Return the number of rounds, 100 by default.

    Args:
        max_rounds: the option of this name.
        max_epochs: Lightning's name of the same option.
        others: options of Lightning; `min_epochs` is the least number of rounds, which early stopping respects.

    Raises:
        UserError: both names are given, a number is not whole, or the least number is above the largest.
    """
    if max_rounds is not None and max_epochs is not None:
        raise UserError("set trainer.max_rounds or trainer.max_epochs, which mean the same, not both")
    rounds, min_epochs = next((n for n in (max_rounds, max_epochs) if n is not None), 100), others.get("min_epochs")
    for name, value in (("max_rounds", rounds), ("min_epochs", 0 if min_epochs is None else min_epochs)):
        if not hasattr(value, "__index__"):  # numpy has whole numbers, too
            raise UserError(f"trainer.{name}={value}; it is a whole number")
    if min_epochs is not None and 0 <= rounds < min_epochs:
        raise UserError(
            f"trainer.min_epochs={min_epochs} asks for more rounds than trainer.max_rounds={rounds} allows; lower it"
        )
    return rounds


def is_quick(fast_dev_run: bool | int) -> bool:
    """Return True for a fast_dev_run, which is one round.

    Raises:
        UserError: it is a number other than 0 and 1.
    """
    if fast_dev_run not in (0, 1):
        raise UserError(
            f"trainer.fast_dev_run={fast_dev_run}; it is true or false: one round that leaves no files; use "
            f"trainer.max_rounds {fast_dev_run} for more"
        )
    return bool(fast_dev_run)


def logs_clients(wanted: bool, has_loggers: bool) -> bool:
    """Return True if each client's numbers go to loggers.

    Raises:
        UserError: there are no loggers.
    """
    if wanted and not has_loggers:
        raise UserError("trainer.log_clients=true sends numbers to loggers, and there is none; set trainer.logger true")
    return wanted


def precision_of_rows(precision: str | int) -> str:
    """Return the full name of a precision: `32-true`, `tf32`, `64-true` or `bf16-mixed`.

    Raises:
        UserError: it is not implemented.
    """
    names = {"32": "32-true", "tf32": "tf32", "64": "64-true", "bf16": "bf16-mixed"}
    names |= {name: name for name in names.values()}
    if str(precision) not in names:
        raise UserError(f"trainer.precision={precision} is not implemented; use 32, tf32, 64-true or bf16-mixed")
    return names[str(precision)]


def clipping(value: float | None, algorithm: str | None) -> tuple[float | None, float | None]:
    """Return the largest norm and the largest entry of a client's gradient; None: not limited.

    Args:
        value: `gradient_clip_val`.
        algorithm: `gradient_clip_algorithm`.

    Raises:
        UserError: one of them is invalid.
    """
    if value is not None and value <= 0:
        raise UserError(f"trainer.gradient_clip_val={value}; it must be above 0")
    if algorithm not in (None, "norm", "value"):
        raise UserError(f"trainer.gradient_clip_algorithm={algorithm}; it is norm or value")
    return (None, value) if algorithm == "value" else (value, None)


@contextmanager
def anomaly_in_one_sentence() -> Iterator[None]:
    """Turn what `detect_anomaly` finds inside a block into one sentence.

    Raises:
        UserError: torch found an operation whose gradient is NaN.
    """
    try:
        yield
    except RuntimeError as error:
        if "returned nan values" not in str(error):
            raise
        raise UserError(
            f"trainer.detect_anomaly: {str(error).rstrip('.')}; torch's warning shows where the operation was called; "
            "leave the option out to quarantine a client that diverges"
        ) from error
