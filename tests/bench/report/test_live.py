"""The page of a run that lasts: what it says, what it costs, and the browser that follows it."""

import json
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning import read_run
from dfl_lightning.bench.report import live
from dfl_lightning.bench.report.live import LivePage
from dfl_lightning.bench.report.methods import find_methods
from dfl_lightning.bench.report.page.assemble import page
from dfl_lightning.bench.report.writing import write_methods, write_report
from dfl_lightning.cli.command import run as command
from dfl_lightning.round.callback import RoundCallback

DATA = "Digits, RotatedClusters{0,90}, 6 clients"


class FailsInRound(RoundCallback):
    """Raises when a round begins."""

    def __init__(self, round):
        self.round = round

    def on_train_epoch_start(self, trainer, pl_module):
        if pl_module.bank.boundary.round == self.round:
            raise RuntimeError("no more")


@pytest.fixture
def at_once(monkeypatch):
    """Write a page after every round."""
    monkeypatch.setattr(live, "LEAST_GAP", 0.0)
    monkeypatch.setattr(live, "SHARE", 1e9)


def test_page_of_an_unfinished_run_equals_that_of_its_files(small_run, at_once, monkeypatch):
    pages = []

    def compared(methods, file, following):
        run = methods[0].runs[0]
        (file.parent / "summary.json").write_text(json.dumps(run.summary))
        fit.trainer.run_folder._rounds.write_arrays(fit.folder, len(run.metrics["round"]))
        assert page(methods) == page(find_methods([read_run(file.parent)]))
        pages.append(page(methods, following=following))

    monkeypatch.setattr(live, "write_methods", compared)
    fit = small_run(2, callbacks=[LivePage()], checkpoint_every=10)
    fit.trainer.config = {"trainer": {"max_rounds": 2}}
    fit.fit()
    assert len(pages) == 2
    for done, text in enumerate(pages, 1):
        rounds = f"{done} of 2 rounds" if done < 2 else "2 rounds"
        assert f"running after {rounds}" in text
        assert f">{rounds}, written at " in text
        assert f"<h1>{DATA}</h1>" in text
    final = (fit.folder / "report.html").read_text(encoding="utf-8")
    assert 'id="live"' not in final
    assert "running" not in final[: final.index("<script")]


@pytest.mark.parametrize("has_page", [True, False])
def test_last_lines_suggest_dfl_report_only_without_a_page(small_run, capsys, has_page):
    small_run(1, callbacks=[LivePage()] if has_page else [], enable_progress_bar=True).fit()
    assert ("its page: dfl-report" in capsys.readouterr().out) == (not has_page)


@pytest.mark.parametrize("seconds", [0.05, 0.5, 3.0])
def test_pages_take_a_twentieth_of_the_time(small_run, monkeypatch, tmp_path, seconds):
    now, pages = [0.0], []

    def slow(methods, file, following):
        pages.append(now[0])
        now[0] += seconds * (5 if len(pages) == 1 else 1)  # the first one loads what draws

    monkeypatch.setattr(live, "write_methods", slow)
    monkeypatch.setattr(live, "find_methods", lambda runs: runs)
    monkeypatch.setattr(live, "RunningRun", lambda folder, summary: None)
    monkeypatch.setattr(live, "summarise", lambda trainer, module, status: {})
    monkeypatch.setattr(live.time, "perf_counter", lambda: now[0])
    trainer = small_run(1).trainer
    trainer.run_folder.path = tmp_path
    watched = LivePage()
    for _ in range(1000):
        now[0] += 1.0
        watched.on_boundary(trainer, None)
    share = seconds * (len(pages) - 1) / now[0]
    assert 0.5 * min(0.05, seconds / 2) < share <= 0.05
    assert min(np.diff(pages)) >= 2


def test_a_page_that_cannot_be_written_is_tried_once_more(small_run, at_once, capsys):
    class InTheWay(RoundCallback):
        def on_train_start(self, trainer, pl_module):
            (trainer.run.path / "report.html").mkdir()

    fit = small_run(3, callbacks=[LivePage(), InTheWay()]).fit()
    assert len(fit.trainer.run.metrics["round"]) == 3
    first, last = [line for line in capsys.readouterr().err.splitlines() if "report.html" in line]
    assert first.startswith("warning: the page of the run failed (")
    assert first.endswith(f"; the run continues without it, and dfl-report {fit.folder} makes it")
    assert last.startswith("warning: the last page of the run failed (")


def test_the_last_page_says_how_the_run_ended(small_run, at_once):
    fit = small_run(6, callbacks=[LivePage(), FailsInRound(2)])
    fit.trainer.config = {"trainer": {"max_rounds": 6}}
    with pytest.raises(RuntimeError):
        fit.fit()
    text = (fit.folder / "report.html").read_text(encoding="utf-8")
    assert "failed after 2 of 6 rounds" in text
    assert 'id="live"' not in text
    (fit.folder / "summary.json").unlink()  # as of a run that was killed
    (fit.folder / "config.yaml").write_text("trainer: {max_rounds: 400}\n")
    text = write_report([fit.folder]).read_text(encoding="utf-8")
    assert "not finished after 2 of 400 rounds" in text
    assert f"<h1>{DATA}</h1>" in text


