"""Options that trials choose: the same number for every row, by validation data alone, the same after being killed."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from dfl_lightning.bench.study import tuning
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.tuning import Tuning, chosen_values, run_trials, tuned_file
from dfl_lightning.utils.errors import UserError
from dfl_lightning.utils.score import Score

pytest.importorskip("optuna")

FOLDER = Path("studies/small")
SPACE = {"model.optimizer.lr": {"low": "1e-3", "high": 1.0, "log": True}, "model.batch_size": {"low": 4, "high": 16}}
TUNE = {"trials": 6, "space": SPACE, "rows": {"Gossip": {"selection.k": {"choices": [1, 2, 3]}}}, "rounds": 2}
VALIDATED = {
    "trainer": {"max_rounds": 4, "accelerator": "cpu"},
    "model": {"network": {"class_path": "MLP", "init_args": {"hidden": [4]}}, "local_epochs": 1},
    "data": {"class_path": "Digits", "init_args": {"num_clients": 6, "samples_per_client": 30, "val_fraction": 0.3}},
    "selection": {"class_path": "Gossip", "init_args": {"k": 2}},
}


def values_of(config):
    """Return the tuned options in a resolved config."""
    rate = config["model"]["optimizer"]["init_args"]["lr"]
    return rate, config["model"]["batch_size"], config["selection"]["init_args"]["k"]


def invented(config):
    """Compute a validation accuracy from the options alone, best at lr = 0.1, batches of 8 and k = 3."""
    rate, size, k = values_of(config)
    return 0.9 - 0.1 * abs(np.log10(rate) + 1) - 0.01 * abs(size - 8) + 0.02 * k


@pytest.fixture
def work(pretend):
    """Pretend to train trials, and count how often each was trained; they have no test data."""
    done = []

    def work(cells):
        for cell in cells:
            done.append(cell.folder.name)
            run = pretend(cell)
            np.savez(
                run / "clients.npz", rounds=np.arange(2), val_acc=np.array([[1.0, 1.0], [invented(cell.config)] * 2])
            )
        return True

    work.done = done
    return work


ONE = {"rows": {"Gossip": {}}, "columns": {"IID": {"data.partition": "IID"}}}
"""A study of a single place."""


def tuning_of(study_of, keys=None, **changes):
    study = read_study_file(study_of(base=VALIDATED, tune={**TUNE, **changes}, **(keys or {})))
    return study, Tuning(study, FOLDER, 1.0)


def test_every_place_gets_equal_trials_and_the_best_validated(study_of, work):
    study, found = tuning_of(study_of, trials=3)
    chosen = run_trials(found, work)
    assert set(chosen) == {(row, column) for row in ("Gossip", "Local") for column in ("IID", "rotated")}
    for place, choice in chosen.items():
        trials = found.trials[place]
        assert len(trials) == 3
        options = {"model.optimizer.lr", "model.batch_size"} | ({"selection.k"} if place[0] == "Gossip" else set())
        assert all(set(values) == options for values, _ in trials)
        best = [invented(cell.config) for _, cell in trials]
        assert choice.value == max(best)
        assert choice.values == trials[best.index(max(best))][0]
        for values, cell in trials:
            assert cell.config["model"]["optimizer"]["init_args"]["lr"] == values["model.optimizer.lr"]
            assert (cell.seed, cell.rounds) == (10_000, 2)
    assert {cell.folder.parent for trials in found.trials.values() for _, cell in trials} == {FOLDER / "trials"}
    written = yaml.safe_load(tuned_file(FOLDER, 1.0).read_text())["chosen"]
    assert [entry["values"] for entry in written] == [choice.values for choice in chosen.values()]
    assert {entry["trials"] for entry in written} == {3}
    plan = make_plan(study, FOLDER, 1.0, chosen_values(study, FOLDER, 1.0))
    for (row, column, _), cell in plan.cells.items():
        rate, size, k = values_of(cell.config)
        values = chosen[row, column].values
        assert (rate, size) == (values["model.optimizer.lr"], values["model.batch_size"])
        assert k == (values["selection.k"] if row == "Gossip" else 0)
        assert cell.rounds == 4


def test_tuning_killed_at_any_trial_chooses_the_same(study_of, work):
    study, whole = tuning_of(study_of, ONE, trials=13)  # TPE's first ten are drawn at random
    chosen = run_trials(whole, work)
    asked = {place: [values for values, _ in trials] for place, trials in whole.trials.items()}
    assert len(set(map(str, asked["Gossip", "IID"]))) > 10
    for kept in (0, 5, 11):
        for trials in whole.trials.values():
            for _, cell in trials[kept:]:
                shutil.rmtree(cell.folder, ignore_errors=True)
        tuned_file(FOLDER, 1.0).unlink()
        again = Tuning(study, FOLDER, 1.0)
        before = len(work.done)
        assert run_trials(again, work) == chosen
        assert {place: [values for values, _ in trials] for place, trials in again.trials.items()} == asked
        assert len(work.done) - before == 13 - kept


def test_lowest_score_is_chosen_if_lower_is_better(study_of, pretend):
    study, found = tuning_of(study_of, ONE)
    about = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}
    tried = []

    def work(cells):
        for cell in cells:
            tried.append(round(10 * (1 - invented(cell.config)), 12))
            arrays = {"rounds": np.arange(1), "val_rmse": np.array([[tried[-1]] * 2]), "val_acc": np.ones((1, 2))}
            np.savez(pretend(cell, task=about) / "clients.npz", **arrays)
        return True

    [choice] = run_trials(found, work).values()
    assert choice.value == pytest.approx(min(tried))
    assert choice.trial == int(np.argmin(tried))
    [entry] = yaml.safe_load(tuned_file(FOLDER, 1.0).read_text())["chosen"]
    assert entry["validation_rmse"] == choice.value
    assert "by validation RMSE after the last round" in " ".join(tuning.caption(study, FOLDER, 1.0))


def test_another_seed_of_the_sampler_tries_other_values(study_of, work):
    first, second = (tuning_of(study_of, ONE, seed=seed, trials=1)[1] for seed in (0, 1))
    run_trials(first, work)
    run_trials(second, work)
    assert first.trials["Gossip", "IID"][0][0] != second.trials["Gossip", "IID"][0][0]


def test_grid_is_complete_and_one_column_can_choose_for_all(study_of, work):
    space = {"selection.k": {"choices": [1, 2]}, "model.batch_size": {"low": 4, "high": 12, "step": 4}}
    study, found = tuning_of(
        study_of, {"rows": {"Gossip": {}}}, sampler="Grid", trials=6, space=space, rows={}, column="rotated"
    )
    run_trials(found, work)
    assert found.places == [("Gossip", "rotated")]
    tried = {(values["selection.k"], values["model.batch_size"]) for values, _ in found.trials["Gossip", "rotated"]}
    assert tried == {(k, size) for k in (1, 2) for size in (4, 8, 12)}
    chosen = chosen_values(study, FOLDER, 1.0)
    assert chosen["Gossip", "IID"] == chosen["Gossip", "rotated"] == {"selection.k": 2, "model.batch_size": 8}


def test_a_changed_file_is_not_tuned(study_of, work):
    study, found = tuning_of(study_of, ONE, trials=1)
    assert chosen_values(study, FOLDER, 1.0) is None
    run_trials(found, work)
    assert chosen_values(study, FOLDER, 1.0) is not None
    changed, _ = tuning_of(study_of, ONE, trials=2)
    assert chosen_values(changed, FOLDER, 1.0) is None


def test_diverged_trial_scores_zero_and_failed_trial_stops(study_of, pretend):
    _, found = tuning_of(study_of, ONE)
    cell = next(found.rounds_of_trials())[0]
    with pytest.raises(
        UserError, match="trial of Gossip, IID, seed 10000: the trial is waiting, but values are chosen"
    ):
        tuning.validation_score(cell)
    run = pretend(cell)
    np.savez(run / "clients.npz", rounds=np.arange(2), val_acc=np.array([[0.9, 0.9], [np.nan, np.nan]]))
    assert tuning.validation_score(cell) == (Score(), 0.0)
    np.savez(run / "clients.npz", rounds=np.arange(2), test_acc=np.ones((2, 2)))
    with pytest.raises(UserError, match=r"no validation accuracy in clients\.npz"):
        tuning.validation_score(cell)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"trial": 3}, r"tune: unknown key 'trial'; did you mean 'trials'\?"),
        ({"trials": 0}, "tune: trials is a whole number from 1 on, not 0"),
        ({"sampler": "tpe"}, "tune: sampler 'tpe': it is TPE, Random, Grid"),
        ({"column": "IDD"}, r"tune: there is no column 'IDD'; did you mean 'IID'\?"),
        ({"rows": {"Gosip": {}}}, r"tune: there is no row 'Gosip'; did you mean 'Gossip'\?"),
        ({"run_seed": 0}, "tune: run_seed 0 is also a seed of the table"),
        ({"space": {}, "rows": {}}, "tune: give space"),
        ({"space": {"selection.k": [1, 2]}}, r"tune: selection.k: \[1, 2\] is not a range; give {choices"),
        ({"space": {"selection.k": {"choices": []}}}, "is not a range"),
        ({"space": {"selection.k": {"low": 3, "high": 1}}}, "is not a range"),
        ({"space": {"selection.k": {"low": 0, "high": 1, "log": True}}}, "is not a range"),
        ({"sampler": "Grid"}, "tune: model.optimizer.lr: a grid needs choices, whole numbers or a step"),
        (
            {"sampler": "Grid", "space": {"selection.k": {"choices": [1, 2]}}, "rows": {}},
            "has 2 points, fewer than the 6",
        ),
    ],
)
def test_mistakes_in_the_block_are_answered_by_one_sentence(study_of, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read_study_file(study_of(tune={**TUNE, **changes}))


def test_an_option_that_does_not_exist_is_refused_before_training(study_of, capsys):
    study_of(base=VALIDATED, tune={**TUNE, "space": {"selection.kk": {"choices": [1, 2]}}})
    assert main(["tune", "small.yaml"]) == 2
    assert "tune: Gossip, IID: " in capsys.readouterr().err


def test_without_validation_data_nothing_is_trained(study_of, capsys):
    study_of(tune=TUNE)
    assert main(["run", "small.yaml"]) == 2
    assert "Gossip, IID: tune chooses by validation scores, and there are no validation data" in capsys.readouterr().err
    assert not (FOLDER / "trials").exists()
    assert main(["table", "small.yaml"]) == 2
    assert "have no values yet; choose them with: dfl-study tune small.yaml" in capsys.readouterr().err


def test_without_optuna_a_sentence_says_what_to_install(study_of, monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    study_of(base=VALIDATED, tune=TUNE)
    assert main(["tune", "small.yaml"]) == 2
    assert "pip install 'dfl_lightning[tune]'" in capsys.readouterr().err


MINE = '''
import numpy as np
import torch

from dfl_lightning.data import Digits


class Mislabelled(Digits):
    """Digits whose test images have other labels."""

    def load(self):
        source = super().load()
        at = torch.from_numpy(np.load("test_indices.npy"))
        source.labels[at] = (source.labels[at] + 1) % 10
        return source
'''


@pytest.mark.slow
def test_test_labels_do_not_change_the_choice_of_trials(study_of, capsys, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    rows, columns = {"Gossip": {}}, {"IID": {"data.partition": "IID"}}
    model = {"network": {"class_path": "MLP", "init_args": {"hidden": [32]}}, "local_epochs": 3, "batch_size": 8}
    base = {**VALIDATED, "model": model}
    tune = {"trials": 3, "rounds": 3, "space": {"model.optimizer.lr": {"low": 0.01, "high": 1.0, "log": True}}}
    study_of(base=base, rows=rows, columns=columns, tune=tune)
    assert main(["run", "small.yaml"]) == 0
    out = capsys.readouterr().out
    assert "small: tune, 1 place of the table, 3 trials each" in out
    assert "- tuned: 3 trials of each row and column (TPE, seed 0, 3 rounds each), by validation accuracy" in out
    first = yaml.safe_load(tuned_file(FOLDER, 1.0).read_text())["chosen"][0]
    assert f"- chosen: Gossip, IID: model.optimizer.lr {first['values']['model.optimizer.lr']:.4g}" in out
    trials = sorted((FOLDER / "trials").iterdir())
    found = {trial.name: next((trial / "run").iterdir()) for trial in trials}
    accuracies = {name: np.load(run / "clients.npz")["val_acc"][-1].mean() for name, run in found.items()}
    assert accuracies[Path(first["folder"]).name] == max(accuracies.values()) > min(accuracies.values())
    assert len({tuple(np.load(run / "split.npz")["test_indices"]) for run in found.values()}) == 1
    assert not list(FOLDER.glob("trials/*/run/*/checkpoints"))  # only the table's cells keep their models
    before = {run: run.stat().st_mtime_ns for run in found.values()}
    assert main(["run", "small.yaml"]) == 0  # nothing is trained again
    assert {run: run.stat().st_mtime_ns for run in found.values()} == before

    np.save("test_indices.npy", np.load(next(iter(found.values())) / "split.npz")["test_indices"])
    (tmp_path / "mine.py").write_text(MINE)
    data = {**VALIDATED["data"], "class_path": "mine.Mislabelled"}
    study_of(base={**base, "data": data}, rows=rows, columns=columns, tune=tune)
    assert main(["tune", "small.yaml", "--folder", "other"]) == 0
    other = yaml.safe_load(tuned_file(Path("other"), 1.0).read_text())["chosen"][0]
    same = ("values", "validation_accuracy", "trial")
    assert {key: other[key] for key in same} == {key: first[key] for key in same}
    summaries = [
        json.loads((next((FOLDER.parent.parent / place / "run").iterdir()) / "summary.json").read_text())
        for place in ("studies/small/" + first["folder"], "other/" + other["folder"])
    ]
    assert summaries[0]["test_accuracy"]["acc_last"] != summaries[1]["test_accuracy"]["acc_last"]


def excluding(*entries):
    return {"exclude": [{"row": row, "why": "no time", **more} for row, more in entries], "seeds": [0, 1]}


@pytest.mark.parametrize(
    ("keys", "changes", "places"),
    [
        (excluding(("Local", {})), {}, [("Gossip", "IID"), ("Gossip", "rotated")]),
        (excluding(("Local", {"column": "IID", "seed": 1})), {}, None),  # seed 0 is left
        (
            excluding(("Local", {"column": "IID", "seed": 0}), ("Local", {"column": "IID", "seed": 1})),
            {},
            [("Gossip", "IID"), ("Gossip", "rotated"), ("Local", "rotated")],
        ),
        (excluding(("Local", {"column": "IID"})), {"column": "IID"}, [("Gossip", "IID"), ("Local", "IID")]),
        (excluding(("Local", {})), {"column": "IID"}, [("Gossip", "IID")]),
    ],
)
def test_places_without_a_cell_have_no_trials(study_of, keys, changes, places):
    everywhere = [(row, column) for row in ("Gossip", "Local") for column in ("IID", "rotated")]
    assert tuning_of(study_of, keys, **changes)[1].places == (everywhere if places is None else places)


def test_formerly_excluded_row_gets_its_trials(study_of, work):
    study, found = tuning_of(study_of, excluding(("Local", {})), trials=2)
    run_trials(found, work)
    assert {row for row, _ in chosen_values(study, FOLDER, 1.0)} == {"Gossip"}
    done = len(work.done)
    study, found = tuning_of(study_of, {"seeds": [0, 1]}, trials=2)
    assert chosen_values(study, FOLDER, 1.0) is None
    run_trials(found, lambda cells: work([cell for cell in cells if cell.folder.name not in work.done]))
    assert {row for row, _ in chosen_values(study, FOLDER, 1.0)} == {"Gossip", "Local"}
    assert len(work.done) == done + 2 * 2
    study, _ = tuning_of(study_of, excluding(("Local", {"column": "IID"})), trials=2)
    assert chosen_values(study, FOLDER, 1.0) is not None
