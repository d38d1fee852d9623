"""Why a group is behind: the parts add up, and say what is true in worlds where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream as fs
from fairstream.errors import ConfigurationError, DataError
from fairstream.evaluation import GapExplanation, UserResults, seed_certificate
from fairstream.evaluation.by_group import GroupScores
from fairstream.evaluation.gap import compose, explain_tests, kitagawa
from fairstream.evaluation.user_results import score_periods
from fairstream.models import NO_LEVEL, Level
from fairstream.models.levels import ALONE

METRIC = "quality@1"
LEVELS = (NO_LEVEL, Level("A", 2.0), Level("A", ALONE), Level("B", 2.0), Level("B", ALONE))
Array = np.ndarray


def period_of(values: Array, codes: Array, strata: Array | None, levels: Array | None = None) -> UserResults:
    """One period in which each user has this value as served, and those of `levels` (U, L)."""
    n = len(values)
    return UserResults(
        np.arange(n),
        codes.astype(np.int16),
        np.zeros(n, np.bool_),
        np.zeros((n, 1), np.bool_),
        np.ones(n, np.int64),
        {METRIC: values},
        levels=() if levels is None else LEVELS,
        level_values=levels,
        strata=None if strata is None else strata.astype(np.int16),
    )


def explained(
    *tested: UserResults, names: tuple[str, ...] = ("A", "B"), has_advantaged: bool = True, n: int = 200
) -> GapExplanation:
    score = scored(*tested, names=names, has_advantaged=has_advantaged, n=n)
    return explain_tests(score, tested, METRIC, names, min_size=2, n_resamples=n, attribute="kind")


def scored(
    *tested: UserResults, names: tuple[str, ...] = ("A", "B"), has_advantaged: bool = True, n: int = 200
) -> GroupScores:
    rng = np.random.default_rng(0)
    return score_periods(tested, [METRIC], names, 2, rng, n, has_advantaged=has_advantaged)[0][METRIC]


def world(seed: int = 0, n: int = 400, gains: tuple[float, float] = (0.0, 0.0)) -> UserResults:
    """A is better served; at the level “B × 2” the groups gain this much."""
    rng = np.random.default_rng(seed)
    codes, strata = np.repeat([0, 1], n), rng.integers(0, 4, 2 * n)
    values = 0.3 + 0.1 * (codes == 0) + 0.02 * strata + rng.normal(0, 0.02, 2 * n)
    levels = np.repeat(values[:, None], len(LEVELS), axis=1)
    levels[:, 3] += np.array(gains)[codes] + rng.normal(0, 0.001, 2 * n)
    return period_of(values, codes, strata, levels)


cells = st.lists(
    st.tuples(st.integers(0, 9), st.floats(0, 1), st.integers(0, 9), st.floats(0, 1)), min_size=1, max_size=6
).filter(lambda rows: sum(row[0] for row in rows) > 0 and sum(row[2] for row in rows) > 0)


@given(cells)
def test_people_and_treatment_add_up_to_the_gap(rows: list[tuple[int, float, int, float]]) -> None:
    n_a, q_a, n_b, q_b = np.array(rows, np.float64).T
    people, like = kitagawa(n_a, q_a, n_b, q_b)
    assert float(people + like) == pytest.approx(n_a @ q_a / n_a.sum() - n_b @ q_b / n_b.sum(), abs=1e-12)


@given(cells)
def test_swapping_the_groups_turns_both_parts_around(rows: list[tuple[int, float, int, float]]) -> None:
    n_a, q_a, n_b, q_b = np.array(rows, np.float64).T
    there, back = kitagawa(n_a, q_a, n_b, q_b), kitagawa(n_b, q_b, n_a, q_a)
    np.testing.assert_allclose(there, [-back[0], -back[1]], atol=1e-12)


def test_where_groups_differ_only_in_activity_that_explains_the_whole_gap() -> None:
    """Users of A have long histories, and every user with the same history gets the same."""
    strata = np.concatenate([np.repeat([1, 2], [20, 80]), np.repeat([1, 2], [80, 20])])
    codes = np.repeat([0, 1], 100)
    values = np.where(strata == 2, 0.4, 0.2)
    composition = compose([period_of(values, codes, strata)], METRIC, 1, 2, np.random.default_rng(0), 200)
    assert composition is not None
    assert composition.gap == pytest.approx(0.12)
    assert composition.people.value == pytest.approx(0.12)
    assert composition.people.low > 0.05
    assert composition.like_for_like.value == pytest.approx(0.0)
    assert composition.like_for_like.interval == pytest.approx((0.0, 0.0))


def test_where_like_people_are_treated_differently_activity_explains_nothing() -> None:
    strata, codes = np.tile([0, 1, 2, 3], 50), np.repeat([0, 1], 100)
    composition = compose([period_of(0.3 - 0.1 * codes, codes, strata)], METRIC, 1, 2)
    assert composition is not None
    assert composition.people.value == pytest.approx(0.0)
    assert composition.like_for_like.value == pytest.approx(0.1)
    assert composition.people.interval is None


def test_over_several_periods_the_periods_are_averaged_and_one_without_the_group_is_left_out() -> None:
    first, second = world(0), world(1)
    second = second.where(np.arange(800) % 5 < 2 + (second.codes == 1))
    alone = world(2).where(world(2).codes == 0)
    gap = explained(first, second, alone)
    assert gap.composition is not None
    assert gap.composition.gap == pytest.approx(gap.gap.value)
    parts = [compose([each], METRIC, 1, 2) for each in (first, second)]
    assert gap.composition.people.value == pytest.approx(np.mean([part.people.value for part in parts if part]))


def test_the_gap_splits_as_the_scores_say_whoever_is_declared_advantaged() -> None:
    tested = world(gains=(0.0, 0.05))
    gap, score = explained(tested), scored(tested)
    assert (gap.behind, gap.rest) == ("B", "A")
    assert gap.avoidable.value == pytest.approx(score.avoidable_gap)
    assert gap.inherent + gap.avoidable.value == pytest.approx(gap.gap.value)
    assert gap.avoidable.value == pytest.approx(0.05, abs=0.002)
    assert gap.groups["B"].regret == score.regret["B"]
    flipped = replace(tested, codes=(1 - tested.codes).astype(np.int16))
    mirrored = explained(flipped, names=("B", "A"))
    assert (mirrored.behind, mirrored.rest) == ("B", "A")
    assert mirrored.avoidable.value == pytest.approx(0.05, abs=0.002)
    assert mirrored.avoidable.low == pytest.approx(gap.avoidable.low, abs=0.002)
    assert mirrored.inherent == pytest.approx(gap.inherent, abs=0.002)


def test_of_three_groups_the_one_furthest_behind_is_split_even_if_another_is_declared_advantaged() -> None:
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 200)
    values = np.array([0.5, 0.4, 0.3])[codes] + rng.normal(0, 0.02, 600)
    levels = np.repeat(values[:, None], len(LEVELS), axis=1)
    levels[codes == 2, 1] += 0.05
    tested = period_of(values, codes, codes * 0, levels)
    gap = explained(tested, names=("A", "B", "C"))
    assert (gap.behind, gap.rest) == ("C", "the rest")
    assert gap.gap.value == pytest.approx(0.15, abs=0.01)
    assert gap.avoidable.value == pytest.approx(0.05, abs=0.002)
    assert gap.inherent == pytest.approx(gap.gap.value - gap.avoidable.value)
    assert gap.composition is not None
    assert gap.composition.gap == pytest.approx(gap.gap.value)


def test_sentences_name_what_can_be_gained_and_stay_silent_on_chance() -> None:
    words = " ".join(explained(world(gains=(0.0, 0.05))).sentences())
    assert "B is 0.1" in words
    assert "can be gained, as follows" in words
    assert "lists in which events of B count 2 times in popularity" in words
    nothing = " ".join(explained(world()).sentences())
    assert "No group could be served better by more than chance" in nothing
    assert "would prefer" not in nothing


def test_a_part_that_can_be_gained_is_followed_by_how_even_if_it_may_be_chance() -> None:
    gap = explained(world(gains=(0.0, 0.05)))
    outlook = replace(gap.groups["B"], regret=replace(gap.groups["B"].regret, interval=(0.0, 0.3)))
    words = replace(gap, groups={**gap.groups, "B": outlook}).sentences()
    (place,) = (at for at, sentence in enumerate(words) if "can be gained, as follows" in sentence)
    assert words[place + 1].startswith("B could get ")
    assert words[place + 1].endswith(", which may be chance.")


def test_a_group_that_gains_with_the_others_best_lists_is_said_to_prefer_them() -> None:
    tested = world()
    assert tested.level_values is not None
    levels = tested.level_values.copy()
    levels[tested.codes == 0, 3] += 0.05  # best for A
    levels[tested.codes == 1, 3] += 0.02  # B gains there …
    levels[tested.codes == 1, 1] += 0.04  # … and more elsewhere
    levels[tested.codes == 1, 4] -= 0.03  # alone it loses
    gap = explained(replace(tested, level_values=levels))
    envy = next(trial for trial in gap.groups["B"].trials if trial.kind == "best for")
    assert envy.level == "B × 2"
    assert envy.change.value == pytest.approx(0.02, abs=1e-3)
    assert envy.change.low > 0.015
    words = " ".join(gap.sentences())
    assert "B would prefer the lists that are best for A (+0.0199)" in words
    assert "B profits from the others: popularity among its own users costs it −0.03" in words


def test_an_interval_of_a_change_covers_the_truth() -> None:
    """The level adds 0.01 with noise."""
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        codes, values = np.repeat([0, 1], 60), rng.random(120)
        levels = np.repeat(values[:, None], len(LEVELS), axis=1)
        levels[:, 4] += 0.01 + rng.normal(0, 0.1, 120)
        gap = explained(period_of(values, codes, codes * 0, levels), n=0)
        alone = next(t for t in gap.groups["B"].trials if t.kind == "alone")
        covered += alone.change.low <= 0.01 <= alone.change.high
    assert 180 <= covered <= 199


@pytest.mark.parametrize("what", ["no groups", "one group", "no levels"])
def test_what_cannot_be_explained_is_one_sentence(what: str) -> None:
    tested, names = world(), tuple[str, ...](("A", "B"))
    if what == "no groups":
        tested, names = replace(tested, codes=np.full(len(tested.codes), -1, np.int16)), ()
    elif what == "one group":
        tested = tested.where(tested.codes == 0)
    else:
        tested = replace(tested, levels=(), level_values=None)
    says = {"no groups": "there are no groups", "one group": r"is one \(A\)", "no levels": "not tested at levels"}
    with pytest.raises(DataError, match=says[what]):
        explained(tested, names=names)


def test_tables_json_and_chart() -> None:
    gap = explained(world(gains=(0.0, 0.05)))
    assert gap.to_arrow().column("group").to_pylist() == ["B", "A"]
    stored = gap.to_dict()
    assert stored["groups"]["B"]["trials"]
    assert stored["sentences"] == gap.sentences()
    assert "regret" in repr(gap)
    rows = gap.plot().to_dict()["layer"]
    assert len(rows) == 3  # bars, intervals, what is attainable


@pytest.fixture(scope="module")
def updated() -> fs.FairRecommender:
    stream = fs.synthetic_stream(n_users=600, n_items=300, n_events=18_000, seed=7)
    rec = fs.FairRecommender("popularity").fit(stream.events.slice(0, 9_000), users=stream.users, group="community")
    for start in (9_000, 12_000, 15_000):
        rec.update(stream.events.slice(start, 3_000), users=stream.users)
    return rec


def test_a_recommender_explains_the_gap_of_its_replayed_periods(updated: fs.FairRecommender) -> None:
    gap, regrets = updated.explain_gap(), updated.regret()
    assert gap.behind == "minority"
    for name, group in gap.groups.items():
        assert group.served == pytest.approx(regrets[name].served)
        assert group.regret.value == pytest.approx(regrets[name].regret)
    served = {name: group.served for name, group in gap.groups.items()}
    assert gap.gap.value == pytest.approx(served["majority"] - served["minority"])
    assert gap.inherent + gap.avoidable.value == pytest.approx(gap.gap.value)
    assert gap.composition is not None
    assert gap.composition.people.interval is None
    periods = updated.state.replays["periods"]
    means = [{name: group["mean"] for name, group in period["groups"].items()} for period in periods]
    assert gap.composition.gap == pytest.approx(np.mean([each["majority"] - each["minority"] for each in means]))


def test_a_recommender_without_a_replay_says_so() -> None:
    stream = fs.synthetic_stream(n_users=100, n_items=60, n_events=2_000, seed=1)
    rec = fs.FairRecommender("popularity").fit(stream.events, users=stream.users, group="community")
    with pytest.raises(DataError, match="no gap can be explained yet"):
        rec.explain_gap()


@given(st.lists(st.floats(0, 1), min_size=2, max_size=9))
def test_the_seed_certificate_is_the_mean_rise_of_the_minimum_without_one_seed(gaps: list[float]) -> None:
    rises = [min(gaps[:i] + gaps[i + 1 :]) - min(gaps) for i in range(len(gaps))]
    assert seed_certificate(gaps) == pytest.approx(np.mean(rises), abs=1e-12)


def test_the_seed_certificate_bounds_the_next_improvement_on_average() -> None:
    draws = np.random.default_rng(0).exponential(1.0, (20_000, 6))
    bound = np.mean([seed_certificate(row[:5].tolist()) for row in draws[:5_000]])
    improvement = np.mean(draws[:, :5].min(axis=1) - draws.min(axis=1))
    assert improvement <= bound
    assert bound == pytest.approx(1 / 4 - 1 / 5, rel=0.05)  # E min of n exponentials is 1 / n
    with pytest.raises(ConfigurationError, match="two seeds"):
        seed_certificate([0.1])
