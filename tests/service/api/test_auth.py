"""API keys: believed while the database is away, revoked soon, and unknown ones slowed down."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError

from fairstream.service.api import limits
from fairstream.service.api.auth import KeyCache
from fairstream.service.api.errors import ApiError, error_from
from fairstream.service.api.limits import Bucket
from fairstream.service.keys import make_key, revoke_key
from fairstream.service.workspace import Workspace
from live_services import outage

Maker = Callable[..., Workspace]


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(limits.time, "monotonic", clock)
    return clock


def request(key: str, peer: str = "10.0.0.1") -> dict[str, Any]:
    return {"headers": [(b"authorization", f"Bearer {key}".encode())], "client": (peer, 1)}


def refused(cache: KeyCache, key: str, peer: str = "10.0.0.1") -> ApiError:
    with pytest.raises((ApiError, SQLAlchemyError)) as error:
        asyncio.run(cache.authenticate(request(key, peer)))
    return error_from(error.value)


def test_known_keys_are_believed_while_the_database_is_away_and_revocations_apply_when_it_is_back(
    new_workspace: Maker, clock: Clock
) -> None:
    workspace = new_workspace()
    key, other = (make_key(workspace.engine, name, "read") for name in ("one", "other"))
    cache = KeyCache(workspace.engine, 1000)
    cache.read()
    revoke_key(workspace.engine, "other")
    with outage(workspace.engine):
        clock.now += 3600
        for known in (key, other):
            assert asyncio.run(cache.authenticate(request(known))).scope == "read"
        assert refused(cache, "fs_" + "x" * 43).status_code == 503  # nobody can say whether it is valid
    cache.read()
    assert asyncio.run(cache.authenticate(request(key))).name == "one"
    assert refused(cache, other).status_code == 401


def test_a_key_that_was_cut_short_is_unknown_and_not_missing(new_workspace: Maker) -> None:
    workspace = new_workspace()
    key, cache = make_key(workspace.engine, "one", "read"), KeyCache(workspace.engine, 1000)
    for wrong in (key[:-1], f"{key}x", "x", '"' + key + '"'):
        assert refused(cache, wrong).code == "unknown_key"
    for headers in ([], [(b"authorization", b"Basic YTpi")], [(b"x-api-key", key.encode())]):
        with pytest.raises(ApiError, match="Missing API key"):
            asyncio.run(cache.authenticate({"headers": headers, "client": ("10.0.0.1", 1)}))


def test_a_new_key_is_valid_at_once(new_workspace: Maker) -> None:
    workspace = new_workspace()
    cache = KeyCache(workspace.engine, 1000)
    cache.read()  # a moment before the key is created
    assert asyncio.run(cache.authenticate(request(make_key(workspace.engine, "new", "read")))).name == "new"


def test_wrong_keys_that_wait_together_share_a_read_of_the_database(
    new_workspace: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache, n_reads = KeyCache(new_workspace().engine, 1000), 0
    read = cache.read

    def counted() -> None:
        nonlocal n_reads
        n_reads += 1
        read()

    async def ask() -> list[Any]:
        wrong = (request(f"fs_{n:043}", f"10.0.0.{n}") for n in range(50))
        return await asyncio.gather(*map(cache.authenticate, wrong), return_exceptions=True)

    monkeypatch.setattr(cache, "read", counted)
    assert [error.status_code for error in asyncio.run(ask())] == [401] * 50
    assert n_reads == 1


def test_wrong_keys_cost_few_queries_and_are_slowed_down_for_their_address_alone(
    new_workspace: Maker, clock: Clock
) -> None:
    workspace = new_workspace()
    good = make_key(workspace.engine, "good", "read")
    cache = KeyCache(workspace.engine, 10**6)
    cache.read()
    n_queries = 0

    @event.listens_for(workspace.engine, "before_cursor_execute")
    def count(*_: Any) -> None:
        nonlocal n_queries
        n_queries += 1

    statuses = []
    for n in range(500):
        clock.now += 0.001
        statuses.append(refused(cache, f"fs_{n:043}").status_code)
    assert n_queries <= 2 * 11  # one transaction for each key that the address may try
    assert statuses[:5] == [401] * 5
    assert statuses.count(429) > 480
    assert refused(cache, "fs_" + "x" * 43, peer="10.0.0.2").status_code == 401
    assert asyncio.run(cache.authenticate(request(good))).name == "good"
    waiting = refused(cache, "fs_" + "x" * 43)
    clock.now += int((waiting.headers or {})["Retry-After"])
    assert refused(cache, "fs_" + "x" * 43).status_code == 401


def test_wrong_keys_from_ever_other_addresses_are_slowed_down_too(new_workspace: Maker, clock: Clock) -> None:
    workspace = new_workspace()
    good = make_key(workspace.engine, "good", "read")
    cache = KeyCache(workspace.engine, 10**6)
    cache.read()
    statuses = [refused(cache, f"fs_{n:043}", peer=f"10.0.{n // 256}.{n % 256}").status_code for n in range(500)]
    assert statuses.count(401) <= 100
    assert asyncio.run(cache.authenticate(request(good))).name == "good"


@given(rate=st.floats(0.1, 1000), waits=st.lists(st.floats(0, 5), min_size=1, max_size=200))
def test_a_bucket_lets_pass_its_rate_and_a_burst(rate: float, waits: list[float]) -> None:
    clock = Clock()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(limits.time, "monotonic", clock)
        bucket, passed = Bucket(rate), 0
        for wait in waits:
            clock.now += wait
            if refused_for := bucket.take():
                clock.now += refused_for
                assert bucket.take() == 0  # after the announced seconds it passes
            passed += 1
        assert passed <= max(1, 2 * rate) + rate * (clock.now - 100) + 1e-3
