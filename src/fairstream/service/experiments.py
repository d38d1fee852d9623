"""Experiments: the model in service (arm A) and another one (arm B) side by side.

The share of users that get B grows in steps (`arms`), as long as no guard breaks. The tests hold at all looks together
(`fairstream.sequential_test`); half of `alpha` is for the decision, the other half is shared by the guards.

While an experiment runs no update starts, because a promotion would change an arm. A rollback or promotion of the
service ends the experiment in the same transaction.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from random import sample
from threading import Lock
from time import perf_counter
from typing import Any, Literal, Self

import numpy as np
from pydantic import Field, computed_field, model_validator
from sqlalchemy import Connection, Engine, func, insert, select, update

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
from fairstream.service.records import Record, Time, UnknownIdError
from fairstream.service.rules import replace_rules, rules_from_json
from fairstream.service.tally import Totals
from fairstream.service.workspace import Workspace

_HOUR = 3_600_000_000
_METRICS = {"click_through": "clicked", "conversion": "converted"}
_MIN_USERS_OF_STEP = 100
_N_GUARDS = 4
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

    def arms(self, secret: bytes) -> Arms:
        """Return who gets which arm."""
        return Arms(self.id, self.mode, self.a, self.b, self.share, secret)

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
        groups = self.looks.get("groups", {})
        lines += [f"{test['sentence'][:1].upper()}{test['sentence'][1:]}." for test in groups.get("tests", {}).values()]
        lines += [f"No numbers of groups: {groups['withheld']}."] if groups.get("withheld") else []
        if self.mode == "shadow":
            lines.append(self.looks.get("shadow") or "No list has been compared yet.")
        lines += [self.decision["sentence"]] if self.decision else []
        return lines


class Served:
    """What a process served to each arm since it was last stored."""

    def __init__(self) -> None:
        self._n: Counter[tuple[int, str, str, str, str]] = Counter()
        self._users: set[str] = set()
        self._experiment = ""
        self._lock = Lock()

    def note(self, arms: Arms, arm: str, model: str, user_id: str, seconds: float, *, by_model: bool) -> None:
        """Count a list, and a user once for each experiment."""
        micros = min(round(seconds * 1e6), _MAX_MICROS)
        with self._lock:
            if arms.id != self._experiment or len(self._users) > _MAX_USERS:
                self._experiment, self._users = arms.id, set()
            counts = {"served": 1, "micros": micros, "micros²": micros**2}
            if user_id not in self._users:
                self._users.add(user_id)
                counts |= {"users served": 1, "by the model": int(by_model)}
            self.count(arms, arm, model, **counts)

    def count(self, arms: Arms, arm: str, model: str, **counts: int) -> None:
        for what, n in counts.items():
            self._n[now() // _HOUR, arms.id, arm, model, what] += n

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
    shown: dict[str, list[str]] = {"A": [], "B": []}
    for user in sample(users, min(_SHADOWS, len(users))):
        lists = {}
        for arm, model in (("A", serving.current), ("B", second)):
            lists[arm] = model.recommend(user, _SHADOW_K)
            begin = perf_counter()
            model.recommend_session(lists["A"].items[:5], _SHADOW_K)  # no cache knows it
            seconds, by_model = perf_counter() - begin, lists[arm].source == "model"
            served.note(arms, arm, model.id or "", f"{arm} {user}", seconds, by_model=by_model)
            shown[arm] += lists[arm].items
        common = len({*lists["A"].items} & {*lists["B"].items})
        served.count(arms, "", "", shadows=1, common=common, of=max(len(each.items) for each in lists.values()))
    if users:
        different = {arm: len(set(items)) for arm, items in shown.items()}
        served.count(arms, "A", "", different=different["A"])
        served.count(arms, "B", "", different=different["B"])


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
        if registry.running_experiment(connection) is None:
            return
        experiment = latest(connection)
        assert experiment is not None
        looks = _Look(connection, experiment).results()
    looks["groups"], budget = _look_at_groups(workspace, experiment, sum(looks["users"].values()))
    outcome, sentence = _conclusion(experiment, looks)
    if looks == experiment.looks and outcome is None and not _may_step(experiment, looks):
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
    tests = looks["tests"] | looks["groups"].get("tests", {})
    if broken := next((name for name, each in tests.items() if each["breaks_guard"]), None):
        return "worse", f"B was rolled back for {broken.replace('_', ' ')}: {tests[broken]['sentence']}."
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


def _look_at_groups(workspace: Workspace, experiment: Experiment, n: int) -> tuple[dict[str, Any], Budget | None]:
    """Return the tests of groups and what they spend of the privacy budget, whenever the users have doubled.

    A user's value is 1/2 plus or minus what the own rate exceeds everyone's by, halved: its mean over a group says how
    far B is ahead of A there. Look k has the share 1/2^k of α, so that all looks together hold it.
    """
    from fairstream.service.privacy import Release  # noqa: PLC0415 (loads torch)

    before: dict[str, Any] = experiment.looks.get("groups", {})
    if n < max(_MIN_USERS_OF_GROUPS, 2 * before.get("n", 0)):
        return before, None
    with workspace.people() as people:
        values = people.values()
    names = workspace.config.groups or sorted(set(values["value"].to_pylist()))
    if len(names) < 2 or experiment.mode == "shadow":
        return {"n": n}, None
    group_of = dict(zip(values["user_id"].to_pylist(), values["value"].to_pylist(), strict=True))
    users, is_drafted = schema.experiment_users, experiment.mode == "interleave"
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(users).where(users.c.experiment == experiment.id)).all()
    rows = [row for row in rows if (row.vote if is_drafted else row.shown and row.arm)]
    codes = np.array([names.index(group) if (group := group_of.get(row.user_id)) in names else UNKNOWN for row in rows])
    metric = experiment.options.metric
    if is_drafted:
        w = np.array([0.5 + row.vote / 2 for row in rows])
    else:
        rates = np.array([getattr(row, _METRICS[metric]) / row.shown for row in rows])
        w = 0.5 + np.where([row.arm == "B" for row in rows], 0.5, -0.5) * (rates - rates.mean())
    budget, k = Budget.read(workspace.engine, workspace.config.privacy), before.get("k", 0) + 1
    sizes = next((spend.published for spend in spends(workspace.engine, "sizes", 1)), {})
    gate = workspace.config.gate
    release = Release(workspace.secret, gate.min_group_size, f"{experiment.id} {k}", budget, sizes)
    means = release.report(w, codes.astype(np.int16), names).means
    tests, factor = {}, 2 if is_drafted else 4
    allowed = 0.0 if is_drafted else getattr(experiment.options, f"max_fall_of_{metric}") * float(rates.mean())
    what = "preference for B" if is_drafted else f"{metric.replace('_', ' ')} of B minus that of A"
    for name, mean in means.items():
        value, margin = float(factor * (mean.value - 0.5)), float(factor * mean.margin(len(means) * 2**k))
        tests[f"group {name}"] = {
            "difference": round(value, 4),
            "interval": [round(value - margin, 4), round(value + margin, 4)],
            "sentence": f"for {name}, {what} is {value:+.1%} ({value - margin:+.1%} to {value + margin:+.1%})",
            "breaks_guard": value + margin < -allowed,
        }
    return {"n": n, "k": k if tests else k - 1, "tests": tests, "withheld": None if tests else release.why}, budget


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
        if self._experiment.mode == "shadow":
            return {"users": users, "tests": dict(self._measured()), "shadow": self._shadow()}
        return {"users": users, "tests": dict(self._outcomes()) | dict(self._measured())}

    def _shadow(self) -> str | None:
        n, common, most = (self._n["", what] for what in ("shadows", "common", "of"))
        if not n:
            return None
        different = {arm: self._n[arm, "different"] for arm in "AB"}
        return (
            f"In {n:,} pairs of lists both models share {common / most:.0%} of the items; where the lists of A hold "
            f"100 different items, those of B hold {100 * different['B'] / max(different['A'], 1):.0f}."
        )

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
