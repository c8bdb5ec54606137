"""The time line of trouble: events against the runs' files and against numbers by hand, and in a browser."""

from itertools import pairwise

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.contents.trouble import about_divergence, events, trouble_of_page
from dfl_lightning.bench.report.writing import write_report

CLIENTS = 4


def of_lane(run, lane):
    return [event for event in events(read_run(run)) if event.lane == lane]


def test_divergence_has_client_and_round_the_first_one_first(tmp_path, make_run):
    level = np.full((6, CLIENTS), 0.5)
    diverged = [(4, 0), (1, 3), (2, 3), (5, 3)]
    run = make_run(tmp_path / "run", level, diverged=diverged)
    found = [(*event.clients, event.first, event.last) for event in of_lane(run, "diverged")]
    assert found == [(3, 2, 3), (0, 5, 5), (3, 6, 6)]


def test_an_exploding_loss_is_named_with_its_round(tmp_path, make_run):
    run = make_run(tmp_path / "run", np.full((5, CLIENTS), 0.5))
    rows = [line.split(",") for line in (run / "metrics.csv").read_text().splitlines()]
    at = rows[0].index("train_loss")
    for row, loss in zip(rows[1:], (2.0, 1999.0, 2001.0, 1.4e21, 0.5), strict=True):
        row[at] = str(loss)
    (run / "metrics.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    (found,) = of_lane(run, "training loss explodes")
    assert (found.first, found.last, found.words) == (3, 4, "the training loss is 2e+03 in round 3, after 2 at first")
    for row, loss in zip(rows[1:], (0.9e6, 1.1e6, 1.0, 1.0, 1.0), strict=True):
        row[at] = str(loss)
    (run / "metrics.csv").write_text("\n".join(map(",".join, rows)) + "\n")
    (found,) = of_lane(run, "training loss explodes")
    assert (found.first, found.last) == (2, 2)


def test_dropouts_and_adversaries_have_shares_of_clients(tmp_path, make_run):
    run = make_run(
        tmp_path / "run", np.full((4, CLIENTS), 0.5), dropouts=[(1, 2), (1, 3), (3, 0)], adversaries=[0, 1, 0, 0]
    )
    assert [(e.first, e.clients, e.share) for e in of_lane(run, "dropped out")] == [
        (2, (2, 3), 0.5),
        (4, (0,), 0.25),
    ]
    (attack,) = of_lane(run, "links to adversaries")
    assert (attack.first, attack.last, attack.clients) == (1, 4, (1,))
    assert attack.words.endswith("1 of 4 clients: 1")


def test_rounds_at_chance_level_are_those_within_two_errors(tmp_path, make_run):
    scores = np.repeat([[0.2], [0.5], [0.56], [0.7], [0.54], [0.9]], CLIENTS, 1)
    run = make_run(tmp_path / "run", scores)
    split = dict(np.load(run / "split.npz"))
    split["test_counts"] = np.full((CLIENTS, 2), 50)  # two classes, 100 samples a client
    np.savez(run / "split.npz", **split)
    error = np.sqrt(0.5 * 0.5 / 400)
    expected = [r + 1 for r, score in enumerate(scores[:, 0]) if score <= 0.5 + 2 * error]
    found = of_lane(run, "at chance level")
    assert [r for event in found for r in range(event.first, event.last + 1)] == expected == [1, 2, 5]
    bound = f"{100 * (0.5 + 2 * error):.1f} %"
    assert {e.words for e in found} == {
        f"the mean score is at most {bound}: chance level, 50.0 %, and two standard errors"
    }


def test_plateau_ends_with_progress_of_a_fiftieth_of_the_range(tmp_path, make_run):
    means = [0.2, 0.5, 0.7, *[0.705] * 6, 0.9, 0.8, 1.0]
    run = make_run(tmp_path / "run", np.repeat(np.array(means)[:, None], CLIENTS, 1))
    assert [(e.first, e.last) for e in of_lane(run, "no progress")] == [(4, 9)]
    short = make_run(tmp_path / "short", np.repeat(np.array(means[:5])[:, None], CLIENTS, 1))
    assert of_lane(short, "no progress") == []


def test_new_links_are_those_that_were_not_there_before(tmp_path, make_run, make_links):
    links = make_links(np.random.default_rng(1), 4, CLIENTS, 2)
    run = make_run(tmp_path / "run", np.full((4, CLIENTS), 0.5), links)
    chosen = [{(i, j) for at, i, j, _, selected, _ in links if at == r and selected} for r in range(4)]
    expected = [len(now - before) / len(now) for before, now in pairwise(chosen)]
    assert [e.share for e in of_lane(run, "links that are new")] == pytest.approx(expected)


def test_a_click_on_a_mark_opens_its_client(tmp_path, make_run, open_page, until):
    calm = make_run(tmp_path / "calm", np.linspace(0.2, 0.9, 4)[:, None] * np.ones(CLIENTS), seed=1)
    wild = make_run(tmp_path / "wild", np.full((4, CLIENTS), 0.5), diverged=[(2, 3)], config={"model": {}})
    seen = open_page(write_report([f"<b>calm={calm}", f"wild={wild}"], tmp_path / "page.html"))
    rows = seen.page.locator("table.trouble tbody tr")
    assert rows.all_inner_texts() == ["wild, seed 0\t1 client; first in round 3: client 3"]
    assert (
        seen.page.locator("header .health")
        .inner_text()
        .startswith("In 1 of 2 runs the training of clients ended in NaN or infinity: wild, seed 0.")
    )
    assert seen.page.locator("header .health a").get_attribute("href") == "#trouble"
    assert "1 of 2 runs have none of these." in seen.page.locator("#trouble").inner_text()
    mark = seen.page.locator("#chart-trouble .mark-rect path")
    mark.scroll_into_view_if_needed()
    mark.click()
    until(seen, "document.getElementById('one-name').textContent === 'Client 3'")
    assert seen.page.locator("#one-words").inner_text().startswith("wild, seed 0")
    assert "client=3" in seen.page.evaluate("location.hash")
    assert seen.console == []


def test_configured_dropout_is_called_so(tmp_path, make_run):
    config = {"selection": {"class_path": "Ours"}, "dropout": {"class_path": "Bernoulli", "init_args": {"rate": 1}}}
    dropouts = [(1, i) for i in range(5)] + [(2, 5), (2, 7)]
    run = read_run(make_run(tmp_path / "run", np.full((4, 8), 0.5), dropouts=dropouts, config=config))
    (entry,) = trouble_of_page(find_methods([run]), set())
    assert entry["summary"]["dropped out"] == (
        "in 2 rounds, 3.5 of 8 clients on average, as configured (Bernoulli); "
        "first in round 2: clients 0, 1, 2 and 2 more"
    )


def test_links_that_stay_are_no_trouble(tmp_path, make_run):
    links = [(r, i, (i + 1) % CLIENTS, 0.5, True, False) for r in range(3) for i in range(CLIENTS)]
    links += [(3, i, (i + 1 + (i > 1)) % CLIENTS, 0.5, True, False) for i in range(CLIENTS)]
    run = make_run(tmp_path / "run", np.full((4, CLIENTS), 0.5), links)
    assert [(e.first, e.share) for e in of_lane(run, "links that are new")] == [(4, 0.5)]


def test_a_mark_of_several_clients_opens_one_at_its_round(tmp_path, make_run, make_links, open_page, until):
    links = make_links(np.random.default_rng(1), 4, CLIENTS, 2)
    level = np.linspace(0.2, 0.9, 4)[:, None] * np.ones(CLIENTS)
    run = make_run(tmp_path / "run", level, links, dropouts=[(1, 2), (1, 3)], config={"selection": {"class_path": "A"}})
    seen = open_page(write_report([run], tmp_path / "page.html"))
    mark = seen.page.locator("#chart-trouble .mark-rect path").first
    mark.scroll_into_view_if_needed()
    mark.click()
    until(seen, "document.getElementById('one-name').textContent === 'Client 2'")
    assert seen.page.evaluate("window.report.now().round") == 2
    seen.page.locator("#one-content p").get_by_role("button", name="client 3").click()
    until(seen, "document.getElementById('one-name').textContent === 'Client 3'")
    assert seen.page.evaluate("window.report.now().round") == 2
    assert seen.console == []


def test_a_page_without_divergence_says_so(tmp_path, make_run):
    level = np.full((2, CLIENTS), 0.5)
    calm = [read_run(make_run(tmp_path / str(seed), level, seed=seed, config={})) for seed in range(2)]
    assert about_divergence(find_methods(calm)) == "No client's training ended in NaN or infinity in any of the 2 runs."
    assert about_divergence(find_methods(calm[:1])) == "No client's training ended in NaN or infinity."


@pytest.mark.parametrize(
    ("config", "counted"),
    [
        ({"selection": {"class_path": "Gossip", "init_args": {"k": 2}}}, []),
        ({"selection": {"class_path": "Gossip", "init_args": {"k": 2, "redraw": False}}}, [2, 3, 4, 5]),
        ({"selection": {"class_path": "Gossip", "init_args": {"k": "all"}}, "topology": "el_local"}, []),
        ({"selection": {"class_path": "PANM", "init_args": {"stage_one": 3}}}, [2, 3]),
        ({"selection": {"class_path": "PENS", "init_args": {"stage_one": 4}}}, [2, 3, 4]),
        ({"selection": {"class_path": "PENS"}}, [2, 3, 4, 5]),  # by default stage two begins later
        ({"selection": "Gossip"}, []),
        ({"selection": {"class_path": "AFIND"}}, [2, 3, 4, 5]),
        ({"selection": {"class_path": "mine.Gossip", "init_args": {"k": 2}}}, [2, 3, 4, 5]),
        ({"selection": {"class_path": "mine.Own", "init_args": {"stage_one": 3}}}, [2, 3, 4, 5]),
        ({"selection": {"class_path": "AFIND"}, "topology": {"generator": "small_world", "every": 2}}, []),
    ],
)
def test_links_that_are_drawn_anew_are_no_trouble(tmp_path, make_run, make_links, config, counted):
    links = make_links(np.random.default_rng(1), 5, CLIENTS, 1)
    run = make_run(tmp_path / "run", np.full((5, CLIENTS), 0.5), links, config=config)
    assert [event.first for event in of_lane(run, "links that are new")] == counted


def test_methods_whose_new_links_are_not_counted_are_named(tmp_path, make_run, make_links):
    links = make_links(np.random.default_rng(1), 5, CLIENTS, 1)
    policies = {"Draws": ("Gossip", {"k": 2}), "PANM": ("PANM", {"stage_one": 3}), "Learns": ("AFIND", {})}
    runs = []
    for name, (policy, arguments) in policies.items():
        config = {"selection": {"class_path": policy, "init_args": arguments}}
        runs.append(f"{name}={make_run(tmp_path / name, np.full((5, CLIENTS), 0.5), links, config=config)}")
    text = write_report(runs, tmp_path / "page.html").read_text()
    said = "Not counted as new are the links of Draws and PANM (from round 4 on), where neighbours are drawn anew"
    assert f"{said} by design." in text
    assert "data-trouble='2'" not in text  # the run that only draws has no row
