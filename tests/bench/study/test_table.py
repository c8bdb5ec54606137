"""Tables of runs that are finished, missing or not comparable."""

import csv
import io
import re

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from dfl_lightning import UserError
from dfl_lightning.bench.study.cells.cell_state import write_failure
from dfl_lightning.bench.study.tables import formats
from dfl_lightning.bench.study.tables.measures.measure import Measure
from dfl_lightning.bench.study.tables.pairing import BEGUN, TESTED, TRAINED, Unlike, sentences
from dfl_lightning.bench.study.tables.picture import draw, whole
from dfl_lightning.bench.study.tables.table import make_table
from dfl_lightning.bench.study.tables.terminal import print_table

ACCURACIES = {("Gossip", "IID"): [0.8, 0.84], ("Local", "IID"): [0.7, 0.72], ("Gossip", "rotated"): [0.5, 0.6]}


@pytest.fixture
def filled(planned, pretend):
    """Make a plan whose cells have these accuracies by row and column, one number for each seed."""

    def filled(accuracies, **changes):
        plan = planned(**{"seeds": list(range(max(map(len, accuracies.values())))), **changes})
        for (row, column), values in accuracies.items():
            for seed, value in enumerate(values):
                pretend(plan.cells[row, column, seed], value, tested=seed)
        return plan

    return filled


def test_markdown_has_mean_spread_and_published_numbers(filled):
    published = {"Gossip": {"IID": [81.0, 0.4]}, "Local": {"IID": 75}}
    text = formats.markdown(make_table(filled(ACCURACIES, published=published)))
    assert "| Gossip | **82.00 ± 2.83** [81.00, +1.00] | **55.00 ± 7.07** |" in text
    # the difference is 0.11 with sd 0.0141: t(1) = 12.7 makes the interval -1.7 to 23.7
    assert "| Local | 71.00 ± 1.41 ≈ [75.00, −4.00] | waiting |" in text
    assert "| IID | Gossip − Local | +11.00 | −1.71 to +23.71 |  |  | 2 | 6 |" in text
    assert "- too few seeds to tell rows apart in IID: so many rows take 3 seeds\n" in text
    assert "- acc_last: test accuracy of the last evaluated round, mean over clients, in percent" in text
    assert "seeds 0, 1" in text
    sentence = "among 2 rows, p < 0.05 (sign-flip test, adjusted) takes 6 seeds or more; here are 2"
    assert f"- no * is possible in IID: {sentence}\n" in text
    assert "*: exact" not in text
    assert "Kendall's tau of the published and the measured order of the rows: IID 1.00 (2 rows)" in text
    assert "cells without a number: 2 waiting" in text
    assert "torch 2.9; commit abc" in text
    assert "6 cells in 0:48 of training; the processor was not recorded" in text


def test_clear_difference_has_no_mark_and_few_seeds_no_star(filled):
    table = make_table(filled({("Gossip", "IID"): [0.8, 0.81, 0.82], ("Local", "IID"): [0.7, 0.71, 0.7201]}))
    assert table.rivals["Local", "IID"].sign == ""
    assert "| Local | 71.00 ± 1.01 |" in formats.markdown(table)


def test_the_sign_test_is_adjusted_for_all_pairs_of_rows(filled):
    first = [0.80, 0.81, 0.82, 0.80, 0.83, 0.81]
    rows = {"A": {"selection.k": 1}, "B": {"selection.k": 2}, "C": {"selection.k": 3}}
    values = {("A", "IID"): first, ("B", "IID"): [v - 0.1 for v in first], ("C", "IID"): [v - 0.01 for v in first]}
    table = make_table(filled(values, rows=rows, columns={"IID": {}}))
    assert (table.rivals["B", "IID"].p, table.rivals["C", "IID"].p) == (0.09375, 0.09375)  # 3 pairs times 2 / 2^6
    assert not table.rivals["B", "IID"].has_star
    assert table.rivals["B", "IID"].difference.seeds_needed == 7
    sentence = "among 3 rows, p < 0.05 (sign-flip test, adjusted) takes 7 seeds or more; here are 6"
    assert f"- no * is possible in IID: {sentence}\n" in formats.markdown(table)
    assert "*: exact" not in formats.markdown(table)


