"""Comparing stored runs: paired, against brute force, and honest about what cannot be told apart.

Most runs here are made by hand (`support.made_run`), so that it is known who found what: with
precision@k a user's value is what it found over k, and all arithmetic can be done over again.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import fairstream
from fairstream import ConfigurationError, DataError, EventLog, Record, compare
from fairstream.evaluation import DEFAULT_METRICS, built_in
from fairstream.evaluation.regret import LevelPanel, SystemRegret
from fairstream.models import NO_LEVEL, Level
from support import made_run

K = 4
METRIC = f"precision@{K}"
METHODS = ("FADE", "Finetune", "Retrain", "Pretrain", "FADE-Abs")
FEW = {"metric": METRIC, "n_resamples": 60}
Numbers = np.ndarray[Any, np.dtype[np.int64]]


def record(found: Any, groups: Any, *, n_groups: int = 2, **options: Any) -> Record:
    options = {"k": K, "method": "FADE", **options}
    return Record.from_document(made_run(found, groups, names=tuple("abcdef"[:n_groups]), **options))


class Rivals(NamedTuple):
    """What each of several methods found for the same users: (contenders, periods, users), −1 where not tested."""

    found: Numbers
    groups: Numbers
    n_groups: int

    def records(self, **options: Any) -> list[Record]:
        return [
            record(found, self.groups, n_groups=self.n_groups, method=method, **options)
            for method, found in zip(METHODS, self.found, strict=False)
        ]


@st.composite
def rivals(draw: st.DrawFn, most: int = 3) -> Rivals:
    """Some users are tested in some periods only, and some have no group; every group is there in every period."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n_groups, n_periods = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    groups = np.concatenate([np.arange(n_groups), rng.integers(-1, n_groups, draw(st.integers(3, 25)))])
    found = rng.integers(0, K + 1, (draw(st.integers(2, most)), n_periods, len(groups)))
    found[:, rng.random((n_periods, len(groups))) < 0.2] = -1
    found[:, :, :n_groups] = np.maximum(found[:, :, :n_groups], 0)
    return Rivals(found, groups, n_groups)


def by_hand(found: Numbers, groups: Numbers, n_groups: int, min_size: int = 1) -> tuple[float, float]:
    """Performance and disparity as they are defined: period by period, then averaged."""
    performance, disparity = [], []
    for row in found:
        value = {u: row[u] / K for u in range(len(row)) if row[u] >= 0}
        performance.append(np.mean(list(value.values())))
        members = {g: [value[u] for u in value if groups[u] == g] for g in range(n_groups)}
        judged = {g: values for g, values in members.items() if len(values) >= min_size}
        gaps = []
        for g, values in judged.items():
            rest = [value for other, values in judged.items() if other != g for value in values]
            if rest:
                gaps.append(np.mean(rest) - np.mean(values))
        if n_groups == 2 and gaps:
            assert gaps[0] == pytest.approx(-gaps[1])
        if gaps:
            disparity.append(max(gaps))
    return float(np.mean(performance)), float(np.mean(disparity)) if disparity else np.nan


# ── pairing ──────────────────────────────────────────────────────────────────────────────


@given(rivals(), st.sampled_from(["ndcg", "recall", "precision", "f1", "hit", "mrr"]))
def test_a_run_against_itself_differs_by_nothing_at_all(made: Rivals, metric: str) -> None:
    same = [
        record(made.found[0], made.groups, n_groups=made.n_groups, learning_rate=learning_rate)
        for learning_rate in (0.001, 0.002)
    ]
    comparison = compare(same, metric=f"{metric}@{K}", n_resamples=60)
    for difference in comparison.differences:
        for part in (difference.performance, difference.disparity):
            assert (part.value, part.low, part.high) == (0.0, 0.0, 0.0)
            assert not part.excludes_zero
    assert all(contender.is_on_front for contender in comparison.contenders)
    assert all("cannot be told from" in verdict for verdict in comparison.verdicts()[:2])


