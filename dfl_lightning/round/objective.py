"""The base class of objectives: a local training rule with hooks in a round."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, LocalRule, Phase
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.record import Round
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments


class Objective(RecordsArguments, LocalRule):
    """A local training rule, chosen like a policy; see `LocalRule` for `stackable`, `row_sets` and other attributes.

    Attributes:
        family: the name of its family in messages and, of a policy or objective, its key in a config.
        reports: the row set with which clients are evaluated and exported; None: `models`.
        logs: names that it may pass to `round.log`, so that a study knows them before training.
        supports_servers: True if it works in a topology with servers, which receive and mix.
        supports_clock: True if it works with clients that do not wait for each other: it reads no values of a round.
        against_clock: the reason why it does not, as a clause for the message.
        kept: number of entries of each parameter that a client exchanges; empty: all of them.
        keeps_models: True if clients keep their own models even under a server, which learns something else from them.
        method_name: the name that reports give to methods with this objective; empty if it defines no method.
    """

    family: str = "objective"
    reports: str | None = None
    logs: tuple[str, ...] = ()
    supports_servers: bool = True
    supports_clock: bool = False
    against_clock: str = ""
    kept: Sequence[int] = ()
    keeps_models: bool = False
    method_name: str = ""

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on all columns; see `LocalRule.phases`."""
        return (Phase(self, duration, layout.all),)

    def start(self, federation: Federation) -> None:
        """Raise a `UserError` before training if the objective cannot work in this run."""

    def on_start(self, round: Round) -> None:
        """Write the first rows of the objective's own sets, before the first round of a run."""

    def before_mixing(self, round: Round) -> None:
        """Write the objective's own row sets when `round.weights` are known and the models are not yet mixed."""

    def after_mixing(self, round: Round) -> None:
        """Write the objective's own row sets after the models have been mixed.

        The row set `mixed` holds the new models, `models` the former ones. In a round in which all clients have dropped
        out, nothing is mixed and both are equal.
        """

    def adaptation(self, layout: Layout) -> tuple[Phase, ...]:
        """Return phases that train a copy of each model on the client's training data before it is evaluated.

        Fine-tuning (`model.finetune_epochs`) comes after them. Default: no phases.

        Args:
            layout: the network's columns, shared and personal.
        """
        return ()
