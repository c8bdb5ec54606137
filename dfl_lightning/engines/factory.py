"""The choice of a run's engine."""

from __future__ import annotations

from dfl_lightning.bank.layout import Layout
from dfl_lightning.data import ClientData
from dfl_lightning.engines.config import EngineConfig
from dfl_lightning.engines.engine import Engine
from dfl_lightning.engines.loop.loop_engine import LoopEngine
from dfl_lightning.engines.stacked import CannotStack, StackedEngine
from dfl_lightning.engines.trials.trial import Trial, try_plain
from dfl_lightning.utils.errors import UserError

ENGINES = ("auto", "stacked", "loop")


def make_engine(choice: str, config: EngineConfig, layout: Layout, data: ClientData) -> Engine:
    """Build the chosen engine; `auto` takes the stacked engine if the network can be stacked, else the loop engine.

    Args:
        choice: `auto`, `stacked` or `loop`.
        config: see `EngineConfig`.
        layout: the columns of a row.
        data: the clients' resident data.

    Raises:
        UserError: the network or the loss fails on the data; or the choice is `stacked`, and the network or the
            objective cannot be stacked.
    """
    trial = try_plain(config, data)
    if choice == "loop":
        return _loop(config, layout, data, trial)
    try:
        return StackedEngine(config, layout, data, trial)
    except CannotStack as obstacle:
        reason = f"{type(config.network).__name__} cannot be stacked: {obstacle}"
        if choice == "stacked":
            raise UserError(f"engine=stacked: {reason}; use engine: loop, or auto, which chooses it") from None
        engine = _loop(config, layout, data, trial)
        engine.reason = reason
        return engine


def _loop(config: EngineConfig, layout: Layout, data: ClientData, trial: Trial) -> Engine:
    engine = LoopEngine(config, layout, data, trial)
    if config.cuda_graphs:
        engine.details["graphs"] = "not recorded: clients train one after the other"
    return engine
