"""Nobody's group follows from what is published: the attacks that told it, run against the numbers of today."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import SMALL, know, named_stream, take_in
from typer.testing import CliRunner

from fairstream.cli import app
from fairstream.errors import ConfigurationError
from fairstream.evaluation import Evaluation, UserResults
from fairstream.evaluation.by_group import GroupScores
from fairstream.evaluation.private_groups import MAX_NOISE, GroupMeans, Normal
from fairstream.models import NO_LEVEL, levels_of
from fairstream.service.audit import entries
from fairstream.service.budget import DAY, QUARTER, SHARES, Budget, LatestTests, PrivacyStatus, guess_of, mu_of
from fairstream.service.dashboard.charts import Chart
from fairstream.service.dashboard.overview import Overview, quality_charts
from fairstream.service.event_store import closed_periods
from fairstream.service.forgetting import export, forget
from fairstream.service.gaps import TOO_FEW, TOO_NOISY, gap_in, level_of, score_in, why_no_gap
from fairstream.service.learning import Learning
from fairstream.service.privacy import (
    EVERYONE,
    MAX_CHANGE,
    RUNGS,
    Release,
    group_names,
    ndcg_of,
    people_needed,
    reported,
    reported_regret,
)
from fairstream.service.registry import models
from fairstream.service.settings import Gate, LiveConfig, Privacy
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from fairstream.strategies import LeastRegret, PeriodReplay

Maker = Callable[..., Workspace]
NAMES = ["majority", "minority"]
LEVELS = levels_of(NAMES)
FEW_LEVELS = [level for level in LEVELS if level == NO_LEVEL or level.weight in RUNGS]
OFF, ON = Privacy(epsilon_per_quarter="off"), Privacy()


def rich(privacy: Privacy = ON, sizes: Mapping[str, float] | None = None) -> Budget:
    """A budget of which nothing was spent in a quarter."""
    return Budget(privacy, at=2 * QUARTER, sizes=dict(sizes or {}))


def released_by(secret: int, privacy: Privacy = ON, sizes: Mapping[str, float] | None = None) -> Release:
    return Release(secret.to_bytes(4, "big"), 20, "3 hash", rich(privacy, sizes))


def crowd(n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """The values of n users a group, all of whom an attacker knows, and their groups."""
    return rng.choice([0.0, 0.2, 0.4, 1.0], 2 * n, p=[0.64, 0.19, 0.13, 0.04]), np.repeat([0, 1], n).astype(np.int16)


def with_target(values: np.ndarray, codes: np.ndarray, truth: int) -> tuple[np.ndarray, np.ndarray]:
    """The same with the target, who alone has the best value there is."""
    return np.append(values, 1.0), np.append(codes, truth).astype(np.int16)


def likelihood(groups: GroupMeans, values: np.ndarray, codes: np.ndarray, cost: float) -> float:
    """The log likelihood of the minority against the majority as the target's group, of who knows all else."""
    if "minority" not in groups.means:
        return 0.0
    everyone, mean = float(values.mean()), groups.means["minority"]
    total = (mean.value - everyone) * groups.sizes["minority"]
    without = float((values[:-1][codes[:-1] == 1] - everyone).sum())
    b = max(1 - everyone, everyone)
    of_sum, of_size = b**2 / (0.9 * cost), 1 / (0.1 * cost)  # of two groups: variances of noises that add up to 0
    from_sum = (total - without) ** 2 - (total - without - (values[-1] - everyone)) ** 2
    n = groups.sizes["minority"] - int((codes[:-1] == 1).sum())
    return from_sum / (2 * of_sum) + (n**2 - (n - 1) ** 2) / (2 * of_size)


def test_without_noise_the_group_of_one_person_can_be_told_from_a_mean() -> None:
    """What the noise is there for: with exact means whoever knows all others knows the target's group for sure."""
    values, codes = crowd(200, np.random.default_rng(0))
    found = []
    for truth in (0, 1):
        mine, theirs = with_target(values, codes, truth)
        found.append(released_by(0, OFF).report(mine, theirs, NAMES).means["minority"].value)
    assert found[1] > found[0] + 0.003


