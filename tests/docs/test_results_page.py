"""docs/results.md names every shipped study, and leads to every table that has been measured."""

import csv
import re
import shlex
import statistics
from pathlib import Path

import pytest
import scipy.stats

from dfl_lightning.bench.stats.statistics import least_replications, pairs_among
from dfl_lightning.bench.study.command import make_parser
from dfl_lightning.bench.study.file.study_file import KIND, read_study_file
from dfl_lightning.bench.study.tables.measures.equal_cost import COSTS, read_equal_cost
from dfl_lightning.bench.study.tables.measures.measure import SCORES, Measure
from dfl_lightning.bench.study.tables.received import HEADING, RoundTraffic, in_words
from dfl_lightning.utils.storage.shipped_files import shipped

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
ROWS = dict(re.findall(r"^\| `(\w+)` \|.*\| ([^|]+) \|$", PAGE, re.MULTILINE))


def test_every_shipped_study_has_a_row():
    assert set(ROWS) == set(shipped(KIND))


def test_every_table_is_linked_from_the_row_of_its_study():
    measured = {path.stem for path in DOCS.glob("results/*.md")}
    for name, link in ROWS.items():
        further = {cost: f"{name}_{cost}" for cost in COSTS}  # tables of the same runs at another equal cost
        pages = {"table": name, **{cost: page for cost, page in further.items() if page in measured}}
        links = ", ".join(f"[{words}](results/{page}.md)" for words, page in pages.items())
        assert link == (links if name in measured else "–"), name
        measured -= {name, *further.values()}
    assert not measured


MEASURED = sorted(path.stem for path in DOCS.glob("results/*.md"))


def tables(page):
    """Read head and lines of each table of a page, in cells."""
    found = []
    for block in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        head, _, *lines = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        found.append((head, lines))
    return found


@pytest.mark.parametrize("name", MEASURED)
def test_every_table_has_its_numbers_as_csv(name):
    page = (DOCS / f"results/{name}.md").read_text(encoding="utf-8")
    assert f"({name}.csv)" in page
    with (DOCS / f"results/{name}.csv").open(encoding="utf-8", newline="") as file:
        cells = {(cell["row"], cell["column"]): cell for cell in csv.DictReader(file)}
    columns = list(dict.fromkeys(column for _, column in cells))
    heads = (["", *columns], ["", *columns, HEADING])
    width = len(heads[0])
    lines = next([line[:width] for line in lines] for head, lines in tables(page) if head in heads)
    assert list(cells) == [(row, column) for row, *_ in lines for column in columns]
    for row, *texts in lines:
        for column, text in zip(columns, texts, strict=True):
            cell = cells[row, column]
            if not cell["mean"]:
                assert text == cell["remark"]
                continue
            mean, sd, published = cell["mean"], cell["sd"], cell["published"]
            accuracies = {*(Measure(way).name for way in SCORES), *(read_equal_cost(cost).name for cost in COSTS)}
            measure = Measure(cell["measure"], "" if cell["measure"] in accuracies else "last")
            share = re.search(
                rf"{column}: last: [^;.]*, in percent", " ".join(page.split())
            )  # of a task without accuracies
            say = "{:.2f}".format if share else measure.text
            number = say(float(mean))
            same = f"{float(sd or 0):.{len(number.partition('.')[2])}f}"  # as many decimals as the mean has
            numbers = [f"{number} ± {spread}" for spread in (say(float(sd)), same)] if sd else [number]
            assert text.startswith(tuple(f"**{n}**" if cell["is_best"] == "True" else n for n in numbers))
            assert f"[{float(published):.2f}, " in text if published else "[" not in text


ROUNDS = sorted(path.stem for path in DOCS.glob("results/rounds/*.csv"))
REDUCE = {
    "acc_last": ("test_acc", lambda values: values[-1]),
    "global_mean_over_rounds": ("global_test_acc", statistics.fmean),
    "acc_best_round": ("test_acc", max),
    "malicious_neighbours": ("malicious_neighbours", lambda values: values[-1]),
    "neighbour_precision": ("neighbour_precision", statistics.fmean),
    "substitution_error": ("substitution_error", lambda values: statistics.fmean(values) / 100),
}
"""The column of the rounds that a measure reduces, and the function that reduces it to a hundredth of the number."""

NO_MEAN = "it does not follow from these means over clients: it is computed from the `clients.npz` of each run"


