"""Any column of metrics.csv and any array of clients.npz on the page, in a browser, against the files."""

import csv
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.contents import columns
from dfl_lightning.bench.report.page.contents.columns import columns_of_page
from dfl_lightning.bench.report.writing import write_report

ROUNDS, CLIENTS = 6, 5


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run, make_links):
    """Write two seeds of a method with a column and an array of its own, and another method."""
    folder, rng, found = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), {}
    for name, seed in (("ours", 0), ("ours", 1), ("other", 0)):
        run = make_run(
            folder / f"{name} {seed}",
            rng.uniform(0.4, 0.9, (ROUNDS, CLIENTS)),
            make_links(rng, ROUNDS, CLIENTS, 2),
            seed=seed,
            received=2e6 * (1 + seed),
            config={"selection": {"class_path": name}},
        )
        head, *lines = (run / "metrics.csv").read_text().splitlines()
        rows = [f"{line},{10.0 ** (seed - r)}" if r % 2 else f"{line}," for r, line in enumerate(lines)]
        (run / "metrics.csv").write_text("\n".join([f"{head},</script><i>", *rows]) + "\n")
        with np.load(run / "clients.npz") as held:
            arrays = dict(held)
        np.savez(run / "clients.npz", **arrays, alpha=rng.uniform(0, 3, (ROUNDS, CLIENTS)))
        found[f"{name} {seed}"] = run
    return found


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    named = [f"{name.split()[0]}={run}" for name, run in runs.items()]
    return write_report(named, tmp_path_factory.mktemp("page") / "page.html")


def numbers(seen):
    """Return the rows of the table below the chart."""
    seen.page.locator("details[data-of=columns]").evaluate("(part) => { part.open = true; }")
    rows = seen.page.locator("details[data-of=columns] tr")
    rows.nth(1).wait_for()
    cells = rows.evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))")
    return [dict(zip(cells[0], row, strict=True)) for row in cells[1:]]


def column(run, name):
    with (run / "metrics.csv").open() as file:
        return [float(row[name] or "nan") for row in csv.DictReader(file)]


def pick(seen, until, **choices):
    """Choose in the menus, and wait until the chart is drawn again."""
    for menu, value in choices.items():
        part = seen.page.locator(f"#pick-{menu}")
        seen.page.evaluate("window.before = window.report.views['chart-columns']; null")
        if isinstance(value, bool):
            part.set_checked(value)
        elif menu == "smooth":
            part.evaluate("(part, v) => { part.value = v; part.dispatchEvent(new Event('input')); }", value)
        else:
            part.select_option(value)
        until(seen, "window.before !== window.report.views['chart-columns']")


@pytest.fixture(scope="module")
def shared(page, chromium):
    """Open the page once for the tests that only pick; each picks everything that it needs."""
    seen = SimpleNamespace(page=chromium.new_context().new_page(), console=[])
    seen.page.on("console", lambda message: seen.console.append(message.text))
    seen.page.on("pageerror", lambda error: seen.console.append(str(error)))
    seen.page.goto(page.resolve().as_uri())
    seen.page.evaluate("document.getElementById('columns').scrollIntoView()")
    seen.page.locator("#chart-columns svg").wait_for()
    yield seen
    assert seen.console == []
    seen.page.context.close()


def test_every_column_of_the_files_can_be_picked(shared, runs):
    seen = shared
    options = seen.page.locator("#pick-column option").all_inner_texts()
    wanted = (runs["ours 0"] / "metrics.csv").read_text().splitlines()[0].split(",")[1:]
    assert options == [*wanted, "test_acc", "alpha"]
    assert seen.page.locator("#pick-column").input_value() == "train_loss"


def test_lines_are_means_and_each_seed_has_a_thin_one(shared, runs, until):
    seen = shared
    pick(seen, until, column="test_acc", across="mb")
    means = [np.load(runs[f"ours {seed}"] / "clients.npz")["test_acc"].mean(1) * 100 for seed in (0, 1)]
    rows = [row for row in numbers(seen) if row["method"] == "ours"]
    assert [int(row["round"]) for row in rows] == list(range(1, ROUNDS + 1))
    for r, row in enumerate(rows):
        seeds = [mean[r] for mean in means]
        assert float(row["mean"]) == pytest.approx(np.mean(seeds), rel=1e-3)
        assert float(row["sd"]) == pytest.approx(np.std(seeds, ddof=1), rel=1e-2)
        assert [float(row[f"seed {seed}"]) for seed in (0, 1)] == pytest.approx(seeds, rel=1e-4)
        assert float(row["cost"]) == pytest.approx(3 * (r + 1))  # 2 and 4 MB a round
        assert [float(row[f"across, seed {seed}"]) for seed in (0, 1)] == pytest.approx([2 * (r + 1), 4 * (r + 1)])
    thin = "document.querySelectorAll('#chart-columns .mark-line path[stroke-width=\"0.9\"]').length"
    assert seen.page.evaluate(thin) == 3
    pick(seen, until, seeds=False)
    assert seen.page.evaluate(thin) == 0
    pick(seen, until, seeds=True, across="round")


