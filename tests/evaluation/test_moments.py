"""The task `moment`: simultaneous events of a user are one request, from everything before the first of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import Groups, History
from fairstream.evaluation import Evaluation, Evaluator
from fairstream.evaluation.lists import PeriodTask
from fairstream.evaluation.requests import Requests
from fairstream.models import Context, ContextBuilder, Scorer
from fairstream.randomness import Randomness

N_USERS, N_ITEMS, K = 6, 14, 4


class Liked(Scorer):
    """Scores an item by the user's earlier items, in any order; of few values, so that there are ties."""

    history_length = 100

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        return (context.history.clamp(min=0).sum(dim=1, keepdim=True) + 3 * items).float() % 7


class First(Scorer):
    """Prefers items with low numbers."""

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return -items.float().expand(len(users), -1)


class Stream(NamedTuple):
    """Events in chronological order; a model has learned the first `n_past`."""

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray
    n_past: int = N_USERS + N_ITEMS

    def where(self, at: Any) -> Stream:
        return Stream(self.users[at], self.items[at], self.times[at], self.n_past)


def stream_of(seed: int, n_next: int, step: int) -> Stream:
    """Every user and item has learned events; the tested ones repeat items and times, and hold two unknown items."""
    rng = np.random.default_rng(seed)
    n = N_USERS + N_ITEMS
    users, items = np.r_[np.arange(n) % N_USERS], np.r_[np.arange(n) % N_ITEMS]
    users, items = np.r_[users, rng.integers(0, N_USERS + 1, n_next)], np.r_[items, rng.integers(0, 16, n_next)]
    return Stream(users, items, np.r_[np.full(n, -1), np.sort(rng.integers(0, step, n_next))])


streams = st.builds(stream_of, st.integers(0, 2**32), st.integers(1, 60), st.integers(1, 20))


def evaluated(stream: Stream, task: PeriodTask, model: Scorer | None = None, **options: Any) -> Evaluation:
    users, items, times = (part[stream.n_past :] for part in stream[:3])
    past = History.of(stream.users[: stream.n_past], stream.items[: stream.n_past])
    model = model or Liked()
    n_users = max(past.n_users, int(stream.users.max()) + 1)
    groups = Groups.from_values("side", ["ab"[user % 2] for user in range(n_users)], advantaged="a")
    evaluator = Evaluator(K, groups, Randomness(0), n_resamples=options.pop("n_resamples", 0))
    contexts = ContextBuilder(model.history_length, past, np.full(past.n_users, True))
    moments = options.pop("moments", times)
    return evaluator.evaluate(model, users, items, history=past, contexts=contexts, t=0, task=task, moments=moments)


def lists_of(evaluation: Evaluation) -> dict[int, list[Any]]:
    """User → the hits and the number of wanted items of each list, in order."""
    tested = evaluation.tested
    assert tested.n_lists is not None
    rows = list(zip(tested.hits.tolist(), tested.n_positives.tolist(), strict=True))
    ends = np.cumsum(tested.n_lists)
    return {user: rows[end - n : end] for user, end, n in zip(tested.users.tolist(), ends, tested.n_lists, strict=True)}


def everything(evaluation: Evaluation) -> Any:
    return evaluation.to_dict(), evaluation.tested.to_dict()


# ── by hand ──────────────────────────────────────────────────────────────────────────────

# Items 0 to 5 are known; user 0 has had item 0, and user 1 item 1. User 2 comes between the two.
BY_HAND = Stream(
    np.array([0, 1, 2, 2, 2, 2, 0, 1, 2, 0, 1, 0, 0]),
    np.array([0, 1, 2, 3, 4, 5, 2, 3, 0, 4, 0, 0, 5]),
    np.array([1, 1, 1, 1, 1, 1, 9, 9, 9, 9, 9, 9, 11]),
    n_past=6,
)


def test_a_small_example() -> None:
    # User 0 at time 9: wanted {2, 4} (0 is a repeat), ranked 1, 2, 3, 4, 5; at 11: wanted 5, ranked 1, 3, 5.
    first = (1 / np.log2(3) + 1 / np.log2(5)) / (1 + 1 / np.log2(3))
    second = 1 / np.log2(4)
    # User 1 at time 9: wanted {0, 3}, ranked 0, 2, 3.
    other = (1 + 1 / np.log2(4)) / (1 + 1 / np.log2(3))
    # User 2 at time 9: wanted {0}, ranked 0.
    found = evaluated(BY_HAND, "moment", First())
    assert found.values["ndcg@4"].tolist() == pytest.approx([(first + second) / 2, other, 1.0])
    assert found["recall@4"].mean == pytest.approx(1.0)
    assert found.tested.n_lists is not None
    assert found.tested.n_lists.tolist() == [2, 1, 1]
    assert found.tested.n_positives.tolist() == [2, 1, 2, 1]
    # At each event, user 0 has had item 2 before item 4, and user 1 item 3 before item 0.
    alone = evaluated(BY_HAND, "event", First())
    values = [np.mean([1 / np.log2(3), 1 / np.log2(4), second]), np.mean([1 / np.log2(4), 1.0]), 1.0]
    assert alone.values["ndcg@4"].tolist() == pytest.approx(values)


