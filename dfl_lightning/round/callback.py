"""The hooks of a communication round: what they are, how they are called, and what they must not draw from."""

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
from dfl_lightning.round.running import running
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.randomness.global_generators import name_of, no_global_draws
from dfl_lightning.utils.words import nth_round


class RoundCallback(RecordsArguments, Callback):
    """A Lightning callback that also has the hooks of a communication round, called in this order.

    Each hook reads what is above it in `Round` and writes its own field. State between rounds lives in attributes that
    `state` names; only tensors, `Links`, `LinkMemory`, numbers, strings, lists and dicts, and only small things: never
    rows of the bank.

    Attributes:
        state: names of the attributes that a checkpoint holds.
        reads: names of `Round` fields of other families that this policy uses; a threshold that is not read is
            switched off.
        row_sets: row sets that the policy wants in the bank, by name, and what they begin as: `models` (the first
            models) or `zeros` (with the buffers of the first models).
        reports: the row set that clients are evaluated and exported by, where it is not `models`.
        logs: names that it may give to `round.log`, by which a study knows them before training; `start` may set those
            that depend on the run.
        supports_servers: whether it works where servers receive and mix.
        needs_classes: whether it looks at classes, so that other tasks (`model.task`) are refused.
        averages_prototypes: whether it mixes the prototypes that the objective `FedProto` sends.
        only_watches: whether it is a monitor: its hooks get copies of rows, cost nothing, and may change nothing.
        reads_run_folder: whether it is called after the run folder, whose files then hold the round.
        switched_off: set by the trainer where nothing reads what this policy writes.
    """

    switched_off = False
    state: tuple[str, ...] = ()
    reads: frozenset[str] = frozenset()
    row_sets: Mapping[str, str] = {}  # read only
    reports: str | None = None
    logs: tuple[str, ...] = ()
    supports_servers: bool = True
    needs_classes: bool = False
    averages_prototypes: bool = False
    only_watches: bool = False
    reads_run_folder: bool = False

    @property
    def changes_messages(self) -> bool:
        """Whether it changes what clients send: it has a hook `on_outgoing` of its own."""
        return type(self).on_outgoing is not RoundCallback.on_outgoing

    def state_dict(self) -> dict[str, Any]:
        """Return the attributes that `state` names."""
        return {name: _stored(getattr(self, name, None)) for name in self.state}  # None: it was never started

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name in self.state:
            if state_dict.get(name) is not None:  # as earlier versions kept what had not begun, or did not know
                setattr(self, name, _restored(state_dict[name]))

    def start(self, federation: Federation) -> None:
        """Refuse what cannot work, before a run, with a `UserError`."""

    def listed_links(self, federation: Federation) -> int:
        """Return how many links a round writes down for this policy, by which memory is foreseen; default: none.

        Args:
            federation: of the run.
        """
        return 0

    def is_symmetric(self, federation: Federation) -> bool:
        """Tell whether the mixing matrices of all rounds are symmetric for certain; default: no.

        Args:
            federation: of the run.
        """
        return False

    def eigenvalues(self, federation: Federation) -> Tensor | None:
        """Return the eigenvalues of a mixing matrix that is the same in all rounds, float64 [n], ascending.

        Default: None, they are not known.

        Args:
            federation: of the run.
        """
        return None

    def describe(self, federation: Federation) -> str | None:
        """Return a line of its own for the banner; default: none.

        Args:
            federation: of the run.
        """
        return None

    def on_start(self, round: Round) -> None:
        """Prepare once, before the first round of a run, or of a fork whose checkpoint has no state of this policy.

        All clients are active: `reachable` are the links; `round.charge_message` counts what is sent. What it finds out
        goes into attributes that `state` names.
        """

    def on_dropout(self, round: Round) -> None:
        """Say who is active: `active`."""

    def on_propose(self, round: Round) -> None:
        """Say where training starts and whom to look at: `jobs`, `candidates`."""

    def on_outgoing(self, round: Round) -> None:
        """Say what clients send: the row set `sent`."""

    def on_trained(self, round: Round) -> None:
        """Remember or score what local training has made."""

    def on_compare(self, round: Round) -> None:
        """Judge the candidates: `similarity`, `scores`."""

    def on_threshold(self, round: Round) -> None:
        """Say what score is enough: `threshold`."""

    def on_select(self, round: Round) -> None:
        """Choose whom to learn from: `selected`."""

    def on_substitute(self, round: Round) -> None:
        """Say who stands in for those that dropped out: `substitute`, `substitute_rows`."""

    def on_weigh(self, round: Round) -> None:
        """Turn votes into `weights`."""

    def on_mix(self, round: Round) -> None:
        """Write the new models."""

    def on_mixed(self, round: Round) -> None:
        """Look at the mixed models, also where no client is active: `mixed` are the new, `models` the former ones."""

    def on_round_end(self, round: Round) -> None:
        """Change the policies' state for the last time in the round; `log` numbers."""

    def on_engine_progress(self, done: int, total: int) -> None:
        """Follow the local training, after each cohort.

        Args:
            done: cohorts that have ended.
            total: all cohorts of this training.
        """

    def on_boundary(self, trainer: Any, module: Any) -> None:
        """Write files: the round is over, evaluated and closed. As Lightning's own hooks, with trainer and module.

        Args:
            trainer: the `DFLTrainer`.
            module: the `DFLModule`.
        """


