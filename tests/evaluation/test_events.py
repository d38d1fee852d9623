"""The task `event`: a list at each event, from everything before it, against lists made one event at a time."""

from __future__ import annotations

from collections import defaultdict
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fairstream.data import Groups, History
from fairstream.errors import ConfigurationError
from fairstream.evaluation import DEFAULT_METRICS, Evaluation, Evaluator, Lists, Truth
from fairstream.evaluation.requests import Requests
from fairstream.experiments import protocol_of
from fairstream.models import Context, ContextBuilder, ItemTable, MFScorer, PopularityScorer, Scorer
from fairstream.paper.protocol import PaperEvaluator
from fairstream.paper.rerank import Rerank
from fairstream.randomness import Randomness

N_USERS, N_ITEMS, K = 12, 14, 4


class Reader(Scorer):
    """Scores an item by the user's latest items; of few values, so that there are ties."""

    history_length = 3

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.item = ItemTable(n_items, 1)
        self.item.weight.data = torch.arange(float(n_items))[:, None]

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        assert context.history is not None
        latest = torch.where(context.history < 0, 0.0, self.item(context.history.clamp(min=0)).squeeze(-1) + 1)
        return (latest @ torch.tensor([1.0, 2.0, 5.0])[:, None] + 3 * self.item(items).squeeze(-1)) % 5


class Stream(NamedTuple):
    """Distinct (user, item) pairs in chronological order, the first `n_past` of which a model has learned."""

    users: np.ndarray
    items: np.ndarray
    n_past: int

    @property
    def past(self) -> History:
        return History.of(self.users[: self.n_past], self.items[: self.n_past])

    def had(self, at: int) -> list[int]:
        """The items that the user of this event has had before it, in order."""
        return [item for user, item in zip(self.users[:at], self.items[:at], strict=True) if user == self.users[at]]


def stream_of(pairs: np.ndarray, n_past: int) -> Stream:
    """In the rows that a vocabulary gives: in the order of first appearance."""
    users, items = (first_appearance(column) for column in np.asarray(pairs).reshape(-1, 2).T)
    return Stream(users, items, n_past)


def first_appearance(values: np.ndarray) -> np.ndarray:
    rows: dict[int, int] = {}
    return np.array([rows.setdefault(int(value), len(rows)) for value in values], dtype=np.int64)


