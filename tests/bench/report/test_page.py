"""The page of `dfl-report` in a real browser, and what it says against the files of the runs."""

import base64
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from PIL import Image

from dfl_lightning import read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.look.theme import LIGHT
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.network import MOST_ROUNDS, nodes
from dfl_lightning.bench.report.page.tables import commands_table
from dfl_lightning.bench.report.rendering import rendered
from dfl_lightning.bench.report.writing import write_report

CLUSTERS = [0, 0, 0, 1, 1, 1, 2, 2]
ROUNDS, CLIENTS = 7, 8


@pytest.fixture(scope="module")
def runs(tmp_path_factory, make_run, make_links):
    """Write a method with clusters, probes, dropouts and two seeds; training alone; and one run of a server."""
    folder, rng, found = tmp_path_factory.mktemp("runs"), np.random.default_rng(0), {}
    for seed in (0, 1):
        images = np.random.default_rng(seed).permutation(10 * CLIENTS)
        level = rng.uniform(0.7, 0.95, (ROUNDS, CLIENTS))
        found[f"ours {seed}"] = make_run(
            folder / "ours" / str(seed),
            level,
            make_links(rng, ROUNDS, CLIENTS, 2, probes=2),
            seed=seed,
            clusters=CLUSTERS,
            test_images=images,
            config={"selection": {"class_path": "mine.Ours"}},
            dropouts=[(2, 3), (4, 1)],
            adversaries=[0, 0, 0, 1, 0, 0, 0, 0],
            commands=[(0, "dfl-fit --config mine"), (3, "dfl-fit --ckpt_path x")],
        )
        found[f"alone {seed}"] = make_run(
            folder / "alone" / str(seed),
            level - 0.1 - 0.01 * seed,
            [(r, i, i, 1.0, False, False) for r in range(ROUNDS) for i in range(CLIENTS)],
            seed=seed,
            clusters=CLUSTERS,
            test_images=images,
            received=0.0,
            adversaries=[0, 0, 0, 1, 0, 0, 0, 0],
            config={"selection": {"class_path": "Gossip", "init_args": {"k": 0}}},
        )
    served = []
    for r in range(4):  # one client has dropped out, the next one stands in for it
        weights = {r % 4: 0.0, (r + 1) % 4: 0.5}
        served += [(r, 4, j, weights.get(j, 0.25), True, False) for j in range(4)]
    found["served"] = make_run(
        folder / "served",
        rng.uniform(0.5, 0.9, (4, 4)),
        served,
        clusters=[0, 0, 1, 1],
        dropouts=[(r, r % 4) for r in range(4)],
        substitutes=[(r, 4, r % 4, (r + 1) % 4) for r in range(4)],
        config={"substitution": {"class_path": "FDMS"}, "dropout": {"class_path": "Bernoulli"}},
    )
    return found


@pytest.fixture(scope="module")
def page(runs, tmp_path_factory):
    return write_report(list(runs.values()), tmp_path_factory.mktemp("page") / "page.html")


# --- in a browser
@pytest.mark.parametrize(("width", "scheme"), [(1440, "light"), (390, "dark")])
def test_page_makes_no_requests_logs_nothing_and_fits_the_screen(page, open_page, width, scheme):
    seen = open_page(page, width, scheme)
    assert seen.requests == [page.resolve().as_uri()]
    assert seen.console == []
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    ends = "[...document.querySelectorAll('caption span')].map((words) => words.getBoundingClientRect().right)"
    assert all(end <= width - 12 for end in seen.page.evaluate(ends))  # tables may scroll, their captions stay
    figures = seen.page.locator("figure .chart")
    assert figures.count() == seen.page.locator("figure .chart svg").count() > 8
    assert seen.page.locator("#graph canvas").count() == seen.page.locator("#heat canvas").count() == 1


def test_every_figure_stands_in_its_section_under_its_title(page, open_page):
    text = page.read_text(encoding="utf-8")
    ids = re.findall(r"""\bid=['"]([^'"]+)['"]""", text[text.index("<main>") : text.index("<script")])
    assert len(ids) == len(set(ids))  # a chart would be drawn in place of what has its id
    seen = open_page(page)
    assert seen.page.locator("main > section > h2").count() == seen.page.locator("main > section").count()
    assert seen.page.locator("#clients figure figcaption :is(h3, h4)").count() >= 2


DRAWN = """(name) => {
  const { fills, ...drawn } = window.report.views[name].drawn;
  const pairs = (links) => links.map((link) => [link.receiver, link.sender, link.state]);
  return Object.fromEntries(Object.entries(drawn).map(([kind, links]) => [kind, pairs(links)]));
}"""