@pytest.mark.parametrize("rivals", [1, 2, 3, 4])
@pytest.mark.parametrize("seeds", [5, 6, 7, 8])
def test_note_says_if_no_star_is_possible(rivals, seeds, filled):
    rows = {f"row {n}": {"selection.k": n} for n in range(rivals + 1)}
    values = {(row, "IID"): [0.9 - n / 10 + s / 1000 for s in range(seeds)] for n, row in enumerate(rows)}
    table = make_table(filled(values, rows=rows, columns={"IID": {}}))
    stars = [rival.has_star for rival in table.rivals.values()]
    assert len(stars) == rivals
    assert all(stars) or not any(stars)
    assert any(stars) == any(sign.startswith("*: exact") for sign in table.signs)
    assert any(stars) != any(note.startswith("no * is possible in IID") for note in table.notes)


def test_six_seeds_and_two_rows_have_a_star(filled):
    values = {("Gossip", "IID"): [0.8 + s / 100 for s in range(6)], ("Local", "IID"): [0.7 + s / 200 for s in range(6)]}
    assert "| Local | 71.25 ± 0.94 * |" in formats.markdown(make_table(filled(values)))


def test_equal_means_are_all_the_best(filled):
    # the same mean, but not as floating-point numbers: 100 * 0.57 is below 57
    values = {("Gossip", "IID"): [0.57, 0.29], ("Local", "IID"): [0.43, 0.43]}
    assert 100 * 0.57 + 100 * 0.29 != 100 * 0.43 + 100 * 0.43
    table = make_table(filled(values, published={"Gossip": {"IID": 60}, "Local": {"IID": 50}}))
    text = formats.markdown(table)
    assert "| Gossip | **43.00 ± 19.80** [" in text
    assert "| Local | **43.00 ± 0** ≈ [" in text
    assert table.best == {"IID": "Gossip"}
    assert table.rivals["Local", "IID"].difference.mean == 0
    assert not table.agreements
    rows = csv.DictReader(io.StringIO(formats.as_csv(table)))
    assert [row["is_best"] for row in rows if row["column"] == "IID"] == ["True", "True"]


def test_rounding_errors_are_not_differences(filled):
    values = {("Gossip", "IID"): [0.57, 0.56], ("Local", "IID"): [0.57 + 2e-16, 0.56 + 3e-16]}
    rival = make_table(filled(values)).rivals["Local", "IID"]
    assert (rival.difference.mean, rival.sign) == (0, "≈")


@pytest.fixture
def with_seeds(filled, pretend):
    """Make a table of a column whose rows have accuracies by seed."""

    def with_seeds(by_row):
        rows = {row: {"selection.k": n} for n, row in enumerate(by_row)}
        seeds = sorted({seed for values in by_row.values() for seed in values})
        plan = filled({(row, "IID"): [] for row in rows}, rows=rows, columns={"IID": {}}, seeds=seeds)
        for row, values in by_row.items():
            for seed, value in values.items():
                pretend(plan.cells[row, "IID", seed], value, tested=seed)
        return make_table(plan)

    return with_seeds


def about_seeds(table):
    return [note for note in table.notes if "have different seeds" in note]


def test_the_best_is_chosen_over_the_seeds_that_rows_share(with_seeds):
    # B is ahead on each seed; over its own seeds A has the higher mean, for it lacks the hard seed 2
    table = with_seeds({"A": {0: 0.8, 1: 0.8}, "B": {0: 0.81, 1: 0.82, 2: 0.5}})
    assert table.places["A", "IID"].mean > table.places["B", "IID"].mean
    assert table.best == {"IID": "B"}
    assert (table.rivals["A", "IID"].difference.mean, table.rivals["A", "IID"].difference.count) == (1.5, 2)
    assert "| A | 80.00 ± 0 ≈ (n = 2) |" in formats.markdown(table)
    assert about_seeds(table) == [
        "rows of IID have different seeds: the best row, tau and ranks are over the 2 seeds (0, 1) of A, B"
    ]