@given(st.integers(0, 2**32), st.sampled_from([1, 2]))
def test_noise_that_both_have_does_not_widen_the_interval_of_their_difference(seed: int, n_periods: int) -> None:
    rng, groups = np.random.default_rng(seed), np.arange(32) % 2  # powers of two: no sum here is ever rounded
    quiet = rng.integers(0, 2, (2, n_periods, 32)) + 7 * (groups == 0)  # so far apart that no draw turns them round
    loud = quiet + 5 * rng.integers(0, 2, (n_periods, 32))
    before, after = (
        compare(
            [record(found, groups, k=16, method=method) for method, found in zip(METHODS, runs, strict=False)],
            metric="precision@16",
            n_resamples=64,
        )
        for runs in (quiet, loud)
    )
    for ours, theirs in zip(before.differences, after.differences, strict=True):
        assert (ours.performance, ours.disparity) == (theirs.performance, theirs.disparity)
    # which is the pairing's doing: by itself each of them has become much less certain
    for ours, theirs in zip(before.contenders, after.contenders, strict=True):
        assert theirs.performance.high - theirs.performance.low > ours.performance.high - ours.performance.low


@given(rivals())
def test_the_interval_of_a_difference_holds_the_difference(made: Rivals) -> None:
    comparison = compare(made.records(), **FEW)
    for difference in comparison.differences:
        for part in (difference.performance, difference.disparity):
            assert part.low <= part.value <= part.high


@pytest.mark.few(1)
@pytest.mark.parametrize("n_groups", [2, 4, 8])
def test_the_interval_of_a_contender_holds_its_value(n_groups: int) -> None:
    groups, names = np.arange(400) % n_groups, tuple("abcdefgh"[:n_groups])
    for seed in range(5):
        found = np.random.default_rng(seed).integers(0, K + 1, (2, 6, 400))  # nobody is any better off
        runs = [
            Record.from_document(made_run(f, groups, names=names, method=m))
            for f, m in zip(found, METHODS, strict=False)
        ]
        for contender in compare(runs, metric=METRIC, n_resamples=500).contenders:
            for part in (contender.performance, contender.disparity):
                assert 0 <= part.low <= part.value <= part.high


def test_an_interval_is_made_of_the_draws_that_tell_of_a_gap() -> None:
    found = [[2, -1, 1, -1], [-1, 3, -1, 1]]  # nobody is tested twice
    comparison = compare([record(found, [0, 0, 1, 1], method=method) for method in METHODS[:2]], **FEW)
    for contender in comparison.contenders:
        assert contender.disparity.low <= contender.disparity.value <= contender.disparity.high


@given(rivals())
def test_one_minus_the_other_is_the_other_minus_the_one_turned_round(made: Rivals) -> None:
    comparison = compare(made.records(), **FEW)
    found = {(part.label, part.against): part for part in comparison.differences}
    assert len(found) == len(made.found) * (len(made.found) - 1)
    values = {contender.label: contender for contender in comparison.contenders}
    for (label, against), difference in found.items():
        for part in ("performance", "disparity"):
            one, other = getattr(difference, part), getattr(found[against, label], part)
            assert (one.low, one.high) == pytest.approx((-other.high, -other.low), abs=1e-12)
            own, theirs = (getattr(values[name], part).value for name in (label, against))
            assert one.value == -other.value == own - theirs


# ── against brute force ──────────────────────────────────────────────────────────────────


@given(rivals(), st.sampled_from([1, 2, 4]))
def test_the_numbers_are_the_definitions(made: Rivals, min_size: int) -> None:
    expected = [by_hand(found, made.groups, made.n_groups, min_size) for found in made.found]
    records = made.records(min_group_size=min_size)
    if np.isnan(expected).any():
        with pytest.raises(DataError, match="no disparity can be compared: too few users"):
            compare(records, **FEW)
        return
    comparison = compare(records, **FEW)
    assert (comparison.metric, comparison.task, comparison.n_groups) == (METRIC, "remain", made.n_groups)
    assert comparison.n_users == (made.found[0] >= 0).any(axis=0).sum()
    for contender, (performance, disparity) in zip(comparison.contenders, expected, strict=True):
        assert contender.performance.value == pytest.approx(performance, abs=1e-12)
        assert contender.disparity.value == pytest.approx(disparity, abs=1e-12)


