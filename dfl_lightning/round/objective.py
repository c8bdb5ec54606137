"""What an objective is: a local training rule, and what it adds to a round."""

from __future__ import annotations

from collections.abc import Sequence

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, LocalRule, Phase
from dfl_lightning.round.federation import Federation
from dfl_lightning.round.record import Round
from dfl_lightning.utils.code.constructor_arguments import RecordsArguments


class Objective(RecordsArguments, LocalRule):
    """A local training rule, chosen like a policy; see `LocalRule` for `stackable`, `row_sets` and the others.

    Attributes:
        reports: the row set that clients are evaluated and exported by, where it is not `models`.
        logs: names that it may give to `round.log`, by which a study knows them before training.
        supports_servers: whether it works where servers receive and mix.
        kept: how many entries of each parameter a client exchanges; empty: all of them.
        keeps_models: whether clients keep their own models under a server too, which learns something else from them.
        method_name: what reports call a method with it; empty where it makes none of its own.
    """

    reports: str | None = None
    logs: tuple[str, ...] = ()
    supports_servers: bool = True
    kept: Sequence[int] = ()
    keeps_models: bool = False
    method_name: str = ""

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on all columns; see `LocalRule.phases`."""
        return (Phase(self, duration, layout.all),)

    def start(self, federation: Federation) -> None:
        """Refuse what cannot work, before training, with a `UserError`."""

    def on_start(self, round: Round) -> None:
        """Write the first rows of the objective's own sets, before the first round of a run."""

    def before_mixing(self, round: Round) -> None:
        """Write the objective's own row sets, with `round.weights` known and the models not yet mixed."""

    def after_mixing(self, round: Round) -> None:
        """Write the objective's own row sets, with the models mixed.

        The row set `mixed` are the new models, `models` the former ones. In a round in which all clients have dropped
        out nothing is mixed, and both are alike.
        """

    def adaptation(self, layout: Layout) -> tuple[Phase, ...]:
        """Return what becomes of each evaluated model before an evaluation, for the evaluation only, on training data.

        Fine-tuning (`model.finetune_epochs`) comes after it. Default: nothing.

        Args:
            layout: the network's columns, shared and personal.
        """
        return ()
