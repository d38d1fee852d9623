"""One update: close the period, judge the model in service by it, train a candidate, let the gate decide.

Nothing is visible until the last step, one transaction that writes the period, the candidate, the decision and, after
a promotion, which model answers. If the process is killed before it, the period is still open and the old model in
service; the next update removes leftover files.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import takewhile
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from sqlalchemy import Connection, insert

from fairstream.errors import DataError, ModelError
from fairstream.evaluation import Evaluation
from fairstream.evaluation.private_groups import GroupMeans
from fairstream.experiments import versions
from fairstream.service import replay, schema
from fairstream.service.audit import record
from fairstream.service.budget import Budget
from fairstream.service.candidates import Candidates, Trial
from fairstream.service.database import now, writing
from fairstream.service.event_store import (
    EventStore,
    close_by_key,
    closed_periods,
    in_order,
    is_full,
    prune,
    split_events,
)
from fairstream.service.forgetting import complete_forgetting
from fairstream.service.gaps import IN_REPLAY, noise_words
from fairstream.service.gate import Check, Decision, attainable, compared, drift, finite, rejects_drift
from fairstream.service.hold_out import Split, max_events_of_user
from fairstream.service.model_store import folder_hash
from fairstream.service.privacy import NO_GROUPS, Release, reported, reported_regret
from fairstream.service.records import Model, Period
from fairstream.service.registry import deciding, in_service, models, put_into_service
from fairstream.service.settings import Gate
from fairstream.service.workspace import Workspace
from fairstream.strategies import TARGETS, PeriodReplay

_NO_GROUPS = "fewer than two groups are known, so nothing is done for fairness and no gap is measured"
_NOT_REPLAYED = "the level stays as it was: no level could be replayed on this period"
_NO_LEVELS = "no level: levels change nothing in the lists of this model; blend and the popularities have levels"
Kind = Literal["promoted", "rejected", "failed", "skipped"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """How an update ended."""

    kind: Kind
    reason: str
    t: int | None = None
    model: str | None = None


OnCommit = Callable[[Connection, Outcome], None]


def update(
    workspace: Workspace,
    say: Say = lambda sentence: None,
    on_commit: OnCommit = lambda connection, outcome: None,
    *,
    afresh: bool = False,
) -> Outcome:
    """Close the open period and decide on a new model; with too little to judge by, do nothing.

    With `afresh` a first model learns all stored events; there is nothing to compare it with. Otherwise
    imported history is replayed in periods, of which this closes the next one. The caller holds the
    updating lock. `on_commit` is called in the transaction that makes the outcome visible.
    """
    complete_forgetting(workspace)  # a candidate must not descend from a model that knows forgotten people
    prune(workspace)
    periods = closed_periods(workspace.engine)
    for last, replay_until in replay.ends(workspace.engine, periods, at_once=afresh):
        period = _OpenPeriod.read(workspace, periods, last, replay_until)
        n_users, needed = _n_judging(workspace, period.split), workspace.config.gate.min_tested_users
        too_few = (
            f"{n_users} users have held-out {workspace.config.events.words} to judge by, {needed} are needed "
            f"(gate.min_tested_users)"
        )
        if n_users >= needed:
            job = _Update(workspace, periods, period, say, on_commit, afresh=afresh)
            try:
                return job.run()
            except DataError as error:  # they test nobody, or too few users
                too_few = str(error)
        if replay_until is None:  # otherwise the next part of the history joins this one
            return _skip(workspace, period, too_few, on_commit)
    raise AssertionError("the last end is that of all events, which has an outcome")


@dataclass(frozen=True)
class _OpenPeriod:
    """The period that an update closes."""

    t: int
    first: int
    last: int
    replay_until: int | None  # the last event of the imported history that it is a part of
    events: pa.Table  # by time
    split: Split
    max_of_user: int
    n_late: int
    of_keys: Mapping[str, int]  # how many of the events each ingest key has sent

    @classmethod
    def read(cls, workspace: Workspace, periods: list[Period], last: int, replay_until: int | None) -> _OpenPeriod:
        before, t = periods[-1] if periods else None, len(periods)
        first = before.last_seq + 1 if before else 1
        events, split, max_of_user = _split(workspace, t, first, last)
        # Late by the clock of the events, so that no replay is late.
        n_late = pc.sum(pc.less(events["time"], before.latest_time)).as_py() if before else 0
        of_keys, _ = EventStore(workspace).open_by_key()
        return cls(t, first, last, replay_until, events, split, max_of_user, n_late or 0, of_keys)

    def sha256(self) -> str:
        digest = hashlib.sha256()
        for name in ("user_id", "item_id", "time", "kind"):
            digest.update("\x1f".join([*map(str, self.events[name].to_pylist()), "\x1e"]).encode())
        return digest.hexdigest()

    def close(self, connection: Connection, gate: Gate, evaluation: dict[str, Any] | None) -> dict[str, Any]:
        """Close the period and return its row."""
        row = {
            "t": self.t,
            "first_seq": self.first,
            "last_seq": self.last,
            "closed": now(),
            "n_events": len(self.events),
            "n_users": pc.count_distinct(self.events["user_id"]).as_py(),
            "n_late": self.n_late,
            "latest_time": pc.max(self.events["time"]).as_py() or 0,
            "held_out": gate.held_out,
            "max_of_user": self.max_of_user,
            "replay_until": self.replay_until,
            "evaluation": evaluation,
        }
        connection.execute(insert(schema.periods).values(**row))
        close_by_key(connection, self.of_keys)
        return row


def _split(workspace: Workspace, t: int, first: int, last: int) -> tuple[pa.Table, Split, int]:
    """Read the events of period t by time and split them; the last part is the number of one user's that count."""
    gate, events = workspace.config.gate, in_order(EventStore(workspace).learned(first - 1, last))
    counts = pc.value_counts(events["user_id"]).field("counts").to_numpy()
    max_of_user = max_events_of_user(counts, gate.max_user_share)
    return events, split_events(workspace, events, t, gate.held_out, max_of_user), max_of_user


