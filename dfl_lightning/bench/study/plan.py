"""The cells of a study: each has a resolved config, a seed, and a folder that is named by both."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dfl_lightning.bench.study.cells.resolve import Resolver, identity
from dfl_lightning.bench.study.file.exclude import require_cells
from dfl_lightning.bench.study.file.settings import as_words, slug, words_of
from dfl_lightning.bench.study.file.study_file import Study
from dfl_lightning.bench.study.file.validation_settings import said_by
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.yaml_files import read_config

ROUND_COUNTS = (
    *("trainer.max_rounds", "trainer.max_epochs", "trainer.check_val_every_n_epoch"),
    *("selection.stage_one", "model.lr_scheduler.T_max", "model.lr_scheduler.step_size"),
)
"""Options that count rounds of a run, which a scaled study shortens alike."""

CONFIG = "run.yaml"
"""The resolved config in a cell's folder; its runs are in the folder `run` next to it."""

NO_FILE = (
    *(
        "num_clients",
        "samples_per_client",
        "partition",
        "test_fraction",
        "val_fraction",
        "test_size",
        "seed",
        "normalise",
    ),
    "augment",
)
"""Options of data that divide or change samples, and do not decide which files are read."""

Pair = tuple[str, str]
"""A row and a column of the table."""


@dataclass(frozen=True)
class Cell:
    """One run of a study.

    Attributes:
        row: its method's name.
        column: its task's name.
        seed: of models, data and draws.
        config: resolved.
        folder: of all its files.
        keeps_models: whether to keep its last checkpoint when it is done.
        code: hashes of the user's present code that the config names, by module.
    """

    row: str
    column: str
    seed: int
    config: dict[str, Any]
    folder: Path
    keeps_models: bool = True
    code: dict[str, str] = field(default_factory=dict)

    @property
    def rounds(self) -> int:
        """The number of rounds to train."""
        trainer = self.config["trainer"]
        return int(trainer.get("max_rounds") or trainer.get("max_epochs") or 100)

    @property
    def label(self) -> str:
        """The name of the cell in a sentence."""
        return f"{self.row}, {self.column}, seed {self.seed}"

    @property
    def data(self) -> str:
        """A key of the data files that the cell needs: the same text for cells that need the same files."""
        spec = self.config["data"]
        options = spec.get("init_args", {})
        writers = "ByWriter" in json.dumps(options.get("partition"))
        files = {key: value for key, value in options.items() if key not in NO_FILE}
        return json.dumps([spec["class_path"], files, writers], sort_keys=True)


