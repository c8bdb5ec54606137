"""The hook of a policy or a monitor that is running, and the row sets that it may write."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

WRITTEN_IN = {"models": "on_mix", "sent": "on_outgoing"}
"""The round's own row sets, and the only hook in which policies may write them; declared sets may be written in any."""

CHANGES_NOTHING = (
    "a monitor measures a round and changes nothing: read rows with round.bank.rows(name), which gives a monitor "
    "copies, or derive from a policy"
)
"""The remedy in errors about monitors that write."""


@dataclass
class RunningHook:
    """A hook of a round while it runs.

    Args:
        round: 0-based round.
        who: name of the policy or monitor, for example `mine.LowestLoss`.
        name: name of the hook.
        watches: True for a monitor, which gets copies of rows and may write only sets that it has made itself.
    """

    round: int
    who: str
    name: str
    watches: bool
    _copies: dict[int, tuple[Tensor, int, Tensor]] = field(default_factory=dict, repr=False)

    def refusal(self, did: str, remedy: str) -> UserError:
        """Make an error about a mistake of the hook.

        Args:
            did: the mistake, as a verb phrase: `calls bank.commit()`.
            remedy: what the user should do instead.
        """
        return UserError(f"{nth_round(self.round)}: {self.who} {did} in {self.name}; {remedy}")

    def check_write(self, verb: str, name: str, own: bool = False) -> None:
        """Raise if this hook may not write into the row set.

        Args:
            verb: the call, as a user writes it.
            name: name of the row set.
            own: True if a monitor has made the set with `scratch`.

        Raises:
            UserError: a monitor writes, or a policy writes one of `WRITTEN_IN` in another hook.
        """
        if self.watches and not own:
            raise self.refusal(f"writes the row set '{name}' ({verb})", CHANGES_NOTHING)
        if WRITTEN_IN.get(name, self.name) != self.name:
            raise self.refusal(f"writes the row set '{name}' ({verb})", f"policies write it in {WRITTEN_IN[name]} only")

    def shown(self, rows: Tensor) -> Tensor:
        """Return the rows of a set, [own, width]; a monitor gets a copy, which is made anew only when they change."""
        if not self.watches:
            return rows
        entry = self._copies.get(id(rows))
        if entry is None or entry[1] != rows._version:
            entry = self._copies[id(rows)] = (rows, rows._version, rows.clone())
        return entry[2]
