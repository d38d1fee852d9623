"""Experiments: the model in service (arm A) and another one (arm B) side by side.

A keyed hash of the user and the experiment gives each user a number from 0 to 1: those below `share` get B, and those
above 1 − share, as many, are compared with them. So both arms see the same hours while the share grows in steps. A
step follows when no guard is broken. The tests hold at all looks together (`fairstream.sequential_test`); half of
`alpha` is for the decision, the other half is shared by the guards.

While an experiment runs no update starts, because a promotion would change an arm. A rollback or promotion of the
service ends the experiment in the same transaction.
"""

from __future__ import annotations

import hmac
import secrets
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, Self

from pydantic import Field, computed_field, model_validator
from sqlalchemy import Connection, Engine, func, insert, select, update

from fairstream.configuration import Configuration
from fairstream.errors import WorkspaceError
from fairstream.evaluation.sequential import ArmTotals, SequentialResult, sequential_test, win_rate_test
from fairstream.service import registry, schema, updates
from fairstream.service.alerts import alert
from fairstream.service.audit import record
from fairstream.service.database import bump, now, reading
from fairstream.service.records import Record, Time, UnknownIdError
from fairstream.service.rules import rules_from_json
from fairstream.service.tally import Totals
from fairstream.service.workspace import Workspace

Mode = Literal["split", "interleave", "shadow"]
_HOUR = 3_600_000_000
_METRICS = {"click_through": "clicked", "conversion": "converted"}
_MIN_USERS_OF_STEP = 100
_N_GUARDS = 4
_NONE = "there is no experiment yet; PUT /v1/experiment or `fairstream experiment start` starts one"
_rows = schema.experiments


class Options(Configuration):
    """What an experiment compares, and when it ends."""

    b: str = Field(min_length=1, max_length=32, examples=["m00001-5f2a9c1e"])
    """The other model, one that is kept; the model in service only with other rules."""
    mode: Mode = "split"
    """split: each user gets lists of one model; interleave: lists that both models fill by turns; shadow: lists of B
    are made and measured, and never shown."""
    metric: Literal["click_through", "conversion"] = "click_through"
    """What decides. Interleaving is decided by whose items users click first."""
    rules: list[dict[str, Any]] | None = None
    """Rules for the lists of B instead of those of `PUT /v1/rules`."""
    steps: list[float] = Field([0.01, 0.1, 0.5], min_length=1)
    """Shares of users that get B, one after the other; of a split at most half."""
    step_hours: float = Field(24, ge=0)
    """How long each share lasts at least; it also needs 100 users of B."""
    max_users: int = Field(200_000, ge=200)
    """After this many users of both arms the experiment ends without a difference."""
    alpha: float = Field(0.05, gt=0, lt=1)
    """The probability that the experiment decides for a difference, or is rolled back, where there is none."""
    max_fall_of_click_through: float = Field(0.1, ge=0, lt=1)
    """B is rolled back if it surely loses more than this share of A's click-through, …"""
    max_fall_of_conversion: float = Field(0.1, ge=0, lt=1)
    """… or of A's conversion, …"""
    max_rise_of_latency: float = Field(0.5, ge=0)
    """… or takes longer for a list by more than this share, …"""
    max_rise_of_fallback: float = Field(0.02, ge=0, le=1)
    """… or answers more users by popularity, as a share of users."""

    @model_validator(mode="after")
    def _check_steps(self) -> Self:
        most = 0.5 if self.mode == "split" else 1.0
        if sorted(set(self.steps)) != self.steps or not 0 < self.steps[0] <= self.steps[-1] <= most:
            raise ValueError(f"steps must rise, above 0 and up to {most:g}, got {self.steps}")
        return self


class Experiment(Record):
    """An experiment, its latest results, and how it ended."""

    id: str
    state: Literal["running", "ended"]
    mode: Mode
    a: str
    b: str
    options: Options
    share: float
    started: Time
    step_since: Time
    ended: Time | None
    looks: dict[str, Any]
    decision: dict[str, Any] | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentences(self) -> list[str]:
        """What there is to know, for people."""
        users = self.looks.get("users", {})
        n = sum(users.values())
        how = {"split": f"{self.share:.0%} of users get B", "shadow": "B is never shown"}.get(
            self.mode, f"{self.share:.0%} of users get lists of both"
        )
        state = f"runs since {self.started:%Y-%m-%d %H:%M} UTC; {how}" if self.ended is None else "has ended"
        lines = [f"Experiment {self.id} ({self.mode}) of model {self.a} (A) and {self.b} (B) {state}."]
        if self.mode != "shadow":
            counts = ", ".join(f"{n:,} of {arm}" for arm, n in users.items())
            lines.append(f"Users with impressions: {counts}." if n else "No impression of it has come in yet.")
        lines += [
            f"{name.replace('_', ' ')}: {each['sentence']}." for name, each in self.looks.get("tests", {}).items()
        ]
        lines += [self.decision["sentence"]] if self.decision else []
        return lines


