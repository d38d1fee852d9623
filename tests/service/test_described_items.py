"""What the catalogue says of items reaches the models that read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.compute as pc
import pytest
from streams import SMALL, named_stream, take_in

from fairstream.service.api.follower import Follower
from fairstream.service.event_store import EventStore
from fairstream.service.items import features_table, items_from_json, store
from fairstream.service.learning import Learning
from fairstream.service.lists import Ask
from fairstream.service.serving import Serving
from fairstream.service.settings import ItemProperties
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace

Maker = Callable[..., Workspace]
PERIODS, _ = named_stream()


def put(workspace: Workspace, items: list[dict[str, Any]]) -> None:
    store(workspace.engine, items_from_json(items, workspace.config.items.properties))


def everything_for(workspace: Workspace, user: str) -> list[str]:
    serving = Serving(workspace.config.events)
    Follower(workspace, EventStore(workspace), serving).poll()
    assert serving.status().source == "model"
    return serving.current.recommend(user, Ask(10_000)).items


@pytest.mark.parametrize("model", ["gru", "mf"])
def test_a_described_new_item_is_recommended_before_its_first_event(new_workspace: Maker, model: str) -> None:
    small = {"batch_size": 256, "model_settings": {"embedding_dim": 16}, "pretrain_epochs": 1, "update_epochs": 1}
    workspace = new_workspace(**{**SMALL, "learning": Learning(model=model, **small)})
    known = pc.unique(PERIODS[0]["item_id"]).to_pylist()
    put(workspace, [{"item_id": item, "category": f"c{n % 5}", "price": n} for n, item in enumerate(known)])
    put(workspace, [{"item_id": "new", "category": "c1"}, {"item_id": "only in stock", "stock": 7}])
    take_in(workspace, PERIODS[0])
    assert update(workspace).kind == "promoted"
    user = PERIODS[0]["user_id"][0].as_py()
    reads_features = model == "gru"
    assert ("new" in everything_for(workspace, user)) == reads_features
    assert "only in stock" not in everything_for(workspace, user)

    put(workspace, [{"item_id": "newer", "category": "c1", "price": 5}])
    take_in(workspace, PERIODS[1])
    update(workspace)
    assert ("newer" in everything_for(workspace, user)) == reads_features


def test_numbers_are_classes_that_other_prices_do_not_move(new_workspace: Maker) -> None:
    workspace = new_workspace(
        items=ItemProperties(
            properties={"price": "number", "tags": "texts", "new": "boolean"}, features=("price", "tags")
        )
    )
    assert features_table(workspace.engine, workspace.config.items) is None
    put(workspace, [{"item_id": "a", "price": 10}, {"item_id": "b", "price": 11}, {"item_id": "c", "new": True}])
    table = features_table(workspace.engine, workspace.config.items)
    assert table is not None
    before = dict(zip(table["item_id"].to_pylist(), table["price"].to_pylist(), strict=True))
    assert before["a"] == before["b"]
    assert "c" not in before
    put(workspace, [{"item_id": "d", "price": 1e9, "tags": ["x"]}, {"item_id": "e", "price": -3}])
    table = features_table(workspace.engine, workspace.config.items)
    assert table is not None
    after = dict(zip(table["item_id"].to_pylist(), table["price"].to_pylist(), strict=True))
    assert before.items() <= after.items()
    assert len({*after.values()}) == 3