def pixels(seen, name):
    """Return the pixels of a canvas, float [height, width, 3]."""
    address = seen.page.evaluate("(name) => window.report.views[name].canvas.toDataURL('image/png')", name)
    image = Image.open(io.BytesIO(base64.b64decode(address.partition(",")[2])))
    return np.asarray(image.convert("RGB"), dtype=np.float64)


def rgb(colour):
    return np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)], dtype=np.float64)


def on_ramp(share):
    """Return the colour of a share in the light theme."""
    stops = np.stack([rgb(colour) for colour in LIGHT["ramp"]])
    return np.array([np.interp(share, np.linspace(0, 1, len(stops)), channel) for channel in stops.T])


def slide(seen, step):
    seen.page.locator("#round").evaluate(
        "(slider, step) => { slider.value = step; slider.dispatchEvent(new Event('input')); }", step
    )
    for _ in range(200):
        if seen.page.evaluate("window.report.shown") == step:
            return
        seen.page.wait_for_timeout(10)
    raise AssertionError(f"step {step} is not shown")


def unfold(seen, part):
    """Open a folded table and wait for its rows, which a browser reports a moment after the click."""
    seen.page.click(f"{part} summary")
    seen.page.locator(f"{part} tbody tr").first.wait_for()


def expected_links(folder, at):
    """Read the links of a recorded round by state, from graphs.npz alone."""
    with np.load(folder / "graphs.npz") as graphs:
        rounds = np.unique(graphs["round"])

        def chosen(round):
            here = (graphs["round"] == round) & graphs["selected"]
            return set(zip(graphs["receiver"][here].tolist(), graphs["sender"][here].tolist(), strict=True))

        now, before = chosen(rounds[at]), chosen(rounds[at - 1]) if at else set()
        here = (graphs["round"] == rounds[at]) & graphs["probed"]
        looked = set(zip(graphs["receiver"][here].tolist(), graphs["sender"][here].tolist(), strict=True))
    return {"kept": now & before, "new": now - before, "dropped": before - now, "probed": looked}


def by_state(marks):
    found = {}
    for receiver, sender, state in marks:
        found.setdefault(state, []).append((receiver, sender))
    assert all(len(pairs) == len(set(pairs)) for pairs in found.values())
    return {state: set(pairs) for state, pairs in found.items()}


def test_graph_matrix_and_file_have_equal_links_at_every_step(page, runs, open_page):
    seen = open_page(page)
    kinds, both = set(), set()
    for step in range(ROUNDS):
        slide(seen, step)
        expected = expected_links(runs["ours 0"], step)
        graph, heat = seen.page.evaluate(DRAWN, "graph"), seen.page.evaluate(DRAWN, "heat")
        lines, heads = by_state(graph["links"]), by_state(graph["heads"])
        cells, marks = by_state(heat["cells"]), by_state(heat["marks"])
        assert cells.pop("own") == {(i, i) for i in range(CLIENTS)}
        for state, pairs in expected.items():
            assert lines.get(state, set()) == pairs, (step, state)
            assert heads.get(state, set()) == (set() if state == "probed" else pairs)
            if state in ("kept", "new"):
                assert cells.get(state, set()) == pairs
            if state != "kept":
                assert marks.get(state, set()) == pairs
            kinds |= {state} if pairs else set()
        words = seen.page.locator("#state").inner_text()
        total = len(expected["kept"] | expected["new"])
        assert f"Round {step + 1} of {ROUNDS} · {total} links chosen, {len(expected['new'])} of them new" in words
        assert not expected["probed"] or f" · {len(expected['probed'])} probed only" in words
        both |= expected["dropped"] & expected["probed"]
    assert both
    assert kinds == {"kept", "new", "dropped", "probed"}
    assert seen.console == []


