"""The stream is what it says it is: reproducible, causal, and as unequal as it was asked to be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairstream import ConfigurationError, SyntheticStream, read_events, synthetic_stream

SMALL = {"n_users": 60, "n_items": 40, "n_events": 800}
CROWD = {"n_users": 3000, "n_items": 20, "n_events": 100, "disadvantaged_share": 0.5}

KNOBS = st.fixed_dictionaries(
    {
        "n_users": st.integers(2, 40),
        "n_items": st.integers(10, 40),
        "n_events": st.integers(100, 400),
        "n_periods": st.integers(1, 12),
        "pretrain_ratio": st.floats(0.05, 0.95),
        "disadvantaged_share": st.floats(0.05, 0.95),
        "disparity": st.floats(0, 1),
        "drift": st.floats(0, 1.5),
        "new_user_share": st.floats(0, 0.9),
        "new_item_share": st.floats(0, 0.9),
        "sharpness": st.floats(0.1, 20),
        "seed": st.integers(0, 2**32),
    }
)


def columns(stream: SyntheticStream) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return tuple(stream.events[name].to_numpy() for name in ("user_id", "item_id", "time"))


def angles(stream: SyntheticStream) -> np.ndarray:
    """(n_periods, n_users) by how much each taste turns from one period to the next."""
    cosines = (stream.user_taste[1:] * stream.user_taste[:-1]).sum(axis=2)
    return np.arccos(np.clip(cosines, -1, 1))


@given(KNOBS)
def test_whatever_the_knobs_the_stream_is_a_stream(knobs: dict[str, Any]) -> None:
    stream = synthetic_stream(**knobs)
    users, items, times = columns(stream)
    period = np.floor(times).astype(int)
    assert 0 < len(users) <= knobs["n_events"]
    assert len(np.unique(users * knobs["n_items"] + items)) == len(users)
    assert (np.diff(times) >= 0).all()
    assert period.max() <= knobs["n_periods"]
    assert (stream.user_arrival[users] <= period).all()
    assert (stream.item_arrival[items] <= period).all()
    assert 0 <= users.min() <= users.max() < knobs["n_users"]
    assert 0 <= items.min() <= items.max() < knobs["n_items"]
    assert set(stream.user_group.tolist()) == {0, 1}
    assert np.allclose(np.linalg.norm(stream.user_taste, axis=2), 1)
    assert np.allclose(np.linalg.norm(stream.item_position, axis=1), 1)


@given(st.integers(0, 1000))
def test_one_seed_one_stream(seed: int) -> None:
    one, again, other = (synthetic_stream(**SMALL, seed=at) for at in (seed, seed, seed + 1))
    assert one.events.equals(again.events)
    assert one.users.equals(again.users)
    assert np.array_equal(one.user_taste, again.user_taste)
    assert not one.events.equals(other.events)


@given(st.integers(1, 12), st.floats(0.1, 0.9), st.integers(0, 100))
def test_each_period_has_the_events_that_were_asked_for(n_periods: int, pretrain_ratio: float, seed: int) -> None:
    stream = synthetic_stream(**SMALL, n_periods=n_periods, pretrain_ratio=pretrain_ratio, seed=seed)
    counts = np.bincount(np.floor(columns(stream)[2]).astype(int), minlength=n_periods + 1)
    assert counts.sum() == SMALL["n_events"]
    assert counts[0] == round(pretrain_ratio * SMALL["n_events"])
    assert counts[1:].max() - counts[1:].min() <= 1


def test_users_who_run_out_of_items_make_the_stream_shorter() -> None:
    stream = synthetic_stream(n_users=5, n_items=10, n_events=1000)
    users, _, _ = columns(stream)
    assert len(users) <= 5 * 10
    assert np.bincount(users).max() <= 10


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.8])
def test_the_disadvantaged_are_as_many_as_asked_for(share: float) -> None:
    n_users = 4000
    stream = synthetic_stream(n_users=n_users, n_items=10, n_events=100, disadvantaged_share=share)
    assert abs(stream.user_group.mean() - share) < 4 * np.sqrt(share * (1 - share) / n_users)
    names = np.array(stream.users["community"].to_pylist())
    assert ((names == "minority") == (stream.user_group == 1)).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("share", [0.0, 0.2, 0.7])
def test_newcomers_are_as_many_as_asked_for(share: float) -> None:
    n = 2000
    stream = synthetic_stream(
        n_users=n, n_items=n // 10, n_events=100, n_periods=5, new_user_share=share, new_item_share=share
    )
    assert abs((stream.user_arrival > 0).mean() - share) < 4 * np.sqrt(0.25 / n) + 2 / n
    assert abs((stream.item_arrival > 0).mean() - share) < 4 * np.sqrt(0.25 / (n // 10)) + 20 / n
    assert stream.user_arrival.max() <= 5
    assert stream.item_arrival.max() <= 5


def test_without_drift_tastes_stand_still() -> None:
    still = synthetic_stream(**SMALL, drift=0.0)
    assert (still.user_taste == still.user_taste[0]).all()
    moving = synthetic_stream(**SMALL, drift=0.1)
    assert (angles(moving) > 0).all()


def test_more_drift_turns_tastes_further() -> None:
    turned = [angles(synthetic_stream(**SMALL, drift=drift, disparity=0.0)).mean() for drift in (0.05, 0.2, 0.8)]
    assert turned[0] < turned[1] < turned[2]


class TestDisparity:
    @staticmethod
    def by_group(stream: SyntheticStream, values: np.ndarray) -> np.ndarray:
        return np.stack([values[..., stream.user_group == code].mean(axis=-1) for code in (0, 1)])

    @pytest.mark.parametrize("seed", range(3))
    def test_without_disparity_the_groups_drift_equally_fast(self, seed: int) -> None:
        stream = synthetic_stream(**CROWD, disparity=0.0, seed=seed)
        advantaged, disadvantaged = self.by_group(stream, angles(stream))
        assert np.allclose(advantaged, disadvantaged, rtol=0.1)

    @pytest.mark.parametrize("seed", range(3))
    def test_without_disparity_the_groups_have_the_same_taste_in_every_period(self, seed: int) -> None:
        stream = synthetic_stream(**CROWD, disparity=0.0, seed=seed)
        for taste in stream.user_taste:
            advantaged, disadvantaged = self.by_group(stream, taste.T)
            assert np.linalg.norm(advantaged - disadvantaged) < 0.1

    def test_without_disparity_both_groups_care_for_the_popular_alike(self) -> None:
        assert np.allclose(self.popularity_slope(synthetic_stream(**CROWD, disparity=0.0)), 1)

    def test_with_disparity_the_smaller_group_cares_less_for_the_popular(self) -> None:
        stream = synthetic_stream(**CROWD, disparity=0.6)
        slope = self.popularity_slope(stream)
        assert np.allclose(slope[stream.user_group == 0], 1)
        assert np.allclose(slope[stream.user_group == 1], 0.4)

    @staticmethod
    def popularity_slope(stream: SyntheticStream) -> np.ndarray:
        """(n_users,) w_g, what is left of the preference when taste is taken off, per unit of popularity."""
        config, there = stream.config, stream.item_arrival == 0
        taste = config.sharpness * stream.user_taste[0] @ stream.item_position.T
        return ((stream.preference(0) - taste) / stream.item_popularity)[:, there].mean(axis=1)

    @pytest.mark.parametrize("seed", range(3))
    def test_with_disparity_the_smaller_group_drifts_faster_and_likes_other_things(self, seed: int) -> None:
        stream = synthetic_stream(**CROWD, disparity=0.8, seed=seed)
        speed = self.by_group(stream, angles(stream))
        assert (speed[1] > speed[0] * 1.2).all()
        advantaged, disadvantaged = self.by_group(stream, stream.user_taste[0].T)
        assert np.linalg.norm(advantaged - disadvantaged) > 0.3


def test_what_is_chosen_is_liked_better_than_what_is_there(stream: SyntheticStream) -> None:
    users, items, times = columns(stream)
    period = np.floor(times).astype(int)
    for t in range(stream.config.n_periods + 1):
        at = period == t
        preference = stream.preference(t)
        chosen = preference[users[at], items[at]]
        there = preference[users[at]][:, stream.item_arrival <= t]
        assert np.isfinite(chosen).all()
        assert np.isfinite(there).all()
        assert chosen.mean() > there.mean() + 0.5


def test_items_that_are_not_there_yet_cannot_be_preferred(stream: SyntheticStream) -> None:
    for t in range(stream.config.n_periods + 1):
        assert (np.isneginf(stream.preference(t)) == (stream.item_arrival > t)[None, :]).all()


def test_the_stream_reads_as_a_log_without_a_note(stream: SyntheticStream) -> None:
    log = read_events(stream.events, users=stream.users)
    assert log.notes == ()
    assert log.require_groups().names == ("majority", "minority")
    assert len(log) == stream.config.n_events


@pytest.mark.parametrize(
    ("knob", "value", "expected"),
    [
        ("n_users", 1, ">= 2"),
        ("n_items", 9, ">= 10"),
        ("n_events", 99, ">= 100"),
        ("n_periods", 0, ">= 1"),
        ("pretrain_ratio", 0.0, "> 0"),
        ("pretrain_ratio", 1.0, "< 1"),
        ("disadvantaged_share", 0, "> 0"),
        ("disadvantaged_share", 1, "< 1"),
        ("disparity", -0.1, ">= 0"),
        ("disparity", 1.5, "<= 1"),
        ("drift", -1, ">= 0"),
        ("drift", 2, "<= 1.5"),
        ("new_user_share", 1, "< 1"),
        ("new_item_share", -0.5, ">= 0"),
        ("sharpness", 0, "> 0"),
        ("sharpness", float("inf"), "finite"),
        ("drift", float("nan"), "finite"),
        ("seed", -1, ">= 0"),
    ],
)
def test_a_knob_out_of_range_is_refused_in_one_sentence(knob: str, value: float, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        synthetic_stream(**{knob: value})
    message = str(caught.value)
    assert message.startswith(f"{knob} must be ")
    assert expected in message
    assert f"got {value!r}" in message
    assert "\n" not in message


def test_an_unknown_knob_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigurationError, match=r"\Avolume is not an option; the options are [^\n]*sharpness[^\n]*\Z"):
        synthetic_stream(volume=11)
