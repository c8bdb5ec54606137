"""What arguments of `dfl-fit` mean, and whether their run could begin: for programs, without printing."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from dfl_lightning.cli.arguments import split
from dfl_lightning.cli.command import DFLCLI, find_users_classes, read, users_mistake
from dfl_lightning.distributed.environment import check_environment
from dfl_lightning.report.columns import expected_columns
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.lightning_warnings import quiet_lightning
from dfl_lightning.utils.users_code import exits_refused


@dataclass(frozen=True)
class Outline:
    """What is known of a run before it begins.

    Attributes:
        samples: of all clients together: `train`, `val` and `test`.
        columns: names of the numbers that its metrics.csv may have.
    """

    samples: dict[str, int]
    columns: tuple[str, ...]


def resolve(argv: Sequence[str]) -> dict[str, Any]:
    """Resolve arguments into a config, all defaults included, as `--print_config` prints it.

    Args:
        argv: the arguments, without the command.

    Raises:
        UserError: they are refused.
    """
    with _as_a_command():
        cli = DFLCLI("fit", read(split(list(argv))), stop_at="config")
        text = cli.parser.dump(cli.config, format="yaml", skip_unset=False)
    config: dict[str, Any] = yaml.safe_load(text)
    return config


def set_up(argv: Sequence[str]) -> Outline:
    """Set a run up as far as possible without training.

    Args:
        argv: the arguments, without the command.

    Raises:
        MissingData: files of the data are missing.
        UserError: the run is refused for another reason.
    """
    try:
        with _as_a_command():
            return _outline(DFLCLI("fit", read(split(list(argv))), stop_at="objects"))
    finally:
        gc.collect()  # a trainer and its module hold each other, and with them the samples and models of this config


def _outline(cli: DFLCLI) -> Outline:
    cli.trainer.prepare(cli.model, cli.datamodule)
    data = cli.model.federation.data
    samples = {part: int(data.sizes(part).sum()) for part in ("train", "val", "test")}
    return Outline(samples, expected_columns(cli.model))


@contextmanager
def _as_a_command() -> Iterator[None]:
    """Errors become a user's mistakes where the command would say so; warnings are for those who run it."""
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