def test_pixels_of_the_matrix_equal_the_file_at_every_step(page, runs, open_page):
    """Cells by their middles and by the corners of the marks that stand on them; nothing of the page's data is used."""
    seen = open_page(page)
    weight = on_ramp(1.0)  # all weights are the same
    assert np.sqrt(60) / 2 == pytest.approx(3.87, abs=0.01)  # half a side of the mark of a new link
    for step in range(ROUNDS):
        slide(seen, step)
        image, expected = pixels(seen, "heat"), expected_links(runs["ours 0"], step)
        states = {}
        for state, pairs in expected.items():
            for pair in pairs:
                states.setdefault(pair, set()).add(state)
        unit = (len(image) - 5 - 22) / CLIENTS
        for i in range(CLIENTS):
            for j in range(CLIENTS):
                x, y = (int(22 + (place + 0.5) * unit) for place in (j, i))  # clusters are in the order of ids

                def is_near(colour, area):
                    return np.abs(area - colour).sum(-1).min() < 60

                here = {"own"} if i == j else states.get((i, j), set())
                edge, middle = image[y + 9, x + 9], image[y - 1 : y + 2, x - 1 : x + 2].reshape(-1, 3)
                corner, arm = (image[y - a : y - a + 3, x - a : x - a + 3].reshape(-1, 3) for a in (5, 4))
                assert is_near(weight if here & {"own", "kept", "new"} else rgb(LIGHT["card"]), edge), (i, j, here)
                assert is_near(rgb(LIGHT["probed"]), middle) == ("probed" in here)
                assert is_near(rgb(LIGHT["dropped"]), arm) == ("dropped" in here)
                assert is_near(rgb(LIGHT["new"]), corner) == ("new" in here)


@pytest.mark.parametrize("run", [pytest.param("ours 0", marks=pytest.mark.slow), "served"])
def test_the_graph_and_the_matrix_look_like_the_pictures(page, runs, open_page, run):
    """Those of Vega, which have the same size on a screen of this width."""
    seen = open_page(page, width=538)
    number = 0 if run == "ours 0" else seen.page.locator("#run option").count() - 1
    seen.page.select_option("#run", index=number)
    found, others = read_run(runs[run]), 0
    for step in (1, 3):
        slide(seen, step)
        drawn, pictures = pixels(seen, "graph"), {}
        assert drawn.shape == (480, 480, 3)
        for round in (1, 2, 3):
            image = rendered(report.collaboration_graph(found, round).to_dict(), density=72)
            pictures[round] = np.asarray(Image.open(io.BytesIO(image)).convert("RGB"), dtype=np.float64)
        apart = {round: np.abs(picture - drawn).mean() for round, picture in pictures.items()}
        assert apart[step] < 0.7, apart
        others += sum(apart[round] > 5 * apart[step] for round in (1, 2, 3) if round != step)
    assert others == 4


@pytest.mark.slow
def test_arrowhead_points_at_the_receiver(tmp_path, make_run, open_page):
    """Two clients, one below the other: the head becomes narrower towards the receiver."""
    runs = [
        f"from {sender}={make_run(tmp_path / str(sender), np.full((2, 2), 0.5), links)}"
        for sender in (0, 1)
        for links in [[(r, 1 - sender, sender, 0.01, True, False) for r in (0, 1)]]
    ]
    seen = open_page(write_report(runs, tmp_path / "page.html"))
    for sender in (0, 1):
        seen.page.select_option("#run", label=f"from {sender}, seed 0")
        slide(seen, 0)
        slide(seen, 1)
        image = pixels(seen, "graph")
        grey = (image.max(-1) - image.min(-1) < 50) & (image.sum(-1) < 700)
        widths = grey.sum(1)[np.flatnonzero(grey.any(1))]
        widths = (widths if sender == 0 else widths[::-1])[-12:]  # client 0 is above
        widest = np.argmax(widths)
        assert widths[widest - 1] <= 2 < widths[widest + 1] <= widths[widest] <= 8, widths


def test_server_run_shows_the_friends_of_dropped_clients(page, open_page):
    seen = open_page(page)
    last = seen.page.locator("#run option").count() - 1
    seen.page.select_option("#run", index=last)
    seen.page.evaluate("window.report.move(2)")
    found = by_state(seen.page.evaluate(DRAWN, "graph")["links"])
    assert found["stands_in"] == {(2, 3)}  # client 3 stands in for client 2
    assert found["kept"] == {(4, j) for j in range(4)}
    assert seen.page.locator("#heat").is_hidden()
    assert "1 client dropped out, 1 with a substitute" in seen.page.locator("#state").inner_text()
    assert seen.console == []


CUT = """[...document.querySelectorAll('figure .chart svg')].flatMap((svg) => {
  const { left, right } = svg.getBoundingClientRect();
  return [...svg.querySelectorAll('text')].filter((text) => {
    const box = text.getBoundingClientRect();
    return box.width && (box.left < left - 1 || box.right > right + 1);
  }).map((text) => text.textContent);
})"""
PLOTS = """[...document.querySelectorAll('figure:not(.square) .chart svg')].map((svg) => {
  const widths = [...svg.querySelectorAll('.background')].map((path) => path.getBoundingClientRect().width);
  return Math.max(...widths) / svg.getBoundingClientRect().width;
})"""


