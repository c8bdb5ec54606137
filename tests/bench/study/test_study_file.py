"""Contents of a study file, and the sentences on mistakes in it."""

import pytest

from dfl_lightning.bench.study.file.settings import options_in, overridden, without_effect, words_of
from dfl_lightning.bench.study.file.study_file import read_study_file
from dfl_lightning.bench.study.plan import add_seeds, make_plan, scaled
from dfl_lightning.utils.errors import UserError


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"row": {}}, r"unknown key 'row'; did you mean 'rows'\?"),
        ({"rows": None}, "a study needs rows"),
        ({"columns": {}}, "columns is a mapping of names to settings, with one entry or more"),
        ({"rows": {"Local": 5}}, "rows: Local: settings are a mapping"),
        ({"name": "a/b"}, "name 'a/b' becomes a folder"),
        ({"name": ".."}, "name '..' becomes a folder"),
        ({"seeds": [0, 0]}, "seeds is a list of different whole numbers"),
        ({"seeds": 3}, "seeds is a list"),
        ({"seeds": [True]}, "seeds is a list"),
        ({"score": "lst"}, r"score: there is no 'lst'; did you mean 'last'\?"),
        ({"accuracy": "acc_last"}, r"unknown key 'accuracy' \(keys: name, base, .*, score, number,"),
        ({"published": {"Gosip": {"IID": 3}}}, r"published: there is no row 'Gosip'; did you mean 'Gossip'\?"),
        ({"published": {"Local": {"IDD": 3}}}, r"published: Local: there is no column 'IDD'; did you mean 'IID'\?"),
        ({"published_numbers": 3}, r"published_numbers is a mapping of columns of metrics.csv to what published holds"),
        (
            {"published_numbers": {"recall": {"Gosip": {"IID": 3}}}},
            r"published_numbers: recall: there is no row 'Gosip'",
        ),
        ({"published_numbers": {"recall": {"Local": {"IID": "x"}}}}, r"recall: Local: IID: 'x' is not a number"),
        ({"published": {"Local": {"IID": "84.3±.4"}}}, r"'84.3±.4' is not a number \(accuracies: in percent\); give"),
        ({"cells": {"Local": {"IDD": None}}}, "cells: Local: there is no column 'IDD'"),
    ],
)
def test_a_mistake_is_answered_by_a_sentence(study_of, changes, sentence):
    with pytest.raises(UserError, match=sentence):
        read_study_file(study_of(**changes))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"A": {"selection.kk": 5}}, r"A, IID: .*Gossip has no option 'kk'"),
        ({"A": {"selection": "Gosip"}}, r"A, IID: selection: there is no 'Gosip'; did you mean 'Gossip'\?"),
        ({"A": {"config": "gosip"}}, r"A, IID: .*did you mean 'gossip'\?"),
        ({"A": {"seed_everything": 3}}, r"A, IID: seed_everything is what `seeds` lists"),
        ({"A": {"trainer": {"max_ronds": 3}}}, r"A, IID: .*max_rounds"),
    ],
)
def test_settings_refused_by_dfl_fit_name_row_and_column(planned, rows, sentence):
    with pytest.raises(UserError, match=sentence):
        planned(rows=rows)


def test_dotted_and_nested_settings_make_the_same_cells(planned):
    dotted = planned(rows={"A": {"selection.k": 1, "model.optimizer.lr": 0.1}})
    nested = planned(rows={"A": {"selection": {"init_args": {"k": 1}}, "model": {"optimizer": {"lr": 0.1}}}})
    assert {cell.folder for cell in dotted.distinct()} == {cell.folder for cell in nested.distinct()}
    task = {"model": {"task": {"delta": 2}, "shared": {}}}
    assert list(options_in(task)) == [("model.task.delta", 2), ("model.shared", {})]
    assert dotted.distinct()[0].config["selection"]["init_args"]["k"] == 1
    assert dotted.distinct()[0].config["model"]["optimizer"]["init_args"]["lr"] == 0.1


def test_settings_override_in_order_base_column_row_cell(planned):
    plan = planned(
        base={"config": "gossip", "selection.k": 1, "model": {"local_epochs": 1, "batch_size": 9}},
        columns={"one": {"selection.k": 2, "model.local_epochs": 2}, "two": {}},
        rows={"A": {"selection.k": 3}, "B": {}},
        cells={"A": {"one": {"selection.k": 4}}, "B": {"two": None}},
    )
    numbers = {place: cell.config["selection"]["init_args"]["k"] for place, cell in plan.cells.items()}
    assert numbers == {("A", "one", 0): 4, ("A", "two", 0): 3, ("B", "one", 0): 2}
    model = plan.cells["A", "one", 0].config["model"]
    assert (model["local_epochs"], model["batch_size"]) == (2, 9)


