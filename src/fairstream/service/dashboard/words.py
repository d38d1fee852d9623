"""Numbers, times and sentences as the pages write them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup

from fairstream.pages.format import anything
from fairstream.service.audit import Entry
from fairstream.service.gaps import Gap, why_no_gap, with_margin
from fairstream.service.records import Model, from_microseconds

_CHECKS = {
    "finite": "Training succeeded",
    "flood": "No single user dominates",
    "drift": "People behave as before",
    "performance": "Lists are as good as before",
    "disparity": "Groups are treated as equally as before",
}
_ENTRY_FIELDS = {
    "id": "model",
    "model": "model",
    "t": "period",
    "state": "state",
    "instead_of": "instead of",
    "action": "key",
    "name": "name",
    "scope": "scope",
    "n_events": "events",
    "by": "by",
}


def score(value: float | None) -> str:
    """A quality or a gap.

    >>> score(0.13612), score(-0.02), score(None)
    ('0.136', '−0.020', '–')
    """
    return "–" if value is None else f"{value:.3f}".replace("-", "−")


def change(value: float | None) -> str:
    """A difference, with its sign.

    >>> change(0.004), change(-0.0001), change(None)
    ('+0.004', '±0.000', '–')
    """
    if value is None:
        return "–"
    return "±0.000" if round(value, 3) == 0 else f"{value:+.3f}".replace("-", "−")


def percent(share: float | None) -> str:
    r"""A share.

    >>> percent(0.1234), percent(None)
    ('12.3\xa0%', '–')
    """
    return "–" if share is None else f"{100 * share:.1f}\N{NO-BREAK SPACE}%".replace("-", "−")


def count(value: float | None) -> str:
    """How many.

    >>> count(1234), count(None)
    ('1,234', '–')
    """
    return "–" if value is None else f"{value:,.0f}"


def interval(ends: tuple[float, float] | None) -> str:
    """An interval from its low end to its high end."""
    return "–" if ends is None else f"{score(ends[0])} to {score(ends[1])}"


def duration(seconds: float) -> str:
    """How long something took.

    >>> duration(0.0021), duration(0.88), duration(185), duration(7300)
    ('2.1 ms', '0.9 s', '3 min', '2 h')
    """
    if seconds < 0.1:
        return f"{1000 * seconds:.1f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.0f} h"


def when(time: datetime | int) -> Markup:
    """A time for people and for programs; from microseconds, too.

    >>> print(when(1_763_000_000_000_000))
    <time datetime="2025-11-13T02:13:20Z">13 Nov 2025, 02:13 UTC</time>
    """
    at = _utc(time)
    return Markup('<time datetime="{}">{}</time>').format(iso(at), f"{at:%-d %b %Y, %H:%M} UTC")


def iso(time: datetime | int) -> str:
    """A time as ISO 8601 has it."""
    return _utc(time).isoformat().replace("+00:00", "Z")


def sentence(words: str) -> str:
    """Words with a capital and a full stop.

    >>> sentence("all checks passed")
    'All checks passed.'
    """
    return f"{words[:1].upper()}{words[1:]}" + ("" if words.endswith((".", "!", "?")) else ".")


def gap_words(gap: Gap | None, evaluation: Mapping[str, Any] | None) -> str:
    """Who is how far behind or ahead, whether that may be chance, or why nothing is said of it.

    >>> gap_words(Gap("F", 0.05, (0.02, 0.08), True, 0.01), None)
    'The group “F” is 0.050 ± 0.030 behind everyone else.'
    """
    if gap is None:
        return f"No gap between groups is reported: {why_no_gap(evaluation or {})}."
    return sentence(gap.words)


def gain_words(model: Model, group: str) -> str:
    """How far a model is ahead of the one before for a group, with its margin."""
    gain = ((model.about.get("gains") or {}).get("groups") or {}).get(group)
    if gain is None:
        return "–"
    return ("+" if gain[0] > 0 else "") + with_margin(*gain)


def times(weight: float) -> str:
    """How many times an event counts.

    >>> times(1.0), times(2.345)
    ('once', '2.35 times')
    """
    return "once" if weight == 1 else f"{weight:.2f} times"


def reason_of(model: Model) -> str:
    """Why the gate decided as it did."""
    return str(model.decision.get("reason") or "no reason was recorded")


def checks_of(model: Model) -> list[Mapping[str, Any]]:
    """The gate's checks."""
    return list(model.decision.get("checks") or ())


def is_manual(model: Model) -> bool:
    """Whether somebody promoted it that the gate had rejected."""
    return model.state == "promoted" and not all(check.get("ok") for check in checks_of(model))


def check_name(check: Mapping[str, Any]) -> str:
    """What a check asks."""
    name = str(check.get("name", ""))
    return _CHECKS.get(name, name) + (f": {check['group']}" if check.get("group") else "")


def options(configuration: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Every option with its value, never rounded."""
    for name, value in configuration.items():
        if isinstance(value, Mapping):
            yield from options(value, f"{before}{name}.")
        else:
            yield (
                f"{before}{name}",
                "–" if value is None else str(value) if isinstance(value, str) else json.dumps(value),
            )


def entry_words(entry: Entry) -> str:
    """An entry of the audit record in a line."""
    body = json.loads(entry.body)
    parts = [f"{title} {anything(body[name])}" for name, title in _ENTRY_FIELDS.items() if _is_short(body.get(name))]
    if isinstance(decision := body.get("decision"), dict):
        parts.append(str(decision.get("reason", "")))
    return " · ".join(parts) or "–"


def entry_body(entry: Entry) -> str:
    """An entry's whole content."""
    return json.dumps(json.loads(entry.body), ensure_ascii=False, indent=1, sort_keys=True)


def _is_short(value: object) -> bool:
    return isinstance(value, str | int)


def _utc(time: datetime | int) -> datetime:
    at: datetime = from_microseconds(time)
    return at.astimezone(UTC)
