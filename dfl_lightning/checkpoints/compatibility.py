"""The facts in which a run and its checkpoint must agree: network, clients, seed, data, policies and config."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from dfl_lightning.callbacks import Policy
from dfl_lightning.checkpoints.history import deciding
from dfl_lightning.checkpoints.io import FORMAT, run_of
from dfl_lightning.checkpoints.own_code import CODE, about_changes
from dfl_lightning.data.fingerprint import changes
from dfl_lightning.round.run.hosts import RunModule, RunTrainer
from dfl_lightning.utils.code.source_code import hashes_of
from dfl_lightning.utils.errors import UserError


def fingerprint(trainer: RunTrainer, module: RunModule) -> dict[str, Any]:
    """Return the facts of a run that are saved in its checkpoints and compared by a resume.

    Args:
        trainer: the trainer, with policies and config.
        module: the module after its setup, with federation and bank.
    """
    policies = {c.state_key: _plain(c) for c in trainer.policies()}
    return {
        "format": FORMAT,
        "network": {"name": type(module.federation.network).__name__, **module.federation.layout.fingerprint()},
        "clients": module.federation.num_clients,
        "nodes": module.federation.topology.num_nodes,
        "topology": module.federation.topology.identity(),
        "seed": module.federation.seed,
        "data": trainer.datamodule.describe(),
        "checksums": trainer.datamodule.fingerprint(),
        "rows": str(module.bank.boundary.rows["models"].dtype),
        "row sets": sorted(module.bank.boundary.rows),
        "reported": module.federation.reported_rows,
        "rounds": {"number": module.federation.planned_rounds, "readers": sorted(module.federation.horizon.readers)},
        "of_server": module.federation.servers_have_models and module.federation.reported_rows == "models",
        "policies": policies,
        "per_client": module.federation.per_client,
        "config": _comparable(trainer.config),
    }


def check_fingerprint(trainer: RunTrainer, module: RunModule, saved: dict[str, Any] | None) -> dict[str, Any]:
    """Check that a checkpoint fits this run.

    Args:
        trainer: the trainer of the run that resumes, forks or evaluates the checkpoint.
        module: the module after its setup, with federation and bank.
        saved: the fingerprint in the checkpoint; None if it has none.

    Returns:
        The checkpoint's fingerprint.

    Raises:
        UserError: the checkpoint is not of this library, or differs in network, number of clients, topology, seed, data
            or configuration. A fork may differ in some of these; the message says so.
    """
    where = trainer.resumed_from or trainer.ckpt_path or "the checkpoint"
    if not saved or saved.get("format") != FORMAT:
        raise UserError(f"{where}: not a checkpoint of dfl_lightning")
    here = fingerprint(trainer, module)
    required = ["network", "clients", "nodes", "rows", "row sets"]
    if trainer.state.fn == "fit" and not trainer.fork:
        begun = saved["rounds"]
        module.federation.horizon.continue_from(begun["number"], begun["readers"], str(where))
        required += ["seed", "data", "policies"] + (["config"] if saved["config"] and here["config"] else [])
        required += ["per_client", "topology"]  # last, since a difference of configs gives a plainer message
    _refuse_another_base(where, saved["network"], here["network"])
    for key in required:
        before, now = saved.get(key), here[key]
        if key == "config":
            before, now = _without_nulls(before), _without_nulls(now)
        if before != now:
            name, theirs, ours = _first_difference(key, before, now)
            may_fork = key in ("seed", "data", "policies", "config", "topology", "per_client")
            hint = "; --fork starts a new run from it" if may_fork else ""
            raise UserError(f"{where}: {name} is {theirs} in the checkpoint and {ours} in this run{hint}")
    other = changes(saved["checksums"], here["checksums"])
    if trainer.state.fn != "fit":
        _warn_of_other_data(where, saved, here)
    elif other and trainer.fork:
        trainer.remarks.append(f"{where}: the {other} of this run are not those of the checkpoint")
    elif other:
        raise UserError(
            f"{where}: the {other} of this run are not those of the checkpoint; restore the data, or --fork starts a "
            "new run from it"
        )
    _report_other_code(trainer, where, saved.get(CODE) or {}, hashes_of(module.sources))
    return saved


def _refuse_another_base(where: str | Path, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Raise if all but the values of the frozen parameters and constant buffers agree."""
    theirs, ours = saved.get("base"), here.get("base")
    if theirs and ours and theirs["tensors"] == ours["tensors"] and theirs["hash"] != ours["hash"]:
        raise UserError(
            f"{where}: the frozen parameters or constant buffers of this run's network have other values than in the "
            f"checkpoint (hash {ours['hash']} instead of {theirs['hash']}); use the base that the run began with"
        )