def test_dfl_fit_writes_the_page_and_names_it_at_once(tmp_path, monkeypatch, capsys, at_once):
    monkeypatch.chdir(tmp_path)
    assert command("fit", ["--config", "gossip", "--live", "--data.num_clients", "4", "--trainer.max_rounds=2"]) == 0
    (file,) = tmp_path.glob("runs/gossip/*/report.html")
    lines = capsys.readouterr().out.splitlines()
    name = str(file.relative_to(tmp_path))
    first = lines.index(f"page: {name} (open it in a browser, it follows the run)")
    assert first < next(at for at, line in enumerate(lines) if line.startswith("round 2/2"))
    assert lines[-1] == f"page: {name}"
    assert not any("dfl-report" in line for line in lines)
    assert "LivePage" not in (file.parent / "config.yaml").read_text()
    assert 'id="live"' not in file.read_text(encoding="utf-8")


# --- in a browser
STATE = """() => {
  const table = document.querySelector("#verdict");
  return {
    ...window.report.now(),
    theme: document.documentElement.dataset.theme,
    open: document.querySelector("#links").open,
    top: Math.round(document.querySelector(".pair").getBoundingClientRect().top),
    rounds: document.querySelector("#live")?.textContent.match(/\\d+ of \\d+/)?.[0] ?? null,
    client: document.querySelector("#client").value,
    slider: document.querySelector("#round").value,
  };
}"""


def loaded(seen, rounds):
    """Wait until the page of a number of rounds is drawn (None: the final page) and return its state."""
    from playwright.sync_api import Error

    for _ in range(600):
        with suppress(Error):  # it is just being loaded
            there = "window.report?.drawn && window.following?.settled !== false"
            state = seen.page.evaluate(f"{there} ? ({STATE})() : null")
            if state and state.get("rounds") == rounds:
                return state
        seen.page.wait_for_timeout(50)
    raise AssertionError(f"the browser did not load the page of {rounds}")


def come_true(page, expression):
    """Wait until an expression is true; the page's policy forbids Playwright's own waiting."""
    from playwright.sync_api import Error

    for _ in range(600):
        with suppress(Error):
            if page.evaluate(expression):
                return
        page.wait_for_timeout(50)
    raise AssertionError(f"not within half a minute: {expression}")


def test_the_browser_follows_and_keeps_what_the_reader_chose(tmp_path, make_run, make_links, open_page):
    levels, rng = np.random.default_rng(0).uniform(0.4, 0.9, (9, 6)), np.random.default_rng(1)
    links = make_links(rng, 9, 6, 2)
    file = tmp_path / "page.html"

    def write(rounds, status=None, following=0.2):
        about = {"config": {"trainer": {"max_rounds": 9}, "selection": {"class_path": "Ours"}}, "status": status}
        folder = make_run(
            tmp_path / str(rounds), levels[:rounds], [link for link in links if link[0] < rounds], **about
        )
        write_methods(find_methods([read_run(folder)]), file, following=following)

    write(4)
    seen = open_page(file, scheme="light")
    assert loaded(seen, "4 of 9")["slider"] == "3"  # the newest
    write(6, following=6)
    assert loaded(seen, "6 of 9")["slider"] == "5"  # still
    seen.page.click("#theme")
    seen.page.click("#links summary")
    seen.page.evaluate("window.report.move(2)")
    seen.page.select_option("#client", "4")
    seen.page.evaluate("scrollTo({ top: document.querySelector('.pair').offsetTop - 77, behavior: 'instant' })")
    seen.page.wait_for_timeout(400)
    before = loaded(seen, "6 of 9")
    assert (before["theme"], before["open"], before["round"], before["picked"]) == ("dark", True, 3, 4)
    assert seen.page.evaluate("location.hash") == "#who?run=Ours&round=3&client=4"
    write(8)
    after = loaded(seen, "8 of 9")
    assert after.pop("rounds") == "8 of 9"
    assert abs(after.pop("top") - before.pop("top")) <= 2
    assert after == {key: value for key, value in before.items() if key != "rounds"}
    write(9, "finished", None)
    assert loaded(seen, None)["picked"] == 4
    assert seen.console == []


@pytest.mark.slow
def test_an_address_shows_its_run_round_and_client(tmp_path, make_run, make_links, open_page):
    rng = np.random.default_rng(0)
    runs = [
        make_run(
            tmp_path / f"{name} {seed}",
            rng.uniform(0.4, 0.9, (6, 5)),
            make_links(rng, 6, 5, 2),
            seed=seed,
            config={"selection": {"class_path": f"mine.{name}"}},
        )
        for name in ("Ours", "Theirs")
        for seed in (0, 1)
    ]
    seen = open_page(write_report(runs, tmp_path / "page.html"))
    start = seen.page.evaluate("window.report.now()")

    def at(address):
        seen.page.evaluate("(hash) => { location.hash = hash; }", address)
        seen.page.wait_for_timeout(150)
        now = seen.page.evaluate("window.report.now()")
        assert seen.page.input_value("#run") == str(now["run"])
        return now["run"], now["round"], now["picked"]

    assert at("#who?run=Nope&round=2") == (start["run"], start["round"], None)
    assert at("#who?run=Theirs&seed=1&round=5&client=3") == (3, 5, 3)
    assert at("#verdict") == (3, 5, 3)
    assert at("#who?run=Ours&round=99&client=99") == (0, 6, None)
    seen.page.select_option("#client", "1")
    seen.page.wait_for_timeout(400)
    address = seen.page.url
    assert address.endswith("#who?run=Ours&seed=0&round=6&client=1")
    seen.page.goto("about:blank")
    seen.page.goto(address)
    come_true(seen.page, "window.report?.drawn > 0")
    now = seen.page.evaluate("window.report.now()")
    assert (now["run"], now["round"], now["picked"]) == (0, 6, 1)
    come_true(seen.page, "Math.abs(document.querySelector('#one').getBoundingClientRect().top - 68) < 20")
    assert seen.console == []
