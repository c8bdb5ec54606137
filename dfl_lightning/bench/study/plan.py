"""The cells of a study: a resolved config and a seed each, in a folder named by both."""

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
"""Options of data that divide or change samples, whatever files they come from."""

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
        keeps_models: whether its last checkpoint stays when it is done.
        code: hashes of the user's own code that it names, by module, as it is now.
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
        """Rounds that it is to have."""
        trainer = self.config["trainer"]
        return int(trainer.get("max_rounds") or trainer.get("max_epochs") or 100)

    @property
    def label(self) -> str:
        """Its name in a sentence."""
        return f"{self.row}, {self.column}, seed {self.seed}"

    @property
    def data(self) -> str:
        """Name what must be at hand for it: the same text for the same files."""
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
        """Of the table and the page: one line, which says that rounds are scaled."""
        scale = f" (rounds times {self.scale:g}: no number of the paper's setting)" if self.scale < 1 else ""
        return f"{self.study.title or self.study.name}{scale}"

    def of(self, row: str, column: str) -> list[Cell]:
        """The cells of a row and column, by seed.

        Args:
            row: of the table.
            column: of the table.
        """
        return [self.cells[row, column, seed] for seed in self.seeds if (row, column, seed) in self.cells]

    def distinct(self) -> list[Cell]:
        """One cell for each folder, seed by seed: all rows have their first seed before any has its second."""
        order = sorted(self.cells.values(), key=lambda cell: self.seeds.index(cell.seed))
        return list({cell.folder: cell for cell in order}.values())


def make_plan(
    study: Study, folder: Path, scale: float = 1.0, tuned: Mapping[tuple[str, str], Mapping[str, Any]] = {}
) -> Plan:
    """Resolve all cells of a study.

    Args:
        study: the file's content.
        folder: of the study.
        scale: of the rounds, 0 to 1.
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
            found = resolver.resolve(words)
            config = scaled(found.config, scale)
        except UserError as error:
            raise UserError(f"{study.path}: {row}, {column}: {error}") from error
        lost |= dict.fromkeys(found.lost)
        for seed in seeds:
            own = {**config, "seed_everything": seed}
            name = identity(found, own)
            if name not in folders:
                folders[name] = _folder(folder, f"{slug([row, column])}_seed-{seed}", name)
            cells[row, column, seed] = Cell(row, column, seed, own, folders[name], code=found.code)
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
    """A config with fewer rounds: everything that counts rounds is shortened alike, to 1 at least.

    Args:
        config: resolved.
        scale: factor, 0 to 1.

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
    """The seeds that `dfl-study add-seeds` has added."""
    file = folder / "seeds.yaml"
    return [int(seed) for seed in read_config(file)["added"]] if file.is_file() else []


def add_seeds(study: Study, folder: Path, number: int) -> list[int]:
    """Add the next seeds to a study.

    Args:
        study: the file's content.
        folder: of the study.
        number: of further seeds, 1 or more.

    Returns:
        The new ones.

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
    """The folder of a cell, also where its row or column had another name when it was made."""
    there = sorted((study / "cells").glob(f"*-{name}"))
    return there[0] if there else study / "cells" / f"{label}-{name}"
