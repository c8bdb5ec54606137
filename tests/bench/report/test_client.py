"""One client on the page: its curve, its samples, whom it chose, its rank in each method; against the runs' files."""

import base64
import csv
import io
import json
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from PIL import Image

from dfl_lightning import read_run
from dfl_lightning.bench.report.look.theme import DARK, LIGHT
from dfl_lightning.bench.report.network import nodes
from dfl_lightning.bench.report.writing import write_report

ROUNDS, CLIENTS = 6, 8
CLUSTERS = np.array([0, 0, 0, 1, 1, 1, 2, 2])
COUNTS = np.random.default_rng(7).integers(0, 9, (2, CLIENTS, 5))
EDGES = np.linspace(-10.0, 40.0, 6)
RMSE = {"name": "Regression", "score": "rmse", "higher_is_better": False, "percent": False}


of_both = pytest.mark.parametrize("made", [pytest.param("accuracy", marks=pytest.mark.slow), "rmse"], indirect=True)
of_shares = pytest.mark.parametrize("made", ["accuracy"], indirect=True)


@pytest.fixture(scope="module")
def made(request, tmp_path_factory, make_run, make_links):
    """Write the page of two methods with two seeds each and training alone: with accuracies, or with errors."""
    folder, rng, values = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), {}
    for seed in (0, 1):
        images = np.random.default_rng(seed).permutation(10 * CLIENTS)
        for name, level in (("Ours", 0.9), ("Theirs", 0.8), ("Local", 0.6)):
            scores = level - 0.3 / (1 + np.arange(ROUNDS))[:, None] + rng.uniform(-0.1, 0.09, (ROUNDS, CLIENTS))
            links = make_links(rng, ROUNDS, CLIENTS, 2, probes=1) if name != "Local" else []
            about = {"selection": {"class_path": name, "init_args": {"k": 0} if name == "Local" else {}}}
            values[name, seed] = (1 - scores) * 70 if request.param == "rmse" else scores
            run = make_run(
                folder / f"{name}-{seed}",
                values[name, seed],
                links or [(r, i, i, 1.0, False, False) for r in range(ROUNDS) for i in range(CLIENTS)],
                seed=seed,
                clusters=CLUSTERS,
                received=0.0 if name == "Local" else 1e6,
                test_images=images,
                config=about,
            )
            if request.param == "rmse":
                (run / "metrics.csv").write_text((run / "metrics.csv").read_text().replace("test_acc", "test_rmse"))
                np.savez(run / "clients.npz", rounds=np.arange(ROUNDS), test_rmse=values[name, seed])
                (run / "summary.json").write_text(
                    json.dumps({**json.loads((run / "summary.json").read_text()), "task": RMSE})
                )
            split = dict(np.load(run / "split.npz"))
            split |= {"rotation": 90.0 * CLUSTERS, "train_offsets": np.cumsum([0, *range(1, CLIENTS + 1)])}
            split["train_counts"] = COUNTS[seed]
            if request.param == "rmse":
                split["target_edges"] = EDGES
            np.savez(run / "split.npz", **split)
    page = write_report(sorted(folder.iterdir()), folder / "page.html")
    return page, folder, values, request.param == "accuracy"


def text_of(value, percent):
    return f"{100 * value:.1f}" if percent else f"{value:.3g}"


def rows(seen, number):
    table = seen.page.locator("#one table.one").nth(number).locator("tbody tr")
    return [row.locator("th, td").all_inner_texts() for row in table.all()]


def opened(seen, hash, until):
    seen.page.evaluate("(hash) => { location.hash = hash; }", hash)
    until(seen, "Boolean(document.querySelector('#chart-one-client svg'))")


