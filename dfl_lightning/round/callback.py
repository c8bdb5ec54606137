"""The hooks of a communication round: their definition, calls of them, and a guard against global random draws."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.pytorch import Callback
from torch import Tensor

from dfl_lightning.links import LinkMemory, Links
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.record import Round
from dfl_lightning.round.running import guard_hook
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import name_of, no_global_draws
from dfl_lightning.utils.words import nth_round


class RoundCallback(RecordsArguments, Callback):
    """A Lightning callback that also has the hooks of a communication round, called in this order.

    Each hook reads the fields of `Round` that earlier hooks have written and writes its own field. State that lasts
    from round to round is kept in attributes that `state` names. Their values are tensors, `Links`, `LinkMemory`,
    numbers, strings, lists or dicts, and must be small: never rows of the bank.

    Attributes:
        family: the name of its family in messages and, of a policy or objective, its key in a config.
        state: names of the attributes that a checkpoint holds.
        reads: names of `Round` fields of other families that this policy uses; a threshold policy is switched off if
            no other policy reads its field.
        row_sets: row sets that the policy needs in the bank, by name, and their initial values: `models` (the first
            models) or `zeros` (with the buffers of the first models).
        reports: the row set with which clients are evaluated and exported; None: `models`.
        logs: names that it may pass to `round.log`, so that a study knows them before training; `start` may set those
            that depend on the run.
        supports_servers: True if it works in a topology with servers, which receive and mix.
        supports_clock: True if it works with clients that do not wait for each other: it keeps no state by round, and
            reads other clients' models by verbs of the round only, those of `receivable` links.
        against_clock: the reason why it does not, as a clause for the message.
        needs_classes: True if it uses classes; other tasks (`model.task`) are then refused.
        is_asynchronous: True for a clock with which clients do not wait for each other.
        averages_prototypes: True if it mixes the prototypes that the objective `FedProto` sends.
        only_watches: True for a monitor: its hooks get copies of rows, cost nothing, and may change nothing.
        reads_run_folder: True if it is called after the run folder, whose files then hold the round.
        switched_off: set by the trainer if no policy reads the field that this policy writes.
    """

    family: str = "callback"
    switched_off = False
    state: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    row_sets: Mapping[str, str] = {}  # read only
    reports: str | None = None
    logs: tuple[str, ...] = ()
    supports_servers: bool = True
    supports_clock: bool = False
    against_clock: str = ""
    needs_classes: bool = False
    averages_prototypes: bool = False
    is_asynchronous: bool = False
    only_watches: bool = False
    reads_run_folder: bool = False

    @property
    def changes_messages(self) -> bool:
        """True if it changes what clients send, because it defines the hook `on_outgoing`."""
        return type(self).on_outgoing is not RoundCallback.on_outgoing

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes that `state` names."""
        return {name: _stored(getattr(self, name, None)) for name in self.state}  # None: `start` was not called

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.state:
            if state_dict.get(name) is not None:  # None: `start` was not called before the checkpoint
                setattr(self, name, _restored(state_dict[name]))

    def start(self, federation: Federation) -> None:
        """Raise a `UserError` before a run if the policy cannot work in it."""

    def listed_links(self, federation: Federation) -> int:
        """Return the number of links that a round lists for this policy, to predict the memory; default: 0.

        Args:
            federation: the run's data, topology, network and policies.
        """
        return 0

    def is_symmetric(self, federation: Federation) -> bool:
        """Return True if the mixing matrices of all rounds are certainly symmetric; default: False.

        Args:
            federation: the run's data, topology, network and policies.
        """
        return False

    def eigenvalues(self, federation: Federation) -> Tensor | None:
        """Return the eigenvalues of a mixing matrix that is the same in all rounds, float64 [n], ascending.

        Default: None, they are unknown.

        Args:
            federation: the run's data, topology, network and policies.
        """
        return None

    def describe(self, federation: Federation) -> str | None:
        """Return the policy's own line for the banner; default: none.

        Args:
            federation: the run's data, topology, network and policies.
        """
        return None

    def on_start(self, round: Round) -> None:
        """Prepare once, before the first round of a run, or of a fork whose checkpoint has no state of this policy.

        All clients are active, and `reachable` holds the links. `round.charge_message` counts what is sent. Results
        must be kept in attributes that `state` names.
        """

    def on_clock(self, round: Round) -> None:
        """Decide which clients finish their training in this wave: write `due`, `cycles`, `instants`."""

    def on_dropout(self, round: Round) -> None:
        """Decide which clients are active: write `active`."""

    def on_propose(self, round: Round) -> None:
        """Propose the models that training starts from, and the candidates: write `jobs`, `candidates`."""

    def on_outgoing(self, round: Round) -> None:
        """Change the models that clients send: write the row set `sent`."""

    def on_trained(self, round: Round) -> None:
        """Remember or evaluate the models after local training."""

    def on_compare(self, round: Round) -> None:
        """Score the candidates: write `similarity`, `scores`."""

    def on_threshold(self, round: Round) -> None:
        """Determine the lowest score at which a candidate may be selected: write `threshold`."""

    def on_select(self, round: Round) -> None:
        """Select the neighbours whose models are mixed: write `selected`."""

    def on_substitute(self, round: Round) -> None:
        """Choose substitutes for clients that dropped out: write `substitute`, `substitute_rows`."""

    def on_weigh(self, round: Round) -> None:
        """Compute the mixing weights from the votes: write `weights`."""

    def on_mix(self, round: Round) -> None:
        """Compute the new models: write the row set `models`."""

    def on_mixed(self, round: Round) -> None:
        """Look at the new models, the row set `mixed`; `models` are the former ones. Called in every round."""

    def on_round_end(self, round: Round) -> None:
        """Update the policy's state for the last time in the round; `log` numbers."""

    def on_engine_progress(self, done: int, total: int) -> None:
        """Follow the local training; called after each cohort.

        Args:
            done: number of cohorts that have been trained.
            total: number of all cohorts of this training.
        """

    def on_boundary(self, trainer: Any, module: Any) -> None:
        """Write files after a round has been evaluated and closed; called with trainer and module, as in Lightning.

        Args:
            trainer: the `DFLTrainer`.
            module: the `DFLModule`.
        """