def test_newly_started_row_is_compared_by_its_seed_only(with_seeds):
    three = {"A": [0.7, 0.8, 0.9], "B": [0.6, 0.7, 0.8], "C": [0.5, 0.6, 0.7]}
    table = with_seeds({row: dict(enumerate(values)) for row, values in three.items()} | {"D": {2: 0.95}})
    assert table.best == {"IID": "A"}
    assert table.rivals["D", "IID"].difference.mean == -5
    assert not table.is_best("D", "IID")
    assert about_seeds(table) == [
        "rows of IID have different seeds: the best row, tau and ranks are over the 3 seeds (0, 1, 2) of A, B, C; "
        "not among these: D"
    ]


def test_a_row_without_a_common_seed_is_named(with_seeds):
    table = with_seeds({"A": {0: 0.7, 1: 0.8}, "B": {0: 0.6, 1: 0.7}, "C": {5: 0.99}})
    assert table.best == {"IID": "A"}
    assert table.rivals["C", "IID"].difference is None
    assert [note.partition("; ")[2] for note in about_seeds(table)] == [
        "not among these: C; without a seed in common with A, so without a difference: C"
    ]
    assert "A − C" not in formats.markdown(table)


def test_rows_with_equal_seeds_have_no_note(with_seeds):
    assert not about_seeds(with_seeds({"A": {3: 0.7, 4: 0.8}, "B": {3: 0.6, 4: 0.7}}))


def test_option_selects_another_accuracy(filled, pretend):
    plan = filled(ACCURACIES)
    table = make_table(plan, Measure("best_val"))
    assert {table.places[place].remark for place in ACCURACIES} == {"no acc_best_val"}
    assert "- acc_best_val: test accuracy of each client's best round on validation" in formats.markdown(table)


def test_table_of_another_number_omits_published_ones(filled, tmp_path):
    published = {"Gossip": {"IID": [81.0, 0.4]}, "Local": {"IID": 75}}
    plan = filled(ACCURACIES, published=published)
    for file in tmp_path.rglob("metrics.csv"):
        file.write_text("round,test_acc,test_acc_std\n0,0.7,0.125\n")
    text = formats.markdown(make_table(plan, Measure("test_acc_std", "last", lower_is_better=True)))
    assert "| Gossip | **12.50 ± 0** | **12.50 ± 0** |" in text
    assert "\n- without the published numbers, which are not test_acc_std\n" in text
    assert not re.search(r"\[|published, measured|Kendall", text)
    same = make_table(plan, Measure("best_round"))  # the score in another way
    assert same.places["Gossip", "IID"].published == make_table(plan).places["Gossip", "IID"].published is not None
    assert not any("without the published" in note for note in same.notes)


def test_published_numbers_of_other_columns_stand_in_their_own_table(filled, tmp_path):
    others = {"recall": {"Gossip": {"IID": [30.5, 2]}, "Local": {"IID": 10}}, "precision": {"Local": {"rotated": 99}}}
    plan = filled(ACCURACIES, published={"Gossip": {"IID": 81.0}}, published_numbers=others)
    for file in tmp_path.rglob("metrics.csv"):
        file.write_text("round,test_acc,recall,precision\n0,0.7,40,90\n1,0.7,25.5,80\n")
    recall = make_table(plan, Measure("recall", "last"))
    found = {
        key: place.published and (place.published.mean, place.published.sd) for key, place in recall.places.items()
    }
    assert {key: value for key, value in found.items() if value} == {
        ("Gossip", "IID"): (30.5, 2.0),
        ("Local", "IID"): (10.0, None),
    }
    assert "| Gossip | **25.5 ± 0** [30.5, −5.00] |" in formats.markdown(recall)
    assert make_table(plan, Measure("precision", "last")).places["Local", "rotated"].published.mean == 99
    assert make_table(plan).places["Gossip", "IID"].published.mean == 81
    for other in (Measure("recall", "mean"), Measure("recal", "last")):  # not what is published
        table = make_table(plan, other)
        assert not any(place.published for place in table.places.values())
        assert any("without the published numbers" in note for note in table.notes)


