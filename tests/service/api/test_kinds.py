"""Kinds of events over HTTP: what they do to a person's lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from streams import SMALL, know, periods_of, take_in

from fairstream.service.learning import Learning
from fairstream.service.settings import EventKinds
from fairstream.service.updater import update
from fairstream.service.workspace import Workspace
from live_services import Keys, Running, make_keys, running

Maker = Callable[..., Workspace]
PERIODS, PEOPLE = periods_of()
KINDS = EventKinds(
    kinds={"event": 1, "view": 1, "purchase": 4, "seen": 0, "dislike": -1}, repeats=("view",), default="event"
)


class Shop:
    def __init__(self, client: Running) -> None:
        self.client, self.headers = client, client.keys.admin

    def send(self, user: str, item: str, kind: str | None) -> Any:
        event = {"user_id": user, "item_id": item, "time": 1_700_600_000, "kind": kind}
        return self.client.post("/v1/events", json=[event], headers=self.headers)

    def items(self, user: str) -> list[str]:
        answer = self.client.get(f"/v1/users/{user}/recommendations", params={"k": 100}, headers=self.headers)
        assert answer.status_code == 200, answer.text
        return [each["item_id"] for each in answer.json()["items"]]


@pytest.fixture(params=["recent-popularity", "item-item"])
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextmanager
def opened(workspace: Workspace, keys: Keys) -> Iterator[Shop]:
    with running(workspace, keys) as client:
        client.wait_until_ready()
        yield Shop(client)


@pytest.mark.parametrize("user", ["u1", "nobody yet"])
def test_a_kind_decides_whether_an_item_leaves_a_persons_lists(new_workspace: Maker, model: str, user: str) -> None:
    workspace = new_workspace(**{**SMALL, "learning": Learning(model=model)}, events=KINDS)
    know(workspace, PEOPLE)
    take_in(workspace, PERIODS[0])
    update(workspace)
    keys = make_keys(workspace)
    with opened(workspace, keys) as shop:
        viewed, seen, bought, disliked, returned = shop.items(user)[:5]
        for item, kind in ((viewed, "view"), (seen, "seen"), (bought, "purchase"), (disliked, "dislike")):
            assert shop.send(user, item, kind).status_code == 200
        shop.send(user, returned, "view")
        shop.send(user, returned, "purchase")
        left = shop.items(user)
        assert {viewed, seen} <= set(left)
        assert not {bought, disliked, returned} & set(left)
        assert disliked in shop.items("somebody else")
    # Another process, or the next start, knows the same.
    with opened(workspace, keys) as shop:
        assert {viewed, seen} <= set(shop.items(user))
        assert not {bought, disliked, returned} & set(shop.items(user))


def test_what_was_disliked_stays_away_after_updates(new_workspace: Maker) -> None:
    workspace = new_workspace(**{**SMALL, "learning": Learning(model="recent-popularity")}, events=KINDS)
    take_in(workspace, PERIODS[0])
    update(workspace)
    keys = make_keys(workspace)
    with opened(workspace, keys) as shop:
        disliked = shop.items("u1")[0]
        shop.send("u1", disliked, "dislike")
    take_in(workspace, PERIODS[1])
    assert update(workspace).kind == "promoted"
    with opened(workspace, keys) as shop:
        assert disliked not in shop.items("u1")
        assert disliked in shop.items("nobody")


def test_an_unknown_kind_is_422_with_the_kinds(new_workspace: Maker) -> None:
    workspace = new_workspace(events=KINDS)
    with opened(workspace, make_keys(workspace)) as shop:
        answer = shop.send("u1", "i1", "sale")
        assert answer.status_code == 422
        assert "kind must be one of event, view, purchase, seen, dislike" in answer.json()["detail"]
