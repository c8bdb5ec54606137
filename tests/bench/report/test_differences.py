"""Settings that differ between methods, their configs to download, and links over a whole run."""

import re
from pathlib import Path

import numpy as np
import pytest
import yaml

pytest.importorskip("altair", reason="the extra `report` is not installed")

import vl_convert

from dfl_lightning import UserError, read_run
from dfl_lightning.bench import report
from dfl_lightning.bench.report.charts.over_run import over_run, within_clusters
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.pictures import rows_of
from dfl_lightning.bench.report.page.sections import figures
from dfl_lightning.bench.report.page.sentences.links import about_links
from dfl_lightning.bench.report.settings.differences import differences
from dfl_lightning.bench.report.writing import write_page, write_report

AFIND = {"class_path": "dfl_lightning.callbacks.AFIND", "init_args": {"nu": 0.2, "k": 5, "layer": None}}
DATA = {
    "class_path": "dfl_lightning.data.Digits",
    "init_args": {"partition": {"class_path": "dfl_lightning.data.Dirichlet", "init_args": {"alpha": 0.5}}},
}


def methods_of(tmp_path, make_run, *configs):
    return find_methods([read_run(make_run(tmp_path / str(i), [[0.5]], config=c)) for i, c in enumerate(configs)])


def test_only_differing_settings_of_methods_are_listed(tmp_path, make_run):
    first = {"selection": AFIND, "data": DATA, "model": {"local_epochs": 5, "batch_size": 16}, "topology": "complete"}
    second = {
        **first,
        "selection": {"class_path": "dfl_lightning.callbacks.Gossip", "init_args": {"k": 3}},
        "model": {"local_epochs": 1, "batch_size": 16},
        "monitors": ["Fairness"],
        "trainer": {"accelerator": "gpu", "default_root_dir": "there"},
        "seed_everything": 7,
        "dropout": None,
    }
    found = differences(methods_of(tmp_path, make_run, first, second))
    assert found == {"selection": ["AFIND: k = 5, nu = 0.2", "Gossip: k = 3"], "model.local_epochs": ["5", "1"]}


def test_nested_arguments_of_one_class_are_separate_settings(tmp_path, make_run):
    other = yaml.safe_load(yaml.safe_dump({"selection": AFIND, "data": DATA}))
    other["selection"]["init_args"]["nu"] = 0.4
    other["data"]["init_args"]["partition"]["init_args"]["alpha"] = 0.1
    other["objective"] = {"class_path": "dfl_lightning.objectives.Ditto", "init_args": {"reg": 1.0}}
    found = differences(methods_of(tmp_path, make_run, {"selection": AFIND, "data": DATA}, other))
    assert found == {
        "selection.nu": ["0.2", "0.4"],
        "data.partition.alpha": ["0.5", "0.1"],
        "objective": ["–", "Ditto: reg = 1.0"],
    }


def test_page_orders_settings_like_the_verdict_and_saves_configs(tmp_path, make_run, open_page):
    configs = [{"selection": {**AFIND, "init_args": {"nu": nu}}, "model": {"local_epochs": 2}} for nu in (0.1, 0.3)]
    runs = [make_run(tmp_path / str(i), [[0.5 + i / 10]], config=c) for i, c in enumerate(configs)]
    seen = open_page(write_report(runs))
    table = seen.page.locator("#settings table")
    heads = [head.split("\n")[0].removesuffix(" YAML") for head in table.locator("thead th").all_inner_texts()]
    assert heads == ["setting", "AFIND (nu = 0.3)", "AFIND (nu = 0.1)"]
    assert table.locator("tbody tr").all_inner_texts() == ["selection.nu\t0.3\t0.1"]
    with seen.page.expect_download() as download:
        table.locator("[data-config]").first.click()
    assert download.value.suggested_filename == "AFIND-nu-0.3.yaml"
    assert yaml.safe_load(Path(download.value.path()).read_text()) == {"seed_everything": 0, **configs[1]}
    assert seen.console == []


def test_columns_with_equal_differences_share_one_table(tmp_path, make_run):
    named, columns = [], []
    for column in (0, 1):
        for name in "ab":
            config, images = {"selection": {"class_path": f"x.{name}"}}, np.arange(10) + column
            named.append((name, make_run(tmp_path / f"{name}{column}", [[0.5]], config=config, test_images=images)))
            columns.append(f"column {column}")
    text = write_page(named, tmp_path / "page.html", columns=columns).read_text(encoding="utf-8")
    assert text.count("<table class='settings'>") == 1
    assert text.count("<table class='verdict'>") == 2