def random_pairs(rng: np.random.Generator, n: int) -> np.ndarray:
    pairs = rng.permutation(N_USERS * N_ITEMS)[:n]
    return np.stack([pairs // N_ITEMS, pairs % N_ITEMS], axis=1)


streams = st.builds(
    lambda seed, n_past, n_next: stream_of(random_pairs(np.random.default_rng(seed), n_past + n_next), n_past),
    st.integers(0, 2**32),
    st.integers(10, 60),
    st.integers(1, 60),
)


def evaluated(model: Scorer, stream: Stream, metrics: Any = None, *, is_trained: Any = True, k: int = K) -> Evaluation:
    past = stream.past
    n = int(stream.users.max()) + 1
    groups = Groups.from_values("side", ["ab"[user % 2] for user in range(n)], advantaged="a")
    evaluator = Evaluator(min(k, past.n_items), groups, Randomness(0), metrics=metrics)
    contexts = ContextBuilder(model.history_length, past, np.full(past.n_users, is_trained))
    users, items = stream.users[stream.n_past :], stream.items[stream.n_past :]
    return evaluator.evaluate(model, users, items, history=past, contexts=contexts, t=0, task="event")


@given(streams)
def test_a_list_is_requested_at_the_time_of_its_event(stream: Stream) -> None:
    """Also if its item is unknown, so that the history has no such event, and never at a later one."""
    users, items = stream.users[stream.n_past :], stream.items[stream.n_past :]
    minutes = np.random.default_rng(0).permutation(len(users))
    contexts = ContextBuilder(3, stream.past, reads_times=True)
    requests = Requests.of_events(users, items, stream.past, contexts, 60.0 * minutes)
    expected = minutes[np.argsort(users, kind="stable")]
    some = np.arange(len(users)) % 2 == 0
    for part, times in ((requests, expected), (requests.where(some), expected[some])):
        found = part.context().times
        assert found is not None
        assert found[:, -1].tolist() == times.tolist()


def rank_by_hand(scores: np.ndarray, item: int, had: list[int]) -> float:
    """The rank of an item among those that the user has not had; an equal one is before it."""
    if item >= len(scores):
        return np.inf
    return 1 + sum(scores[other] >= scores[item] for other in range(len(scores)) if other not in (item, *had))


def ranks_by_hand(model: Scorer, stream: Stream, *, serves_strangers: bool = False) -> list[float]:
    """Of each event, one at a time: by the model, or by recent popularity where it has nothing to say."""
    past = stream.past
    n, n_items = stream.n_past, past.n_items
    recent = np.bincount(stream.items[:n], np.exp2(-np.arange(n)[::-1] / max(1.0, n / 10)), n_items)
    ranks = []
    for at in range(stream.n_past, len(stream.users)):
        had, scores = stream.had(at), recent
        readable = [item for item in had if item < n_items]
        if readable or (had and serves_strangers):
            history = torch.tensor([([-1] * 3 + readable)[-3:]])
            context = Context(history=history, n_events=torch.tensor([len(readable)]))
            user = torch.tensor([int(stream.users[at])])
            scores = model(user, torch.arange(n_items)[None], context)[0].detach().numpy()
        ranks.append(rank_by_hand(scores, int(stream.items[at]), had))
    return ranks


def values_by_hand(ranks: list[float], k: int) -> list[float]:
    return [1 / np.log2(rank + 1) if rank <= k else 0.0 for rank in ranks]


def ranks_found(stream: Stream, evaluation: Evaluation) -> list[float]:
    """The rank of each event's item in chronological order; infinity where it was missed."""
    hits = evaluation.tested.hits
    ranks = np.where(hits.any(axis=1), hits.argmax(axis=1) + 1.0, np.inf)
    in_order = np.empty_like(ranks)
    in_order[np.argsort(stream.users[stream.n_past :], kind="stable")] = ranks
    return in_order.tolist()


# ── against lists made by hand ───────────────────────────────────────────────────────────


@given(streams)
def test_each_event_is_ranked_from_everything_before_it_and_nothing_after(stream: Stream) -> None:
    model = Reader(stream.past.n_users, stream.past.n_items)
    k = min(K, stream.past.n_items)
    expected = [rank if rank <= k else np.inf for rank in ranks_by_hand(model, stream)]
    assert ranks_found(stream, evaluated(model, stream)) == expected


@given(streams)
def test_a_users_value_is_the_mean_over_the_users_events_and_the_mean_that_over_users(stream: Stream) -> None:
    past = stream.past
    model = PopularityScorer(past.n_users, past.n_items)
    model.learn(past, range(len(past)))
    values = values_by_hand(ranks_by_hand(model, stream, serves_strangers=True), min(K, past.n_items))
    of_user = defaultdict(list)
    for user, value in zip(stream.users[stream.n_past :].tolist(), values, strict=True):
        of_user[user].append(value)
    evaluation = evaluated(model, stream)
    tested = evaluation.tested
    assert tested.users.tolist() == sorted(of_user)
    assert tested.n_lists.tolist() == [len(of_user[user]) for user in sorted(of_user)]
    found = evaluation[next(iter(evaluation.metrics))]
    means = {user: float(np.mean(of_user[user])) for user in of_user}
    assert found.mean == pytest.approx(np.mean(list(means.values())))
    for name, is_group in (("a", 0), ("b", 1)):
        group = [mean for user, mean in means.items() if user % 2 == is_group]
        assert found.by_group[name] == (pytest.approx(np.mean(group)) if group else None)


def test_heavy_users_count_no_more_than_others() -> None:
    """User 0 has three events that are all found, user 1 one that is not."""
    pairs = [(0, 0), (1, 0), (2, 1), (2, 2), (2, 3), (2, 4), (0, 1), (0, 2), (0, 3), (1, 4)]
    stream = stream_of(np.array(pairs), 6)
    model = PopularityScorer(3, 5)
    model.popularity = torch.tensor([0.0, 9.0, 8.0, 7.0, 1.0], dtype=torch.float64)
    evaluation = evaluated(model, stream, k=1)
    assert evaluation["ndcg@1"].mean == 0.5
    assert evaluation["ndcg@1"].by_group == {"a": 1.0, "b": 0.0}
    assert evaluation.tested.n_lists.tolist() == [3, 1]


# ── point in time ────────────────────────────────────────────────────────────────────────


@given(streams, st.data())
def test_nothing_that_happens_after_an_event_changes_its_list(stream: Stream, data: st.DataObject) -> None:
    """Neither what others do later nor what the user does."""
    moment = data.draw(st.integers(stream.n_past, len(stream.users) - 1))
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    old = np.stack([stream.users, stream.items], axis=1)[:moment]
    known = {tuple(pair) for pair in old.tolist()}
    later = [pair for pair in random_pairs(rng, 60).tolist() if tuple(pair) not in known]
    other = stream_of(np.array([*old.tolist(), *later]), stream.n_past)
    model = Reader(stream.past.n_users, stream.past.n_items)
    here, there = (ranks_found(part, evaluated(model, part))[: moment - stream.n_past] for part in (stream, other))
    assert there == here


@given(streams)
def test_the_order_within_the_period_is_that_of_the_log(stream: Stream) -> None:
    """Taken backwards, the same events are other requests."""
    back = slice(None, stream.n_past - 1 if stream.n_past else None, -1)
    users, items = (np.append(part[: stream.n_past], part[back]) for part in (stream.users, stream.items))
    reversed_ = Stream(users, items, stream.n_past)
    model = Reader(stream.past.n_users, stream.past.n_items)
    k = min(K, stream.past.n_items)
    expected = [rank if rank <= k else np.inf for rank in ranks_by_hand(model, reversed_)]
    assert ranks_found(reversed_, evaluated(model, reversed_)) == expected


# ── the rules ────────────────────────────────────────────────────────────────────────────


def test_a_tie_counts_against_the_model() -> None:
    stream = stream_of(np.array([(0, item) for item in range(8)] + [(1, 0), (1, 5)]), 9)
    model = PopularityScorer(2, 8)
    model.popularity = torch.ones(8, dtype=torch.float64)
    assert ranks_found(stream, evaluated(model, stream, k=7)) == [7.0]  # item 0 was had; six others are as good
    assert ranks_found(stream, evaluated(model, stream, k=6)) == [np.inf]


def test_an_item_that_was_unknown_scores_nothing_though_it_has_come_up_since() -> None:
    stream = stream_of(np.array([(0, 0), (0, 1), (1, 0), (0, 2), (1, 2), (1, 1)]), 3)
    model = PopularityScorer(2, 2)
    model.popularity = torch.tensor([2.0, 1.0], dtype=torch.float64)
    assert ranks_found(stream, evaluated(model, stream)) == [np.inf, np.inf, 1.0]
    assert evaluated(model, stream).slices["cold_items"].n_positives == 2


def test_a_model_never_reads_an_item_that_it_has_no_row_for() -> None:
    """A newcomer whose first event is on such an item is still a stranger to the model."""
    stream = stream_of(np.array([(0, 0), (1, 1), (2, 5), (2, 0), (2, 1)]), 2)
    read = []

    class Listening(Reader):
        def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
            read.append(context.history.tolist())
            return super().forward(users, items, context)

    evaluated(Listening(2, 2), stream)
    assert read == [[[-1, -1, 0]]]  # the third event alone


@pytest.mark.parametrize("n_trained", [0, 3])
def test_who_cannot_be_scored_at_that_moment_gets_the_fallback(n_trained: int) -> None:
    """Matrix factorisation knows those it was trained on, whatever others have done since."""
    asked = []

    class Listening(MFScorer):
        def score_range(self, users: Tensor, *args: Any) -> Tensor:
            asked.extend(users.tolist())
            return super().score_range(users, *args)

    stream = stream_of(random_pairs(np.random.default_rng(1), 70), 30)
    past = stream.past
    is_trained = np.arange(past.n_users) < n_trained
    evaluated(Listening(past.n_users, past.n_items), stream, is_trained=is_trained)
    tested = stream.users[30:]
    assert sorted(asked) == sorted(tested[tested < n_trained].tolist())


def test_the_first_event_of_a_user_is_the_fallbacks_even_if_the_model_serves_strangers() -> None:
    stream = stream_of(np.array([(0, 0), (0, 1), (1, 0), (0, 2), (2, 1), (2, 2)]), 4)
    model = PopularityScorer(2, 3)
    model.popularity = torch.tensor([0.0, 9.0, 5.0], dtype=torch.float64)
    # Item 2 is the most recent one, item 1 the model's favourite.
    assert ranks_found(stream, evaluated(model, stream, k=3)) == [3.0, 1.0]


# ── the slices ───────────────────────────────────────────────────────────────────────────

LENGTHS = {"history_0": [0], "history_1": [1], "history_2_4": range(2, 5), "history_5_19": range(5, 20)}


@given(streams)
def test_slices_are_cut_by_the_length_of_the_history_at_each_event(stream: Stream) -> None:
    evaluation = evaluated(Reader(stream.past.n_users, stream.past.n_items), stream)
    ranks = ranks_found(stream, evaluation)
    lengths = [len(stream.had(at)) for at in range(stream.n_past, len(stream.users))]
    users = stream.users[stream.n_past :].tolist()
    main = next(iter(evaluation.metrics))
    for name, own in {**LENGTHS, "history_20_plus": range(20, 1000)}.items():
        of_user = defaultdict(list)
        for user, length, value in zip(users, lengths, values_by_hand(ranks, K), strict=True):
            if length in own:
                of_user[user].append(value)
        part = evaluation.slices[name]
        assert (part.n_users, part.n_positives) == (len(of_user), sum(map(len, of_user.values())))
        means = [np.mean(values) for values in of_user.values()]
        assert part[main].mean == (pytest.approx(np.mean(means)) if means else None)


def test_the_bounds_of_the_slices() -> None:
    """A user who has had one item has 24 more."""
    stream = stream_of(np.array([(1, item) for item in range(25)] + [(0, item) for item in range(25)]), 26)
    slices = evaluated(Reader(2, 25), stream).slices
    n_events = {name: part.n_positives for name, part in slices.items() if name.startswith("history")}
    expected = {"history_0": 0, "history_1": 1, "history_2_4": 3, "history_5_19": 15, "history_20_plus": 5}
    assert n_events == expected


@given(streams)
def test_newcomers_are_those_who_were_not_known_before_the_period(stream: Stream) -> None:
    evaluation = evaluated(Reader(stream.past.n_users, stream.past.n_items), stream)
    users = stream.users[stream.n_past :]
    new = users[users >= stream.past.n_users]
    assert evaluation.n_cold_users == evaluation.slices["cold_users"].n_users == len(np.unique(new))
    assert evaluation.slices["cold_users"].n_positives == len(new)
    assert evaluation.slices["warm_users"].n_positives == len(users) - len(new)
    assert evaluation.n_users == len(np.unique(users))


# ── metrics ──────────────────────────────────────────────────────────────────────────────


def test_every_metric_is_of_one_event_and_averaged_over_the_users() -> None:
    stream = stream_of(random_pairs(np.random.default_rng(4), 90), 40)
    evaluation = evaluated(Reader(stream.past.n_users, stream.past.n_items), stream)
    ranks = np.array(ranks_found(stream, evaluation))
    found = ranks <= K
    by_event = {"hit": found, "recall": found, "mrr": 1 / ranks, "precision": found / K, "f1": 2 * found / (K + 1)}
    users = stream.users[stream.n_past :]
    for name, values in by_event.items():
        means = [values[users == user].mean() for user in np.unique(users)]
        assert evaluation[f"{name}@{K}"].mean == pytest.approx(np.mean(means))


def test_a_metric_of_ones_own_sees_the_history_at_each_event_and_is_averaged_over_the_users() -> None:
    stream = stream_of(random_pairs(np.random.default_rng(2), 80), 40)
    n_items = stream.past.n_items

    def history_sum(lists: Lists, truth: Truth) -> Any:
        assert (truth.n_positives == 1).all()
        return np.array([truth.history[row].sum() for row in range(len(lists.items))], dtype=np.float64)

    def n_lists(lists: Lists, truth: Truth) -> float:
        return len(lists.items)

    model = Reader(stream.past.n_users, n_items)
    evaluation = evaluated(model, stream, {"sum": history_sum, "lists": n_lists})
    of_user = defaultdict(list)
    for at in range(stream.n_past, len(stream.users)):
        of_user[int(stream.users[at])].append(sum(item for item in stream.had(at) if item < n_items))
    expected = [np.mean(of_user[user]) for user in sorted(of_user)]
    assert evaluation.tested.values[f"sum@{K}"].tolist() == pytest.approx(expected)
    assert evaluation[f"sum@{K}"].mean == pytest.approx(np.mean(expected))
    assert evaluation[f"lists@{K}"].mean == len(stream.users) - stream.n_past
    halves = evaluation[f"lists@{K}"].by_group.values()
    assert sum(halves) == len(stream.users) - stream.n_past


@given(streams, st.data())
def test_choosing_users_keeps_all_of_their_events(stream: Stream, data: st.DataObject) -> None:
    tested = evaluated(Reader(stream.past.n_users, stream.past.n_items), stream).tested
    n = len(tested.users)
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)), dtype=np.bool_)
    metric = DEFAULT_METRICS["ndcg"]
    part = tested.where(chosen)
    assert part.values_of(metric).tolist() == tested.values_of(metric)[chosen].tolist()
    assert len(part.hits) == part.n_lists.sum()


