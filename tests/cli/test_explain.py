"""`explain`: a few sentences, a table, a page that opens without a network, and one sentence where it cannot."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fairstream import Record, Run
from fairstream.evaluation import Estimate
from fairstream.experiments import Store
from fairstream.files import to_json
from fairstream.pages.change import change_page, summary
from fairstream.tools.explain import Change, Explained, Explanation, Mix
from stores import small, source_of, write_stream

Command = Callable[..., Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with and without what an explanation needs, and a store of two."""
    folder = tmp_path_factory.mktemp("explained")
    log = source_of(write_stream(folder / "stream")).read()
    store = Store(folder / "store")
    store.create()
    for name, options in {"explained": {"explain": True, "n_resamples": 50}, "plain": {}}.items():
        job = Run(log, small(**options))
        list(job)
        (folder / f"{name}.json").write_text(to_json(job.document()))
        store.write(name, Record.from_document(job.document()))
    (folder / "not.json").write_text("[1]")
    (folder / "empty").mkdir()
    return folder


class Ids(HTMLParser):
    """The ids of a page, and what it loads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.loaded: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if value := found.get("id"):
            self.ids.append(value)
        self.loaded += [value for name in ("src", "href") if (value := found.get(name)) and not value.startswith("#")]


@pytest.mark.slow
def test_sentences_a_table_a_page_and_json(command: Command, folder: Path) -> None:
    told = command("explain", folder / "explained.json", "--output", "page.html", "--json", "out.json")
    assert told.code == 0, told.err
    assert "NDCG@5 at each event for everyone" in told.out
    assert "The gap between majority and the rest" in told.out
    assert "the parts add up to the change" in told.out
    document = json.loads((told.folder / "out.json").read_text())
    for change in (document["everyone"], *document["groups"].values(), *document["gaps"].values()):
        total = sum(part["value"] for part in change["parts"].values())
        assert total == pytest.approx(change["after"] - change["before"], abs=1e-12)
    assert document["t"] == 2
    assert list(document["periods"]) == ["1", "2"]
    assert all(sentence in told.out for sentence in document["summary"])
    page = (told.folder / "page.html").read_text()
    ids = Ids(page)
    assert ids.loaded == []
    assert len(set(ids.ids)) == len(ids.ids)
    charts = json.loads(re.findall(r'<script id="charts"[^>]*>(.*?)</script>', page, re.DOTALL)[0])
    assert set(charts["drawn"]) <= set(ids.ids)
    assert not any("name" in layer.get("data", {}) for spec in charts["specs"] for layer in spec["layer"])
    drawn = {row["part"]: row["value"] for row in charts["drawn"]["part-0"]["rows"]}
    assert sum(drawn.values()) == pytest.approx(document["everyone"]["change"]["value"], abs=1e-5)
    assert "minus the rest" in page


@pytest.mark.slow
def test_another_task_metric_and_period(command: Command, folder: Path) -> None:
    options = ("--task=next", "--metric=recall@5", "--t=1", "--json=-")
    told = command("explain", folder / "explained.json", *options)
    document = json.loads(told.out)
    assert (document["task"], document["metric"], document["t"]) == ("next", "recall@5", 1)
    assert (told.folder / "explain.html").exists()


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("plain.json", "make the run again with `fairstream run … --explain`"),
        ("not.json", "is not a finished run"),
        ("nothing", "cannot be read"),
        ("empty", "is not a store of runs"),
        ("store", "has 2 runs; give the file of one of them"),
    ],
)
def test_what_cannot_be_explained_is_said_in_a_sentence(
    command: Command, folder: Path, source: str, sentence: str
) -> None:
    told = command("explain", folder / source)
    assert told.code == 2
    assert sentence in told.err
    assert told.err.count("\n") == 1
    assert told.left == []


def test_a_page_that_cannot_be_written_is_an_error_before_anything_else(command: Command, folder: Path) -> None:
    told = command("explain", folder / "explained.json", "--output", "no/where.html")
    assert told.code == 2
    assert "there is no folder" in told.err


def moved_gap(before: float, after: float) -> Explained:
    """An explanation of one number of everyone, and of a gap that is surely another than before."""
    change = after - before
    parts = {"drift": Estimate(change, (change - 0.001, change + 0.001))}
    level = Change(0.1, 0.1, Estimate(0.0, (-0.01, 0.01)), {"drift": Estimate(0.0)})
    gap = Change(before, after, Estimate(change, (change - 0.001, change + 0.001)), parts)
    shown = Explanation(level, {"a": level, "b": level}, {"a": gap}, {"": Mix((9, 9), (None, None), (0.0, 0.0))})
    return Explained("x", "group", "ndcg@20", "next", 1, ("before", "after"), {1: shown})


GAPS = [
    (-0.023, -0.088, "widened by 0.0650, from 0.0230 behind to 0.0880 behind"),
    (-0.0323, -0.0181, "narrowed by 0.0142, from 0.0323 behind to 0.0181 behind"),
    (0.02, 0.05, "widened by 0.0300, from 0.0200 ahead to 0.0500 ahead"),
    (0.05, 0.02, "narrowed by 0.0300, from 0.0500 ahead to 0.0200 ahead"),
    (-0.02, 0.03, "reversed, from 0.0200 behind to 0.0300 ahead"),
    (0.03, -0.02, "reversed, from 0.0300 ahead to 0.0200 behind"),
    (0.03, 0.03, "stayed at 0.0300 ahead"),
]


@pytest.mark.parametrize(("before", "after", "words"), GAPS)
def test_a_gap_widens_or_narrows_by_its_size_and_says_who_is_behind(before: float, after: float, words: str) -> None:
    told = summary(moved_gap(before, after))[-1]
    assert told.startswith(f"The gap between a and the rest {words}")
    assert "rose by" not in told
    assert "fell by" not in told


@pytest.mark.slow
def test_the_page_says_the_same_of_a_gap() -> None:
    for before, after, words in GAPS:
        page = change_page(moved_gap(before, after))
        assert f"{words[0].upper()}{words[1:]}." in page
        assert "rose by" not in page
        assert "fell by" not in page
