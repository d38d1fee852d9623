"""How a workspace stands, from its database alone."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from fairstream.service import updates
from fairstream.service.budget import PrivacyStatus
from fairstream.service.database import reading
from fairstream.service.event_store import EventStore, closed_periods
from fairstream.service.experiments import running
from fairstream.service.forgetting import pending_requests
from fairstream.service.gaps import Gap, falling, latest_gap, score_in, why_no_gap
from fairstream.service.impressions import Report
from fairstream.service.records import Time, Update
from fairstream.service.registry import in_service, n_unpromoted
from fairstream.service.settings import judged
from fairstream.service.workspace import Workspace

_LATEST = 60


class Status(BaseModel):
    """The model in service, the last update, and the events that wait."""

    model_config = ConfigDict(frozen=True)

    model: str | None  # the model in service; None: recommendations are by popularity
    since: Time | None
    last_update: Update | None
    unpromoted_in_a_row: int  # updates since the last promotion that ended without one
    n_periods: int
    ndcg: float | None  # of the model in service on the last period
    judged_by: list[str]  # the kinds of events that it was judged by; none: all that are learned
    trend: str | None  # a sentence, if the quality falls
    largest_gap: Gap | None  # between a group and everyone else, as published
    no_gap: str | None  # why there is none although groups are known
    gap_period: int | None  # the period whose evaluation has it: not every update publishes numbers of groups
    privacy: PrivacyStatus
    n_forgettings_pending: int  # requests to forget people that are not completed
    n_waiting: int  # events that wait for the next update
    every: str | None
    click_through: float | None  # of the lists that were shown in the last 24 hours
    n_shown: int  # items in them
    experiment: str | None  # the running experiment, in a sentence

    @classmethod
    def of(cls, workspace: Workspace) -> Status:
        engine, current = workspace.engine, in_service(workspace.engine)
        last, newest = closed_periods(engine, limit=_LATEST), updates.listed(engine, limit=1)
        evaluation = (last[-1].evaluation or {}) if last else {}
        score = score_in(evaluation)
        released, gap = latest_gap(last)
        shown = Report.of(engine, 24).everyone
        with reading(engine) as connection:
            experiment = running(connection)
        return cls.model_validate(
            {
                "model": current and current.model,
                "since": current and current.since,
                "last_update": newest[0] if newest else None,
                "unpromoted_in_a_row": n_unpromoted(engine),
                "n_periods": last[-1].t + 1 if last else 0,
                "ndcg": score.get("mean"),
                "judged_by": evaluation.get("kinds", []),
                "trend": falling([score_in(period.evaluation).get("mean") for period in last]),
                "largest_gap": gap,
                "gap_period": released and released.t,
                "no_gap": why_no_gap(evaluation) if gap is None and score.get("by_group") else None,
                "privacy": PrivacyStatus.of(engine, workspace.config.privacy),
                "n_forgettings_pending": pending_requests(engine)[0],
                "n_waiting": EventStore(workspace).n_open(),
                "every": workspace.config.every,
                "click_through": shown.click_through,
                "n_shown": shown.shown,
                "experiment": experiment and experiment.sentences[0],
            }
        )

    def sentences(self) -> list[str]:
        lines = ["No model is in service yet: recommendations are by popularity."]
        if self.model is not None and self.since is not None:
            lines = [f"Model {self.model} has been in service since {self.since:%Y-%m-%d %H:%M:%S} UTC."]
        if self.ndcg is not None:
            by = f" by {judged(self.judged_by)}" if self.judged_by else ""
            gap = "" if self.largest_gap is None else f"; as of period {self.gap_period}, {self.largest_gap.words}"
            gap += "" if self.no_gap is None else f"; no gap between groups is reported: {self.no_gap}"
            lines.append(f"On the last of {self.n_periods} periods its NDCG{by} was {self.ndcg:.4f}{gap}.")
            if self.trend is not None:
                lines.append(self.trend)
            if self.largest_gap is not None and (noise := self.privacy.sentence) is not None:
                lines.append(noise)
        if self.click_through is not None:
            shown = f"{self.n_shown:,} items that were shown in the last 24 hours"
            lines.append(f"Click-through was {self.click_through:.2%} of {shown}.")
        if self.experiment is not None:
            lines.append(self.experiment)
        if (done := self.last_update) is not None:
            reason = f": {done.reason}" if done.reason else ""
            lines.append(
                f"Last update {done.id}, requested {done.requested:%Y-%m-%d %H:%M:%S} UTC, {done.state}{reason}."
            )
        if self.unpromoted_in_a_row > 1:
            lines.append(
                f"{self.unpromoted_in_a_row} updates in a row promoted no model: look at what has changed; "
                f"`fairstream promote` puts a rejected model into service."
            )
        if self.n_forgettings_pending:
            lines.append(f"{self.n_forgettings_pending} request(s) to forget people are not completed yet.")
        schedule = "on request" if self.every is None else f"every {self.every}"
        lines.append(f"{self.n_waiting:,} events wait for the next update ({schedule}).")
        return lines