HEIGHTS = """[...document.querySelectorAll('figure.wide .chart svg, figure.half .chart svg')].map((svg) => {
  const heights = [...svg.querySelectorAll('.background')].map((path) => path.getBoundingClientRect().height);
  return Math.max(...heights) / svg.getBoundingClientRect().height;
})"""


@pytest.mark.slow
def test_long_names_fit_and_leave_room_for_lines(runs, tmp_path, make_run, open_page):
    """Also where a line ends before the others."""
    name = "A method whose name has more letters than a chart has room for"
    config = {"selection": {"class_path": "mine.Brief"}}
    with np.load(runs["ours 0"] / "split.npz") as split:
        images = split["test_indices"]
    short = make_run(tmp_path / "short", np.full((5, 8), 0.5), test_images=images, config=config, clusters=CLUSTERS)
    for folder in (runs["ours 0"], short):
        found = tmp_path / f"{folder.name} with columns"
        shutil.copytree(folder, found)
        head, *lines = (found / "metrics.csv").read_text().splitlines()
        rows = [f"{line},{0.2 + 0.01 * number},{0.1 / (1 + number)}" for number, line in enumerate(lines)]
        (found / "metrics.csv").write_text("\n".join([f"{head},neighbour_recall,test_acc_variance", *rows]) + "\n")
    named = [f"{name}={tmp_path / '0 with columns'}", f"{name[2:]}={tmp_path / 'short with columns'}"]
    page = write_report([*named, runs["alone 0"]], tmp_path / "page.html")
    for width in (1440, 390):
        seen = open_page(page, width)
        assert seen.page.locator("#why figure .chart svg").count() >= 3
        assert seen.page.evaluate(CUT) == []
        assert min(seen.page.evaluate(PLOTS)) > 0.4
        assert seen.console == []
    assert "5 rounds: method whose name" in seen.page.locator("#verdict caption").first.inner_text()


@pytest.mark.slow
def test_charts_keep_their_height_with_many_methods(tmp_path, make_run, open_page):
    methods, named = 40, []
    for number in range(methods):
        level = np.full((4, 3), 0.5 + 0.4 * number / methods) + np.arange(4)[:, None] / 100
        config = {"selection": {"class_path": f"M{number}"}}
        named.append(f"method {number}={make_run(tmp_path / str(number), level, config=config)}")
    seen = open_page(write_report(named, tmp_path / "page.html"))
    heights = seen.page.evaluate(HEIGHTS)
    assert len(heights) >= 3
    assert min(heights) > 0.6, heights
    assert seen.console == []


def test_matrices_of_all_methods_share_one_caption(page):
    text = page.read_text(encoding="utf-8")
    assert text.count(">Share of the recorded rounds in which the receiver, a row, chose the sender; ") == 1
    assert "<h3>Ours</h3><p>seed 0: " in text


@pytest.mark.slow
def test_several_servers_are_numbered(tmp_path, make_run, open_page):
    links = [(r, 4 + i % 2, i, 0.5, True, False) for r in (0, 1) for i in range(4)]
    seen = open_page(write_report([make_run(tmp_path / "run", np.full((2, 4), 0.5), links)]))
    unfold(seen, "#links")
    rows = seen.page.locator("#links tbody tr")
    assert [rows.nth(i).locator("td").first.inner_text() for i in range(rows.count())] == ["server 0", "server 1"]
    assert "S: servers" in seen.page.locator("#legend").inner_text()
    assert seen.page.locator("#reading").inner_text() == "Arrows lead from the sender to the receiver."


def test_the_numbers_of_similarities_are_a_matrix(tmp_path, make_run, open_page):
    folder = make_run(tmp_path / "run", np.full((2, 3), 0.5))
    values = np.array([[[1, 0.5, 0.25], [0.5, 1, np.nan], [0.25, 0.75, 1]]])
    np.savez(folder / "comparisons.npz", rounds=[1], similarity=values, threshold=np.zeros((1, 3)))
    seen = open_page(write_report([folder]))
    part = "details[data-of=similarities-1]"
    unfold(seen, part)
    rows = seen.page.locator(f"{part} tr")
    cells = rows.evaluate_all("rows => rows.map((row) => [...row.cells].map((cell) => cell.textContent))")
    assert cells[0] == ["client", "similarity 0", "similarity 1", "similarity 2"]
    assert cells[1:] == [["0", "1", "0.5", "0.25"], ["1", "0.5", "1", ""], ["2", "0.25", "0.75", "1"]]
    assert seen.console == []


