"""docs/claims.md: its verdicts follow from the CSV files of the studies, by tests that scipy computes here."""

import csv
import itertools
import re
import statistics
from pathlib import Path

import numpy as np
import pytest
import scipy.stats
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGE = (DOCS / "claims.md").read_text(encoding="utf-8")
CLAIMS = yaml.safe_load((ROOT / "scripts/claims.yaml").read_text(encoding="utf-8"))
PARTS = re.findall(
    r"^\[`(\w+)`\]\(results/\w+\.md\)(.*):\n\n((?:\|.*\n)+)",
    (DOCS / "claims_differences.md").read_text(encoding="utf-8"),
    re.MULTILINE,
)
"""Study, what of it, and table."""


def test_page_of_differences_is_made_from_the_csv_files(load):
    page = load("judge_claims").page()
    assert page == (DOCS / "claims_differences.md").read_text(encoding="utf-8"), "python scripts/judge_claims.py"


SHARES = ("test_acc", "global_test_acc", "test_acc_std", "neighbour_precision")


def scores(study, column, rounds=None):
    """Read the numbers of each row of a column, in the order of the seeds."""
    rows = {}
    if rounds is None:
        with (DOCS / f"results/{study}.csv").open(encoding="utf-8", newline="") as file:
            lines = [line for line in csv.DictReader(file) if line["column"] == column]
        return {line["row"]: [float(part.partition(":")[2]) for part in line["seeds"].split()] for line in lines}
    with (DOCS / f"results/rounds/{study}.csv").open(encoding="utf-8", newline="") as file:
        for line in csv.DictReader(file):
            in_time = rounds.get("after", -1) < int(line["round"]) <= rounds.get("until", 1000)
            if line["column"] == column and in_time and line[rounds["number"]]:
                number = float(line[rounds["number"]]) * (100 if rounds["number"] in SHARES else 1)
                rows.setdefault(line["row"], {}).setdefault(line["seed"], []).append(number)
    reduce = changes if rounds.get("changes") else statistics.fmean
    return {row: [reduce(values) for values in of_seeds.values()] for row, of_seeds in rows.items()}


def changes(values):
    """Return the mean size of the steps between consecutive numbers."""
    return float(np.abs(np.diff(values)).mean())


def columns_of(study):
    """Read the names of a study's columns in their order."""
    with (DOCS / f"results/{study}.csv").open(encoding="utf-8", newline="") as file:
        return list(dict.fromkeys(line["column"] for line in csv.DictReader(file)))


def beyond(rows, study, column):
    """Subtract the numbers of the same rows and seeds in another study."""
    others = scores(study, column)
    return {row: [a - b for a, b in zip(values, others[row], strict=True)] for row, values in rows.items()}


def plain(text):
    """Read a signed number."""
    return float(text.replace("−", "-"))


@pytest.mark.parametrize("at", range(len(CLAIMS)), ids=[f"{at}-{claim['study']}" for at, claim in enumerate(CLAIMS)])
def test_differences_are_those_of_scipy_for_all_pairs(at):
    claim, (study, _, table) = CLAIMS[at], PARTS[at]
    assert study == claim["study"]
    lines = [line.strip("|").split("|") for line in table.splitlines()[2:]]
    names = claim["rows"] if "between" in claim else claim.get("columns", columns_of(study))
    assert [line[0].strip() for line in lines] == [name for name in names for _ in claim["pairs"]]
    for line in lines:
        column, difference, sign, mean, interval, p, seeds, verdict = (cell.strip() for cell in line)
        if "between" in claim:  # the first cell of the line is a row
            rows = {name: scores(study, name)[column] for name in columns_of(study)}
        else:
            rows = scores(study, column, claim.get("rounds"))
        if "beyond" in claim:
            rows = beyond(rows, **claim["beyond"])
        pairs = list(itertools.combinations(rows, 2))
        tests = {pair: scipy.stats.ttest_rel(*(rows[row] for row in pair)) for pair in pairs}
        ps = {pair: 1.0 if rows[pair[0]] == rows[pair[1]] else test.pvalue for pair, test in tests.items()}
        highest, holm = 0.0, {}
        for rank, pair in enumerate(sorted(ps, key=ps.get)):
            highest = holm[pair] = min(1.0, max(highest, ps[pair] * (len(pairs) - rank)))
        first, second = difference.split(" − ")
        pair = (first, second) if (first, second) in tests else (second, first)
        turn = 1 if pair[0] == first else -1
        values = [turn * (a - b) for a, b in zip(rows[pair[0]], rows[pair[1]], strict=True)]
        assert plain(mean) == pytest.approx(sum(values) / len(values), abs=0.0051)
        assert int(seeds) == len(values)
        if any(values):
            at = tests[pair].confidence_interval(1 - 0.05 / len(pairs))
            ends = sorted(turn * end for end in (at.low, at.high))
            assert [plain(end) for end in interval.split(" to ")] == pytest.approx(ends, abs=0.0051)
        assert (p == "< 0.001" and holm[pair] < 0.001) or float(p) == pytest.approx(holm[pair], abs=0.00051)
        claimed = {"> 0": values, "< 0": [-v for v in values], "= 0": None}[sign]
        if holm[pair] >= 0.05:
            assert verdict == ("not told apart" if claimed is not None or any(values) else "confirmed")
        else:
            assert verdict == ("confirmed" if claimed is not None and sum(claimed) > 0 else "contradicted")
    assert lines


def test_every_study_of_a_difference_is_linked_from_the_claims():
    for claim in CLAIMS:
        assert f"(results/{claim['study']}.md)" in PAGE, claim["claim"]


def test_every_claim_has_one_of_the_verdicts():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(("| claim", "|---"))]
    for line in lines:
        verdict = line.strip("|").split("|")[-1].strip()
        words = ("confirmed", "contradicted", "open", "not ", "within ")
        assert verdict.startswith(words), line


def test_numbers_of_claims_are_those_of_the_linked_pages():
    """A number with decimals in the column "here" rounds one of the study's differences, or is on a page of the row."""
    differences = {}
    for study, _, table in PARTS:
        for line in table.splitlines()[2:]:
            mean, interval = (cell.strip() for cell in line.strip("|").split("|")[3:5])
            differences.setdefault(study, []).extend(map(plain, [mean, *filter(None, interval.split(" to "))]))
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
    source, checked = "", 0
    for line in lines:
        *_, study, here, _ = (cell.strip() for cell in line.strip("|").split("|"))
        source = source if study.startswith("the same") else study
        links = re.findall(r"\(([\w/]+\.md)", source + here)
        known = [abs(value) for link in links for value in differences.get(Path(link).stem, [])]
        pages = "".join((DOCS / link).read_text(encoding="utf-8") for link in links)
        for number in re.findall(r"(?<![\w.])\d+\.\d+(?![\w.])", here):
            half = 0.5 * 10.0 ** -len(number.partition(".")[2]) + 0.005  # differences have two decimals
            rounded = any(abs(float(number) - value) <= half for value in known)
            assert rounded or re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", pages), (line, number)
            checked += 1
    assert checked > 100
