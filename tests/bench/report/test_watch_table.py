"""The table of `dfl-report --watch` in a browser: sort, filter, group, pick, follow, and open a page."""

import os
import shutil
import threading
from types import SimpleNamespace

import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.watch import collection, serving
from dfl_lightning.bench.report.watch.serving import make_server

HOSTILE = "<img src=x onerror=document.title='broken'>"


@pytest.fixture
def served(tmp_path, make_run, monkeypatch):
    """Serve twelve runs of three numbers of neighbours with four seeds, and one with a hostile name."""
    for k in (2, 5, 10):
        for seed in range(4):
            config = {"selection": {"class_path": "Gossip", "init_args": {"k": k}}, "topology": "complete"}
            make_run(tmp_path / f"k{k}" / str(seed), [[0.5 + k / 100 + seed / 1000]], seed=seed, config=config)
    make_run(tmp_path / HOSTILE, [[0.1]], config={"selection": {"class_path": HOSTILE}})
    monkeypatch.setattr(serving, "_read", lambda collection: collection.refresh())
    monkeypatch.setattr(collection, "LEAST_GAP", 0.0)
    monkeypatch.setattr(collection, "SHARE", 1e9)
    server = make_server([str(tmp_path)], port=0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


@pytest.fixture
def opened(served, chromium, until):
    """Open the table, and close it at the end."""
    context = chromium.new_context(viewport={"width": 1440, "height": 900})

    def load(address="", width=1440):
        seen = SimpleNamespace(page=context.new_page(), console=[])
        seen.page.set_viewport_size({"width": width, "height": 900})
        seen.page.on("console", lambda message: seen.console.append(message.text))
        seen.page.on("pageerror", lambda error: seen.console.append(str(error)))
        seen.page.goto(served + address)
        until(seen, "window.watched?.ready")
        return seen

    yield load
    context.close()


def column(seen, name):
    """Return the cells of a column, from top to bottom, without those of groups."""
    at = seen.page.locator("#heads th").evaluate_all(
        "(heads, name) => heads.findIndex((head) => head.dataset.of === name)", name
    )
    return seen.page.locator(f"#rows tr:not(.group, .space) td:nth-child({at + 1})").all_inner_texts()


def test_sort_filter_group_and_pick(opened, until):
    seen = opened()
    page = seen.page
    assert page.title().startswith("Runs in /")
    assert page.locator("#count").inner_text() == "13 runs, 0 picked"
    assert {"selection.k", "seed", "test accuracy"} <= set(
        page.locator("#heads th").evaluate_all("all => all.map((th) => th.dataset.of)")
    )
    page.locator("[data-of='test accuracy'] button").click()
    scores = [float(text) for text in column(seen, "test accuracy")]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) == 13
    assert page.locator("[data-of='test accuracy']").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Enter")  # the name has kept the focus
    assert [float(text) for text in column(seen, "test accuracy")] == scores[::-1]

    page.select_option("#filter-column", "selection.k")
    page.select_option("#filter-how", "least")
    page.fill("#filter-value", "5")
    page.keyboard.press("Enter")
    assert set(column(seen, "selection.k")) == {"5", "10"}
    assert page.locator("#count").inner_text() == "8 of 13 runs, 0 picked"
    page.fill("#words", "k10")
    assert set(column(seen, "selection.k")) == {"10"}
    page.fill("#words", "")

    page.select_option("#group", "selection.k")
    heads = page.locator("#rows tr.group")
    assert heads.locator("button").all_inner_texts() == [
        "▾ selection.k = 5 (4)",
        "▾ selection.k = 10 (4)",
    ]
    accuracy = 55 + (0 + 0.1 + 0.2 + 0.3) / 4
    assert f"{accuracy:.4g} ± 0.13" in heads.first.inner_text()
    heads.first.locator("input").check()
    assert page.locator("#count").inner_text() == "8 of 13 runs, 4 picked"
    heads.first.locator("button").click()
    assert set(column(seen, "selection.k")) == {"10"}

    address = page.url.partition("/#")[2]
    again = opened(f"#{address}")
    assert again.page.locator("#filters li").all_inner_texts() == ["selection.k ≥ 5 ✕"]
    assert again.page.locator("#rows tr.group").count() == 2
    again.page.locator("#filters button").click()
    assert again.page.locator("#rows tr.group").count() == 4
    assert seen.console == again.console == []