def _n_judging(workspace: Workspace, split: Split) -> int:
    """How many users have held-out events of the kinds that judge."""
    is_judged = pc.is_in(split.held_out["kind"], pa.array(workspace.config.events.judged, pa.string()))
    n_users: int = pc.count_distinct(split.held_out.filter(is_judged)["user_id"]).as_py()
    return n_users


def _skip(workspace: Workspace, period: _OpenPeriod, why: str, on_commit: OnCommit) -> Outcome:
    """Leave the period open; close a full one unjudged, because a full period takes no more events."""
    n_events, config = len(period.events), workspace.config
    outcome = Outcome("skipped", f"the period stays open: {why}; {n_events} events wait")
    with writing(workspace.engine) as connection:
        if is_full(period.last + 1 - period.first, config.limits):
            record(connection, "close", {"period": period.close(connection, config.gate, None)})
            reason = f"the period is full and was closed without a judgement: {why}"
            outcome = Outcome("skipped", f"{reason}; lists know its {n_events} events", period.t)
        on_commit(connection, outcome)
    return outcome


class _Update:
    def __init__(
        self,
        workspace: Workspace,
        periods: list[Period],
        period: _OpenPeriod,
        say: Say,
        on_commit: OnCommit,
        *,
        afresh: bool,
    ) -> None:
        self.workspace, self.engine, self.config = workspace, workspace.engine, workspace.config
        self.periods, self.period, self.say, self.on_commit = periods, period, say, on_commit
        current = in_service(self.engine)
        self.in_service, self.sha256 = current and current.model, period.sha256()
        self.budget = Budget.read(self.engine, self.config.privacy, waits=self._judges_more_history())
        label = f"{period.t} {self.sha256}"
        release = Release(workspace.secret, self.config.gate.min_group_size, label, self.budget)
        self.candidates = Candidates(workspace, None if afresh else self.in_service, periods, release)

    def run(self) -> Outcome:
        """Judge, learn and decide; a `DataError` says that there are too few users to judge by."""
        split, parent = self.period.split, self.candidates.parent
        evaluation, drifts = None, list[Check]()
        try:
            if parent is not None:
                self.say(f"judging model {parent.id} by {len(split.counted)} events of period {self.period.t}")
                result, groups, level = self.candidates.judge_in_service(split.counted, self.period.t)
                lists = self.candidates.judge_lists(round(self.periods[-1].closed.timestamp() * 1e6))
                evaluation = {**self._reported(result, groups), "judged": level, "lists": lists}
                drifts = list(self._drifts(evaluation, parent))
            self.say(f"learning {len(split.learned)} events")
            begin, has_drifted = time.perf_counter(), not all(check.ok for check in drifts)
            trial = self.candidates.learn(split.learned, split.held_out, has_drifted=has_drifted)
        except ModelError as error:
            return self._commit(None, evaluation, Decision((finite(str(error)),)), 0.0)
        seconds = time.perf_counter() - begin
        return self._commit(trial, evaluation, Decision(tuple(self._checks(trial, drifts))), seconds)

    def _judges_more_history(self) -> bool:
        """Whether a later part of the imported history will be judged, too."""
        if (until := self.period.replay_until) is None:
            return False
        _, rest, _ = _split(self.workspace, self.period.t + 1, self.period.last + 1, until)
        return _n_judging(self.workspace, rest) >= self.config.gate.min_tested_users

    def _drifts(self, evaluation: dict[str, Any], parent: Model) -> Iterator[Check]:
        """Compare with the last period that was learned from; the first period has no evaluation."""
        if before := self.periods[parent.t].evaluation:
            noise = {name: (error, before["noise"].get(name, 0.0)) for name, error in evaluation["noise"].items()}
            levels, were = ({**each["levels"], **each["judged"]} for each in (evaluation, before))
            yield from drift(levels, were, self.config.gate, noise)

    def _checks(self, trial: Trial, drifts: list[Check]) -> Iterator[Check]:
        yield finite(None)
        comparison, reference = trial.comparison, trial.reference
        if comparison is None:  # the first model
            return
        # Candidates in a row that were just rejected because the events had changed.
        latest = models(self.engine, limit=self.config.gate.drift_patience)
        drifted = takewhile(lambda row: row.state == "rejected" and rejects_drift(row.decision), latest)
        n_rejected = len(list(drifted))
        for check in drifts:
            if check.ok or reference is None:
                yield check
            else:
                yield attainable(check, comparison, reference, n_rejected, self.config.gate)
        kinds = self.config.events
        by = f" by {kinds.words}" if kinds.judge_by else ""
        yield from compared(comparison, self.config.gate, f"NDCG@{self.config.gate.k}{by}")

    def _commit(
        self, trial: Trial | None, evaluation: dict[str, Any] | None, decision: Decision, seconds: float
    ) -> Outcome:
        """Write the model, then everything else in one transaction."""
        name, files = f"m{self.period.t:05d}-{secrets.token_hex(4)}", None
        if trial is not None:
            with self.workspace.models.new(name) as folder:
                trial.recommender.save(folder, with_groups=False)
                files = folder_hash(folder)
        kind: Kind = "failed" if trial is None else "promoted" if decision.promote else "rejected"
        about, parent = self._about(trial), self.candidates.parent
        candidate = {"id": name, "t": self.period.t, "parent": parent and parent.id, "state": kind}
        candidate |= {"decision": decision.to_dict(), "about": about}
        with deciding(self.engine) as (connection, now_in_service):
            if now_in_service != self.in_service:
                # The gate compared the candidate with a model that no longer answers. The period stays open, so that
                # the next update judges the model now in service by these events and learns them from there.
                self.workspace.models.remove([name])
                outcome = Outcome(
                    "skipped",
                    f"the period stays open: model {now_in_service} was put into service instead of {self.in_service} "
                    f"while the update ran; the next update starts from it",
                )
                self.on_commit(connection, outcome)
                return outcome
            period = self.period.close(connection, self.config.gate, evaluation)
            row = {**candidate, "folder": name, "created": now(), "training_seconds": seconds}
            connection.execute(insert(schema.models).values(**row))
            if kind == "promoted":
                put_into_service(connection, name)
            record(connection, "update", {**candidate, "files": files, "period": period})
            self.budget.store(connection)
            self.candidates.tested.store(connection)
            outcome = Outcome(kind, "; ".join((decision.reason, *self._notes())), self.period.t, name)
            self.on_commit(connection, outcome)
        if control := about.get("control"):
            self.say(control["sentence"])
        self.say(f"model {name} is {kind}: {outcome.reason}")
        noise = noise_words(self.config.privacy.epsilon_per_quarter)
        if noise is not None and self.candidates.has_groups:
            self.say(noise)
        return outcome

    def _notes(self) -> Iterator[str]:
        """What the reason says besides the decision."""
        if n := self.period.split.n_surplus:
            share = self.config.gate.max_user_share
            yield f"{n:,} events of users with more than {share:.0%} of the period were left out"
        if self.candidates.note is not None:
            yield self.candidates.note
        if not self.candidates.has_groups:
            yield _NO_GROUPS

    def _about(self, trial: Trial | None) -> dict[str, Any]:
        about: dict[str, Any] = {
            "configuration": self.config.to_dict(),
            "data": {
                "sha256": self.sha256,
                "n_events": len(self.period.events),
                "n_users": pc.count_distinct(self.period.events["user_id"]).as_py(),
                "n_items": pc.count_distinct(self.period.events["item_id"]).as_py(),
            },
            "versions": versions(),
        }
        if trial is None:
            return about
        about["data"] |= {"n_new_items": trial.n_new_items, "n_surplus": self.period.split.n_surplus}
        about |= {"n_learned": trial.n_learned, "learned_rejected_periods": list(trial.rejected)}
        groups = NO_GROUPS
        if trial.before is not None and trial.comparison is not None:
            groups = trial.comparison.groups_after
            about["before"] = self._reported(trial.before, trial.comparison.groups_before.readable())
            about["gains"] = trial.comparison.gains()
        return about | {"evaluation": self._reported(trial.after, groups.readable())} | self._control(trial)

    def _control(self, trial: Trial) -> dict[str, Any]:
        """The target of a candidate, the level that it chose, and each group's regret; event weights, if any."""
        recommender, state, names = trial.recommender, trial.recommender.state, self.candidates.names
        weights, target, update = state.event_weights, recommender.recipe.target, recommender.last_update
        about: dict[str, Any] = {"event_weights": {name: weights.get(name, 1.0) for name in names}} if weights else {}
        if target is None:
            return about
        decision = None if update is None else update.decision
        periods = [PeriodReplay.from_json(period) for period in state.replays.get("periods", ())]
        regret = reported_regret(periods, state.level, names, self.config.privacy.epsilon_per_quarter)
        why = _NOT_REPLAYED
        if not recommender.model.has_levels:
            why = _NO_LEVELS
        elif self.budget.waits and not self.budget.is_off:
            why, regret["withheld"] = f"the level stays as it was: {IN_REPLAY}", dict.fromkeys(names, IN_REPLAY)
        name = next(name for name, kind in TARGETS.items() if isinstance(target, kind))
        about["control"] = {
            "target": {"name": name, **asdict(target)},
            "level": state.level._asdict(),
            "sentence": why if decision is None else decision.sentence,
            **regret,
        }
        return about

    def _reported(self, evaluation: Evaluation, groups: GroupMeans) -> dict[str, Any]:
        kinds = {"kinds": list(self.config.events.judge_by)} if self.config.events.judge_by else {}
        names, epsilon = self.candidates.names, self.config.privacy.epsilon_per_quarter
        return reported(evaluation, groups, names, self.config.advantaged, epsilon) | kinds
