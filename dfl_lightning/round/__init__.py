"""One communication round: its record, and the callbacks that fill it."""

from dfl_lightning.round.record import Ledger, Round, RoundCallback, call_round_hook

__all__ = ["Ledger", "Round", "RoundCallback", "call_round_hook"]