@given(streams)
def test_each_moment_is_a_list_for_one_period(stream: Stream) -> None:
    """The list of a user at a moment is that of the task `next` on these events alone, with those before as history."""
    found = lists_of(evaluated(stream, "moment", First()))
    expected: dict[int, list[Any]] = {}
    for time in np.unique(stream.times[stream.n_past :]):
        before, now = stream.where(stream.times < time), stream.where(stream.times == time)
        for user in np.unique(now.users).tolist():
            had = set(before.items[before.users == user].tolist())
            wanted = set(now.items[now.users == user].tolist()) - had
            if wanted:
                ranked = [item for item in range(N_ITEMS) if item not in had][:K]
                if user >= N_USERS and not had:  # the fallback: of two items with one score, the positive is last
                    continue
                hits = [item in wanted for item in ranked] + [False] * (K - len(ranked))
                expected.setdefault(user, []).append((hits, len(wanted)))
    newcomer = found.pop(N_USERS, [])
    assert expected.pop(N_USERS, []) == newcomer[1:]
    assert found == expected


# ── what it is equal to ──────────────────────────────────────────────────────────────────


@given(streams, st.sampled_from(["distinct", "none", "unknown"]))
def test_without_ties_it_is_the_task_event(stream: Stream, times: str) -> None:
    n = len(stream.users) - stream.n_past
    moments = {"distinct": np.arange(n) * 0.5, "none": None, "unknown": np.full(n, np.nan)}[times]
    at_events = evaluated(stream, "event", n_resamples=20)
    assert everything(evaluated(stream, "moment", moments=moments, n_resamples=20)) == everything(at_events)


def test_events_of_several_users_at_one_time_are_several_requests() -> None:
    stream = Stream(np.r_[0:6, 0:6], np.r_[0:6, (np.arange(6) + 1) % 6], np.ones(12), 6)
    assert everything(evaluated(stream, "moment")) == everything(evaluated(stream, "event"))


# ── point in time ────────────────────────────────────────────────────────────────────────


@given(streams, st.integers(0, 2**32))
def test_the_order_of_simultaneous_events_changes_nothing(stream: Stream, seed: int) -> None:
    order = np.lexsort((np.random.default_rng(seed).random(len(stream.users)), stream.times))
    order[: stream.n_past] = np.arange(stream.n_past)
    assert everything(evaluated(stream.where(order), "moment")) == everything(evaluated(stream, "moment"))


@given(streams, st.integers(0, 20))
def test_later_events_change_no_earlier_list(stream: Stream, until: int) -> None:
    early = lists_of(evaluated(stream.where(stream.times < until), "moment"))
    for user, lists in lists_of(evaluated(stream, "moment")).items():
        own = early.get(user, [])
        assert lists[: len(own)] == own


@given(streams)
def test_the_model_reads_no_event_of_the_same_moment(stream: Stream) -> None:
    """Another item at the same moment changes what is wanted, and no list."""

    class Spy(Liked):
        def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
            assert context.history is not None
            read.append([sorted(row[row >= 0].tolist()) for row in context.history])
            return super().forward(users, items, context)

    read: list[Any] = []
    evaluated(stream, "moment", Spy())
    had = set()
    for time in np.unique(stream.times[stream.n_past :]):
        before = stream.where(stream.times < time)
        for user in range(N_USERS + 1):
            items = before.items[before.users == user]
            had.add(tuple(sorted(items[items < N_ITEMS].tolist())))
    assert {tuple(row) for rows in read for row in rows} <= had


def test_a_request_has_the_time_of_its_moment() -> None:
    past, late = BY_HAND.where(slice(6)), BY_HAND.where(slice(6, None))
    history = History.of(past.users, past.items, past.times.astype(float))
    contexts = ContextBuilder(0, history)
    requests = Requests.of_events(late.users, late.items, history, contexts, late.times.astype(float), late.times)
    assert requests.seconds is not None
    assert list(zip(requests.users, requests.seconds, strict=True)) == [(0, 9.0), (0, 11.0), (1, 9.0), (2, 9.0)]
