"""Each losing client of each seed can be opened, and whom it chose round by round, against the files of the runs."""

import csv
import io

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.contents import losers
from dfl_lightning.bench.report.page.contents.choices import choices
from dfl_lightning.bench.report.page.contents.losers import losers_table
from dfl_lightning.bench.report.page.pictures import as_csv, rows_of
from dfl_lightning.bench.report.page.sentences import limits
from dfl_lightning.bench.report.writing import write_report

ROUNDS, CLIENTS = 5, 6
CLUSTERS = [0, 0, 0, 1, 1, 1]


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run, make_links):
    """Write two seeds of a method and of training alone; client 2 loses with seed 1."""
    folder, rng, found = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), {}
    for seed in (0, 1):
        images = np.random.default_rng(seed).permutation(10 * CLIENTS)
        level = rng.uniform(0.6, 0.7, (ROUNDS, CLIENTS))
        for name in ("Ours", "Local"):
            accuracy = level + (0.2 if name == "Ours" else 0.0)
            if (name, seed) == ("Ours", 1):
                accuracy[:, 2] -= 0.45
            found[name, seed] = make_run(
                folder / f"{name} {seed}",
                accuracy,
                make_links(rng, ROUNDS, CLIENTS, 2, probes=1) if name == "Ours" else [],
                seed=seed,
                clusters=CLUSTERS,
                test_images=images,
                received=0.0 if name == "Local" else 1e6,
                config={"selection": {"class_path": name, "init_args": {"k": 0} if name == "Local" else {}}},
                dropouts=[(1, 4), (3, 4)] if name == "Ours" else [],
            )
    return found


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    """Write a page of the four runs that has the graphs of one of them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "MOST_RUNS", 1)
        return write_report(list(runs.values()), tmp_path_factory.mktemp("page") / "page.html")


def expected_choices(folder, client):
    """Count from graphs.npz alone, with sets: senders of the own cluster, of others, and no longer chosen."""
    with np.load(folder / "graphs.npz") as graphs:
        rows = list(zip(*(graphs[name].tolist() for name in ("round", "receiver", "sender", "selected")), strict=True))
    found, before = [], set()
    for r in range(ROUNDS):
        now = {j for at, i, j, selected in rows if at == r and i == client and selected}
        same = {j for j in now if CLUSTERS[j] == CLUSTERS[client]}
        found.append((len(same), len(now - same), len(before - now)))
        before = now
    return found


def test_choices_are_those_of_the_file(runs):
    for seed in (0, 1):
        found = choices(read_run(runs["Ours", seed]))
        assert found["rounds"] == [1, 2, 3, 4, 5]
        for client in range(CLIENTS):
            counts = [found[name][client] for name in ("same", "other", "gone")]
            assert list(zip(*counts, strict=True)) == expected_choices(runs["Ours", seed], client)
        assert found["absent"][4] == [0, 1, 0, 1, 0]
        assert sum(map(sum, found["absent"])) == 2
    assert choices(read_run(runs["Local", 0])) is None


def test_csv_of_gains_names_clients_and_their_test_samples(runs):
    found = [read_run(run) for run in runs.values()]
    rows = list(csv.DictReader(io.StringIO(as_csv(rows_of(report.gain_over_local(found).to_dict())))))
    assert len(rows) == 2 * CLIENTS
    last = {key: np.load(run / "clients.npz")["test_acc"][-1] for key, run in runs.items()}
    for row in rows:
        seed, client = int(row["seed"]), int(row["client"])
        gain = 100 * (last["Ours", seed][client] - last["Local", seed][client])
        assert float(row["gain"]) == pytest.approx(gain, abs=1e-3)
        assert row["test samples"] == "10"
    ranks = rows_of(report.sorted_clients(found).to_dict())
    best = next(row for row in ranks if row["method"] == "Ours" and row["rank"] == 1)
    assert [best[f"client of seed {seed}"] for seed in (0, 1)] == [last["Ours", s].argmax() for s in (0, 1)]


MOVE = """(mark, [x, y]) => {
  const { left, top, width, height } = mark.getBoundingClientRect();
  mark.style.translate = `${x - left - width / 2}px ${y - top - height / 2}px`;
}"""
"""Put a mark of a chart elsewhere."""


CHOOSE = """(name) => {
  const field = document.getElementById("one-run"), top = () => field.getBoundingClientRect().top, before = top();
  field.value = [...field.options].find((option) => option.text === name).value;
  field.dispatchEvent(new Event("change"));
  return top() - before;
}"""
"""Choose a run in the panel of a client, and return by how much the panel has moved."""


def shown_client(seen):
    """Return what the panel says: its client, the run in its own picker, and the beginning of its sentence."""
    chosen = seen.page.locator("#one-run").evaluate("(field) => field.selectedOptions[0].text")
    words = seen.page.locator("#one-words").inner_text()
    return seen.page.locator("#one-name").inner_text(), chosen, words.split(":")[0]


def test_a_client_stays_open_in_another_run(runs, page, open_page, until):
    seen = open_page(page, everything=False)
    seen.page.locator("#open-id").fill("2")
    seen.page.locator("#open-id").press("Enter")
    until(seen, "!document.getElementById('one').hidden")
    assert shown_client(seen) == ("Client 2", "Ours, seed 0", "Ours, seed 0, cluster 0")
    assert "The slider starts" in seen.page.locator("#choosing").inner_text()
    until(seen, "document.getElementById('one').getBoundingClientRect().top < 200")  # it has come there
    assert seen.page.evaluate(CHOOSE, "Ours, seed 1") == pytest.approx(0, abs=2)  # which has no graph on the page
    assert shown_client(seen) == ("Client 2", "Ours, seed 1", "Ours, seed 1, cluster 0")
    score = 100 * np.load(runs["Ours", 1] / "clients.npz")["test_acc"][-1, 2]
    assert f"accuracy {score:.1f} %" in seen.page.locator("#one-words").inner_text()
    assert "slider" not in seen.page.locator("#choosing").inner_text()
    assert "no slider" in seen.page.locator("#state").inner_text()
    seen.page.select_option("#run", label="Local, seed 1")
    assert shown_client(seen) == ("Client 2", "Local, seed 1", "Local, seed 1, cluster 0")
    seen.page.locator("#open-id").fill("4")
    seen.page.locator("#open-id").press("Enter")
    until(seen, "document.getElementById('one-name').textContent === 'Client 4'")
    assert shown_client(seen) == ("Client 4", "Local, seed 1", "Local, seed 1, cluster 1")
    assert seen.console == []


def test_the_table_of_losing_clients_has_those_of_the_files(runs, monkeypatch):
    found = losers_table(find_methods([read_run(run) for run in runs.values()]))
    assert found["seeds"] == ["seed 0", "seed 1"]
    (row,) = found["rows"]
    last = {key: np.load(run / "clients.npz")["test_acc"][-1] for key, run in runs.items()}
    losing = [np.flatnonzero(last["Ours", seed] < last["Local", seed]).tolist() for seed in (0, 1)]
    assert [[client["id"] for client in cell["clients"]] for cell in row["cells"]] == losing == [[], [2]]
    assert [cell["words"] for cell in row["cells"]] == ["0 of 6", "1 of 6"]
    assert row["all"] == "1 of 12"
    assert not row["cells"][1]["folded"]
    monkeypatch.setattr(losers, "MOST_NAMED", 0)
    assert losers_table(find_methods([read_run(run) for run in runs.values()]))["rows"][0]["cells"][1]["folded"]


def test_losing_clients_open_from_table_and_dot(page, open_page, until):
    seen = open_page(page)
    seen.page.locator("table.losers a", has_text="2").click()
    until(seen, "!document.getElementById('one').hidden")
    assert shown_client(seen) == ("Client 2", "Ours, seed 1", "Ours, seed 1, cluster 0")
    seen.page.locator("#one-close").click()
    mean = seen.page.locator("#chart-gain-over-local [aria-roledescription=tick]").last  # the mean of a seed, on a dot
    mean.scroll_into_view_if_needed()
    box = seen.page.locator("#chart-gain-over-local .mark-symbol path").first.bounding_box()
    middle = [box["x"] + box["width"] / 2, box["y"] + box["height"] / 2]
    mean.evaluate(MOVE, middle)
    seen.page.mouse.click(*middle)
    until(seen, "!document.getElementById('one').hidden")
    assert seen.console == []


@pytest.mark.slow
def test_losing_client_of_a_seed_without_graphs_opens(runs, page, open_page, until):
    seen = open_page(page)
    assert seen.page.locator("#run optgroup option").all_inner_texts() == [
        "Ours, seed 1",
        "Local, seed 0",
        "Local, seed 1",
    ]
    dots = seen.page.locator("#chart-gain-over-local .mark-symbol path")
    loser = dots.evaluate_all("dots => dots.findIndex((dot) => dot.__data__.datum.gain < 0)")
    seen.page.locator("#chart-gain-over-local").scroll_into_view_if_needed()
    dots.nth(loser).hover()
    until(seen, "Boolean(document.querySelector('#vg-tooltip-element.visible'))")
    assert "client 2, seed 1 (10 test samples)" in seen.page.locator("#vg-tooltip-element").inner_text()
    dots.nth(loser).click()
    until(seen, "Boolean(document.querySelector('#chart-one-clients-choices svg'))")
    assert seen.page.locator("#one-name").inner_text() == "Client 2"
    assert seen.page.locator("#one-words").inner_text().startswith("Ours, seed 1, cluster 0")
    seen.page.locator("details[data-of=one-clients-choices]").evaluate("(part) => { part.open = true; }")
    table = seen.page.locator("details[data-of=one-clients-choices] tbody tr")
    table.first.wait_for()
    cells = table.evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert [tuple(map(int, row[2:5])) for row in cells] == expected_choices(runs["Ours", 1], 2)
    counts = np.array(expected_choices(runs["Ours", 1], 2))
    share = f"{100 * counts[:, 0].sum() / counts[:, :2].sum():.0f} % of its choices were of its own cluster"
    assert share in seen.page.locator("#one").inner_text()
    assert seen.page.locator(".pair").is_hidden()
    seen.page.select_option("#run", label="Ours, seed 0")
    assert seen.page.locator(".pair").is_visible()
    assert seen.console == []
