"""One update: close the period, judge the model in service by it, learn a candidate, let the gate decide.

Nothing is visible until the last step, one transaction that writes the period, the candidate, the decision and, after
a promotion, which model answers. Killed at any moment before, the period is still open and the old model in service;
the next update removes the files that were left.
"""

from __future__ import annotations

import hashlib
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import takewhile
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from sqlalchemy import Connection, insert

from fairstream._version import __version__
from fairstream.errors import DataError, ModelError
from fairstream.evaluation import Evaluation
from fairstream.evaluation.private_groups import GroupMeans
from fairstream.service import replay, schema
from fairstream.service.audit import record
from fairstream.service.budget import Budget, spends
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
from fairstream.service.workspace import Workspace
from fairstream.strategies import TARGETS, PeriodReplay

_NO_GROUPS = "fewer than two groups are known, so nothing is done for fairness and no gap is measured"
_NOT_REPLAYED = "the level stays as it was: no level could be replayed on this period"
_NO_LEVELS = "no level: levels change nothing in the lists of this model; blend and the popularities have levels"
Kind = Literal["promoted", "rejected", "failed", "skipped"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """What became of an update."""

    kind: Kind
    reason: str
    t: int | None = None
    model: str | None = None


def update(
    workspace: Workspace,
    say: Say = lambda sentence: None,
    conclude: Callable[[Connection, Outcome], None] = lambda connection, outcome: None,
    *,
    afresh: bool = False,
) -> Outcome:
    """Close the open period and decide on a new model; where there is too little to judge by, do nothing.

    With `afresh` a first model learns all stored events; there is nothing to compare it with. Otherwise
    imported history is replayed in periods, of which this closes the next one. The caller holds the
    updating lock. `conclude` is called in the transaction that makes all of it visible.
    """
    complete_forgetting(workspace)  # a candidate must not descend from what is to be forgotten
    prune(workspace)
    periods = closed_periods(workspace.engine)
    for end, until in replay.ends(workspace.engine, periods, at_once=afresh):
        with suppress(_TooLittle):
            return _Update(workspace, periods, end, until, say, conclude, afresh=afresh).run()
    raise AssertionError("the last end is that of all events, which is never too little")


class _TooLittle(Exception):  # noqa: N818 (no error)
    """A part of the history has too few users to judge by: the next part joins it."""


class _Update:
    def __init__(
        self,
        workspace: Workspace,
        periods: list[Period],
        last: int,
        replay_until: int | None,
        say: Say,
        conclude: Callable[[Connection, Outcome], None],
        *,
        afresh: bool,
    ) -> None:
        self.workspace, self.say, self.conclude, self.gate = workspace, say, conclude, workspace.config.gate
        self.kinds = workspace.config.events
        self.engine, store = workspace.engine, EventStore(workspace)
        self.periods, self.replay_until = periods, replay_until
        self.t = len(self.periods)
        before = self.periods[-1] if self.periods else None
        self.first, self.last = (before.last_seq + 1 if before else 1), last
        self.events, self.split, self.max_of_user = self._split(self.first - 1, self.last, self.t)
        self.of_keys, _ = store.open_by_key()
        self.sha256 = _hash(self.events)
        late = pc.less(self.events["time"], before.latest_time) if before else None
        self.n_late = 0 if late is None else pc.sum(late).as_py() or 0  # by their clock, so that no replay is late
        current = in_service(self.engine)
        self.in_service = None if current is None else current.model
        self.start = None if afresh else self.in_service

    def run(self) -> Outcome:
        held_out, needed = self.split.held_out, self.gate.min_tested_users
        if (n_users := self._n_judging(self.split)) < needed:
            return self._skip(
                f"{n_users} users have held-out {self.kinds.words} to judge by, {needed} are needed "
                f"(gate.min_tested_users)"
            )
        rest = None if self.replay_until is None else self._split(self.last, self.replay_until, self.t + 1)[1]
        waits = rest is not None and self._n_judging(rest) >= needed  # then a later part will be judged, too
        self.budget = Budget.read(self.engine, self.workspace.config.privacy, waits=waits)
        sizes = next((spend.published for spend in spends(self.engine, "sizes", 1)), {})
        label = f"{self.t} {self.sha256}"
        release = Release(self.workspace.secret, self.gate.min_group_size, label, self.budget, sizes)
        self.candidates = Candidates(self.workspace, self.start, self.periods, release)
        evaluation, drifts, parent = None, list[Check](), self.candidates.parent
        try:
            if parent is not None:
                self.say(f"judging model {parent.id} by {len(self.split.counted)} events of period {self.t}")
                result, groups, level = self.candidates.judge_in_service(self.split.counted, self.t)
                evaluation = {**self._reported(result, groups), "judged": level}
                drifts = list(self._drifts(evaluation, parent))
            self.say(f"learning {len(self.split.learned)} events")
            begin = time.perf_counter()
            has_drifted = not all(check.ok for check in drifts)
            trial = self.candidates.learn(self.split.learned, held_out, has_drifted=has_drifted)
        except ModelError as error:
            return self._conclude(None, evaluation, Decision((finite(str(error)),)), 0.0)
        except DataError as error:  # it tests nobody, or too few users
            return self._skip(str(error))
        seconds = time.perf_counter() - begin
        return self._conclude(
            trial, evaluation, Decision(tuple(map(self._named, self._checks(trial, drifts)))), seconds
        )

    def _split(self, after: int, until: int, t: int) -> tuple[pa.Table, Split, int]:
        """Read events in order and split them; the last part is the number from which on one user's do not count."""
        events = in_order(EventStore(self.workspace).learned(after, until))
        counts = pc.value_counts(events["user_id"]).field("counts").to_numpy()
        max_of_user = max_events_of_user(counts, self.gate.max_user_share)
        return events, split_events(self.workspace, events, t, self.gate.held_out, max_of_user), max_of_user

    def _n_judging(self, split: Split) -> int:
        """How many users have held-out events of the kinds that judge."""
        is_judged = pc.is_in(split.held_out["kind"], pa.array(self.kinds.judged, pa.string()))
        n_users: int = pc.count_distinct(split.held_out.filter(is_judged)["user_id"]).as_py()
        return n_users

    def _named(self, check: Check) -> Check:
        """A check whose sentence names the kinds that judge."""
        if not self.kinds.judge_by:
            return check
        general = f"NDCG@{self.gate.k} for"
        return replace(check, sentence=check.sentence.replace(general, f"NDCG@{self.gate.k} by {self.kinds.words} for"))

    def _skip(self, why: str) -> Outcome:
        """Leave the period open; close a full one unjudged, because a full period takes no more events."""
        if self.replay_until is not None:
            raise _TooLittle
        outcome = Outcome("skipped", f"the period stays open: {why}; {len(self.events)} events wait")
        with writing(self.engine) as connection:
            if is_full(self.last + 1 - self.first, self.workspace.config.limits):
                record(connection, "close", {"period": self._close(connection, self._period(None))})
                reason = f"the period is full and was closed without a judgement: {why}"
                outcome = Outcome("skipped", f"{reason}; lists know its {len(self.events)} events", self.t)
            self.conclude(connection, outcome)
        return outcome

    def _checks(self, trial: Trial, drifts: list[Check]) -> Iterator[Check]:
        yield finite(trial.what_is_not_finite)
        comparison, reference = trial.comparison, trial.reference
        if comparison is None or trial.what_is_not_finite is not None:
            yield from drifts
            return
        # Candidates in a row that were just rejected because the events had changed.
        latest = models(self.engine, limit=self.gate.drift_patience)
        drifted = takewhile(lambda row: row.state == "rejected" and rejects_drift(row.decision), latest)
        n_rejected = len(list(drifted))
        for check in drifts:
            if check.ok or reference is None:
                yield check
            else:
                yield attainable(check, comparison, reference, n_rejected, self.gate)
        yield from compared(comparison, self.gate)

    def _drifts(self, evaluation: dict[str, Any], parent: Model) -> Iterator[Check]:
        """Compare with the last period that was learned from; the first period has no evaluation."""
        if before := self.periods[parent.t].evaluation:
            noise_before = before.get("noise", {})
            noise = {name: (error, noise_before.get(name, 0.0)) for name, error in evaluation["noise"].items()}
            levels, were = ({**each["levels"], **each["judged"]} for each in (evaluation, before))
            yield from drift(levels, were, self.gate, noise)

    def _period(self, evaluation: dict[str, Any] | None) -> dict[str, Any]:
        return {
            "t": self.t,
            "first_seq": self.first,
            "last_seq": self.last,
            "closed": now(),
            "n_events": len(self.events),
            "n_users": pc.count_distinct(self.events["user_id"]).as_py(),
            "n_late": self.n_late,
            "latest_time": pc.max(self.events["time"]).as_py() or 0,
            "held_out": self.gate.held_out,
            "max_of_user": self.max_of_user,
            "replay_until": self.replay_until,
            "evaluation": evaluation,
        }

    def _close(self, connection: Connection, period: dict[str, Any]) -> dict[str, Any]:
        connection.execute(insert(schema.periods).values(**period))
        close_by_key(connection, self.of_keys)
        return period

    def _conclude(
        self, trial: Trial | None, evaluation: dict[str, Any] | None, decision: Decision, seconds: float
    ) -> Outcome:
        """Write everything, the model first and then all else at once."""
        name = f"m{self.t:05d}-{secrets.token_hex(4)}"
        files = None
        if trial is not None:
            with self.workspace.models.new(name) as folder:
                trial.recommender.save(folder, with_groups=False)
                files = folder_hash(folder)
        kind: Kind = "failed" if trial is None else "promoted" if decision.promote else "rejected"
        about, period, parent = self._about(trial), self._period(evaluation), self.candidates.parent
        row = {
            "id": name,
            "t": self.t,
            "parent": parent and parent.id,
            "state": kind,
            "folder": name,
            "created": now(),
            "training_seconds": seconds,
            "decision": decision.to_dict(),
            "about": about,
        }
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
                self.conclude(connection, outcome)
                return outcome
            self._close(connection, period)
            connection.execute(insert(schema.models).values(**row))
            if kind == "promoted":
                put_into_service(connection, name)
            entry = {key: row[key] for key in ("id", "t", "parent", "state", "decision", "about")}
            record(connection, "update", {**entry, "files": files, "period": period})
            self.budget.store(connection)
            self.candidates.tested.store(connection)
            outcome = Outcome(kind, "; ".join((decision.reason, *self._notes())), self.t, name)
            self.conclude(connection, outcome)
        if control := about.get("control"):
            self.say(control["sentence"])
        self.say(f"model {name} is {kind}: {outcome.reason}")
        noise = noise_words(self.workspace.config.privacy.epsilon_per_quarter)
        if noise is not None and self.candidates.has_groups:
            self.say(noise)
        return outcome

    def _notes(self) -> Iterator[str]:
        """What the reason says besides the decision."""
        if self.split.n_surplus:
            share = self.gate.max_user_share
            yield f"{self.split.n_surplus:,} events of users with more than {share:.0%} of the period were left out"
        if self.candidates.note is not None:
            yield self.candidates.note
        if not self.candidates.has_groups:
            yield _NO_GROUPS

    def _about(self, trial: Trial | None) -> dict[str, Any]:
        about: dict[str, Any] = {
            "configuration": self.workspace.config.to_dict(),
            "data": {
                "sha256": self.sha256,
                "n_events": len(self.events),
                "n_users": pc.count_distinct(self.events["user_id"]).as_py(),
                "n_items": pc.count_distinct(self.events["item_id"]).as_py(),
            },
            "versions": {
                "fairstream": __version__,
                "torch": str(torch.__version__),
                "numpy": np.__version__,
                "python": platform.python_version(),
            },
        }
        if not self.candidates.has_groups:
            about["fairness"] = f"off: {_NO_GROUPS}"
        if trial is not None:
            about["data"] |= {"n_new_items": trial.n_new_items, "n_surplus": self.split.n_surplus}
            comparison = trial.comparison
            groups = NO_GROUPS if comparison is None else comparison.groups_after
            about |= {"n_learned": trial.n_learned, "evaluation": self._reported(trial.after, groups.readable())}
            about |= self._control(trial)
            if trial.before is not None and comparison is not None:
                about["before"] = self._reported(trial.before, comparison.groups_before.readable())
                about["gains"] = comparison.gains()
            if trial.rejected:
                about["learned_rejected_periods"] = list(trial.rejected)
        return about

    def _control(self, trial: Trial) -> dict[str, Any]:
        """The target of a candidate, the level that it chose, and each group's regret; event weights, if any."""
        recommender, state, names = trial.recommender, trial.recommender.state, self.candidates.names
        weights, target, update = state.event_weights, recommender.recipe.target, recommender.last_update
        about: dict[str, Any] = {"event_weights": {name: weights.get(name, 1.0) for name in names}} if weights else {}
        if target is None:
            return about
        decision = None if update is None else update.decision
        name = next(name for name, kind in TARGETS.items() if isinstance(target, kind))
        periods = [PeriodReplay.from_json(period) for period in state.replays.get("periods", ())]
        regret = reported_regret(periods, state.level, names, self.workspace.config.privacy.epsilon_per_quarter)
        why = _NOT_REPLAYED
        if not recommender.model.has_levels:
            why = _NO_LEVELS
        elif self.budget.waits and not self.budget.is_off:
            why, regret["withheld"] = f"the level stays as it was: {IN_REPLAY}", dict.fromkeys(names, IN_REPLAY)
        about["control"] = {
            "target": {"name": name, **asdict(target)},
            "level": state.level._asdict(),
            "sentence": why if decision is None else decision.sentence,
            **regret,
        }
        return about

    def _reported(self, evaluation: Evaluation, groups: GroupMeans) -> dict[str, Any]:
        names, config = self.candidates.names, self.workspace.config
        kinds = {"kinds": list(self.kinds.judge_by)} if self.kinds.judge_by else {}
        return reported(evaluation, groups, names, config.advantaged, config.privacy.epsilon_per_quarter) | kinds


def _hash(events: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in ("user_id", "item_id", "time", "kind"):
        for part in events[name].to_pylist():
            digest.update(f"{part}\x1f".encode())
        digest.update(b"\x1e")
    return digest.hexdigest()