@pytest.mark.parametrize("harm", ["missing", "cut off"])
def test_cell_with_an_unreadable_split_is_named_with_remedy(harm, filled):
    plan = filled(ACCURACIES)
    cell = plan.cells["Local", "IID", 0]
    (file,) = cell.folder.glob("run/*/split.npz")
    content = file.read_bytes()
    file.unlink()
    if harm == "cut off":
        file.write_bytes(content[:60])
    with pytest.raises(
        UserError, match=rf"split\.npz: cannot be read .*restore it, or remove {re.escape(str(cell.folder))}"
    ):
        make_table(plan)


def test_rows_with_other_test_data_have_no_paired_differences(filled, pretend):
    plan = filled(ACCURACIES)
    for seed in (0, 1):
        pretend(plan.cells["Local", "IID", seed], 0.7, tested=77)
    table = make_table(plan)
    assert table.rivals["Local", "IID"].difference is None
    assert "tested on other samples than the other rows of IID: Local; no paired" in formats.markdown(table)
    assert "≈" not in formats.markdown(table).partition("Paired")[0].partition("\n- ")[0]


@pytest.mark.parametrize("trained", [(1, 2), (1, 2, 4)])
def test_rows_with_other_training_data_are_paired_and_named(filled, pretend, trained):
    plan = filled(ACCURACIES)
    for seed in (0, 1):
        pretend(plan.cells["Local", "IID", seed], 0.7, tested=seed, trained=trained)
    table = make_table(plan)
    assert table.rivals["Local", "IID"].difference is not None
    said = [note for note in table.notes if "train on" in note or "training samples" in note]
    named = "clients train on other samples than those of the other rows of IID: Local"
    assert named in said
    assert len(said) == 1 + (len(trained) == 2)  # their number is a condition


def test_rows_with_other_first_models_are_paired_by_the_data(filled):
    rows = {
        "Gossip": {},
        "Local": {"selection.k": 0},
        "Wide": {"model.network": {"class_path": "MLP", "init_args": {"hidden": [9]}}},
    }
    values = {(row, "IID"): [0.8, 0.81] for row in rows} | {("Wide", "IID"): [0.9, 0.93]}
    table = make_table(filled(values, rows=rows))
    sentence = "other first models than the other rows of IID: Wide; differences to them are paired by the data only"
    assert [note for note in table.notes if "first models than" in note] == [sentence]
    assert table.best == {"IID": "Wide"}
    assert table.rivals["Local", "IID"].difference.mean == pytest.approx(11.0)


def test_rows_with_equal_differences_share_one_sentence():
    apart = [
        Unlike("A", ("x",), TESTED),
        Unlike("E", ("x",), TRAINED),
        Unlike("B", ("x", "y"), BEGUN),
        Unlike("C", ("x",), BEGUN),
        Unlike("D", ("x",), BEGUN),
    ]
    paired = "differences to them are paired by the data only"
    assert list(sentences(apart)) == [
        "tested on other samples than the other rows of x: A; no paired differences",
        "clients train on other samples than those of the other rows of x: E",
        f"other first models than the other rows of x, y: B; {paired}",
        f"other first models than the other rows of x: C, D; {paired}",
    ]