# ── where it makes no sense ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", ["paper", "paper+ranking", "paper+ndcg+leak"])
def test_sampled_candidates_and_the_papers_ndcg_do_not_go_with_single_events(protocol: str) -> None:
    stream = stream_of(random_pairs(np.random.default_rng(0), 60), 30)
    model, past = Reader(stream.past.n_users, stream.past.n_items), stream.past
    evaluator = PaperEvaluator(
        K, Groups.from_values("g", ["a", "b"] * 6), Randomness(0), protocol=protocol_of(protocol)
    )
    with pytest.raises(ConfigurationError, match="ranks all known items and needs the true NDCG"):
        evaluator.evaluate(
            model,
            stream.users[30:],
            stream.items[30:],
            history=past,
            contexts=ContextBuilder(model.history_length, past),
            t=0,
            task="event",
        )


def test_reranking_does_not_go_with_single_events() -> None:
    stream = stream_of(random_pairs(np.random.default_rng(0), 60), 30)
    past, groups = stream.past, Groups.from_values("g", ["a", "b"] * 6, advantaged="a")
    evaluator = PaperEvaluator(K, groups, Randomness(0), rerank=Rerank(0.1))
    contexts = ContextBuilder(3, past)
    with pytest.raises(ConfigurationError, match="lists of all users together"):
        evaluator.evaluate(
            Reader(past.n_users, past.n_items),
            stream.users[30:],
            stream.items[30:],
            history=past,
            contexts=contexts,
            t=0,
            task="event",
        )
