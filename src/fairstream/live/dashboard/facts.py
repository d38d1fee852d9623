"""Periods and models as the pages tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.live.dashboard.scores import largest_gap, scores_from


@dataclass(frozen=True)
class Check:
    """One question of the gate to a candidate, and its answer."""

    name: str
    ok: bool
    sentence: str
    value: float | None = None
    interval: tuple[float, float] | None = None
    limit: float | None = None
    group: str | None = None


@dataclass(frozen=True)
class Candidate:
    """A model that an update made."""

    id: str
    t: int
    parent: str | None
    state: str
    """promoted, held or failed."""
    created: int
    seconds: float
    reason: str
    checks: tuple[Check, ...]
    about: Mapping[str, Any]
    in_service: bool

    def judged(self, metric: str) -> GroupScores | None:
        """How it did on the held-out events."""
        return scores_from((self.about.get("judgement") or {}).get(metric))

    def before(self, metric: str) -> GroupScores | None:
        """How the model that was in service did on the same events."""
        return scores_from((self.about.get("before") or {}).get(metric))

    @property
    def n_items(self) -> int | None:
        """How many items the data had that it was made from."""
        return (self.about.get("data") or {}).get("n_items")


@dataclass(frozen=True)
class Period:
    """A closed period: its events, and how they judged the model in service before it learned from them."""

    t: int
    closed: int
    n_events: int
    n_users: int
    n_late: int
    scores: GroupScores | None
    n_tested: int | None
    n_cold: int | None
    n_new_items: int | None = None
    limit: float | None = None
    """The most that the gate lets the largest gap be: what it was in the period before and the rise allowed."""

    @property
    def largest_gap(self) -> Estimate | None:
        return largest_gap(self.scores)

    @property
    def late_share(self) -> float | None:
        return self.n_late / self.n_events if self.n_events else None

    @property
    def cold_share(self) -> float | None:
        return self.n_cold / self.n_tested if self.n_tested and self.n_cold is not None else None


def candidate_from(row: Mapping[str, Any], in_service: str | None) -> Candidate:
    """A row of the table of models, by its columns: a row's own `t` is something else."""
    decision = row["decision"] or {}
    checks = tuple(_check(found) for found in decision.get("checks") or ())
    return Candidate(
        id=row["id"],
        t=row["t"],
        parent=row["parent"],
        state=row["state"],
        created=row["created"],
        seconds=row["seconds"] / 1e6,
        reason=decision.get("reason") or "no reason was recorded",
        checks=checks,
        about=row["about"] or {},
        in_service=row["id"] == in_service,
    )


def period_from(row: Mapping[str, Any], metric: str) -> Period:
    """A row of the table of periods."""
    judgement = row["judgement"] or {}
    return Period(
        t=row["t"],
        closed=row["closed"],
        n_events=row["n_events"],
        n_users=row["n_users"],
        n_late=row["n_late"],
        scores=scores_from((judgement.get("metrics") or {}).get(metric)),
        n_tested=judgement.get("n_tested_users"),
        n_cold=judgement.get("n_cold_users"),
    )


def _check(found: Mapping[str, Any]) -> Check:
    interval = found.get("interval")
    return Check(
        name=str(found.get("name", "")),
        ok=bool(found.get("ok")),
        sentence=str(found.get("sentence", "")),
        value=found.get("value"),
        interval=None if interval is None else (interval[0], interval[1]),
        limit=found.get("limit"),
        group=found.get("group"),
    )
