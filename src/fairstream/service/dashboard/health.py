"""How events come in and requests go out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairstream.pages.format import anything
from fairstream.pages.tables import Cell
from fairstream.service.dashboard.overview import Overview
from fairstream.service.dashboard.words import when

_COUNTS = {
    "requests": "Requests since the start",
    "errors": "Of these, failed",
    "events_accepted": "Events taken since the start",
    "batches_waiting": "Batches on their way to disk",
}
_SECONDS = {"p50_seconds": "Half are answered within", "p99_seconds": "99 % are answered within"}
_TIMES = {"last_arrival": "Last event arrived", "started": "Service started"}
_YES_OR_NO = {"ready": "Ready to answer", "updating": "An update is running"}


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
    if name in _SECONDS:
        return _SECONDS[name], f"{1000 * value:,.2f} ms"
    if isinstance(value, bool):
        value = "yes" if value else "no"
    titles = {**_COUNTS, **_YES_OR_NO}
    return titles.get(name, name.replace("_", " ").capitalize()), anything(value)
