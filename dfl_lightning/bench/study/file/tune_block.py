"""The block `tune` of a study file: which options are looked for, where, and with how many trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_lightning.utils.errors import UserError, nearest

KEYS = ("trials", "sampler", "seed", "run_seed", "rounds", "column", "space", "rows")
SAMPLERS = ("TPE", "Random", "Grid")
"""Samplers of Optuna's, by their names without `Sampler`."""

RUN_SEED = 10_000
"""Seed of the trials' runs, where the file names none: far above those of a table."""


@dataclass(frozen=True)
class Range:
    """The values that an option may get.

    Attributes:
        choices: the values; empty: the numbers from `low` to `high`.
        low: the least number.
        high: the greatest.
        step: between two numbers; None: any number, or whole ones where both ends are whole.
        log: whether small numbers are looked at as closely as large ones.
    """

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether its numbers are whole ones."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def grid(self) -> list[Any]:
        """All values; empty where there are too many to count.

        Examples:
            >>> Range(low=0.1, high=0.3, step=0.1).grid(), Range(low=1, high=3).grid(), Range(low=0.0, high=1.0).grid()
            ([0.1, 0.2, 0.3], [1, 2, 3], [])
        """
        if self.choices:
            return list(self.choices)
        step = self.step or (1 if self.is_whole and not self.log else None)
        if step is None:
            return []
        number = int((self.high - self.low) / step + 1e-9) + 1
        return [self.low + at * step if self.is_whole else round(self.low + at * step, 12) for at in range(number)]


@dataclass(frozen=True)
class Tune:
    """What the block says.

    Attributes:
        trials: of each row and column.
        sampler: one of `SAMPLERS`.
        seed: of the sampler.
        run_seed: of the trials' runs.
        rounds: of a trial; None: those of the study.
        column: whose best values hold for all columns; empty: each column has its own.
        space: ranges by option, for all rows.
        rows: further ones of single rows.
        content: the block as it was written.
    """

    trials: int
    sampler: str
    seed: int
    run_seed: int
    rounds: int | None
    column: str
    space: dict[str, Range]
    rows: dict[str, dict[str, Range]]
    content: dict[str, Any]

    def space_of(self, row: str) -> dict[str, Range]:
        """The ranges of a row."""
        return {**self.space, **self.rows.get(row, {})}


def read_tune(
    path: Path, content: Any, rows: Mapping[str, Any], columns: Mapping[str, Any], seeds: Sequence[int]
) -> Tune | None:
    """Read and check the block `tune` of a study file; None if there is none.

    Args:
        path: of the study file, for messages.
        content: of the block.
        rows: of the study, by name.
        columns: of the study, by name.
        seeds: of the table, which trials must not use.

    Raises:
        UserError: a key, name or range is not valid.
    """
    if content is None:
        return None
    if not isinstance(content, dict):
        raise UserError(f"{path}: tune is a mapping of {', '.join(KEYS)}")
    for key in content:
        if key not in KEYS:
            raise UserError(f"{path}: tune: unknown key '{key}'{nearest(str(key), KEYS)} (keys: {', '.join(KEYS)})")
    sampler = content.get("sampler", "TPE")
    if sampler not in SAMPLERS:
        raise UserError(
            f"{path}: tune: sampler '{sampler}': it is {', '.join(SAMPLERS)}{nearest(str(sampler), SAMPLERS)}"
        )
    column = str(content.get("column") or "")
    if column and column not in columns:
        raise UserError(f"{path}: tune: there is no column '{column}'{nearest(column, columns)}")
    own = content.get("rows") or {}
    if not isinstance(own, dict):
        raise UserError(f"{path}: tune: rows is a mapping of rows to options to ranges")
    for row in own:
        if row not in rows:
            raise UserError(f"{path}: tune: there is no row '{row}'{nearest(str(row), rows)}")
    run_seed = _whole(path, content, "run_seed", RUN_SEED, 0)
    if run_seed in seeds:
        raise UserError(
            f"{path}: tune: run_seed {run_seed} is a seed of the table, whose test data chose nothing; take another"
        )
    found = Tune(
        trials=_whole(path, content, "trials", None, 1),
        sampler=str(sampler),
        seed=_whole(path, content, "seed", 0, 0),
        run_seed=run_seed,
        rounds=_whole(path, content, "rounds", None, 1) if content.get("rounds") is not None else None,
        column=column,
        space=_space(path, "space", content.get("space") or {}),
        rows={str(row): _space(path, f"rows: {row}", space) for row, space in own.items()},
        content=json.loads(json.dumps(content)),
    )
    if not any(found.space_of(row) for row in rows):
        raise UserError(
            f"{path}: tune: give space, a mapping of options to ranges such as {{selection.k: {{choices: [2, 5]}}}}"
        )
    if found.sampler == "Grid":
        _check_grid(path, found, rows)
    return found


def _check_grid(path: Path, tune: Tune, rows: Mapping[str, Any]) -> None:
    for row in rows:
        number = 1
        for option, values in tune.space_of(row).items():
            number *= len(values.grid())
            if not values.grid():
                raise UserError(f"{path}: tune: {option}: a grid needs choices, whole numbers or a step")
        if tune.space_of(row) and number < tune.trials:
            raise UserError(
                f"{path}: tune: the grid of {row} has {number} points, fewer than the {tune.trials} trials that every "
                "row gets; lower trials or add values"
            )


def _space(path: Path, where: str, content: Any) -> dict[str, Range]:
    if not isinstance(content, dict):
        raise UserError(f"{path}: tune: {where} is a mapping of options to ranges")
    return {str(option): _range(path, str(option), value) for option, value in content.items()}


def _range(path: Path, option: str, content: Any) -> Range:
    refusal = UserError(
        f"{path}: tune: {option}: {content!r} is no range; give {{choices: [2, 5]}}, "
        "{low: 0.1, high: 0.9, step: 0.1} or {low: 0.001, high: 1.0, log: true}"
    )
    if not isinstance(content, dict):
        raise refusal
    if set(content) == {"choices"}:
        choices = content["choices"]
        plain = isinstance(choices, list) and all(isinstance(c, (bool, int, float, str, type(None))) for c in choices)
        if not plain or not choices or len({repr(c) for c in choices}) < len(choices):
            raise refusal
        return Range(choices=tuple(choices))
    if not {"low", "high"} <= set(content) <= {"low", "high", "step", "log"}:
        raise refusal
    numbers = [_number(content.get(name)) for name in ("low", "high", "step")]
    low, high, step = numbers
    log = content.get("log", False)
    if low is None or high is None or low >= high or (step is None) != ("step" not in content):
        raise refusal
    if not isinstance(log, bool) or (step is not None and (step <= 0 or log)) or (log and low <= 0):
        raise refusal
    return Range(low=low, high=high, step=step, log=log)


def _number(value: Any) -> float | int | None:
    """A number, also one that YAML takes for a word: 1e-3."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole(path: Path, content: Mapping[str, Any], key: str, default: int | None, least: int) -> int:
    value = content.get(key, default)
    if type(value) is not int or not least <= value < 2**31:
        raise UserError(f"{path}: tune: {key} is a whole number from {least} on, not {value!r}")
    return value
