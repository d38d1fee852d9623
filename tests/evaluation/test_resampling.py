"""The panel against computations that are slow and plain, and how often its intervals and tests are right."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.evaluation import GroupPanel, Statistics, panel_scores, resampling

NAN = math.nan
Law = tuple[tuple[float, float], tuple[float, float]]


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@contextmanager
def weights_at_once(n: int) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(resampling, "_WEIGHTS_AT_ONCE", n)
        yield


def panel_of(values: object, codes: list[int], n_groups: int = 2, min_size: int = 1) -> GroupPanel:
    """From (users, periods) or (users, periods, metrics)."""
    table = np.array(values, dtype=np.float64)
    return GroupPanel(
        table if table.ndim == 3 else table[:, :, None], np.array(codes, dtype=np.int16), n_groups, min_size=min_size
    )


@st.composite
def panels(draw: st.DrawFn, *, max_holes: int = 100, groups: tuple[int, int] = (1, 4), periods: int = 3) -> GroupPanel:
    """Small ones of every kind: unknown groups, empty groups, users who were not tested, groups too small."""
    n_groups, n_periods, n_metrics = draw(st.integers(*groups)), draw(st.integers(1, periods)), draw(st.integers(1, 2))
    codes = draw(st.lists(st.integers(-1, n_groups - 1), max_size=14))
    eighths = st.lists(st.integers(0, 8), min_size=n_metrics, max_size=n_metrics)
    values = np.empty((len(codes), n_periods, n_metrics))
    for u, p in np.ndindex(values.shape[:2]):
        values[u, p] = np.array(draw(eighths)) / 8
    cells = list(np.ndindex(values.shape[:2]))
    for hole in draw(st.lists(st.sampled_from(cells), max_size=min(max_holes, len(cells)))) if cells else []:
        values[hole] = NAN
    return GroupPanel(values, np.array(codes, dtype=np.int16), n_groups, draw(st.integers(0, 3)))


# ── the numbers themselves ───────────────────────────────────────────────────────────────


def mean(values: list[float]) -> float:
    """Of what is there."""
    there = [value for value in values if not math.isnan(value)]
    return math.fsum(there) / len(there) if there else NAN


def reference(panel: GroupPanel, m: int) -> dict[str, object]:
    """One metric, a period at a time, from lists of users."""
    groups = range(panel.n_groups)
    names = [name for name in Statistics._fields if name != "behind_as_observed"]
    found: dict[str, list[object]] = {name: [] for name in names}
    for p in range(panel.values.shape[1]):
        users = [
            (int(code), float(value))
            for code, value in zip(panel.codes, panel.values[:, p, m], strict=True)
            if not math.isnan(value)
        ]
        judged = [g for g in groups if sum(code == g for code, _ in users) >= max(1, panel.min_size)]
        by_group = [mean([v for code, v in users if code == g]) if g in judged else NAN for g in groups]
        rest = [mean([v for code, v in users if code in judged and code != g]) for g in groups]
        gap = [by_group[g] - rest[g] for g in groups]
        sizes = [abs(size) for size in gap if not math.isnan(size)]
        heights = [height for height in by_group if not math.isnan(height)]
        found["mean"].append(mean([v for _, v in users]))
        found["by_group"].append(by_group)
        found["gap"].append(gap)
        found["abs_gap"].append([abs(size) for size in gap])
        found["largest"].append(max(sizes, default=NAN))
        found["behind"].append(max((-size for size in gap if not math.isnan(size)), default=NAN))
        found["spread"].append(max(heights) - min(heights) if len(heights) > 1 else NAN)
    for g in groups:  # a group's mean is over the periods of its gap, where it has any
        is_compared = [not math.isnan(gaps[g]) for gaps in found["gap"]]
        for by_group, is_one in zip(found["by_group"], is_compared, strict=True):
            by_group[g] = by_group[g] if is_one or not any(is_compared) else NAN
    return {
        name: [mean(list(column)) for column in zip(*values, strict=True)]  # over the periods
        if isinstance(values[0], list)
        else mean(values)
        for name, values in found.items()
    }


@given(panels())
def test_the_numbers_are_those_of_a_plain_computation(panel: GroupPanel) -> None:
    found = panel.observed()
    for m in range(panel.values.shape[2]):
        for name, expected in reference(panel, m).items():
            np.testing.assert_allclose(getattr(found, name)[..., m], expected, atol=1e-12, err_msg=name)
    np.testing.assert_allclose(found.behind_as_observed, found.behind, atol=1e-12)


@given(panels(groups=(2, 2)))
def test_of_two_groups_the_spread_is_the_largest_gap(panel: GroupPanel) -> None:
    """A period in which one of them is judged alone has neither."""
    found = panel.observed()
    np.testing.assert_allclose(found.spread, found.largest, atol=1e-12)
    np.testing.assert_allclose(found.behind, found.largest, atol=1e-12)


@given(panels())
def test_who_is_judged_and_how_many_were_tested(panel: GroupPanel) -> None:
    for g, p in np.ndindex(panel.n_groups, panel.values.shape[1]):
        n = sum(not math.isnan(panel.values[u, p, 0]) for u in range(len(panel.codes)) if panel.codes[u] == g)
        assert panel.n_tested[g, p] == n
        assert panel.judged[g, p] == (n > 0 and n >= panel.min_size)


@given(panels(), st.randoms(use_true_random=False))
def test_the_order_of_the_users_does_not_matter(panel: GroupPanel, random: np.random.Generator) -> None:
    order = random.sample(range(len(panel.codes)), len(panel.codes))
    moved = GroupPanel(panel.values[order], panel.codes[order], panel.n_groups, panel.min_size)
    for one, other in zip(panel.observed(), moved.observed(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_a_group_set_aside_counts_overall_and_in_nobodys_rest() -> None:
    panel = panel_of([[0.0], [0.5], [1.0], [0.5], [1.0]], [0, 0, 1, 1, 2], n_groups=3, min_size=2)
    found = panel.observed()
    assert found.mean.tolist() == [0.6]
    np.testing.assert_array_equal(found.by_group[:, 0], [0.25, 0.75, NAN])
    np.testing.assert_array_equal(found.gap[:, 0], [-0.5, 0.5, NAN])


def test_sizes_of_gaps_are_averaged_over_the_periods_and_do_not_cancel() -> None:
    found = panel_of([[1.0, 0.0], [0.0, 1.0]], [0, 1]).observed()
    assert found.gap[:, 0].tolist() == [0.0, 0.0]
    assert found.abs_gap[:, 0].tolist() == [1.0, 1.0]
    assert found.largest.tolist() == [1.0]


# ── the bootstrap ────────────────────────────────────────────────────────────────────────

DRAWS = 20_000


def values_like_ndcg(generator: np.random.Generator, n: int, n_periods: int = 1) -> np.ndarray:
    return np.where(generator.random((n, n_periods)) < 0.5, 0.0, generator.beta(1.2, 2.5, (n, n_periods)))


def slow_bootstrap(panel: GroupPanel, n: int) -> list[dict[str, object]]:
    """Whole users, drawn one by one with replacement from each group."""
    generator, drawn = rng(99), []
    for _ in range(n):
        chosen: list[int] = []
        for code in range(-1, panel.n_groups):
            members = [u for u, c in enumerate(panel.codes) if c == code]
            chosen += [members[int(generator.integers(len(members)))] for _ in members]
        drawn.append(reference(GroupPanel(panel.values[chosen], panel.codes[chosen], panel.n_groups, 1), 0))
    return drawn


def test_draws_have_the_mean_and_the_variance_that_theory_gives_them() -> None:
    values, codes = values_like_ndcg(rng(1), 60), [0] * 35 + [1] * 25
    drawn = panel_of(values, codes).bootstrapped(rng(2), DRAWS)
    first, second = values[:35, 0], values[35:, 0]
    variances = (first.var() / 35, second.var() / 25)
    expected = {
        "gap": (first.mean() - second.mean(), sum(variances)),
        "by_group": (first.mean(), variances[0]),
        "mean": (values.mean(), (35**2 * variances[0] + 25**2 * variances[1]) / 60**2),
    }
    for name, (centre, variance) in expected.items():
        column = getattr(drawn, name).reshape(DRAWS, -1)[:, 0]
        assert column.mean() == pytest.approx(centre, abs=5 * math.sqrt(variance / DRAWS)), name
        assert column.var() == pytest.approx(variance, rel=0.06), name


@pytest.mark.slow
def test_draws_over_several_periods_are_spread_as_slow_ones_are() -> None:
    """With holes, so that a draw's means are ratios; both sides are random, hence the tolerance."""
    values = values_like_ndcg(rng(3), 24, 3)
    values[rng(4).random(values.shape) < 0.3] = NAN
    panel = panel_of(values, [0] * 12 + [1] * 9 + [-1] * 3)
    fast, slow = panel.bootstrapped(rng(5), 4000), slow_bootstrap(panel, 2000)
    for name in ("mean", "gap", "abs_gap", "largest"):
        column = getattr(fast, name).reshape(4000, -1)[:, 0]
        expected = np.array([np.ravel(one[name])[0] for one in slow])
        assert column.mean() == pytest.approx(expected.mean(), abs=5 * expected.std() / math.sqrt(1500)), name
        assert column.std() == pytest.approx(expected.std(), rel=0.1), name