@pytest.mark.parametrize(("n", "value"), [(19, 0.0), (38, 1.0), (200, 1.0)])
def test_of_few_made_up_users_nothing_is_published_whatever_the_truth(n: int, value: float) -> None:
    """The threshold of 20 users, the denominators of small groups, and the one user with a hit all told the group."""
    for secret in range(50):
        for truth in (0, 1):
            codes = np.append(np.repeat([0, 1], n), truth).astype(np.int16)
            groups = released_by(secret).report(np.append(np.zeros(2 * n), value), codes, NAMES)
            assert (groups.sizes, groups.means) == ({}, {})


@pytest.mark.few(1)
def test_the_best_guess_from_a_report_is_as_good_as_its_cost_says() -> None:
    """Whoever knows everything but one person's group, and how the noise is made, guesses by the likelihoods."""
    values, codes = crowd(2000, np.random.default_rng(1))
    rights, costs = [], []
    for secret in range(1500):
        release, truth = released_by(secret), secret % 2
        mine, theirs = with_target(values, codes, truth)
        groups = release.report(mine, theirs, NAMES)
        [(_, _, cost)] = release.budget.spent
        rights.append((likelihood(groups, mine, theirs, cost) > 0) == truth)
        costs.append(cost)
    assert len(set(costs)) <= 2  # all numbers that it follows from are known without anybody's group
    bound = guess_of(max(costs))
    assert bound - 0.06 < np.mean(rights) < bound + 0.03


@pytest.mark.slow
@pytest.mark.parametrize("days", [1 / 48, 7])
def test_four_hundred_updates_reveal_no_more_than_the_budget_allows(days: float) -> None:
    """The target is in every test. With noise anew in each update, 92 of 100 guesses were right after 400 updates."""
    values, codes = crowd(1000, np.random.default_rng(2))
    rights, costs, n_trials = [], [], 160
    for secret in range(n_trials):
        budget, truth, evidence = Budget(ON), secret % 2, 0.0
        mine, theirs = with_target(values, codes, truth)
        for n in range(400):
            budget.at = int(n * days * DAY)
            release = Release(secret.to_bytes(4, "big"), 20, str(n), budget)
            before = len(budget.spent)
            groups = release.report(mine, theirs, NAMES)
            for _, _, cost in budget.spent[before:]:
                evidence += likelihood(groups, mine, theirs, cost)
            release.compare(mine, mine, theirs, NAMES, 0.1, np.ones(len(mine), np.bool_))
            release.replay(np.repeat(mine[:, None], len(LEVELS), 1), theirs, NAMES, LEVELS)
        rights.append((evidence > 0) == truth)
        costs.append(sum(cost for _, what, cost in budget.spent if what == "report"))
        for what in SHARES:  # in no quarter more than the share of each purpose
            own = [(at, cost) for at, name, cost in budget.spent if name == what]
            for end, _ in own:
                assert sum(cost for at, cost in own if end - QUARTER < at <= end) <= budget.limit(what) + 1e-9
    years = 400 * days / 364
    assert max(costs) <= (years * 4 + 1) * budget.limit("report")
    assert np.mean(rights) <= guess_of(max(costs)) + 3 * math.sqrt(0.25 / n_trials)
    if days < 1:  # nine days
        assert max(costs) <= budget.limit("report")


def replayed(secret: int, epsilon: Any, n: int = 4000, gain: float = 0.0) -> PeriodReplay:
    """A period of n users, half of each group, for whom levels change something by chance; `gain` for the minority."""
    rng = np.random.default_rng(secret)
    codes = rng.integers(0, 2, n)
    values = rng.uniform(0.1, 0.4, (n, 1)) + rng.uniform(-0.08, 0.08, (n, len(LEVELS)))
    values[:, 1:] += gain * (codes == 1)[:, None]
    replay = released_by(secret, Privacy(epsilon_per_quarter=epsilon)).replay(values, codes, NAMES, LEVELS)
    assert replay is not None
    return replay


