"""`fairstream frontier`: the tables, the pictures, the JSON, and how it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

import fairstream as fs
from fairstream.pages import frontier as pages
from fairstream.pages import rendering
from stores import write_stream
from support import make_recommender

QUICK = ("--model=item-item", "--device=cpu", "--n-updates=2", "--n-resamples=50", "--min-group-size=5")
READING = ("--group=community", "--advantaged=majority")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_stream(tmp_path_factory.mktemp("data") / "stream")


@pytest.fixture(scope="module")
def found(data: Path) -> fs.Frontier:
    log = fs.read_events(data, group="community", advantaged="majority")
    options: Any = {"n_periods": 2, "n_resamples": 50, "min_group_size": 5}
    return make_recommender("item-item", device="cpu").frontier(log, **options)


def test_it_shows_what_python_finds(command: Callable[..., Any], data: Path, found: fs.Frontier) -> None:
    outcome = command("frontier", data, *READING, *QUICK, "--json=frontier.json", "--figure=frontier.svg")
    assert outcome.code == 0, outcome.err
    assert outcome.left == ["frontier.json", "frontier.svg"]
    text = " ".join(outcome.out.split())
    assert found.verdicts()[0] in text
    for level in found.levels:
        assert f"{level.quality:.4f} {level.scores.by_group['majority']:.4f}" in text
    stored = json.loads((outcome.folder / "frontier.json").read_text())
    expected = json.loads(json.dumps(found.to_dict()))
    for name in ("lever", "metric", "recommended", "setting", "verdicts", "period_ends"):
        assert stored[name] == expected[name]
    for ours, theirs in zip(stored["levels"], expected["levels"], strict=True):
        assert {**ours, "seconds": None} == {**theirs, "seconds": None}
    assert stored["data"]["n_events"] == 1000
    assert (outcome.folder / "frontier.svg").read_text().startswith("<svg")


def test_options_arrive(command: Callable[..., Any], data: Path) -> None:
    outcome = command(
        "frontier",
        data,
        *READING,
        *("--model=mf", "--device=cpu", "--pretrain-epochs=1", "--update-epochs=1", "--seed=5", "--n-resamples=20"),
        *("--lever=fairness-weight", "--levels=0,3", "--task=next", "--metric=recall@5", "--n-updates=1"),
        *("--max-gap=0.5", "--max-loss=0.2", "--min-group-size=2", "--json=-"),
    )
    assert outcome.code == 0, outcome.err
    document = json.loads(outcome.out)  # nothing else is printed
    assert [level["value"] for level in document["levels"]] == [0.0, 3.0]
    given = {name: document[name] for name in ("lever", "task", "metric", "max_gap", "max_loss")}
    assert given == {
        "lever": "fairness_weight",
        "task": "next",
        "metric": "recall@5",
        "max_gap": 0.5,
        "max_loss": 0.2,
    }
    assert (document["config"]["seed"], document["config"]["pretrain_epochs"]) == (5, 1)


def test_quiet_is_quiet(command: Callable[..., Any], data: Path) -> None:
    outcome = command("frontier", data, *READING, *QUICK, "--levels=1,2", "--quiet")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--levels=2,5",), "the levels of level must include 1"),
        (
            ("--levels=1,7",),
            "the levels of a group are 1, 1.25, 1.5, 2, 2.5, 3",
        ),
        (("--lever=group-weight", "--levels=2,4"), "the levels of group_weight must include 1"),
        (("--lever=group-weight", "--levels=1,x"), "group_weight must be a number"),
        (("--lever=group-weight", "--levels=1,-3"), "group_weight must be > 0, got '-3'"),
        (("--metric=ndgc@20",), "ndgc"),
        (("--n-updates=4000",), "1000 events are too few"),
        (("--figure=frontier.gif",), "a picture is a file named .png, .svg or .html, got 'frontier.gif'"),
        (("--figure=missing/frontier.png",), "there is no folder missing"),
        (("--group=nothing",), "nothing"),
        (("--method=Rerank",), "Rerank is a method of experiments"),
        (("--set=max-gap=0.1", "--set=k=5"), "--set cannot set k, max_gap here"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    command: Callable[..., Any], data: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    outcome = command("frontier", data, *READING, *QUICK, *arguments)
    assert (outcome.code, outcome.out, outcome.left) == (2, "", [])
    assert sentence in outcome.err
    assert outcome.err.count("\n") == 1


def test_without_the_extra_the_table_is_there_and_the_picture_is_not(
    command: Callable[..., Any], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendering, "find_spec", lambda name: None)
    outcome = command("frontier", data, *READING, *QUICK, "--levels=1,2", "--figure=f.png", "--json=f.json")
    assert outcome.code == 2
    assert "Recommended" in outcome.out
    assert outcome.left == ["f.json"]
    assert "install fairstream[report]" in outcome.err


# ── pictures ─────────────────────────────────────────────────────────────────────────────


def boxes(chart: dict[str, Any]) -> Iterator[tuple[float, float, float, float]]:
    """The labels of the levels, in pixels."""
    tradeoff = chart["hconcat"][0]
    (left, right), (bottom, top) = (tradeoff["layer"][-1]["encoding"][axis]["scale"]["domain"] for axis in ("x", "y"))
    for row in tradeoff["data"]["values"]:
        x = (row["label_x"] - left) / (right - left) * tradeoff["width"]
        y = (top - row["label_y"]) / (top - bottom) * tradeoff["height"]
        yield x, y, x + 6.5 * len(row["name"]), y + 11


def test_labels_do_not_cover_each_other(found: fs.Frontier) -> None:
    for one, other in combinations(boxes(pages.chart(found)), 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]


@pytest.mark.slow
def test_the_picture_shows_levels_and_groups(found: fs.Frontier) -> None:
    svg = pages.picture(found, "svg").decode()
    for text in ("none", "1.5", "majority", "minority", "everyone", "PD: majority − minority"):
        assert f">{text}<" in svg
    assert pages.picture(found, "png").startswith(b"\x89PNG")


@pytest.mark.slow  # vl-convert puts its JavaScript together
def test_the_picture_as_a_page_needs_no_network(found: fs.Frontier) -> None:
    page = pages.picture(found, "html").decode()
    assert "vegaEmbed" in page
    assert "<script src=" not in page