@given(panels(), st.integers(1, 6))
def test_users_are_drawn_from_their_own_group(panel: GroupPanel, n: int) -> None:
    """Where all of a group have one value, all draws are alike."""
    alike = np.broadcast_to(panel.codes[:, None, None].astype(np.float64), panel.values.shape)
    same = GroupPanel(alike, panel.codes, panel.n_groups, panel.min_size)
    for value, drawn in zip(same.observed(), same.bootstrapped(rng(), n), strict=True):
        np.testing.assert_allclose(drawn, np.broadcast_to(value, drawn.shape), atol=1e-12)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12), st.integers(0, 100))
def test_a_user_is_drawn_with_all_its_periods_and_all_its_metrics(values: list[float], seed: int) -> None:
    column = np.array(values)
    table = np.stack([np.stack([column, 1 - column], axis=1), np.stack([2 * column, 2 - 2 * column], axis=1)], axis=2)
    drawn = panel_of(table, [0] * len(values), n_groups=1).bootstrapped(rng(seed), 10)
    np.testing.assert_allclose(drawn.mean, np.tile([0.5, 1.0], (10, 1)))  # the two periods make up for each other
    first = panel_of(table[:, :1], [0] * len(values), n_groups=1).bootstrapped(rng(seed), 10)
    np.testing.assert_allclose(first.mean[:, 1], 2 * first.mean[:, 0])