def test_smoothing_is_off_and_then_an_exponential_mean(shared, runs, until):
    seen = shared
    pick(seen, until, column="train_loss", across="round")
    values = column(runs["other 0"], "train_loss")
    assert seen.page.locator("#pick-smoothed").inner_text() == "off"
    of_other = [row for row in numbers(seen) if row["method"] == "other"]
    assert [float(row["mean"]) for row in of_other] == pytest.approx(values, rel=1e-4)
    pick(seen, until, smooth="0.6")
    weights = [[0.6 ** (r - s) for s in range(r + 1)] for r in range(ROUNDS)]  # by the definition, not step by step
    expected = [np.average(values[: r + 1], weights=weights[r]) for r in range(ROUNDS)]
    rows = [row for row in numbers(seen) if row["method"] == "other"]
    assert [float(row["mean"]) for row in rows] == pytest.approx(expected, rel=1e-4)
    assert [float(row["unsmoothed"]) for row in rows] == pytest.approx(values, rel=1e-4)
    pick(seen, until, smooth="0")


def test_columns_of_hostile_names_are_inert_and_may_be_logarithmic(shared, until):
    seen = shared
    pick(seen, until, column="</script><i>", logy=True)
    rows = [row for row in numbers(seen) if row["method"] == "ours"]
    assert [int(row["round"]) for row in rows] == [2, 4, 6]  # those that have a value
    assert [float(row["seed 0"]) for row in rows] == pytest.approx([0.1, 0.001, 0.00001])
    assert seen.page.evaluate("window.report.views['chart-columns'].scale('y').type") == "log"
    assert seen.page.locator("#columns h3 i, #columns p i").count() == 0
    pick(seen, until, logy=False)


def test_each_client_of_a_run_has_a_line(shared, runs, until):
    seen = shared
    pick(seen, until, column="clients: alpha")
    alpha = np.load(runs["ours 1"] / "clients.npz")["alpha"]
    rows = [row for row in numbers(seen) if row["method"] == "ours"]
    assert [float(row["seed 1"]) for row in rows] == pytest.approx(np.median(alpha, axis=1).tolist(), rel=1e-4)
    pick(seen, until, lines="ours|1")
    rows = numbers(seen)
    for client in range(CLIENTS):
        values = [float(row["mean"]) for row in rows if row["client"] == f"client {client}"]
        assert values == pytest.approx(alpha[:, client].tolist(), rel=1e-4)


@pytest.mark.slow
def test_the_address_keeps_what_was_picked(shared, until):
    seen = shared
    pick(seen, until, column="neighbours", logx=True)
    until(seen, "location.hash.includes('chart.column=neighbours') && location.hash.includes('chart.logx=true')")
    seen.page.reload()
    until(seen, "document.getElementById('pick-title')?.textContent === 'neighbours over rounds'")
    assert seen.page.locator("#pick-logx").is_checked()


def test_numbers_over_many_powers_of_ten_have_a_logarithmic_axis(tmp_path, make_run, open_page, until):
    named = []
    for name, most in (("calm", 1.0), ("wild", 4e15)):
        run = make_run(tmp_path / name, np.full((ROUNDS, CLIENTS), 0.5), config={"selection": {"class_path": name}})
        head, *lines = (run / "metrics.csv").read_text().splitlines()
        rows = [line.replace(f",{1 / (r + 1)!r},", f",{most / (r + 1)!r},", 1) for r, line in enumerate(lines)]
        (run / "metrics.csv").write_text("\n".join([head, *rows]) + "\n")
        named.append(f"{name}={run}")
    seen = open_page(write_report(named, tmp_path / "page.html"))
    kind = "window.report.views['chart-columns'].scale('y').type"
    assert seen.page.locator("#pick-title").inner_text() == "train_loss over rounds"
    assert seen.page.evaluate(kind) == "log"
    assert seen.page.locator("#pick-logy").is_checked()
    said = seen.page.locator("#pick-words")
    assert "The axis is logarithmic, since the numbers span 16 powers of ten." in said.inner_text()
    drawn = seen.page.locator("#chart-columns").inner_text()
    assert "1e+12" in drawn
    assert "wild 6.67e+14" in drawn
    pick(seen, until, logy=False)
    assert seen.page.evaluate(kind) == "linear"
    assert "logarithmic" not in said.inner_text()
    until(seen, "location.hash.includes('chart.logy=false')")
    seen.page.reload()
    until(seen, f"window.report?.views?.['chart-columns'] && {kind} === 'linear'")
    seen.page.evaluate("location.hash = '#columns?chart.column=bytes_received'")
    until(seen, "document.getElementById('pick-title').textContent === 'bytes_received over rounds'")
    assert seen.page.evaluate(kind) == "linear"
    assert seen.console == []


def test_curves_are_thinned_so_that_all_columns_stay_small(tmp_path, make_run, monkeypatch):
    run = make_run(tmp_path / "run", np.full((300, 3), 0.5))
    methods = find_methods([read_run(run)])
    assert {len(rounds) for rounds in columns_of_page(methods)["rounds"]} == {200, 50}  # of clients there are fewer
    monkeypatch.setattr(columns, "_NUMBERS", 600)
    (entry,) = columns_of_page(methods)["methods"]
    assert max(len(values) for column in entry["columns"].values() for values in column["runs"]) == 60
