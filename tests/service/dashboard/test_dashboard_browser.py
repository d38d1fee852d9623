"""The pages in a real browser: drawn, readable, reachable with the keyboard, at any width and in either scheme."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, Browser, browser
from fastapi import FastAPI
from made_up import filled, model_id

from fairstream.service.dashboard import router
from fairstream.service.dashboard.audit_file import audit_html
from fairstream.service.dashboard.one_model import read_model
from fairstream.service.database import now
from fairstream.service.keys import make_key
from fairstream.service.settings import LiveConfig
from fairstream.service.workspace import Workspace
from live_services import served

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on this machine"),
]

DRAWN = "document.documentElement.dataset.charts === 'drawn'"
N_CHARTS = 9
TAB = ("Tab", 9)

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
    key = make_key(workspace.engine, "reader", "read")
    app = FastAPI()
    app.include_router(router(workspace, lambda: {"requests": 12, "errors": 0, "updating": False}))
    with served(app, ws="none") as address, browser(tmp_path_factory.mktemp("profile")) as page:
        page.screen(1280)
        page.go(f"{address}/")
        assert page.run("location.pathname") == "/login"
        assert page.run("document.activeElement.id") == "key"
        page.ask("Input.insertText", text=key)
        page.press("Enter", 13, text="\r")
        page.wait_for(DRAWN)
        assert page.run("location.pathname + location.search") == "/"
        yield page, address


@pytest.fixture
def page(seen: tuple[Browser, str]) -> Browser:
    seen[0].wrong.clear()
    seen[0].requests.clear()
    return seen[0]


@pytest.fixture
def address(seen: tuple[Browser, str]) -> str:
    return seen[1]


def overview(page: Browser, address: str, width: int = 1280, *, dark: bool = False) -> None:
    page.screen(width, 844 if width < 500 else 900, dark=dark, touch=width < 500)
    page.go(f"{address}/", until=DRAWN)


@pytest.mark.parametrize("width", [1280, 390, 360])
def test_all_charts_are_drawn_and_nothing_leaves_the_host(page: Browser, address: str, width: int) -> None:
    overview(page, address, width)
    assert page.run("document.querySelectorAll('.chart svg.marks').length") == N_CHARTS
    assert page.run("[...document.querySelectorAll('.chart svg.marks')].every((svg) => svg.querySelector('path[d]'))")
    assert page.requests
    assert [request for request in page.requests if not request.startswith(f"{address}/")] == []
    assert page.wrong == []


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 390, 360])
def test_nothing_is_wider_than_the_screen(page: Browser, address: str, width: int, dark: bool) -> None:
    for path in ("/", f"/models/{model_id(9)}", "/login"):
        page.screen(width, 844, dark=dark, touch=width < 500)
        page.go(f"{address}{path}", until=DRAWN if path == "/" else "document.readyState === 'complete'")
        page.run("for (const folded of document.querySelectorAll('details')) folded.open = true")
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run(TOO_WIDE) == []


@pytest.mark.parametrize("dark", [False, True])
def test_all_text_can_be_read(page: Browser, address: str, dark: bool) -> None:
    for path in ("/", f"/models/{model_id(9)}", f"/models/{model_id(11)}", "/login", "/models/nobody"):
        page.screen(1280, dark=dark)
        page.go(f"{address}{path}", until=DRAWN if path == "/" else "document.readyState === 'complete'")
        page.run("for (const folded of document.querySelectorAll('details')) folded.open = true")
        found: dict[str, Any] = page.run(CONTRAST)
        assert found["seen"] > 4
        assert found["low"] == []


@pytest.mark.parametrize("path", ["/", f"/models/{model_id(9)}"])
def test_every_link_is_reached_with_the_keyboard_and_seen(page: Browser, address: str, path: str) -> None:
    page.screen(1280)
    page.go(f"{address}{path}", until=DRAWN if path == "/" else "document.readyState === 'complete'")
    page.run("document.activeElement.blur()")
    page.run("window.links = [...document.querySelectorAll('a, button, summary')].filter((e) => e.checkVisibility())")
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
    overview(page, address)
    point = page.run(
        """(() => {
          document.querySelector("#chart-gap").scrollIntoView({ block: "center", behavior: "instant" });
          const box = [...document.querySelectorAll("#chart-gap .mark-symbol path")].at(-1).getBoundingClientRect();
          return [box.x + box.width / 2, box.y + box.height / 2];
        })()"""
    )
    page.ask("Input.dispatchMouseEvent", type="mouseMoved", x=point[0], y=point[1])
    page.wait_for("document.querySelector('#vg-tooltip-element.visible')?.textContent.includes('largest gap')")
    assert page.run("getComputedStyle(document.querySelector('#vg-tooltip-element')).position") == "fixed"
    assert page.wrong == []


def test_without_scripts_every_number_is_there(page: Browser, address: str) -> None:
    page.ask("Emulation.setScriptExecutionDisabled", value=True)
    try:
        page.screen(1280)
        page.go(f"{address}/")
        text = page.run("document.documentElement.outerHTML")
    finally:
        page.ask("Emulation.setScriptExecutionDisabled", value=False)
    assert "Charts are drawn with JavaScript, which is off here" in text
    for name in ("disparity-table", "group-table", "drift-table", "model-table"):
        assert f'id="{name}"' in text


def test_it_prints(page: Browser, address: str, tmp_path: Path) -> None:
    overview(page, address)
    assert page.pdf().startswith(b"%PDF")
    page.go(f"{address}/models/{model_id(9)}")
    assert page.pdf().startswith(b"%PDF")


def test_the_audit_file_stands_alone(page: Browser, workspace: Workspace, tmp_path: Path) -> None:
    story = read_model(workspace, model_id(9))
    assert story is not None
    file = tmp_path / "audit.html"
    file.write_text(audit_html(story, made=now()))
    for width in (1280, 390):
        page.screen(width)
        page.requests.clear()
        page.go(file.as_uri())
        assert page.requests == [file.as_uri()]
        assert page.run("document.documentElement.scrollWidth") == width
        assert page.run("document.querySelectorAll('table').length") >= 5
        assert page.run(CONTRAST)["low"] == []
    assert page.pdf().startswith(b"%PDF")
    assert page.wrong == []
