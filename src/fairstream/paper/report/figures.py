"""Points gathered into the paper's figures and their panels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fairstream.pages.series import in_order
from fairstream.paper.findings import Place, Point
from fairstream.paper.report.captions import Caption, caption_of, panel_rank, rank
from fairstream.paper.report.wording import axis_name, dataset_name, quantity


@dataclass(frozen=True)
class Mark:
    """One point as it is drawn: of a curve x is its place on the axis, of a trade-off the performance."""

    series: str
    x: float
    y: float
    x_sd: float
    y_sd: float
    n_seeds: int


_Values = Mapping[Place, tuple[float, float, int]]
"""Of each point its value, the standard deviation between seeds, and how many seeds there are."""


@dataclass(frozen=True)
class Panel:
    """One pair of axes: the paper's points and ours."""

    figure: str
    about: Place
    """The place of its first point; what all its points have in common counts."""
    points: tuple[Point, ...]

    @property
    def is_tradeoff(self) -> bool:
        return self.about.x is None

    @property
    def title(self) -> str:
        """What sets it apart from the other panels of its figure."""
        place = self.about
        measured = place.metric if self.is_tradeoff else quantity(place)
        by = "" if self.is_tradeoff or place.x_name == "period" else f" by {axis_name(place.x_name)}"
        return f"{dataset_name(place.dataset)} · {place.model} · {measured}{by}"

    @property
    def x_title(self) -> str:
        return self.about.metric if self.is_tradeoff else axis_name(self.about.x_name)

    @property
    def y_title(self) -> str:
        return "|PD|" if self.is_tradeoff or self.about.y_name == "abs_pd" else self.about.metric

    @property
    def n_missing(self) -> int:
        """Points that the store has no runs for."""
        return sum(point.ours is None for point in self.points)

    @property
    def paper(self) -> list[Mark]:
        """What the paper gives."""
        return self._marks(ours=False)

    @property
    def ours(self) -> list[Mark]:
        """What the runs gave."""
        return self._marks(ours=True)

    def _marks(self, *, ours: bool) -> list[Mark]:
        values: _Values = {
            point.place: (value, (point.sd or 0.0) if ours else 0.0, point.n_seeds if ours else 0)
            for point in self.points
            if (value := point.ours if ours else point.paper) is not None
        }
        return _pairs(values) if self.is_tradeoff else _curves(values)


@dataclass(frozen=True)
class Figure:
    """A figure of the paper with all its panels."""

    caption: Caption
    panels: tuple[Panel, ...]

    @property
    def points(self) -> list[Point]:
        return [point for panel in self.panels for point in panel.points]

    @property
    def series(self) -> list[str]:
        return in_order({point.place.series for point in self.points})

    @property
    def has_paper(self) -> bool:
        """Whether the source gives numbers for it at all."""
        return any(point.paper is not None for point in self.points)

    @property
    def anchor(self) -> str:
        """Its label as an HTML id and a file's name."""
        return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in self.caption.label)


def figures_of(points: Iterable[Point]) -> list[Figure]:
    """The figures in the order of the page, each with its panels in the paper's order."""
    panels: dict[str, dict[tuple[str, ...], list[Point]]] = {}
    for point in points:
        place = point.place
        axes = ("tradeoff",) if place.x is None else (place.x_name, place.y_name)
        key = (place.task, place.dataset, place.model, place.metric, *axes)
        panels.setdefault(place.figure, {}).setdefault(key, []).append(point)
    labels = sorted(panels, key=lambda label: (rank(label), label))
    return [
        Figure(
            caption_of(label),
            tuple(
                sorted(
                    (Panel(label, inside[0].place, tuple(inside)) for inside in panels[label].values()),
                    key=lambda panel: (panel.about.task != "R", panel_rank(panel.about)),
                )
            ),
        )
        for label in labels
    ]


def _curves(values: _Values) -> list[Mark]:
    marks = [Mark(place.series, place.x, y, 0.0, sd, n) for place, (y, sd, n) in values.items() if place.x is not None]
    return sorted(marks, key=lambda mark: (mark.series, mark.x))


def _pairs(values: _Values) -> list[Mark]:
    """The two coordinates of a trade-off are two points of the same series; a series that lacks one is not drawn."""
    performance = {place.series: value for place, value in values.items() if place.y_name == "performance"}
    disparity = {place.series: value for place, value in values.items() if place.y_name == "abs_pd"}
    marks = []
    for series in sorted(performance.keys() & disparity.keys()):
        (x, x_sd, n), (y, y_sd, _) = performance[series], disparity[series]
        marks.append(Mark(series, x, y, x_sd, y_sd, n))
    return marks