def permuted(panel: GroupPanel, generator: np.random.Generator, n: int) -> Statistics:
    return panel.permuted(generator, n)[0]


# ── the permutation ──────────────────────────────────────────────────────────────────────


@given(panels(max_holes=0), st.integers(1, 6))
def test_dealing_groups_out_anew_keeps_their_sizes_and_what_they_have_together(panel: GroupPanel, n: int) -> None:
    """Σ (group size · group mean) is the same in every deal, which it could not be with other sizes."""
    (permuted_groups, _), found = panel.permuted(rng(1), n), panel.observed()
    np.testing.assert_allclose(permuted_groups.mean, np.broadcast_to(found.mean, permuted_groups.mean.shape))
    sizes = panel.n_tested[:, :1]
    total = np.nansum(sizes * found.by_group, axis=0)
    np.testing.assert_allclose(
        np.nansum(sizes * permuted_groups.by_group, axis=1), np.broadcast_to(total, (n, len(total))), atol=1e-9
    )
    assert (np.isnan(permuted_groups.by_group) == np.isnan(found.by_group)).all()


def test_every_deal_is_as_likely_as_any_other() -> None:
    """Each user's value is a power of two, so a group's sum tells who is in it."""
    values, codes = [[1.0], [2.0], [4.0], [8.0], [16.0]], [0, 0, 1, 1, 1]
    permuted_groups = panel_of(values, codes).permuted(rng(), DRAWS)[0].by_group[:, 0, 0] * 2
    pairs, times = np.unique(permuted_groups.round().astype(int), return_counts=True)
    assert pairs.tolist() == sorted(a + b for a, b in itertools.combinations([1, 2, 4, 8, 16], 2))
    sigma = math.sqrt(DRAWS * 0.1 * 0.9)
    assert (np.abs(times - DRAWS / 10) < 5 * sigma).all()


def test_those_without_a_group_and_those_set_aside_are_not_dealt() -> None:
    values, codes = [[0.25], [0.5], [0.75], [0.5], [100.0], [200.0]], [0, 0, 1, 1, 2, -1]
    permuted_groups, _ = panel_of(values, codes, n_groups=3, min_size=2).permuted(rng(), 200)
    assert permuted_groups.by_group[:, :2].max() <= 0.75
    assert np.isnan(permuted_groups.by_group[:, 2]).all()
    assert (permuted_groups.mean == 302 / 6).all()
    assert len(np.unique(permuted_groups.gap[:, 0])) > 1