@of_both
def test_address_opens_a_client_with_the_runs_numbers(made, open_page, until):
    page, folder, values, percent = made
    seen = open_page(page)
    assert seen.page.locator("#one").is_hidden()
    opened(seen, "#who?run=Ours&seed=1&round=3&client=4", until)
    last = {name: values[name, 1][-1] for name in ("Ours", "Theirs", "Local")}
    sign = 1 if percent else -1
    places = {name: 1 + int((sign * v > sign * v[4]).sum()) for name, v in last.items()}
    assert seen.page.locator("#one-name").inner_text() == "Client 4"
    words = seen.page.locator("#one-words").inner_text()
    mean = last["Ours"][CLUSTERS == 1].mean()
    expected = f"{text_of(last['Ours'][4], percent)}{' %' if percent else ''}, rank {places['Ours']} of 8"
    assert words.startswith(f"Ours, seed 1, cluster 1: test {'accuracy' if percent else 'RMSE'} {expected}")
    found = [float(n) for n in re.findall(r"([\d.]+) (?:points )?(?:above|below)", words)]
    gaps = [abs(last["Ours"][4] - last["Local"][4]), abs(last["Ours"][4] - mean)]
    assert found == pytest.approx([gap * (100 if percent else 1) for gap in gaps], abs=0.06)
    table = rows(seen, 1)
    assert [(name, value, rank) for name, value, _, rank in table] == [
        (name, text_of(last[name][4], percent), f"{places[name]} of 8") for name in ("Ours", "Theirs", "Local")
    ]
    assert seen.page.locator("#one tr[aria-current] th").inner_text() == "Ours"
    assert rows(seen, 0)[0] == ["training samples", "5", "4.5"]
    assert "images turned by 90°" in seen.page.locator("#one caption").first.inner_text()
    with np.load(folder / "Ours-1" / "graphs.npz") as graphs:
        here = (graphs["receiver"] == 4) & graphs["selected"]
        counts = np.bincount(graphs["sender"][here], minlength=CLIENTS)
        weights = np.bincount(graphs["sender"][here], graphs["weight"][here], minlength=CLIENTS) / ROUNDS
        by = (graphs["selected"] & (graphs["sender"] == 4)).sum() / ROUNDS
    listed = rows(seen, 2)
    assert [row[0] for row in listed] == [
        f"client {j}" for j in np.lexsort((np.arange(CLIENTS), -counts))[: len(listed)]
    ]
    for name, share, weight, cluster in listed:
        sender = int(name.split()[1])
        assert share == f"{100 * counts[sender] / ROUNDS:.0f} %"
        assert float(weight) == pytest.approx(weights[sender], abs=0.0006)
        assert cluster == ("same" if CLUSTERS[sender] == 1 else "other")
    assert f"chosen by {float(f'{by:.3g}'):g} client" in seen.page.locator("#one .note").last.inner_text()
    until(seen, "Math.abs(document.getElementById('one').getBoundingClientRect().top - 68) < 20")  # it glides
    assert seen.console == []


@of_shares
def test_curves_equal_the_files_and_can_be_saved(made, open_page, until):
    page, _, values, percent = made
    seen = open_page(page)
    opened(seen, "#who?run=Ours&seed=0&client=7", until)
    with seen.page.expect_download() as download:
        seen.page.click("#one [data-as=csv]")
    lines = [line.replace('"', "").split(",") for line in Path(download.value.path()).read_text().splitlines()]
    head, *body = lines
    found = {}
    for line in body:
        row = dict(zip(head, line, strict=True))
        found.setdefault(row["method"], []).append((int(row["round"]), float(row["value"])))
    factor = 100 if percent else 1
    expected = {
        "client 7": values["Ours", 0][:, 7],
        "mean of cluster 2": values["Ours", 0][:, CLUSTERS == 2].mean(1),
        "Local": values["Local", 0][:, 7],
    }
    assert set(found) == set(expected)
    for name, curve in expected.items():
        assert [r for r, _ in found[name]] == list(range(1, ROUNDS + 1))
        assert [value for _, value in found[name]] == pytest.approx(list(factor * curve), abs=0.06)
    assert seen.console == []


@of_both
def test_training_samples_are_counted_by_class_or_interval(made, open_page, until):
    page, *_, percent = made
    seen = open_page(page)
    opened(seen, "#who?run=Theirs&seed=1&client=5", until)
    until(seen, "Boolean(document.querySelector('#chart-one-clients-samples svg'))")
    title = seen.page.locator("figure:has(#chart-one-clients-samples) h3").inner_text()
    assert seen.page.locator("#cost h2").inner_text() == ("Accuracy and cost" if percent else "RMSE and cost")
    assert title == f"Client 5: training samples by {'class' if percent else 'target'}"
    with seen.page.expect_download() as download:
        seen.page.click("[data-of=one-clients-samples] [data-as=csv]")
    data = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert [int(row["samples"]) for row in data] == COUNTS[1][5].tolist()
    means = COUNTS[1].mean(0)
    assert [float(row["mean"]) for row in data] == pytest.approx(means.tolist(), rel=0.006)
    places = [(float(row["from"]), float(row["below"])) for row in data] if not percent else None
    assert places in (None, list(pairwise(EDGES)))
    bars = seen.page.locator("#chart-one-clients-samples .mark-rect path")
    heights = np.array([bars.nth(at).bounding_box()["height"] for at in range(5)])
    assert heights / heights.sum() == pytest.approx(COUNTS[1][5] / COUNTS[1][5].sum(), abs=0.02)
    label = seen.page.locator("#chart-one-clients-samples").get_attribute("aria-label")
    assert f"{COUNTS[1][5].max()}" in label
    assert seen.console == []


