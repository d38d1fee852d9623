"""A model's audit report for programs; the template `audit.html` has the same facts for people."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from fairstream.service.dashboard.reading import ModelStory
from fairstream.service.dashboard.words import iso
from fairstream.service.records import Model
from fairstream.service.settings import LiveConfig


def audit_json(story: ModelStory, config: LiveConfig, *, made: int) -> str:
    """The report as JSON; a group that is too small to report is null."""
    document = {
        "written": iso(made),
        "group": config.group,
        "metric": f"ndcg@{config.gate.k}",
        "model": story.model.model_dump(mode="json"),
        "in_service_since": iso(story.service.since) if story.service and story.is_serving else None,
        "period": story.period.model_dump(mode="json") if story.period else None,
        "parent": _relative(story.parent) if story.parent else None,
        "children": [_relative(child) for child in story.children],
        # As recorded: whoever holds the entry before one of them can check its hash.
        "record": [{**asdict(entry), "time_utc": iso(entry.time)} for entry in story.entries],
    }
    return json.dumps(document, ensure_ascii=False, indent=2, allow_nan=False) + "\n"


def _relative(model: Model) -> dict[str, Any]:
    return {"id": model.id, "t": model.t, "state": model.state}