@dataclass(frozen=True)
class Arms:
    """Who gets which arm of a running experiment; what each process needs to know of it."""

    id: str
    mode: Mode
    a: str
    b: str
    share: float
    key: bytes

    @classmethod
    def of(cls, experiment: Experiment, secret: bytes) -> Arms:
        return cls(experiment.id, experiment.mode, experiment.a, experiment.b, experiment.share, secret)

    def position(self, user_id: str) -> float:
        """Return a number from 0 to 1 that only the secret, the experiment and the user determine."""
        digest = hmac.digest(self.key, f"experiment {self.id}\n{user_id}".encode(), "sha256")
        return int.from_bytes(digest[:6], "big") / 2**48

    def arm_of(self, user_id: str) -> str:
        """Return A or B; empty for users who get A and are not compared."""
        if self.mode == "shadow":
            return ""
        at = self.position(user_id)
        if at < self.share:
            return "B"
        return "A" if self.mode == "split" and at >= 1 - self.share else ""

    def stamp(self, user_id: str, items: Sequence[str], list_id: str | None) -> dict[str, Any]:
        """Return the model, arms and propensities of a list that the user saw."""
        arm, n = self.arm_of(user_id), len(items)
        if self.mode == "interleave" and arm:
            teams = _decode(self.id, items, list_id or "")
            if teams is None:  # nobody knows whose items these were
                return {"propensities": [1.0] * n}
            return {
                "model": f"{self.a}+{self.b}"[:32],
                "experiment": self.id,
                "arms": "".join(team for team, _ in teams),
                "propensities": [p for _, p in teams],
            }
        share = 1.0 if self.mode != "split" else self.share if arm == "B" else 1 - self.share
        stamp = {"model": self.b if arm == "B" else self.a, "propensities": [share] * n}
        return stamp | ({"experiment": self.id, "arms": arm} if arm else {})


def interleave(a: Sequence[str], b: Sequence[str], k: int, *, b_first: bool) -> list[tuple[str, str, float]]:
    """Draft a list by turns: each model adds its best item that is not there yet.

    One coin says which model begins, so that an item is shown with the probability 1/2 or 1. Each entry is an item, its
    team ("a" or "b") and this probability (Radlinski, Kurup and Joachims 2008 throw a coin before each pair of turns).

    >>> interleave(["x", "y", "z"], ["x", "v", "w"], 3, b_first=False)
    [('x', 'a', 1.0), ('v', 'b', 0.5), ('y', 'a', 1.0)]
    """
    drafts = [_draft(a, b, k, begins) for begins in (b_first, not b_first)]
    return [(item, team, 1.0 if item in drafts[1] else 0.5) for item, team in drafts[0].items()]


def _draft(a: Sequence[str], b: Sequence[str], k: int, b_begins: bool) -> dict[str, str]:
    teams: dict[str, str] = {}
    turns = [("a", iter(a)), ("b", iter(b))]
    for n in range(2 * k):
        team, ranked = turns[(n + b_begins) % 2]
        teams |= dict.fromkeys(islice((item for item in ranked if item not in teams), 1), team)
        if len(teams) == k:
            break
    return teams


def encode(experiment: str, entries: Sequence[tuple[str, str, float]]) -> str:
    """Return the id of an interleaved list: two bytes for each item tell its team and propensity when it comes back."""
    words = (_hash(item) << 2 | (team == "b") << 1 | (p == 1.0) for item, team, p in entries)
    content = b"".join(word.to_bytes(2, "big") for word in words)
    return f"{experiment}.{secrets.token_hex(6)}.{urlsafe_b64encode(content).decode().rstrip('=')}"


def _decode(experiment: str, items: Sequence[str], list_id: str) -> list[tuple[str, float]] | None:
    """Return the team and propensity of each item; None if the list is not one of the experiment's."""
    name, _, content = list_id.partition(".")
    try:
        words = urlsafe_b64decode(f"{content.partition('.')[2]}===")
    except ValueError:
        return None
    known = {}
    for at in range(0, len(words) - 1, 2):
        word = int.from_bytes(words[at : at + 2], "big")
        known[word >> 2] = "b" if word & 2 else "a", 1.0 if word & 1 else 0.5
    if name != experiment or not all(_hash(item) in known for item in items):
        return None
    return [known[_hash(item)] for item in items]


def _hash(item: str) -> int:
    return zlib.crc32(item.encode()) & 0x3FFF


