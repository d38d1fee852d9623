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
from fairstream.service import schema
from fairstream.service.audit import record
from fairstream.service.candidates import Candidates, Trial, names_of
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore, closed_periods, events_of, in_order, prune
from fairstream.service.forgetting import complete_forgetting
from fairstream.service.gaps import noise_words
from fairstream.service.gate import Check, Decision, attainable, compared, drift, finite, flood, rejects_drift
from fairstream.service.model_store import folder_hash
from fairstream.service.privacy import NO_GROUPS, GroupMeans, Release, reported, reported_regret
from fairstream.service.records import Period
from fairstream.service.registry import deciding, in_service, model, models, put_into_service
from fairstream.service.workspace import Workspace
from fairstream.strategies import TARGETS, PeriodReplay

_NO_GROUPS = "fewer than two groups are known, so nothing is done for fairness and no gap is measured"
_NOT_REPLAYED = "the level stays as it was: no level could be replayed on this period"
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
) -> Outcome:
    """Close the open period and decide on a new model; where there is too little to judge by, do nothing.

    The caller holds the updating lock. `conclude` is called in the transaction that makes all of it visible.
    """
    complete_forgetting(workspace)  # a candidate must not descend from what is to be forgotten
    prune(workspace)
    outcome = _Update(workspace, say, conclude).run()
    if outcome.kind == "skipped":
        with writing(workspace.engine) as connection:
            conclude(connection, outcome)
    return outcome