def _warn_of_other_data(where: str | Path, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Warn if clients have other samples in an evaluation than in the run, so that it may test on training data."""
    for key in ("seed", "data"):
        if saved.get(key) != here[key]:
            warnings.warn(
                f"{where}: {key} is {saved.get(key)} in the checkpoint and {here[key]} in this evaluation, so clients "
                "may be tested on samples that they, or others, were trained on; leave it as in the run",
                UserWarning,
                stacklevel=2,
            )
            return
    if other := changes(saved["checksums"], here["checksums"]):
        warnings.warn(
            f"{where}: the {other} of this evaluation are not those of the checkpoint, so its scores are not those of "
            "the run's data; restore the data to have them",
            UserWarning,
            stacklevel=2,
        )


def _report_other_code(trainer: RunTrainer, where: str | Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Report that the user's own code differs from the checkpoint's: in the banner of a fit, else as a warning.

    A resume is not refused, since most edits between a stop and a resume repair what stopped the run, and change none
    of its numbers. The history of the run records the change.
    """
    sentence = about_changes(str(where), before, now)
    if not sentence:
        return
    run = run_of(where)
    kept = "" if run is None or not (run / CODE).is_dir() else f"; that of the run is in {run / CODE}"
    if trainer.state.fn != "fit":
        warnings.warn(f"{sentence}{kept}", UserWarning, stacklevel=2)
    elif trainer.fork:
        trainer.remarks.append(f"{sentence}{kept}")
    else:
        trainer.remarks.append(f"{sentence}; the rounds from here on are of the present code")


def check_rounds(trainer: RunTrainer, rounds: int) -> None:
    """Raise if a checkpoint has more complete rounds than this run asks for.

    Args:
        trainer: the trainer of the run that resumes.
        rounds: number of complete rounds in the checkpoint.

    Raises:
        UserError: it has more; the message names the smallest number that the run may ask for.
    """
    most = trainer.max_epochs
    if trainer.state.fn != "fit" or most is None or not 0 <= most < rounds:
        return
    here = "trainer.fast_dev_run does 1" if trainer.fast_dev_run else f"trainer.max_rounds is {most}"  # type: ignore[attr-defined]
    raise UserError(
        f"{trainer.resumed_from}: the run has {rounds} rounds already, and {here}; "
        f"give {rounds} or more, or continue from an earlier checkpoint"
    )


def _plain(policy: Policy) -> dict[str, Any]:
    """Return the settings of a policy: its attributes of simple types that are not state."""
    state = set(policy.state_dict())
    simple = (int, float, str, bool, type(None))
    return {k: v for k, v in vars(policy).items() if k not in state and isinstance(v, simple)}


def _comparable(config: dict[str, Any] | None) -> dict[str, Any]:
    """Return the keys of a config that decide what is computed, without those of the trainer."""
    if config is None:
        return {}
    return {k: v for k, v in deciding(config).items() if k != "trainer"}


def _without_nulls(value: Any) -> Any:
    """Leave out the null options of a config: those that a version does not have yet are missing in its configs."""
    if isinstance(value, list):
        return [_without_nulls(inner) for inner in value]
    if not isinstance(value, dict):
        return value
    return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}


def _first_difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """Return the name of the first innermost key at which two nested dicts differ, and both values."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(k for k in ours if k not in theirs)]:
            if theirs.get(key) != ours.get(key):
                return _first_difference(key if name == "config" else f"{name}.{key}", theirs.get(key), ours.get(key))
    return name, theirs, ours
