"""The evaluation of a boundary: the models that clients are judged by, their fine-tuning, predictions and scores."""

from __future__ import annotations

import copy
from typing import Any

import torch
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

from dfl_lightning.bank.references import References, Term, Weights
from dfl_lightning.callbacks.base import Prediction, Selection
from dfl_lightning.engines.jobs import Evaluation, Training
from dfl_lightning.engines.scoring.predicting import predict
from dfl_lightning.links import Links
from dfl_lightning.objectives import Duration, Phase, Plain
from dfl_lightning.round.callback import draws_by_name_only
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.run.hosts import RunModule
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.words import counted, nth_round

SPLITS = ("val", "test")


def evaluate(module: RunModule, stage: TrainerFn | None) -> dict[str, Tensor]:
    """Evaluate the reported models of the present boundary; see `DFLModule.evaluate`.

    Args:
        module: the module of a run that is set up.
        stage: the trainer's present function: fitting, validating or testing.
    """
    federation, engine = module.federation, module.engine
    references = evaluated_models(module)
    splits = _splits_with_data(federation)
    engine.failures.clear()  # of selections that evaluated models before
    if federation.policy(Prediction) is None:
        by_split = {split: _without_broken(module, engine.evaluate(references, split), split) for split in splits}
    else:
        by_split = predict(engine, *_members(module, references, stage), splits)[1]
    module.client_warnings.failed_metrics(engine.failures.gather(engine.bank.ranks), module.bank.boundary.round)
    results: dict[str, Tensor] = {}
    for split, scores in by_split.items():
        results |= {f"{split}_loss": scores.losses}
        results |= {f"{split}_{name}": values for name, values in scores.metrics.items()}
    module.bank.abandon()
    if federation.has_global_model:
        server = torch.tensor([federation.num_clients])
        scores = engine.evaluate(References((Term("models", server),), torch.tensor([-1])), "test")
        scores = _without_broken(module, scores, "global test")
        results |= {"global_test_loss": scores.losses}
        results |= {f"global_test_{name}": scores.metrics[name] for name in federation.task.numbers}
    return results


def by_client(results: dict[str, Tensor]) -> dict[str, float]:
    """Return the numbers of single clients that exist, by names such as `test_acc/client_3`, for loggers.

    Args:
        results: arrays over clients; those of a global model are left out.
    """
    of_clients = {name: values.tolist() for name, values in results.items() if not name.startswith("global_")}
    return {
        f"{name}/client_{client}": value
        for name, values in of_clients.items()
        for client, value in enumerate(values)
        if value == value
    }


def reported_models(module: RunModule) -> References:
    """Return the model that each client is judged by.

    It is the client's own model, one that a policy or the objective keeps for evaluation, or its server's model with
    the client's personal parameters.
    """
    federation = module.federation
    owners, rows = torch.arange(federation.num_clients), federation.reported_rows
    if rows != "models":
        return References.rows(rows, owners)  # each client has a row of its own in the set, even under a server
    nodes = federation.server_of(owners)
    if federation.topology.num_servers > 1:
        selection = federation.require(Selection)
        with draws_by_name_only(module.bank.boundary.round, selection, "assign"):
            nodes = federation.num_clients + selection.assign(federation, owners)
    return References.rows(rows, nodes, owners)


def evaluated_models(module: RunModule) -> References:
    """Return the reported models, fine-tuned if the run asks for it; see `DFLModule.evaluated_models`."""
    bank, references = module.bank, reported_models(module)
    layout = module.federation.layout
    phases = module.objective.adaptation(layout)
    if module.finetune_epochs:
        phases = (*phases, Phase(Plain(), Duration(module.finetune_epochs), layout.all))
    if not phases:
        return references
    own = module.federation.own_training(bank.boundary.round)
    own = None if own is None else own.without_durations()
    training = Training("finetune", bank.boundary.round, phases, module.hyperparameters, own=own)
    result = module.engine.train(references, training)
    if not result.finite.all():
        _evaluate_without_finetuning(module, references.take(torch.nonzero(~result.finite).squeeze(1)))
    return References.rows("trained", references.owners)


def try_prediction(module: RunModule, stage: TrainerFn | None) -> None:
    """Let one client predict with its first model, so that a broken policy fails before training."""
    federation = module.federation
    prediction, data = federation.policy(Prediction), federation.data
    splits = _splits_with_data(federation)
    if prediction is None or not splits:
        return
    # Prefer a client with training data, since a prediction policy may store features of it.
    weight = data.sizes(splits[-1]) * (1 + data.sizes("train").clamp(max=1))
    client, rows = weight.argmax()[None], federation.reported_rows
    _members(module, References.rows(rows, torch.arange(federation.num_clients)), stage)
    predict(
        module.engine,
        References.rows(rows, federation.server_of(client), client),
        torch.ones(1, dtype=torch.float64),
        [split for split in splits if int(data.sizes(split)[client])],
    )


