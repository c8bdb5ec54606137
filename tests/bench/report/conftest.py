"""Run folders written by hand, and a browser that opens pages made of them."""

import shutil
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest

FLAGS = [
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def chromium():
    """Start a browser without a window; skip the tests that need it if there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def tabs(chromium):
    """Keep tabs that no test uses: a new one is a new process, which costs as much as the page in it."""
    return []


@pytest.fixture
def open_page(chromium, tabs):
    """Open a page's file and wait until its charts are drawn: all of them, or those near the screen."""
    opened = []

    def load(file, width=1440, scheme="light", bypass_csp=False, everything=True):
        fresh = bypass_csp or not tabs
        page = chromium.new_context(bypass_csp=bypass_csp).new_page() if fresh else tabs.pop()
        seen = SimpleNamespace(page=page, console=[], requests=[])
        handlers = {
            "console": lambda message: seen.console.append(message.text),
            "pageerror": lambda error: seen.console.append(str(error)),
            "request": lambda request: seen.requests.append(request.url),
        }
        for event, handler in handlers.items():
            page.on(event, handler)
        opened.append((page, handlers, bypass_csp))
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme, media="null")
        page.set_default_timeout(30_000)
        page.goto(Path(file).resolve().as_uri())
        wait_until_drawn(seen, everything=everything)
        return seen

    yield load
    for page, handlers, bypass_csp in opened:
        if bypass_csp:
            page.context.close()
            continue
        for event, handler in handlers.items():
            page.remove_listener(event, handler)
        page.evaluate("sessionStorage.clear()")
        page.mouse.move(0, 0)
        page.goto("about:blank")
        tabs.append(page)


def wait_until_drawn(seen, times=1, everything=True):
    drawn = "(times) => Boolean(window.report && window.report.drawn >= times)"
    for _ in range(1200):
        if asked(seen.page, drawn, times):
            whole = "Promise.resolve(window.report.whole()).then(() => true)"
            if not everything or asked(seen.page, whole):
                return
        assert not seen.console, seen.console
        seen.page.wait_for_timeout(50)
    raise AssertionError("the page did not draw its charts within a minute")


def asked(page, expression, *words):
    """Evaluate an expression on the page; return None while another page is being loaded."""
    from playwright.sync_api import Error

    with suppress(Error):
        return page.evaluate(expression, *words)
    return None


@pytest.fixture
def redrawn():
    return wait_until_drawn


@pytest.fixture
def until():
    """Wait until a condition holds on a page; Playwright's own wait needs `eval`, which the page forbids."""

    def wait(seen, condition, *words):
        for _ in range(400):
            if asked(seen.page, condition, *words):
                return
            seen.page.wait_for_timeout(25)
        raise AssertionError(condition)

    return wait
