"""The round loop leans on private parts of Lightning. This fails when an upgrade changes one of them.

What to do then: read the changes of the methods below between the two releases (`git diff` of Lightning's
`loops/fit_loop.py` and `loops/training_epoch_loop.py`), mend `dfl_lightning/loop.py`, run
`tests/checkpoints/test_resume.py` with `-m "slow or not slow"`, and put the digest that this test prints into `KNOWN`.
"""

import ast
import hashlib
import inspect
import re
import textwrap
from pathlib import Path

import lightning
import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loops.evaluation_loop import _EvaluationLoop
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.loop import _Loop
from lightning.pytorch.loops.progress import _BatchProgress, _Progress
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.strategies import DDPStrategy, Strategy
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from lightning.pytorch.trainer import call
from lightning.pytorch.trainer.connectors.checkpoint_connector import _CheckpointConnector
from lightning.pytorch.trainer.connectors.logger_connector.result import _ResultCollection, _ResultMetric
from lightning.pytorch.trainer.connectors.signal_connector import _SignalConnector

import dfl_lightning
from dfl_lightning import DFLTrainer
from dfl_lightning.distributed.launcher import Launcher
from dfl_lightning.loop import EarlySignals, LocalWork, LoggedNumber, LoggedNumbers, NamedCheckpoints, RoundLoop

KNOWN = {"2.6": "dde1210d482d7ee0"}
"""Digest of `RELIED_ON` by Lightning series."""

OVERRIDDEN = {
    RoundLoop: ["advance", "on_advance_end", "on_advance_start", "on_run_start", "load_state_dict", "run", "skip"],
    LocalWork: ["_batches_that_stepped", "_broadcast_sigterm_tensor", "_should_check_val_fx", "done", "global_step"],
    LoggedNumber: ["to"],
    LoggedNumbers: ["__setitem__"],
    EarlySignals: ["register_signal_handlers", "_sigterm_notifier_fn"],
    NamedCheckpoints: ["_parse_ckpt_path"],
    Launcher: ["launch", "_call_children_scripts"],
}
"""What ours replace of Lightning's."""

RELIED_ON = {
    _FitLoop: {
        "__init__": "self, trainer, min_epochs, max_epochs",
        "run": "self",
        "skip": "self",
        "done": "self",
        "setup_data": "self",
        "reset": "self",
        "on_run_start": "self",
        "on_run_end": "self",
        "on_advance_start": "self",
        "advance": "self",
        "on_advance_end": "self",
        "restarting": "self",
        "update_restart_stage": "self",
        "_can_stop_early": "self",
    },
    _TrainingEpochLoop: {
        "__init__": "self, trainer, min_steps, max_steps",
        "run": "self, data_fetcher",
        "reset": "self",
        "on_run_start": "self, data_fetcher",
        "advance": "self, data_fetcher",
        "on_advance_end": "self, data_fetcher",
        "done": "self",
        "global_step": "self",
        "_is_training_done": "self",
        "_num_ready_batches_reached": "self",
        "_should_check_val_fx": "self, data_fetcher",
        "_should_check_val_epoch": "self",
        "_broadcast_sigterm_tensor": "self",
        "on_save_checkpoint": "self",
        "on_load_checkpoint": "self, state_dict",
    },
    _Loop: {
        "state_dict": "self, destination, prefix",
        "load_state_dict": "self, state_dict, prefix",
        "on_iteration_done": "self",
    },
    _EvaluationLoop: {"run": "self, args, kwargs", "reset": "self", "on_run_start": "self", "on_run_end": "self"},
    _ResultCollection: {
        "__init__": "self, training",
        "log": "self, fx, name, value, prog_bar, logger, on_step, on_epoch, reduce_fx, enable_graph, sync_dist, "
        "sync_dist_fn, sync_dist_group, add_dataloader_idx, batch_size, metric_attribute, rank_zero_only",
        "to": "self, args, kwargs",
    },
    _ResultMetric: {"__init__": "self, metadata, is_tensor", "to": "self, args, kwargs"},
    _Progress: {"increment_ready": "self", "increment_started": "self"},
    _BatchProgress: {"reset_on_run": "self"},
    DDPStrategy: {
        "setup": "self, trainer",
        "configure_ddp": "self",
        "_setup_model": "self, model",
        "lightning_module_state_dict": "self",
        "_configure_launcher": "self",
    },
    Strategy: {"setup": "self, trainer", "save_checkpoint": "self, checkpoint, filepath, storage_options"},
    _CheckpointConnector: {
        "__init__": "self, trainer",
        "_parse_ckpt_path": "self, state_fn, ckpt_path, model_provided, model_connected",
    },
    _SignalConnector: {"register_signal_handlers": "self", "_sigterm_notifier_fn": "self, signum, _"},
    _SubprocessScriptLauncher: {
        "launch": "self, function, args, trainer, kwargs",
        "_call_children_scripts": "self",
        "kill": "self, signum",
    },
    call: {"_call_and_handle_interrupt": "trainer, trainer_fn, args, kwargs", "_interrupt": "trainer, exception"},
}
"""What they override, call or take for granted, with its parameters."""

