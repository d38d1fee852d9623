"""Several workspaces in one process: each at its own address, and none knows of another."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from fairstream.errors import ConfigurationError
from fairstream.service.api import Shops, workspaces_in
from fairstream.service.api.follower import Follower
from fairstream.service.settings import FILE, LiveConfig
from fairstream.service.workspace import Workspace
from live_services import Keys, add_model, make_keys, served, wait_until

EVENT = {"user_id": "new", "item_id": "i1", "time": "2026-01-01T00:00:00Z"}
Maker = Callable[..., Workspace]
NAMES = ("workspace0", "workspace1")


@pytest.fixture
def shops(
    new_workspace: Maker, tmp_path: Path, new_database: Callable[..., str | None]
) -> Iterator[list[tuple[Workspace, Keys]]]:
    """Two shops, each with a secret, a model and keys."""
    with Workspace.create(tmp_path / "workspace1", LiveConfig(), new_database()) as second:
        made = [new_workspace(), second]
        for seed, workspace in enumerate(made):
            add_model(workspace, seed=seed)
        yield [(workspace, make_keys(workspace)) for workspace in made]


@pytest.fixture
def client(shops: list[tuple[Workspace, Keys]]) -> Iterator[httpx.Client]:
    app = Shops([workspace.folder for workspace, _ in shops])
    with served(app) as address, httpx.Client(base_url=address, timeout=60) as client:
        yield client


def test_each_shop_has_its_own_keys_events_and_metrics(
    client: httpx.Client, shops: list[tuple[Workspace, Keys]]
) -> None:
    own, foreign = (keys for _, keys in shops)
    keys_of = dict(zip(NAMES, (own, foreign), strict=True))
    path = "/w/workspace0/v1/users/u1/recommendations"
    assert client.get(path, headers=own.read).status_code == 200
    assert client.get(path, headers=foreign.read).status_code == 401
    assert client.get("/v1/users/u1/recommendations", headers=own.read).status_code == 404
    before = [client.get(f"/w/{name}/metrics", headers=keys.read).text for name, keys in keys_of.items()]
    assert client.post("/w/workspace0/v1/events", json=EVENT, headers=own.ingest).json()["accepted"] == 1
    after = [client.get(f"/w/{name}/metrics", headers=keys.read).text for name, keys in keys_of.items()]
    counted = 'fairstream_events_total{outcome="accepted",shop="workspace0"} 1.0'
    assert [counted in text for text in (*before, *after)] == [False, False, True, False]
    for name, text in zip(NAMES, after, strict=True):
        assert f'shop="{name}"' in text
        assert sum('shop="' in line for line in text.splitlines()) == sum(line[0] != "#" for line in text.splitlines())
    servers = [client.get(f"/w/{name}/v1/openapi.json").json()["servers"] for name in NAMES]
    assert servers == [[{"url": f"/w/{name}"}] for name in NAMES]


def test_a_session_is_of_one_shop(client: httpx.Client, shops: list[tuple[Workspace, Keys]]) -> None:
    key = shops[0][1].read["Authorization"].split()[1]
    signed_in = client.post("/w/workspace0/login", data={"key": key})
    assert signed_in.headers["location"] == "/w/workspace0/"
    assert "path=/w/workspace0;" in signed_in.headers["set-cookie"]
    page = client.get("/w/workspace0/")
    assert page.status_code == 200
    links = [link.split('"')[0] for part in ('href="', 'action="', 'src="') for link in page.text.split(part)[1:]]
    own = [link for link in links if link.startswith("/")]
    assert own
    assert all(link.startswith("/w/workspace0/") for link in own)
    # Also if a browser sent the cookie to the other shop, it would not know it.
    cookie = signed_in.headers["set-cookie"].partition(";")[0]
    other = httpx.get(f"{client.base_url}/w/workspace1/", headers={"Cookie": cookie})
    assert other.headers["location"] == "/w/workspace1/login"


def test_a_broken_shop_stops_no_other_and_is_tried_again(
    new_workspace: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairstream.service.api.shops._RETRY_SECONDS", 0.1)
    good, bad = new_workspace(), new_workspace()
    add_model(good)
    content = (bad.folder / FILE).read_text()
    (bad.folder / FILE).write_text("grup = 3")
    with served(Shops([good.folder, bad.folder])) as address, httpx.Client(base_url=address) as client:
        assert client.get("/w/workspace0/readyz").status_code == 200
        refused = client.get("/w/workspace1/readyz")
        assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
        assert "grup" not in refused.text  # this needs no key
        assert client.get("/readyz").json() == {"status": "degraded", "problems": ["1 of 2 shops can make lists."]}
        assert client.get("/healthz").status_code == 200
        (bad.folder / FILE).write_text(content)
        wait_until(lambda: client.get("/w/workspace1/readyz").status_code == 200)
        assert client.get("/readyz").json()["status"] == "ready"


def test_one_shop_alone_is_at_both_addresses(new_workspace: Maker) -> None:
    workspace = new_workspace()
    add_model(workspace)
    keys = make_keys(workspace)
    with served(Shops([workspace.folder])) as address, httpx.Client(base_url=address) as client:
        for root in ("", "/w/workspace0"):
            assert client.get(f"{root}/readyz").json()["status"] == "ready"  # the model was loaded before
            assert client.get(f"{root}/v1/users/u1/recommendations", headers=keys.read).status_code == 200
            assert client.get(f"{root}/").headers["location"] == f"{root}/login"
        assert client.get("/w/workspace0/w/workspace0/v1/audit").status_code == 404  # and no request without a key
        assert 'shop="' not in client.get("/metrics", headers=keys.read).text


@pytest.mark.sqlite_only
def test_a_new_process_takes_requests_when_its_model_is_loaded(
    new_workspace: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, read = new_workspace(), Follower._read_model
    add_model(workspace)
    monkeypatch.setattr(Follower, "_read_model", lambda *args: time.sleep(1) or read(*args))
    with served(Shops([workspace.folder])) as address:
        assert httpx.get(f"{address}/readyz").json()["status"] == "ready"


def test_names_are_unique_and_fit_into_addresses(new_workspace: Maker, tmp_path: Path) -> None:
    first = new_workspace().folder
    twin = tmp_path / "other" / first.name
    shutil.copytree(first, twin)
    assert workspaces_in([tmp_path]) == [first]
    assert workspaces_in([tmp_path, tmp_path / "none"]) == [first, tmp_path / "none"]
    with pytest.raises(ConfigurationError, match="must be unique"):
        workspaces_in([first, twin])
    odd = twin.rename(twin.with_name("a shop"))
    with pytest.raises(ConfigurationError, match="'a shop'; rename"):
        workspaces_in([first, odd])
    assert workspaces_in([odd]) == [odd]


def test_lines_of_the_log_name_the_shop(new_workspace: Maker, capsys: pytest.CaptureFixture[str]) -> None:
    shops = Shops([new_workspace().folder, new_workspace().folder])
    with served(shops):
        pass
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert {line["shop"] for line in lines if line["event"] == "service started"} == set(NAMES), lines
