"""Tuning of options before a table is made: trials are cells, proposed by Optuna and judged on validation data.

The next proposal depends only on the sampler's seed and on the scores of the finished trials, in their order. So a
study that was killed proposes the same trials again, finds those that are done, and continues.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dfl_lightning.bench.stats.statistics import rounded
from dfl_lightning.bench.study.cells.cell_state import contradictions, state_of
from dfl_lightning.bench.study.cells.resolve import Resolved, Resolver, contents, identity, outline_of
from dfl_lightning.bench.study.file.settings import as_words, slug, words_of
from dfl_lightning.bench.study.file.study_file import Study
from dfl_lightning.bench.study.file.tune_block import Range
from dfl_lightning.bench.study.plan import Cell, Pair, Plan, added_seeds, scaled
from dfl_lightning.runs.reading import Run
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score
from dfl_lightning.utils.storage.files import write_atomically
from dfl_lightning.utils.storage.yaml_files import read_config

TRIALS = "trials"
"""The folder of the trials, in the study's folder."""

Values = dict[str, Any]
"""Values by option."""


@dataclass(frozen=True)
class BestTrial:
    """The best trial of a row and column.

    Attributes:
        values: its values by option; of equally good trials, those of the first.
        value: its validation score; an accuracy is from 0 to 1.
        trial: its number, from 0 on.
        score: the kind of score.
    """

    values: Values
    value: float
    trial: int
    score: Score = field(default_factory=Score)


def tuned_file(folder: Path, scale: float) -> Path:
    """Return the path of the file with a study's chosen values, for a scale of the rounds."""
    return folder / ("tuned.yaml" if scale == 1 else f"tuned_scale-{scale:g}.yaml")


def tuned_places(study: Study, folder: Path) -> list[Pair]:
    """Return the rows and columns that have trials, without those whose cells are all excluded."""
    tune, seeds = study.require_tune(), [*study.seeds, *added_seeds(folder)]
    pairs = [pair for pair in study.pairs() if not study.missing(*pair)]
    kept = [pair for pair in pairs if not all(study.is_excluded(*pair, seed) for seed in seeds)]
    if tune.column:  # all columns use the values of this one
        rows = {row for row, _ in kept}
        kept = [(row, column) for row, column in pairs if column == tune.column and row in rows]
    return [(row, column) for row, column in kept if tune.space_of(row)]


def chosen_values(study: Study, folder: Path, scale: float) -> dict[Pair, Values] | None:
    """Read the chosen values by row and column; None unless all trials of the present block `tune` are done."""
    if study.tune is None:
        return {}
    file = tuned_file(folder, scale)
    content = read_config(file) if file.is_file() else {}
    if content.get("of") != _digest(study, scale):
        return None
    chosen = {(entry["row"], entry["column"]): dict(entry["values"]) for entry in content["chosen"]}
    if not chosen.keys() >= set(tuned_places(study, folder)):  # some were excluded when values were chosen
        return None
    column = study.tune.column
    return {(row, c): chosen[row, column or c] for row, c in study.pairs() if (row, column or c) in chosen}


def caption(study: Study, folder: Path, scale: float) -> Iterator[str]:
    """Describe the trials and the chosen values in sentences for below a table."""
    tune = study.tune
    if tune is None:
        return
    where = f" in {tune.column}, used in all columns" if tune.column else ""
    rounds = "" if tune.rounds is None else f", {tune.rounds} round{'s' * (tune.rounds > 1)} each"
    chosen = read_config(tuned_file(folder, scale))["chosen"]
    labels = dict.fromkeys(_label_of(entry) for entry in chosen) or ["accuracy"]
    yield (
        f"tuned: {tune.trials} trials of each row{'' if tune.column else ' and column'}{where} ({tune.sampler}, seed "
        f"{tune.seed}{rounds}), by validation {' or '.join(labels)} after the last round, with run seed "
        f"{tune.run_seed}, which is none of the table's"
    )
    words = []
    for entry in chosen:
        values = ", ".join(f"{option} {_short(value)}" for option, value in entry["values"].items())
        words.append(f"{entry['row']}{'' if tune.column else ', ' + entry['column']}: {values}")
    yield f"chosen: {'; '.join(words)}"