def test_without_noise_a_replay_is_exact_and_with_it_few_levels_are_tried() -> None:
    exact, noisy = replayed(1, "off"), replayed(1, 4.0)
    assert exact.levels == tuple(LEVELS)
    assert noisy.levels == tuple(FEW_LEVELS)
    for name in NAMES:
        at = [LEVELS.index(level) for level in FEW_LEVELS]
        assert noisy.groups[name].change[0] == 0
        assert not set(noisy.groups[name].change[1:]) & {exact.groups[name].change[place] for place in at}
        assert noisy.groups[name].strata == ()  # how many users had which history would be exact
    assert replayed(1, 4.0) == noisy  # and the noise is the same each time
    few = np.random.default_rng(0).uniform(0.1, 0.4, (60, len(LEVELS)))
    codes = np.repeat([0, 1], 30)
    assert released_by(1).replay(few, codes, NAMES, LEVELS) is None  # noise would dominate: the level stays


def test_a_replay_spends_no_more_than_its_cost() -> None:
    """One person's group moves the released sums by so much, and the noise is so large: their ratio is μ."""
    n, rng = 3000, np.random.default_rng(0)
    values = np.full((2 * n + 1, len(LEVELS)), 0.5)
    values[:, 1:] += rng.uniform(-0.08, 0.08, (2 * n + 1, 1))
    values[-1, 1:] = 0.1  # the target's change, which is cut off
    mean = float(np.clip(values[:, 1] - 0.5, -MAX_CHANGE, MAX_CHANGE).mean())
    sums = np.zeros((300, 2, 4))  # (secret, the target's group, level) of the minority
    for secret in range(300):
        for truth in (0, 1):
            release = released_by(secret)
            replay = release.replay(values, np.append(np.repeat([0, 1], n), truth), NAMES, LEVELS)
            assert replay is not None
            own = replay.groups["minority"]
            sums[secret, truth] = (np.array(own.change[1:]) - mean) * own.n_users
    moved = np.abs(sums[:, 1] - sums[:, 0])[0]  # the same noise in both
    [(_, _, cost)] = release.budget.spent
    mu = math.sqrt(sum((moved / sums[:, 0].std(axis=0)) ** 2))
    assert mu < 1.1 * math.sqrt(0.65 * cost)
    assert cost <= release.budget.limit("target")


def test_the_variance_of_a_replay_has_the_noise() -> None:
    z = []
    for secret in range(200):
        own = replayed(secret, 4.0).groups["minority"]
        z.append(np.array(own.change[1:]) / np.sqrt(own.variance[1:]))
    assert 0.8 < np.std(z) < 1.2
    assert abs(np.mean(z)) < 0.2


def test_noise_alone_serves_no_level_and_a_gain_that_is_there_does() -> None:
    target = LeastRegret()
    chosen = [target.decide({}, replayed(secret, 4.0)).level for secret in range(200)]
    assert np.mean([level != NO_LEVEL for level in chosen]) <= 0.05
    chosen = [target.decide({}, replayed(secret, 4.0, n=20_000, gain=0.04)).level for secret in range(20)]
    assert np.mean([level.group == "minority" for level in chosen]) >= 0.9


def test_regret_is_withheld_where_noise_would_dominate_it() -> None:
    level, hidden = FEW_LEVELS[1], {"regret": {}, "withheld": dict.fromkeys(NAMES, TOO_NOISY)}
    wide, many = replayed(0, 4.0, n=4000), replayed(0, 4.0, n=40_000)
    wide = wide._replace(  # as if the levels had changed ten times as much
        groups={name: own._replace(variance=tuple(2000 * v for v in own.variance)) for name, own in wide.groups.items()}
    )
    for withheld in ([], [wide]):
        assert reported_regret(withheld, level, NAMES, 4.0) == hidden
    shown = reported_regret([many], level, NAMES, 4.0)
    assert set(shown["regret"]) == set(NAMES)
    assert shown["withheld"] == {}
    assert set(reported_regret([], level, NAMES, "off")["withheld"].values()) == {TOO_FEW}