def _stored(value: Any) -> Any:
    """Convert a value into the form that a checkpoint holds: lists of links become tensors."""
    if isinstance(value, LinkMemory):
        return {_CODES: value.links.codes, _NODES: value.links.nodes, _VALUES: value.values}
    if isinstance(value, Links):
        return {_CODES: value.codes, _NODES: value.nodes}
    return value


def _restored(value: Any) -> Any:
    """Convert a value of a checkpoint back; the inverse of `_stored`."""
    if not isinstance(value, dict) or _CODES not in value:
        return value
    links = Links.coded(value[_CODES], value[_NODES])
    return LinkMemory(links, value[_VALUES]) if _VALUES in value else links


_CODES, _NODES, _VALUES = "links.codes", "links.nodes", "links.values"
"""Keys of stored lists of links: the codes of their pairs, the number of nodes, and a value for each link."""


def refuse_wrong_hooks(callback: RoundCallback) -> None:
    """Raise if a hook of the callback does not accept the arguments that it will be called with.

    Raises:
        UserError: names the hook and the arguments that it must accept.
    """
    for name, plain in vars(RoundCallback).items():
        hook = getattr(type(callback), name)
        if not name.startswith(("on_", "start")) or hook is plain:
            continue
        wanted = list(inspect.signature(plain).parameters)
        try:
            inspect.signature(hook).bind(*wanted)
        except TypeError:
            raise UserError(
                f"{name_of(callback)}: {name}{inspect.signature(hook)} has other arguments than the round calls it "
                f"with; write def {name}({', '.join(wanted)})"
            ) from None


def call_round_hook(
    trainer: Any, name: str, *args: Any, only: Callable[[RoundCallback], bool] = lambda callback: True
) -> None:
    """Call a hook of all round callbacks, in their order, each under its name in the profiler.

    Args:
        trainer: the `DFLTrainer`, with its callbacks.
        name: name of the hook.
        *args: arguments of the hook; for most hooks, the round.
        only: returns True for callbacks that are called.

    Raises:
        UserError: a user's callback draws from a global generator, or a callback writes what it may not write; see
            `guard_hook`.
    """
    bank = trainer.lightning_module.bank
    round = args[0] if args and hasattr(args[0], "ledger") else None
    for callback in trainer.callbacks:
        if not isinstance(callback, RoundCallback) or callback.switched_off or not only(callback):
            continue
        if getattr(type(callback), name) is not getattr(RoundCallback, name):
            with (
                trainer.profiler.profile(f"[RoundCallback]{callback.state_key}.{name}"),
                torch.no_grad(),
                draws_by_name_only(bank.boundary.round, callback, name),
                guard_hook(bank, callback, name, callback.only_watches, round),
            ):
                getattr(callback, name)(*args)


def draws_by_name_only(number: int, who: object, where: str) -> AbstractContextManager[None]:
    """Reject draws from global random generators by user code that runs inside.

    The library's own code is not checked here, to save time; the tests check it.

    Args:
        number: the round, 0-based.
        who: the policy, monitor or objective whose code runs.
        where: name of the method that runs.
    """
    name = name_of(who)
    if name.startswith("dfl_lightning."):
        return nullcontext()

    def refusal(generators: str) -> str:
        return (
            f"{nth_round(number)}: {name} draws from {generators} in {where}, whose state no checkpoint "
            "holds, so that a resumed run would differ; draw with generator=round.generator('a name of yours')"
        )

    return no_global_draws(refusal)
