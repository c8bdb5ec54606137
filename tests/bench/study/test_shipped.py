"""The shipped studies: every row, column and number of a paper's table."""

import re
import sys
from pathlib import Path

import pytest

from dfl_lightning.bench.study.cells import checking
from dfl_lightning.bench.study.command import main
from dfl_lightning.bench.study.file.settings import words_of
from dfl_lightning.bench.study.file.study_file import KIND, read_study_file
from dfl_lightning.bench.study.plan import make_plan
from dfl_lightning.bench.study.tables.unequal import unequal_rows
from dfl_lightning.cli.arguments import Settings, split, with_configs
from dfl_lightning.utils.errors import MissingData
from dfl_lightning.utils.storage.shipped_files import shipped

STUDIES = list(shipped(KIND))


@pytest.mark.parametrize("name", STUDIES)
def test_shipped_studies_resolve_and_have_a_title(name):
    study = read_study_file(name)
    assert study.name == name
    assert 20 < len(study.title) <= 130
    for row, column in study.pairs():
        if not study.missing(row, column):
            Settings(with_configs(split(words_of(study, row, column))))


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_shipped_study_can_be_explained(name, tmp_path, monkeypatch, capsys):
    """Without data: all cells are resolved by dfl-fit, and what is missing is said."""

    def nothing(config, common):
        raise MissingData(f"{config['data']['class_path']}: nothing is there")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checking, "outline_of", nothing)
    assert main(["run", name, "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    study = read_study_file(name)
    assert f"{name}: {study.title}" in lines  # after remarks on its settings
    assert lines[-1] == "nothing can be run now"
    lacking = [study.missing(row, column) for row, column in study.pairs()]
    assert any(line.startswith("not in the library yet: ") for line in lines) == any(lacking)
    assert list(tmp_path.iterdir()) == []


def cells_of(name):
    """Count the places of the table, and the published numbers."""
    study = read_study_file(name)
    return len(study.pairs()), sum(map(len, study.published.values()))


@pytest.mark.parametrize(
    ("name", "places", "numbers"),
    [
        ("afind_table1", 48, 48),
        ("afind_table2", 16, 16),
        ("afind_table3", 16, 16),
        ("panm_table2", 21, 21),
        ("panm_table3", 21, 21),
        ("panm_table4", 42, 42),
        ("panm_table5", 25, 25),
        ("panm_table6", 8, 8),
        ("dpfl_table1", 80, 80),
        ("dpfl_table2", 9, 6),
        ("dpfl_table3", 12, 12),
        ("dpfl_table4", 16, 16),
        ("dpfl_table5", 8, 8),
        ("dpfl_table6", 8, 8),
    ],
)
def test_tables_are_complete(name, places, numbers):
    assert cells_of(name) == (places, numbers)


@pytest.mark.parametrize(
    ("name", "row", "column", "mean", "sd"),
    [
        ("afind_table1", "AFIND+", "CIFAR-10 Dir(0.1)", 71.89, 0.06),
        ("afind_table1", "PENS", "CIFAR-100 c = 10", 67.03, 1.21),
        ("panm_table4", "PANMLoss", "l 20 k 5", 43.64, 1.54),
        ("panm_table6", "IFCA c = 3", "CIFAR10(4)", 41.05, 1.09),
        ("dpfl_table1", "DPFL 0.1 N", "CINIC10 Patho(3)", 80.24, 0.35),
        ("afind_table2", "+ threshold", "CIFAR-100 Dir(0.1)", 58.02, 0.83),
        ("afind_table3", "FedeRiCo", "CIFAR-10 c = 5", 71.58, 1.93),
        ("dpfl_table1", "Ditto", "CINIC10 Dir(0.1)", 80.33, 1.27),
        ("dpfl_table2", "D-SGD", "0.05 N", 76.21, 1.87),
        ("dpfl_table3", "5 epochs", "budget 20", 82.53, 1.36),
        ("dpfl_table5", "partial", "budget 5", 81.43, 0.26),
        ("dpfl_table6", "repeated BGGC", "budget 10", 83.89, 0.6),
        ("dpfl_table4", "P = 10", "budget 20", 84.17, None),
    ],
)
def test_published_numbers_are_those_of_the_papers(name, row, column, mean, sd):
    published = read_study_file(name).published[row][column]
    assert (published.mean, published.sd) == (mean, sd)


def test_table_3_of_panm_has_precision_and_recall_as_printed():
    printed = """
        PENS 100 70.83±4.17 59.75±5.08 59.18±2.04 66.67±4.17 52.78±8.67
        PANMLoss 100 100 68.19±28.12 74.15±32.42 48.61±13.39 62.50±31.46
        PANMGrad 100 83.33±28.87 100 100 94.44±6.36 98.61±2.41
    """
    study, places = read_study_file("panm_table3"), ["swap(2)", "swap(4)", "rotation(4)"]
    precision, recall = (study.published_numbers[f"matched_{name}"] for name in ("precision", "recall"))
    lines = [line.split() for line in printed.strip().splitlines()]
    assert {line[0] for line in lines} == set(precision) == set(recall)
    for row, *texts in lines:
        found = [precision[row][column] for column in places] + [recall[row][column] for column in places]
        for number, text in zip(found, texts, strict=True):
            mean, _, sd = text.partition("±")
            assert (number.mean, number.sd) == (float(mean), float(sd) if sd else None)


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "dpfl_table4"])  # of one seed
def test_every_published_number_has_the_deviation_that_its_paper_prints(name):
    for row, columns in read_study_file(name).published.items():
        assert [column for column, one in columns.items() if one.sd is None] == [], row


