"""The overview's tables: each number that a chart draws, and the models."""

from __future__ import annotations

import json
from collections.abc import Iterator

from fairstream.pages.format import anything, number
from fairstream.pages.markup import Markup, element, joined
from fairstream.pages.tables import Cell
from fairstream.service.audit import Entry
from fairstream.service.dashboard.facts import Candidate, Period
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.parts import cards, state_mark
from fairstream.service.dashboard.scores import largest_gap, largest_gap_group
from fairstream.service.dashboard.words import (
    NOT_JUDGED,
    TOO_FEW,
    as_sentence,
    chance_words,
    count_words,
    metric_name,
    model_link,
    number_or_dash,
    of_group,
    pd_words,
    percent,
    span,
    tested_words,
    when,
)

_SHOWN_OF_ENTRIES = {
    "id": "model",
    "model": "model",
    "t": "period",
    "state": "decision",
    "instead_of": "instead of",
    "action": "key",
    "name": "name",
    "scope": "scope",
    "n_events": "events",
    "by": "by",
}
"""What an entry's line shows, and how it is called there; all of it is in the record itself."""


def disparity_table(overview: Overview) -> Markup:
    """The gaps of each judged period, the latest first."""
    columns = (
        ("Period", "n"),
        ("Closed", "whole"),
        ("Largest gap", "n"),
        ("95 % interval", "whole"),
        ("Whose", ""),
        ("By chance", "n"),
        ("Told from chance", ""),
        ("Limit", "n"),
        ("PD, signed", "n"),
        ("95 % interval of PD", "whole"),
    )
    return cards(
        f"Disparity of {metric_name(overview.metric)} by period",
        columns,
        [_disparity_row(period) for period in reversed(overview.judged)],
        id_="disparity-table",
    )


def group_table(overview: Overview) -> Markup:
    """Each group's quality."""
    columns = (("Period", "n"), *((name, "n") for name in overview.groups), ("All users", "n"), ("Users tested", "n"))
    rows: list[list[Cell]] = []
    for period in reversed(overview.judged):
        scores = period.scores
        values = [of_group(scores.by_group.get(name) if scores else None) for name in overview.groups]
        rows.append([str(period.t), *values, number_or_dash(scores.mean if scores else None), tested_words(period)])
    return cards(f"{metric_name(overview.metric)} of each group by period", columns, rows, id_="group-table")


def drift_table(overview: Overview) -> Markup:
    """What changes in the stream, and what the model in service makes of it."""
    metric = metric_name(overview.metric)
    columns = (
        ("Period", "n"),
        ("Closed", "whole"),
        (metric, "n"),
        ("95 % interval", "whole"),
        ("Cold users", "n"),
        ("Late events", "n"),
        ("Items", "n"),
        ("New items", "n"),
        ("Events", "n"),
        ("Users", "n"),
    )
    rows: list[list[Cell]] = []
    for period in reversed(overview.periods):
        scores = period.scores
        rows.append(
            [
                str(period.t),
                when(period.closed, short=True),
                NOT_JUDGED if scores is None else number_or_dash(scores.mean),
                span(scores.interval if scores else None),
                percent(period.cold_share),
                percent(period.late_share),
                count_words(period.n_items),
                count_words(period.n_new_items),
                f"{period.n_events:,}",
                f"{period.n_users:,}",
            ]
        )
    return cards("Drift by period", columns, rows, id_="drift-table")


def model_table(overview: Overview) -> Markup:
    """Every candidate, what became of it and why."""
    columns = (
        ("Model", ""),
        ("Period", "n"),
        ("Decision", ""),
        ("Why", "why"),
        (metric_name(overview.metric), "n"),
        ("Largest gap", "n"),
    )
    rows = [_model_row(model, overview.metric) for model in overview.models]
    return cards("Models, the newest first", columns, rows, id_="model-table")


def record_table(overview: Overview) -> Markup:
    """The latest entries of the record."""
    columns = (("Entry", "n"), ("When", "whole"), ("What", "whole"), ("About", "wide"))
    rows = [[str(entry.seq), when(entry.time), entry.kind, _about(entry)] for entry in overview.record]
    return cards("The record's latest entries", columns, rows, id_="record-table")


def _disparity_row(period: Period) -> list[Cell]:
    scores, gap = period.scores, period.largest_gap
    disparity = scores.disparity if scores else None
    return [
        str(period.t),
        when(period.closed, short=True),
        TOO_FEW if gap is None else number(gap.value),
        span(gap.interval if gap else None),
        largest_gap_group(scores) or "–",
        number_or_dash(gap.null_mean if gap else None),
        chance_words(gap) if gap else "–",
        number_or_dash(period.limit),
        pd_words(disparity),
        span(disparity.interval if disparity else None),
    ]


def _model_row(model: Candidate, metric: str) -> list[Cell]:
    scores = model.judged(metric)
    gap = largest_gap(scores)
    name = joined(model_link(model.id), " ", element("b", "in service", class_="badge")) if model.in_service else None
    return [
        name or model_link(model.id),
        str(model.t),
        state_mark(model.state, by_hand=model.is_by_hand),
        as_sentence(model.reason),
        NOT_JUDGED if scores is None else number_or_dash(scores.mean),
        NOT_JUDGED if scores is None else (TOO_FEW if gap is None else number(gap.value)),
    ]


def _about(entry: Entry) -> str:
    return "; ".join(_told(json.loads(entry.body))) or "–"


def _told(body: dict[str, object]) -> Iterator[str]:
    for name, title in _SHOWN_OF_ENTRIES.items():
        if isinstance(value := body.get(name), str | int):
            yield f"{title}: {anything(value)}"
    if isinstance(decision := body.get("decision"), dict):
        yield str(decision.get("reason", ""))
