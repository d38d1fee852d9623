"""The strict metrics against trec_eval and MS MARCO's script, through ir_measures, tie for tie."""

from __future__ import annotations

from collections.abc import Callable

import ir_measures
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from ir_measures import RR, P, R, Success, nDCG

from fairstream.evaluation import DEFAULT_METRICS
from fairstream.evaluation.metrics import HitCounts
from support import Given, Pairs, items_of, pairs_of, rank_all

METRICS = DEFAULT_METRICS
NOTHING = {name: [0.0] for name in METRICS}
Task = tuple[np.ndarray, Pairs, Pairs, int, int]


@st.composite
def tasks(draw: st.DrawFn) -> Task:
    """(scores, positives, seen, n_items, k): scores of at most four values, positives that cannot be found."""
    n_users, n_items = draw(st.integers(1, 6)), draw(st.integers(1, 25))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return random_task(rng, n_users, n_items, n_unknown=draw(st.integers(0, 3)), k=draw(st.integers(1, n_items + 2)))


def random_task(rng: np.random.Generator, n_users: int, n_items: int, *, n_unknown: int, k: int) -> Task:
    scores = rng.integers(0, 4, size=(n_users, n_items + n_unknown))

    def some(share: float) -> Pairs:
        return {(int(user), int(item)) for user, item in np.argwhere(rng.random(scores.shape) < share)}

    seen = {(user, item) for user, item in some(0.2) if item < n_items}
    everyone = {(user, int(rng.integers(n_items + n_unknown))) for user in range(n_users)}  # has one to find
    return scores, some(rng.uniform(0, 0.5)) | everyone, seen, n_items, k


def ours(task: Task) -> dict[str, list[float]]:
    """Metric → the value of each user."""
    scores, positives, seen, n_items, k = task
    users = np.arange(len(scores))
    model = Given(torch.from_numpy(scores).float())
    ranked = rank_all(model, users, pairs_of(positives), pairs_of(seen), n_items=n_items, k=k)
    stored = HitCounts(ranked.hits, np.diff(pairs_of(positives).lists(users)[0]))
    return {name: metric(stored, stored).tolist() for name, metric in METRICS.items()}


def theirs(task: Task) -> dict[str, list[float]]:
    """The same by the oracle, which is told of the ties' rule by the names of the documents."""
    scores, positives, seen, n_items, k = task

    def named(name: Callable[[bool, int], str]) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, float]]]:
        qrels, run = {}, {}
        for user, row in enumerate(scores.tolist()):
            wanted = items_of(positives, user)
            qrels[str(user)] = {name(True, item): 1 for item in wanted}
            candidates = set(range(n_items)) - items_of(seen, user)
            run[str(user)] = {name(item in wanted, item): float(row[item]) for item in candidates}
        return qrels, run

    # Among equals trec_eval puts the last document of the alphabet first, MS MARCO's script the first.
    trec = named(lambda is_positive, item: f"{'a' if is_positive else 'z'}{item}")
    ms_marco = named(lambda is_positive, item: f"{'z' if is_positive else 'a'}{item}")
    found: dict[str, dict[str, float]] = {}
    for measures, run in (([nDCG @ k, R @ k, P @ k, Success @ k], trec), ([RR @ k], ms_marco)):
        for metric in ir_measures.iter_calc(measures, *run):
            found.setdefault(metric.measure.NAME, {})[metric.query_id] = metric.value
    by_user = {name: [values[str(user)] for user in range(len(scores))] for name, values in found.items()}
    both = zip(by_user["P"], by_user["R"], strict=True)
    return {
        "ndcg": by_user["nDCG"],
        "recall": by_user["R"],
        "precision": by_user["P"],
        "f1": [2 * p * r / (p + r) if p + r else 0.0 for p, r in both],
        "hit": by_user["Success"],
        "mrr": by_user["RR"],
    }


def assert_the_same(task: Task) -> None:
    found, expected = ours(task), theirs(task)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, rel=0, abs=1e-9), name


def test_the_oracle_decides_ties_against_the_positives() -> None:
    """The premise of this file, on a list that can be judged in the head: item 1 comes third of three."""
    tie = (np.array([[0, 0, 0]]), {(0, 1)}, set(), 3, 3)
    assert theirs(tie)["mrr"] == [pytest.approx(1 / 3)]
    assert theirs(tie)["ndcg"] == [pytest.approx(1 / np.log2(4))]
    assert theirs((*tie[:4], 2)) == NOTHING


@given(tasks())
@example((np.zeros((1, 4), dtype=np.int64), {(0, 3), (0, 1)}, {(0, 0), (0, 1), (0, 2)}, 3, 2))  # nothing to rank
def test_six_metrics_agree_with_the_oracle_user_by_user(task: Task) -> None:
    assert_the_same(task)


@pytest.mark.few(2)
@pytest.mark.parametrize("k", [1, 3, 20, 60])
def test_six_metrics_agree_with_the_oracle_on_many_users(k: int) -> None:
    assert_the_same(random_task(np.random.default_rng(k), n_users=200, n_items=60, n_unknown=15, k=k))


@given(tasks(), st.randoms(use_true_random=False))
def test_where_an_item_stands_in_the_table_decides_nothing(task: Task, random: np.random.Generator) -> None:
    scores, positives, seen, n_items, k = task
    place = [*random.sample(range(n_items), n_items), *range(n_items, scores.shape[1])]  # old row → new row
    moved = np.empty_like(scores)
    moved[:, place] = scores

    def anew(pairs: Pairs) -> Pairs:
        return {(user, place[item]) for user, item in pairs}

    assert ours((moved, anew(positives), anew(seen), n_items, k)) == ours(task)


@given(st.integers(1, 5), st.integers(1, 10), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_model_without_an_opinion_finds_nothing_wherever_the_positives_stand(
    n_positives: int, k: int, n_seen: int, random: np.random.Generator
) -> None:
    """As long as there are k other items, that is."""
    n_items = n_positives + n_seen + k
    order = random.sample(range(n_items), n_items)
    positives = {(0, item) for item in order[:n_positives]}
    seen = {(0, item) for item in order[n_positives : n_positives + n_seen]}
    task = (np.full((1, n_items), 7), positives, seen, n_items, k)
    assert ours(task) == NOTHING
    one_more = ours((*task[:4], k + 1))
    assert one_more["hit"] == [1.0]
    assert one_more["mrr"] == [pytest.approx(1 / (k + 1))]


def test_what_cannot_be_found_is_missed() -> None:
    """Of three positives one is not known and one was had before: a perfect list finds a third."""
    task = (np.array([[0, 2, 1, 9]]), {(0, 0), (0, 1), (0, 3)}, {(0, 0)}, 3, 2)
    found = ours(task)
    assert found["recall"] == [pytest.approx(1 / 3)]
    assert found["mrr"] == [1.0]
    assert_the_same(task)
