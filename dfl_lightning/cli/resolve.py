"""The config that arguments of `dfl-fit` make, and a check that their run could start; for programs, without output."""

from __future__ import annotations

import gc
import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, find_users_classes, read, users_mistake
from dfl_lightning.data import FederatedData
from dfl_lightning.distributed.environment import check_environment
from dfl_lightning.engines.engine import Engine
from dfl_lightning.runs.columns import expected_columns
from dfl_lightning.utils.code.users_code import exits_refused
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.lightning_warnings import quiet_lightning
from dfl_lightning.utils.storage.yaml_files import CLASS_FOLDERS, load_dumped


@dataclass(frozen=True)
class Outline:
    """The facts that are known about a run before it starts.

    Attributes:
        samples: numbers of samples of all clients together, by `train`, `val` and `test`.
        columns: names of the numbers that its metrics.csv may have.
    """

    samples: dict[str, int]
    columns: tuple[str, ...]


def resolve(argv: Sequence[str]) -> dict[str, Any]:
    """Resolve arguments into a config, all defaults included, as `--print_config` prints it.

    Args:
        argv: the arguments, without the command.

    Raises:
        UserError: the arguments are wrong.
    """
    with _as_a_command():
        cli = DFLCLI("fit", read(split(list(argv))), stop_at="config")
        text = cli.parser.dump(cli.config, format="yaml", skip_unset=False)
    config: dict[str, Any] = load_dumped(text)
    return config


def set_up(argv: Sequence[str], common: Common | None = None) -> Outline:
    """Set up a run without training, to find errors and the facts about it.

    Args:
        argv: the arguments, without the command.
        common: data and engine of runs that were set up before; default: none.

    Raises:
        MissingData: files of the data are missing.
        UserError: the run cannot start for another reason.
    """
    try:
        with _as_a_command():
            return _outline(
                DFLCLI("fit", read(split(list(argv))), stop_at="objects"), Common() if common is None else common
            )
    finally:
        gc.collect()  # a trainer and its module hold each other, and with them the samples and models of this config


@dataclass
class Common:
    """Data and an engine with its trials, shared by runs that are set up one after another.

    A run gets the data of the former one if both have the same data and seed, and its engine if both also have the same
    network, local work, objective and trainer, on which alone an engine depends. Errors of shared parts were raised for
    the first run. All other parts, such as policies and topology, are made for each run.

    It is a context manager: the shared parts are freed at its end.
    """

    data: tuple[str, FederatedData] | None = None
    engine: tuple[str, Engine] | None = None
    _freezes: bool = field(default=False, init=False, compare=False, repr=False)

    def __enter__(self) -> Common:
        gc.collect()
        self._freezes = gc.get_freeze_count() == 0  # a command has done so: see `loading`
        if self._freezes:
            gc.freeze()  # so that a collection after each run skips the objects of the libraries
        return self

    def __exit__(self, *error: object) -> None:
        self.data = self.engine = None
        gc.collect()
        if self._freezes:
            gc.unfreeze()


def _outline(cli: DFLCLI, common: Common) -> Outline:
    config = cli.trainer.config
    of_data = _text(config, ("data", "seed_everything", CLASS_FOLDERS))
    of_engine = of_data + _text(config, ("model", "objective", "prediction", "trainer", "engine"))
    datamodule = cli.datamodule
    if common.data is not None and common.data[0] == of_data:
        datamodule = common.data[1]
    if common.engine is not None and common.engine[0] == of_engine:
        cli.trainer.tried = common.engine[1]
    cli.trainer.prepare(cli.model, datamodule)
    common.data, common.engine = (of_data, datamodule), (of_engine, cli.model.engine)
    data = cli.model.federation.data
    samples = {part: int(data.sizes(part).sum()) for part in ("train", "val", "test")}
    return Outline(samples, expected_columns(cli.model))


def _text(config: dict[str, Any] | None, keys: Sequence[str]) -> str:
    """Format a part of a resolved config as text, so that it can be compared."""
    return json.dumps({key: (config or {}).get(key) for key in keys}, sort_keys=True, default=str)


@contextmanager
def _as_a_command() -> Iterator[None]:
    """Turn errors that a command would report as a user's mistake into `UserError`, and suppress warnings."""
    with quiet_lightning(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_environment()
        find_users_classes()
        try:
            with exits_refused():
                yield
        except UserError:
            raise
        except Exception as error:
            sentence = users_mistake(error)
            if sentence is None:
                raise
            raise UserError(sentence) from error