@pytest.fixture(scope="module")
def one_run(tmp_path_factory, make_run, make_links):
    """Return the page of a run with 45 clients and a long command, the command, and the run."""
    rng = np.random.default_rng(3)
    command = "dfl-fit --config mine --selection.nu=0.4 " + " ".join(f"--monitors.option_{n} {n}" for n in range(20))
    folder, links = tmp_path_factory.mktemp("one") / "run", make_links(rng, 3, 45, 2)
    run = make_run(folder, rng.uniform(0.5, 1, (3, 45)), links, commands=[(0, command)])
    return write_report([run]), command, run


def test_run_of_unknown_duration_has_a_dash_and_complete_texts(tmp_path, make_run):
    command = "dfl-fit --config banana --run_name tenant"
    run = make_run(tmp_path / "run", [[0.5, 0.6]], status=None, config={"model": {}}, commands=[(0, command)])
    table = commands_table(find_methods([read_run(run)], ["Finance"]))
    words = re.sub("<[^>]*>", "|", table.partition("<tbody>")[2])
    assert [word for word in words.split("|") if word.strip()] == [
        *("Finance", "0", "dfl-fit ", "--config", " banana ", "--run_name", " tenant", "1", "–", "–")
    ]


@pytest.mark.slow
def test_commands_do_not_wrap_within_an_option(one_run, open_page):
    page, command, _ = one_run
    seen = open_page(page, 390)
    options = seen.page.locator(".typed code span")
    assert options.all_inner_texts() == [word.partition("=")[0] for word in command.split() if word.startswith("--")]
    assert set(options.evaluate_all("spans => spans.map((span) => span.getClientRects().length)")) == {1}
    assert seen.page.locator(".typed code").inner_text() == command


@pytest.mark.slow
def test_keys_move_the_round_and_the_theme_keeps_the_client(page, open_page, redrawn):
    seen = open_page(page)
    seen.page.focus("#round")
    before = seen.page.evaluate("window.report.now().step")
    seen.page.keyboard.press("ArrowLeft")
    seen.page.keyboard.press("ArrowLeft")
    seen.page.select_option("#client", "3")
    unfold(seen, "#links")
    seen.page.click("#theme")
    redrawn(seen, times=2)
    now = seen.page.evaluate("window.report.now()")
    assert (now["step"], now["picked"]) == (before - 2, 3)
    assert seen.page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert seen.page.locator("#round").input_value() == str(before - 2)
    rows = seen.page.locator("#links tbody tr")
    table = [rows.nth(i).inner_text() for i in range(rows.count())]
    assert table
    assert all(line.startswith("3") or re.search(r"\b3\b", line) for line in table)
    controls = "[...document.querySelectorAll('a, button, select, input, summary, .scroll')]"
    assert seen.page.evaluate(f"{controls}.filter((element) => element.tabIndex < 0).length") == 0
    seen.page.emulate_media(media="print")
    assert seen.page.locator("figure .chart svg").first.is_visible()
    assert not any(controls.is_visible() for controls in seen.page.locator(".controls").all())
    assert seen.console == []


@pytest.mark.slow
def test_steps_between_two_frames_are_drawn_once(page, runs, open_page):
    seen = open_page(page)
    drawn = seen.page.evaluate("""async () => {
      const { graph } = window.report.views, draw = graph.draw;
      let times = 0;
      graph.draw = (round) => { times += 1; draw(round); };
      await new Promise(requestAnimationFrame);
      await Promise.all([1, 2, 3, 5].map(window.report.move));
      return [times, window.report.shown];
    }""")
    assert drawn == [1, 5]
    lines = by_state(seen.page.evaluate(DRAWN, "graph")["links"])
    assert {state: pairs for state, pairs in expected_links(runs["ours 0"], 5).items() if pairs} == lines


