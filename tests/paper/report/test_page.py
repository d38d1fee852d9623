"""One page, whole, safe and honest about what is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream
from fairstream.pages.rendering import make_environment, script_data
from fairstream.paper.report import write_report
from fairstream.paper.report.figures import figures_of
from fairstream.paper.report.page import page_of
from fairstream.text import number
from report_findings import HOSTILE, findings, without_runs

pytestmark = pytest.mark.slow

_VOID = {"meta", "br", "col", "input", "link", "img", "hr"}


class Reader(HTMLParser):
    """Reads a page strictly: every element must be closed by its own end tag."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.hrefs: list[str] = []
        self.loads: list[str] = []
        self.headings: list[int] = []
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.labelled: list[str] = []
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        about = dict(attrs)
        assert len(about) == len(attrs), f"<{tag}> has an attribute twice"
        self.tags[tag] += 1
        if tag not in _VOID:
            self.open.append(tag)
        self.ids += [value for name, value in attrs if name == "id" and value]
        self.labelled += [value for name, value in attrs if name == "aria-labelledby" and value]
        self.hrefs += [value for name, value in attrs if name == "href" and value]
        self.loads += [
            value for name, value in attrs if name in ("src", "srcset", "data", "action", "poster") and value
        ]
        assert not any(name.startswith("on") for name in about), f"<{tag}> holds a script in an attribute"
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(self.texts)


@pytest.fixture(scope="module")
def page() -> str:
    return page_of(findings())


@pytest.fixture(scope="module")
def read(page: str) -> Reader:
    return Reader(page)


def test_the_page_is_well_formed_and_its_links_lead_somewhere(read: Reader) -> None:
    assert len(read.ids) == len(set(read.ids))
    assert {href.removeprefix("#") for href in read.hrefs} <= set(read.ids)
    assert set(read.labelled) <= set(read.ids)
    assert read.headings[0] == 1
    assert read.headings.count(1) == 1
    assert all(later <= earlier + 1 for earlier, later in zip(read.headings, read.headings[1:], strict=False))
    assert read.tags["table"] == read.tags["caption"]


def test_the_page_loads_nothing(page: str, read: Reader) -> None:
    assert not read.loads
    assert all(href.startswith("#") for href in read.hrefs)
    assert not {"link", "img", "iframe", "object"} & set(read.tags)
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None
    assert "@import" not in style[1]
    assert "url(" not in style[1]


def test_every_number_and_every_claim_is_there(read: Reader) -> None:
    rows = " ".join(read.texts)
    for point in findings().points:
        for value in (point.paper, point.ours, point.sd):
            assert value is None or number(value) in rows
    for claim in findings().claims:
        assert claim.text in rows
        assert claim.reason in rows
        assert claim.verdict in rows
    assert "40.50 × … 55.25 ×" in rows


def test_names_from_outside_stay_text(page: str, read: Reader) -> None:
    assert "<script>alert" not in page
    assert read.tags["script"] == 3
    assert HOSTILE in read.texts


def test_what_is_missing_is_said(read: Reader) -> None:
    assert "Not run: the store has no runs for this panel." not in read.text  # one of two lines is there
    assert read.texts.count("not run") >= 4
    assert "The source of the paper gives no numbers for this figure: ours alone." in read.text
    assert "not tested" in read.texts
    assert "1 planned run is not in the store" in read.text


def test_a_store_without_runs_gives_a_page_that_says_so() -> None:
    empty = without_runs()
    read = Reader(page_of(empty))
    assert "0 of them were compared with ours" in read.text
    n_panels = sum(len(figure.panels) for figure in figures_of(empty.points))
    assert read.texts.count("Not run: the store has no runs for this panel.") == n_panels > 20
    assert read.texts.count("No claim of this question was judged.") == 6
    for point in empty.points:
        assert point.paper is None or number(point.paper) in read.text


def test_nothing_at_all_still_gives_a_page() -> None:
    assert "no claims were judged" in Reader(page_of(replace(without_runs(), points=()))).text.lower()


def test_the_same_findings_give_the_same_page(page: str) -> None:
    assert page_of(findings()) == page


def test_a_quick_reproduction_says_so(read: Reader) -> None:
    assert "quick reproduction" not in read.text
    quick = findings(quick=True)
    assert "fewer values were tried, each at the settings of a full one" in Reader(page_of(quick)).text
    short = replace(quick, points=tuple(replace(point, shortened="2 of 10 periods") for point in quick.points))
    text = Reader(page_of(short)).text
    assert "quick reproduction" in text
    assert "shortened: 2 of 10 periods" in text
    assert "0 of them were compared" in text.replace("\xa0", " ")


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path, page: str) -> None:
    write_report(findings(), tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text() == page
    with pytest.raises(fairstream.ConfigurationError, match=r"nowhere.*choose another file"):
        write_report(findings(), tmp_path / "nowhere" / "report.html")
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.slow
def test_without_the_extra_there_is_one_sentence(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['altair'] = None\n"
        "from pathlib import Path\n"
        "import fairstream.cli, fairstream.paper.report\n"
        f"try: fairstream.paper.report.write_report(None, Path({str(tmp_path / 'x.html')!r}))\n"
        "except fairstream.ConfigurationError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "install fairstream[report]" in done.stdout
    assert not list(tmp_path.iterdir())


@given(st.text())
def test_text_and_attributes_come_back_as_they_went_in(text: str) -> None:
    text = text.replace("\r", "").replace("\0", "")
    seen: list[str] = []

    class Collector(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append(dict(attrs)["title"] or "")

        def handle_data(self, data: str) -> None:
            seen.append(data)

    collector = Collector()
    template = make_environment("fairstream.pages").from_string('<p title="{{ text }}">{{ text }}</p>')
    collector.feed(template.render(text=text))
    collector.close()
    assert seen[0] == text
    assert "".join(seen[1:]) == text


@given(
    st.recursive(
        st.text() | st.integers() | st.none(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_data_in_a_script_cannot_end_it(value: object) -> None:
    written = script_data(value)
    assert "<" not in written
    assert json.loads(written) == value
