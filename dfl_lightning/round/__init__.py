"""One communication round: its record, and the callbacks that fill it."""

from dfl_lightning.round.callback import RoundCallback, call_round_hook
from dfl_lightning.round.ledger import Ledger
from dfl_lightning.round.record import Round

__all__ = ["Ledger", "Round", "RoundCallback", "call_round_hook"]