@dataclass(frozen=True)
class Plan:
    """All cells of a study.

    Attributes:
        study: the file's content.
        folder: of the study.
        scale: of the rounds, 0 to 1.
        seeds: the study's and those that were added.
        cells: by row, column and seed, without those that the study excludes.
        missing: what the library lacks, by row and column.
        lost: modules of the user's own code that are not found, so that it is not known whether they have changed.
    """

    study: Study
    folder: Path
    scale: float
    seeds: list[int]
    cells: dict[tuple[str, str, int], Cell]
    missing: dict[tuple[str, str], str]
    lost: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The title of the table and the page, in one line; it says if rounds are scaled."""
        scale = f" (rounds times {self.scale:g}: not the paper's setting)" if self.scale < 1 else ""
        return f"{self.study.title or self.study.name}{scale}"

    def of(self, row: str, column: str) -> list[Cell]:
        """Return the cells of a row and column, in the order of the seeds."""
        return [self.cells[row, column, seed] for seed in self.seeds if (row, column, seed) in self.cells]

    def distinct(self) -> list[Cell]:
        """Return one cell for each folder, in an order in which all cells of a seed precede those of the next seed."""
        order = sorted(self.cells.values(), key=lambda cell: self.seeds.index(cell.seed))
        return list({cell.folder: cell for cell in order}.values())


def make_plan(
    study: Study, folder: Path, scale: float = 1.0, tuned: Mapping[tuple[str, str], Mapping[str, Any]] = {}
) -> Plan:
    """Resolve the configs of all cells of a study, and choose their folders.

    Args:
        study: content of the study file.
        folder: folder of the study.
        scale: factor of the number of rounds, above 0 and at most 1.
        tuned: options that trials have chosen, by row and column; they win over the file's.

    Raises:
        UserError: dfl-fit refuses the settings of a place of the table, which the sentence names; or `exclude` names a
            cell that the study does not have, or leaves none.
    """
    if not 0 < scale <= 1:
        raise UserError(f"--scale {scale:g}: it is a part of the rounds, more than 0 and at most 1")
    seeds = [*study.seeds, *(seed for seed in added_seeds(folder) if seed not in study.seeds)]
    resolver = Resolver(folder / "resolved.json")
    cells: dict[tuple[str, str, int], Cell] = {}
    folders: dict[str, Path] = {}
    missing = {}
    lost: dict[str, None] = {}
    for row, column in study.pairs():
        if study.missing(row, column):
            missing[row, column] = study.missing(row, column)
            continue
        try:
            words = [*words_of(study, row, column), *as_words(tuned.get((row, column), {}))]
            resolved = resolver.resolve(words)
            config = scaled(resolved.config, scale)
        except UserError as error:
            raise UserError(f"{study.path}: {row}, {column}: {error}") from error
        lost |= dict.fromkeys(resolved.lost)
        for seed in seeds:
            seeded = {**config, "seed_everything": seed}
            name = identity(resolved, seeded)
            if name not in folders:
                folders[name] = _folder(folder, f"{slug([row, column])}_seed-{seed}", name)
            cells[row, column, seed] = Cell(row, column, seed, seeded, folders[name], code=resolved.code)
    if folder.is_dir():
        resolver.save()
    require_cells(study.path, study.exclude, cells, list(study.columns), seeds)
    kept = {key: cell for key, cell in cells.items() if not study.is_excluded(*key)}
    if cells and not kept:
        raise UserError(f"{study.path}: exclude: it leaves no cell of the study; remove an entry")
    cells = kept
    has_validation = bool(cells) and all(said_by(cell.config) for cell in cells.values())
    study = replace(study, measure=study.measure.where_validated(has_validation))
    return Plan(study, folder, scale, seeds, cells, missing, tuple(lost))


def scaled(config: dict[str, Any], scale: float) -> dict[str, Any]:
    """Return a resolved config with fewer rounds: all options that count rounds are scaled alike, to 1 at least.

    Args:
        config: resolved config.
        scale: factor, above 0 and at most 1.

    Examples:
        >>> scaled({"trainer": {"max_rounds": 30}, "selection": {"init_args": {"stage_one": 4}}}, 0.1)
        {'trainer': {'max_rounds': 3}, 'selection': {'init_args': {'stage_one': 1}}}
    """
    copy: dict[str, Any] = json.loads(json.dumps(config))
    for name in ROUND_COUNTS if scale < 1 else ():
        *parts, last = name.split(".")
        inside: Any = copy
        for part in parts:
            inside = inside.get(part) if isinstance(inside, dict) else None
            inside = inside.get("init_args", inside) if isinstance(inside, dict) else None
        if isinstance(inside, dict) and isinstance(inside.get(last), int) and inside[last] > 1:
            inside[last] = max(1, round(inside[last] * scale))
    return copy


def added_seeds(folder: Path) -> list[int]:
    """Read the seeds that `dfl-study add-seeds` has added."""
    file = folder / "seeds.yaml"
    return [int(seed) for seed in read_config(file)["added"]] if file.is_file() else []


def add_seeds(study: Study, folder: Path, number: int) -> list[int]:
    """Add the numbers that follow a study's largest seed to its seeds, and return them.

    Args:
        study: content of the study file.
        folder: folder of the study, in which the seeds are kept.
        number: how many seeds to add, 1 or more.

    Raises:
        UserError: the number is less than 1.
    """
    if number < 1:
        raise UserError(f"add-seeds {number}: it is a number of further seeds, 1 or more")
    before = added_seeds(folder)
    first = max([*study.seeds, *before]) + 1
    new = list(range(first, first + number))
    text = f"added: {[*before, *new]}\n"
    write_atomically(folder / "seeds.yaml", lambda file: file.write(text.encode()))
    return new


def _folder(study: Path, label: str, name: str) -> Path:
    """Return the folder of a cell; an existing one is kept if its row or column has another name now."""
    existing = sorted((study / "cells").glob(f"*-{name}"))
    return existing[0] if existing else study / "cells" / f"{label}-{name}"