def test_a_group_is_dealt_to_those_only_who_were_there_as_often() -> None:
    """Of four users two were there twice and two once: the pairs swap groups, each pair by itself."""
    values, codes = [[1.0, 1.0], [2.0, 2.0], [4.0, NAN], [8.0, NAN]], [0, 1, 0, 1]
    permuted_groups = panel_of(values, codes).permuted(rng(), 400)[0].by_group[:, 0, 0]  # ((a + b) / 2 + a) / 2
    pairs = {(a, b): ((a + b) / 2 + a) / 2 for a in (1.0, 2.0) for b in (4.0, 8.0)}
    assert sorted(set(permuted_groups.tolist())) == sorted(pairs.values())
    alone, _ = panel_of([[1.0, 1.0], [2.0, NAN]], [0, 1]).permuted(rng(), 50)
    assert (alone.by_group[:, :, 0] == [1.0, 2.0]).all()  # who has no like keeps its group


# ── a bit at a time ──────────────────────────────────────────────────────────────────────


@pytest.mark.few(3)
@pytest.mark.parametrize("at_once", range(1, 30, 4))
def test_n_draws_are_n_draws_however_many_are_made_at_once(at_once: int) -> None:
    panel = panel_of(values_like_ndcg(rng(), 5, 2), [0, 0, 1, 1, -1])
    with weights_at_once(at_once):
        for n in range(1, 10):
            for drawn in (panel.bootstrapped(rng(), n), permuted(panel, rng(), n)):
                for part, found in zip(drawn, panel.observed(), strict=True):
                    assert part.shape == (n, *found.shape)


@pytest.mark.slow
@pytest.mark.parametrize("way", [GroupPanel.bootstrapped, permuted])
def test_how_many_are_made_at_once_does_not_change_their_distribution(
    way: Callable[[GroupPanel, np.random.Generator, int], Statistics],
) -> None:
    values = values_like_ndcg(rng(6), 40, 2)
    values[rng(7).random(values.shape) < 0.2] = NAN
    panel = panel_of(values, [0] * 25 + [1] * 15)
    whole = way(panel, rng(8), 6000).gap[:, 0, 0]
    with weights_at_once(7 * 40):
        parts = way(panel, rng(9), 6000).gap[:, 0, 0]
    assert parts.mean() == pytest.approx(whole.mean(), abs=5 * whole.std() * math.sqrt(2 / 6000))
    assert parts.std() == pytest.approx(whole.std(), rel=0.06)
    assert len(np.unique(parts)) > 5000  # the parts are not copies of each other


