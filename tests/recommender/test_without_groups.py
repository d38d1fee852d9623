"""A recommender saved without groups serves what it did with them, also where events have weights by group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import fairstream as fs
from fairstream.errors import ConfigurationError
from fairstream.models import NO_LEVEL, Level
from support import at_level, make_recommender

STREAM = fs.synthetic_stream(n_users=200, n_items=60, n_events=4000, seed=3, disadvantaged_share=0.3)
LOG = fs.read_events(STREAM.events.slice(0, 2500), users=STREAM.users, group="community", advantaged="majority")
NEXT, LATER = STREAM.events.slice(2500, 700), STREAM.events.slice(3200)
EVERYBODY = STREAM.users["user_id"].to_pylist()
STRANGERS = [10**9, 10**9 + 1]
SHORT: dict[str, dict[str, Any]] = {
    "mf": {"pretrain_epochs": 1, "update_epochs": 1},
    "item-item": {},
    "blend": {"pretrain_epochs": 1, "update_epochs": 1, "embedding_dim": 8},
}


def weighted(model: str) -> fs.FairRecommender:
    """A recommender with group weights where the model takes them, and with a level in force."""
    options = {"device": "cpu", "target": "least-regret", "group_weight": 8.0, **SHORT[model]}
    rec = make_recommender(model, **options).fit(LOG).update(NEXT, users=STREAM.users)
    assert rec.state.event_weights["minority"] > 2
    return at_level(rec, Level("minority", 5.0))


def lists(rec: fs.FairRecommender) -> list[Any]:
    histories = [[], [LOG.item_ids.ids[0].as_py()], LOG.item_ids.ids[:5].to_pylist()]
    return [
        rec.recommend([*EVERYBODY, *STRANGERS], k=20),
        rec.recommend(STRANGERS, k=rec.state.history.n_items),
        rec.recommend(histories=histories, k=20, task="next"),
    ]


pytestmark = pytest.mark.few(2)


@pytest.fixture(params=SHORT)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[fs.FairRecommender, fs.FairRecommender]:
    """A recommender, and what is loaded of it where it was saved without groups."""
    rec = weighted(request.param)
    rec.save(tmp_path, with_groups=False)
    return rec, fs.load(tmp_path)


@pytest.mark.few(1)
def test_lists_are_the_same_without_groups(pair: tuple[fs.FairRecommender, fs.FairRecommender], tmp_path: Path) -> None:
    rec, loaded = pair
    assert (loaded.state.groups.codes < 0).all()
    assert lists(loaded) == lists(rec)
    assert torch.equal(loaded.state.fallback.popularity, rec.state.fallback.popularity)
    loaded.save(tmp_path / "again", with_groups=False)
    assert lists(fs.load(tmp_path / "again")) == lists(rec)


@pytest.mark.few(1)
def test_with_its_groups_it_learns_and_forgets_as_if_it_had_never_been_saved(
    pair: tuple[fs.FairRecommender, fs.FairRecommender],
) -> None:
    rec, loaded = pair
    gone = LOG.user_ids.ids[:7].to_pylist()
    for call in (lambda: loaded.update(LATER), lambda: loaded.forget(gone), lambda: loaded.evaluate(LATER)):
        with pytest.raises(ConfigurationError, match="call set_groups"):
            call()
    assert loaded.forget(STRANGERS) == 0  # nobody to forget, nothing to ask for
    loaded.set_groups(STREAM.users)
    for one in (rec, loaded):
        assert one.forget(gone) == len(gone)
    assert lists(loaded) == lists(rec)
    for one in (rec, loaded):
        one.update(LATER, users=STREAM.users)
    assert dict(loaded.state.event_weights) == dict(rec.state.event_weights)
    for ours, theirs in zip(loaded.model.state_dict().values(), rec.model.state_dict().values(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_without_weights_an_update_needs_no_groups(tmp_path: Path) -> None:
    rec = make_recommender("item-item", device="cpu").fit(LOG)
    rec.save(tmp_path, with_groups=False)
    assert fs.load(tmp_path).update(NEXT).last_update is not None


def test_groups_that_are_too_small_are_not_replayed() -> None:
    rec = make_recommender("popularity", device="cpu", target="least-regret").fit(LOG)
    update = rec.update(NEXT, users=STREAM.users, min_group_size=190).last_update
    assert update is not None
    assert update.decision is not None
    assert update.decision.level == NO_LEVEL
    assert "too few users" in update.decision.sentence
