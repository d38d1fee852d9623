"""Blocks of requests ranked by others, in any order, give the lists of one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fairstream as fs
from fairstream.evaluation import top_k
from fairstream.evaluation.requests import split
from fairstream.recommender.lists import ListMaker
from support import make_recommender, one_by_one

STREAM = fs.synthetic_stream(n_users=150, n_items=90, n_events=2500, seed=0)
FIRST, LATER = STREAM.events.slice(0, 2000), STREAM.events.slice(2000)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = top_k.BACKENDS["cpu"]
    monkeypatch.setitem(top_k.BACKENDS, "cpu", backend._replace(items_at_once=64, scores_at_once=64 * 9))


@cache
def fitted(model: str) -> fs.FairRecommender:
    rec = make_recommender(model, pretrain_epochs=1, embedding_dim=8, device="cpu")
    return rec.fit(fs.read_events(FIRST, users=STREAM.users))


@pytest.mark.few(3)
@pytest.mark.parametrize("model", ["mf", "gru", "popularity", "item-item", "transitions"])
@pytest.mark.parametrize("by_event", [True, False])
def test_an_evaluation_does_not_depend_on_who_makes_the_lists(small_blocks: None, model: str, by_event: bool) -> None:
    rec = fitted(model)
    options: dict[str, Any] = {"task": "event" if by_event else "next", "k": 10, "n_resamples": 20}
    here = rec.evaluate(LATER, users=STREAM.users, **options)
    with one_by_one() as cluster:
        divided = rec.evaluate(LATER, users=STREAM.users, **options)
    assert cluster.n_tasks >= 8
    assert divided.to_dict() == here.to_dict()


@pytest.mark.slow
def test_sampled_candidates_do_not_depend_on_who_ranks_them(small_blocks: None) -> None:
    run = fs.run(
        fs.read_events(STREAM.events, users=STREAM.users),
        model="gru",
        protocol="paper",
        pretrain_epochs=1,
        model_settings={"embedding_dim": 8},
        n_periods=2,
        batch_size=32,
        n_resamples=0,
        device="cpu",
    )
    here = run.begin()
    with one_by_one() as cluster:
        divided = run._evaluate("remain", 0, run._evaluator)
    assert cluster.n_tasks > 1
    assert divided.to_dict() == here.tasks["remain"].to_dict()


def test_lists_do_not_depend_on_who_makes_them(small_blocks: None) -> None:
    rec = fitted("gru")
    maker = ListMaker.of(rec.state, 5, "event", exclude=[1, 2], only=None)
    ids, rows = rec.state.user_ids.ids, np.arange(len(rec.state.user_ids))
    here = maker.table("user_id", ids, rows, lambda: rec.state.fallback)
    with one_by_one() as cluster:
        divided = maker.table("user_id", ids, rows, lambda: rec.state.fallback)
    assert cluster.n_tasks > 1
    assert divided.equals(here)


@given(n_blocks=st.integers(1, 30), n_parts=st.integers(1, 40))
def test_parts_hold_every_block_once_and_in_order(n_blocks: int, n_parts: int) -> None:
    blocks = [range(3 * n, 3 * n + 3) for n in range(n_blocks)]
    parts = split(blocks, n_parts)
    assert [block for part in parts for block in part] == blocks
    assert len(parts) == min(n_parts, n_blocks)
    sizes = [len(part) for part in parts]
    assert max(sizes) - min(sizes) <= 1
