"""The pages in a real browser: drawn, readable, reachable with the keyboard, at any width and in either scheme."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser import CHROMIUM, Browser, browser
from fastapi import FastAPI
from made_up import filled, model_id
from running import Standing

from fairstream.service.dashboard.routes import Dashboard
from fairstream.service.keys import make_key
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace
from live_services import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on this machine"),
]

PAGES = (
    "/",
    "/models",
    f"/models/{model_id(9)}",
    "/updates",
    "/lists?user=ann",
    "/items",
    "/experiments",
    "/login",
    "/models/nobody",
)
N_CHARTS = 4
TAB = ("Tab", 9)
UNFOLD = "for (const folded of document.querySelectorAll('details')) folded.open = true"

# Text's contrast with what is painted behind it, both as the browser computes them.
CONTRAST = """(() => {
  const parsed = (colour) => (colour.match(/[\\d.]+/g) || []).map(Number);
  const linear = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const behind = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parsed(getComputedStyle(at).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const low = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let seen = 0;
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (getComputedStyle(element).visibility === "hidden") continue;
    if (!walker.currentNode.textContent.trim() || !element.checkVisibility() || element.closest("script")) continue;
    const style = getComputedStyle(element);
    const ink = parsed(element.closest("svg") ? style.fill : style.color);
    const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    seen += 1;
    if (ratio < 4.5) low.push([ratio, element.outerHTML.slice(0, 120)]);
  }
  return { seen, low };
})()"""

TOO_WIDE = """[...document.querySelectorAll("body *")]
  .filter((element) => !element.closest(".skip") && element.getBoundingClientRect().right > innerWidth + 1)
  .map((element) => element.outerHTML.slice(0, 100))"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("dashboard") / "shop"
    with filled(Workspace.create(folder, LiveConfig(group="community"))) as made:
        yield made


@pytest.fixture(scope="module")
def seen(workspace: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    """A browser that has signed in by typing a key into the page."""
    key = make_key(workspace.engine, "admin", "admin")
    app = FastAPI()
    app.router.routes.extend(Dashboard(workspace, Standing()).routes())
    with served(app, ws="none") as address, browser(tmp_path_factory.mktemp("profile")) as page:
        page.screen(1280)
        page.go(f"{address}/")
        assert page.run("location.pathname") == "/login"
        assert page.run("document.activeElement.id") == "key"
        page.ask("Input.insertText", text=key)
        page.press("Enter", 13, text="\r")
        page.wait_for("location.pathname === '/' && document.readyState === 'complete'")
        yield page, address


@pytest.fixture
def page(seen: tuple[Browser, str]) -> Browser:
    seen[0].wrong.clear()
    seen[0].requests.clear()
    return seen[0]


@pytest.fixture
def address(seen: tuple[Browser, str]) -> str:
    return seen[1]


def test_charts_are_drawn_and_nothing_leaves_the_host(page: Browser, address: str) -> None:
    for width in (1280, 390):
        page.screen(width, touch=width < 500)
        page.go(f"{address}/")
        page.run(UNFOLD)
        assert page.run("document.querySelectorAll('svg.chart').length") == N_CHARTS
        drawn = "[...document.querySelectorAll('svg.chart')].every((svg) => svg.querySelector('path.line'))"
        assert page.run(drawn)
        # Dates neither touch each other nor leave their chart.
        assert page.run(
            """[...document.querySelectorAll("svg.chart")].every((svg) => {
              const box = svg.getBoundingClientRect();
              const dates = [...svg.querySelectorAll(":scope > text")].map((text) => text.getBoundingClientRect());
              return dates.length > 2 && dates.every((date, n) => date.right <= box.right + 1
                && (!n || dates[n - 1].right < date.left));
            })"""
        )
    assert page.requests
    assert [
        each for each in page.requests if not each.startswith((f"{address}/", "data:"))
    ] == []  # the browser draws fields
    assert page.wrong == []


@pytest.mark.parametrize("width", [1280, 390, 360])
def test_nothing_is_wider_than_the_screen(page: Browser, address: str, width: int) -> None:
    for path in PAGES:
        page.screen(width, 844, touch=width < 500)
        page.go(f"{address}{path}")
        page.run(UNFOLD)
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run(TOO_WIDE) == []


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(page: Browser, address: str, dark: bool) -> None:
    for path in PAGES:
        page.screen(1280, dark=dark)
        page.go(f"{address}{path}")
        page.run(UNFOLD)
        found: dict[str, Any] = page.run(CONTRAST)
        assert found["seen"] >= 3
        assert found["low"] == []


def test_every_link_is_reached_with_the_keyboard_and_seen(page: Browser, address: str) -> None:
    page.screen(1280)
    for path in ("/", f"/models/{model_id(9)}"):
        page.go(f"{address}{path}")
        page.run("document.activeElement.blur()")
        page.run(
            "window.links = [...document.querySelectorAll('a, button, summary')].filter((e) => e.checkVisibility())"
        )
        wanted, reached = page.run("links.length"), set()
        page.press(*TAB)
        assert page.run("document.activeElement.className") == "skip"
        assert page.run("document.activeElement.getBoundingClientRect().left") >= 0
        for _ in range(3 * wanted):
            at = page.run("links.indexOf(document.activeElement)")
            if at >= 0:
                assert page.run("getComputedStyle(document.activeElement).outlineStyle") == "solid"
                reached.add(at)
            page.press(*TAB)
        assert reached == set(range(wanted))


def test_a_chart_tells_its_numbers_when_pointed_at(page: Browser, address: str) -> None:
    page.screen(1280)
    page.go(f"{address}/")
    tip = "document.querySelector('#chart-gap .column:last-of-type .tip')"
    assert page.run(f"getComputedStyle({tip}).visibility") == "hidden"
    point = page.run(
        """(() => {
          document.querySelector("#chart-gap").scrollIntoView({ block: "center", behavior: "instant" });
          const box = document.querySelector("#chart-gap .column:last-of-type .hit").getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=point[0], y=point[1])
    page.wait_for(f"getComputedStyle({tip}).visibility === 'visible'")
    assert "largest gap" in page.run(f"{tip}.textContent")
    assert page.run(f"{tip}.getBoundingClientRect().right") <= 1280


def test_a_button_is_pressed_without_scripts(page: Browser, address: str) -> None:
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.screen(390, touch=True)
        page.go(f"{address}/")
        assert "quality-table" in page.run("document.documentElement.outerHTML")
        page.run("document.querySelector('.banner button').focus()")
        page.press("Enter", 13, text="\r")
        page.wait_for("document.querySelector('h1').textContent === 'Run an update now?'")
        page.run("document.querySelector('.confirm button').focus()")
        page.press("Enter", 13, text="\r")
        page.wait_for("document.querySelector('.flash')?.textContent === 'The update has been started.'")
    finally:
        page.ask("Emulation.setScriptExecutionDisabled", value=False)


def test_pages_print(page: Browser, address: str) -> None:
    page.go(f"{address}/")
    assert page.pdf().startswith(b"%PDF")
    assert page.wrong == []