@pytest.mark.parametrize("name", ROUNDS)
def test_numbers_of_tables_follow_from_their_rounds(name):
    page = " ".join((DOCS / f"results/{name}.md").read_text(encoding="utf-8").split())
    assert f"(rounds/{name}.csv)" in page
    rounds, seen = {}, set()
    with (DOCS / f"results/rounds/{name}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            rounds.setdefault((line["row"], line["column"], line["seed"]), []).append(line)
    for line in csv_lines(name):
        if line["measure"] == "acc_best_val":  # each client has a round of its own there, as the page says
            assert NO_MEAN in page
            continue
        column, reduce = REDUCE[line["measure"]]
        for seed, value in numbers_of_seeds(line).items():
            place = line["row"], line["column"], seed
            numbers = [float(of_round[column]) for of_round in rounds[place] if of_round[column]]
            assert 100 * reduce(numbers) == pytest.approx(float(value), rel=1e-12)
            seen.add(place)
    assert seen <= set(rounds)


# --- what pages say of rounds -----------------------------------------------------------------------------------------
def over_seeds(name, column, reduce):
    """Reduce a column's rounds in each run, and take the mean over seeds, by row and column of the table."""
    runs = {}
    with (DOCS / f"results/rounds/{name}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if line[column]:
                runs.setdefault((line["row"], line["column"], line["seed"]), []).append(float(line[column]))
    by_place = {}
    for (row, place, _), values in runs.items():
        by_place.setdefault((row, place), []).append(reduce(values))
    return {key: statistics.fmean(values) for key, values in by_place.items()}


def last(values):
    return values[-1]


def test_rounds_have_afinds_neighbours_with_noise():
    chosen = over_seeds("afind_table4_small", "neighbours", statistics.fmean)
    own = over_seeds("afind_table4_small", "neighbour_precision", statistics.fmean)
    for row, column in chosen:
        mixed, share = ("11", "45") if row == "sigma = 0" else ("23", "22")
        assert (f"{chosen[row, column]:.0f}", f"{100 * own[row, column]:.0f}") == (mixed, share)


def test_rounds_have_the_neighbours_of_ones_own_cluster():
    mixed = over_seeds("claims_panm_swaps", "neighbour_precision", last)
    precision, recall = (over_seeds("claims_panm_swaps", f"matched_{name}", last) for name in ("precision", "recall"))
    in_percent = {place: round(100 * share, 1) for place, share in mixed.items()}
    assert in_percent["PANMLoss", "swap(4)"] == 100
    assert in_percent["PANMGrad", "swap(4)"] == 99.7
    assert [in_percent[row, "swap(2)"] for row in ("PENS", "Random", "FixTopology")] == [64.5, 47.8, 47.5]
    assert [in_percent[row, "swap(4)"] for row in ("PENS", "Random", "FixTopology")] == [40.2, 20.2, 20.0]
    lists = {place for place in precision if place[0].startswith("PANM")}
    assert min(precision[place] for place in lists) == pytest.approx(0.998, abs=5e-4)
    assert [round(100 * side(recall[place] for place in lists)) for side in (min, max)] == [67, 88]


def test_rounds_have_the_clients_of_each_server():
    even = set()
    with (DOCS / "results/rounds/claims_panm_servers.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            if (line["row"], line["column"], line["round"]) == ("IFCA c = 4", "quarter turns", "19"):
                clients = [int(line[f"server_{server}_clients"]) for server in range(4)]
                assert sum(clients) == 20
                even |= {line["seed"]} if clients == [5, 5, 5, 5] else set()
    assert even == {"1", "2", "4"}


@pytest.mark.parametrize("name", ["claims_afind_table1", "claims_afind_table2", "claims_afind_table3"])
def test_rounds_have_what_a_client_receives(name):
    page = (DOCS / f"results/{name}.md").read_text(encoding="utf-8")
    models, size = (over_seeds(name, f"{what}_received", statistics.fmean) for what in ("models", "bytes"))
    [(_, lines)] = [table for table in tables(page) if table[0][-1] == HEADING]
    for row, *_, received in lines:
        assert received == in_words(RoundTraffic(models[place], size[place]) for place in models if place[0] == row)


def test_rounds_have_how_many_models_afind_mixes():
    mixed = over_seeds("claims_afind_table1", "neighbours", statistics.fmean)
    assert round(mixed["AFIND+", "everything shared"], 1) == 7.7
    parts = over_seeds("claims_afind_table2", "neighbours", statistics.fmean)
    assert round(parts["+ Boltzmann, 3 in reach", "two classes"], 1) == 2.3
    for row in ("as printed, nu 0.2", "as printed, own model mixed"):
        first, final = (over_seeds("claims_afind_table2", "neighbours", each) for each in (lambda v: v[0], last))
        assert (first[row, "two classes"], round(final[row, "two classes"])) == (15, 1)


@pytest.mark.parametrize("name", MEASURED)
def test_pages_claim_no_tests_with_too_few_seeds(name):
    for head, lines in tables((DOCS / f"results/{name}.md").read_text(encoding="utf-8")):
        if head[-1] == "seeds needed":
            columns = [line[0] for line in lines]
            for column, *_, needed in lines:
                pairs = pairs_among(columns.count(column) + 1)
                assert not needed.isdigit() or int(needed) >= least_replications(pairs)


# --- captions ---------------------------------------------------------------------------------------------------------
BEFORE = {"dpfl_figure4_small": set(), "dpfl_table1_small": {"budget 0.05 N"}}
"""Pages of cells from before these studies kept optimizers, and what their notes name of rows without such cells."""


def study_of(page):
    """Read the study of a page; a page of another equal cost has the study's name and the cost's."""
    name, _, cost = page.rpartition("_")
    return read_study_file(name if cost in COSTS else page)


def caption(page):
    """Return the list below a page's first table of numbers, in one line."""
    text = (DOCS / f"results/{page}.md").read_text(encoding="utf-8")
    lists = [" ".join(block.split()) for block in re.findall(r"(?:^(?:- |  ).*\n)+", text, re.MULTILINE)]
    return next(words for words in lists if "(each a split and first models" in words)


@pytest.mark.parametrize("name", [name for name in MEASURED if name not in BEFORE])
def test_caption_has_the_note_of_its_study(name):
    note = " ".join(study_of(name).note.split())
    assert f" - {note} - " in caption(name)


@pytest.mark.parametrize("name", BEFORE)
def test_caption_of_a_former_study_names_what_is_published(name):
    [entries] = re.findall(r"optimizers begin anew in each round; published: (.*?) - ", caption(name))
    published = study_of(name).note.rpartition("published: ")[2].split(" / ")
    assert set(entries.split(" / ")) == set(published) - BEFORE[name]


@pytest.mark.parametrize("name", MEASURED)
def test_pages_name_the_processor_or_its_lack(name):
    made = re.search(r"made: .* of training(.*)", caption(name))[1]
    assert made.startswith((" on x86_64 ", "; the processor was not recorded"))


# --- what is judged ---------------------------------------------------------------------------------------------------
def numbers_of_seeds(cell):
    return dict(part.split(":") for part in cell["seeds"].split())


def csv_lines(name):
    with (DOCS / f"results/{name}.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", MEASURED)
def test_tables_say_what_todays_rule_says_of_their_numbers(name, load):
    page, numbers = ((DOCS / f"results/{name}.{kind}").read_text(encoding="utf-8") for kind in ("md", "csv"))
    judged = load("judge_results").judged(page, numbers)
    assert judged == (page, numbers), f"python scripts/judge_results.py {name}"


def test_smallest_p_is_adjusted_for_all_pairs_of_rows():
    judged = 0
    for name in MEASURED:
        lines = csv_lines(name)
        for column in {line["column"] for line in lines}:
            rows = [line for line in lines if line["column"] == column and line["mean"]]
            best = next(numbers_of_seeds(line) for line in rows if line["is_best"] == "True")
            tested = {line["row"]: float(line["p_t_adjusted"]) for line in rows if line["p_t_adjusted"]}
            if not tested:
                continue
            ps = {}
            for line in rows:
                own = numbers_of_seeds(line)
                if line["row"] in tested and own != best:
                    pairs = [(float(best[seed]), float(own[seed])) for seed in best]
                    ps[line["row"]] = scipy.stats.ttest_rel(*zip(*pairs, strict=True)).pvalue
            if not ps:  # all rows have equal numbers
                continue
            least, k = min(ps, key=ps.get), len(rows)
            assert tested[least] == pytest.approx(min(1.0, ps[least] * k * (k - 1) / 2), rel=1e-6)
            judged += 1
    assert judged == 85  # the columns with enough seeds for their rows


# --- the map of the papers --------------------------------------------------------------------------------------------
PAPERS = {
    "AFIND+": {"figure": 8, "table": 4},
    "PANM": {"figure": 8, "table": 6},
    "FL-FDMS": {"figure": 9, "table": 0},
    "DPFL": {"figure": 15, "table": 6},
}
SECTIONS = dict(re.findall(r"^### ([\w+-]+) \(.*?\)\n(.*?)(?=^##)", PAGE, re.MULTILINE | re.DOTALL))


def numbers_of(cell):
    """Expand `figures 8 to 11` to ("figure", [8, 9, 10, 11]); of the parts of a figure, (a) stands for it."""
    kind, first, last, part = re.fullmatch(
        r"(figure|table)s? (\d+)(?: (?:to|and) (\d+))?(?: \(([a-z])\))?", cell
    ).groups()
    return kind, range(int(first), int(last or first) + 1) if part in (None, "a") else []


@pytest.mark.parametrize("paper", PAPERS)
def test_every_table_and_figure_of_a_paper_has_a_row(paper):
    [(head, lines)] = tables(SECTIONS[paper])
    assert head == ["in the paper", "what it shows", "here"]
    found = {"figure": [], "table": []}
    for where, _, _ in lines:
        kind, numbers = numbers_of(where)
        found[kind] += numbers
    assert found == {kind: list(range(1, most + 1)) for kind, most in PAPERS[paper].items()}


@pytest.mark.parametrize("paper", PAPERS)
def test_commands_of_the_map_exist(paper):
    [(_, lines)] = tables(SECTIONS[paper])
    for where, _, here in lines:
        if here != "illustration only":
            name, *words = shlex.split(here.strip("`"))
            assert name == "dfl-study", where
            assert make_parser().parse_args(words).file in shipped(KIND), where