def test_many_methods_are_rows_and_columns_have_headed_tables(tmp_path, make_run):
    named, columns = [], []
    for column in (0, 1):
        for name in "abcdefgh"[: 8 - column]:
            config, images = {"selection": {"class_path": f"x.{name}"}, "lr": column}, np.arange(10) + column
            run = make_run(tmp_path / f"{name}{column}", [[0.5]], config=config, test_images=images)
            named.append((name, run))
            columns.append(f"column {column}")
    text = write_page(named, tmp_path / "page.html", columns=columns).read_text(encoding="utf-8")
    _, first, second = text.partition('<section id="settings">')[2].partition("</section>")[0].split("<h3>")
    for part, column, heads, corner in ((first, 0, 2, "method"), (second, 1, 8, "setting")):
        assert part.startswith(f"column {column}</h3>")
        assert part.count("<th scope='col'>") == heads
        assert f"<th scope='col'>{corner}</th>" in part
    assert re.findall(r"data-single=\"(.)\".*?<td>(.)</td></tr>", first) == list(
        zip("abcdefgh", "abcdefgh", strict=True)
    )


# --- over a whole run -------------------------------------------------------------------------------------------------
@pytest.fixture
def run(tmp_path, make_run, make_links):
    rng = np.random.default_rng(0)
    links = make_links(rng, 6, 5, 2, probes=1, every=2)
    links += [(1, 0, 5 + 3, 0.25, False, False)]  # a stored update
    folder = make_run(tmp_path / "run", np.full((6, 5), 0.5), links, clusters=[1, 0, 1, 0, 0])
    return read_run(folder), links


def test_choices_and_weights_are_counted_over_the_recorded_rounds(run):
    run, links = run
    chosen, weight = np.zeros((5, 5)), np.zeros((5, 5))
    for _, receiver, sender, value, selected, _ in links:
        if sender < 5:
            chosen[receiver, sender] += selected
            weight[receiver, sender] += value / 3
    found = over_run(run)
    assert found.rounds == 3
    assert (found.chosen == chosen).all()
    assert found.weight == pytest.approx(weight, abs=1e-6)
    inside = sum(
        chosen[i, j] for i in range(5) for j in range(5) if run.split["clusters"][i] == run.split["clusters"][j]
    )
    assert within_clusters(run) == pytest.approx(inside / chosen.sum())


def test_matrix_has_tiles_for_chosen_pairs_in_cluster_order(run):
    run, _ = run
    spec = report.who_from_whom(run).to_dict()
    assert spec["encoding"]["x"]["scale"]["domain"] == [1, 3, 4, 0, 2]
    svg, found = vl_convert.vegalite_to_svg(spec), over_run(run)
    assert svg.count('aria-roledescription="rect mark"') == (found.chosen > 0).sum()  # blank where never chosen
    assert (found.chosen == 0).any()
    rows = rows_of(spec)
    assert [[row[f"rounds {j}"] for j in range(5)] for row in rows] == found.chosen.tolist()
    assert [row["weight 0"] for row in rows] == pytest.approx(1000 * found.weight[:, 0], abs=0.5)


def test_a_run_whose_clients_choose_no_others_has_no_matrix(tmp_path, make_run):
    alone = [(r, i, i, 1.0, False, False) for r in range(2) for i in range(3)]
    served = [(r, 3, j, 0.3, True, False) for r in range(2) for j in range(3)]
    for name, links in (("alone", alone), ("served", served), ("none", [])):
        found = read_run(make_run(tmp_path / name, np.full((2, 3), 0.5), links))
        with pytest.raises(UserError):
            report.who_from_whom(found)
        assert within_clusters(found) is None


def test_words_below_a_matrix_say_how_seeds_differ(tmp_path, make_run):
    """Clients 0 and 1 are a cluster, 2 and 3 another one; each client chooses one sender, or with seed 1 two."""
    inside = [(0, i, i ^ 1, 0.5, True, False) for i in range(4)]
    seeds = {0: inside, 1: [*inside, *((0, i, (i + 2) % 4, 0.5, True, False) for i in range(4))]}
    runs = [
        make_run(tmp_path / str(seed), np.full((1, 4), 0.5), links, seed=seed, clusters=[0, 0, 1, 1], config={})
        for seed, links in seeds.items()
    ]
    (method,) = find_methods([read_run(run) for run in runs])
    first = "100.0 % of all choices are within a cluster, 1.0 senders a client and round"
    assert (
        about_links(method, {run.path for run in method.runs})
        == f"{first}; over 2 seeds 50.0 to 100.0 % and 1.0 to 2.0"
    )
    assert about_links(method, set()) == first  # the links of the other seed are not read
    notes = [figure.brief[1] for figure in figures([method]) if figure.section == "over"]
    assert notes == [f"seed 0: {first}; over 2 seeds 50.0 to 100.0 % and 1.0 to 2.0"]