def test_the_shares_of_the_budget_add_up() -> None:
    assert sum(SHARES.values()) == pytest.approx(1.0)


def test_mu_and_epsilon_agree() -> None:
    """The two ends of the conversion: δ of the Gaussian mechanism at this ε, by its own integral."""
    for epsilon in (0.5, 1.0, 4.0, 10.0):
        mu, x = mu_of(epsilon), np.linspace(-12, 12, 400_001)
        normal = [np.exp(-((x - shift) ** 2) / 2) / math.sqrt(2 * math.pi) for shift in (mu, 0)]
        delta = np.maximum(0, normal[0] - math.exp(epsilon) * normal[1]).sum() * (x[1] - x[0])
        assert delta == pytest.approx(1e-6, rel=0.02)


@pytest.mark.parametrize("epsilon", [0.0, 1000.0, math.inf, math.nan])
def test_a_budget_that_bounds_nothing_is_refused(epsilon: float) -> None:
    with pytest.raises(ConfigurationError, match="epsilon_per_quarter"):
        Privacy(epsilon_per_quarter=epsilon)
    assert 0.999 < guess_of(mu_of(500.0) ** 2) <= 1.0


@given(
    st.lists(st.tuples(st.integers(0, 40 * DAY), st.floats(0, 1), st.sampled_from(list(SHARES))), max_size=30),
    st.sampled_from([1.0, 4.0]),
)
def test_no_quarter_spends_more_than_its_budget(steps: list[tuple[int, float, str]], epsilon: float) -> None:
    budget = Budget(Privacy(epsilon_per_quarter=epsilon))
    for wait, share, what in steps:
        budget.at += wait
        allowed = budget.allowed(what)
        assert 0 <= allowed <= budget.limit(what)
        budget.spend(what, share * allowed)
        recent = [cost for at, name, cost in budget.spent if name == what and at > budget.at - QUARTER]
        assert sum(recent) <= budget.limit(what) * (1 + 1e-9)
    assert sum(map(budget.limit, SHARES)) == pytest.approx(mu_of(epsilon) ** 2)


def test_the_first_update_publishes_sizes_by_which_costs_are_reckoned() -> None:
    codes, budget = np.repeat([0, 1], [1600, 400]).astype(np.int16), Budget(ON, at=QUARTER)
    Release(b"a", 20, "x", budget).all_sizes(codes, NAMES)
    [(_, what, _)] = budget.spent
    assert what == "sizes"
    assert budget.sizes["majority"] == pytest.approx(1600, abs=60)
    Release(b"a", 20, "y", budget).all_sizes(codes, NAMES)
    assert len(budget.spent) == 1  # the next ones follow in a month


def test_while_history_is_replayed_nothing_is_spent() -> None:
    values, codes = crowd(3000, np.random.default_rng(0))
    for waits in (True, False):
        budget = Budget(ON, at=2 * QUARTER, waits=waits)
        groups = Release(b"a", 20, "x", budget).report(values, codes, NAMES)
        assert bool(groups.sizes) == bool(budget.spent) == (not waits)
        assert waits == ("imported history" in groups.why)


def test_what_is_spent_is_stored_and_shown_and_counts_in_the_next_update(learned: Workspace) -> None:
    budget = Budget.read(learned.engine, ON)
    cost = budget.allowed("report")
    budget.spend("report", cost)
    budget.sizes = {"majority": 130.0}
    budget.spend("sizes", 0.001)
    with learned.engine.begin() as connection:
        budget.store(connection)
    later = Budget.read(learned.engine, ON)
    assert later.allowed("report") < 0.001 * cost
    assert later.allowed("gate") > 0
    assert later.sizes == {"majority": 130.0}
    status = PrivacyStatus.of(learned.engine, ON)
    assert status.spent == pytest.approx((cost + 0.001) / mu_of(4.0) ** 2)
    assert status.left == pytest.approx(1 - status.spent)
    assert 0.5 < status.max_guess < status.max_guess_per_quarter < 0.7
    assert "% of the budget is spent" in str(status.sentence)
    assert PrivacyStatus.of(learned.engine, OFF).sentence is None