def test_mouse_finds_nodes_and_cells_and_picks_a_client(page, runs, open_page):
    seen = open_page(page)
    slide(seen, 2)
    unit = (seen.page.locator("#heat canvas").bounding_box()["width"] - 27) / CLIENTS
    receiver, sender = min(expected_links(runs["ours 0"], 2)["new"])
    place = {"x": 22 + (sender + 0.5) * unit, "y": 22 + (receiver + 0.5) * unit}
    seen.page.locator("#heat canvas").hover(position=place)
    words = seen.page.locator("#tip").inner_text().split()
    assert words[:6] == ["receiver", f"{receiver}", "sender", f"{sender}", "link", "newly"]
    (node,) = (point for point in nodes(read_run(runs["ours 0"])) if point["id"] == 3)
    unit = (seen.page.locator("#graph canvas").bounding_box()["width"] - 10) / (2 * 1.14)
    place = {"x": 5 + (1.14 + node["x"]) * unit, "y": 5 + (1.14 - node["y"]) * unit}
    seen.page.locator("#graph canvas").hover(position=place)
    said = seen.page.locator("#tip").inner_text().split()
    assert said[:6] == ["client", "3", "cluster", "1", "state", "dropped"]
    assert said[-2:] == ["falsified", "labels"]
    before = pixels(seen, "heat")
    seen.page.locator("#graph canvas").click(position=place)
    seen.page.evaluate("new Promise(requestAnimationFrame)")
    assert seen.page.evaluate("window.report.now().picked") == 3
    assert seen.page.locator("#client").input_value() == "3"
    after, unit = pixels(seen, "heat"), (len(before) - 27) / CLIENTS
    middles = [int(22 + (at + 0.5) * unit) + 9 for at in range(CLIENTS)]
    faded = [at for at, place in enumerate(middles) if after[place, place].sum() > before[place, place].sum()]
    assert faded == [0, 1, 2, 4, 5, 6, 7]  # on the diagonal


