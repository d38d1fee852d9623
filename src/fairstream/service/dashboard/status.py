"""The banner: how the service does, in a colour, a headline and what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from fairstream.service.dashboard.reading import Overview
from fairstream.service.dashboard.words import is_manual, reason_of, sentence
from fairstream.service.records import FINISHED
from fairstream.service.serving import ServedBy

Level = Literal["good", "warning", "bad", "neutral"]


@dataclass(frozen=True)
class Status:
    """What the banner says."""

    level: Level
    headline: str
    sentences: list[str]
    candidate: str | None = None
    """The model that was not promoted, and may be by hand."""
    can_roll_back: bool = False


def status_of(overview: Overview, source: ServedBy | None, problem: str | None, alert_after: int) -> Status:
    """The worst of what is wrong, else that all is well; what answers, and the `problem`, are the process's."""
    serving = overview.serving
    if problem is not None and serving is not None:
        return _with_problem(source, sentence(problem), has_parent=serving.parent is not None)
    state, reasons, candidate = _last_outcome(overview)
    if serving is None:
        if not overview.events.total:
            return Status("neutral", "Waiting for the first events", ["Send events, then run an update."])
        why = [f"The last update was {state}. {reason}" for reason in reasons[:1]] if state else []
        return Status("warning", "Popular items are shown: there is no model yet", why, candidate)
    if state == "failed":
        return Status("bad", "The last update failed", reasons)
    if state == "rejected" and candidate != serving.id:
        n = overview.n_rejected
        headline = "The last update was rejected" if n < 2 else f"The last {n} updates were rejected"
        return Status("bad" if n >= alert_after else "warning", headline, reasons, candidate)
    return Status("good", "Everything is up to date", _why_well(overview, state, reasons))


def _with_problem(source: ServedBy | None, problem: str, *, has_parent: bool) -> Status:
    if source is None:
        return Status("warning", "The model is being loaded", [problem])
    if source == "model":
        return Status("bad", "The service has a problem", [problem])
    return Status("bad", "The model in service cannot be used", [problem], can_roll_back=has_parent)


def _why_well(overview: Overview, state: str | None, reasons: list[str]) -> list[str]:
    serving, newest = overview.serving, overview.newest
    assert serving is not None
    if state == "skipped":
        return [f"The last update was skipped. {reason}" for reason in reasons]
    if newest is not None and newest.id != serving.id and newest.state == "promoted":
        return [f"The newer model {newest.id} was taken out of service."]
    if is_manual(serving):
        return [f"Model {serving.id} was promoted by hand: the gate had rejected it."]
    return [f"The last update was promoted. {' '.join(reasons)}"]


def _last_outcome(overview: Overview) -> tuple[str | None, list[str], str | None]:
    """State, reasons and candidate of the last update that has ended; models of older versions have no update's row."""
    newest = overview.newest
    ended = next((update for update in overview.updates if update.state in FINISHED), None)
    if ended is not None and ended.model is None and (newest is None or ended.requested >= newest.created):
        return ended.state, [sentence(ended.reason or "no reason was recorded")], None
    if newest is None:
        return None, [], None
    # Once rejected, it may have been promoted by hand since.
    return newest.state, [sentence(part) for part in reason_of(newest).split("; ")], newest.id