@pytest.mark.parametrize("seeds", [(0,), (0, 1)])
def test_a_comparison_of_one_seed_says_so(seeds: tuple[int, ...]) -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    runs = [record(found, groups, method=method, seed=seed) for method in METHODS[:2] for seed in seeds]
    assert any("One seed only" in verdict for verdict in compare(runs, **FEW).verdicts()) is (len(seeds) == 1)


@given(rivals(most=5))
def test_the_front_and_the_verdicts_follow_from_the_numbers(made: Rivals) -> None:
    comparison = compare(made.records(), **FEW)
    point = {c.label: (c.performance.value, c.disparity.value) for c in comparison.contenders}

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one != other and one[0] >= other[0] and one[1] <= other[1]

    front = [label for label, own in point.items() if not any(beats(other, own) for other in point.values())]
    assert [c.label for c in comparison.contenders if c.is_on_front] == front
    best = max(point, key=lambda label: point[label][0])
    regret = {c.label: c.largest_regret.value for c in comparison.contenders if c.largest_regret is not None}
    worse = {difference.label for difference in comparison.differences if difference.largest_regret.low > 0}
    fairest = min(set(point) - worse, key=lambda label: (point[label][1], list(point).index(label)))
    assert f"On the Pareto front of performance and disparity: {', '.join(front)}." in comparison.verdicts()
    leaders = {"performance": best, "regret": min(regret, key=regret.__getitem__), "disparity": fairest}
    for verdict, (part, leader) in zip(comparison.verdicts()[:3], leaders.items(), strict=True):
        field = "largest_regret" if part == "regret" else part
        found = {difference.label: getattr(difference, field) for difference in comparison.against(leader)}
        assert set(found) == set(point) - {leader}
        level = [label for label, interval in found.items() if interval.low <= 0 <= interval.high]
        if level:
            assert verdict.startswith(f"{leader} leads on {part}")
            assert verdict.endswith(f", but cannot be told from {', '.join(level)}.")
        else:
            assert verdict.startswith(f"{leader} wins on {part}")


def test_a_clear_winner_is_called_one() -> None:
    rng, groups = np.random.default_rng(0), np.arange(60) % 2
    good, bad = rng.integers(3, 5, (2, 60)), rng.integers(0, 2, (2, 60))
    comparison = compare([record(good, groups), record(bad, groups, method="Finetune")], **FEW)
    assert comparison.verdicts()[0].startswith("FADE wins on performance")
    assert comparison.against("Finetune")[0].performance.excludes_zero


def test_with_more_than_two_groups_the_one_furthest_behind_decides() -> None:
    # a and b do alike and c does worse: a's gap to the rest is not the largest
    groups = np.repeat([0, 1, 2], 20)
    found = np.repeat([[3, 3, 1]], 20, axis=1)
    level = np.full((1, 60), 2)
    runs = [record(found, groups, n_groups=3), record(level, groups, n_groups=3, method="Finetune")]
    comparison = compare(runs, **FEW)
    assert [contender.disparity.value for contender in comparison.contenders] == [(3 - 1) / K, 0]
    assert comparison.contenders[0].by_group == {"a": 0.75, "b": 0.75, "c": 0.25}
    assert comparison.contenders[0].behind == "c"
    assert compare(runs).metric == f"ndcg@{K}"  # the main one, where none is asked for


def test_a_group_that_is_ahead_does_not_make_a_system_the_unfairer_one() -> None:
    """Of a system that serves c best, and one that leaves c behind by less than that, the second is the unfairer."""
    groups = np.repeat([0, 1, 2], [40, 40, 20])
    ahead, left = np.repeat([[2, 2, 4]], [40, 40, 20], axis=1), np.repeat([[2, 2, 1]], [40, 40, 20], axis=1)
    comparison = compare(
        [record(ahead, groups, n_groups=3), record(left, groups, n_groups=3, method="Finetune")], **FEW
    )
    lists = {c.label: c for c in comparison.contenders}
    assert lists["FADE"].disparity.value == pytest.approx((2 * 40 + 4 * 20) / 60 / K - 2 / K)  # a or b, not c
    assert (lists["Finetune"].behind, lists["Finetune"].disparity.value) == ("c", pytest.approx(1 / K))
    assert [c.label for c in comparison.contenders if c.is_on_front] == ["FADE"]
    assert comparison.verdicts()[1].startswith("FADE wins on regret")
    assert comparison.verdicts()[2].startswith("FADE wins on disparity")
    assert "behind the rest" in comparison.verdicts()[2]
    assert "furthest behind" in repr(comparison)


