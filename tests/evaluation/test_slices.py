"""The parts that a mean would hide, against sets made by hand."""

from __future__ import annotations

import json
from typing import NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from fairstream.data import History
from fairstream.evaluation import GroupPanel, ItemLists, Lists, Slice, Truth, panel_scores
from fairstream.evaluation.lists import TrainingHistory
from fairstream.evaluation.results import EvaluatedLists, cut_slices
from support import Given, Pairs, items_of, pairs_of, rank_all

N_USERS, N_ITEMS, K = 6, 9, 3
PAIRS = st.sets(st.tuples(st.integers(0, N_USERS - 1), st.integers(0, N_ITEMS - 1)), max_size=15)


class Part(NamedTuple):
    users: np.ndarray
    lists: Lists
    truth: Truth


class Case:
    """Two batches of known events, positives that came after them, and the lists that were made."""

    def __init__(self, first: Pairs, second: Pairs, future: Pairs, codes: list[int], seed: int) -> None:
        batches = [np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2) for pairs in (first, second)]
        self.known = History.of(*batches[0].T).after(*batches[1].T)
        self.positives = future - first - second
        scores = torch.rand(N_USERS, N_ITEMS, generator=torch.Generator().manual_seed(seed))
        self.users = np.array(sorted({user for user, _ in self.positives}), dtype=np.int64)
        pairs = pairs_of(self.positives)
        self.ranked = rank_all(Given(scores), self.users, pairs, self.known.seen, n_items=self.known.n_items, k=K)
        self.codes = np.array(codes, dtype=np.int16)[self.users]
        self.truth = self.truth_of(ItemLists(*pairs.lists(self.users)), self.known)

    def truth_of(self, positives: ItemLists, known: History) -> Truth:
        return Truth(self.users, positives, known.n_items, TrainingHistory(known, known))

    def slices(self, known: History | None = None) -> dict[str, Part]:
        is_cold, truth = self.users >= self.known.n_users, self.truth
        if known is not None:
            truth = self.truth_of(self.truth.positives, known)
        test = EvaluatedLists(self.ranked, truth, (), self.codes, is_cold, truth.n_items)
        parts = {name: (mask, Part(self.users[mask], lists, truth)) for name, mask, lists, truth in cut_slices(test)}
        assert all((part.truth.users == part.users).all() for _, part in parts.values())
        return {name: part for name, (_, part) in parts.items()}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    codes = draw(st.lists(st.integers(-1, 2), min_size=N_USERS, max_size=N_USERS))
    return Case(draw(PAIRS.filter(bool)), draw(PAIRS), draw(PAIRS), codes, draw(st.integers(0, 1000)))


@given(cases())
def test_users_are_warm_or_cold_and_with_or_without_a_group(case: Case) -> None:
    slices = case.slices()
    expected = {
        "warm_users": [user for user in case.users.tolist() if user < case.known.n_users],
        "cold_users": [user for user in case.users.tolist() if user >= case.known.n_users],
        "no_group": [user for user, code in zip(case.users.tolist(), case.codes, strict=True) if code == -1],
    }
    for name, users in expected.items():
        assert slices[name].users.tolist() == users
        assert slices[name].truth.n_positives.tolist() == [len(items_of(case.positives, user)) for user in users]
        places = [case.users.tolist().index(user) for user in users]
        assert slices[name].lists.hits.tolist() == case.ranked.hits[places].tolist()
        for place, user in enumerate(users):
            assert set(slices[name].truth.history[place].tolist()) == items_of(_pairs(case.known), user)


@given(cases())
def test_only_some_items_count_as_found_and_only_who_had_any_to_find_is_there(case: Case) -> None:
    """The lists stay the same: what stands in the way of a new item stands there still."""
    slices, known = case.slices(), case.known
    new = set(range(known.n_items_before, known.n_items))
    for name, counts in {"cold_items": set(range(known.n_items, N_ITEMS)), "new_items": new}.items():
        wanted = {user: items_of(case.positives, user) & counts for user in case.users.tolist()}
        part = slices[name]
        assert part.users.tolist() == [user for user in case.users.tolist() if wanted[user]]
        assert part.truth.n_positives.tolist() == [len(wanted[user]) for user in part.users.tolist()]
        for user, hits in zip(part.users.tolist(), part.lists.hits.tolist(), strict=True):
            place = case.users.tolist().index(user)
            candidates = known.n_items - len(items_of(_pairs(known), user))
            items = case.ranked.items[place].tolist()[:candidates]
            assert hits == [float(item in wanted[user]) for item in items] + [0.0] * (K - len(items))


def _pairs(known: History) -> Pairs:
    return set(zip(known.users.tolist(), known.items.tolist(), strict=True))


@given(cases())
def test_what_nobody_has_had_is_never_found(case: Case) -> None:
    assert case.slices()["cold_items"].lists.hits.sum() == 0


@given(cases())
def test_the_parts_add_up(case: Case) -> None:
    slices = case.slices()
    n = {name: len(part.users) for name, part in slices.items()}
    found = {name: part.lists.hits.sum().item() for name, part in slices.items()}
    to_find = {name: part.truth.n_positives.sum().item() for name, part in slices.items()}
    assert n["warm_users"] + n["cold_users"] == len(case.users)
    assert to_find["warm_users"] + to_find["cold_users"] == len(case.positives)
    assert found["warm_users"] + found["cold_users"] == case.ranked.hits.sum()
    old = {(user, item) for user, item in case.positives if item < case.known.n_items_before}
    assert to_find["cold_items"] + to_find["new_items"] + len(old) == len(case.positives)


def test_the_first_new_item_is_a_hit_of_its_slice() -> None:
    """User 0 has nothing left to list but item 1, which came with the second batch."""
    part = Case({(0, 0)}, {(1, 1)}, {(0, 1)}, [0] * N_USERS, 0).slices()["new_items"]
    assert part.lists.hits.tolist() == [[True, False, False]]
    assert part.truth.positives[0].tolist() == [1]


def test_before_there_was_a_second_batch_no_item_is_new() -> None:
    case = Case({(0, 0), (1, 1)}, set(), {(0, 1)}, [0] * N_USERS, 0)
    first = History.of(np.array([0, 1]), np.array([0, 1]))
    slices = case.slices(first)
    assert list(slices) == ["warm_users", "cold_users", "no_group", "cold_items"]
    assert list(case.slices()) == [*slices, "new_items"]


def test_a_slice_as_json() -> None:
    panel = GroupPanel(np.array([[[0.5]], [[0.25]]]), np.array([0, 1], dtype=np.int16), n_groups=2)
    (scores,) = panel_scores(panel, ["M", "F"])
    part = Slice(2, 7, {"ndcg@5": scores})
    assert part["ndcg@5"].mean == 0.375
    assert json.loads(json.dumps(part.to_dict())) == {
        "n_users": 2,
        "n_positives": 7,
        "ndcg@5": scores.to_dict(),
    }
    assert part.to_dict()["ndcg@5"]["performance_disparity"] == 0.25
