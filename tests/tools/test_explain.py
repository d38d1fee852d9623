"""The parts of a change add up, and each says what it is there to say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream.tools.breakdown import N_LENGTHS, N_STRATA, VALUES, Breakdown
from fairstream.tools.explain import FACTORS, ComparedTests, Explanation, explain, factor_parts, mean_of_sums

SEEDS = st.integers(0, 2**32 - 1)


def random_test(rng: np.random.Generator, n_users: int, *, n_groups: int = 3, is_sparse: bool = False) -> Breakdown:
    """A test in which each user has lists in one to three strata; with `is_sparse` most values are 0."""
    owner, stratum, entries = [], [], []
    for user in range(n_users):
        newcomer = rng.integers(2)
        lengths = np.sort(rng.choice(N_LENGTHS, size=rng.integers(1, 4), replace=False))
        shares = rng.dirichlet(np.ones(len(lengths)))
        for length, share in zip(lengths, shares, strict=True):
            reachable = rng.choice([0.0, 1.0, rng.random()]) * share
            best = reachable * rng.random(2) * (rng.random(2) < (0.2 if is_sparse else 1.0))
            owner.append(user)
            stratum.append(newcomer * N_LENGTHS + length)
            entries.append([share, reachable, reachable * rng.random(), *(best * rng.random()), *best])
    users = np.sort(rng.choice(2 * n_users, size=n_users, replace=False))
    # A user's group is the same in all tests.
    codes = np.where(users % (n_groups + 1) == n_groups, -1, users % (n_groups + 1)).astype(np.int16)
    return Breakdown(users, codes, ("a@1", "b@1"), np.array(owner), np.array(stratum), np.array(entries))


def of_another_model(rng: np.random.Generator, test: Breakdown) -> Breakdown:
    """Another model on the same events: only the values differ."""
    entries = test.entries.copy()
    entries[:, VALUES:] *= rng.random((len(entries), 4))
    return replace(test, entries=entries)


def random_tests(seed: int, *, has_lever: bool = True, **options: Any) -> ComparedTests:
    rng = np.random.default_rng(seed)
    before, kept = (random_test(rng, int(rng.integers(1, 30)), **options) for _ in range(2))
    others = [of_another_model(rng, kept) for _ in range(3)]
    return ComparedTests(before, kept, *others) if has_lever else ComparedTests(before, kept, others[0])


def changes_of(explanation: Explanation) -> list[Any]:
    return [explanation.everyone, *explanation.groups.values(), *explanation.gaps.values()]


@given(seed=SEEDS, has_lever=st.booleans(), is_sparse=st.booleans())
def test_the_parts_add_up_to_the_change(seed: int, has_lever: bool, is_sparse: bool) -> None:
    tests = random_tests(seed, has_lever=has_lever, is_sparse=is_sparse)
    for m, explanation in enumerate(explain(tests, ("x", "y", "z"), 1).values()):
        for change in changes_of(explanation):
            total = sum(part.value for part in change.parts.values())
            assert change.change.value == pytest.approx(change.after - change.before, abs=1e-12)
            assert total == pytest.approx(change.change.value, abs=1e-12)
            assert ("lever" in change.parts) == has_lever
        assert explanation.everyone.before == pytest.approx(tests.before.values[:, m].mean())
        assert explanation.everyone.after == pytest.approx(tests.after.values[:, m].mean())


@given(seed=SEEDS)
def test_groups_and_gaps_are_those_of_the_users(seed: int) -> None:
    tests = random_tests(seed)
    explanation = explain(tests, ("x", "y", "z"), 2)["a@1"]
    sizes = [[(test.codes == code).sum() for code in range(3)] for test in (tests.before, tests.after)]
    judged = [code for code in range(3) if min(sizes[0][code], sizes[1][code]) >= 2]
    assert list(explanation.groups) == ["xyz"[code] for code in judged]
    for code in judged:
        mine = tests.after.codes == code
        assert explanation.groups["xyz"[code]].after == pytest.approx(tests.after.values[mine, 0].mean())
        if len(judged) > 1:
            rest = np.isin(tests.after.codes, judged) & ~mine
            gap = tests.after.values[mine, 0].mean() - tests.after.values[rest, 0].mean()
            assert explanation.gaps["xyz"[code]].after == pytest.approx(gap)
    assert bool(explanation.gaps) == (len(judged) > 1)


@given(seed=SEEDS)
def test_the_update_and_the_lever_are_differences_on_the_same_users(seed: int) -> None:
    tests = random_tests(seed)
    assert tests.after_without is not None
    assert tests.kept_without is not None
    parts = explain(tests, ("x", "y", "z"), 1)["a@1"].everyone.parts
    names = ("kept", "after", "kept_without", "after_without")
    mean = {name: getattr(tests, name).values[:, 0].mean() for name in names}
    assert parts["learning"].value == pytest.approx(mean["after_without"] - mean["kept_without"], abs=1e-12)
    assert parts["learning"].value + parts["lever"].value == pytest.approx(mean["after"] - mean["kept"], abs=1e-12)


def sums_of(share_new: float, lengths: tuple[float, float], lost: float, quality: tuple[float, float]) -> Any:
    """Sums of a test with newcomers and known users of two lengths of history each."""
    sums = np.zeros((N_STRATA, VALUES + 2))
    for is_new, share in enumerate((1 - share_new, share_new)):
        for length, part in enumerate(lengths):
            weight = 100 * share * part
            value = weight * (1 - lost) * quality[is_new]
            sums[is_new * N_LENGTHS + length + 1] = weight, weight * (1 - lost), weight * (1 - lost), value, value
    return sums


SAME = {"share_new": 0.3, "lengths": (0.5, 0.5), "lost": 0.1, "quality": (0.4, 0.2)}


@pytest.mark.parametrize(
    ("factor", "changed", "effect"),
    [
        ("new_people", {"share_new": 0.6}, 0.3 * 0.9 * (0.2 - 0.4)),
        ("histories", {"lengths": (0.2, 0.8)}, 0.0),  # both lengths are served alike here
        ("new_items", {"lost": 0.4}, -0.3 * (0.7 * 0.4 + 0.3 * 0.2)),
        ("drift", {"quality": (0.2, 0.2)}, 0.7 * 0.9 * -0.2),
    ],
)
def test_what_changes_alone_has_the_whole_part(factor: str, changed: dict[str, Any], effect: float) -> None:
    before, after = sums_of(**SAME), sums_of(**(SAME | changed))
    parts = dict(zip(FACTORS, factor_parts(before, after)[0], strict=True))
    expected = dict.fromkeys(FACTORS, 0.0) | {factor: effect}
    assert parts == pytest.approx(expected, abs=1e-12)


def test_longer_histories_have_a_part_where_they_are_served_better() -> None:
    before, after = sums_of(**SAME), sums_of(**(SAME | {"lengths": (0.2, 0.8)}))
    for sums in (before, after):  # those with longer histories get twice as much
        sums[[2, N_LENGTHS + 2], VALUES:] *= 2
    parts = dict(zip(FACTORS, factor_parts(before, after)[0], strict=True))
    difference = mean_of_sums(after)[0] - mean_of_sums(before)[0]
    assert difference > 0.05
    assert parts == pytest.approx(dict.fromkeys(FACTORS, 0.0) | {"histories": difference}, abs=1e-12)


def test_people_of_a_kind_that_was_not_there_before_are_a_matter_of_people() -> None:
    before, after = sums_of(**(SAME | {"share_new": 0.0})), sums_of(**SAME)
    parts = dict(zip(FACTORS, factor_parts(before, after)[0], strict=True))
    expected = dict.fromkeys(FACTORS, 0.0) | {"new_people": 0.3 * 0.9 * (0.2 - 0.4)}
    assert parts == pytest.approx(expected, abs=1e-12)


def test_intervals_hold_the_values_and_shrink_with_more_users() -> None:
    widths = []
    for n in (50, 800):
        rng = np.random.default_rng(0)
        before = random_test(rng, n)
        kept = random_test(rng, n)
        tests = ComparedTests(before, kept, of_another_model(rng, kept))
        change = explain(tests, ("x", "y", "z"), 1, np.random.default_rng(1), 200)["a@1"].everyone
        for estimate in (change.change, *change.parts.values()):
            assert estimate.interval is not None
            assert estimate.interval[0] <= estimate.value <= estimate.interval[1]
        assert change.change.interval is not None
        widths.append(change.change.interval[1] - change.change.interval[0])
    assert widths[1] < widths[0] / 2


def test_small_groups_and_few_newcomers_are_not_reported() -> None:
    tests = random_tests(3)
    n_users = [len(tests.before.users), len(tests.after.users)]
    explanation = explain(tests, ("x", "y", "z"), max(n_users) + 1)["a@1"]
    assert explanation.groups == {}
    assert explanation.gaps == {}
    assert list(explanation.mixes) == [""]
    assert explanation.mixes[""].newcomers == (None, None)


def test_json_and_back() -> None:
    explanation = explain(random_tests(5), ("x", "y", "z"), 1, np.random.default_rng(0), 20)["b@1"]
    again = Explanation.from_dict(explanation.to_dict())
    assert again == explanation
