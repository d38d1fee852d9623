"""`fairstream report` on runs: the page holds every label and option as it is."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

import fairstream as fs
from fairstream.pages.runs import runs_page
from stores import small, source_of, write_stream

HOSTILE = "<script>alert('x')</script> & \"co\""


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    log = source_of(write_stream(tmp_path_factory.mktemp("report") / "stream")).read()
    run = fs.Run(log, small(n_resamples=20))
    list(run)
    return dict(run.document())


def test_names_from_outside_stay_text(document: dict[str, Any]) -> None:
    hostile = copy.deepcopy(document)
    hostile["data"].update(name=HOSTILE, group=HOSTILE)
    hostile["config"][HOSTILE] = HOSTILE
    page = runs_page({HOSTILE: hostile, "mine": document}, task="next", metric="ndcg@5", comparison=None)
    assert "<script>alert" not in page
    assert page.count("<script") == 3
    assert page.count("&lt;script&gt;alert") >= 5


def test_options_are_not_rounded(document: dict[str, Any]) -> None:
    config = {**document["config"], "l2": 1e-6, "learning_rate": 0.00025}
    page = runs_page({"run": {**document, "config": config}}, task="next", metric="ndcg@5", comparison=None)
    assert ">1e−06</td>" in page
    assert ">0.00025</td>" in page


def test_equal_runs_give_equal_pages(document: dict[str, Any], tmp_path: Path) -> None:
    runs = {"one": document, "other": document}
    one, other = (runs_page(runs, task="next", metric="ndcg@5", comparison=None) for _ in range(2))
    assert one == other