def test_place_without_a_number_gives_the_reason(filled, pretend):
    plan = filled(
        {("Gossip", "IID"): [0.8]},
        rows={"Gossip": {}, "Local": {"selection.k": 0}, "APFL": {"not_in_library": "APFL"}},
        columns={"IID": {"data.partition": "IID"}, "rotated": {}, "none": {"data.num_clients": 5}},
        cells={"Gossip": {"none": None}},
        published={"APFL": {"IID": 80.96}},
    )
    cell = plan.cells["Local", "IID", 0]
    cell.folder.mkdir(parents=True)
    write_failure(cell, "data Digits: its files are not in root 'x'", lacks_data=True)
    pretend(plan.cells["Local", "none", 0], status="failed", reason="it diverged")
    write_failure(plan.cells["Local", "none", 0], "it diverged")
    pretend(plan.cells["Gossip", "rotated", 0], status="stopped")
    text = formats.markdown(make_table(plan))
    assert "| Gossip | **80.00** | stopped | – |" in text
    assert "| Local | missing data | waiting | failed |" in text
    assert "| APFL | not in the library [80.96] |" in text
    assert "- Local, IID, seed 0: missing data: data Digits: its files are not in root 'x'" in text
    assert "- Local, none, seed 0: failed: it diverged" in text
    assert "- not in the library yet: APFL" in text


def test_seed_with_an_infinite_loss_leaves_no_mean(filled, pretend):
    plan = filled(ACCURACIES)
    before = make_table(plan)
    assert before.places["Local", "IID"].mean is not None
    assert "not finite" not in formats.markdown(before)
    pretend(plan.cells["Local", "IID", 1], test_accuracy={"acc_last": None, "not_finite": {"0": 1, "4": 2}})
    table = make_table(plan)
    assert table.places["Local", "IID"].mean is None
    assert table.places["Local", "IID"].remark == "not finite"
    number = "the number of a client or of the run is NaN or infinite"
    sentence = f"- not finite: {number} in Local, IID, seed 1 (2 clients)\n"
    assert sentence in formats.markdown(table)


def test_cells_whose_clients_diverged_are_named_below(filled, pretend):
    plan = filled(ACCURACIES)
    assert "diverged" not in formats.markdown(make_table(plan))
    pretend(plan.cells["Local", "IID", 1], 0.1, clients=6, diverged={"0": 3, "4": 2})
    sentence = "- training diverged in Local, IID, seed 1 (2 of 6 clients); these numbers are in the means\n"
    assert sentence in formats.markdown(make_table(plan))


def test_over_five_columns_rows_are_ranked(filled):
    columns = {f"c{n}": {"data.num_clients": 5 + n} for n in range(5)}
    values = {("Gossip", c): [0.8] for c in columns} | {("Local", c): [0.7 - n / 100] for n, c in enumerate(columns)}
    text = formats.markdown(make_table(filled(values, columns=columns)))
    assert "mean ranks over 5 columns: Gossip 1.00, Local 2.00" in text
    assert (
        "Gossip against the others over these columns (Wilcoxon's signed-rank test, adjusted): p = Local 0.062" in text
    )
    sentence = "in 5 columns none of these p can be below 0.062: for p < 0.05 the test needs 6 columns"
    assert f"- {sentence}\n" in text


def test_six_columns_are_too_few_for_three_rows(filled):
    columns = {f"c{n}": {"data.num_clients": 5 + n} for n in range(6)}
    rows = {"A": {"selection.k": 1}, "B": {"selection.k": 2}, "C": {"selection.k": 3}}
    values = {(r, c): [0.8 - i / 10 - n / 1000] for i, r in enumerate(rows) for n, c in enumerate(columns)}
    values |= {("A", c): [0.9] for c in columns}
    text = formats.markdown(make_table(filled(values, columns=columns, rows=rows)))
    assert "(Wilcoxon's signed-rank test, adjusted): p = B 0.094, C 0.094" in text
    assert "in 6 columns none of these p can be below 0.094: for p < 0.05 the test needs 7 columns" in text


def test_a_scaled_table_says_so_in_title_and_caption(filled):
    text = formats.markdown(make_table(filled(ACCURACIES, scale=0.5)))
    assert "**Four small cells (rounds times 0.5: not the paper's setting)**" in text
    assert "- scaled: all counts of rounds times 0.5" in text


