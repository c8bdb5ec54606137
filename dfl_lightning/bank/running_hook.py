"""Which code of a policy or a monitor is running, and what it may write in the bank."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.words import nth_round

WRITTEN_IN = {"models": "on_mix", "sent": "on_outgoing"}
"""Row sets that belong to the round, and the hook in which policies write them; declared sets are written in any."""

CHANGES_NOTHING = (
    "a monitor measures a round and changes nothing: read rows with round.bank.rows(name), which gives a monitor "
    "copies, or derive from a policy"
)
"""What a monitor should do instead."""


@dataclass
class RunningHook:
    """A hook of a round while it runs.

    Args:
        round: the round, 0-based.
        who: whose hook it is: `mine.LowestLoss`.
        name: of the hook.
        watches: whether it is a monitor's, which gets copies of rows and writes none but its own.
    """

    round: int
    who: str
    name: str
    watches: bool
    _copies: dict[int, tuple[Tensor, int, Tensor]] = field(default_factory=dict, repr=False)

    def refusal(self, did: str, remedy: str) -> UserError:
        """One sentence about something that the hook has done.

        Args:
            did: what.
            remedy: what to do instead.
        """
        return UserError(f"{nth_round(self.round)}: {self.who} {did} in {self.name}; {remedy}")

    def check_write(self, verb: str, name: str, own: bool = False) -> None:
        """Refuse a write into a row set that is not this hook's to write.

        Args:
            verb: what was called, as a user writes it.
            name: of the row set.
            own: whether it is a set of zeros that a monitor has made.

        Raises:
            UserError: a monitor writes, or a policy writes one of `WRITTEN_IN` in another hook.
        """
        if self.watches and not own:
            raise self.refusal(f"writes the row set '{name}' ({verb})", CHANGES_NOTHING)
        if WRITTEN_IN.get(name, self.name) != self.name:
            raise self.refusal(f"writes the row set '{name}' ({verb})", f"policies write it in {WRITTEN_IN[name]} only")

    def shown(self, rows: Tensor) -> Tensor:
        """Rows as this hook may have them: for a monitor a copy, the same one until they change.

        Args:
            rows: of a row set, [own, width].
        """
        if not self.watches:
            return rows
        found = self._copies.get(id(rows))
        if found is None or found[1] != rows._version:
            found = self._copies[id(rows)] = (rows, rows._version, rows.clone())
        return found[2]