def tuned_with_other_code(plan: Plan) -> Iterator[str]:
    """Yield a sentence for each place whose values were chosen by trials of other code than the present one."""
    file, tune = tuned_file(plan.folder, plan.scale), plan.study.tune
    if tune is None:
        return
    for entry in read_config(file)["chosen"]:
        place = entry["row"], entry["column"]
        code = next((cell.code for cell in plan.of(*place)), {})
        state = state_of(Cell(*place, tune.run_seed, {}, plan.folder / entry["folder"], code=code))
        if state.other_code:
            reason = f"{', '.join(place)}: {state.other_code.replace('it was trained', 'then')}"
            yield f"tuned with other code: {reason}; without {file.name} dfl-study run tunes again"


class Tuning:
    """The trials of a study.

    Args:
        study: content of a study file with a block `tune`.
        folder: folder of the study.
        scale: factor of the number of rounds.

    Raises:
        UserError: Optuna is not installed, dfl-fit refuses a row, or a row has no validation data.
    """

    def __init__(self, study: Study, folder: Path, scale: float) -> None:
        self.study, self.folder, self.scale, self.tune = study, folder, scale, study.require_tune()
        if self.tune.run_seed in added_seeds(folder):
            raise UserError(f"{study.path}: tune: run_seed {self.tune.run_seed} is also one of the table; take another")
        self._optuna = _optuna()
        self._resolver = Resolver(folder / "resolved-trials.json")
        self.places = tuned_places(study, folder)
        self.trials: dict[Pair, list[tuple[Values, Cell]]] = {place: [] for place in self.places}
        self.merits: dict[Pair, list[float]] = {place: [] for place in self.places}  # higher is better
        self.scores: dict[Pair, Score] = {}
        self._searches = {place: self._search(place) for place in self.places}

    def check(self) -> None:
        """Raise if data have no validation part, before anything is trained."""
        seen: set[str] = set()
        for row, column in self.places:
            _, config = self._config((row, column), {})
            key = json.dumps(config["data"], sort_keys=True)
            if key in seen:
                continue
            seen.add(key)
            if not outline_of(config).samples["val"]:
                raise UserError(
                    f"{self.study.path}: {row}, {column}: tune chooses by validation scores, and there are no "
                    "validation data; set data.val_fraction, for example 0.2, in base"
                )

    def rounds_of_trials(self) -> Iterator[list[Cell]]:
        """Yield the cells of the next trial of every place; they must be done before the next ones are requested.

        Raises:
            UserError: a cell is not done.
        """
        for number in range(self.tune.trials):
            proposed = {}
            for place in self.places:
                trial = self._searches[place].ask(self._distributions(place[0]))
                proposed[place] = trial
                self.trials[place].append((dict(trial.params), self._cell(place, dict(trial.params))))
            self._resolver.save()
            cells = [self.trials[place][number][1] for place in self.places]
            for sentence in contradictions(cells):
                raise UserError(sentence)
            yield cells
            for place in self.places:
                self.scores[place], value = validation_score(self.trials[place][number][1])
                self.merits[place].append(self.scores[place].merit(value))
                if number + 1 < self.tune.trials:  # a grid that is exhausted accepts no result
                    self._searches[place].tell(proposed[place], self.merits[place][-1])

    def choose(self) -> dict[Pair, BestTrial]:
        """Choose the best trial of each place, once all are done, and write the choice into the study's folder."""
        choices = {}
        for place in self.places:
            merits, score = self.merits[place], self.scores[place]
            best = max(range(len(merits)), key=lambda number: (rounded(merits[number]), -number))
            choices[place] = BestTrial(self.trials[place][best][0], score.merit(merits[best]), best, score)
        self._write(choices)
        return choices

    def _write(self, choices: Mapping[Pair, BestTrial]) -> None:
        entries = []
        for (row, column), choice in choices.items():
            cell = self.trials[row, column][choice.trial][1]
            about = {"row": row, "column": column, "values": choice.values, "trials": self.tune.trials}
            where = cell.folder.relative_to(self.folder).as_posix()
            name = "validation_accuracy" if choice.score.name == "acc" else f"validation_{choice.score.name}"
            entries.append({**about, name: choice.value, "trial": choice.trial, "folder": where})
        about = {"of": _digest(self.study, self.scale), "optuna": self._optuna.__version__}
        content = {**about, "tune": self.tune.content, "chosen": entries}
        labels = " or ".join(dict.fromkeys(choice.score.label for choice in choices.values()))
        head = f"# The values that dfl-study run has chosen by validation {labels}; made again where it is removed\n"
        text = head + yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
        write_atomically(tuned_file(self.folder, self.scale), lambda file: file.write(text.encode()))

    def _search(self, place: Pair) -> Any:
        """Create Optuna's study of a place, in memory: a resumed study asks for its trials in the same order."""
        samplers = self._optuna.samplers
        seed = self.tune.seed
        if self.tune.sampler == "Grid":
            grid = {option: values.grid() for option, values in self.tune.space_of(place[0]).items()}
            sampler = samplers.GridSampler(grid, seed=seed)
        else:
            sampler = getattr(samplers, f"{self.tune.sampler}Sampler")(seed=seed)
        return self._optuna.create_study(direction="maximize", sampler=sampler)

    def _distributions(self, row: str) -> dict[str, Any]:
        return {option: self._distribution(option, values) for option, values in self.tune.space_of(row).items()}

    def _distribution(self, option: str, values: Range) -> Any:
        kinds = self._optuna.distributions
        try:
            if values.choices or self.tune.sampler == "Grid":
                return kinds.CategoricalDistribution(values.grid())
            if values.is_whole:
                return kinds.IntDistribution(values.low, values.high, log=values.log, step=values.step or 1)
            return kinds.FloatDistribution(values.low, values.high, log=values.log, step=values.step)
        except ValueError as error:
            raise UserError(f"{self.study.path}: tune: {option}: {error}") from error

    def _cell(self, place: Pair, values: Values) -> Cell:
        resolved, config = self._config(place, values)
        name = identity(resolved, config)
        existing = sorted((self.folder / TRIALS).glob(f"*-{name}"))  # the row may have another name now
        folder = existing[0] if existing else self.folder / TRIALS / f"{slug(place)}-{name}"
        label = f"trial of {place[0]}"
        return Cell(label, place[1], self.tune.run_seed, config, folder, keeps_models=False, code=resolved.code)

    def _config(self, place: Pair, values: Values) -> tuple[Resolved, dict[str, Any]]:
        rounds = {} if self.tune.rounds is None else {"trainer.max_rounds": self.tune.rounds}
        words = [*words_of(self.study, *place), *as_words({**rounds, **values})]
        try:
            resolved = self._resolver.resolve(words)
        except UserError as error:
            raise UserError(f"{self.study.path}: tune: {place[0]}, {place[1]}: {error}") from error
        return resolved, {**scaled(resolved.config, self.scale), "seed_everything": self.tune.run_seed}


