"""The block `tune` of a study file: the options to be tuned, their ranges, and the number of trials."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dfl_lightning.utils.errors import UserError, nearest

KEYS = ("trials", "sampler", "seed", "run_seed", "rounds", "column", "space", "rows")
SAMPLERS = ("TPE", "Random", "Grid")
"""Optuna's samplers, by their names without `Sampler`."""

RUN_SEED = 10_000
"""Seed of the trials' runs if the file names none: far above the seeds of a table."""


@dataclass(frozen=True)
class Range:
    """The values that an option may get.

    Attributes:
        choices: the values; empty: the numbers from `low` to `high`.
        low: the least number.
        high: the greatest.
        step: distance of two numbers; None: any number, or whole numbers if both ends are whole.
        log: whether numbers are drawn on a logarithmic scale.
    """

    choices: tuple[Any, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float | None = None
    log: bool = False

    @property
    def is_whole(self) -> bool:
        """True if all numbers of the range are whole."""
        return all(isinstance(number, int) for number in (self.low, self.high, self.step or 1))

    def grid(self) -> list[Any]:
        """Return all values; empty for a range that is continuous or logarithmic.

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
    """The content of the block `tune`.

    Attributes:
        trials: of each row and column.
        sampler: one of `SAMPLERS`.
        seed: of the sampler.
        run_seed: of the trials' runs.
        rounds: of a trial; None: as many as in the study.
        column: the column whose best values are used in all columns; empty: each column has its own.
        space: ranges by option, for all rows.
        rows: further ranges of single rows.
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
        """Return the ranges of a row: those of all rows, and its own."""
        return {**self.space, **self.rows.get(row, {})}


def read_tune(
    path: Path, content: Any, rows: Mapping[str, Any], columns: Mapping[str, Any], seeds: Sequence[int]
) -> Tune | None:
    """Read and check the block `tune` of a study file; None if there is none.

    Args:
        path: study file, for messages.
        content: value of the key.
        rows: rows of the study, by name.
        columns: columns of the study, by name.
        seeds: seeds of the table, which trials must not use.

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
    row_ranges = content.get("rows") or {}
    if not isinstance(row_ranges, dict):
        raise UserError(f"{path}: tune: rows is a mapping of rows to options to ranges")
    for row in row_ranges:
        if row not in rows:
            raise UserError(f"{path}: tune: there is no row '{row}'{nearest(str(row), rows)}")
    run_seed = _whole_number(path, content, "run_seed", RUN_SEED, 0)
    if run_seed in seeds:
        raise UserError(f"{path}: tune: run_seed {run_seed} is also a seed of the table; take another")
    tune = Tune(
        trials=_whole_number(path, content, "trials", None, 1),
        sampler=str(sampler),
        seed=_whole_number(path, content, "seed", 0, 0),
        run_seed=run_seed,
        rounds=_whole_number(path, content, "rounds", None, 1) if content.get("rounds") is not None else None,
        column=column,
        space=_space(path, "space", content.get("space") or {}),
        rows={str(row): _space(path, f"rows: {row}", space) for row, space in row_ranges.items()},
        content=json.loads(json.dumps(content)),
    )
    if not any(tune.space_of(row) for row in rows):
        raise UserError(
            f"{path}: tune: give space, a mapping of options to ranges such as {{selection.k: {{choices: [2, 5]}}}}"
        )
    if tune.sampler == "Grid":
        _check_grid(path, tune, rows)
    return tune


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
        f"{path}: tune: {option}: {content!r} is not a range; give {{choices: [2, 5]}}, "
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
    """Return a number, also one that YAML reads as text, such as 1e-3; None if it is not a number."""
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _whole_number(path: Path, content: Mapping[str, Any], key: str, default: int | None, least: int) -> int:
    value = content.get(key, default)
    if type(value) is not int or not least <= value < 2**31:
        raise UserError(f"{path}: tune: {key} is a whole number from {least} on, not {value!r}")
    return value