@of_shares
def test_keys_alone_open_follow_and_close_a_client(made, open_page):
    seen = open_page(made[0])
    seen.page.focus("#client")
    seen.page.select_option("#client", "2")
    assert seen.page.locator("#one-words").get_attribute("aria-live") == "polite"
    assert seen.page.locator("#one").get_attribute("aria-labelledby") == "one-name"
    for _ in range(200):  # its chart is a picture with words
        label = seen.page.locator("#chart-one-client").get_attribute("aria-label")
        if seen.page.locator("#chart-one-client").get_attribute("role") == "img":
            break
        seen.page.wait_for_timeout(20)
    assert re.match(r"Client 2: test \w+ over rounds. At the end: client 2  [\d.]+, .*mean of cluster 0", label)
    first = seen.page.locator("#one .senders button").first
    other = first.inner_text()
    first.focus()
    seen.page.keyboard.press("Enter")
    assert seen.page.locator("#one-name").inner_text().lower() == other
    assert seen.page.input_value("#client") == other.removeprefix("client ")
    seen.page.locator("#one-close").focus()
    seen.page.keyboard.press("Escape")
    assert seen.page.locator("#one").is_hidden()
    assert seen.page.evaluate("document.activeElement.id") == "client"
    assert seen.console == []


@pytest.mark.slow
@of_shares
def test_dots_open_their_clients_and_back_returns(made, open_page, until):
    seen = open_page(made[0])
    seen.page.select_option("#client", "1")
    until(seen, "location.hash.includes('client=1')")
    chart = seen.page.locator("#chart-gain-over-local")
    chart.scroll_into_view_if_needed()
    dots = chart.locator("path[aria-roledescription=point]")
    with seen.page.expect_download() as download:
        seen.page.click("[data-of=gain-over-local] [data-as=csv]")
    data = list(csv.DictReader(Path(download.value.path()).read_text().splitlines()))
    assert len(data) == 2 * 2 * CLIENTS
    piles = Counter((row["method"], round(float(row["gain"]))) for row in data)
    assert sorted(piles.values()) == sorted(dots.evaluate_all("dots => dots.map((dot) => dot.__data__.datum.number)"))
    most = max(range(dots.count()), key=lambda at: dots.nth(at).bounding_box()["width"])
    top = seen.page.evaluate("scrollY")
    dots.nth(most).click(force=True)
    seen.page.locator("#one").wait_for()
    now = seen.page.evaluate("window.report.now()")
    place = seen.page.locator("#run option").nth(now["run"]).inner_text()
    method, seed = re.match(r"(\w+), seed (\d)", place).groups()
    (row,) = [row for row in data if (row["method"], row["seed"], int(row["client"])) == (method, seed, now["picked"])]
    number = piles[method, round(float(row["gain"]))]
    assert number == max(piles.values())
    assert seen.page.evaluate("document.activeElement.id") == "one"
    buttons = seen.page.locator("#one p.wide button")
    assert buttons.count() == number - 1
    name = buttons.first.inner_text()
    buttons.first.click()
    assert seen.page.locator("#one-name").inner_text().lower() == name.partition(",")[0]
    assert seen.page.locator("#one p.wide button").count() == number - 1
    seen.page.go_back()
    seen.page.wait_for_timeout(200)
    assert seen.page.evaluate("window.report.now().picked") == now["picked"]
    seen.page.go_back()
    until(seen, "window.report.now().picked === 1")
    seen.page.wait_for_timeout(100)
    assert seen.page.evaluate("scrollY") == pytest.approx(top, abs=3)
    assert seen.console == []


def on(stops, share):
    """Compute the colour of a share from 0 to 1 between stops, "#rrggbb" each: float [3]."""
    parts = np.array([[int(colour[at : at + 2], 16) for at in (1, 3, 5)] for colour in stops], dtype=float)
    places = np.linspace(0, 1, len(stops))
    return [np.interp(np.clip(share, 0, 1), places, parts[:, channel]) for channel in range(3)]


def below(seen, node):
    """Return the colour of the graph's canvas 8 pixels below the middle of a node: float [3]."""
    address = seen.page.evaluate("window.report.views.graph.canvas.toDataURL('image/png')")
    image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2]))).convert("RGB")
    unit = (image.width - 10) / 2.28
    return image.getpixel((round(5 + (1.14 + node["x"]) * unit), round(5 + (1.14 - node["y"]) * unit + 8)))