# ── regret ───────────────────────────────────────────────────────────────────────────────


def at_levels(run: Record, values: dict[Level, Any]) -> Record:
    """The run with the users' precision at some levels; its own lists are those without one."""
    tests = {}
    for at, tested in run.tests.items():
        columns = {NO_LEVEL: tested.values_of(METRIC_AT_K), **values}
        level_values = np.stack([np.broadcast_to(each, tested.users.shape) for each in columns.values()], axis=1)
        tests[at] = replace(tested, levels=tuple(columns), level_values=level_values)
    about = {**run.about, "periods": [{**period, "tasks": TASKS} for period in run.about["periods"]]}
    return Record(about, lambda: tests)


METRIC_AT_K = built_in(METRIC, DEFAULT_METRICS)
TASKS = {task: {METRIC: {}} for task in ("remain", "next")}


def test_a_system_that_serves_everyone_badly_does_not_lead_on_disparity() -> None:
    """One serves c at a quarter of what the other gives it, and everyone alike: its gap is the smallest."""
    rng, groups = np.random.default_rng(0), np.repeat([0, 1, 2], [80, 80, 40])
    good = np.take([2, 3, 4], groups) - rng.integers(0, 2, (2, 200))
    bad = rng.integers(0, 2, (2, 200))
    records = [record(good, groups, n_groups=3), record(bad, groups, n_groups=3, method="Finetune")]
    comparison = compare(records, **{**FEW, "n_resamples": 200})
    ours, theirs = comparison.contenders
    assert theirs.disparity.value < ours.disparity.value
    assert ours.largest_regret is not None
    assert ours.largest_regret.value == 0.0
    assert theirs.largest_regret_group == "c"
    assert theirs.regret_to_best["c"].value == pytest.approx(1 - theirs.by_group["c"] / ours.by_group["c"])  # type: ignore[operator]
    assert theirs.regret_to_best["c"].low > 0.7
    assert comparison.best == dict.fromkeys("abc", "FADE")
    verdicts = comparison.verdicts()
    assert any(verdict.startswith("FADE wins on regret") for verdict in verdicts)
    assert not any(verdict.startswith(("Finetune leads on", "Finetune wins on")) for verdict in verdicts)
    (why,) = [verdict for verdict in verdicts if verdict.startswith("Finetune has the smallest gap")]
    assert "worse than FADE would, and levels down: a is no better off than with FADE." in why
    table = comparison.to_arrow().to_pylist()[1]
    assert table["c_regret_to_best"] == table["largest_regret"] == theirs.largest_regret.value  # type: ignore[union-attr]


def test_a_smaller_gap_that_costs_nobody_much_leads_on_disparity() -> None:
    groups, rng = np.repeat([0, 1], 100), np.random.default_rng(1)
    found = np.take([3, 1], groups) + rng.integers(0, 2, (2, 200))
    raised = found + (groups == 1)
    comparison = compare([record(found, groups), record(raised, groups, method="Finetune")], **FEW)
    assert comparison.verdicts()[2].startswith("Finetune wins on disparity")
    assert not any("smallest gap" in verdict for verdict in comparison.verdicts())


def test_what_is_attainable_is_the_best_of_all_systems_at_all_of_their_levels() -> None:
    groups, level = np.repeat([0, 1], 60), Level("b", 2.0)
    plain, other = (np.repeat([row], 60, axis=1) for row in ([3, 1], [2, 2]))
    at_best = np.take([0.25, 0.75], groups)  # at this level b gets more than from either as served
    one = at_levels(record(plain, groups), {level: at_best})
    two = record(other, groups, method="Finetune")
    two = Record({**two.about, "periods": [{**two.about["periods"][0], "tasks": TASKS}]}, lambda: two_tests)
    two_tests = record(other, groups, method="Finetune").tests
    comparison = compare([one, two], **FEW)
    assert comparison.attainable == pytest.approx({"a": 0.75, "b": 0.75})
    assert comparison.best == {"a": "FADE", "b": "FADE at b × 2"}
    first, second = comparison.contenders
    assert first.regret["b"].value == first.regret_to_best["b"].value == pytest.approx(1 - 0.25 / 0.75)
    assert second.regret == {}  # it was tested without levels
    assert second.regret_to_best["b"].value == pytest.approx(1 - 0.5 / 0.75)
    table = comparison.regret_table()
    assert table is not None
    assert [row[:2] for row in table.rows] == [["FADE", "a"], ["FADE", "b"], ["Finetune", "a"], ["Finetune", "b"]]
    assert "FADE at b × 2" in repr(comparison)