def test_a_gap_of_a_shop_with_2000_people_is_published_and_not_hidden_by_noise() -> None:
    """Weekly updates, each of which tests 60 % of the people: a gap of 0.05 is seen in 86 % of all quarters."""
    n_seen = 0
    for seed in range(40):
        rng, budget = np.random.default_rng(seed), Budget(ON, sizes=dict.fromkeys(NAMES, 1000.0))
        codes = (np.arange(2000) % 2).astype(np.int16)
        values, gaps = np.full(2000, np.nan), list[Normal]()
        for week in range(13):
            budget.at = 7 * DAY * week
            tested = rng.random(2000) < 0.6
            own = rng.choice([0.0, 0.2, 0.4, 1.0], 2000, p=[0.64, 0.19, 0.13, 0.04])
            values[tested] = (own * np.where(codes == 0, 1.18, 0.82))[tested]
            known = ~np.isnan(values)
            release = Release(bytes([seed]), 20, str(week), budget)
            groups = release.report(values[known], codes[known], NAMES)
            if groups.sizes:
                gaps.append(groups.gaps()["majority"])
                values[:] = np.nan
        assert gaps
        assert all(gap.noise <= MAX_NOISE * gap.sampling for gap in gaps)
        n_seen += any(gap.interval[0] > 0 for gap in gaps)
    assert n_seen >= 28  # fewer in two of 1,000 such tests


@given(st.lists(st.integers(0, 80), min_size=2, max_size=5), st.sampled_from([OFF, ON]), st.integers(0, 99))
def test_no_group_is_hidden_alone(counts: list[int], privacy: Privacy, secret: int) -> None:
    """One hidden group is everyone's mean minus the others'."""
    names = [f"g{n}" for n in range(len(counts))]
    codes = np.repeat(np.arange(len(counts)), counts).astype(np.int16)
    sizes = released_by(secret, privacy)._sizes("x", codes, names, math.inf if privacy is OFF else 0.05)
    assert len(names) - len(sizes) != 1
    if privacy is OFF:
        assert all(counts[names.index(name)] >= 20 for name in sizes)


def test_the_noise_is_the_same_each_time_and_other_for_other_events() -> None:
    values, codes = crowd(1500, np.random.default_rng(0))

    def drawn(secret: bytes, label: str) -> GroupMeans:
        return Release(secret, 20, label, rich()).report(values, codes, NAMES)

    assert drawn(b"a", "1 x") == drawn(b"a", "1 x")
    assert len({drawn(s, label).means["minority"] for s in (b"a", b"b") for label in ("1 x", "2 x", "1 y")}) == 6


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.5, 0.3, 0.2]])
def test_intervals_cover_with_the_noise(shares: list[float]) -> None:
    """95 of 100 intervals hold the true mean, and 95 of 100 the true gap; the noise is as large as it is said to be."""
    rng, covered, errors = np.random.default_rng(0), [], []
    names = ["a", "b", "c"][: len(shares)]
    truth = np.array([0.4, 0.3, 0.2])
    for secret in range(400):
        codes = rng.choice(len(shares), 3000, p=shares).astype(np.int16)
        values = (rng.random(3000) < truth[codes]).astype(float)
        noisy, exact = (
            released_by(secret, each)._noise.means("x", values, codes, names, sizes, cost)
            for sizes in [{name: 3000.0 * share for name, share in zip(names, shares, strict=True)}]
            for each, cost in ((ON, 0.02), (OFF, math.inf))
        )
        rest = np.average(truth[1 : len(shares)], weights=shares[1:])
        covered.append([_holds(noisy.means["b"], 0.3), _holds(noisy.gaps()["a"], 0.4 - rest)])
        errors.append((noisy.gaps()["a"].value - exact.gaps()["a"].value) / noisy.gaps()["a"].noise)
    assert (np.mean(covered, axis=0) > 0.9).all()
    assert 0.9 < np.std(errors) < 1.1