def validation_score(cell: Cell) -> tuple[Score, float]:
    """Return the kind of score of a trial, and its validation score after the last round, mean over clients.

    Nothing of the test data is read. A client for which the score is undefined is left out. A model whose loss is not
    finite gets the worst one: 0 for a share, otherwise infinitely bad.

    Raises:
        UserError: the trial is not done, or was not evaluated on validation data.
    """
    state = state_of(cell)
    if not state.is_done or state.run is None:
        raise UserError(
            f"{cell.label}: the trial is {state.word}, but values are chosen when all are done: {state.why}"
        )
    clients, score = Run(state.run).clients, state.score
    evaluated = clients.get(f"val_{score.name}")
    if evaluated is None or not len(evaluated):
        raise UserError(f"{state.run}: no validation {score.label} in clients.npz")
    worst = 0.0 if score.percent and score.higher_is_better else score.merit(-math.inf)
    known = np.nan_to_num(evaluated[-1], nan=worst, posinf=math.inf, neginf=-math.inf)
    known = known[~np.isnan(evaluated[-1]) | np.isinf(clients.get("val_loss", evaluated)[-1])]
    return score, float(known.mean()) if len(known) else worst


def _label_of(entry: Mapping[str, Any]) -> str:
    """Return the label of the score of an entry in tuned.yaml, from its key."""
    name = next(key for key in entry if key.startswith("validation_")).removeprefix("validation_")
    return Score(name="acc" if name == "accuracy" else name).label


def run_trials(tuning: Tuning, work: Callable[[Sequence[Cell]], bool]) -> dict[Pair, BestTrial] | None:
    """Run all trials and choose the best of each place; return None if the work was stopped.

    Args:
        tuning: trials of a study.
        work: runs cells; returns False if it was stopped.
    """
    for cells in tuning.rounds_of_trials():
        todo = [cell for cell in {cell.folder: cell for cell in cells}.values() if not state_of(cell).is_done]
        if todo and not work(todo):
            return None
    return tuning.choose()


def _digest(study: Study, scale: float) -> str:
    """Hash what the choice depends on: the block `tune`, and all settings, those in config files included."""
    words = [words_of(study, row, column) for row, column in study.pairs() if not study.missing(row, column)]
    files = [contents(each) for each in words]
    text = json.dumps([study.require_tune().content, words, files, scale], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _optuna() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import optuna
    except ImportError as error:
        raise UserError("tune needs Optuna, which is not installed; pip install 'dfl_lightning[tune]'") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
