"""A model's audit report: one file for people, one for programs, with the same facts."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fairstream.pages.markup import Markup, element
from fairstream.service.audit import Entry
from fairstream.service.dashboard import model_parts as parts
from fairstream.service.dashboard.assets import style
from fairstream.service.dashboard.facts import Candidate
from fairstream.service.dashboard.one_model import ModelStory
from fairstream.service.dashboard.parts import single_file
from fairstream.service.dashboard.target import model_target
from fairstream.service.dashboard.words import iso_time, when


def audit_html(story: ModelStory, *, made: int) -> str:
    """The report as a page of its own: no script, no link, nothing to load."""
    title = f"Audit report of model {story.model.id}"
    header = element(
        "header",
        element("h1", title),
        element("p", parts.what_it_is(story), class_="summary"),
        element("p", "Written on ", when(made), ". Groups are those of “", story.group, "”.", class_="note"),
    )
    main = element(
        "main",
        parts.decision_section(story),
        model_target(story.model),
        parts.evaluation_section(story),
        parts.lineage_section(story, _unlinked),
        parts.data_section(story),
        parts.configuration_section(story),
        parts.record_section(story),
    )
    return single_file(title, style(), header, main)


def audit_json(story: ModelStory, *, made: int) -> str:
    """The report as JSON; a group that is too small to report is null."""
    document = {
        "written": iso_time(made),
        "group": story.group,
        "metric": story.metric,
        "min_group_size": story.gate.min_group_size,
        "model": _model(story.model),
        "in_service_since": iso_time(story.service.since) if story.model.in_service and story.service else None,
        "period": _period(story),
        "parent": asdict(story.parent) if story.parent else None,
        "children": [asdict(child) for child in story.children],
        "record": [_entry(entry) for entry in story.entries],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _model(model: Candidate) -> dict[str, Any]:
    return {
        "id": model.id,
        "period": model.t,
        "parent": model.parent,
        "state": model.state,
        "in_service": model.in_service,
        "created": iso_time(model.created),
        "seconds": model.seconds,
        "decision": {"reason": model.reason, "checks": [asdict(check) for check in model.checks]},
        "about": dict(model.about),
    }


def _period(story: ModelStory) -> dict[str, Any] | None:
    period = story.period
    if period is None:
        return None
    return {
        "t": period.t,
        "closed": iso_time(period.closed),
        "n_events": period.n_events,
        "n_users": period.n_users,
        "n_late": period.n_late,
        "n_tested_users": period.n_tested,
        "n_cold_users": period.n_cold,
        "evaluation_of_the_model_in_service": period.scores.to_dict() if period.scores else None,
    }


def _entry(entry: Entry) -> dict[str, Any]:
    """As it was recorded: whoever holds the entry before it can check its hash."""
    return {**asdict(entry), "time_utc": iso_time(entry.time)}


def _unlinked(id_: str) -> Markup:
    return element("code", id_)