def _holds(found: Normal, truth: float) -> bool:
    low, high = found.interval
    return low <= truth <= high


def results(users: np.ndarray, codes: np.ndarray, hits: np.ndarray) -> UserResults:
    found = np.zeros((len(users), 5), np.bool_)
    found[:, 0] = hits
    return UserResults(
        users,
        codes.astype(np.int16),
        np.zeros(len(users), np.bool_),
        found,
        np.ones(len(users), np.int64),
    )


def test_names_of_groups_depend_on_no_one_person() -> None:
    """Declared, or of enough people: how many are enough nobody knows."""
    table = pa.array(["a"] * 500 + ["b"] * 40 + ["rare"] * 19)
    assert group_names(table, LiveConfig(), b"secret") == ["a", "b"]
    assert group_names(table, LiveConfig(groups=["x", "y"]), b"secret") == ["x", "y"]
    assert group_names(pa.array([], pa.string()), LiveConfig(groups=["x", "y"]), b"secret") == []

    def first(secret: int) -> int:
        tables = ((n, pa.array(["rare"] * n)) for n in range(1, 60))
        return next(n for n, table in tables if group_names(table, LiveConfig(), secret.to_bytes(2, "big")))

    found = [first(secret) for secret in range(300)]
    assert 20 <= min(found) <= 22
    assert 38 <= max(found) <= 40
    assert max(found.count(n) for n in set(found)) < 40


PERIODS, PEOPLE = named_stream()


def period_of(users: list[str], t: int) -> pa.Table:
    """Twelve events of each user, as everybody's made-up ones would be."""
    start = PERIODS[t]["time"][0].as_py()
    rows = [(user, f"i{(7 * n + 13 * t + at) % 150}") for at, user in enumerate(users) for n in range(12)]
    return pa.table(
        {
            "user_id": [user for user, _ in rows],
            "item_id": [item for _, item in rows],
            "time": pa.array([start] * len(rows), pa.timestamp("us")),
        }
    )


def attacked(workspace: Workspace, truth: str) -> dict[str, Any]:
    """The review's attack: 19 made-up users a group, the target beside them, and many without a group."""
    accomplices = [f"{name}{n}" for name in NAMES for n in range(19)]
    crowd = [f"nobody{n}" for n in range(122)]
    groups = {user: user.rstrip("0123456789") for user in accomplices} | {"target": truth}
    know(workspace, pa.table({"user_id": list(groups), "value": list(groups.values())}))
    for t in range(3):
        take_in(workspace, period_of([*accomplices, *crowd, "target"], t))
        update(workspace)
    period, newest = closed_periods(workspace.engine)[-1], models(workspace.engine)[0]
    record = [json.loads(entry.body) for entry in entries(workspace.engine)][-1]
    kept = {"period": period.evaluation, "decision": newest.decision, "about": newest.about, "record": record}
    return json.loads(json.dumps(kept))


def keys_by_group(value: Any) -> Mapping[str, int]:
    """How often each group is a key of anything that was kept."""
    text = json.dumps(value)
    return {name: text.count(f'"{name}":') for name in NAMES}


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [4.0, "off"])
def test_the_attack_of_made_up_users_learns_the_same_whatever_the_truth(new_workspace: Maker, epsilon: Any) -> None:
    """End to end, through an update: before, exactly the target's group was reported. Now both or none are."""
    options = {
        "learning": Learning(model="item-item", group_weight=1.0),
        "gate": Gate(min_tested_users=20, max_user_share=1.0, max_drift=1.0),
        "privacy": Privacy(epsilon_per_quarter=epsilon),
        "groups": NAMES,
    }
    for truth in NAMES:
        workspace = new_workspace(**options)
        workspace = replace(workspace, secret=b"the same in both worlds")
        found = attacked(workspace, truth)
        assert set(found["period"]["levels"]) == {EVERYONE}
        assert list(found["period"]["withheld"]) == NAMES
        assert found["period"]["metrics"]["hit@20"]["by_group"] == {}
        counts = keys_by_group(found)
        assert counts["majority"] == counts["minority"]
        assert not any(check["group"] for check in found["decision"]["checks"])