# ── changes ──────────────────────────────────────────────────────────────────────────────


def start(workspace: Workspace, options: Options, *, by: str) -> Experiment:
    """Start an experiment; a `WorkspaceError` says why it cannot start."""
    rules_from_json(options.rules or [], workspace.config.items.properties)
    updates.fail_dead(workspace)
    with registry.deciding(workspace.engine) as (connection, current):
        updates.refuse_if_open(connection)
        if (other := registry.running_experiment(connection)) is not None:
            raise WorkspaceError(f"experiment {other} is running; end it before another one starts")
        if current is None:
            raise WorkspaceError("there is no model in service yet to compare with; the first update makes one")
        if options.b == current and options.rules is None:
            raise WorkspaceError(f"model {current} is in service already; name another one, or rules for arm B")
        registry.require_kept(workspace, connection, options.b)
        moment = now()
        values = {
            "id": f"x{secrets.token_hex(5)}",
            "state": "running",
            "mode": options.mode,
            "a": current,
            "b": options.b,
            "options": options.model_dump(),
            "share": options.steps[0],
            "started": moment,
            "step_since": moment,
            "totals": {},
            "looks": {},
        }
        connection.execute(insert(_rows).values(values))
        record(connection, "experiment", {"id": values["id"], "started": options.model_dump(), "a": current, "by": by})
        bump(connection, "experiment")
    return get(workspace.engine)


def get(engine: Engine) -> Experiment:
    """Return the running experiment, else the last one."""
    with reading(engine) as connection:
        experiment = latest(connection)
    if experiment is None:
        raise UnknownIdError(_NONE)
    return experiment


def latest(connection: Connection) -> Experiment | None:
    """Return the last experiment, which is the running one if one runs."""
    row = connection.execute(select(_rows).order_by(_rows.c.started.desc(), _rows.c.id).limit(1)).mappings().first()
    return None if row is None else Experiment(**row)


def stop(workspace: Workspace, *, by: str) -> Experiment:
    """End the running experiment: everybody gets the model in service."""
    with registry.deciding(workspace.engine) as (connection, _):
        if registry.end_experiment(connection, "stopped", f"It was stopped by {by}.", by=by) is None:
            raise WorkspaceError("no experiment is running")
    return get(workspace.engine)


def promote(workspace: Workspace, *, by: str) -> str:
    """Put B of the last experiment into service, which ends the experiment if it runs; return the model."""
    b = get(workspace.engine).b
    registry.promote(workspace, b, by=by)
    return b


# ── looks ────────────────────────────────────────────────────────────────────────────────


def look(workspace: Workspace) -> None:
    """Compute the tests of the running experiment; take the next step, decide or roll back if they say so."""
    with reading(workspace.engine) as connection:
        if registry.running_experiment(connection) is None:
            return
        experiment = latest(connection)
        assert experiment is not None
        looks = _Look(connection, experiment).results()
    outcome, sentence = _conclusion(experiment, looks)
    if looks == experiment.looks and outcome is None and not _may_step(experiment, looks):
        return
    with registry.deciding(workspace.engine) as (connection, _):
        own = update(_rows).where(_rows.c.id == experiment.id, _rows.c.state == "running")
        own = own.where(_rows.c.share == experiment.share, _rows.c.decision.is_(None) | (outcome is None))
        if connection.execute(own.values(looks=looks)).rowcount == 0:
            return  # another process was first
        if outcome == "better":
            connection.execute(own.values(decision={"outcome": outcome, "sentence": sentence}))
            record(connection, "experiment", {"id": experiment.id, "decision": outcome, "looks": looks})
        elif outcome is not None:
            registry.end_experiment(connection, outcome, sentence, by="service")
        elif _may_step(experiment, looks):
            share = next(step for step in experiment.options.steps if step > experiment.share)
            connection.execute(own.values(share=share, step_since=now()))
            record(connection, "experiment", {"id": experiment.id, "share": share})
            bump(connection, "experiment")
    if outcome is not None:
        alert(workspace, "experiment", sentence, experiment=experiment.id, outcome=outcome, tests=looks["tests"])


def _may_step(experiment: Experiment, looks: Mapping[str, Any]) -> bool:
    options = experiment.options
    waited = now() - int(experiment.step_since.timestamp() * 1e6) >= options.step_hours * _HOUR
    return (
        experiment.share < options.steps[-1]
        and experiment.decision is None
        and waited
        and looks["users"].get("B", 0) >= _MIN_USERS_OF_STEP
    )


