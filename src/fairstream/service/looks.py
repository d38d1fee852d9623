"""Looks at a running experiment: its tests, and what follows from them.

The share of users that get B grows in steps, as long as no guard breaks. The tests hold at all looks together
(`fairstream.sequential_test`). Half of `alpha` is for the decision, a quarter for the guards of everyone, and a quarter
for those of the groups.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from math import ceil
from random import sample
from threading import Lock
from time import perf_counter
from typing import Any

import numpy as np
from sqlalchemy import BigInteger, Connection, Engine, cast, func, select, update

from fairstream.data import UNKNOWN
from fairstream.evaluation.sequential import ArmTotals, SequentialResult, sequential_test, win_rate_test
from fairstream.service import registry, schema
from fairstream.service.alerts import alert
from fairstream.service.arms import Arms
from fairstream.service.audit import record
from fairstream.service.budget import Budget
from fairstream.service.database import bump, now, reading, writing
from fairstream.service.experiments import Experiment, running
from fairstream.service.gaps import TOO_FEW
from fairstream.service.impressions import HOUR, add_counts
from fairstream.service.lists import Ask
from fairstream.service.workspace import Workspace

_METRICS = {"click_through": "clicked", "conversion": "converted"}
_N_GUARDS = 8  # four, which have the half of `alpha` / 2 that the groups leave
_GROUP = "group "
_MIN_USERS_OF_STEP, _MIN_USERS_OF_GROUPS = 100, 400
_MAX_MICROS, _MAX_USERS = 1_000_000, 1_000_000
_SHADOWS, _SHADOW_K = 16, 20
_rows = schema.experiments


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
            self._n[now() // HOUR, arms.id, arm, "", what] += n

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


def look(workspace: Workspace) -> None:
    """Compute the tests of the running experiment; take the next step, decide or roll back if they say so."""
    with reading(workspace.engine) as connection:
        experiment = running(connection)
        if experiment is None:
            return
        looks = _everyone(connection, experiment)
    groups, budget = _groups(workspace, experiment, sum(looks["users"].values()))
    looks = looks | groups | {"tests": looks["tests"] | groups["tests"]}
    outcome, sentence = _conclusion(experiment, looks)
    values: dict[str, Any] = {"looks": looks}
    if outcome == "better":
        values |= {"decision": {"outcome": outcome, "sentence": sentence}}
    elif outcome is None and _may_step(experiment, looks):
        share = next(step for step in experiment.options.steps if step > experiment.share)
        values |= {"share": share, "step_since": now()}
    elif outcome is None and looks == experiment.looks:
        return
    with registry.deciding(workspace.engine) as (connection, _):
        if running(connection) != experiment:
            return  # another process was first
        connection.execute(update(_rows).where(_rows.c.id == experiment.id).values(values))
        if budget is not None:
            budget.store(connection)
        if outcome == "better":
            record(connection, "experiment", {"id": experiment.id, "decision": outcome, "looks": looks})
        elif outcome is not None:
            registry.end_experiment(connection, outcome, sentence, by="service")
        elif "share" in values:
            record(connection, "experiment", {"id": experiment.id, "share": values["share"]})
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
    tests, options = looks["tests"], experiment.options
    if broken := next((name for name, test in tests.items() if test["breaks_guard"]), None):
        return "worse", f"B was rolled back for {broken.replace('_', ' ')}: {tests[broken]['sentence']}."
    if experiment.decision is not None:
        return None, ""
    decisive = "preference" if experiment.mode == "interleave" else options.metric
    if (test := tests.get(decisive)) is not None:
        words = f"{decisive.replace('_', ' ')} {test['sentence']}."
        if test["interval"][1] < 0:
            return "worse", f"B is worse: {words}"
        if test["interval"][0] > 0:
            return "better", f"B is better: {words} Promote it or stop."
    if (n := sum(looks["users"].values())) >= options.max_users:
        return "no difference", f"No difference was found within {n:,} users."
    return None, ""


def _everyone(connection: Connection, experiment: Experiment) -> dict[str, Any]:
    """Return the numbers of users and the tests of everyone at one moment."""
    count = schema.impression_counts.c
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
        rows = select(user.vote, func.count()).where(user.experiment == experiment.id).group_by(user.vote)
        votes: dict[int, int] = dict(connection.execute(rows).all())
        looks["users"] = {"A": (a := votes.get(-1, 0)), "B": (b := votes.get(1, 0))}
        if a + b:
            sentence = f"{b:,} users clicked an item of B first, {a:,} one of A"
            result = win_rate_test(b, a, alpha=experiment.options.alpha / 2)
            tests["preference"] = _result(result, sentence, breaks_guard=False)
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
    """Return the test of a measure, and whether B breaks its guard; None before there are enough users."""
    options, before = experiment.options, experiment.looks.get("tests", {}).get(name, {})
    test = partial(sequential_test, a, b, alpha=options.alpha / 2)
    if (result := test(scale=before.get("scale"))) is None:
        return None
    limit = getattr(options, f"max_{'fall' if name in _METRICS else 'rise'}_of_{name}")
    ratio = {"latency": 1 + limit, "fallback": 1}.get(name, 1 - limit)
    guard = test(n_tests=_N_GUARDS, ratio=ratio, scale=result.scale)
    assert guard is not None
    low, high = result.interval
    sentence = f"{b.y / b.x:.2%} for B and {a.y / a.x:.2%} for A (difference {low:+.2%} to {high:+.2%})"
    if name == "latency":
        breaks = guard.is_better  # larger
        sentence = f"{b.y / b.x / 1e3:.1f} ms for B and {a.y / a.x / 1e3:.1f} ms for A (limit +{limit:.0%})"
    else:
        breaks = guard.interval[0] > limit if name == "fallback" else guard.is_worse
    return _result(result, sentence, breaks_guard=breaks)


def _result(result: SequentialResult, sentence: str, *, breaks_guard: bool) -> dict[str, Any]:
    return asdict(result) | {"interval": list(result.interval), "sentence": sentence, "breaks_guard": breaks_guard}


def _groups(workspace: Workspace, experiment: Experiment, n: int) -> tuple[dict[str, Any], Budget | None]:
    """Return the tests of groups and what they spend of the privacy budget, whenever the users have doubled.

    A user's value is 1/2 plus or minus half of what the user's rate exceeds everyone's by: its mean over a group says
    how far B is ahead of A there. Look k has the share 1/2^k of the groups' part of α, so all looks together hold it.
    """
    from fairstream.service.privacy import Release  # noqa: PLC0415 (loads torch)

    options, before = experiment.options, experiment.looks.get("groups", {})
    if experiment.mode == "shadow" or n < max(_MIN_USERS_OF_GROUPS, 2 * before.get("n", 0)):
        tests = experiment.looks.get("tests", {}).items()
        return {"groups": before, "tests": {name: test for name, test in tests if name.startswith(_GROUP)}}, None
    group_of = dict(zip(*(column.to_pylist() for column in workspace.people.values().columns), strict=True))
    names = workspace.config.groups or sorted({*group_of.values()})
    if len(names) < 2:
        return {"groups": {"n": n}, "tests": {}}, None
    users, is_drafted = schema.experiment_users, experiment.mode == "interleave"
    with reading(workspace.engine) as connection:
        rows = connection.execute(select(users).where(users.c.experiment == experiment.id)).all()
    rows = [row for row in rows if (row.vote if is_drafted else row.arm)]
    code_of: dict[Any, int] = {name: code for code, name in enumerate(names)}
    codes = np.array([code_of.get(group_of.get(row.user_id), UNKNOWN) for row in rows], np.int16)
    if is_drafted:
        values, factor, allowed, what = np.array([0.5 + row.vote / 2 for row in rows]), 2, 0.0, "preference for B"
    else:
        rates = np.array([getattr(row, _METRICS[options.metric]) / row.shown for row in rows])
        values = 0.5 + np.where([row.arm == "B" for row in rows], 0.5, -0.5) * (rates - rates.mean())
        allowed = getattr(options, f"max_fall_of_{options.metric}") * float(rates.mean())
        factor, what = 4, f"{options.metric.replace('_', ' ')} of B minus that of A"
    budget, k = Budget.read(workspace.engine, workspace.config.privacy), before.get("k", 0) + 1
    min_size = workspace.config.gate.min_group_size
    release = Release(workspace.secret, min_size, f"{experiment.id} {k}", budget)
    report = release.report(values, codes, names)
    means = report.means
    n_tests = ceil(len(means) * 2**k * 0.05 / (options.alpha / 4))  # of one test the margin is that of 95 %
    tests = {}
    for name, mean in means.items():
        value, margin = float(factor * (mean.value - 0.5)), float(factor * mean.margin(n_tests))
        low, high = round(value - margin, 4), round(value + margin, 4)
        tests[f"{_GROUP}{name}"] = {
            "difference": round(value, 4),
            "interval": [low, high],
            "sentence": f"{what} is {value:+.1%} ({low:+.1%} to {high:+.1%})",
            "breaks_guard": high < -allowed,
        }
    groups = {"n": n, "k": k if tests else k - 1, "withheld": None if tests else report.why or TOO_FEW}
    return {"groups": groups, "tests": tests}, budget