FOUR = ["18-29", "30-44", "45-64", "65+"]


def stored(hits: np.ndarray, codes: np.ndarray, secret: int) -> dict[str, Any]:
    """What an update stores of a period with these users, as JSON."""
    tested = results(np.arange(len(hits)), codes, hits)
    sizes = {name: float((codes == code).sum()) for code, name in enumerate(FOUR)}
    groups = released_by(secret, ON, sizes).report(ndcg_of(tested), codes.astype(np.int16), FOUR)
    everyone = GroupScores.from_dict({"mean": float(hits.mean())})
    found = reported(
        Evaluation({"ndcg@5": everyone}, len(hits), None, {}, {}, tested, n_cold_users=0), groups, FOUR, None, 4.0
    )
    return json.loads(json.dumps(found, allow_nan=False))


@pytest.mark.slow
@pytest.mark.parametrize("n", [500, 2000, 8000])
def test_groups_that_are_served_alike_are_shown_so(n: int) -> None:
    """The truth is a gap of 0: numbers that are shown hold it within their margins, others are withheld and say why."""
    held, stated, n_shown, n_draws, reasons = [], 0, 0, 300, set()
    for secret in range(n_draws):
        rng = np.random.default_rng(secret)
        codes = rng.choice(4, n, p=[0.34, 0.30, 0.28, 0.08])
        hits = rng.random(n) < 0.14
        found = stored(hits, codes, secret)
        score = score_in(found)
        for code, name in enumerate(FOUR):
            if name in found["levels"]:
                _, (low, high) = found["levels"][name]
                held.append(low <= hits[codes == code].mean() <= high)
                sampling = hits.std() / math.sqrt((codes == code).sum())
                assert found["noise"][name] <= 1.1 * MAX_NOISE * sampling + 1e-4
                assert "±" in level_of(found, name)
            else:
                assert score["by_group"][name] is None
                reasons.add(level_of(found, name))
        gap = gap_in(score)
        if gap is not None:
            assert gap.value < 1.5 * hits.mean()
            n_shown += 1
            stated += not gap.may_be_chance
        else:
            assert "too few people" in why_no_gap(found)
    assert reasons <= {TOO_NOISY, TOO_FEW}
    assert len(held) == 0 or np.mean(held) >= 0.9
    assert stated <= 0.09 * n_draws  # 5 %, and three standard errors
    assert (n_shown < 0.9 * n_draws) if n == 500 else (n_shown > 0.9 * n_draws), n_shown


def test_a_gap_that_is_there_is_named_with_its_side_and_margin() -> None:
    rng, named = np.random.default_rng(0), 0
    for secret in range(50):
        codes = rng.choice(4, 20_000)
        gap = gap_in(score_in(stored(rng.random(20_000) < np.array([0.08, 0.15, 0.15, 0.15])[codes], codes, secret)))
        assert gap is not None
        named += gap.words.startswith("the group “18-29” is 0.0") and gap.words.endswith("behind everyone else")
    assert named >= 48


def test_the_guide_says_how_many_people_it_takes() -> None:
    guide = (Path(__file__).parents[2] / "docs/how-to/privacy.md").read_text()
    for quality in (0.05, 0.1, 0.2):
        numbers = " | ".join(f"{people_needed(4.0, quality, days):,}" for days in (7, 30, 91))
        assert f"| {quality:g} | {numbers} |" in guide