def test_seeds_are_averaged_before_the_best_is_chosen() -> None:
    """One seed serves b well, another one badly: on average it serves b as the other method does."""
    groups = np.arange(80) % 2
    lucky, unlucky = (np.where(groups == 1, found, 2)[None] for found in (4, 0))
    records = [record(found, groups, seed=seed) for seed, found in enumerate((lucky, unlucky))]
    records += [record(np.full((1, 80), 2), groups, seed=seed, method="Finetune") for seed in range(2)]
    for contender in compare(records, **FEW).contenders:
        assert contender.largest_regret is not None
        assert contender.largest_regret.value == 0.0


def test_equal_systems_have_no_regret_to_each_other_on_average() -> None:
    """The better of two equal systems is better by chance: its value must not count as attainable."""
    rng, groups, regrets, naive = np.random.default_rng(3), np.arange(60) % 2, [], []
    for _ in range(60):
        panels = [
            LevelPanel((), rng.random((60, 1)) / 30, np.full(60, 1 / 30), groups.astype(np.int16), ("a", "b"))
            for _ in range(6)
        ]
        regret = SystemRegret.of(panels, 0)
        regrets.append(regret.draws[0].mean())
        means = np.array([[panel.means()[name][0] for panel in panels] for name in "ab"])
        naive.append((1 - means / means.max(axis=1, keepdims=True)).mean())
    assert abs(np.mean(regrets)) < 0.03
    assert np.mean(naive) > 0.08


def test_a_metric_of_all_users_together_has_no_regret(log: EventLog) -> None:
    def coverage(lists: Any, truth: Any) -> float:
        return len(np.unique(lists.items)) / truth.n_items

    options: dict[str, Any] = {"n_periods": 2, "tasks": ["next"], "min_group_size": 1, "n_resamples": 0}
    runs = [
        fairstream.run(log, "Finetune", model=model, metrics={"coverage@5": coverage}, **options)
        for model in ("popularity", "item-item")
    ]
    for run in runs:
        list(run)
    comparison = compare(runs, metric="coverage@5", n_resamples=20)
    assert comparison.regret_table() is None
    assert not any(" on regret" in verdict for verdict in comparison.verdicts())


def test_users_without_a_group_count_overall_and_for_no_disparity() -> None:
    groups = np.array([0] * 10 + [1] * 10 + [-1] * 10)
    found = np.array([[3] * 10 + [1] * 10 + [4] * 10])
    comparison = compare([record(found, groups), record(found, groups, method="Finetune")], **FEW)
    assert comparison.contenders[0].performance.value == pytest.approx(80 / 30 / K)
    assert comparison.contenders[0].disparity.value == pytest.approx(2 / K)
    assert comparison.n_users == 30


# ── seeds ────────────────────────────────────────────────────────────────────────────────


@given(st.integers(0, 2**32), st.permutations(range(7)))
def test_the_seeds_that_all_have_are_averaged(seed: int, order: list[int]) -> None:
    rng, groups = np.random.default_rng(seed), np.arange(20) % 2
    runs = [
        (method, s, rng.integers(0, K + 1, (2, 20)))
        for method, seeds in (("FADE", (3, 1, 2)), ("Finetune", (2, 5, 3, 4)))
        for s in seeds
    ]
    made = [record(found, groups, method=method, seed=s) for method, s, found in runs]
    comparison = compare([made[at] for at in order], **FEW)
    assert comparison.seeds == (2, 3)
    for contender in comparison.contenders:
        own = [by_hand(found, groups, 2) for method, s, found in runs if method == contender.label and s in (2, 3)]
        performance, disparity = np.mean(own, axis=0)
        assert contender.performance.value == pytest.approx(performance, abs=1e-12)
        assert contender.disparity.value == pytest.approx(disparity, abs=1e-12)


