"""How events come in and requests go out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairstream.live.dashboard.overview import Overview
from fairstream.live.dashboard.words import when
from fairstream.report.tables import Cell
from fairstream.report.wording import anything

_KNOWN = {
    "requests": ("Requests since it started", "{:,}"),
    "errors": ("Of these, failed", "{:,}"),
    "p50_ms": ("Half are answered within", "{:,.1f} ms"),
    "p99_ms": ("99 % are answered within", "{:,.1f} ms"),
    "queued_batches": ("Batches being written", "{:,}"),
    "update_running": ("An update is running", "{}"),
}
_TIMES = {"last_arrival": "Last event arrived", "started": "Service started"}


def health_facts(overview: Overview, health: Mapping[str, Any] | None) -> list[tuple[str, Cell]]:
    """From the database, and from the service itself where it tells."""
    events = overview.events
    found: list[tuple[str, Cell]] = [
        ("Events taken in", f"{events.total:,}"),
        ("Waiting for the next update", f"{events.waiting:,}"),
        ("Latest event is dated", "–" if events.latest is None else when(events.latest)),
    ]
    for name, value in (health or {}).items():
        if value is not None:
            found.append(_told(name, value))
    return found


def _told(name: str, value: Any) -> tuple[str, Cell]:
    if name in _TIMES:
        return _TIMES[name], when(int(value))
    if isinstance(value, bool):
        value = "yes" if value else "no"
    title, form = _KNOWN.get(name, (name.replace("_", " ").capitalize(), None))
    return title, anything(value) if form is None else form.format(value)