def test_each_user_counts_once_until_numbers_are_published(learned: Workspace) -> None:
    tested = LatestTests(learned.engine)
    tested.add(["u1", "u2"], np.array([0.1, 0.2]), 1)
    with learned.engine.begin() as connection:
        tested.store(connection)
    again = LatestTests(learned.engine)
    again.add(["u2", "u3"], np.array([0.5, 0.6]), 2)
    users, values = again.columns()
    assert dict(zip(users, values.tolist(), strict=True)) == {"u1": 0.1, "u2": 0.5, "u3": 0.6}
    with learned.engine.begin() as connection:
        again.store(connection)
    assert str(export(learned, "u2")).count("0.5") == 1  # it is personal data
    forget(learned, ["u2"], by="test")
    assert set(LatestTests(learned.engine).columns()[0]) == {"u1", "u3"}
    last = LatestTests(learned.engine)
    last.clear()
    with learned.engine.begin() as connection:
        last.store(connection)
    assert LatestTests(learned.engine).columns()[0] == []


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.5, 60.0])
def test_no_page_command_or_file_states_a_gap_between_groups_that_are_alike(
    new_workspace: Maker, tmp_path: Path, epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups drawn by lot, four periods: at ε = 0.5 noise would be all there is to see, at 60 they are shown once."""
    secret = b"always the same secret of a test"
    monkeypatch.setattr("fairstream.service.workspace.secrets.token_bytes", lambda n: secret[:n])
    workspace = new_workspace(
        **{
            **SMALL,
            "privacy": Privacy(epsilon_per_quarter=epsilon),
            "gate": Gate(min_tested_users=50, min_group_size=2),
        }
    )
    rng = np.random.default_rng(3)
    know(workspace, pa.table({"user_id": PEOPLE["user_id"], "value": rng.choice(NAMES, len(PEOPLE))}))
    said: list[str] = []
    for events in PERIODS[:4]:
        take_in(workspace, events)
        assert update(workspace, said.append).kind == "promoted", said[-1]
    assert any(
        f"carry noise on purpose, for privacy (epsilon = {epsilon:g} a quarter)" in sentence for sentence in said
    )
    is_shown = epsilon > 1
    evaluations = [period.evaluation for period in closed_periods(workspace.engine)[1:]]
    for n, evaluation in enumerate(evaluations):
        gap = gap_in(score_in(evaluation))
        assert (gap is not None) == (is_shown and n == 0)  # the next numbers cost what accrues in days
        assert gap is None or gap.may_be_chance
        assert all("too few people" in reason for reason in evaluation["withheld"].values())
        by_group = score_in(evaluation)["by_group"]
        assert {name for name, mean in by_group.items() if mean is None} == set(evaluation["withheld"])
    overview = Overview(workspace)

    def n_points(chart: Chart) -> dict[str, int]:
        return {line.name: sum(point is not None for point in chart.points(line)) for line in chart.series}

    quality, gap_chart = quality_charts(overview, workspace.config)
    drawn = n_points(quality)
    for name in NAMES:
        assert drawn.get(name, 0) == sum(name in evaluation["levels"] for evaluation in evaluations)
    assert n_points(gap_chart) == {"largest gap": 1 if is_shown else 0}
    pages = [
        CliRunner().invoke(app, [command, str(workspace.folder)], env={"COLUMNS": "250"}, catch_exceptions=False).stdout
        for command in ("status", "periods")
    ]
    for page in pages:
        assert ("may be chance" in page) == is_shown
        assert is_shown or "too few people" in page
        assert not any(f"{name} behind" in page or f"{name} ahead" in page for name in NAMES)
    assert ("carry noise on purpose" in pages[0]) == is_shown


def test_that_groups_are_known_does_not_depend_on_who_has_events(new_workspace: Maker) -> None:
    """Before, 150 users of one group and the target told the target's group in one update, without noise."""
    active, others = [f"u{n}" for n in range(60)], [f"x{n}" for n in range(60)]
    said = set()
    for truth in NAMES:
        workspace = new_workspace(
            **{**SMALL, "learning": Learning(model="item-item"), "gate": Gate(min_tested_users=20)}
        )
        values = ["majority"] * 59 + [truth] + ["minority"] * 60
        know(workspace, pa.table({"user_id": [*active, *others], "value": values}))
        take_in(workspace, period_of(active, 0))
        said.add(update(workspace).reason)
    assert len(said) == 1