def restore_policies(federation: Federation, states: dict[str, Any]) -> None:
    """Restore the policies' states of a boundary.

    Args:
        federation: the federation, with its policies.
        states: the boundary's states of callbacks, by key.
    """
    for policy in federation.policies:
        if policy.state_key in states:
            policy.load_state_dict(copy.deepcopy(states[policy.state_key]))


def _splits_with_data(federation: Federation) -> list[str]:
    return [split for split in SPLITS if int(federation.data.sizes(split).sum())]


def _without_broken(module: RunModule, scores: Evaluation, split: str) -> Evaluation:
    """Set the task's numbers and metrics to NaN for models whose loss is infinite, and warn once for each client."""
    broken = scores.losses.isinf()
    clients = torch.nonzero(broken).flatten().tolist()
    if not clients:
        return scores
    module.client_warnings.broken_losses(
        [-1] if split == "global test" else clients,
        f"after {counted(module.bank.boundary.round, 'round')}: the loss of the model of {{}} is not finite on the "
        f"{split} data; its {Score.of(module.federation.task).label} is NaN, and so is a mean over clients (warned "
        "once per client; clients.npz has every evaluation)",
    )
    metrics = {name: values.masked_fill(broken, torch.nan) for name, values in scores.metrics.items()}
    return Evaluation(scores.losses, metrics)


def _members(module: RunModule, judged: References, stage: TrainerFn | None) -> tuple[References, Tensor]:
    """Return the models that clients predict with, grouped by client, and their weights, float64.

    Args:
        module: the module of a run that is set up.
        judged: the model that each client is judged by, in the order of the clients.
        stage: the trainer's present function: fitting, validating or testing.

    Raises:
        UserError: a prediction leaves a client out, or mixes clients' models under a server.
    """
    federation, bank = module.federation, module.bank
    prediction = federation.require(Prediction)
    if stage != TrainerFn.FITTING:
        restore_policies(federation, bank.boundary.callbacks)
    with draws_by_name_only(bank.boundary.round, prediction, "members"):
        members = prediction.members(federation)
    if members is None:
        return judged, torch.ones(federation.num_clients, dtype=torch.float64)
    links, shares = members
    if len(shares) != len(links):
        what, remedy = f"{len(shares)} weights for {len(links)} links", "there must be one for each"
    elif federation.num_servers:
        what, remedy = "clients under a server, whose models are not trained", "set supports_servers = False"
    elif not bool(((links.sum(shares.double()) - 1).abs() < 1e-6).all()):
        what, remedy = "weights that do not sum to 1 for each client", "a client's own model has a link to itself"
    else:
        used = links.keep(shares != 0)
        return _models_of_senders(module, judged, used), shares[shares != 0].double()
    raise UserError(f"prediction {type(prediction).__name__} returns as members {what}; {remedy}")


def _models_of_senders(module: RunModule, judged: References, links: Links) -> References:
    """Return the senders' models with the receivers' personal columns; for a link to itself, the judged model."""
    receivers, senders, rows = links.receivers, links.senders, module.federation.reported_rows
    if not module.finetune_epochs:
        return References.rows(rows, senders, receivers)
    itself, nodes = receivers == senders, module.federation.num_nodes
    terms = (
        Term(rows, Weights.of_rows(senders.where(~itself, -1), nodes)),
        Term("trained", Weights.of_rows(senders.where(itself, -1), nodes)),
    )
    return References(terms, receivers, judged.personal)


def _evaluate_without_finetuning(module: RunModule, references: References) -> None:
    """Undo the fine-tuning that diverged, so that these clients are judged by their models before fine-tuning."""
    owners, after = references.owners, module.bank.boundary.round - 1
    if module.on_divergence == "stop":
        names = ", ".join(map(str, owners.tolist()))
        raise UserError(
            f"after {nth_round(after)}: fine-tuning of client {names} diverged (NaN or infinity); "
            "lower model.optimizer.lr, set trainer.gradient_clip_val, or use --model.on_divergence quarantine"
        )
    module.bank.undo_training(references)
    module.client_warnings.divergence(
        owners.tolist(),
        f"after {nth_round(after)}: fine-tuning of client {{}} diverged; it is judged without fine-tuning",
    )
