"""The page in a real browser: charts are drawn, nothing fails, nothing is wider than the screen."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from fairstream.paper.report.figures import figures_of
from fairstream.paper.report.page import page_of
from report_findings import findings

CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on this machine"),
]

# Only in the tests' copy of the page: what went wrong, what was drawn, and how wide it has become.
_WATCH = """<script>
const wrong = [];
addEventListener("error", (event) => wrong.push(event.message));
addEventListener("unhandledrejection", (event) => wrong.push(String(event.reason)));
console.error = (...words) => wrong.push(words.join(" "));
new MutationObserver(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const tooWide = (element) => !element.closest(".scroll") && element.getBoundingClientRect().right > innerWidth + 1;
  parent.postMessage({
    wrong,
    width: document.documentElement.scrollWidth,
    tooWide: all("main *").filter(tooWide).map((element) => element.outerHTML.slice(0, 80)),
    charts: all(".chart svg.marks").length,
    marks: all(".chart .mark-symbol path").length,
    shown: all("#number-table tbody tr:not([hidden])").map((row) => row.cells[5].textContent),
    count: document.querySelector("#number-filter output").textContent,
  }, "*");
}).observe(document.documentElement, { attributes: true, attributeFilter: ["data-charts"] });
</script>"""
_USE = """<script>
addEventListener("load", () => {
  document.querySelector("a[data-figure='fig:params']").click();
  document.querySelector("#number-filter [name=differs]").click();
  const headers = [...document.querySelectorAll("#number-table thead th")];
  const button = headers.find((cell) => cell.textContent === "Paper").firstChild;
  button.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter" }));
  button.click();
});
</script>"""
# A browser's window cannot be as narrow as a phone, a frame can.
_FRAME = """<!DOCTYPE html><iframe src="report.html" width="{width}" height="844" style="border: 0"></iframe><script>
addEventListener("message", ({{ data }}) => {{ document.body.textContent = JSON.stringify(data); }});
</script>"""


def _seen(tmp_path: Path, width: int, *, extra: str = "") -> dict[str, Any]:
    """What the page says of itself when all its charts are drawn."""
    page = page_of(findings()).replace("<title>", f"{_WATCH}{extra}<title>", 1)
    (tmp_path / "report.html").write_text(page)
    frame = tmp_path / "frame.html"
    frame.write_text(_FRAME.format(width=width))
    dom = _run(tmp_path, "--window-size=1400,900", "--dump-dom", frame.as_uri())
    said = re.search(r"<body>(\{.*\})</body>", dom, re.DOTALL)
    assert said is not None, "the page has not drawn its charts"
    seen: dict[str, Any] = json.loads(unescape(said[1]))
    return seen


def _run(tmp_path: Path, *arguments: str) -> str:
    assert CHROMIUM is not None
    flags = "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    quiet = [f"--{flag}" for flag in (*flags.split(), "disable-component-update", "disable-sync", "hide-scrollbars")]
    home = f"--user-data-dir={tmp_path / 'profile'}"
    command = [CHROMIUM, *quiet, home, "--virtual-time-budget=60000", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=600).stdout


@pytest.mark.parametrize("width", [1280, 390, 360])
def test_every_chart_is_drawn_and_nothing_is_too_wide(tmp_path: Path, width: int) -> None:
    seen = _seen(tmp_path, width)
    assert seen["wrong"] == []
    assert seen["width"] == width
    assert seen["tooWide"] == []
    panels = [panel for figure in figures_of(findings().points) for panel in figure.panels]
    assert seen["charts"] == sum(bool(panel.paper) + bool(panel.ours) for panel in panels)
    assert seen["marks"] == sum(len(panel.paper) + len(panel.ours) for panel in panels)


def test_the_table_is_filtered_and_sorted(tmp_path: Path) -> None:
    seen = _seen(tmp_path, 1280, extra=_USE)
    differing = [p for p in findings().points if p.place.figure == "fig:params" and p.agrees is False]
    assert differing
    expected = sorted((p.paper for p in differing if p.paper is not None), reverse=True)
    assert seen["shown"] == [f"{value:.4f}" for value in expected]
    assert seen["count"] == f"{len(differing)} of {len(findings().points)} numbers"


def test_it_prints(tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text(page_of(findings()))
    pdf = tmp_path / "report.pdf"
    _run(tmp_path, f"--print-to-pdf={pdf}", (tmp_path / "report.html").as_uri())
    assert pdf.read_bytes().startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes())) > 10
