"""What a list is for, the very next event or a whole period, reaches the model wherever lists are made."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor

import fairstream
from fairstream import EventLog, SyntheticStream
from fairstream.data import History
from fairstream.models import TASKS, ClosedFormScorer, Context
from support import make_recommender

N_USERS, N_ITEMS = 12, 6
FAVOURITE = {"event": 0, "next": 1}
"""The item that the model puts first, by what the list is for."""


class ByTask(ClosedFormScorer):
    """Puts one item first in lists for the next event and another in lists for a period."""

    def __init__(self, n_users: int, n_items: int) -> None:
        super().__init__()
        self.register_buffer("popularity", torch.zeros(n_items))

    @property
    def n_items(self) -> int:
        return len(self.popularity)

    def grow(self, n_users: int, n_items: int) -> None:
        self.popularity = torch.zeros(n_items)

    def learn(self, history: History, new: Any, weights: Any = None) -> None:
        pass

    def forward(self, users: Tensor, items: Tensor, context: Context) -> Tensor:
        return (items == FAVOURITE[context.task]).float()


class ByTaskOfAReader(ByTask):
    """The same from a context with something in it."""

    history_length = 2


MODELS = pytest.mark.parametrize("model", [ByTask, ByTaskOfAReader])
EVERYBODY = range(N_USERS)
# Somebody else makes the favourites known. Then a third of all users take the one, the others the other, and at last
# everybody something else.
PAST = [(N_USERS, 0), (N_USERS, 1), *((user, 2 + (user + n) % 4) for n in range(3) for user in EVERYBODY)]
NEXT = [(user, FAVOURITE["next"] if user < N_USERS / 3 else FAVOURITE["event"]) for user in EVERYBODY]
LAST = [(user, 2 + (user + 3) % 4) for user in EVERYBODY]
SHARE = {"event": 2 / 3, "next": 1 / 3, "remain": 1 / 3}
"""Of the users whose next item is first in a list for this task."""


USERS = pa.table({"user_id": np.arange(N_USERS + 1), "side": ["ab"[user % 2] for user in range(N_USERS + 1)]})


def table(pairs: list[tuple[int, int]], *, after: int = 0) -> pa.Table:
    users, items = zip(*pairs, strict=True)
    return pa.table({"user_id": users, "item_id": items, "time": np.arange(after, after + len(pairs))})


def log_of(pairs: list[tuple[int, int]]) -> EventLog:
    return fairstream.read_events(table(pairs), users=USERS, group="side", advantaged="a")


@MODELS
def test_of_a_recommendation(model: Any) -> None:
    rec = make_recommender(model, device="cpu").fit(log_of(PAST))
    for task, favourite in FAVOURITE.items():
        for asked in ({"user_ids": EVERYBODY}, {"histories": [[2, 3], [5]]}):
            assert set(rec.recommend(**asked, k=1, task=task)["item_id"].to_pylist()) == {favourite}
    assert rec.recommend(EVERYBODY, k=1).equals(rec.recommend(EVERYBODY, k=1, task="next"))


@MODELS
def test_of_an_evaluation(model: Any) -> None:
    rec = make_recommender(model, device="cpu").fit(log_of(PAST))
    new = table(NEXT, after=len(PAST))
    for task in TASKS:
        evaluation = rec.evaluate(new, task=task, k=1, metrics=["hit"], n_resamples=0)
        assert evaluation["hit@1"].mean == pytest.approx(SHARE[task])


@MODELS
@pytest.mark.parametrize("protocol", ["strict", "paper"])
def test_of_a_run(model: Any, protocol: str) -> None:
    options = {"pretrain_events": len(PAST), "n_blocks": 2, "n_periods": 2, "batch_size": 1, "device": "cpu"}
    judging = {"k": 1, "metrics": ["hit"], "min_group_size": 1, "n_resamples": 0, "protocol": protocol}
    run = fairstream.run(log_of(PAST + NEXT + LAST), "finetune", model=model, **options, **judging)
    list(run)
    assert run.pretrained is not None
    found = {task: evaluation["hit@1"].mean for task, evaluation in run.pretrained.tasks.items()}
    assert found == pytest.approx({task: SHARE[task] for task in run.config.tasks})


@pytest.mark.parametrize("model", ["blend", "item-item", "mf", "recent-popularity"])  # without ties
def test_evaluate_tests_the_lists_that_recommend_returns(model: str, stream: SyntheticStream) -> None:
    """By default, for known users and newcomers; NDCG is computed here from the lists alone."""
    first, later = stream.events.slice(0, 2500), stream.events.slice(2500, 700)
    rec = make_recommender(model, pretrain_epochs=2, embedding_dim=8, device="cpu").fit(first)
    known = set(zip(*(first[name].to_pylist() for name in ("user_id", "item_id")), strict=True))
    wanted: dict[Any, set[Any]] = {}
    for user, item in zip(*(later[name].to_pylist() for name in ("user_id", "item_id")), strict=True):
        if (user, item) not in known:
            wanted.setdefault(user, set()).add(item)
    lists: dict[Any, list[Any]] = {user: [] for user in wanted}
    for row in rec.recommend(list(wanted), k=20).to_pylist():
        lists[row["user_id"]].append(row["item_id"])
    discount = 1 / np.log2(np.arange(2, 22))
    own = [
        sum(discount[place] for place, item in enumerate(lists[user]) if item in items) / discount[: len(items)].sum()
        for user, items in wanted.items()
    ]
    evaluated = rec.evaluate(later, n_resamples=0)["ndcg@20"].mean
    assert evaluated == pytest.approx(np.mean(own), abs=1e-6)