def test_several_seeds_bound_what_another_would_change() -> None:
    groups, runs, gaps = np.arange(20) % 2, [], []
    for place, method in enumerate(METHODS[:2]):
        founds = np.random.default_rng(place).integers(0, K + 1, (3, 1, 20))
        runs += [record(found, groups, method=method, seed=seed) for seed, found in enumerate(founds)]
        gaps.append(sorted(by_hand(found, groups, 2)[1] for found in founds))
    comparison = compare(runs, **FEW)
    for contender, (first, second, _) in zip(comparison.contenders, gaps, strict=True):
        assert contender.seed_certificate == pytest.approx((second - first) / 3)
    fairest = min(comparison.contenders, key=lambda contender: contender.disparity.value)
    assert any(f"Another seed of {fairest.label} would narrow" in verdict for verdict in comparison.verdicts())
    assert compare([runs[0], runs[3]], **FEW).contenders[0].seed_certificate is None


def test_seeds_that_disagree_widen_the_interval() -> None:
    groups = np.arange(20) % 2
    everybody = np.ones((1, 20), dtype=int)  # all users alike: what varies is the seed

    def width(values: tuple[int, ...]) -> float:
        runs = [
            record(value * everybody, groups, method=method, seed=s)
            for method in METHODS[:2]
            for s, value in enumerate(values)
        ]
        found = compare(runs, **FEW)
        assert found.differences[0].performance.high == 0  # both on the same seeds: nothing between them
        return found.contenders[0].performance.high - found.contenders[0].performance.low

    assert width((2,)) == width((2, 2)) == 0
    assert width((1, 3)) > 0


def test_a_run_given_twice_counts_once_and_two_that_contradict_each_other_are_refused() -> None:
    groups = np.arange(10) % 2
    one, other, third = np.random.default_rng(0).integers(0, K + 1, (3, 1, 10))
    runs = [record(one, groups), record(other, groups, method="Finetune")]
    assert compare([*runs, runs[0]], **FEW) == compare(runs, **FEW)
    with pytest.raises(DataError, match=r"^two runs of FADE with seed 0 .*; leave one of them out$"):
        compare([*runs, record(third, groups)], **FEW)


def test_the_device_is_no_difference() -> None:
    groups = np.arange(10) % 2
    found = np.full((1, 10), 2)
    runs = [record(found, groups, seed=0, device="cpu"), record(found, groups, seed=1, device="cuda")]
    with pytest.raises(ConfigurationError, match="differ in more than their seed, got 1 of that kind"):
        compare(runs)


# ── parts and tasks ──────────────────────────────────────────────────────────────────────


@given(rivals(), st.integers(0, 2**32))
def test_warm_and_cold_users_add_up_to_all(made: Rivals, seed: int) -> None:
    found = made.found[:, :1]  # in one period a user is one or the other
    there = np.flatnonzero(found[0, 0] >= 0)
    cold = np.random.default_rng(seed).random(found.shape[2]) < 0.5
    cold[: made.n_groups] = False
    assume(len(set(made.groups[there][cold[there]]) - {-1}) >= 2)  # there is a gap to tell of
    runs = [
        record(row, made.groups, n_groups=made.n_groups, method=method, is_cold=cold)
        for method, row in zip(METHODS, found, strict=False)
    ]
    whole, warm, cool = (compare(runs, part=part, **FEW) for part in ("all", "warm", "cold"))
    assert whole.n_users == warm.n_users + cool.n_users == len(there)
    assert cool.n_users == cold[there].sum()
    for ours, a, b in zip(whole.contenders, warm.contenders, cool.contenders, strict=True):
        total = warm.n_users * a.performance.value + cool.n_users * b.performance.value
        assert whole.n_users * ours.performance.value == pytest.approx(total, abs=1e-9)