def test_csv_has_a_line_per_place_with_all_digits(filled):
    rows = list(csv.DictReader(io.StringIO(formats.as_csv(make_table(filled(ACCURACIES))))))
    assert [(row["row"], row["column"], row["n"]) for row in rows][:3] == [
        ("Gossip", "IID", "2"),
        ("Gossip", "rotated", "2"),
        ("Local", "IID", "2"),
    ]
    assert float(rows[0]["mean"]) == pytest.approx(82)
    assert float(rows[2]["best_minus_row"]) == pytest.approx(11)
    assert rows[0]["seeds"] == "0:80.0 1:84.0"
    assert rows[3]["remark"] == "waiting"


def test_latex_is_booktabs_with_everything_written_out(filled):
    rows = {"Gossip": {}, "Local & alone_1": {"selection.k": 0}}
    values = {("Gossip", "IID"): [0.8, 0.84], ("Local & alone_1", "IID"): [0.7, 0.72]}
    text = formats.latex(make_table(filled(values, rows=rows)))
    assert r"Local \& alone\_1 & 71.00 $\pm$ 1.41 $\approx$ & waiting \\" in text
    assert r"Gossip & \textbf{82.00 $\pm$ 2.83} & waiting \\" in text
    for command in (r"\toprule", r"\midrule", r"\bottomrule", r"\begin{tabular}{lrr}"):
        assert text.count(command) == 1
    assert not set("±≈−–") & set(text)
    assert text.count("{") == text.count("}")


def test_the_picture_shows_means_intervals_and_what_is_published(filled, tmp_path):
    pytest.importorskip("altair", reason="the extra `report` is not installed")
    rows = {"Gossip": {}, "Local": {"selection.k": 0}, "Other": {"not_in_library": "x"}}
    published = {"Gossip": {"IID": [81, 0.4]}, "Other": {"IID": 88}}
    table = make_table(filled(ACCURACIES, rows=rows, published=published))
    made = draw(table, tmp_path / "made" / "small.png")
    assert made.read_bytes().startswith(b"\x89PNG")
    spec = whole(table).to_dict()
    panels = {panel["title"]["text"][0]: panel for line in spec["vconcat"][0]["vconcat"] for panel in line["hconcat"]}
    assert list(panels) == ["IID", "rotated"]
    gossip, local, other = spec["datasets"][panels["IID"]["data"]["name"]]
    assert gossip["measured"] == pytest.approx(np.mean([80, 84]))
    interval = stats.t.interval(0.95, 1, loc=82, scale=stats.sem([80, 84]))
    assert (gossip["low"], gossip["high"]) == pytest.approx(interval)
    assert (gossip["published"], gossip["published_low"], gossip["published_high"]) == (81, 80.6, 81.4)
    assert (gossip["best"], local["best"]) == (True, False)
    assert (gossip["sign"], local["sign"]) == ("", "≈")  # its interval is -1.7 to 23.7
    assert (other["remark"], other["published"]) == ("not in the library", 88)
    assert "measured" not in other
    below = " ".join(spec["vconcat"][0]["title"]["text"])
    assert all(word in below for note in table.notes for word in note.split())


def test_caption_says_that_one_seed_has_no_deviation(planned):
    notes = make_table(planned(seeds=[7])).notes
    assert any("in percent; of seed 7 alone (" in note for note in notes)
    assert not any("standard deviation" in note for note in notes)


def test_caption_names_conditions_in_which_rows_differ(planned):
    rows = {"Gossip": {}, "Local": {"selection.k": 0}, "Long": {"model.local_epochs": 3, "selection.k": 1}}
    table = make_table(planned(rows=rows))
    said = "rows differ in more than their method: local epochs: 1 (Gossip, Local), 3 (Long)"
    assert said in table.notes
    assert said in formats.latex(table).replace("\\", "")
    places = {(line["row"], line["column"]): line for line in csv.DictReader(io.StringIO(formats.as_csv(table)))}
    assert places["Long", "IID"]["conditions"] == "local epochs: 3"
    assert not [note for note in make_table(planned()).notes if "rows differ" in note]
    cells = {"Local": {"rotated": {"trainer.max_rounds": 2}}}
    (note,) = [note for note in make_table(planned(cells=cells)).notes if "rows differ" in note]
    assert note == "rows differ in rotated in more than their method: rounds: 4 (Gossip), 2 (Local)"