def test_config_in_the_study_files_folder_is_found(study_of, tmp_path, monkeypatch):
    file = study_of(base={"config": "mine.yaml"})
    (tmp_path / "mine.yaml").write_text("data: Digits\nmodel: {network: MLP}\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert words_of(read_study_file(file), "Gossip", "IID")[0] == f"--config={tmp_path / 'mine.yaml'}"


def test_equal_settings_are_one_cell_with_or_without_defaults(planned):
    plan = planned(rows={"A": {}, "B": {"selection.redraw": True, "data.root": "elsewhere"}})
    assert len(plan.cells) == 4
    assert len(plan.distinct()) == 2


def test_other_numbers_are_other_cells(planned):
    def folder(**changes):
        return planned(**changes).distinct()[0].folder

    base = {"config": "gossip"}
    folders = [folder(base=base), folder(base={**base, "trainer.max_rounds": 31}), folder(base=base, seeds=[1])]
    folders.append(folder(base={**base, "model.finetune_epochs": 2}))
    folders.append(folder(base={**base, "topology": "ring"}))
    assert len(set(folders)) == 5


def test_a_renamed_row_keeps_its_cells(planned):
    before = planned(rows={"Gossip": {}}).distinct()
    for cell in before:
        cell.folder.mkdir(parents=True)
    assert [cell.folder for cell in planned(rows={"Another": {}}).distinct()] == [cell.folder for cell in before]


def test_all_cells_train_first_seeds_before_second_ones(planned):
    assert [cell.seed for cell in planned(seeds=[5, 2]).distinct()] == [5] * 4 + [2] * 4


def test_scaled_study_has_other_cells_and_fewer_rounds(planned):
    base = {
        "config": "pens",
        "trainer.max_rounds": 30,
        "trainer.check_val_every_n_epoch": 10,
        "selection.stage_one": 20,
    }
    rows = {"PENS": {}}
    whole, tenth = planned(base=base, rows=rows), planned(scale=0.1, base=base, rows=rows)
    assert not {cell.folder for cell in whole.distinct()} & {cell.folder for cell in tenth.distinct()}
    config = tenth.distinct()[0].config
    assert (config["trainer"]["max_rounds"], config["trainer"]["check_val_every_n_epoch"]) == (3, 1)
    assert config["selection"]["init_args"]["stage_one"] == 2
    assert tenth.distinct()[0].rounds == 3
    with pytest.raises(UserError, match="--scale 0: it is a part of the rounds"):
        planned(scale=0.0)
    assert scaled({"trainer": {"max_rounds": None}}, 0.1) == {"trainer": {"max_rounds": None}}


def test_added_seeds_follow_the_greatest(study_of, tmp_path):
    study, folder = read_study_file(study_of(seeds=[3, 1])), tmp_path / "to"
    assert add_seeds(study, folder, 2) == [4, 5]
    assert add_seeds(study, folder, 1) == [6]
    assert make_plan(study, folder).seeds == [3, 1, 4, 5, 6]
    with pytest.raises(UserError, match="it is a number of further seeds"):
        add_seeds(study, folder, 0)


def test_rows_not_in_the_library_are_not_cells(planned):
    plan = planned(rows={"Gossip": {}, "APFL": {"not_in_library": "APFL (arXiv 2003.13461)"}})
    assert plan.missing == {("APFL", "IID"): "APFL (arXiv 2003.13461)", ("APFL", "rotated"): "APFL (arXiv 2003.13461)"}
    assert {row for row, *_ in plan.cells} == {"Gossip"}


def test_resolved_configs_are_kept_until_something_changes(planned, study_of, tmp_path, monkeypatch):
    from dfl_lightning.bench.study.cells import resolve

    (tmp_path / "studies" / "small").mkdir(parents=True)
    (tmp_path / "mine.yaml").write_text("data: Digits\nmodel: {network: MLP}\n")
    first = planned(base={"config": "mine.yaml"})
    asked = []
    monkeypatch.setattr(resolve, "resolved", lambda words: asked.append(words) or {"seed_everything": 0})
    again = planned(base={"config": "mine.yaml"})
    assert {cell.folder for cell in again.distinct()} == {cell.folder for cell in first.distinct()}
    assert asked == []
    (tmp_path / "mine.yaml").write_text("data: MNIST\n")
    planned(base={"config": "mine.yaml"})
    assert len(asked) == 4


def test_a_column_without_effect_in_a_row_is_remarked(study_of):
    rows = {
        "Gossip": {},
        "Fixed": {"selection": {"class_path": "Gossip", "init_args": {"k": 3}}},
        "In cells": {"selection.k": 3},
    }
    columns = {"few": {"selection.k": 2}, "some": {"selection.k": 3}, "many": {"selection.k": 5}}
    cells = {"In cells": {"few": {"selection.k": 2}, "many": {"selection": {"init_args": {"k": 5}}}}}
    changes = {"rows": rows, "columns": columns, "published": None, "exclude": None, "tune": None}
    remark = (
        "row Fixed sets selection.k to 3, which overrides the columns few (2), many (5); "
        "to have their values, give selection.k in cells: Fixed"
    )
    assert list(without_effect(read_study_file(study_of(**changes, cells=cells)))) == [remark]
    repaired = {**cells, "Fixed": {"few": {"selection.k": 2}, "many": {"selection.k": 5}}}
    assert list(without_effect(read_study_file(study_of(**changes, cells=repaired)))) == []


def test_a_base_that_overrides_a_rows_own_config_is_remarked(study_of, tmp_path):
    (tmp_path / "own.yaml").write_text("trainer: {max_rounds: 9}\nselection: {class_path: Gossip, init_args: {k: 4}}\n")
    base = {"trainer": {"max_rounds": 3}, "selection.k": 2, "model.local_epochs": 1}
    rows = {"A": {"config": "own.yaml"}, "B": {"config": "own.yaml", "selection.k": 5}, "C": {}}
    assert list(overridden(read_study_file(study_of(base=base, rows=rows)))) == [
        "base overrides config own.yaml of row A: trainer.max_rounds is 3, not 9, selection.k is 2, not 4",
        "base overrides config own.yaml of row B: trainer.max_rounds is 3, not 9",
    ]
    same = {"trainer": {"max_rounds": 9}}
    assert list(overridden(read_study_file(study_of(base=same, rows=rows)))) == []
