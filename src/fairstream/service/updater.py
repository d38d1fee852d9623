"""One update: close the period, judge the model in service by it, learn a candidate, let the gate decide.

Nothing is visible until the last step, one transaction that writes the period, the candidate, the
decision and, if it is promoted, which model answers. Killed at any moment before, the period is
still open and the old model in service; what was on its way is swept up by the next update.
"""

from __future__ import annotations

import hashlib
import platform
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from fairstream.service.control import reported_control, sentences_of
from fairstream.service.database import now, writing
from fairstream.service.event_store import EventStore
from fairstream.service.explain import strata
from fairstream.service.forgetting import complete_forgetting
from fairstream.service.gaps import noise_words
from fairstream.service.gate import Check, Decision, attainable, compared, drift, finite, flood, rejects_drift
from fairstream.service.periods import closed_periods, events_of, in_order
from fairstream.service.privacy import NO_GROUPS, GroupMeans, Release, reported
from fairstream.service.records import Period
from fairstream.service.registry import deciding, in_service, model, models, put_into_service
from fairstream.service.retention import prune
from fairstream.service.workspace import Workspace

_NO_GROUPS = "fewer than two groups are known, so nothing is done for fairness and no gap is measured"
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
        self.engine, self.store = workspace.engine, EventStore(workspace)
        self.periods = closed_periods(self.engine)
        self.t = len(self.periods)
        before = self.periods[-1] if self.periods else None
        self.first, self.last = (before.last_seq + 1 if before else 1), self.store.last_seq()
        self.events = in_order(self.store.read(self.first - 1, self.last))
        self.n_learnable = int(len(self.events) * (1 - self.gate.held_out))
        self.n_late = self._late(before) if before else 0

    def _late(self, before: Period) -> int:
        """Events dated before the last one of the period before: by their own clock, so that a replay is not late."""
        latest = pc.max(events_of(self.store, before)["time"])
        return pc.sum(pc.less(self.events["time"], latest)).as_py() or 0

    def run(self) -> Outcome:
        head, tail = self.events.slice(0, self.n_learnable), self.events.slice(self.n_learnable)
        n_users, needed = pc.count_distinct(tail["user_id"]).as_py(), self.gate.min_tested_users
        if n_users < needed:
            return Outcome(
                "skipped",
                f"the period stays open: {n_users} users have held-out events to judge by, {needed} are needed "
                f"(gate.min_tested_users); {len(self.events)} events wait",
            )
        current = in_service(self.engine)
        self.sha256 = _hash(self.events)
        release = Release(
            self.workspace.secret, self.workspace.config.privacy, self.gate.min_group_size, f"{self.t} {self.sha256}"
        )
        candidates = Candidates(self.workspace, self.store, current and current.model, self.periods, release)
        self.candidates = candidates
        evaluation = None
        try:
            if current is not None:
                self.say(f"judging model {current.model} by {len(self.events)} events of period {self.t}")
                evaluation = self._reported(*candidates.judge_in_service(self.events))
            self.say(f"learning {len(head)} events")
            begin = time.perf_counter()
            drifts = list(self._drifts(evaluation, current.model)) if evaluation and current else []
            trial = candidates.learn(head, tail, has_drifted=not all(check.ok for check in drifts))
        except ModelError as error:
            return self._conclude(None, evaluation, Decision((*self._flood(), finite(str(error)))), current, 0.0)
        except DataError as error:  # it tests nobody, or too few users
            return Outcome("skipped", f"the period stays open: {error}; {len(self.events)} events wait")
        seconds = time.perf_counter() - begin
        return self._conclude(trial, evaluation, self._decide(trial, drifts), current, seconds)

    def _flood(self) -> tuple[Check, ...]:
        counts = pc.value_counts(self.events["user_id"]).field("counts")
        return (flood(pc.max(counts).as_py() / len(self.events), self.gate),)

    def _decide(self, trial: Trial, drifts: list[Check]) -> Decision:
        checks = [*self._flood(), finite(trial.what_is_not_finite)]
        compares = trial.comparison
        if compares is None or trial.what_is_not_finite is not None:
            return Decision((*checks, *drifts))
        if trial.reference is not None:
            n_rejected, reference = self._n_drifts(), trial.reference
            drifts = [
                check if check.ok else attainable(check, compares, reference, n_rejected, self.gate) for check in drifts
            ]
        checks += drifts
        return Decision((*checks, *compared(compares, self.gate)))

    def _n_drifts(self) -> int:
        """How many candidates in a row were just rejected because the events had changed; floods do not count."""
        latest = models(self.engine, limit=self.gate.drift_patience)
        return sum(1 for _ in takewhile(lambda row: row.state == "rejected" and rejects_drift(row.decision), latest))

    def _drifts(self, evaluation: dict[str, Any], parent: str) -> Iterator[Check]:
        """Compare with the last period that was learned from; of the first period nobody can tell."""
        if before := self.periods[model(self.engine, parent).t].evaluation:
            noise_before = before.get("noise", {})
            noise = {name: (error, noise_before.get(name, 0.0)) for name, error in evaluation["noise"].items()}
            yield from drift(evaluation["levels"], before["levels"], self.gate, noise)

    def _conclude(
        self,
        trial: Trial | None,
        evaluation: dict[str, Any] | None,
        decision: Decision,
        current: Any,
        seconds: float,
    ) -> Outcome:
        """Write everything, the model first and then all else at once."""
        name = f"m{self.t:05d}-{secrets.token_hex(4)}"
        if trial is not None:
            with self.workspace.models.new(name) as folder:
                trial.recommender.save(folder, with_groups=False)
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
            "parent": current and current.model,
            "state": kind,
            "folder": name,
            "created": now(),
            "training_seconds": seconds,
            "decision": decision.to_dict(),
            "about": about,
        }
        with deciding(self.engine) as (connection, now_in_service):
            if now_in_service != row["parent"]:
                return self._overtaken(name, row["parent"], now_in_service)
            connection.execute(insert(schema.periods).values(**period))
            connection.execute(insert(schema.models).values(**row))
            if kind == "promoted":
                put_into_service(connection, name)
            entry = {key: row[key] for key in ("id", "t", "parent", "state", "decision", "about")}
            record(connection, "update", {**entry, "period": period})
            reason = decision.reason if self.candidates.has_groups else f"{decision.reason}; {_NO_GROUPS}"
            outcome = Outcome(kind, reason, self.t, name)
            self.conclude(connection, outcome)
        for sentence in sentences_of(about):
            self.say(sentence)
        self.say(f"model {name} is {kind}: {outcome.reason}")
        noise = noise_words(self.workspace.config.privacy.epsilon, has_target=bool(sentences_of(about)))
        if noise is not None and self.candidates.has_groups:
            self.say(noise)
        return outcome

    def _overtaken(self, name: str, parent: str | None, now_in_service: str | None) -> Outcome:
        """Drop the candidate: somebody has put another model into service since the update began.

        Skipped, not rejected: the gate compared the candidate with a model that no longer answers. The period stays
        open, so that the next update judges the model now in service by these events and learns them from there.
        """
        self.workspace.models.remove([name])
        return Outcome(
            "skipped",
            f"the period stays open: model {now_in_service} was put into service instead of {parent} while the update "
            f"ran; the next update starts from it",
        )

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
            compares = trial.comparison
            groups = NO_GROUPS if compares is None else compares.groups_after
            about |= {"n_learned": trial.n_learned, "evaluation": self._reported(trial.after, groups)}
            about |= reported_control(trial.recommender, trial.names, trial.control_step)
            if trial.before is not None and compares is not None:
                about["before"] = self._reported(trial.before, compares.groups_before)
                about["gains"] = compares.gains()
            if trial.rejected:
                about["learned_rejected_periods"] = list(trial.rejected)
        return about

    def _reported(self, evaluation: Evaluation, groups: GroupMeans) -> dict[str, Any]:
        names, config = names_of(evaluation), self.workspace.config
        numbers = reported(evaluation, groups, names, config.advantaged, config.privacy.epsilon)
        return {**numbers, "strata": strata(evaluation)}


def _hash(events: pa.Table) -> str:
    """Of who did what when, in order."""
    digest = hashlib.sha256()
    for name in ("user_id", "item_id", "time"):
        for part in events[name].to_pylist():
            digest.update(f"{part}\x1f".encode())
        digest.update(b"\x1e")
    return digest.hexdigest()
