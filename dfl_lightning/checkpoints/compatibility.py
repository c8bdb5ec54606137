"""What a checkpoint must agree with to be continued: network, clients, seed, policies, configuration."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from dfl_lightning.callbacks import Policy
from dfl_lightning.checkpoints.history import deciding
from dfl_lightning.checkpoints.io import FORMAT, run_of
from dfl_lightning.checkpoints.own_code import CODE, about_changes
from dfl_lightning.data.fingerprint import changes
from dfl_lightning.round.hosts import RunModule, RunTrainer
from dfl_lightning.utils.code.source_code import hashes_of
from dfl_lightning.utils.errors import UserError


def fingerprint(trainer: RunTrainer, module: RunModule) -> dict[str, Any]:
    """The facts of a run that a checkpoint must agree with to be continued.

    Args:
        trainer: of the run, with its policies and config.
        module: set up, with its federation and bank.
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
        "config": _comparable(trainer.config),
    }


def check_fingerprint(trainer: RunTrainer, module: RunModule, saved: dict[str, Any] | None) -> dict[str, Any]:
    """Refuse a checkpoint that is not of this run, naming what differs.

    Args:
        trainer: of the run that resumes.
        module: set up, with its federation and bank.
        saved: the checkpoint's fingerprint; None: it has none.

    Returns:
        The checkpoint's fingerprint.

    Raises:
        UserError: not a checkpoint of this library, or another network, number of clients, topology, seed, data or
            configuration; `--fork` allows some of these to differ, and the sentence says which.
    """
    where = trainer.resumed_from or trainer.ckpt_path or "the checkpoint"
    if not saved or saved.get("format") != FORMAT:
        raise UserError(f"{where}: not a checkpoint of dfl_lightning")
    here = fingerprint(trainer, module)
    saved = {**saved, "config": _comparable(saved["config"])}  # an earlier version has kept more of it
    must = ["network", "clients", "nodes", "rows", "row sets"]
    if trainer.state.fn == "fit" and not trainer.fork:
        begun = saved["rounds"]
        module.federation.horizon.continue_from(begun["number"], begun["readers"], str(where))
        must += ["seed", "data", "policies"] + (["config"] if saved["config"] and here["config"] else [])
        must += ["topology"]  # last: where the configs already differ, theirs is the plainer sentence
    for key in must:
        if saved.get(key) != here[key]:
            name, theirs, ours = _first_difference(key, saved.get(key), here[key])
            may_fork = key in ("seed", "data", "policies", "config", "topology")
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
    _tell_of_other_code(trainer, where, saved.get(CODE) or {}, hashes_of(module.sources))
    return saved


def _warn_of_other_data(where: str | Path, saved: dict[str, Any], here: dict[str, Any]) -> None:
    """Say of an evaluation that clients have other samples than in the run: its scores may be of training data."""
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


def _tell_of_other_code(trainer: RunTrainer, where: str | Path, before: dict[str, str], now: dict[str, str]) -> None:
    """Say that the user's own code is not the checkpoint's: in the banner of a fit, else as a warning.

    A resume is not refused for it. Most edits between a stop and a resume mend what stopped the run, and change none
    of its numbers; the history of the run notes the change, so that the run is not taken for one of the present code.
    """
    sentence = about_changes(str(where), before, now)
    if not sentence:
        return
    run = run_of(where)
    kept = "" if run is None or not (run / CODE).is_dir() else f"; the run's own is in {run / CODE}"
    if trainer.state.fn != "fit":
        warnings.warn(f"{sentence}{kept}", UserWarning, stacklevel=2)
    elif trainer.fork:
        trainer.remarks.append(f"{sentence}{kept}")
    else:
        trainer.remarks.append(f"{sentence}; the rounds from here on are of the present code")


def check_rounds(trainer: RunTrainer, rounds: int) -> None:
    """Refuse a checkpoint with more rounds than this run asks for.

    Args:
        trainer: of the run that resumes.
        rounds: complete rounds in the checkpoint.

    Raises:
        UserError: names the least number of rounds that the run may ask for.
    """
    most = trainer.max_epochs
    if trainer.state.fn != "fit" or most is None or not 0 <= most < rounds:
        return
    here = "trainer.fast_dev_run does 1" if trainer.fast_dev_run else f"trainer.max_rounds is {most}"  # type: ignore[attr-defined]
    raise UserError(
        f"{trainer.resumed_from}: the run has {rounds} rounds already, and {here}; "
        f"give {rounds} or more, or go on from an earlier checkpoint"
    )


def _plain(policy: Policy) -> dict[str, Any]:
    """A policy's settings: its simple attributes that are not state."""
    state = set(policy.state_dict())
    simple = (int, float, str, bool, type(None))
    return {k: v for k, v in vars(policy).items() if k not in state and isinstance(v, simple)}


def _comparable(config: dict[str, Any] | None) -> dict[str, Any]:
    """The part of a configuration, except the trainer's, that decides what is computed.

    A key of a family that did not exist yet means the same as null.
    """
    if config is None:
        return {}
    return {k: v for k, v in deciding(config).items() if k != "trainer" and v is not None}


def _first_difference(name: str, theirs: Any, ours: Any) -> tuple[str, Any, Any]:
    """The innermost key at which two nested dicts differ."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in [*theirs, *(k for k in ours if k not in theirs)]:
            if theirs.get(key) != ours.get(key):
                return _first_difference(key if name == "config" else f"{name}.{key}", theirs.get(key), ours.get(key))
    return name, theirs, ours