class _Update:
    def __init__(self, workspace: Workspace, say: Say, conclude: Callable[[Connection, Outcome], None]) -> None:
        self.conclude = conclude
        self.workspace, self.say, self.gate = workspace, say, workspace.config.gate
        self.kinds = workspace.config.events
        self.engine, self.store = workspace.engine, EventStore(workspace)
        self.periods = closed_periods(self.engine)
        self.t = len(self.periods)
        before = self.periods[-1] if self.periods else None
        self.first, self.last = (before.last_seq + 1 if before else 1), self.store.last_seq()
        self.events = in_order(self.store.learned(self.first - 1, self.last))
        self.n_learnable = int(len(self.events) * (1 - self.gate.held_out))
        self.n_late = self._late(before) if before else 0

    def _late(self, before: Period) -> int:
        """Count events dated before the last one of the period before: by their clock, so that no replay is late."""
        latest = pc.max(events_of(self.store, before)["time"])
        return pc.sum(pc.less(self.events["time"], latest)).as_py() or 0

    def run(self) -> Outcome:
        head, tail = self.events.slice(0, self.n_learnable), self.events.slice(self.n_learnable)
        is_judged = pc.is_in(tail["kind"], pa.array(self.kinds.judged, pa.string()))
        n_users, needed = pc.count_distinct(tail.filter(is_judged)["user_id"]).as_py(), self.gate.min_tested_users
        if n_users < needed:
            return Outcome(
                "skipped",
                f"the period stays open: {n_users} users have held-out {self.kinds.words} to judge by, {needed} are "
                f"needed (gate.min_tested_users); {len(self.events)} events wait",
            )
        current = in_service(self.engine)
        parent = None if current is None else current.model
        self.sha256 = _hash(self.events)
        release = Release(
            self.workspace.secret, self.workspace.config.privacy, self.gate.min_group_size, f"{self.t} {self.sha256}"
        )
        self.candidates = Candidates(self.workspace, self.store, parent, self.periods, release)
        counts = pc.value_counts(self.events["user_id"]).field("counts")
        busiest = flood(pc.max(counts).as_py() / len(self.events), self.gate)
        evaluation, drifts = None, list[Check]()
        try:
            if parent is not None:
                self.say(f"judging model {parent} by {len(self.events)} events of period {self.t}")
                evaluation = self._reported(*self.candidates.judge_in_service(self.events))
                drifts = list(self._drifts(evaluation, parent))
            self.say(f"learning {len(head)} events")
            begin = time.perf_counter()
            trial = self.candidates.learn(head, tail, has_drifted=not all(check.ok for check in drifts))
        except ModelError as error:
            return self._conclude(None, evaluation, Decision((busiest, finite(str(error)))), parent, 0.0)
        except DataError as error:  # it tests nobody, or too few users
            return Outcome("skipped", f"the period stays open: {error}; {len(self.events)} events wait")
        seconds = time.perf_counter() - begin
        return self._conclude(
            trial, evaluation, Decision((busiest, *map(self._named, self._checks(trial, drifts)))), parent, seconds
        )

    def _named(self, check: Check) -> Check:
        """A check whose sentence names the kinds that judge."""
        by = f"NDCG@{self.gate.k} by {self.kinds.words} for"
        return (
            replace(check, sentence=check.sentence.replace(f"NDCG@{self.gate.k} for", by))
            if self.kinds.judge_by
            else check
        )

    def _checks(self, trial: Trial, drifts: list[Check]) -> Iterator[Check]:
        yield finite(trial.what_is_not_finite)
        comparison, reference = trial.comparison, trial.reference
        if comparison is None or trial.what_is_not_finite is not None:
            yield from drifts
            return
        # Candidates in a row that were just rejected because the events had changed; floods do not count.
        latest = models(self.engine, limit=self.gate.drift_patience)
        drifted = takewhile(lambda row: row.state == "rejected" and rejects_drift(row.decision), latest)
        n_rejected = len(list(drifted))
        for check in drifts:
            if check.ok or reference is None:
                yield check
            else:
                yield attainable(check, comparison, reference, n_rejected, self.gate)
        yield from compared(comparison, self.gate)

    def _drifts(self, evaluation: dict[str, Any], parent: str) -> Iterator[Check]:
        """Compare with the last period that was learned from; the first period has no evaluation."""
        if before := self.periods[model(self.engine, parent).t].evaluation:
            noise_before = before.get("noise", {})
            noise = {name: (error, noise_before.get(name, 0.0)) for name, error in evaluation["noise"].items()}
            yield from drift(evaluation["levels"], before["levels"], self.gate, noise)

    def _conclude(
        self,
        trial: Trial | None,
        evaluation: dict[str, Any] | None,
        decision: Decision,
        parent: str | None,
        seconds: float,
    ) -> Outcome:
        """Write everything, the model first and then all else at once."""
        name = f"m{self.t:05d}-{secrets.token_hex(4)}"
        files = None
        if trial is not None:
            with self.workspace.models.new(name) as folder:
                trial.recommender.save(folder, with_groups=False)
                files = folder_hash(folder)
        kind: Kind = "failed" if trial is None else "promoted" if decision.promote else "rejected"
        about = self._about(trial)
        first_held_out = self.events.slice(self.n_learnable, 1)
        period = {
            "t": self.t,
            "first_seq": self.first,
            "last_seq": self.last,
            "closed": now(),
            "n_events": len(self.events),
            "n_users": pc.count_distinct(self.events["user_id"]).as_py(),
            "n_late": self.n_late,
            "split_time": first_held_out["time"][0].as_py(),
            "split_seq": first_held_out["seq"][0].as_py(),
            "evaluation": evaluation,
        }
        row = {
            "id": name,
            "t": self.t,
            "parent": parent,
            "state": kind,
            "folder": name,
            "created": now(),
            "training_seconds": seconds,
            "decision": decision.to_dict(),
            "about": about,
        }
        with deciding(self.engine) as (connection, now_in_service):
            if now_in_service != parent:
                # The gate compared the candidate with a model that no longer answers. The period stays open, so that
                # the next update judges the model now in service by these events and learns them from there.
                self.workspace.models.remove([name])
                return Outcome(
                    "skipped",
                    f"the period stays open: model {now_in_service} was put into service instead of {parent} while the "
                    f"update ran; the next update starts from it",
                )
            connection.execute(insert(schema.periods).values(**period))
            connection.execute(insert(schema.models).values(**row))
            if kind == "promoted":
                put_into_service(connection, name)
            entry = {key: row[key] for key in ("id", "t", "parent", "state", "decision", "about")}
            record(connection, "update", {**entry, "files": files, "period": period})
            reason = decision.reason if self.candidates.has_groups else f"{decision.reason}; {_NO_GROUPS}"
            outcome = Outcome(kind, reason, self.t, name)
            self.conclude(connection, outcome)
        if control := about.get("control"):
            self.say(control["sentence"])
        self.say(f"model {name} is {kind}: {outcome.reason}")
        noise = noise_words(self.workspace.config.privacy.epsilon)
        if noise is not None and self.candidates.has_groups:
            self.say(noise)
        return outcome

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
            about["data"]["n_new_items"] = trial.n_new_items
            comparison = trial.comparison
            groups = NO_GROUPS if comparison is None else comparison.groups_after
            about |= {"n_learned": trial.n_learned, "evaluation": self._reported(trial.after, groups)}
            about |= _control(trial, self.workspace.config.privacy.epsilon)
            if trial.before is not None and comparison is not None:
                about["before"] = self._reported(trial.before, comparison.groups_before)
                about["gains"] = comparison.gains()
            if trial.rejected:
                about["learned_rejected_periods"] = list(trial.rejected)
        return about

    def _reported(self, evaluation: Evaluation, groups: GroupMeans) -> dict[str, Any]:
        names, config = names_of(evaluation), self.workspace.config
        kinds = {"kinds": list(self.kinds.judge_by)} if self.kinds.judge_by else {}
        return reported(evaluation, groups, names, config.advantaged, config.privacy.epsilon) | kinds


def _hash(events: pa.Table) -> str:
    digest = hashlib.sha256()
    for name in ("user_id", "item_id", "time", "kind"):
        for part in events[name].to_pylist():
            digest.update(f"{part}\x1f".encode())
        digest.update(b"\x1e")
    return digest.hexdigest()


def _control(trial: Trial, epsilon: float | str) -> dict[str, Any]:
    """The target of a candidate, the level that it chose, and each group's regret; the weights of events, if any."""
    recommender, state, names = trial.recommender, trial.recommender.state, names_of(trial.after)
    weights, target, update = state.event_weights, recommender.recipe.target, recommender.last_update
    about: dict[str, Any] = {"event_weights": {name: weights.get(name, 1.0) for name in names}} if weights else {}
    if target is None:
        return about
    decision = None if update is None else update.decision
    name = next(name for name, kind in TARGETS.items() if isinstance(target, kind))
    periods = [PeriodReplay.from_json(period) for period in state.replays.get("periods", ())]
    about["control"] = {
        "target": {"name": name, **asdict(target)},
        "level": state.level._asdict(),
        "sentence": _NOT_REPLAYED if decision is None else decision.sentence,
        **reported_regret(periods, state.level, names, epsilon),
    }
    return about
