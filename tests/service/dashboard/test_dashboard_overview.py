"""What the pages show is what the database holds, on either database."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_up import (
    BEGINS,
    DAY,
    GROUPS,
    METRIC,
    N_PERIODS,
    N_WAITING,
    TOO_SMALL,
    add_model,
    add_period,
    add_update,
    filled,
    model_id,
)
from sqlalchemy import update

from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.service.dashboard.charts import Chart, Moment, Series
from fairstream.service.dashboard.overview import (
    MAX_PERIODS,
    Days,
    Overview,
    control_charts,
    quality_charts,
    status_of,
)
from fairstream.service.database import writing
from fairstream.service.gaps import gap_in, score_in
from fairstream.service.learning import Learning
from fairstream.service.schema import models, service
from fairstream.service.serving import ServedBy
from fairstream.service.status import Status
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
FINITE = st.floats(-1, 1)
ESTIMATES = st.builds(
    Estimate,
    FINITE,
    st.none() | st.tuples(FINITE, FINITE).map(lambda ends: (min(ends), max(ends))),
    st.none() | st.floats(0, 1),
    st.none() | FINITE,
)


def test_everything_is_read(new_workspace: Maker) -> None:
    overview = Overview(filled(new_workspace()))
    assert overview.service is not None
    assert overview.serving is not None
    assert overview.service.model == overview.serving.id == model_id(N_PERIODS - 1)
    assert [period.t for period in overview.periods] == list(range(N_PERIODS)) == sorted(overview.candidates)
    assert {t for t, model in overview.candidates.items() if model.state == "rejected"} == {5, 9}
    assert [change.t for change in overview.updates] == [11, 10, 9, 8, 7, 6]
    assert overview.n_waiting == N_WAITING
    assert overview.n_events == N_WAITING + sum(period.n_events for period in overview.periods)
    assert overview.groups == list(GROUPS)
    assert [entry.kind for entry in overview.entries][:2] == ["update", "update"]


def test_of_many_periods_the_latest_of_the_days_are_shown(new_workspace: Maker) -> None:
    workspace, n, first = new_workspace(), MAX_PERIODS + 5, datetime.fromtimestamp(BEGINS / 1e6, UTC).date()
    with writing(workspace.engine) as connection:
        for t in range(n):
            add_period(connection, t)
            add_model(connection, f"m{t}", t)
    for days, shown in ((Days(), range(5, n)), (Days(last=first + timedelta(9)), range(10))):
        overview = Overview(workspace, days)
        assert [period.t for period in overview.periods] == sorted(overview.candidates) == list(shown)


def test_the_banner_has_the_colour_of_the_worst_and_says_what_to_do(new_workspace: Maker) -> None:
    workspace = new_workspace()

    def status(problem: str | None = None, source: ServedBy | None = "model") -> Any:
        return status_of(Overview(workspace), source, problem, alert_after=2)

    assert (status().level, status().headline) == ("neutral", "Waiting for the first events")
    filled(workspace)
    assert status().level == "good"
    with writing(workspace.engine) as connection:
        add_update(connection, 12, state="skipped", reason="3 users are too few", requested=BEGINS + 14 * DAY)
    assert status().level == "good"
    assert "skipped. 3 users are too few." in status().sentences[0]
    with writing(workspace.engine) as connection:
        add_update(connection, 13, id="i", state="interrupted", reason="the service ended", requested=BEGINS + 15 * DAY)
    assert (status().level, status().sentences) == ("good", ["The last update was interrupted. The service ended."])
    decision = {"reason": "it got worse; it is less fair", "checks": [{"name": "drift", "ok": False}]}
    for n, level in ((1, "bad"), (2, "bad")):  # after one that was skipped
        t, id_ = 11 + n, f"candidate{n}"
        with writing(workspace.engine) as connection:
            add_period(connection, t)
            add_model(connection, id_, t, created=BEGINS + (20 + n) * DAY, decision=decision, parent=model_id(11))
            row = {"state": "rejected", "model": id_, "requested": BEGINS + (20 + n) * DAY}
            add_update(connection, 12 + n, id=f"rejected{n}", **row)
        assert (status().level, status().candidate) == (level, id_)
        assert status().sentences == ["It got worse.", "It is less fair."]
    assert status().headline == "The last 3 updates promoted no model"
    with writing(workspace.engine) as connection:  # somebody promotes it nevertheless
        connection.execute(update(models).where(models.c.id == "candidate2").values(state="promoted"))
        connection.execute(update(service).values(model="candidate2"))
    assert status().level == "good"
    assert "An admin promoted" in status().sentences[0]
    with writing(workspace.engine) as connection:
        connection.execute(update(service).values(model=model_id(11)))
    assert "taken out of service" in status().sentences[0]
    with writing(workspace.engine) as connection:
        add_update(connection, 13, id="p", state="promoted", requested=BEGINS + 29 * DAY)
        add_update(connection, 13, id="f", state="failed", reason="disk full", requested=BEGINS + 30 * DAY)
    assert (status().level, status().headline) == ("bad", "The last update failed")
    assert (status("it is loaded", None).level, status("the disk is full").level) == ("warning", "bad")
    damaged = status("model m is damaged", "popularity")
    assert (damaged.level, damaged.sentences, damaged.can_roll_back) == ("bad", ["Model m is damaged."], True)


def test_the_banner_warns_of_a_quality_that_falls(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    with writing(workspace.engine) as connection:
        for n in range(9):
            mean = 0.3 - 0.02 * n + 0.03 * (n == 6)  # with a rise on the way
            add_period(connection, 12 + n, evaluation={"metrics": {METRIC: {"mean": mean, "by_group": {}}}})
    status = status_of(Overview(workspace), "model", None, 2)
    assert (status.level, status.headline) == ("warning", "Up to date, but the quality is falling")
    assert status.sentences[0].startswith("Quality is falling: from 0.")
    assert status.sentences[0].endswith("to 0.140 over the last 10 periods.")
    assert status.sentences[0] in Status.of(workspace).sentences()
    assert status_of(Overview(workspace, Days(last=date(2025, 12, 1))), "model", None, 2).level == "good"  # of old days


def test_before_the_first_model_the_banner_says_why_there_is_none(new_workspace: Maker) -> None:
    workspace = new_workspace()
    with writing(workspace.engine) as connection:
        add_period(connection, 0)
        add_update(connection, 0, state="skipped", reason="no group is known yet")
    status = status_of(Overview(workspace), "model", None, 2)
    assert status.level == "warning"
    assert status.sentences == ["The last update was skipped. No group is known yet."]


def test_charts_have_dates_every_reported_group_and_the_accepted_gap(new_workspace: Maker) -> None:
    workspace = filled(new_workspace(learning=Learning(model="item-item", max_gap=0.05)))
    overview = Overview(workspace)
    quality, gap = quality_charts(overview, workspace.config)
    assert [line.name for line in quality.series] == [name for name in GROUPS if name != TOO_SMALL] + ["everyone"]
    assert [len(quality.points(line)) for line in quality.series] == [N_PERIODS - 1] * 3
    assert quality.dates()[0][1] == "3 Nov"
    assert len(quality.dates()) > 3
    assert [moment.note for moment in gap.moments if moment.note] == [
        "candidate rejected",
        "update failed",
        "candidate rejected",
    ]
    assert gap.limit is not None
    assert gap.limit[1] == "accepted"
    for period, score in overview.evaluated:
        largest = gap_in(score)
        assert largest is not None
        assert gap.reading(gap.series[0], period.t - 1) == largest.size


VALUES = st.lists(st.none() | st.floats(0, 1e6), max_size=12)
TIMES = st.lists(st.integers(0, 10**6), min_size=12, max_size=12).map(sorted)


@settings(max_examples=60)
@given(values=VALUES, hours=TIMES)
def test_nothing_is_drawn_outside_its_chart(values: list[float | None], hours: list[int]) -> None:
    began = datetime(2026, 1, 1, tzinfo=UTC)
    moments = [Moment(t, began + timedelta(hours=hour)) for t, hour in enumerate(hours[: len(values)])]
    bands = [None if value is None else (value / 2, 2 * value) for value in values]
    chart = Chart("a", "A", moments, [Series("a", "line-0", values, bands)], str)
    points = [point for point in chart.points(chart.series[0]) if point is not None]
    assert len(points) == sum(value is not None for value in values)
    for x, y in points:
        assert 0 <= x <= 100
        assert -0.01 <= y <= 100.01
    assert sorted(place for place, _, _ in chart.strips()) == list(range(len(values)))
    assert sum(width for _, _, width in chart.strips()) == pytest.approx(100 if values else 0, abs=0.2)
    assert chart.label.endswith(".")
    dates = chart.dates()
    assert len({label for _, label, _ in dates}) == len(dates)
    assert all(x < other for (x, _, _), (other, _, _) in pairwise(dates))


def test_a_group_has_one_colour_in_every_chart(new_workspace: Maker) -> None:
    workspace = filled(new_workspace())
    control = {"regret": {"minority": [0.1, [0.0, 0.2]]}, "withheld": {"majority": "too few"}}
    control["level"] = {"group": "minority", "weight": 2.0}
    with writing(workspace.engine) as connection:
        connection.execute(update(models).where(models.c.id == model_id(11)).values(about={"control": control}))
    overview = Overview(workspace)
    charts = [*quality_charts(overview, workspace.config), *control_charts(overview)]
    styles = [line.style for chart in charts for line in chart.series if line.name == "minority"]
    assert styles == [f"line-{overview.groups.index('minority')}"] * 3


@settings(max_examples=40)
@given(
    overall=st.none() | FINITE,
    groups=st.dictionaries(st.text(max_size=3), st.none() | FINITE, max_size=3),
    gaps=st.dictionaries(st.text(max_size=3), ESTIMATES, max_size=3),
    disparity=st.none() | ESTIMATES,
)
def test_scores_come_back_as_they_were_written(
    overall: float | None, groups: dict[str, Any], gaps: dict[str, Estimate], disparity: Estimate | None
) -> None:
    name = max(gaps, key=lambda name: abs(gaps[name].value), default=None)
    largest = None if name is None else Estimate(abs(gaps[name].value), (-1.0, 1.0), 0.3, 0.01)
    written = GroupScores(overall, None, groups, gaps, largest, name, None, disparity, None, None, None)
    stored = json.loads(json.dumps({"metrics": {"f1@7": {"mean": 0.9}, "ndcg@7": written.to_dict()}}))
    score = score_in(stored)
    assert GroupScores.from_dict(score) == written
    assert (gap := gap_in(score)) is None or gap.interval == (0.0, 1.0)
