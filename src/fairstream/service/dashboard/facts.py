"""Periods and models as the pages tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import RowMapping

from fairstream.evaluation.by_group import Estimate, GroupScores
from fairstream.service.dashboard.scores import largest_gap, ndcg_from
from fairstream.service.gate import Check


@dataclass(frozen=True)
class Target:
    """The gap that is accepted, and what a controller did to hold it."""

    max_disparity: float
    metric: str
    task: str
    gaps: Mapping[str, tuple[float, float]]
    """How far each group is behind the rest, over the periods pooled, and the standard error."""
    weights: Mapping[str, float]
    """How many times the events of each group count."""
    sentences: tuple[str, ...]
    """What was done and why."""


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

    @property
    def is_by_hand(self) -> bool:
        """Whether somebody put it into service that the gate had held."""
        return self.state == "promoted" and not all(check.ok for check in self.checks)

    def judged(self, metric: str) -> GroupScores | None:
        """How it did on the held-out events."""
        return ndcg_from(self.about.get("evaluation"), metric)

    def before(self, metric: str) -> GroupScores | None:
        """How the model that was in service did on the same events."""
        return ndcg_from(self.about.get("before"), metric)

    @property
    def target(self) -> Target | None:
        """The gap that was accepted when it was made, if one was."""
        control, weights = self.about.get("control"), self.about.get("event_weights") or {}
        if not control:
            return None
        gaps = {name: (gap["value"], gap["se"]) for name, gap in control["gaps"].items()}
        return Target(
            control["max_disparity"], control["metric"], control["task"], gaps, weights, tuple(control["sentences"])
        )

    def counted(self, name: str) -> int | None:
        """How much of something its period had."""
        return (self.about.get("data") or {}).get(name)


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
    n_items: int | None = None
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


def candidate_from(row: RowMapping, in_service: str | None) -> Candidate:
    """A row of the table of models, by its columns: a row's own `t` is something else."""
    decision = row["decision"] or {}
    checks = tuple(_check(found) for found in decision.get("checks") or ())
    return Candidate(
        id=row["id"],
        t=row["t"],
        parent=row["parent"],
        state=row["state"],
        created=row["created"],
        seconds=row["training_seconds"],
        reason=decision.get("reason") or "no reason was recorded",
        checks=checks,
        about=row["about"] or {},
        in_service=row["id"] == in_service,
    )


def period_from(row: RowMapping, metric: str) -> Period:
    """A row of the table of periods."""
    evaluation = row["evaluation"] or {}
    return Period(
        t=row["t"],
        closed=row["closed"],
        n_events=row["n_events"],
        n_users=row["n_users"],
        n_late=row["n_late"],
        scores=ndcg_from(evaluation, metric),
        n_tested=evaluation.get("n_tested_users"),
        n_cold=evaluation.get("n_cold_users"),
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