@pytest.mark.parametrize(
    ("name", "of_table_1"),
    [
        ("dpfl_table2", {("DPFL", f"{n} N"): (f"DPFL {n} N", "CIFAR10 Dir(0.1)") for n in (0.2, 0.1, 0.05)}),
        (
            "dpfl_table3",
            {
                ("10 epochs", column): (row, "CIFAR10 Patho(3)")
                for column, row in [("no budget", "DPFL all"), ("budget 20", "DPFL 0.2 N"), ("budget 5", "DPFL 0.05 N")]
            },
        ),
        ("dpfl_table5", {("full", "budget 10"): ("DPFL 0.1 N", "CIFAR10 Dir(0.1)")}),
        ("dpfl_table6", {("DPFL", "no budget"): ("DPFL all", "CIFAR10 Dir(0.1)")}),
        ("afind_table2", {("FedAvg-FT", c): ("Gossip", c) for c in ("CIFAR-10 Dir(0.1)", "CIFAR-100 c = 10")}),
        ("afind_table2", {("+ Boltzmann", c): ("AFIND+", c) for c in ("CIFAR-10 c = 5", "CIFAR-100 Dir(0.1)")}),
    ],
)
def test_numbers_printed_twice_in_a_paper_are_equal(name, of_table_1):
    again, first = read_study_file(name).published, read_study_file(f"{name.partition('_')[0]}_table1").published
    for (row, column), (row_1, column_1) in of_table_1.items():
        assert again[row][column] == first[row_1][column_1]


def test_scores_of_settings_that_papers_print():
    words = words_of(read_study_file("panm_table4"), "PENS", "l 30 k 15")
    assert '--selection={"class_path": "PENS", "init_args": {"k": 15, "sampled": 30, "top": 15' in " ".join(words)
    words = " ".join(words_of(read_study_file("dpfl_table1"), "DPFL 0.05 N", "CINIC10 Dir(0.1)"))
    assert "--data.num_clients=200" in words or '"num_clients": 200' in words
    assert words.endswith("--selection.budget=10")


DOCS = Path(__file__).parents[3] / "docs"


def conditions_of(name, folder):
    """Return the names of the conditions in which rows of a study differ, in any column."""
    found = unequal_rows(make_plan(read_study_file(name), folder)).values()
    return {condition for _, unequal in found for condition, _ in unequal}


@pytest.mark.parametrize(("page", "name"), [("studies.md", "mine"), ("tutorial.md", "idea")])
def test_the_examples_of_pages_differ_in_their_methods_only(page, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # the first block of each language
    blocks = dict(re.findall(r"```(python|yaml)\n(.*?)```", (DOCS / page).read_text(encoding="utf-8"), re.DOTALL)[::-1])
    if name == "idea":
        (tmp_path / "lowest_loss.py").write_text(blocks["python"])
    assert f"\nname: {name}\n" in blocks["yaml"]
    (tmp_path / "study.yaml").write_text(blocks["yaml"])
    assert conditions_of("study.yaml", tmp_path / "made") == set()
    sys.modules.pop("lowest_loss", None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "conditions"),
    [
        ("digits_small", set()),
        ("tasks_small", {"further training"}),  # Ditto's second models
        ("modern_small", {"further training", "topology"}),
    ],
)
def test_pages_of_small_studies_name_their_conditions(name, conditions, tmp_path):
    assert conditions_of(name, tmp_path) == conditions
    if conditions:
        page = " ".join((DOCS / f"results/{name}.md").read_text(encoding="utf-8").split())
        sentence = page.partition("Rows differ in more than their method: ")[2].partition(". ")[0]
        assert all(f"{condition}: " in sentence for condition in conditions)
