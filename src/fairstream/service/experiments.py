"""Experiments: the model in service (arm A) and another one (arm B) side by side.

The share of users that get B grows in steps (`arms`), as long as no guard breaks. The tests hold at all looks together
(`fairstream.sequential_test`); half of `alpha` is for the decision, the other half is shared by the guards.

While an experiment runs no update starts, because a promotion would change an arm. A rollback or promotion of the
service ends the experiment in the same transaction.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from random import sample
from threading import Lock
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, computed_field, model_validator
from sqlalchemy import BigInteger, Connection, Engine, cast, func, insert, select, update

from fairstream.configuration import Configuration
from fairstream.data import UNKNOWN
from fairstream.errors import WorkspaceError
from fairstream.evaluation.sequential import ArmTotals, SequentialResult, sequential_test, win_rate_test
from fairstream.service import registry, schema, updates
from fairstream.service.alerts import alert
from fairstream.service.arms import Arms, Mode
from fairstream.service.audit import record
from fairstream.service.budget import Budget, spends
from fairstream.service.database import bump, now, reading, writing
from fairstream.service.impressions import add_counts
from fairstream.service.lists import Ask
from fairstream.service.records import Record, Time, UnknownIdError
from fairstream.service.rules import replace_rules, rules_from_json
from fairstream.service.workspace import Workspace

_HOUR = 3_600_000_000
_METRICS = {"click_through": "clicked", "conversion": "converted"}
_MIN_USERS_OF_STEP = 100
_N_GUARDS = 4
_GROUP = "group "
_MIN_USERS_OF_GROUPS = 400
_MAX_MICROS, _MAX_USERS = 1_000_000, 1_000_000
_SHADOWS, _SHADOW_K = 16, 20
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
    rules: list[dict[str, Any]] | None = Field(None, examples=[[{"at_most": {"n": 3, "per": "category"}}]])
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

    id: str = Field(examples=["x5b7c9d21e0"])
    """Id of the experiment."""
    state: Literal["running", "ended"]
    """Whether it runs."""
    mode: Mode
    """How people get the lists of B."""
    a: str = Field(examples=["m00012"])
    """Model of arm A: the one in service when the experiment started."""
    b: str = Field(examples=["m00013"])
    """Model of arm B."""
    options: Options
    """What was asked for."""
    share: float
    """Share of users that get B."""
    started: Time
    """When it began."""
    step_since: Time
    """When the share was last changed."""
    ended: Time | None
    """When it ended; null before."""
    looks: dict[str, Any] = Field(examples=[{"users": {"A": 0, "B": 0}, "tests": {}}])
    """Users of each arm, and each test with its interval."""
    decision: dict[str, Any] | None = Field(examples=[{"outcome": "better", "sentence": "…"}])
    """The outcome and its sentence; null before."""

    def arms(self, secret: bytes) -> Arms:
        """Return who gets which arm."""
        return Arms(self.id, self.mode, self.a, self.b, self.share, secret)

    @computed_field(examples=[["No impression of it has come in yet."]])  # type: ignore[prop-decorator]
    @property
    def sentences(self) -> list[str]:
        """What there is to know, for people."""
        users = self.looks.get("users", {})
        n = sum(users.values())
        get = f"{self.share:.0%} of users get"
        how = {"split": f"{get} B", "interleave": f"{get} lists of both", "shadow": "B is never shown"}[self.mode]
        state = f"runs since {self.started:%Y-%m-%d %H:%M} UTC; {how}" if self.ended is None else "has ended"
        lines = [f"Experiment {self.id} ({self.mode}) of model {self.a} (A) and {self.b} (B) {state}."]
        if self.mode != "shadow":
            counts = ", ".join(f"{n:,} of {arm}" for arm, n in users.items())
            lines.append(f"Users with impressions: {counts}." if n else "No impression of it has come in yet.")
        lines += [
            f"{name.replace('_', ' ')}: {each['sentence']}." for name, each in self.looks.get("tests", {}).items()
        ]
        if withheld := self.looks.get("groups", {}).get("withheld"):
            lines.append(f"No numbers of groups: {withheld}.")
        if self.mode == "shadow":
            lines.append(self.looks.get("shadow") or "No list has been compared yet.")
        lines += [self.decision["sentence"]] if self.decision else []
        return lines


class Served:
    """What a process served to each arm since it was last stored: the first list of each user."""

    def __init__(self) -> None:
        self._n: Counter[tuple[int, str, str, str, str]] = Counter()
        self._users: set[tuple[str, str]] = set()
        self._experiment = ""
        self._lock = Lock()

    def note(self, arms: Arms, arm: str, user_id: str, seconds: float, *, by_model: bool) -> None:
        """Count a list, unless the user had one of this arm before."""
        micros = min(round(seconds * 1e6), _MAX_MICROS)
        with self._lock:
            if arms.id != self._experiment or len(self._users) > _MAX_USERS:
                self._experiment, self._users = arms.id, set()
            if (arm, user_id) not in self._users:
                self._users.add((arm, user_id))
                counts = {"served": 1, "micros": micros, "micros²": micros**2, "fallbacks": int(not by_model)}
                self.count(arms, arm, **counts)

    def count(self, arms: Arms, arm: str, **counts: int) -> None:
        for what, n in counts.items():
            self._n[now() // _HOUR, arms.id, arm, "", what] += n

    def store(self, engine: Engine) -> None:
        """Add the counts to those of the database."""
        with self._lock:
            n, self._n = self._n, Counter()
        if n:
            with writing(engine) as connection:
                add_counts(connection, n)


def compare_in_shadow(serving: Any, served: Served) -> None:
    """Make lists of both models for some users, which nobody sees; note how much they have in common."""
    arms, second = serving.experiment
    users = serving.current.cached_users()
    for user in sample(users, min(_SHADOWS, len(users))):
        lists = [model.recommend(user, Ask(_SHADOW_K)) for model in (serving.current, second)]
        for arm, model, own in zip("AB", (serving.current, second), lists, strict=True):
            begin = perf_counter()
            model.recommend_session(lists[0].items[:5], Ask(_SHADOW_K))  # no cache knows it
            served.note(arms, arm, user, perf_counter() - begin, by_model=own.source == "model")
        a, b = (own.items for own in lists)
        served.count(arms, "", shadows=1, common=len({*a} & {*b}), of=max(len(a), len(b)))


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


def listed(connection: Connection, limit: int) -> list[Experiment]:
    """Return the experiments, the latest first, which is the running one if one runs."""
    rows = connection.execute(select(_rows).order_by(_rows.c.started.desc(), _rows.c.id).limit(limit))
    return [Experiment(**row) for row in rows.mappings()]


def latest(connection: Connection) -> Experiment | None:
    """Return the last experiment, which is the running one if one runs."""
    return next(iter(listed(connection, 1)), None)


def stop(workspace: Workspace, *, by: str) -> Experiment:
    """End the running experiment: everybody gets the model in service."""
    with registry.deciding(workspace.engine) as (connection, _):
        if registry.end_experiment(connection, "stopped", f"It was stopped by {by}.", by=by) is None:
            raise WorkspaceError("no experiment is running")
    return get(workspace.engine)


def promote(workspace: Workspace, *, by: str) -> str:
    """Put B of the last experiment into service, with its rules; that ends the experiment if it runs."""
    with registry.deciding(workspace.engine) as (connection, current):
        experiment = latest(connection)
        if experiment is None:
            raise UnknownIdError(_NONE)
        registry.end_experiment(connection, "promoted", "B was put into service.", by=by)
        if (rules := experiment.options.rules) is not None:
            replace_rules(connection, rules_from_json(rules, workspace.config.items.properties), by=by)
        if rules is None or experiment.b != current:
            registry.change_model(workspace, connection, current, experiment.b, "promote", by)
    return experiment.b


# ── looks ────────────────────────────────────────────────────────────────────────────────


def look(workspace: Workspace) -> None:
    """Compute the tests of the running experiment; take the next step, decide or roll back if they say so."""
    with reading(workspace.engine) as connection:
        experiment = latest(connection)
        if experiment is None or experiment.ended is not None:
            return
        looks = _look_at_all(connection, experiment)
    groups, budget = _look_at_groups(workspace, experiment, sum(looks["users"].values()))
    looks = looks | groups | {"tests": looks["tests"] | groups["tests"]}
    outcome, sentence = _conclusion(experiment, looks)
    steps = _may_step(experiment, looks)
    if looks == experiment.looks and outcome is None and not steps:
        return
    with registry.deciding(workspace.engine) as (connection, _):
        own = update(_rows).where(_rows.c.id == experiment.id, _rows.c.state == "running")
        own = own.where(_rows.c.share == experiment.share, _rows.c.decision.is_(None) | (outcome is None))
        if connection.execute(own.values(looks=looks)).rowcount == 0:
            return  # another process was first
        if budget is not None:
            budget.store(connection)
        if outcome == "better":
            connection.execute(own.values(decision={"outcome": outcome, "sentence": sentence}))
            record(connection, "experiment", {"id": experiment.id, "decision": outcome, "looks": looks})
        elif outcome is not None:
            registry.end_experiment(connection, outcome, sentence, by="service")
        elif steps:
            share = next(step for step in experiment.options.steps if step > experiment.share)
            connection.execute(own.values(share=share, step_since=now()))
            record(connection, "experiment", {"id": experiment.id, "share": share})
            bump(connection, "experiment")
    if outcome is not None:
        alert(workspace, "experiment", sentence, experiment=experiment.id, outcome=outcome, tests=looks["tests"])


def _may_step(experiment: Experiment, looks: Mapping[str, Any]) -> bool:
    options = experiment.options
    return (
        experiment.share < options.steps[-1]
        and experiment.decision is None
        and datetime.now(UTC) - experiment.step_since >= timedelta(hours=options.step_hours)
        and looks["users"]["B"] >= _MIN_USERS_OF_STEP
    )


def _conclusion(experiment: Experiment, looks: Mapping[str, Any]) -> tuple[str | None, str]:
    """Return what the tests say: worse, better, no difference or nothing yet; and a sentence."""
    tests = looks["tests"]
    if broken := next((name for name, each in tests.items() if each["breaks_guard"]), None):
        return "worse", f"B was rolled back for {broken.replace('_', ' ')}: {tests[broken]['sentence']}."
    if experiment.decision is not None:
        return None, ""
    decisive = "preference" if experiment.mode == "interleave" else experiment.options.metric
    if (test := tests.get(decisive)) is not None:
        words = f"{decisive.replace('_', ' ')} {test['sentence']}."
        if test["interval"][1] < 0:
            return "worse", f"B is worse: {words}"
        if test["interval"][0] > 0:
            return "better", f"B is better: {words} Promote it or stop."
    if (n := sum(looks["users"].values())) >= experiment.options.max_users:
        return "no difference", f"No difference was found within {n:,} users."
    return None, ""


def _look_at_all(connection: Connection, experiment: Experiment) -> dict[str, Any]:
    """Return the numbers of users and the tests of everyone at one moment."""
    options, count = experiment.options, schema.impression_counts.c
    counts = select(count.arm, count.what, func.sum(count.n)).where(count.experiment == experiment.id)
    n = Counter({(arm, what): int(n) for arm, what, n in connection.execute(counts.group_by(count.arm, count.what))})
    measures = {name: _totals(connection, experiment, what) for name, what in _METRICS.items()}
    for name, y, yy in (("latency", "micros", "micros²"), ("fallback", "fallbacks", "fallbacks")):
        sums = ("served", "served", y, "served", y, yy)
        measures[name] = [ArmTotals(*(n[arm, what] for what in sums)) for arm in "AB"]
    users = {arm: int(own.n) for arm, own in zip("AB", measures["click_through"], strict=True)}
    tests = {name: test for name, arms in measures.items() if (test := _test(experiment, name, *arms)) is not None}
    looks: dict[str, Any] = {"users": users, "tests": tests}
    if experiment.mode == "interleave":
        user = schema.experiment_users.c
        votes = select(user.vote, func.count()).where(user.experiment == experiment.id).group_by(user.vote)
        found: dict[int, int] = dict(connection.execute(votes).all())
        looks["users"] = {"A": (a := found.get(-1, 0)), "B": (b := found.get(1, 0))}
        if a + b:
            sentence = f"{b:,} users clicked an item of B first, {a:,} one of A"
            tests["preference"] = _result(win_rate_test(b, a, alpha=options.alpha / 2), sentence, breaks_guard=False)
    if pairs := n["", "shadows"]:
        common = n["", "common"] / n["", "of"]
        looks["shadow"] = f"In {pairs:,} pairs of lists both models share {common:.0%} of the items."
    return looks


def _totals(connection: Connection, experiment: Experiment, what: str) -> list[ArmTotals]:
    """Return the sums over the users of A and B of an outcome."""
    user = schema.experiment_users.c
    x, y = cast(user.shown, BigInteger), cast(user[what], BigInteger)
    sums = select(user.arm, func.count(), *map(func.sum, (x, y, x * x, x * y, y * y)))
    rows = connection.execute(sums.where(user.experiment == experiment.id).group_by(user.arm))
    arms = {arm: ArmTotals(*map(float, own)) for arm, *own in rows}
    return [arms.get(arm, ArmTotals()) for arm in "AB"]


def _test(experiment: Experiment, name: str, a: ArmTotals, b: ArmTotals) -> dict[str, Any] | None:
    """Return the test of a measure, and whether B breaks its guard."""
    test = partial(sequential_test, a, b, alpha=experiment.options.alpha / 2)
    if (result := test(scale=experiment.looks.get("tests", {}).get(name, {}).get("scale"))) is None:
        return None
    is_metric = name in _METRICS
    limit = getattr(experiment.options, f"max_{'fall' if is_metric else 'rise'}_of_{name}")
    ratio = {"latency": 1 + limit, "fallback": 1}.get(name, 1 - limit)
    guard = test(n_tests=_N_GUARDS, ratio=ratio, scale=result.scale)
    assert guard is not None
    low, high = guard.interval
    breaks = high < 0 if is_metric else low > (limit if name == "fallback" else 0)
    if name == "latency":
        sentence = f"{b.y / b.x / 1e3:.1f} ms for B and {a.y / a.x / 1e3:.1f} ms for A (limit +{limit:.0%})"
    else:
        low, high = result.interval
        sentence = f"{b.y / b.x:.2%} for B and {a.y / a.x:.2%} for A (difference {low:+.2%} to {high:+.2%})"
    return _result(result, sentence, breaks_guard=breaks)


def _result(result: SequentialResult, sentence: str, *, breaks_guard: bool) -> dict[str, Any]:
    return asdict(result) | {"interval": list(result.interval), "sentence": sentence, "breaks_guard": breaks_guard}


def _look_at_groups(workspace: Workspace, experiment: Experiment, n: int) -> tuple[dict[str, Any], Budget | None]:
    """Return the tests of groups and what they spend of the privacy budget, whenever the users have doubled.

    A user's value is 1/2 plus or minus what the own rate exceeds everyone's by, halved: its mean over a group says how
    far B is ahead of A there. Look k has the share 1/2^k of α, so that all looks together hold it.
    """
    from fairstream.service.privacy import Release  # noqa: PLC0415 (loads torch)

    before, known = experiment.looks.get("groups", {}), experiment.looks.get("tests", {})
    known = {name: test for name, test in known.items() if name.startswith(_GROUP)}
    if experiment.mode == "shadow" or n < max(_MIN_USERS_OF_GROUPS, 2 * before.get("n", 0)):
        return {"groups": before, "tests": known}, None
    group_of = dict(zip(*(column.to_pylist() for column in workspace.people.values().columns), strict=True))
    names = workspace.config.groups or sorted({*group_of.values()})
    if len(names) < 2:
        return {"groups": {"n": n}, "tests": {}}, None
    users, is_drafted = schema.experiment_users, experiment.mode == "interleave"
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(users).where(users.c.experiment == experiment.id)).all()
    rows = [row for row in rows if (row.vote if is_drafted else row.arm)]
    codes = np.array([names.index(group) if (group := group_of.get(row.user_id)) in names else UNKNOWN for row in rows])
    if is_drafted:
        w, factor, allowed, what = np.array([0.5 + row.vote / 2 for row in rows]), 2, 0.0, "preference for B"
    else:
        metric = experiment.options.metric
        rates = np.array([getattr(row, _METRICS[metric]) / row.shown for row in rows])
        w = 0.5 + np.where([row.arm == "B" for row in rows], 0.5, -0.5) * (rates - rates.mean())
        allowed = getattr(experiment.options, f"max_fall_of_{metric}") * float(rates.mean())
        factor, what = 4, f"{metric.replace('_', ' ')} of B minus that of A"
    budget, k = Budget.read(workspace.engine, workspace.config.privacy), before.get("k", 0) + 1
    sizes = next((spend.published for spend in spends(workspace.engine, "sizes", 1)), {})
    min_size = workspace.config.gate.min_group_size
    release = Release(workspace.secret, min_size, f"{experiment.id} {k}", budget, sizes)
    means = release.report(w, codes.astype(np.int16), names).means
    tests = {}
    for name, mean in means.items():
        value, margin = float(factor * (mean.value - 0.5)), float(factor * mean.margin(len(means) * 2**k))
        low, high = round(value - margin, 4), round(value + margin, 4)
        tests[f"{_GROUP}{name}"] = {
            "difference": round(value, 4),
            "interval": [low, high],
            "sentence": f"{what} is {value:+.1%} ({low:+.1%} to {high:+.1%})",
            "breaks_guard": high < -allowed,
        }
    groups = {"n": n, "k": k if tests else k - 1, "withheld": None if tests else release.why}
    return {"groups": groups, "tests": tests}, budget