@pytest.mark.slow
def test_the_tasks_and_parts_are_those_of_the_runs(log: EventLog) -> None:
    options = {
        "pretrain_epochs": 1,
        "update_epochs": 1,
        "model_settings": {"embedding_dim": 8},
        "n_periods": 3,
        "device": "cpu",
    }
    runs = [
        fairstream.run(log, method, min_group_size=1, n_resamples=0, **{"model": "mf", **options})
        for method in METHODS[:2]
    ]
    for run in runs:
        list(run)
    records = [Record.from_document(run.document()) for run in runs]
    for task in ("remain", "next"):
        for metric in ("ndcg@20", "mrr@20"):
            comparison = compare(records, task=task, metric=metric, n_resamples=50)
            assert [contender.label for contender in comparison.contenders] == ["FADE", "Finetune"]
            for contender, run in zip(comparison.contenders, runs, strict=True):
                stored = run.document()["summary"][task][metric]
                assert contender.performance.value == pytest.approx(stored["mean"], abs=1e-12)
                assert contender.disparity.value == pytest.approx(stored["abs_performance_disparity"], abs=1e-12)
                assert contender.by_group == pytest.approx(stored["by_group"], abs=1e-12)
    n_cold = {
        user
        for result in runs[0].results
        for user, cold in zip(result.tasks["remain"].tested.users, result.tasks["remain"].tested.is_cold, strict=True)
        if cold
    }
    assert compare(records, part="cold", n_resamples=50).n_users == len(n_cold) > 0


# ── labels ───────────────────────────────────────────────────────────────────────────────


def labels(*options: dict[str, Any]) -> list[str]:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    return [contender.label for contender in compare([record(found, groups, **o) for o in options], **FEW).contenders]


def test_a_label_names_the_method_and_what_differs() -> None:
    assert labels({"method": "fade"}, {"method": "Retrain"}) == ["FADE", "Retrain"]
    weights = labels({"fairness_weight": 0.5}, {"fairness_weight": 2}, {"method": "Finetune"})
    assert weights == ["FADE fairness_weight=0.5", "FADE fairness_weight=2.0", "Finetune"]
    target = labels({"method": "Finetune"}, {"method": "Finetune", "max_gap": 0.1, "target_task": "event"})
    assert target == ["Finetune", "Finetune max_gap=0.1 target_task=event"]
    assert labels({"k": K, "l2": 0.1, "method": "Finetune"}, {"l2": 0.2}) == ["Finetune l2=0.1", "FADE l2=0.2"]


def test_what_a_model_has_by_default_goes_without_saying() -> None:
    finetune = {"method": "Finetune"}
    named = labels({**finetune, "model": "mf"}, {**finetune, "model": "gru"}, {**finetune, "model": "gru", "l2": 0.1})
    assert named == ["Finetune model=mf", "Finetune model=gru l2=0.0", "Finetune model=gru l2=0.1"]


@pytest.mark.parametrize(
    "options",
    [
        ({"method": "FADE"}, {"method": "FADE", "restart_every": 2}),
        ({"method": "FADE-Abs", "temperature": 1.0}, {"method": "FADE-Abs", "temperature": 2.0}),
        ({"method": "Finetune"}, {"method": "Finetune", "max_gap": 0.1}),
        ({"method": "Finetune"}, {"method": "Finetune", "target": "least-regret"}),
    ],
)
def test_no_two_contenders_have_the_same_label(options: tuple[dict[str, Any], ...]) -> None:
    assert len(set(labels(*options))) == len(options)


# ── what cannot be compared ──────────────────────────────────────────────────────────────


def sentence(kind: type[Exception], *records: Record, **options: Any) -> str:
    with pytest.raises(kind) as caught:
        compare(records, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert not re.search(r"[.!?] [A-Z]", said)
    return said


def test_one_kind_of_run_cannot_be_compared() -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    for records in ([], [record(found, groups)], [record(found, groups, seed=s) for s in range(3)]):
        said = sentence(ConfigurationError, *records)
        assert "add runs of another method or with other settings" in said


def test_runs_without_a_seed_in_common_cannot_be_paired() -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    runs = [record(found, groups, seed=0), record(found, groups, seed=1, method="Finetune")]
    assert "no seed in common" in sentence(DataError, *runs)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("data", "sha256", "1" * 64),
        ("data", "group", "age"),
        ("data", "groups", ["a", "c"]),
        ("data", "period_ends", [0, 7, 9]),
        ("config", "k", 5),
        ("config", "min_group_size", 7),
    ],
)
def test_runs_on_other_data_cannot_be_compared(section: str, name: str, value: Any) -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    one, other = record(found, groups), made_run(found, groups, k=K, method="Finetune")
    other[section][name] = value
    said = sentence(DataError, one, Record.from_document(other))
    assert said.startswith("only runs on the same data can be compared: ")
    assert all(word in said for word in (name, str(value), "FADE", "Finetune"))