def test_training_samples_of_finished_runs_are_a_condition(filled):
    rows = {"Gossip": {}, "Local": {"selection.k": 0}, "Other": {"selection.k": 1}}
    values = {("Gossip", "IID"): [0.8, 0.9], ("Local", "IID"): [0.7, 0.6], ("Other", "IID"): [0.7]}
    plan = filled(values, rows=rows, columns={"IID": {}})

    def trained_on(sizes):
        for (row, seed), size in sizes.items():
            (file,) = plan.cells[row, "IID", seed].folder.glob("run/*/split.npz")
            np.savez(file, train=np.array([seed]), train_offsets=np.array([0, size - 5, size]))
        table = make_table(plan)
        places = {line["row"]: line["conditions"] for line in csv.DictReader(io.StringIO(formats.as_csv(table)))}
        return [note for note in table.notes if "rows differ" in note], places

    alike = {("Gossip", 0): 40, ("Local", 0): 40, ("Other", 0): 40, ("Gossip", 1): 50, ("Local", 1): 50}
    assert trained_on(alike) == ([], dict.fromkeys(rows, ""))  # seeds differ, rows do not
    notes, places = trained_on({**alike, ("Other", 0): 30})
    assert notes == ["rows differ in more than their method: training samples: 40 (Gossip, Local), 30 (Other)"]
    assert places["Other"] == "training samples: 30"


def test_unfinished_row_is_not_said_to_train_differently(filled):
    plan = filled({("Gossip", "IID"): [0.8]}, columns={"IID": {}})
    (file,) = plan.cells["Gossip", "IID", 0].folder.glob("run/*/split.npz")
    np.savez(file, train=np.array([0]), train_offsets=np.array([0, 40]))
    assert not [note for note in make_table(plan).notes if "rows differ" in note]


@pytest.mark.parametrize("width", [80, 140])
def test_a_terminal_gets_a_table_for_people_within_its_width(filled, width):
    accuracies = {("Gossip", "IID"): [0.8, 0.81, 0.82], ("Local", "IID"): [0.7, 0.71, 0.7201]}
    table, out = make_table(filled(accuracies)), io.StringIO()
    print_table(table, Console(file=out, width=width, highlight=False))
    shown = out.getvalue()
    assert "| ---" not in shown
    assert re.search(r"^Gossip\s+81\.00 ± 1\.00", shown, re.MULTILINE)
    assert "Paired differences to the best:" in shown
    assert max(map(len, shown.splitlines())) <= width
    text = formats.markdown(table)
    notes = " ".join(shown.split())
    assert all(" ".join(note.split()) in notes for note in table.notes if len(note) < width - 4)
    assert "| Gossip | **81.00 ± 1.00** |" in text


def test_a_narrow_terminal_cuts_no_word_and_breaks_no_interval(filled):
    columns = {name: {} for name in ("digits", "progression", "several labels", "seasons", "a fifth one")}
    rows = {"Gossip": [0.8, 0.81, 0.82], "Local": [0.7, 0.71, 0.7201]}
    table, out = (
        make_table(filled({(r, c): v for r, v in rows.items() for c in columns}, columns=columns)),
        io.StringIO(),
    )
    print_table(table, Console(file=out, width=80, highlight=False))
    shown = out.getvalue()
    assert "…" not in shown
    assert "\N{NO-BREAK SPACE}" not in shown
    assert max(map(len, shown.splitlines())) <= 80
    for line in formats.differences_in_words(table):
        assert line[3] in shown  # the interval, in one line
    assert shown.count("± 1.00") == len(columns)


def test_a_deviation_has_the_digits_of_its_mean(filled):
    text = formats.markdown(make_table(filled({("Gossip", "IID"): [0.8, 0.8], ("Local", "IID"): [0.7, 0.70001]})))
    assert "**80.00 ± 0** |" in text
    assert "| Local | 70.00 ± < 0.01" in text
