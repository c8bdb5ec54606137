"""Row sets, model references, the four verbs, and the engines that do the jobs."""

from dfl_lightning.bank.bank import Bank, Boundary
from dfl_lightning.bank.choice import make_engine
from dfl_lightning.bank.engine import Engine, EngineConfig, Training
from dfl_lightning.bank.jobs import Evaluation, References, Term, Trained, pairs_of
from dfl_lightning.bank.layout import Columns, Layout
from dfl_lightning.bank.loop_engine import LoopEngine
from dfl_lightning.bank.stacked import StackedEngine

__all__ = [
    "Bank",
    "Boundary",
    "Columns",
    "Engine",
    "EngineConfig",
    "Evaluation",
    "Layout",
    "LoopEngine",
    "References",
    "StackedEngine",
    "Term",
    "Trained",
    "Training",
    "make_engine",
    "pairs_of",
]
