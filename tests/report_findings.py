"""Findings that have everything in them: every figure, both kinds of panel, gaps, and names that try to break out."""

from __future__ import annotations

from collections.abc import Iterator
from math import sin
from typing import Literal, cast

from fairstream.paper.findings import Choice, Claim, Findings, Place, Point, Seconds, Verdict
from fairstream.paper.report.wording import CAPTIONS

HOSTILE = "<script>alert('x')</script> & \"co\""
VERDICTS: tuple[Verdict, ...] = ("holds", "holds in part", "cannot be told", "does not hold", "not tested")

_TRIED = {0.5: (0.27, 0.06), 4.0: (0.26, 0.04)}
_CHOICE = Choice(
    "FADE", "modcloth", "MF", "NDCG@20", "λ", _TRIED, 4.0, HOSTILE, by_the_past=(0.5, 4.0), past_result=(0.265, 0.05)
)


def findings(*, quick: bool = False) -> Findings:
    return Findings(
        protocol="paper",
        seeds=(0, 1, 2),
        quick=quick,
        points=tuple(_points()),
        claims=tuple(_claim(position, verdict) for position, verdict in enumerate(VERDICTS)),
        seconds=tuple(
            Seconds(dataset, "MF", method, paper, None if method == "Rerank" else paper / 50)
            for dataset in ("movielens-1m", "modcloth")
            for method, paper in (("Retrain", 1373.17), ("Rerank", 132.46), ("FADE", 4.08))
        ),
        choices=(
            _CHOICE,
            Choice("Adver", "modcloth", "MF", "NDCG@20", "γ", {1.0: (0.25, 0.03)}, 1.0, "the only one", (), None),
        ),
        data=({"name": "modcloth", "sha256": "ab" * 32, "n_events": 83147, "groups": {"Small": 30102, HOSTILE: 8780}},),
        versions={"fairstream": "0.0", HOSTILE: "1"},
        command="fairstream reproduce --protocol paper",
        n_runs=12,
        n_missing=1,
        recovery=({"dataset": "modcloth", "method": "Adver", "weight": 10.0, "balanced_accuracy": 0.5312},),
        notes=(HOSTILE,),
    )


def without_runs() -> Findings:
    """A store in which nothing has been run yet."""
    full = findings()
    points = tuple(Point(point.place, point.paper, None, None, 0, ()) for point in full.points)
    return Findings("strict", (), True, points, (), (), (), (), {}, "fairstream reproduce", 12, 12)


def _points() -> Iterator[Point]:
    for caption in CAPTIONS.values():
        task = cast("Literal['R', 'N']", caption.label[-1] if caption.label[-1] in "RN" else "R")
        if "tradeoff" in caption.label:
            yield from _tradeoff(caption.label, task, ("Pretrain", "Retrain-Fair", "FADE-Abs", "FADE"), in_paper=False)
        elif "softrank" in caption.label:
            yield from _tradeoff(caption.label, task, ("FADE[ApproxNDCG]", "FADE[NeuralNDCG]", "FADE[DH]"))
        elif caption.question == "RQ6":
            for x_name in ("epochs", "tau") if caption.label == "fig:params" else ("lambda",):
                yield from _curves(caption.label, task, ("advantaged", "disadvantaged"), x_name, "performance")
        else:
            yield from _curves(caption.label, task, ("Retrain", "Finetune", "FADE"), "period", "abs_pd")
    yield from _curves("fig:observation", "R", ("Pretrain", "FADE"), "period", "performance", dataset="modcloth")


def _curves(
    figure: str,
    task: Literal["R", "N"],
    series: tuple[str, ...],
    x_name: str,
    y_name: Literal["performance", "abs_pd"],
    dataset: str = "movielens-1m",
) -> Iterator[Point]:
    for line, name in enumerate(series):
        for x in range(1, 5):
            place = Place(figure, task, dataset, "MF", "NDCG@20", name, x_name, float(x), y_name)
            paper = round(abs(sin(len(figure) + 7 * line + x)) * (0.05 if y_name == "abs_pd" else 0.8), 4)
            if figure == "fig:scaling" and line == 0:
                yield Point(place, paper, None, None, 0, ())
            else:
                yield Point(place, paper, paper + (0.0321 if x == 4 else 0.0012), 0.0023, 3, ("a", "b", "c"))


def _tradeoff(
    figure: str, task: Literal["R", "N"], series: tuple[str, ...], *, in_paper: bool = True
) -> Iterator[Point]:
    for dataset in ("movielens-1m", "modcloth"):
        for rank, name in enumerate(series):
            for y_name, value in (("performance", 0.7 + 0.02 * rank), ("abs_pd", 0.03 - 0.005 * rank)):
                place = Place(
                    figure, task, dataset, "NCF", "F1@20", name, "method", None, cast("Literal['abs_pd']", y_name)
                )
                missing = dataset == "modcloth" and rank == 0 and y_name == "abs_pd"
                paper = value if in_paper else None
                yield Point(place, paper, None if missing else value + 0.0015, None if missing else 0.001, 3, ())


def _claim(position: int, verdict: Verdict) -> Claim:
    tested = verdict != "not tested"
    units: tuple[Literal["%", "×", ""], ...] = ("%", "×", "", "%", "%")
    text = HOSTILE if position == 0 else f"Claim {position}"
    interval = (40.5, 55.25) if tested and position else None
    return Claim(
        f"RQ{position + 1}",
        text,
        48.91,
        47.125 if tested else None,
        interval,
        units[position],
        verdict,
        f"Why {position}.",
    )