def _stored(value: Any) -> Any:
    """What a checkpoint holds in the place of a value: lists of links as tensors."""
    if isinstance(value, LinkMemory):
        return {_CODES: value.links.codes, _NODES: value.links.nodes, _VALUES: value.values}
    if isinstance(value, Links):
        return {_CODES: value.codes, _NODES: value.nodes}
    return value


def _restored(value: Any) -> Any:
    """The reverse of `_stored`."""
    if not isinstance(value, dict) or _CODES not in value:
        return value
    links = Links.coded(value[_CODES], value[_NODES])
    return LinkMemory(links, value[_VALUES]) if _VALUES in value else links


_CODES, _NODES, _VALUES = "links.codes", "links.nodes", "links.values"
"""Keys of stored lists of links: the codes of their pairs, the number of nodes, a number for each."""


def refuse_wrong_hooks(callback: RoundCallback) -> None:
    """A hook that takes other arguments than it is called with.

    Raises:
        UserError: which, and what it takes.
    """
    for name, plain in vars(RoundCallback).items():
        own = getattr(type(callback), name)
        if not name.startswith(("on_", "start")) or own is plain:
            continue
        wanted = list(inspect.signature(plain).parameters)
        try:
            inspect.signature(own).bind(*wanted)
        except TypeError:
            raise UserError(
                f"{name_of(callback)}: {name}{inspect.signature(own)} has other arguments than the round calls it "
                f"with; write def {name}({', '.join(wanted)})"
            ) from None


def call_round_hook(
    trainer: Any, name: str, *args: Any, only: Callable[[RoundCallback], bool] = lambda callback: True
) -> None:
    """Call a hook of all round callbacks, in their order, each under its name in the profiler.

    Args:
        trainer: the `DFLTrainer`, with its callbacks.
        name: of the hook.
        *args: what the hook takes; the round, for most.
        only: which callbacks are called.

    Raises:
        UserError: a user's own one draws from a global generator; one writes what is not its to write, see `running`.
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
                running(bank, callback, name, callback.only_watches, round),
            ):
                getattr(callback, name)(*args)


def draws_by_name_only(number: int, who: object, where: str) -> AbstractContextManager[None]:
    """Around code of a user's: it must not draw from a global generator.

    Ours is not watched, to save its time; tests do it.

    Args:
        number: of the round.
        who: whose code.
        where: its method.
    """
    name = name_of(who)
    if name.startswith("dfl_lightning."):
        return nullcontext()

    def refusal(generators: str) -> str:
        return (
            f"{nth_round(number)}: {name} draws from {generators} in {where}, whose state no checkpoint "
            "holds, so that a resumed run would differ; draw with generator=round.stream('a name of yours')"
        )

    return no_global_draws(refusal)
