"""Training of one factor of the adapters in a round, and of the other one in the next."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from dfl_lightning.bank.layout import Layout
from dfl_lightning.engines.local_work import Duration, Phase
from dfl_lightning.objectives.plain import Plain
from dfl_lightning.utils.errors import UserError, nearest

if TYPE_CHECKING:
    from dfl_lightning.round.federation import Federation


class Alternating(Plain):
    """Descent on one part of the parameters in each round, in turn (ADF-LoRA, arXiv 2511.18291).

        w_p = w_p - eta grad_p f(w),    p = round // every mod number of parts

    All clients train the same part in a round. Parameters of other parts stay as they are in it, but are exchanged and
    mixed as always. Parameters in no part, such as a head, are trained in each round. With adapters, B comes first: it
    begins at 0, where the gradient of A is 0.

    Args:
        parts: a pattern of names for each part.
        every: number of rounds in which a part is trained before the next one.
    """

    method_name = "ADF-LoRA"
    recordable = False
    recorded_as = None

    def __init__(self, parts: tuple[str, ...] = ("*lora_B", "*lora_A"), every: int = 1) -> None:
        if isinstance(parts, str) or len(parts) < 2:
            raise UserError(f"objective.parts={parts}; give two patterns of names or more")
        if every < 1:
            raise UserError(f"objective.every={every}; it must be 1 or more")
        super().__init__()
        self.parts, self.every = tuple(parts), every

    def start(self, federation: Federation) -> None:
        """Require parameters in each part."""
        names = [entry.name for entry in federation.layout.entries if entry.trainable]
        for pattern in self.parts:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise UserError(
                    f"objective.parts: no trained parameter matches '{pattern}'{nearest(pattern, names)} "
                    f"(trained parameters: {', '.join(names[:12])}{', …' if len(names) > 12 else ''})"
                )

    def phases(self, layout: Layout, duration: Duration, round: int) -> tuple[Phase, ...]:
        """Return one phase on all columns but those of the parts whose turn it is not."""
        turn = self.parts[round // self.every % len(self.parts)]
        idle = [
            entry
            for entry in layout.entries
            if not entry.is_buffer
            and not fnmatchcase(entry.name, turn)
            and any(fnmatchcase(entry.name, pattern) for pattern in self.parts)
        ]
        return (Phase(self, duration, layout.without(idle)),)