@pytest.mark.parametrize("way", [GroupPanel.bootstrapped, permuted])
def test_threads_change_nothing(
    way: Callable[[GroupPanel, np.random.Generator, int], Statistics], monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = panel_of(values_like_ndcg(rng(6), 40, 2), [0] * 20 + [1] * 15 + [2] * 5, n_groups=3)
    drawn = []
    for n_threads in (1, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda n_threads=n_threads: n_threads)
        drawn.append(way(panel, rng(8), 100))
    for one, other in zip(*drawn, strict=True):
        np.testing.assert_array_equal(one, other)


def test_fewer_at_once_take_less_memory() -> None:
    panel = panel_of(values_like_ndcg(rng(), 2000), [0, 1] * 1000)

    def peak() -> int:
        tracemalloc.start()
        panel.bootstrapped(rng(), 400)
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return highest

    whole = peak()
    with weights_at_once(20_000):
        assert peak() < whole / 10


# ── what is said of them ─────────────────────────────────────────────────────────────────


@st.composite
def dealable(draw: st.DrawFn) -> GroupPanel:
    """Two groups or more of three users or more, of whom at most two are missing in all."""
    n_groups, n_periods = draw(st.integers(2, 4)), draw(st.integers(1, 3))
    codes = np.repeat(np.arange(n_groups), [draw(st.integers(3, 6)) for _ in range(n_groups)])
    values = rng(draw(st.integers(0, 2**32 - 1))).integers(0, 9, (len(codes), n_periods, 2)) / 8
    for _ in range(draw(st.integers(0, 2))):
        values[draw(st.integers(0, len(codes) - 1)), draw(st.integers(0, n_periods - 1))] = NAN
    return GroupPanel(values, codes.astype(np.int16), n_groups)


@given(dealable(), st.integers(1, 60))
def test_a_p_value_is_a_probability_and_an_interval_is_in_order(panel: GroupPanel, n: int) -> None:
    for scores in panel_scores(panel, "abcd"[: panel.n_groups], rng(), n):
        for estimate in (*scores.gaps.values(), scores.largest_gap, scores.spread, scores.disparity):
            assert 0 < estimate.p_value <= 1
            assert estimate.p_value * (n + 1) == pytest.approx(round(estimate.p_value * (n + 1)))
            assert estimate.null_mean >= 0
            assert estimate.interval is None or estimate.interval[0] <= estimate.interval[1]
        assert scores.interval[0] <= scores.interval[1]
        assert (scores.largest_gap.interval, scores.spread.interval) == (None, None)


@given(dealable())
def test_an_interval_contains_its_value(panel: GroupPanel) -> None:
    for scores in panel_scores(panel, "abcd"[: panel.n_groups], rng(), 3):
        assert scores.interval[0] <= scores.mean <= scores.interval[1]
        for gap in scores.gaps.values():
            assert gap.interval[0] <= gap.value <= gap.interval[1]


@given(dealable())
def test_of_two_groups_the_gaps_mirror_each_other(panel: GroupPanel) -> None:
    codes = np.minimum(panel.codes, 1)
    two = GroupPanel(panel.values, codes, 2)
    for found in (two.observed(), two.bootstrapped(rng(), 20), permuted(two, rng(), 20)):
        np.testing.assert_allclose(found.gap[..., 0, :], -found.gap[..., 1, :], atol=1e-12)
        np.testing.assert_allclose(found.abs_gap[..., 0, :], found.abs_gap[..., 1, :], atol=1e-12)
        np.testing.assert_allclose(found.largest, found.abs_gap[..., 0, :], atol=1e-12)
    for scores in panel_scores(two, "ab", rng(), 40):
        a, b = scores.gaps["a"], scores.gaps["b"]
        mirrored = (-b.value, -b.interval[1], -b.interval[0])
        assert (a.value, *a.interval) == pytest.approx(mirrored, abs=1e-12)
        assert (a.p_value, a.null_mean) == pytest.approx((b.p_value, b.null_mean))


def plain_studentised(own: np.ndarray, rest: np.ndarray) -> tuple[float, float]:
    """The gap over its standard error, and that: Welch's, scaled to the pooled mean as in a score test."""
    pooled = np.concatenate([own, rest])
    null, spread = pooled.mean() * (1 - pooled.mean()), pooled.var(ddof=1)
    squared = 0.0
    for side in (own, rest):
        n, mean = len(side), side.mean()
        squared += (n * side.var(ddof=1) + spread) / (n * mean * (1 - mean) + null) * null / n
    return (own.mean() - rest.mean()) / math.sqrt(squared), math.sqrt(squared)


def test_the_p_value_is_the_share_of_all_permutations_whose_studentised_gap_is_as_large() -> None:
    values = np.array([0.9, 0.7, 0.8, 0.1, 0.4, 0.75, 0.2])
    panel = panel_of(values[:, None], [0, 0, 0, 1, 1, 1, 1])
    (scores,) = panel_scores(panel, "ab", rng(), DRAWS)
    sizes = [
        abs(plain_studentised(values[list(chosen)], np.delete(values, chosen))[0])
        for chosen in itertools.combinations(range(7), 3)
    ]
    observed, standard_error = plain_studentised(values[:3], values[3:])
    np.testing.assert_allclose(panel.studentised()[:, 0], [observed, -observed])
    exact = sum(size >= abs(observed) - 1e-9 for size in sizes) / len(sizes)
    assert scores.disparity.p_value == pytest.approx(exact, abs=5 * math.sqrt(exact / DRAWS))
    assert scores.disparity.null_mean == pytest.approx(standard_error * np.mean(sizes), rel=0.02)


def test_the_variance_over_several_periods_sums_a_users_periods_before_squaring() -> None:
    """Each user tested in all of four periods with the same value: as if there were one period."""
    values, codes = values_like_ndcg(rng(3), 40), [0] * 25 + [1] * 15
    once, often = panel_of(values, codes), panel_of(np.repeat(values, 4, axis=1), codes)
    for one, other in zip(once.sides, often.sides, strict=True):
        for field in ("n_users", "mean", "variance"):
            np.testing.assert_allclose(getattr(one, field), getattr(other, field))
    np.testing.assert_allclose(once.permuted(rng(), 30)[1], often.permuted(rng(), 30)[1])


@pytest.mark.parametrize("n_groups", [2, 3])
def test_the_standard_error_over_several_periods_is_what_the_bootstrap_varies_by(n_groups: int) -> None:
    values = values_like_ndcg(rng(3), 300, 3)
    values[rng(4).random(values.shape) < 0.4] = NAN
    panel = panel_of(values, [u % n_groups for u in range(300)], n_groups)
    own, rest, _ = panel.sides
    expected = np.sqrt(own.variance / own.n_users + rest.variance / rest.n_users)
    np.testing.assert_allclose(panel.bootstrapped(rng(5), 4000).gap.std(axis=0), expected, rtol=0.06)
    np.testing.assert_allclose(panel.permuted(rng(6), 4000)[1].std(axis=0), 1.0, rtol=0.06)


def test_a_group_that_is_never_compared_is_left_out_without_a_warning() -> None:
    values = values_like_ndcg(rng(), 45, 2)
    panel = panel_of(values, [0] * 20 + [1] * 20 + [2] * 5, n_groups=3, min_size=8)
    with np.errstate(all="raise"):
        (scores,) = panel_scores(panel, "abc", rng(), 20)
    assert (list(scores.gaps), scores.by_group["c"]) == (["a", "b"], None)


def test_a_gap_of_zero_is_no_more_than_chance() -> None:
    """One user of group b, tested in the second period alone, as only two others are: most deals
    give group b to somebody who was not there then, and tell nothing."""
    values = [[NAN, 0.5], [NAN, 0.4], [NAN, 0.6]] + [[0.5, NAN]] * 97
    (scores,) = panel_scores(panel_of(values, [1] + [0] * 99), "ab", rng(), 999)
    assert scores.disparity.value == 0
    assert scores.disparity.p_value == 1


def test_the_generator_decides_what_is_drawn() -> None:
    panel = panel_of(values_like_ndcg(rng(), 30), [0, 1] * 15)
    first, again, other = (panel_scores(panel, "ab", rng(seed), 50) for seed in (1, 1, 2))
    assert first == again != other
    assert [score.mean for score in first] == [score.mean for score in other]


# ── how often they are right ─────────────────────────────────────────────────────────────

ADVANTAGED: Law = ((1.5, 2.0), (1.2, 2.4))
OTHERS: Law = ((1.2, 2.4), (1.0, 2.5))
"""Of a group: how often a user is served at all ~ Beta, for good; how well, where it is ~ Beta."""
LARGE, SMALL = (300, 80), (20, 200)
N_SETS, AT_ONCE = 2000, 50


def true_value(law: Law) -> float:
    """E[served] · E[how well]"""
    (a, b), (c, d) = law
    return a / (a + b) * c / (c + d)


def sample(
    generator: np.random.Generator, n_users: tuple[int, int], laws: tuple[Law, Law], periods: list[float]
) -> np.ndarray:
    """Values like NDCG of users who come back; each of the metrics is a data set of its own."""
    parts = []
    for (served, how_well), n in zip(laws, n_users, strict=True):
        shape = (n, len(periods), AT_ONCE)
        is_served = generator.random(shape) < generator.beta(*served, (n, 1, AT_ONCE))
        parts.append(is_served * generator.beta(*how_well, shape) * np.array(periods)[:, None])
    return np.concatenate(parts)


def codes_of(n_users: tuple[int, int]) -> list[int]:
    return [0] * n_users[0] + [1] * n_users[1]


def who_was_there(generator: np.random.Generator, n_users: int, n_periods: int) -> np.ndarray:
    """(users, periods): six in ten, and everyone once."""
    is_defined = generator.random((n_users, n_periods)) < 0.6
    is_defined[np.arange(n_users), generator.integers(n_periods, size=n_users)] = True
    return is_defined


@pytest.mark.slow
@pytest.mark.parametrize(
    "n_users", [pytest.param(LARGE, id="300 and 80"), pytest.param(SMALL, id="20 and 200", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("periods", [[1.0], [1.0, 0.9, 1.1]], ids=["one period", "three periods"])
def test_intervals_cover_the_truth_and_tests_reject_it_as_often_as_they_say(
    n_users: tuple[int, int], periods: list[float]
) -> None:
    """`periods` is how good each is for everyone. A standard error is half a percent."""
    truth = (true_value(ADVANTAGED) - true_value(OTHERS)) * float(np.mean(periods))
    generator, covered, rejected = rng(0), 0, 0
    for _ in range(N_SETS // AT_ONCE):
        unequal, equal = (sample(generator, n_users, (law, OTHERS), periods) for law in (ADVANTAGED, OTHERS))
        is_defined = who_was_there(generator, sum(n_users), len(periods))[:, :, None]
        values = np.where(is_defined, np.concatenate([unequal, equal], axis=2), NAN)
        scores = panel_scores(panel_of(values, codes_of(n_users)), "ab", generator, 399)
        intervals = [score.disparity.interval for score in scores[:AT_ONCE]]
        covered += sum(low <= truth <= high for low, high in intervals)
        rejected += sum(not score.disparity.may_be_chance for score in scores[AT_ONCE:])
    assert 0.92 <= covered / N_SETS <= 0.98
    assert 0.03 <= rejected / N_SETS <= 0.07


@pytest.mark.slow
def test_a_group_that_is_there_less_often_is_not_found_to_be_treated_otherwise() -> None:
    """Nine in ten of one group in each period, one in three of the other, and no disparity."""
    generator, found = rng(0), []
    for _ in range(10):
        values = sample(generator, LARGE, (OTHERS, OTHERS), [1.0] * 4)
        values[generator.random(values.shape[:2]) > np.repeat([[0.9], [0.35]], LARGE, axis=0)] = NAN
        found += panel_scores(panel_of(values, codes_of(LARGE)), "ab", generator, 399)
    intervals = [scores.disparity.interval for scores in found]
    assert np.mean([low <= 0 <= high for low, high in intervals]) >= 0.92
    assert np.mean([not scores.disparity.may_be_chance for scores in found]) <= 0.09
    assert np.mean([not scores.largest_gap.may_be_chance for scores in found]) <= 0.09


@pytest.mark.slow
@pytest.mark.parametrize("n_periods", [1, 4])
@pytest.mark.parametrize("wide_is_small", [True, False])
def test_groups_of_unequal_spread_and_equal_means_are_rarely_told_apart(wide_is_small: bool, n_periods: int) -> None:
    """Variances 25 : 1 and 800 users against 100; permuted gaps that are not studentised reject 47 % and 0 %."""
    generator, n, shape = rng(0), 600, (n_periods, 60)
    laws = [(37.0, 37.0), (1.0, 1.0)] if wide_is_small else [(1.0, 1.0), (37.0, 37.0)]
    scores, sizes = [], (800, 100)
    for _ in range(n // 60):
        parts = [generator.beta(*law, (size, *shape)) for law, size in zip(laws, sizes, strict=True)]
        values = np.concatenate(parts)
        if n_periods > 1:
            values[generator.random(values.shape[:2]) < 0.5] = NAN
            values = np.where(np.isnan(values).all(axis=1, keepdims=True), 0.5, values)
        scores += panel_scores(panel_of(values, codes_of(sizes)), "ab", generator, 199)
    assert 0.025 <= np.mean([not score.disparity.may_be_chance for score in scores]) <= 0.08
    assert np.mean([score.disparity.interval[0] <= 0 <= score.disparity.interval[1] for score in scores]) >= 0.92


@pytest.mark.slow
@pytest.mark.parametrize("n_small", [20, 30, 50])
def test_intervals_cover_for_a_small_group_with_a_sparse_metric(n_small: int) -> None:
    """86 % zeros: bootstrap percentiles cover 78, 87 and 90 %."""
    generator, sizes = rng(0), (1000, n_small)
    values = np.where(
        generator.random((sum(sizes), 1, 1000)) < 0.14, generator.beta(0.5, 2, (sum(sizes), 1, 1000)), 0.0
    )
    scores = panel_scores(panel_of(values, codes_of(sizes)), "ab", generator, 1)
    assert np.mean([score.disparity.interval[0] <= 0 <= score.disparity.interval[1] for score in scores]) >= 0.92


def test_a_disparity_that_is_there_is_found() -> None:
    values = sample(rng(), LARGE, (((6.0, 2.0), (3.0, 2.0)), OTHERS), [1.0, 1.0])
    found = panel_scores(panel_of(values, codes_of(LARGE)), "ab", rng(), 399)
    assert all(scores.disparity.p_value == pytest.approx(1 / 400) for scores in found)