def test_runs_may_differ_in_who_is_put_first() -> None:
    rng, groups = np.random.default_rng(0), np.arange(40) % 2
    found = rng.integers(0, K + 1, (2, 3, 40))
    one, other = record(found[0], groups, method="FADE"), record(found[1], groups, method="Finetune")
    turned = record(found[1], 1 - groups, method="Finetune")
    turned.document["data"]["groups"] = turned.document["data"]["groups"][::-1]
    for ours, theirs in zip(
        compare([one, other], **FEW).contenders, compare([one, turned], **FEW).contenders, strict=True
    ):
        assert (ours.performance, ours.disparity) == (theirs.performance, theirs.disparity)


def test_the_same_method_on_other_data_is_not_called_the_same_run() -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    other = made_run(found + 1, groups, k=K)
    other["data"]["sha256"] = "1" * 64
    said = sentence(
        DataError, record(found, groups), Record.from_document(other), record(found, groups, method="Finetune")
    )
    assert "data" in said
    assert "nothing but" not in said


def test_a_comparison_without_resamples_is_refused_in_a_sentence() -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    runs = [record(found, groups), record(found, groups, method="Finetune")]
    assert "n_resamples" in sentence(ConfigurationError, *runs, n_resamples=0)


def test_runs_under_another_protocol_cannot_be_compared() -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    strict, paper, unleaked = (
        record(found, groups, method=method, protocol=protocol)
        for method, protocol in (("FADE", "strict"), ("Finetune", "paper"), ("Retrain", "paper+leak"))
    )
    assert "strict and paper differ" in sentence(DataError, strict, paper)
    assert len(compare([paper, unleaked], **FEW).contenders) == 2  # learned in another way, judged in the same


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"metric": "ndcg@20"}, "metric must be one of ndcg@4, recall@4, .*, got 'ndcg@20'"),
        ({"metric": "auc"}, "metric must be one of .*, got 'auc'"),
        ({"task": "later"}, "task must be one of remain, next, got 'later'"),
        ({"part": "tepid"}, "must be all, warm, cold, got 'tepid'"),
    ],
)
def test_what_is_not_there_to_compare_by_is_named(options: dict[str, Any], said: str) -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    runs = [record(found, groups), record(found, groups, method="Finetune")]
    assert re.search(said, sentence(ConfigurationError, *runs, **options))


def test_nobody_in_a_part_and_too_few_to_judge_are_said() -> None:
    groups, found = np.arange(10) % 2, np.full((1, 10), 2)
    runs = [record(found, groups), record(found, groups, method="Finetune")]
    assert sentence(DataError, *runs, part="cold") == "no cold users were tested"
    few = [record(found, groups, method=method, min_group_size=6) for method in METHODS[:2]]
    assert "too few users of the groups" in sentence(DataError, *few)


def test_a_few_seeds_are_taken_to_differ_by_more_than_they_do() -> None:
    """Where all users are alike, only seeds differ, and drawing them anew cannot leave their own range."""
    groups = np.arange(40) % 2
    ours = [record(np.full((1, 40), n_hits), groups, method="FADE", seed=n_hits) for n_hits in (1, 2, 3)]
    theirs = [record(np.full((1, 40), 2), groups, method="Finetune", seed=seed) for seed in (1, 2, 3)]
    (difference,) = compare([*ours, *theirs], metric=METRIC, n_resamples=500).against("Finetune")
    assert difference.performance.value == pytest.approx(0)
    assert difference.performance.low < -1 / K - 1e-9
    assert difference.performance.high > 1 / K + 1e-9