@pytest.mark.parametrize(
    ("made", "scheme", "kind"),
    [
        *(("accuracy", "light", "score"), ("rmse", "light", "gain")),
        pytest.param("accuracy", "dark", "gain", marks=pytest.mark.slow),
        pytest.param("rmse", "dark", "score", marks=pytest.mark.slow),
    ],
    indirect=["made"],
)
def test_nodes_are_coloured_by_number_and_legend_names_the_scale(made, open_page, scheme, kind, until):
    page, folder, values, percent = made
    theme = LIGHT if scheme == "light" else DARK
    seen = open_page(page, scheme=scheme)
    opened(seen, f"#who?run=Ours&seed=0&round=4&client=1&colour={kind}", until)
    assert seen.page.input_value("#shade") == kind
    seen.page.select_option("#client", "")
    seen.page.evaluate("new Promise(requestAnimationFrame)")
    factor, sign = (100, 1) if percent else (1, -1)
    own = factor * values["Ours", 0]
    numbers = sign * (own - factor * values["Local", 0]) if kind == "gain" else own
    order = np.sort(numbers.ravel())
    few = int(0.04 * order.size)
    if kind == "gain":
        sizes = np.sort(np.abs(order))
        high = sizes[int(0.96 * (sizes.size - 1))]
        low, stops = -high, theme["gain"]
    elif percent:
        low, high, stops = order[few], order[-1], theme["ramp"]
    else:
        low, high, stops = order[0], order[order.size - 1 - few], theme["ramp"][::-1]
    places = {node["id"]: node for node in nodes(read_run(folder / "Ours-0"))}
    found = np.array([below(seen, places[i]) for i in range(CLIENTS)])
    expected = np.array([on(stops, (numbers[3, i] - low) / (high - low)) for i in range(CLIENTS)])
    assert np.abs(found - expected).max() < 9  # numbers on the page are rounded
    ends = seen.page.locator("#scale small").all_inner_texts()
    ends = [float(end.translate(str.maketrans("−", "-", "≤≥+ "))) for end in ends]
    assert [ends[0], ends[-1]] == pytest.approx([low, high], rel=0.02)
    head = seen.page.locator("#scale span").inner_text()
    assert head.startswith("gain over training alone" if kind == "gain" else "test ")
    seen.page.select_option("#shade", "cluster")
    assert seen.page.locator("#scale").is_hidden()
    assert seen.console == []


def test_clients_without_a_score_are_explained_and_neighbours_complete(tmp_path, make_run, open_page):
    """Client 1 has test data and a loss that is not finite, client 2 has no test data; all choose all in each round."""
    scores = np.full((3, 16), 0.5)
    scores[-1, 1], scores[:, 2] = np.nan, np.nan
    links = [(r, i, j, 1 / 16, i != j, False) for r in range(3) for i in range(16) for j in range(16)]
    run = make_run(tmp_path / "run", scores, links)
    with np.load(run / "split.npz") as file:
        split = dict(file)
    sizes = np.where(np.arange(16) == 2, 0, 10)
    np.savez(run / "split.npz", **split | {"test_offsets": np.cumsum([0, *sizes]), "test_indices": np.arange(150)})
    seen = open_page(write_report([run]))
    for client, said in (
        (1, "Client 1 has no test accuracy: it is undefined on its data, or its loss or score is not finite."),
        (2, "Client 2 has no test data."),
    ):
        seen.page.select_option("#client", str(client))
        assert seen.page.locator("#one-words").inner_text() == said
    assert seen.page.locator("#one .senders tbody tr").count() == 12
    note = seen.page.locator("#one .note").last.inner_text()
    assert note == "It chose 3 others no more often. It was chosen by 15 clients a round; the mean of all is 15."
    assert seen.console == []


@pytest.mark.slow
def test_under_a_server_shares_replace_the_neighbours(tmp_path, make_run, open_page):
    links = [(r, 4, j, 0.5 if j != r % 4 else 0.0, True, False) for r in range(4) for j in range(4)]
    run = make_run(tmp_path / "run", np.linspace(0.5, 0.9, 16).reshape(4, 4), links)
    seen = open_page(write_report([run]))
    seen.page.select_option("#client", "1")
    assert "The server mixed its model in 75 % of 4 rounds." in seen.page.locator("#one .note").last.inner_text()
    assert seen.page.locator("#one .senders").count() == 0
    assert "below the mean of all clients" in seen.page.locator("#one-words").inner_text()


@pytest.mark.slow
def test_runs_without_a_graph_show_clients_too(tmp_path, make_run, make_links, open_page, monkeypatch):
    monkeypatch.setattr("dfl_lightning.bench.report.page.rounds.MOST_LINKS", 10)
    rng = np.random.default_rng(2)
    run = make_run(tmp_path / "run", rng.uniform(0.5, 1, (3, 6)), make_links(rng, 3, 6, 3), clusters=[0, 0, 1, 1, 2, 2])
    seen = open_page(write_report([run]))
    seen.page.select_option("#client", "5")
    assert seen.page.locator("#one-name").inner_text() == "Client 5"
    assert seen.page.locator("#one .senders tbody tr").count() >= 3
    assert seen.console == []