SERIES = ".".join(lightning.__version__.split(".")[:2])


def function(owner, name):
    found = inspect.getattr_static(owner, name)
    return inspect.unwrap(found.fget if isinstance(found, property) else found)


def without_docstrings(code):
    tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            if ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
    return shape(tree)


def shape(node):
    """A tree as nested tuples, the same by every Python: newer ones add fields and print otherwise."""
    if isinstance(node, list):
        return tuple(map(shape, node))
    if not isinstance(node, ast.AST):
        return node
    fields = ((name, shape(value)) for name, value in ast.iter_fields(node))
    return (type(node).__name__, *(field for field in fields if field[1] is not None and field[1] != ()))


def digest():
    trees = [
        (owner.__name__, name, without_docstrings(function(owner, name)))
        for owner, names in RELIED_ON.items()
        for name in names
    ]
    return hashlib.sha256(repr(trees).encode()).hexdigest()[:16]


@pytest.mark.parametrize("owner", RELIED_ON, ids=lambda owner: owner.__name__)
def test_private_methods_are_there_with_the_parameters_we_know(owner):
    for name, parameters in RELIED_ON[owner].items():
        assert hasattr(owner, name), f"Lightning {lightning.__version__} has no {owner.__name__}.{name} any more"
        assert ", ".join(inspect.signature(function(owner, name)).parameters) == parameters, name


def test_this_lightning_has_been_read():
    how = f"{__doc__}\nLightning {lightning.__version__} has the digest {digest()}."
    assert SERIES in KNOWN, f"Lightning {SERIES} is new to us. {how}"
    assert digest() == KNOWN[SERIES], f"Lightning {SERIES} changed under us. {how}"


@pytest.mark.filterwarnings("ignore:.*`srun` command is available")  # on a machine of a cluster
@pytest.mark.parametrize(("ours", "theirs"), [(RoundLoop, _FitLoop), (LocalWork, _TrainingEpochLoop)])
def test_the_list_of_overridden_names_is_complete(ours, theirs):
    instance = theirs(Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False))
    known = {*dir(theirs), *vars(instance)}
    replaced = [name for name in vars(ours) if name in known and not name.startswith("__")]
    assert sorted(replaced) == sorted(OVERRIDDEN[ours])


def test_every_override_takes_the_parameters_of_what_it_overrides():
    for ours, names in OVERRIDDEN.items():
        for name in names:
            if inspect.isfunction(inspect.getattr_static(ours, name)):
                theirs = inspect.signature(function(ours.__mro__[1], name)).parameters
                assert list(inspect.signature(getattr(ours, name)).parameters) == list(theirs), name


def test_attributes_that_the_loop_uses_exist():
    trainer = DFLTrainer(accelerator="cpu")
    for path in (
        "fit_loop.epoch_loop._results",
        "fit_loop.epoch_loop.val_loop._results",
        "fit_loop.epoch_loop.val_loop.run",
        "fit_loop.epoch_loop.batch_progress.reset_on_run",
        "fit_loop.epoch_loop.val_loop.batch_progress.reset",
        "fit_loop.epoch_progress.total.processed",
        "fit_loop.epoch_progress.current.completed",
        "fit_loop.restarting",
        "fit_loop.max_epochs",
        "callback_metrics",
        "received_sigterm",
        "should_stop",
    ):
        value = trainer
        for name in path.split("."):
            assert hasattr(value, name), path
            value = getattr(value, name)
    assert isinstance(trainer.fit_loop, RoundLoop)
    assert isinstance(trainer.fit_loop.epoch_loop, LocalWork)


def test_private_names_of_lightning_are_used_in_the_loop_only():
    classes = r"FitLoop|TrainingEpochLoop|EvaluationLoop|Result(Metric|Collection)"
    private = rf"\b_({classes}|(logger|checkpoint|signal)_connector|active_loop)\b"
    package = Path(dfl_lightning.__file__).parent
    users = {p.name for p in package.rglob("*.py") if re.search(private, p.read_text(encoding="utf-8"))}
    assert users == {"loop.py"}
