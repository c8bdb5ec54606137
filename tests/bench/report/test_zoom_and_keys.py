"""A drag shows some rounds alone; keys move the round and the client in the graph."""

import numpy as np
import pytest

pytest.importorskip("altair", reason="the extra `report` is not installed")

from dfl_lightning.bench.report.writing import write_report

ROUNDS, CLIENTS = 11, 4


@pytest.fixture(scope="module")
def page(tmp_path_factory, make_run, make_links):
    folder, rng, words = tmp_path_factory.mktemp("page"), np.random.default_rng(0), []
    for number in range(2):
        level = np.linspace(0.5, 0.8 + number / 20, ROUNDS)[:, None] + np.linspace(-0.1, 0.1, CLIENTS)
        config = {"selection": {"class_path": f"M{number}"}}
        run = make_run(folder / str(number), level, make_links(rng, ROUNDS, CLIENTS, 2), config=config)
        words.append(f"method {number}={run}")
    return write_report(words, folder / "page.html")


@pytest.fixture
def seen(page, open_page):
    return open_page(page)


PLOT = """() => {
  const svg = document.querySelector("#chart-learning-curves svg");
  const { left, top, width, height } = svg.querySelector(".root .background").getBoundingClientRect();
  const view = window.report.views["chart-learning-curves"];
  return { place: [left, top, width, height], domain: view.scale("x").domain() };
}"""


def until(seen, wanted):
    for _ in range(300):
        if seen.page.evaluate(PLOT)["domain"] == wanted:
            return
        seen.page.wait_for_timeout(20)
    raise AssertionError(seen.page.evaluate(PLOT))


def test_drag_zooms_to_its_rounds_and_double_click_resets(seen):
    seen.page.locator("#chart-learning-curves").scroll_into_view_if_needed()
    for back in ("double click", "button"):
        found = seen.page.evaluate(PLOT)
        assert found["domain"] == [1, ROUNDS]
        left, top, width, height = found["place"]
        seen.page.mouse.move(left + 0.31 * width, top + height / 2)
        seen.page.mouse.down()
        seen.page.mouse.move(left + 0.69 * width, top + height / 3, steps=3)
        assert seen.page.evaluate("String(getSelection())") == ""  # no words of the axes
        seen.page.mouse.up()
        until(seen, [4, 8])
        names = seen.page.locator("#chart-learning-curves text", has_text="method").all_text_contents()
        ends = [f"{100 * np.linspace(0.5, 0.8 + number / 20, ROUNDS)[7]:.1f}" for number in range(2)]
        assert {tuple(name.split()) for name in names} == {("method", str(n), end) for n, end in enumerate(ends)}
        left, top, width, height = seen.page.evaluate(PLOT)["place"]
        seen.page.mouse.move(left + width / 2, top + height / 2)
        assert seen.page.locator("#tip").inner_text().splitlines()[0] == "round\t6"
        button = seen.page.get_by_role("button", name="Rounds 4 to 8: show all")
        assert button.count() == 1
        if back == "button":
            button.click()
        else:
            seen.page.mouse.dblclick(left + width / 2, top + height / 2)
        until(seen, [1, ROUNDS])
        assert button.count() == 0
    assert seen.console == []


def test_zoomed_axis_names_only_cuts_of_its_rounds(seen):
    titles = """([from, to]) => {
      const y = { field: "mean", scale: { domain: [45, 95] }, axis: { title: "test accuracy, %, cut below 45" } };
      const rows = [[1, 12], [2, 50], [3, 90]].map(([round, mean]) => ({ method: "A", round, mean }));
      const spec = { height: 300, layer: [{ mark: { type: "line" }, encoding: { y, x: { scale: {}, axis: {} } } }] };
      return zoom.part(spec, [from, to], rows).layer[0].encoding.y.axis.title;
    }"""
    assert seen.page.evaluate(titles, [2, 3]) == "test accuracy, %"
    assert seen.page.evaluate(titles, [1, 2]) == "test accuracy, %, cut below 45"


@pytest.mark.parametrize("name", [pytest.param("graph", marks=pytest.mark.slow), "heat"])
def test_keys_move_round_and_client_in_graph_and_matrix(seen, name):
    def pressed(*keys):
        for key in keys:
            seen.page.keyboard.press(key)
        now = seen.page.evaluate("window.report.now()")
        return now["round"], now["picked"]

    while seen.page.evaluate("document.activeElement.id") != name:
        seen.page.keyboard.press("Tab")
    assert seen.page.evaluate(f"getComputedStyle(document.getElementById('{name}')).outlineStyle") != "none"
    assert pressed() == (ROUNDS, None)
    assert pressed("ArrowLeft", "ArrowLeft") == (ROUNDS - 2, None)
    assert pressed("Home") == (1, None)
    assert pressed("ArrowRight") == (2, None)
    assert pressed("ArrowDown", "ArrowDown") == (2, 1)
    assert pressed("ArrowUp", "ArrowUp") == (2, CLIENTS - 1)
    assert seen.page.locator("#one-name").inner_text() == f"Client {CLIENTS - 1}"
    assert pressed("Enter", "Escape") == (2, None)
    assert seen.page.evaluate("document.activeElement.id") == "client"
    assert seen.console == []