def _conclusion(experiment: Experiment, looks: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return what the tests say: worse, better, no difference or nothing yet; and a sentence."""
    for name, each in looks["tests"].items():
        if each["breaks_guard"]:
            return "worse", f"B was rolled back for its {name.replace('_', ' ')}: {each['sentence']}."
    if experiment.decision is not None:
        return None, ""
    decisive = "preference" if experiment.mode == "interleave" else experiment.options.metric
    if (test := looks["tests"].get(decisive)) is not None:
        if test["interval"][1] < 0:
            return "worse", f"B is worse: {decisive.replace('_', ' ')} {test['sentence']}."
        if test["interval"][0] > 0:
            return "better", f"B is better: {decisive.replace('_', ' ')} {test['sentence']}. Promote it or stop."
    if (n := sum(looks["users"].values())) >= experiment.options.max_users:
        return "no difference", f"No difference was found within {n:,} users."
    return None, ""


class _Look:
    """The tests of an experiment at one moment."""

    def __init__(self, connection: Connection, experiment: Experiment) -> None:
        self._experiment, self._options = experiment, experiment.options
        self._totals = Totals.read(connection, experiment.id)
        count = schema.impression_counts.c
        counts = select(count.arm, count.what, func.sum(count.n)).where(count.experiment == experiment.id)
        self._n = Counter(
            {(arm, what): int(n) for arm, what, n in connection.execute(counts.group_by(count.arm, count.what))}
        )
        self._before = experiment.looks.get("tests", {})

    def results(self) -> dict[str, Any]:
        if self._experiment.mode == "interleave":
            votes = self._totals.votes
            users, tests = {"A": votes["A"], "B": votes["B"]}, {}
            if sum(votes.values()):
                result = win_rate_test(votes["B"], votes["A"], alpha=self._options.alpha / 2)
                sentence = f"{votes['B']:,} users clicked an item of B first, {votes['A']:,} one of A"
                tests["preference"] = self._test(result, sentence, breaks_guard=False)
            return {"users": users, "tests": tests | dict(self._measured())}
        arms = self._totals.of("clicked")
        users = {arm: int(totals.n) for arm, totals in zip("AB", arms, strict=True)}
        tests = {} if self._experiment.mode == "shadow" else dict(self._outcomes())
        return {"users": users, "tests": tests | dict(self._measured())}

    def _outcomes(self) -> Iterator[tuple[str, dict[str, Any]]]:
        for name, what in _METRICS.items():
            a, b = self._totals.of(what)
            scale = self._before.get(name, {}).get("scale")
            if (result := sequential_test(a, b, alpha=self._options.alpha / 2, scale=scale)) is not None:
                guard = self._guard(name, a, b, 1 - getattr(self._options, f"max_fall_of_{name}"))
                low, high = result.interval
                sentence = f"{_rate(b):.2%} for B and {_rate(a):.2%} for A (difference {low:+.2%} to {high:+.2%})"
                yield name, self._test(result, sentence, breaks_guard=guard is not None and guard.is_worse)

    def _measured(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """What the service itself measures: the seconds that a list takes, and users answered by popularity."""
        a, b = (self._totals_of(arm, "served", "micros", "micros²") for arm in "AB")
        rise = self._options.max_rise_of_latency
        if (result := self._guard("latency", a, b, ratio=1 + rise)) is not None:
            sentence = f"{_rate(b) / 1e3:.1f} ms for B and {_rate(a) / 1e3:.1f} ms for A (limit +{rise:.0%})"
            yield "latency", self._test(result, sentence, breaks_guard=result.is_better)
        a, b = (self._totals_of(arm, "users served", "by the model", "by the model") for arm in "AB")
        limit = self._options.max_rise_of_fallback
        if (result := self._guard("fallback", a, b)) is not None:
            sentence = f"{1 - _rate(b):.1%} of users for B and {1 - _rate(a):.1%} for A (limit +{limit:.1%})"
            yield "fallback", self._test(result, sentence, breaks_guard=result.interval[1] < -limit)

    def _totals_of(self, arm: str, n: str, y: str, yy: str) -> ArmTotals:
        return ArmTotals(*(self._n[arm, what] for what in (n, n, y, n, y, yy)))

    def _guard(self, name: str, a: ArmTotals, b: ArmTotals, ratio: float = 1.0) -> SequentialResult | None:
        scale = self._before.get(name, {}).get("scale")
        return sequential_test(a, b, alpha=self._options.alpha / 2, n_tests=_N_GUARDS, ratio=ratio, scale=scale)

    @staticmethod
    def _test(result: SequentialResult, sentence: str, *, breaks_guard: bool) -> dict[str, Any]:
        return {
            "difference": result.difference,
            "interval": list(result.interval),
            "e_value": result.e_value,
            "scale": result.scale,
            "sentence": sentence,
            "breaks_guard": breaks_guard,
        }


def _rate(arm: ArmTotals) -> float:
    return arm.y / arm.x