def test_a_range_is_picked_and_its_page_opens(opened, until, served):
    seen = opened("#sort=run")
    boxes = seen.page.locator("#rows input")
    boxes.nth(1).click()
    boxes.nth(3).click(modifiers=["Shift"])
    link = seen.page.locator("#open")
    assert link.inner_text() == "Open the page of 3 runs"
    assert link.get_attribute("target") == "_blank"
    href = link.get_attribute("href")
    seen.page.locator("#pick-none").click()
    assert link.get_attribute("href") is None
    seen.page.goto(served + href[1:], timeout=120_000)
    until(seen, "window.report?.ready")
    assert seen.page.locator(".kind").inner_text() == "dfl_lightning · 3 runs, 1 method"
    assert seen.console == []


def test_the_table_follows_the_folder(opened, until, tmp_path, make_run):
    seen = opened("#sort=run")
    seen.page.locator("#rows input").nth(1).click()
    seen.page.locator("#rows input").nth(2).focus()
    run = make_run(tmp_path / "0" / "new", [[0.9]] * 2, status=None)
    rows = "document.querySelector('#count').textContent"
    until(seen, f"{rows} === '14 runs, 1 picked'")
    assert dict(zip(column(seen, "run"), column(seen, "status"), strict=True))["0/new"] == "not finished"
    assert seen.page.evaluate("document.activeElement.tagName") == "INPUT"
    with (run / "metrics.csv").open("a") as file:
        file.write("2,0.1,0.95,2,1,1.0,0.5\n")
    until(seen, "document.querySelector('#rows').textContent.includes('95')")
    shutil.rmtree(run)
    shutil.rmtree(tmp_path / "k10")
    until(seen, f"{rows}.startsWith('9 runs')")
    assert seen.console == []


def test_hostile_names_are_letters(opened):
    seen = opened("#group=selection&words=onerror")
    assert column(seen, "run") == [HOSTILE]
    assert seen.page.locator("img, #rows b").count() == 0
    assert seen.page.title().startswith("Runs in /")
    crooked = opened("#only=[1]&only=x&only=" + '["a","constructor","b"]' + "&sort=-<b>&group=<i>&column=__proto__")
    assert crooked.page.locator("#rows tr").count() > 0
    assert crooked.console == []


def test_only_rows_near_the_screen_exist(opened, until, tmp_path, make_run):
    first = make_run(tmp_path / "many" / "0", [[0.2]])
    for number in range(1, 300):
        shutil.copytree(first, tmp_path / "many" / str(number), copy_function=os.link)
    seen = opened("#sort=run&words=many")
    assert seen.page.locator("table").get_attribute("aria-rowcount") == "301"
    assert seen.page.locator("#rows tr").count() < 60
    seen.page.evaluate("document.querySelector('#grid').scrollTop = 1e9")
    until(seen, "document.querySelector('#rows').textContent.includes('many/299')")
    assert column(seen, "run")[-1] == "many/299"
    assert seen.page.locator("#rows tr").count() < 60


@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_the_table_is_accessible_and_fits_a_phone(opened, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe-playwright-python is not installed")
    seen = opened("#group=selection.k", 390)
    seen.page.emulate_media(color_scheme=scheme)
    seen.page.locator("#choosing summary").click()
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= 390
    found = axe.Axe().run(seen.page, options={"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]})
    assert [(violation["id"], len(violation["nodes"])) for violation in found.response["violations"]] == []