def test_table_of_a_round_is_complete_when_the_slider_rests(one_run, open_page):
    page, _, run = one_run
    seen = open_page(page)
    unfold(seen, "#links")
    for step in (0, 1):
        slide(seen, step)
    rows = seen.page.locator("#links tbody tr")
    rows.nth(44).wait_for()
    assert [row.split()[0] for row in rows.all_inner_texts()] == [str(client) for client in range(45)]
    expected = expected_links(run, 1)
    cells = seen.page.locator("#links tbody td:nth-child(4)").all_inner_texts()
    new = [set(re.findall(r"(\d+) \(", words)) for words in cells]
    assert new == [{str(j) for i, j in expected["new"] if i == client} for client in range(45)]


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_axe_finds_no_accessibility_problem(page, open_page, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    seen = open_page(page, scheme=scheme, bypass_csp=True)
    found = axe.Axe().run(seen.page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.slow
def test_pages_can_be_made_of_unusual_runs(tmp_path, make_run, make_links, open_page):
    """One seed, no clusters, no training alone, no links, nothing known of the images, names with dots and brackets."""
    rng = np.random.default_rng(1)
    level = rng.uniform(0.4, 0.9, (5, 6))
    level[3:, 2] = np.nan
    plain = make_run(tmp_path / "plain", level, make_links(rng, 5, 6, 2, every=2), diverged=[(3, 2), (4, 2)])
    empty = make_run(tmp_path / "empty", level[:1] * 0.5, status=None, seed=1)
    (empty / "split.npz").unlink()
    resumed = make_run(
        tmp_path / "resumed",
        level,
        make_links(rng, 5, 6, 1),
        config={"changed_on_resume": [{"round": 2, "changed": {"model.local_epochs": [5, 1]}}]},
        status="stopped",
    )
    never = make_run(tmp_path / "never", np.full((2, 6), np.nan), config={"selection": {"class_path": "Never"}})
    names = ["a.b[0]", "</script><b>", "100 % 'quoted'", "never"]
    words = [f"{name}={run}" for name, run in zip(names, (plain, empty, resumed, never), strict=True)]
    file = write_report(words, tmp_path / "odd.html", "png", tmp_path / "pictures")
    seen = open_page(file)
    assert seen.console == []
    shown = [seen.page.locator("tr[data-method]").nth(i).get_attribute("data-method") for i in range(4)]
    assert sorted(shown) == sorted(names)
    text = seen.page.locator("main").inner_text()
    assert "the training of 1 client diverged" in text
    assert "settings were changed when the run was resumed" in text
    assert "stopped after 5 rounds" in text
    assert "±" not in text
    options = [seen.page.locator("#run option").nth(i).inner_text() for i in range(2)]
    assert options == ["a.b[0], seed 0", "100 % 'quoted', seed 0"]
    assert {f.suffix for f in (tmp_path / "pictures").iterdir()} == {".png", ".csv", ".txt"}


@pytest.mark.slow
def test_with_many_links_only_the_matrix_is_drawn(tmp_path, make_run, make_links, open_page, monkeypatch):
    monkeypatch.setattr("dfl_lightning.bench.report.page.rounds.MOST_LINKS", 10)
    rng = np.random.default_rng(2)
    run = make_run(tmp_path / "run", rng.uniform(0.5, 1, (3, 6)), make_links(rng, 3, 6, 3), clusters=[0, 0, 1, 1, 2, 2])
    seen = open_page(write_report([run]))
    assert seen.console == []
    assert seen.page.locator("#graph").is_hidden()
    seen.page.evaluate("window.report.move(1)")
    rows = seen.page.evaluate("window.report.views.heat.drawn.cells")
    expected = expected_links(run, 1)
    counts = {}
    for receiver, sender in expected["kept"] | expected["new"]:
        counts[receiver // 2, sender // 2] = counts.get((receiver // 2, sender // 2), 0) + 1
    assert {(row["receiver"], row["sender"]): row["links"] for row in rows} == counts
    assert all(row["share"] == pytest.approx(row["links"] / 6) for row in rows)
    seen_colours = {tuple(colour) for colour in pixels(seen, "heat").reshape(-1, 3)[::7]}
    assert {tuple(np.round(on_ramp(number / 6))) for number in counts.values()} <= seen_colours
    assert seen.page.locator("#ramp").inner_text().startswith("share of the group")


# --- against the files
def cells(page, method):
    """Return the numbers of a method's row: mean and, if given, standard deviation."""
    text = page.read_text(encoding="utf-8")
    row = re.search(rf'<tr data-method="{re.escape(method)}">(.*?)</tr>', text)[1]
    found = {}
    for name, cell in re.findall(r"<td data-is='(\w+)'>(.*?)</td>", row):
        plain = re.sub("<svg.*?</svg>|<[^>]*>", " ", cell).replace("−", "-").replace(",", "")
        found[name] = [float(number) for number in re.findall(r"[-+]?\d+\.?\d*", plain)]
    return found


def test_the_table_has_the_numbers_of_the_summaries(page, runs):
    for method, name in (("Ours", "ours"), ("Local", "alone")):
        summaries = [json.loads((runs[f"{name} {s}"] / "summary.json").read_text()) for s in (0, 1)]
        found = cells(page, method)
        for column, values, unit in (
            ("score", [s["test_accuracy"]["mean"] for s in summaries], 100),
            ("worst", [s["test_accuracy"]["worst10"] for s in summaries], 100),
            ("received", [s["received_per_client"]["bytes"] for s in summaries], 1e-6),
            ("seconds", [s["seconds"]["rounds"] for s in summaries], 1),
        ):
            expected = [unit * np.mean(values), unit * np.std(values, ddof=1)]
            assert found[column] == pytest.approx(expected, abs=0.051), (method, column)
        assert found["seeds"] == [2]
    gains = [0.1, 0.11]
    half = 12.7062047 * np.std(gains, ddof=1) / np.sqrt(2)  # Student's t with one degree of freedom
    expected = [10.5, 10.5 - 100 * half, 10.5 + 100 * half]
    assert cells(page, "Ours")["local"] == pytest.approx(expected, abs=0.051)
    assert cells(page, "Local")["best"] == pytest.approx([-10.5, -10.5 - 100 * half, -10.5 + 100 * half], abs=0.051)


def test_methods_tested_on_other_images_are_not_compared(page):
    text = page.read_text(encoding="utf-8")
    assert text.count("<table class='verdict'>") == 2
    assert "FL-FDMS ends at" in text
    assert "one seed" in re.search(r"FL-FDMS ends at[^<]*", text)[0]


def test_few_bytes_are_not_shown_as_none(tmp_path, make_run):
    """Small networks send kilobytes, and the column is in megabytes."""
    runs = [make_run(tmp_path / str(n), [[0.5], [0.5 + n / 10]], received=n) for n in (0.0, 5612.5, 5e6)]
    named = [f"{n}={run}" for n, run in enumerate(runs)]
    page = write_report(named, tmp_path / "page.html").read_text(encoding="utf-8")
    found = re.findall("<td data-is='received'><b>(.*?)</b>", page)
    assert sorted(found) == ["0.000", "0.011", "10.000"]


def test_one_seed_gives_no_spread_and_no_verdict_on_differences(tmp_path, make_run):
    a = make_run(tmp_path / "a", [[0.9, 0.8]], config={"selection": {"class_path": "A"}})
    b = make_run(tmp_path / "b", [[0.5, 0.4]], config={"selection": {"class_path": "B"}})
    text = write_report([a, b]).read_text(encoding="utf-8")
    body = text[text.index("<main>") : text.index("<script")]
    assert "±" not in body
    assert "lower" not in body
    assert (
        "With one common seed there is no verdict on the difference to B: for 2 methods it takes 3 seeds or more."
        in text
    )


def test_only_changes_and_few_rounds_are_kept(tmp_path, make_run):
    links = [(r, i, (i + 1) % 5, 0.5, True, False) for r in range(200) for i in range(5)]
    run = make_run(tmp_path / "run", np.full((200, 5), 0.5), links)
    from dfl_lightning.bench.report.methods import find_methods
    from dfl_lightning.bench.report.page.rounds import run_entry
    from dfl_lightning.runs.reading import read_run

    (method,) = find_methods([read_run(run)])
    entry = run_entry(method, method.runs[0])
    assert len(entry["rounds"]) == MOST_ROUNDS
    assert [len(e.get("new", [])) for e in entry["rounds"]] == [5] + [0] * (MOST_ROUNDS - 1)
    assert entry["rounds"][-1]["round"] == 200


@pytest.mark.slow
def test_page_of_many_methods_details_some_and_names_the_omitted(tmp_path, make_run, make_links):
    from dfl_lightning.bench.report.methods import find_methods
    from dfl_lightning.bench.report.page.pictures import linked_figures
    from dfl_lightning.bench.report.page.sections import figures
    from dfl_lightning.bench.report.page.sentences.limits import MOST_METHODS, left_out, with_graphs
    from dfl_lightning.runs.reading import read_run

    rng, runs, names = np.random.default_rng(0), [], []
    for number in range(MOST_METHODS + 2):
        for seed in (0, 1):
            folder = tmp_path / f"{number}-{seed}"
            runs.append(make_run(folder, rng.uniform(0.5, 0.9, (3, 5)), make_links(rng, 3, 5, 2), seed=seed))
            names.append(f"method {number}")
    file = write_report([f"{name}={run}" for name, run in zip(names, runs, strict=True)], tmp_path / "page.html")
    text = file.read_text(encoding="utf-8")
    methods = find_methods([read_run(run) for run in runs], names)
    means = {m.name: np.mean([run.clients["test_acc"][-1].mean() for run in m.runs]) for m in methods}
    kept = [name for name in means if name not in sorted(means, key=means.get)[:2]]
    assert text.count("best 16 of 18 methods; tables and all other charts are of all.") == 2
    assert f"Not among them: {'; '.join(name for name in means if name not in kept)}." in text
    assert (
        "<details><summary>36 runs</summary><div class='scroll' tabindex='0' role='region' aria-label='Commands'>"
        in text
    )
    assert text.count("Graphs are of the first seed of each method.") == 2
    assert [(method.name, run.path.name) for method, run in with_graphs(methods)] == [
        (name, f"{name.removeprefix('method ')}-0") for name in kept
    ]
    drawn = [figure.name for figure in [*figures(methods), *linked_figures(methods)]]
    for name in ("bands", "graph", "matrix"):
        assert [entry for entry in drawn if entry.startswith(name)] == [f"{name}-{n + 1}" for n in range(MOST_METHODS)]
    assert left_out(methods[:4]) == ""
    assert len(with_graphs(methods[:6])) == 12


@pytest.mark.slow
def test_a_large_report_is_small(tmp_path, make_run, make_links):
    runs = []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        level = rng.uniform(0.3, 0.9, (100, 100))
        runs.append(make_run(tmp_path / str(seed), level, make_links(rng, 100, 100, 5, probes=5), seed=seed))
    names = [f"method {seed}={run}" for seed, run in enumerate(runs)]
    assert write_report(names, tmp_path / "page.html").stat().st_size <= 2.5e6


def test_charts_are_saved_as_numbers_and_light_pictures(tmp_path, make_run, open_page):
    run = make_run(tmp_path / "run", [[0.5, 0.6], [0.6, 0.7]], config={"selection": {"class_path": "Ours"}})
    seen = open_page(write_report([run], figures="png"), scheme="dark")
    content = {}
    for format in ("csv", "svg", "png"):
        with seen.page.expect_download() as download:
            seen.page.click(f"[data-of=learning-curves] [data-as={format}]")
        assert download.value.suggested_filename == f"learning-curves.{format}"
        content[format] = Path(download.value.path()).read_bytes()
    rows = [[cell.strip('"') for cell in line.split(",")] for line in content["csv"].decode().splitlines()]
    written = (run / "figures" / "learning-curves.csv").read_text().splitlines()
    assert [row[:2] for row in rows] == [line.split(",")[:2] for line in written]
    assert [float(row[2]) for row in rows[1:]] == [55, 65]
    svg = content["svg"].decode()
    assert "Test accuracy over rounds" in svg
    assert any(colour in svg for colour in LIGHT["category"])
    with Image.open(io.BytesIO(content["png"])) as image:
        assert image.getpixel((0, 0))[:3] == (255, 255, 255)
        assert image.width > 3 * 560
    assert seen.console == []
