"""The charts as data: what they draw is what the files say. How they look is tested in test_page.py."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pytest.importorskip("altair", reason="the extra `report` is not installed")

import vl_convert

from dfl_lightning import UserError, read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.charts.line_ends import end_labels, short_names, spread_out
from dfl_lightning.bench.report.look.theme import LIGHT
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.pictures import linked_figures, rows_of
from dfl_lightning.bench.report.page.sections import figures


def named(name, **more):
    return {"selection": {"class_path": name}, **more}


def texts_of(spec):
    """Return all words of a picture."""
    return [
        part.text
        for part in ElementTree.fromstring(vl_convert.vegalite_to_svg(spec)).iter()
        if part.tag.endswith("text")
    ]


@pytest.fixture
def runs(tmp_path, make_run, make_links):
    rng, found = np.random.default_rng(0), []
    for name, cost in (("Ours", 2e6), ("Alone", 0.0)):
        for seed in (0, 1):
            level = rng.uniform(0.3, 0.9, (4, 20))
            links = make_links(rng, 4, 20, 2) if cost else []
            folder = tmp_path / name / str(seed)
            found.append(read_run(make_run(folder, level, links, seed=seed, config=named(name), received=cost)))
    return found


def test_curves_are_means_and_deviations_over_seeds(runs):
    rows = rows_of(report.learning_curves(runs).to_dict())
    ours = np.array([run.metrics["test_acc"] for run in runs[:2]]) * 100
    drawn = [row for row in rows if row["method"] == "Ours"]
    assert [row["mean"] for row in drawn] == pytest.approx(ours.mean(0), abs=1e-3)
    assert [row["sd"] for row in drawn] == pytest.approx(ours.std(0, ddof=1), abs=1e-3)
    assert {row["method"] for row in rows} == {"Ours", "Local"}


@pytest.mark.parametrize("number", [8, 9])
def test_of_many_methods_the_best_three_have_bands(tmp_path, make_run, number):
    folders = [
        make_run(
            tmp_path / f"{n}-{s}", [[0.5 + n / 100] * 2] * 2, seed=s, config={"selection": {"class_path": f"M{n}"}}
        )
        for n in range(number)
        for s in range(2)
    ]
    methods = find_methods([read_run(folder) for folder in folders])
    best = {f"M{n}" for n in (range(8) if number == 8 else (6, 7, 8))}
    notes = {figure.name: figure.note for figure in figures(methods)}
    for chart, name in ((report.learning_curves, "learning-curves"), (report.sorted_clients, "clients")):
        (band,) = (layer for layer in chart(methods).to_dict()["layer"] if layer["mark"]["type"] == "area")
        assert set(band["transform"][0]["filter"]["oneOf"]) == best
        assert ("The bands, of the best 3 methods, are one standard deviation" in notes[name]) == (number == 9)


def test_bands_are_percentiles_over_clients(runs):
    rows = rows_of(report.client_bands(runs[0]).to_dict())
    level = runs[0].clients["test_acc"][2] * 100
    expected = [*np.percentile(level, [10, 25, 50, 75, 90]), np.sort(level)[:2].mean()]
    names = ("p10", "p25", "median", "p75", "p90", "worst tenth")
    assert [rows[2][name] for name in names] == pytest.approx(expected, abs=1e-3)


def test_clients_are_sorted_in_each_run_before_the_mean(runs):
    rows = [row for row in rows_of(report.sorted_clients(runs).to_dict()) if row["method"] == "Ours"]
    expected = np.mean([sorted(run.clients["test_acc"][-1], reverse=True) for run in runs[:2]], axis=0)
    assert [row["accuracy"] for row in rows] == pytest.approx(100 * expected, abs=1e-3)


def test_gains_are_paired_by_seed(runs):
    chart = report.gain_over_local(runs).to_dict()
    rows = next(held for held in chart["datasets"].values() if "number" in held[0])
    last = [run.clients["test_acc"][-1] for run in runs]
    gains = [100 * gain for seed in (0, 1) for gain in last[seed] - last[2 + seed]]
    alike = {g: [gain for gain in gains if round(gain) == g] for g in map(round, gains)}
    assert {round(row["gain"]): row["number"] for row in rows} == {g: len(group) for g, group in alike.items()}
    for row in rows:  # a dot stands at the mean gain of its clients
        assert row["gain"] == pytest.approx(np.mean(alike[round(row["gain"])]), abs=1e-3)


def test_simulated_time_is_not_summed_again(tmp_path, make_run):
    found = []
    for seed, seconds in ((0, (1.5, 2, 7, 7.25)), (1, (2.5, 4, 8, 8.75))):
        folder = make_run(tmp_path / str(seed), [[0.1], [0.2], [0.3], [0.4]], seed=seed, config=named("Ours"))
        head, *lines = (folder / "metrics.csv").read_text().splitlines()
        rows = [f"{line},{number!r}" for line, number in zip(lines, seconds, strict=True)]
        (folder / "metrics.csv").write_text("\n".join([f"{head},simulated_seconds", *rows]) + "\n")
        found.append(read_run(folder))
    spec = report.accuracy_by_time(found).to_dict()
    rows = rows_of(spec)
    assert [row["cost"] for row in rows] == [2, 3, 7.5, 8]
    assert {"2", "4", "6", "8"} <= set(texts_of(spec))
    assert [row["accuracy"] for row in rows] == [10, 20, 30, 40]


def test_costs_are_summed_and_training_alone_is_a_level(runs):
    chart = report.accuracy_by_bytes(runs).to_dict()
    assert [row["cost"] for row in rows_of(chart)] == [2, 4, 6, 8]
    assert "Local" in str(chart)
    assert ", 0 MB'" in str(chart)


def test_similarities_are_a_row_of_the_table_for_each_client(tmp_path, make_run):
    """And the matrix has a tile at each place, in the order of the clusters."""
    folder = make_run(tmp_path / "run", np.full((2, 3), 0.5), clusters=[1, 0, 1])
    values = np.array([[1, 0.25, 0.5], [0.125, 1, np.nan], [0.75, 0.0625, 1]])
    np.savez(folder / "comparisons.npz", rounds=[0, 1], similarity=[values * 0, values], threshold=np.zeros((2, 3)))
    spec = report.similarities(read_run(folder)).to_dict()
    rows = rows_of(spec)
    assert [row["client"] for row in rows] == [0, 1, 2]
    assert rows[1] == {"client": 1, "similarity 0": 0.125, "similarity 1": 1, "similarity 2": None}
    assert [spec["encoding"][axis]["axis"]["labelOverlap"] for axis in ("x", "y")] == ["parity"] * 2  # on a phone
    drawn = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec))
    tiles = [part for part in drawn.iter() if part.get("aria-roledescription") == "rect mark"]
    places = np.array([[float(x) for x in tile.get("d")[1:].split("h")[0].split(",")] for tile in tiles])
    columns, rows = (np.unique(places[:, axis].round(3), return_inverse=True)[1] for axis in (0, 1))
    found = {}
    for tile, row, column in zip(tiles, rows, columns, strict=True):
        said = dict(part.split(": ") for part in tile.get("aria-label").split("; "))
        found[row, column] = int(said["client"]), int(said["other"]), float(said["similarity"])
    order = [1, 0, 2]
    assert found == {
        (row, column): (client, other, values[client, other])
        for row, client in enumerate(order)
        for column, other in enumerate(order)
        if not np.isnan(values[client, other])
    }


@pytest.mark.parametrize("seconds", [20.0, 2e5])
def test_the_marks_of_an_axis_are_plain_numbers(tmp_path, make_run, seconds):
    folder = make_run(tmp_path / "run", [[0.1], [0.2], [0.3]], config=named("Ours"), received=1e10 * seconds)
    head, *lines = (folder / "metrics.csv").read_text().splitlines()
    rows = [f"{line},{seconds * (number + 1)!r}" for number, line in enumerate(lines)]
    (folder / "metrics.csv").write_text("\n".join([f"{head},simulated_seconds", *rows]) + "\n")
    for chart in (report.accuracy_by_time, report.accuracy_by_bytes):
        assert not [text for text in texts_of(chart([read_run(folder)]).to_dict()) if re.fullmatch(r"[\d.]+e.*", text)]


def test_a_long_name_leaves_room_for_the_lines(tmp_path, make_run):
    name = "A method whose name has more letters than a chart has room for"
    runs = [
        read_run(make_run(tmp_path / str(i), [[0.4, 0.6]] * (3 + i), config=named(f"M{i}", trainer={"max_rounds": 4})))
        for i in (0, 1)
    ]
    methods = find_methods(runs, [name, "B"])
    spec = report.learning_curves(methods).to_dict()
    assert [text for text in texts_of(spec) if text.startswith("A method")] == ["A method whose name has…  50.0"] * 2
    backgrounds = re.findall(r'class="background"[^>]* d="M[^h]*h([\d.]+)', vl_convert.vegalite_to_svg(spec))
    plot = max(float(width) for width in backgrounds)
    assert 250 < plot < 500
    assert name in str(rows_of(spec))


def test_stored_update_is_not_shown_as_a_substituting_client(tmp_path, make_run):
    """Client 1 dropped out; the entry 3 + 1 is its stored update, as `Stale` mixes it."""
    stored, other = [(1, 3, 1, 4 + 1)], [(1, 3, 1, 2)]
    specs = []
    for number, substitutes in enumerate((stored, other)):
        folder = make_run(tmp_path / str(number), [[0.5] * 3] * 3, dropouts=[(1, 1)], substitutes=substitutes)
        specs.append(report.dropouts(read_run(folder)).to_dict())
    states = [{row["state"] for row in rows_of(spec)} for spec in specs]
    assert states == [{"dropped out"}, {"dropped out", "stands in"}]
    assert ["clients it stands in for" in texts_of(spec) for spec in specs] == [False, True]


def test_arrow_ends_next_to_a_server(tmp_path, make_run):
    """Not under the square, whose sides are 18 pixels from its middle."""
    links = [(r, 5, j, 0.2, True, False) for r in (0, 1) for j in range(5)]
    run = read_run(make_run(tmp_path / "run", [[0.5] * 5] * 2, links))
    assert [figure.name for figure in linked_figures(find_methods([run]))] == ["graph-1"]  # one row is no matrix
    svg = vl_convert.vegalite_to_svg(report.collaboration_graph(run).to_dict())
    heads = re.findall(r"translate\(([\d.]+),([\d.]+)\) rotate", svg)
    places = np.array([[float(x) for x in head] for head in heads])
    assert len(places) == 5
    apart = np.abs(places - 240 * (475 / 480)).max(1)
    assert (apart > 18 + 2).all()
    assert (apart < 18 + 12).all()


def test_charts_of_missing_values_are_refused_in_one_sentence(runs, tmp_path, make_run):
    bare = read_run(make_run(tmp_path / "bare", [[np.nan, np.nan]]))
    for chart in (
        *(report.learning_curves, report.sorted_clients, report.accuracy_by_bytes, report.accuracy_by_time),
        lambda found: report.gain_over_local(found[:1]),
        lambda found: report.found_over_rounds(found, "threshold", "threshold"),
    ):
        with pytest.raises(UserError):
            chart([bare])
    for chart in (report.similarities, report.dropouts, report.collaboration_graph, report.link_heatmap):
        with pytest.raises(UserError):
            chart(bare)
    with pytest.raises(UserError, match=r"it has those of rounds 0, 1, 2, 3"):
        report.collaboration_graph(runs[0], 7)


def test_a_method_has_one_colour_in_all_charts(runs):
    """Training alone is grey, whatever other methods there are."""
    methods = find_methods(runs)
    for chart in (report.learning_curves(methods[1:]), report.client_bands(methods[1])):
        picture = vl_convert.vegalite_to_svg(chart.to_dict())
        assert LIGHT["category"][-1] in picture
        assert LIGHT["category"][0] not in picture


def test_level_without_costs_has_its_methods_dash(runs):
    layers = report.accuracy_by_bytes(runs).to_dict()["layer"]
    rule = next(layer for layer in layers if layer["mark"]["type"] == "rule" and "x2" in layer["encoding"])
    line = next(layer for layer in layers if layer["mark"]["type"] == "line")
    assert "strokeDash" not in rule["mark"]
    assert rule["encoding"]["strokeDash"] == line["encoding"]["strokeDash"]


def test_gain_labels_do_not_touch_the_marks_above(tmp_path, make_run):
    found = [read_run(make_run(tmp_path / "alone", [[0.5] * 4], received=0.0, config=named("Alone")))]
    found += [read_run(make_run(tmp_path / f"{k}", [[0.6, 0.6, 0.6, 0.6]], config=named(f"M{k}"))) for k in range(6)]
    spec = report.gain_over_local(found).to_dict()
    picture = ElementTree.fromstring(vl_convert.vegalite_to_svg(spec))

    def numbers(kind, of, pattern):
        groups = [part for part in picture.iter() if (part.get("class") or "").startswith(f"mark-{kind} role-mark")]
        return [float(re.search(pattern, mark.get(of))[1]) for mark in groups[-1]]

    bars = [top + 26 for top in numbers("rect", "d", r"^M[\d.-]+,([\d.-]+)")]  # their lower ends
    words = numbers("text", "transform", r",([\d.-]+)\)")
    assert len(bars) == len(words) == 6
    for above, word in zip(bars, words[1:], strict=False):
        assert word - 9 - above > 2  # capital letters of 12 pixels


def test_charts_of_many_methods_are_high_enough_to_name_each(tmp_path, make_run):
    level = np.full((2, 4), 0.5)
    found = [read_run(make_run(tmp_path / f"{k}", level + k / 50, config=named(f"M{k}"))) for k in range(20)]
    for chart in (report.learning_curves, report.sorted_clients, report.accuracy_by_bytes, report.accuracy_front):
        spec = chart(found).to_dict()
        assert (spec["height"], len(spec["datasets"][spec["layer"][-1]["data"]["name"]])) == (50 + 16 * 20, 20)
    found.append(read_run(make_run(tmp_path / "alone", level, received=0.0, config=named("Alone"))))
    heights = {chart(found).to_dict()["height"] for chart in (report.sorted_clients, report.gain_over_local)}
    assert heights == {50 + 36 * 20}  # side by side, with a row of 36 pixels for each gain


def test_label_moves_aside_if_a_line_would_cross_it():
    rows = [{"method": "early", "x": 1.0, "y": 50.0}, {"method": "late", "x": 10.0, "y": 90.0}]
    for height, at in ((50.0, 10.0), (90.0, 1.0)):
        lines = [{"method": "late", "x": x, "y": height} for x in (0.0, 10.0)]
        text = end_labels(rows, ["early", "late"], "y", [40.0, 100.0], "x", lines=lines)[-1].to_dict()
        placed = {row["method"]: row for row in next(iter(text["datasets"].values()))}
        assert placed["early"]["label_x"] == at
    text = end_labels(rows, ["early", "late"], "y", [40.0, 100.0], "x", lift=10)[-1].to_dict()
    assert next(iter(text["datasets"].values()))[0]["label_y"] == pytest.approx(50 + 10 * 60 / 250)


def test_labels_are_spread_in_order_and_as_little_as_needed():
    rng = np.random.default_rng(0)
    for _ in range(50):
        wanted = rng.uniform(0, 100, 6).tolist()
        placed = spread_out(wanted, 5.0, 0.0, 100.0)
        order = np.argsort(wanted)
        assert (np.diff(np.array(placed)[order]) >= 5 - 1e-9).all()
        assert min(placed) >= -1e-9
        assert max(placed) <= 100 + 1e-9
    assert spread_out([10.0, 50.0], 5.0, 0.0, 100.0) == [10.0, 50.0]


@example("aaaaaaaaa", {"", "a"}, 8)
@given(st.text("ab", max_size=40), st.sets(st.text("ab", max_size=40), min_size=2, max_size=2), st.integers(8, 24))
def test_two_short_names_fit_and_differ(beginning, ends, letters):
    found = short_names([beginning + end for end in ends], letters)
    assert len(set(found.values())) == 2
    for name, brief in found.items():
        assert brief == name if len(name) <= letters else len(brief) <= letters


def test_names_that_differ_in_a_setting_are_shortened_to_it():
    names = ["PANM", *(f"Gossip (k = {k}, lr = 0.05)" for k in (1, 2)), "Gossip (k = 3, lr = 3000.0)"]
    assert list(short_names(names, 12).values()) == ["PANM", "Gossip k=1…", "Gossip k=2…", "Gossip k=3…"]
    assert short_names(names, 24)[names[1]] == "Gossip (k=1, lr=0.05)"


def test_label_stands_at_its_line_or_is_joined_to_it():
    """One within the chart keeps its height, whatever stands at the side; ends that an axis cuts off have no dot."""
    rows = [{"method": "early", "x": 1.0, "y": 50.0}]
    rows += [{"method": f"late {i}", "x": 10.0, "y": 50.0} for i in range(5)]
    rows.append({"method": "below", "x": 10.0, "y": 10.0})
    layers = end_labels(rows, [row["method"] for row in rows], "y", [40.0, 100.0], "x")
    rule, dot, _, text = (layer.to_dict() for layer in layers)
    placed = {row["method"]: row for row in text["data"]["values"]} if "values" in text["data"] else {}
    placed = placed or {row["method"]: row for row in next(iter(text["datasets"].values()))}
    assert (placed["early"]["label_x"], placed["early"]["label_y"]) == (1.0, 50.0)
    side = sorted(placed[f"late {i}"]["label_y"] for i in range(5))
    assert np.diff(side).min() == pytest.approx(60 * 16 / 250)
    assert all(
        (row["end_x"], row["end_y"]) == (own["x"], own["y"]) for row, own in zip(placed.values(), rows, strict=True)
    )
    assert [name for name, row in placed.items() if not row["inside"]] == ["below"]
    for layer in (rule, dot):
        assert layer["transform"] == [{"filter": "datum.inside"}]
    ends = rule["encoding"]
    assert [ends[axis]["field"] for axis in ("x", "y", "x2", "y2")] == ["end_x", "end_y", "label_x", "label_y"]


@pytest.mark.parametrize("letters", [24, 18, 12])
def test_short_names_of_a_sweep_of_two_settings_keep_both(letters):
    settings = [(kind, rate) for kind in ("cosine", "distance") for rate in ("0.01", "0.05")]
    names = [f"AFIND+ (similarity = {kind}, lr = {rate})" for kind, rate in settings]
    found = list(short_names(names, letters).values())
    assert len(set(found)) == 4
    assert max(map(len, found)) <= letters
    for (kind, rate), text in zip(settings, found, strict=True):
        assert kind[:4] in text
        assert rate in text
